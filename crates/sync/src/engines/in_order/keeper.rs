//! [`Keeper`]: writes connected blocks and their undo data into a data directory that is being made: all of
//! them, or [the last ones](crate::request::LAST_BLOCKS).
//!
//! A thread of its own writes, through a short queue, so that the thread which connects never waits
//! for the disk while that keeps up. Blocks are durable before the coins that came of them: where a
//! start goes on, all blocks up to the store's are there, and what lies behind is cut off. Where blocks
//! are disconnected, the coins go first.

use crate::error::{IoError, SyncError, UsageError};
use crate::folder::{
    DatadirBlocks, FolderDraft, FolderKind, FolderOutput, expect_room, remove_folder,
};
use crate::progress::Event;
use crate::request::{ConnectOptions, Request, RunEnv, first_of_last};
use crate::sink::datadir::{DraftWithBlocks, blocks_folder, index_folder};
use crate::source::{BlockArchive, ChainSource, without_undo};
use crate::warning::Warning;
use apus_chain::{
    BlockHash, CoinSum, CoinSumKey, Header, Height, HeightRange, KeyedCoinSum, KnownBlock, Network,
};
use apus_datadir::{BlockStore, Obfuscation, SpentCoins};
use apus_engine::script::RawBlock;
use apus_engine::utxo::Connected;
use core::ops::Range;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Orders on their way to the thread: so many blocks are held at most.
const QUEUE: usize = 4;

/// What the thread is to do.
enum BlockOrder {
    Put(KeptBlock),
    /// Make everything durable, and say so.
    Sync(SyncSender<()>),
    /// Hold the blocks up to this one, or none.
    Hold(Option<BlockHash>),
}

/// A valid block, as it is kept.
pub struct KeptBlock {
    /// The block.
    pub id: KnownBlock,
    /// Its bytes.
    pub raw: Arc<dyn RawBlock>,
    /// Its undo data (Core `undo.h`, `CBlockUndo`).
    pub undo: Vec<u8>,
    /// The sum of all coins that it spends.
    pub spent: CoinSum,
}

impl KeptBlock {
    /// The block that it follows.
    pub fn prev(&self) -> BlockHash {
        let header = self.raw.raw().first_chunk().expect("a block begins with its header");
        Header::parse(header).prev
    }

    /// What it spends, with the sum under this key.
    pub fn spends(&self, key: CoinSumKey) -> SpentCoins<'_> {
        SpentCoins { undo: &self.undo, sum: KeyedCoinSum { key, sum: self.spent } }
    }
}

impl From<Connected> for KeptBlock {
    fn from(Connected { block, undo, spent }: Connected) -> Self {
        Self { id: block.id(), raw: block, undo: undo.into(), spent }
    }
}

/// Takes blocks in ascending height.
pub struct Keeper {
    /// There until it is dropped, which ends the thread.
    orders: Option<SyncSender<BlockOrder>>,
    thread: Option<JoinHandle<Result<BlockStore, SyncError>>>,
    /// No other run writes there meanwhile. There until the end.
    draft: Option<FolderDraft>,
    /// The first block that the run connects.
    from: Height,
    /// The heights of the blocks that are there once all orders are done. Others are let pass.
    holds: Range<Height>,
}

impl Keeper {
    /// Begins after the block at `tip`, if `request` asks for a data directory that keeps blocks. Of the
    /// last ones it may hold none, though the tip is among them: see [`lacks_some`](Self::lacks_some).
    pub fn start(
        request: &Request<'_>,
        options: &ConnectOptions<'_>,
        dir: &dyn ChainSource,
        from: Height,
        tip: KnownBlock,
        end: Height,
        sum_key: CoinSumKey,
    ) -> Result<Option<Self>, SyncError> {
        let found = request.folders.iter().find_map(|output| match output.kind {
            FolderKind::Datadir(kept) => Some((output, kept)),
            FolderKind::Chainstate | FolderKind::KeptDatadir => None,
        });
        let Some((output, kept)) = found else { return Ok(None) };
        let place = PositionRecord {
            log: options.positions.clone(),
            network: request.env.params.network,
            genesis: request.env.params.genesis_block(),
            key: dir.obfuscation(),
            kept,
        };
        let first = match kept {
            DatadirBlocks::All if from != 1 => return Err(SyncError::Usage(UsageError::NoUndo)),
            DatadirBlocks::All => 0,
            DatadirBlocks::Last => first_of_last(end).max(from),
        };
        let earlier = match tip.height {
            0 => None,
            _ => place.find(request, output, first, tip)?,
        };
        let (draft, store, holds) = match earlier {
            Some(found) => found,
            None => {
                let draft = FolderDraft::begin(output)?;
                let folder = blocks_folder(draft.folder(), request.env.params.network);
                let store = place.begin(&folder)?;
                // The genesis block is there where it belongs.
                (draft, store, first..first.max(1))
            }
        };
        let folder = blocks_folder(draft.folder(), request.env.params.network);
        let more = holds.end..end + 1;
        let block_bytes: u64 = more.map(|height| dir.block_bytes(height)).sum();
        // Undo data takes a seventh as much on the main chain.
        expect_room(&folder, block_bytes + block_bytes / 7)?;
        let (orders, receiver) = sync_channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("blocks".to_owned())
            .spawn(move || obey(store, &place, &folder, sum_key, &receiver))
            .map_err(|error| SyncError::Io(IoError::Threads { wanted: 1, error }))?;
        let (orders, thread, draft) = (Some(orders), Some(thread), Some(draft));
        Ok(Some(Self { orders, thread, draft, from, holds }))
    }

    /// Takes the next block.
    pub fn put(&mut self, block: KeptBlock) -> Result<(), SyncError> {
        let height = block.id.height;
        if height < self.holds.start {
            return Ok(());
        }
        assert_eq!(height, self.holds.end, "blocks come in ascending height");
        self.holds.end += 1;
        self.order(BlockOrder::Put(block))
    }

    /// Whether it has to go through all that a run at `tip` has connected of the last blocks once more,
    /// where the chain ends at `end`.
    pub fn lacks_some(&self, tip: Height, end: Height) -> bool {
        self.holds.start > self.first(end) || self.holds.end <= tip
    }

    /// The run goes on from `tip` to `end`: forgets the blocks above the tip. What the run lacks, it is
    /// below.
    pub fn go_on(&mut self, tip: KnownBlock, end: Height) -> Result<(), SyncError> {
        let begins_anew = self.lacks_some(tip.height, end);
        if begins_anew {
            self.holds.start = self.first(end);
        }
        let held = self.holds.end;
        // The genesis block is there where it belongs.
        let least = self.holds.start.max(1);
        self.holds.end = if begins_anew { least } else { held.min(tip.height + 1).max(least) };
        if self.holds.end == held && !begins_anew {
            return Ok(());
        }
        self.order(BlockOrder::Hold((self.holds.end > least).then_some(tip.hash)))
    }

    fn first(&self, end: Height) -> Height {
        match self.holds.start {
            0 => 0,
            _ => first_of_last(end).max(self.from),
        }
    }

    /// Waits until all that was taken is durable.
    pub fn sync(&mut self) -> Result<(), SyncError> {
        let (done, wait) = sync_channel(1);
        self.order(BlockOrder::Sync(done))?;
        match wait.recv() {
            Ok(()) => Ok(()),
            Err(_) => Err(self.failure()),
        }
    }

    /// Ends the thread. The directory stays this run's, for what writes into it next.
    pub fn end(mut self) -> Result<DraftWithBlocks, SyncError> {
        self.sync()?;
        self.orders = None;
        let blocks = self.join()?;
        Ok(DraftWithBlocks { draft: self.draft.take().expect("it is there until the end"), blocks })
    }

    fn order(&mut self, order: BlockOrder) -> Result<(), SyncError> {
        match &self.orders {
            Some(orders) if orders.send(order).is_ok() => Ok(()),
            _ => Err(self.failure()),
        }
    }

    /// Why the thread is gone.
    fn failure(&mut self) -> SyncError {
        // It ends by itself only when no thread can order any more.
        self.join().err().unwrap_or(SyncError::Interrupted)
    }

    fn join(&mut self) -> Result<BlockStore, SyncError> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(panic)) => resume_unwind(panic),
            // Told before.
            None => Err(SyncError::Interrupted),
        }
    }
}

/// A data directory, its blocks and their heights.
type Found = (FolderDraft, BlockStore, Range<Height>);

/// What belongs to the blocks of a data directory.
struct PositionRecord {
    log: PathBuf,
    network: Network,
    genesis: Vec<u8>,
    key: Obfuscation,
    kept: DatadirBlocks,
}

impl PositionRecord {
    /// No blocks in `folder`, but for the genesis block where all are kept.
    fn begin(&self, folder: &Path) -> Result<BlockStore, SyncError> {
        BlockStore::remove(folder, &self.log)?;
        let genesis = (self.kept == DatadirBlocks::All).then_some(&self.genesis[..]);
        let magic = self.network.magic();
        Ok(BlockStore::open(folder, &self.log, magic, self.key, genesis)?)
    }

    /// The blocks that are in `folder`, up to this one.
    fn go_on(&self, folder: &Path, last: &BlockHash) -> Result<BlockStore, SyncError> {
        let magic = self.network.magic();
        Ok(BlockStore::open_up_to(folder, &self.log, magic, self.key, last)?)
    }

    /// The directory of an earlier start, if it holds the blocks from the height `first` on up to the
    /// tip, and which it holds.
    ///
    /// # Errors
    /// Where all blocks are kept it has to hold them, and to be this one: that start may have connected
    /// some without being asked to keep them, or for another one.
    fn find(
        &self,
        request: &Request<'_>,
        output: &FolderOutput,
        first: Height,
        tip: KnownBlock,
    ) -> Result<Option<Found>, SyncError> {
        let lacking = |what: &str| match self.kept {
            DatadirBlocks::All => Err(request.env.other_run(what)),
            DatadirBlocks::Last => Ok(None),
        };
        if !self.log.exists() {
            return lacking("without the data directory as output");
        }
        let Some(draft) = FolderDraft::find(output)? else {
            return lacking("with another data directory as output");
        };
        remove_folder(&index_folder(draft.folder(), self.network))?;
        let folder = blocks_folder(draft.folder(), self.network);
        let store = self.go_on(&folder, &tip.hash)?;
        let is_of_all = store.has(&request.env.params.genesis_hash);
        let start = match self.kept {
            // Blocks come in ascending height: those below are there as well.
            DatadirBlocks::All if is_of_all && store.has_undo(&tip.hash) => 0,
            DatadirBlocks::Last if !is_of_all => first_below(&store, tip)?,
            DatadirBlocks::All | DatadirBlocks::Last => tip.height + 1,
        };
        match start <= first.min(tip.height) {
            true => Ok(Some((draft, store, start..tip.height + 1))),
            false => lacking("some of it without the data directory as output"),
        }
    }
}

/// The height from which on all blocks up to the tip are there.
fn first_below(store: &BlockStore, tip: KnownBlock) -> Result<Height, SyncError> {
    let (mut height, mut hash) = (tip.height + 1, tip.hash);
    while store.has_undo(&hash) {
        height -= 1;
        hash = Header::parse(&store.stored(&hash)?.header).prev;
    }
    Ok(height)
}

impl Drop for Keeper {
    /// Its thread is gone before the files are opened again.
    fn drop(&mut self) {
        self.orders = None;
        // What it failed at was told, or the run failed before.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn obey(
    mut store: BlockStore,
    place: &PositionRecord,
    folder: &Path,
    key: CoinSumKey,
    orders: &Receiver<BlockOrder>,
) -> Result<BlockStore, SyncError> {
    for order in orders {
        match order {
            BlockOrder::Put(block) => {
                store.put(&block.id.hash, block.raw.raw())?;
                store.put_undo(&block.id.hash, &block.prev(), block.spends(key))?;
            }
            BlockOrder::Sync(done) => {
                store.sync()?;
                // The thread that ordered it may not wait any more.
                let _ = done.send(());
            }
            BlockOrder::Hold(last) => {
                store.sync()?;
                drop(store);
                store = match last {
                    Some(last) => place.go_on(folder, &last)?,
                    None => place.begin(folder)?,
                };
            }
        }
    }
    Ok(store)
}

// Blocks that are kept for a node, and have no undo data.
//
// Undo data comes of connecting a block. Blocks that hints prove are not connected, and those that an
// earlier start connected without keeping blocks are not connected again. That is said as soon as it
// is known, before the rest of the work is done: a user who needs them starts anew. The
// [last ones](crate::request::LAST_BLOCKS), which every node needs, have undo data in any case.

/// Warns of blocks of `done` that will have no undo data in the folder of blocks that are kept.
pub(crate) fn warn_of_missing(env: &RunEnv<'_>, dir: &dyn ChainSource, done: HeightRange) {
    let ranges = without_undo(dir, done);
    if !ranges.is_empty() {
        env.observer.event(Event::Warning(Warning::NoUndo { ranges }));
    }
}

/// Gives the undo data of a block to where the source keeps the block.
pub(crate) fn put_undo(
    archive: &dyn BlockArchive,
    block: &KeptBlock,
    key: CoinSumKey,
) -> Result<(), SyncError> {
    archive.put_undo(&block.id.hash, &block.prev(), block.spends(key))
}
