//! `datadir:DIR`: a data directory for Bitcoin Core to start on.
//!
//! Blocks and undo data are there already: the run that connects the blocks [writes](crate::connect) them
//! into the same draft, all of them or the last ones. Here the coins come beside them, and the index that knows
//! all of it. Of blocks that are not there, the index says that they were pruned.

use super::chainstate::{Tables, publish};
use super::{CoinSink, SetInfo, Whole};
use crate::error::{IoError, SourceError, SyncError, UsageError};
use crate::folder::{
    BlocksRead, DatadirBlocks, FolderDraft, FolderOutput, WrittenFolder, at, sync_folder,
};
use crate::progress::{Event, Phase, Progress};
use crate::request::Request;
use crate::sink::read_back::read_blocks_back;
use crate::source::ChainSource;
use crate::supply::ranges::take_ranges;
use apus_chain::{Height, Network, Txid};
use apus_datadir::{BlockPositions, Holds, IndexedBlocks, chain_folder, write_block_index};
use apus_storage::DirStorage;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Where the blocks and their undo data go.
pub(crate) fn blocks_folder(datadir: &Path, network: Network) -> PathBuf {
    chain_folder(datadir, network).join("blocks")
}

/// Where the coins go.
pub(crate) fn chainstate_folder(datadir: &Path, network: Network) -> PathBuf {
    chain_folder(datadir, network).join("chainstate")
}

/// A data directory.
pub(crate) struct DatadirSink<'a> {
    request: &'a Request<'a>,
    dir: &'a dyn ChainSource,
    output: &'a FolderOutput,
    kept: DatadirBlocks,
    draft: FolderDraft,
    tables: Tables<'a>,
    /// Where not all blocks are kept, how many transactions the index says that each has, by height.
    tx_counts: Vec<u32>,
    /// The first block that is kept.
    first: Height,
    blocks_read_back: BlocksRead,
}

impl<'a> DatadirSink<'a> {
    /// Begins the directory, or goes on with `draft`, the one that holds the blocks. Its coins go to
    /// `place`.
    pub(crate) fn create(
        request: &'a Request<'_>,
        dir: &'a dyn ChainSource,
        output: &'a FolderOutput,
        kept: DatadirBlocks,
        draft: Option<FolderDraft>,
        place: &'a DirStorage,
        set: SetInfo,
    ) -> Result<Self, SyncError> {
        let draft = draft.ok_or(SyncError::Usage(UsageError::NoUndo))?;
        let index = index_folder(draft.folder(), request.params.network);
        for folder in [&index, place.folder()] {
            // What an earlier start came to is of no use.
            match fs::remove_dir_all(folder) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(at(folder)(error)),
                _ => fs::create_dir_all(folder).map_err(at(folder))?,
            }
        }
        let tables = Tables::create(place, set)?;
        let (tx_counts, blocks_read_back) = (Vec::new(), BlocksRead::default());
        let first = 0;
        Ok(Self { request, dir, output, kept, draft, tables, tx_counts, first, blocks_read_back })
    }

    fn write_index(&mut self, set: SetInfo) -> Result<(), SyncError> {
        let params = self.request.params;
        let folder = DirStorage::new(index_folder(self.draft.folder(), params.network));
        let blocks = set.height + 1;
        let connect = self.request.connect.as_ref().ok_or(SyncError::Usage(UsageError::NoUndo))?;
        let positions = BlockPositions::open(&connect.positions)?;
        let found = positions.read(set.height)?.hash();
        if found != set.base {
            let folder = self.draft.folder().display().to_string();
            let what = format!("its last block is {found}, not {}", set.base);
            return Err(SyncError::Io(IoError::ReadBack { folder, what }));
        }
        self.first = positions.heights().start;
        match self.kept {
            DatadirBlocks::All => {
                write_block_index(&folder, blocks, IndexedBlocks::All(&positions))?
            }
            DatadirBlocks::Last => {
                let genesis = (params.genesis_header.to_bytes(), 1);
                let uncounted = self.dir.not_counted(set.height);
                take_ranges(Phase::Index, self.request, self.dir, &uncounted)?;
                let heads = self.dir.heads(set.height, &mut |height| self.reached(height, set))?;
                let header_at = &mut |height: Height| match height.checked_sub(1) {
                    None => genesis,
                    Some(before) => {
                        let head = &heads[before as usize];
                        (head.header, head.tx_count)
                    }
                };
                let kept = IndexedBlocks::Last { positions: &positions, header_at };
                write_block_index(&folder, blocks, kept)?;
                let counts = heads.iter().map(|head| head.tx_count);
                self.tx_counts = std::iter::once(genesis.1).chain(counts).collect();
            }
        }
        // All the way up to the draft, which is synced when it gets its name.
        sync_folder(&blocks_folder(self.draft.folder(), params.network))?;
        sync_folder(&chain_folder(self.draft.folder(), params.network))
    }

    /// Heads are there up to this height.
    fn reached(&self, height: Height, set: SetInfo) -> Result<(), SourceError> {
        let (blocks, blocks_total) = (u64::from(height), u64::from(set.height));
        let progress = Progress { blocks, blocks_total, ..Progress::default() };
        self.request.observer.event(Event::Progress(Phase::Index, progress));
        match self.request.interrupt.load(Ordering::Relaxed) {
            true => Err(SourceError::Interrupted),
            false => Ok(()),
        }
    }
}

fn index_folder(datadir: &Path, network: Network) -> PathBuf {
    blocks_folder(datadir, network).join("index")
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

    fn index(&mut self, whole: &Whole<'_>) -> Result<(), SyncError> {
        self.write_index(whole.set)
    }

    fn checks(&self) -> bool {
        true
    }

    fn bytes(&self) -> u64 {
        self.tables.bytes() + self.blocks_read_back.bytes
    }

    fn check(&mut self, whole: &Whole<'_>) -> Result<(), SyncError> {
        self.tables.check(whole)?;
        let holds = match self.kept {
            DatadirBlocks::All => Holds::InOrder,
            DatadirBlocks::Last => Holds::Last { first: self.first, tx_counts: &self.tx_counts },
        };
        let (request, set) = (self.request, whole.set);
        let folder = blocks_folder(self.draft.folder(), request.params.network);
        let chain = self.dir.chain();
        let connect = request.connect.as_ref().ok_or(SyncError::Usage(UsageError::NoUndo))?;
        let positions = BlockPositions::open(&connect.positions)?;
        let spent = |height: Height| Some(positions.read(height).ok()?.spent);
        let (last, count) = (set.height, set.transactions);
        self.blocks_read_back =
            read_blocks_back(request, chain, &folder, last, holds, count, &spent)?;
        Ok(())
    }

    fn publish(self: Box<Self>, _whole: &Whole<'_>) -> Result<Option<WrittenFolder>, SyncError> {
        let Self { output, draft, tables, blocks_read_back, .. } = *self;
        publish(output, draft, &tables, blocks_read_back).map(Some)
    }
}
