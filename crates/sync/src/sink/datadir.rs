//! `datadir:DIR`: a data directory on which Bitcoin Core can start.
//!
//! The sync that connects or proves the blocks [writes](crate::engines::in_order) all of them, or the last ones,
//! into the same draft, with their undo data. This module adds the coins and the block index. The index lists
//! missing blocks as pruned.

use crate::error::{SourceError, SyncError, UsageError};
use crate::folder::{
    BlocksRead, DatadirBlocks, FolderDraft, FolderOutput, WrittenFolder, at, parent, remove_folder,
    sync_folder,
};
use crate::progress::{Event, Phase, Progress};
use crate::request::Request;
use crate::sink::chainstate::{Tables, publish};
use crate::sink::read_back::{read_blocks_back, read_kept_back};
use crate::sink::{CoinSink, SetEnd, SetInfo};
use crate::source::{ChainSource, StoredBlocks, not_kept};
use crate::supply::ranges::{take_missing, take_ranges};
use apus_chain::{Height, Network, Txid};
use apus_datadir::{BlockStore, ChainBlock, ExpectedFolder, chain_folder, write_block_index};
use apus_storage::DirStorage;
use std::fs;
use std::path::{Path, PathBuf};
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

/// A data directory.
pub struct DatadirSink<'a> {
    request: &'a Request<'a>,
    dir: &'a dyn ChainSource,
    output: &'a FolderOutput,
    kept: DatadirBlocks,
    draft: FolderDraft,
    blocks: BlockStore,
    tables: Tables<'a>,
    /// If not all blocks are kept: the number of transactions of each block for the index, by height.
    tx_counts: Vec<u32>,
    /// The first kept block.
    first: Height,
    blocks_read_back: BlocksRead,
}

impl<'a> DatadirSink<'a> {
    /// Continues a draft that has its blocks. Its coins go to `place`.
    pub fn create(
        request: &'a Request<'_>,
        dir: &'a dyn ChainSource,
        output: &'a FolderOutput,
        kept: DatadirBlocks,
        with_blocks: Option<DraftWithBlocks>,
        place: &'a DirStorage,
        set: SetInfo,
    ) -> Result<Self, SyncError> {
        let wanted = SyncError::Usage(UsageError::NoUndo);
        let DraftWithBlocks { draft, blocks } = with_blocks.ok_or(wanted)?;
        let index = index_folder(draft.folder(), request.env.params.network);
        for folder in [&index, place.folder()] {
            begin_folder(folder)?;
        }
        let tables = Tables::create(place, set)?;
        let (tx_counts, blocks_read_back) = (Vec::new(), BlocksRead::default());
        Ok(Self {
            request,
            dir,
            output,
            kept,
            draft,
            blocks,
            tables,
            tx_counts,
            first: 0,
            blocks_read_back,
        })
    }

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
}

impl CoinSink for DatadirSink<'_> {
    fn put(&mut self, txid: Txid, group: &[u8]) -> Result<(), SyncError> {
        self.tables.put(txid, group)
    }

    fn seal(&mut self) -> Result<(), SyncError> {
        self.tables.seal()
    }

    fn indexes(&self) -> bool {
        true
    }

    fn index(&mut self, whole: &SetEnd<'_>) -> Result<(), SyncError> {
        self.write_index(whole.set)
    }

    fn checks(&self) -> bool {
        true
    }

    fn bytes(&self) -> u64 {
        self.tables.bytes()
    }

    fn check(&mut self, whole: &SetEnd<'_>) -> Result<(), SyncError> {
        self.tables.check(whole)
    }

    fn check_blocks(&mut self, whole: &SetEnd<'_>) -> Result<u64, SyncError> {
        let (request, set, chain) = (self.request, whole.set, self.dir.chain());
        let holds = ExpectedFolder {
            first: self.first,
            tx_counts: (self.kept == DatadirBlocks::Last).then_some(&self.tx_counts),
            whole: true,
        };
        let folder = blocks_folder(self.draft.folder(), request.env.params.network);
        let spent = |height: Height| Some(self.blocks.stored(chain.hash(height)?).ok()?.spent);
        let (last, count) = (set.height, set.transactions);
        self.blocks_read_back =
            read_blocks_back(request, chain, &folder, last, holds, count, &spent)?;
        Ok(self.blocks_read_back.bytes)
    }

    fn publish(self: Box<Self>, _whole: &SetEnd<'_>) -> Result<Option<WrittenFolder>, SyncError> {
        let Self { output, draft, tables, blocks_read_back, .. } = *self;
        publish(output, draft, &tables, blocks_read_back).map(Some)
    }
}

// `datadir:DIR` with blocks from peers and hints: a data directory that contains the blocks that the [source
// keeps](crate::peers).
//
// The source has put the blocks into its draft. This module writes the coins, then the index, reads everything back,
// and then gives the folder its final name. A node started on an incomplete folder would start over, and overwrite the
// blocks.

/// A data directory that contains blocks from peers.
pub(super) struct StoredDatadirSink<'a> {
    request: &'a Request<'a>,
    dir: &'a dyn ChainSource,
    output: &'a FolderOutput,
    place: &'a DirStorage,
    tables: Tables<'a>,
    /// The kept blocks, once they have an index.
    kept: Option<StoredBlocks<'a>>,
    blocks_read_back: BlocksRead,
}

impl<'a> StoredDatadirSink<'a> {
    /// Begins writing the coins to `place`.
    pub(super) fn create(
        request: &'a Request<'_>,
        dir: &'a dyn ChainSource,
        output: &'a FolderOutput,
        place: &'a DirStorage,
        set: SetInfo,
    ) -> Result<Self, SyncError> {
        begin_folder(place.folder())?;
        let tables = Tables::create(place, set)?;
        let (kept, blocks_read_back) = (None, BlocksRead::default());
        Ok(Self { request, dir, output, place, tables, kept, blocks_read_back })
    }

    fn kept(&self) -> Result<&StoredBlocks<'a>, SyncError> {
        self.kept.as_ref().ok_or(SyncError::Usage(UsageError::NoUndo))
    }
}

impl CoinSink for StoredDatadirSink<'_> {
    fn put(&mut self, txid: Txid, group: &[u8]) -> Result<(), SyncError> {
        self.tables.put(txid, group)
    }

    fn seal(&mut self) -> Result<(), SyncError> {
        self.tables.seal()
    }

    fn indexes(&self) -> bool {
        true
    }

    fn index(&mut self, whole: &SetEnd<'_>) -> Result<(), SyncError> {
        let (dir, last) = (self.dir, whole.set.height);
        take_missing(&self.request.env, dir, &not_kept(dir, last))?;
        if let Some(archive) = dir.archive() {
            self.kept = archive.write_index(dir.chain(), last)?;
        }
        // The draft itself is synced when it gets its final name.
        sync_folder(&self.kept()?.folder)?;
        sync_folder(parent(self.place.folder()))
    }

    fn checks(&self) -> bool {
        true
    }

    fn bytes(&self) -> u64 {
        self.tables.bytes() + self.blocks_read_back.bytes
    }

    fn check(&mut self, whole: &SetEnd<'_>) -> Result<(), SyncError> {
        self.tables.check(whole)?;
        self.blocks_read_back = read_kept_back(self.request, self.dir, self.kept()?, whole.set)?;
        Ok(())
    }

    fn publish(self: Box<Self>, _whole: &SetEnd<'_>) -> Result<Option<WrittenFolder>, SyncError> {
        let Self { output, tables, blocks_read_back, kept, .. } = *self;
        let draft = kept.and_then(|kept| kept.draft);
        let draft = draft.ok_or(SyncError::Usage(UsageError::NoUndo))?;
        publish(output, draft, &tables, blocks_read_back).map(Some)
    }
}
