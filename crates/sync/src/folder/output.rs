//! What a run writes that is a folder: [`FolderOutput`] asks for it, [`WrittenFolder`] is what came.

use super::FolderMark;
use std::path::PathBuf;
use std::sync::Arc;

/// A folder to write.
#[derive(Debug, Clone)]
pub struct FolderOutput {
    /// What.
    pub kind: FolderKind,
    /// The folder, whose parent must exist.
    pub path: PathBuf,
    /// Whether a folder that is there already is moved aside at the end. Else the run fails.
    pub replace: bool,
}

impl FolderOutput {
    /// Whether it is a data directory for a node that prunes.
    pub fn is_pruned(&self) -> bool {
        self.kind == FolderKind::Datadir(DatadirBlocks::Last)
    }
}

/// What a folder is to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FolderKind {
    /// Bitcoin Core's coins: a `chainstate` folder.
    Chainstate,
    /// A data directory of Bitcoin Core's.
    Datadir(DatadirBlocks),
    /// The same around the blocks that [the source keeps](crate::peers::KeptFolder): all of them, and undo data of those
    /// that were connected.
    KeptDatadir,
}

/// What a data directory keeps of the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatadirBlocks {
    /// All blocks and undo data. For engines that know the coins that each block spends.
    All,
    /// The last ones with undo data, and the index of all: what a pruned node has.
    Last,
}

/// A folder that was written.
#[derive(Debug, Clone)]
pub struct WrittenFolder {
    /// What.
    pub kind: FolderKind,
    /// Where.
    pub path: PathBuf,
    /// Bytes of the chainstate's tables.
    pub chainstate_bytes: u64,
    /// Coins that were read back from it, whose count and MuHash are the set's.
    pub coins_read_back: u64,
    /// Coins that it had when it was asked for them one by one.
    pub coins_looked_up: u64,
    /// What was read back of its blocks, if it has some or an index of them.
    pub blocks_read_back: BlocksRead,
    /// Where that went which was there before.
    pub moved_to: Option<PathBuf>,
    /// Keeps other runs out of it until this one is over.
    pub mark: Arc<FolderMark>,
}

/// What was read back of a `blocks` folder; all zeros where there was none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlocksRead {
    /// Entries of the block index.
    pub index_entries: u64,
    /// Blocks.
    pub blocks: u64,
    /// Blocks whose undo data were found.
    pub undo: u64,
    /// How many of these are the last blocks, without a gap: so far a node can go back.
    pub undo_at_end: u64,
    /// Bytes of blocks and undo data.
    pub bytes: u64,
}
