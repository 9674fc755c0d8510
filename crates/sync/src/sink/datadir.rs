//! `chainstate:DIR` and `datadir:DIR`: the set's coins, and a data directory on which Bitcoin Core can start.
//!
//! The sync that connects or proves the blocks [writes](crate::engines::in_order) all of them, or the last ones,
//! into the data directory's draft, with their undo data. This module adds the coins and the block index, reads
//! everything back, and then gives the folder its final name. The index lists missing blocks as pruned.

use crate::error::{SourceError, SyncError, UsageError};
use crate::folder::{
    BlocksRead, DatadirBlocks, FolderDraft, FolderKind, FolderOutput, WrittenFolder, at, parent,
    remove_folder, sync_folder,
};
use crate::progress::{Event, Phase, Progress};
use crate::request::Request;
use crate::sink::chainstate::Tables;
use crate::sink::read_back::{read_blocks_back, read_kept_back};
use crate::sink::{CoinSink, SetEnd, SetInfo};
use crate::source::{ChainSource, StoredBlocks, not_kept};
use crate::supply::ranges::{take_missing, take_ranges};
use apus_chain::{Height, Network, Txid};
use apus_datadir::{BlockStore, ChainBlock, ExpectedFolder, chain_folder, write_block_index};
use apus_storage::DirStorage;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Returns the folder of the blocks and their undo data.
pub fn blocks_folder(datadir: &Path, network: Network) -> PathBuf {
    chain_folder(datadir, network).join("blocks")
}

/// Returns the folder of the coins.
pub fn chainstate_folder(datadir: &Path, network: Network) -> PathBuf {
    chain_folder(datadir, network).join("chainstate")
}

/// Returns the folder of the block index.
pub fn index_folder(datadir: &Path, network: Network) -> PathBuf {
    blocks_folder(datadir, network).join("index")
}

/// Makes a database folder. Removes the partial database of an earlier start, which is unusable.
pub(super) fn begin_folder(folder: &Path) -> Result<(), SyncError> {
    remove_folder(folder)?;
    fs::create_dir_all(folder).map_err(at(folder))
}

/// A data directory with all its blocks, still under its draft name.
pub struct DraftWithBlocks {
    pub draft: FolderDraft,
    pub blocks: BlockStore,
}

/// A folder with the set's coins: a chainstate, or a data directory.
pub(super) struct FolderSink<'a> {
    output: &'a FolderOutput,
    tables: Tables<'a>,
    blocks: FolderBlocks<'a>,
    blocks_read_back: BlocksRead,
}

/// The folder's draft, and the blocks in it.
enum FolderBlocks<'a> {
    /// A chainstate has no blocks.
    None(FolderDraft),
    Written(Box<BlocksOfSync<'a>>),
    Stored(BlocksOfSource<'a>),
}

impl<'a> FolderSink<'a> {
    /// Begins a chainstate, or continues a data directory that has its blocks. The coins go to `place`.
    pub(super) fn create(
        request: &'a Request<'_>,
        dir: &'a dyn ChainSource,
        output: &'a FolderOutput,
        with_blocks: &mut Option<DraftWithBlocks>,
        place: &'a DirStorage,
        set: SetInfo,
    ) -> Result<Self, SyncError> {
        let blocks = match output.kind {
            FolderKind::Chainstate => {
                FolderBlocks::None(FolderDraft::begin_at(&output.path, output.replace)?)
            }
            FolderKind::Datadir(kept) => {
                let wanted = SyncError::Usage(UsageError::NoUndo);
                let DraftWithBlocks { draft, blocks } = with_blocks.take().ok_or(wanted)?;
                begin_folder(&index_folder(draft.folder(), request.env.params.network))?;
                begin_folder(place.folder())?;
                let (tx_counts, first) = (Vec::new(), 0);
                let blocks = BlocksOfSync { request, dir, kept, draft, blocks, tx_counts, first };
                FolderBlocks::Written(Box::new(blocks))
            }
            FolderKind::KeptDatadir => {
                begin_folder(place.folder())?;
                FolderBlocks::Stored(BlocksOfSource { request, dir, place, kept: None })
            }
        };
        let tables = Tables::create(place, set)?;
        Ok(Self { output, tables, blocks, blocks_read_back: BlocksRead::default() })
    }
}

impl CoinSink for FolderSink<'_> {
    fn put(&mut self, txid: Txid, group: &[u8]) -> Result<(), SyncError> {
        self.tables.put(txid, group)
    }

    fn seal(&mut self) -> Result<(), SyncError> {
        self.tables.seal()
    }

    fn indexes(&self) -> bool {
        !matches!(self.blocks, FolderBlocks::None(_))
    }

    fn index(&mut self, whole: &SetEnd<'_>) -> Result<(), SyncError> {
        match &mut self.blocks {
            FolderBlocks::None(_) => Ok(()),
            FolderBlocks::Written(blocks) => blocks.write_index(whole.set),
            FolderBlocks::Stored(blocks) => blocks.write_index(whole.set),
        }
    }

    fn checks(&self) -> bool {
        true
    }

    fn bytes(&self) -> u64 {
        self.tables.bytes() + self.blocks_read_back.bytes
    }

    fn check(&mut self, whole: &SetEnd<'_>) -> Result<(), SyncError> {
        self.tables.check(whole)?;
        if let FolderBlocks::Stored(BlocksOfSource { request, dir, kept, .. }) = &self.blocks {
            self.blocks_read_back = read_kept_back(request, *dir, expect_kept(kept)?, whole.set)?;
        }
        Ok(())
    }

    fn check_blocks(&mut self, whole: &SetEnd<'_>) -> Result<u64, SyncError> {
        let FolderBlocks::Written(blocks) = &self.blocks else { return Ok(0) };
        self.blocks_read_back = blocks.read_back(whole.set)?;
        Ok(self.blocks_read_back.bytes)
    }

    fn publish(self: Box<Self>, _whole: &SetEnd<'_>) -> Result<Option<WrittenFolder>, SyncError> {
        let Self { output, tables, blocks, blocks_read_back } = *self;
        let draft = match blocks {
            FolderBlocks::None(draft) => Some(draft),
            FolderBlocks::Written(blocks) => Some(blocks.draft),
            FolderBlocks::Stored(blocks) => blocks.kept.and_then(|kept| kept.draft),
        };
        let draft = draft.ok_or(SyncError::Usage(UsageError::NoUndo))?;
        let (moved_to, mark) = draft.publish()?;
        Ok(Some(WrittenFolder {
            kind: output.kind,
            path: output.path.clone(),
            chainstate_bytes: tables.bytes(),
            coins_read_back: tables.coins_read_back,
            coins_looked_up: tables.looked_up.coins,
            blocks_read_back,
            moved_to,
            mark: Arc::new(mark),
        }))
    }
}

/// Blocks that this sync wrote to the draft.
struct BlocksOfSync<'a> {
    request: &'a Request<'a>,
    dir: &'a dyn ChainSource,
    kept: DatadirBlocks,
    draft: FolderDraft,
    blocks: BlockStore,
    /// If not all blocks are kept: the number of transactions of each block for the index, by height.
    tx_counts: Vec<u32>,
    /// The first kept block.
    first: Height,
}

impl BlocksOfSync<'_> {
    fn write_index(&mut self, set: SetInfo) -> Result<(), SyncError> {
        let (request, dir) = (self.request, self.dir);
        let params = request.env.params;
        let folder = DirStorage::new(index_folder(self.draft.folder(), params.network));
        let count = set.height + 1;
        let found = dir.chain().hash(set.height).copied().unwrap_or_default();
        if found != set.base {
            let what = format!("its last block is {found}, not {}", set.base);
            return Err(SyncError::read_back(self.draft.folder(), &what));
        }
        let hash = |height: Height| *dir.chain().hash(height).expect("its tip is at least as high");
        match self.kept {
            DatadirBlocks::All => {
                let at = &mut |height| ChainBlock::Stored(hash(height));
                write_block_index(&self.blocks, &folder, count, at)?;
            }
            DatadirBlocks::Last => {
                let lacks = |height: &Height| !self.blocks.has_undo(&hash(*height));
                self.first = (0..count).rev().find(lacks).map_or(0, |last| last + 1);
                let genesis = (params.genesis_header.to_bytes(), 1);
                take_ranges(Phase::Index, &request.env, dir, &dir.not_counted(set.height))?;
                let heads = dir.heads(set.height, &mut |height| self.reached(height, set))?;
                let at = &mut |height: Height| match height.checked_sub(1) {
                    _ if height >= self.first => ChainBlock::Stored(hash(height)),
                    None => ChainBlock::Pruned(genesis.0, genesis.1),
                    Some(before) => {
                        let head = &heads[before as usize];
                        ChainBlock::Pruned(head.header, head.tx_count)
                    }
                };
                write_block_index(&self.blocks, &folder, count, at)?;
                let counts = heads.iter().map(|head| head.tx_count);
                self.tx_counts = std::iter::once(genesis.1).chain(counts).collect();
            }
        }
        // The draft itself is synced when it gets its final name.
        sync_folder(&blocks_folder(self.draft.folder(), params.network))?;
        sync_folder(&chain_folder(self.draft.folder(), params.network))
    }

    /// Reports that heads were read up to this height.
    fn reached(&self, height: Height, set: SetInfo) -> Result<(), SourceError> {
        let (blocks, blocks_total) = (u64::from(height), u64::from(set.height));
        let progress = Progress { blocks, blocks_total, ..Progress::default() };
        self.request.env.observer.event(Event::Progress(Phase::Index, progress));
        match self.request.env.interrupt.load(Ordering::Relaxed) {
            true => Err(SourceError::Interrupted),
            false => Ok(()),
        }
    }

    fn read_back(&self, set: SetInfo) -> Result<BlocksRead, SyncError> {
        let (request, chain) = (self.request, self.dir.chain());
        let holds = ExpectedFolder {
            first: self.first,
            tx_counts: (self.kept == DatadirBlocks::Last).then_some(&self.tx_counts),
            whole: true,
        };
        let folder = blocks_folder(self.draft.folder(), request.env.params.network);
        let spent = |height: Height| Some(self.blocks.stored(chain.hash(height)?).ok()?.spent);
        let (last, count) = (set.height, set.transactions);
        read_blocks_back(request, chain, &folder, last, holds, count, &spent)
    }
}

/// Blocks from peers, in a sync with hints: the [source keeps](crate::peers) them in its draft. A node started on
/// an incomplete folder would start over, and overwrite the blocks.
struct BlocksOfSource<'a> {
    request: &'a Request<'a>,
    dir: &'a dyn ChainSource,
    place: &'a DirStorage,
    /// The kept blocks, once they have an index.
    kept: Option<StoredBlocks<'a>>,
}

impl BlocksOfSource<'_> {
    fn write_index(&mut self, set: SetInfo) -> Result<(), SyncError> {
        let (dir, last) = (self.dir, set.height);
        take_missing(&self.request.env, dir, &not_kept(dir, last))?;
        if let Some(archive) = dir.archive() {
            self.kept = archive.write_index(dir.chain(), last)?;
        }
        // The draft itself is synced when it gets its final name.
        sync_folder(&expect_kept(&self.kept)?.folder)?;
        sync_folder(parent(self.place.folder()))
    }
}

fn expect_kept<'k, 'a>(
    kept: &'k Option<StoredBlocks<'a>>,
) -> Result<&'k StoredBlocks<'a>, SyncError> {
    kept.as_ref().ok_or(SyncError::Usage(UsageError::NoUndo))
}
