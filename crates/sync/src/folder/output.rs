//! Folders that a sync writes: a [`FolderOutput`] requests one, and a [`WrittenFolder`] describes the result.

use super::FolderMark;
use std::path::PathBuf;
use std::sync::Arc;

/// A folder that the user wants.
#[derive(Debug, Clone)]
pub struct FolderOutput {
    /// The kind of folder.
    pub kind: FolderKind,
    /// The folder, whose parent must exist.
    pub path: PathBuf,
    /// Whether an existing folder is moved aside at the end; otherwise the sync fails.
    pub replace: bool,
}

impl FolderOutput {
    /// Returns whether it is a data directory for a pruned node.
    pub fn is_pruned(&self) -> bool {
        self.kind == FolderKind::Datadir(DatadirBlocks::Last)
    }

    /// Returns whether it is a data directory with all blocks and their undo data.
    pub fn has_all_undo(&self) -> bool {
        self.kind == FolderKind::Datadir(DatadirBlocks::All)
    }
}

/// The content of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FolderKind {
    /// Bitcoin Core's coins: a `chainstate` folder.
    Chainstate,
    /// A data directory for Bitcoin Core.
    Datadir(DatadirBlocks),
    /// A data directory around the blocks that [the source keeps](crate::peers::BlocksFolderOptions): all
    /// blocks, and undo data of the connected ones.
    KeptDatadir,
}

/// The blocks that a data directory contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatadirBlocks {
    /// All blocks with undo data. Only for syncs that know the coins that each block spends.
    All,
    /// The last blocks with undo data, and the index of all blocks, like a pruned node.
    Last,
}

/// A written folder.
#[derive(Debug, Clone)]
pub struct WrittenFolder {
    /// The kind of folder.
    pub kind: FolderKind,
    /// Its path.
    pub path: PathBuf,
    /// Bytes of the chainstate's tables.
    pub chainstate_bytes: u64,
    /// Number of coins read back from it, whose count and MuHash match the set's.
    pub coins_read_back: u64,
    /// Number of coins found when they were looked up one by one.
    pub coins_looked_up: u64,
    /// Totals of its blocks that were read back, if it has blocks or their index.
    pub blocks_read_back: BlocksRead,
    /// Where the previous folder was moved.
    pub moved_to: Option<PathBuf>,
    /// Keeps other syncs out of the folder until this one ends.
    pub mark: Arc<FolderMark>,
}

/// Totals of a `blocks` folder that was read back; all zeros without such a folder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlocksRead {
    /// Entries of the block index.
    pub index_entries: u64,
    /// Blocks.
    pub blocks: u64,
    /// Blocks with undo data.
    pub undo: u64,
    /// Length of the unbroken range of last blocks with undo data: a node can disconnect that many blocks.
    pub undo_at_end: u64,
    /// Bytes of blocks and undo data.
    pub bytes: u64,
}
