//! [`DatadirWriter`]: writes connected or proven blocks and their undo data into a new data directory: all of
//! them, or [the last ones](crate::request::LAST_BLOCKS).
//!
//! A separate thread writes, fed by a short queue, so the connecting thread waits only if the disk cannot keep
//! up. Blocks become durable before the coins that they produced: after a restart the directory has all blocks
//! up to the store's block, and later ones are cut off. When blocks are disconnected, the coins are removed
//! first.

use crate::error::{IoError, SyncError};
use crate::folder::{
    DatadirBlocks, FolderDraft, FolderKind, FolderOutput, expect_room, remove_folder,
};
use crate::progress::Event;
use crate::request::{ConnectOptions, Request, RunEnv, first_of_last};
use crate::sink::datadir::{DraftWithBlocks, blocks_folder, index_folder};
use crate::source::{BlockArchive, ChainSource, without_undo};
use crate::supply::{bytes_of, predicts_sizes};
use crate::warning::Warning;
use apus_chain::{
    BlockHash, CoinSum, CoinSumKey, Header, Height, HeightRange, KeyedCoinSum, KnownBlock, Network,
};
use apus_datadir::{BlockStore, Obfuscation, SpentCoins};
use apus_engine::script::RawBlock;
use apus_engine::utxo::ConnectedBlock;
use core::ops::Range;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Orders queued for the thread, and so the maximum number of blocks held.
const QUEUE: usize = 4;

/// An order to the thread.
enum BlockOrder {
    Put(BlockWithUndo),
    /// Make everything durable, then reply.
    Sync(SyncSender<()>),
    /// Keep the blocks up to this one, or none.
    Hold(Option<BlockHash>),
}

/// A valid block with the undo data to store.
pub struct BlockWithUndo {
    /// The block.
    pub id: KnownBlock,
    /// Its bytes.
    pub raw: Arc<dyn RawBlock>,
    /// Its undo data (Core `undo.h`, `CBlockUndo`).
    pub undo: Vec<u8>,
    /// The sum of all coins that it spends.
    pub spent: CoinSum,
}

impl BlockWithUndo {
    /// Returns the hash of the previous block.
    pub fn prev(&self) -> BlockHash {
        let header = self.raw.raw().first_chunk().expect("a block begins with its header");
        Header::parse(header).prev
    }

    /// Returns the coins that the block spends, with their sum under this key.
    pub fn spends(&self, key: CoinSumKey) -> SpentCoins<'_> {
        SpentCoins { undo: &self.undo, sum: KeyedCoinSum { key, sum: self.spent } }
    }
}

impl From<ConnectedBlock> for BlockWithUndo {
    fn from(ConnectedBlock { block, undo, spent }: ConnectedBlock) -> Self {
        Self { id: block.id(), raw: block, undo: undo.into(), spent }
    }
}

/// Writes blocks, in ascending height, into a data directory.
pub struct DatadirWriter {
    /// `None` once the value is dropped, which ends the thread.
    orders: Option<SyncSender<BlockOrder>>,
    thread: Option<JoinHandle<Result<BlockStore, SyncError>>>,
    /// Keeps other processes from writing to the directory. `None` only at the end.
    draft: Option<FolderDraft>,
    /// The first block that the sync connects.
    from: Height,
    /// The heights of the stored blocks once all orders are done. The writer ignores lower blocks.
    holds: Range<Height>,
}

impl DatadirWriter {
    /// Starts after the block at `tip`, if `request` writes a data directory that keeps blocks. A directory that
    /// keeps only the last blocks may have none yet, even if the tip is one of them: see
    /// [`lacks_some`](Self::lacks_some).
    pub fn start(
        request: &Request<'_>,
        options: &ConnectOptions<'_>,
        dir: &dyn ChainSource,
        from: Height,
        tip: KnownBlock,
        end: Height,
        sum_key: CoinSumKey,
    ) -> Result<Option<Self>, SyncError> {
        let Some((output, place)) = PositionRecord::of(request, options, dir) else {
            return Ok(None);
        };
        let first = match place.kept {
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
                let draft = FolderDraft::begin_at(&output.path, output.replace)?;
                let folder = blocks_folder(draft.folder(), request.env.params.network);
                let store = place.begin(&folder)?;
                // A directory with all blocks already has the genesis block.
                (draft, store, first..first.max(1))
            }
        };
        let folder = blocks_folder(draft.folder(), request.env.params.network);
        if predicts_sizes(dir, request.env.params) {
            let block_bytes = bytes_of(dir, HeightRange::new(holds.end, end + 1));
            // On the main chain undo data takes a seventh of the blocks' size.
            expect_room(&folder, block_bytes + block_bytes / 7)?;
        }
        let (orders, receiver) = sync_channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("blocks".to_owned())
            .spawn(move || obey(store, &place, &folder, sum_key, &receiver))
            .map_err(|error| SyncError::Io(IoError::Threads { wanted: 1, error }))?;
        let (orders, thread, draft) = (Some(orders), Some(thread), Some(draft));
        Ok(Some(Self { orders, thread, draft, from, holds }))
    }

    /// Starts after the last of these blocks up to which an earlier start stored all blocks, with sums under this
    /// key; `None` if `request` writes no data directory with all blocks. Returns how many of `ends` are stored.
    pub fn start_after(
        request: &Request<'_>,
        options: &ConnectOptions<'_>,
        dir: &dyn ChainSource,
        ends: &[KnownBlock],
        sum_key: CoinSumKey,
    ) -> Result<Option<(Self, usize)>, SyncError> {
        let place = PositionRecord::of(request, options, dir);
        let Some((output, place)) = place.filter(|(output, _)| output.has_all_undo()) else {
            return Ok(None);
        };
        let stored = place.stored(output, ends, sum_key)?;
        let genesis = KnownBlock { height: 0, hash: request.env.params.genesis_hash };
        let tip = stored.checked_sub(1).map_or(genesis, |last| ends[last]);
        let end = request.stop.end_in(dir)?;
        let writer = Self::start(request, options, dir, 1, tip, end, sum_key)?;
        Ok(writer.map(|writer| (writer, stored)))
    }

    /// Queues the next block.
    pub fn put(&mut self, block: BlockWithUndo) -> Result<(), SyncError> {
        let height = block.id.height;
        if height < self.holds.start {
            return Ok(());
        }
        assert_eq!(height, self.holds.end, "blocks come in ascending height");
        self.holds.end += 1;
        self.order(BlockOrder::Put(block))
    }

    /// Whether the directory has all blocks from the first one on.
    pub fn has_all(&self) -> bool {
        self.holds.start == 0
    }

    /// Whether a sync at `tip` must disconnect some of the last blocks that it connected, and connect them
    /// again, because the directory lacks them. The chain ends at `end`.
    pub fn lacks_some(&self, tip: Height, end: Height) -> bool {
        self.holds.start > self.first(end) || self.holds.end <= tip
    }

    /// Prepares for a sync that continues from `tip` to `end`: removes the blocks above the tip. Blocks that
    /// the sync still has to disconnect are below it.
    pub fn continue_from(&mut self, tip: KnownBlock, end: Height) -> Result<(), SyncError> {
        let starts_over = self.lacks_some(tip.height, end);
        if starts_over {
            self.holds.start = self.first(end);
        }
        let held = self.holds.end;
        // A directory with all blocks already has the genesis block.
        let least = self.holds.start.max(1);
        self.holds.end = if starts_over { least } else { held.min(tip.height + 1).max(least) };
        if self.holds.end == held && !starts_over {
            return Ok(());
        }
        self.order(BlockOrder::Hold((self.holds.end > least).then_some(tip.hash)))
    }

    fn first(&self, end: Height) -> Height {
        match self.has_all() {
            true => 0,
            false => first_of_last(end).max(self.from),
        }
    }

    /// Waits until all queued blocks are durable.
    pub fn sync(&mut self) -> Result<(), SyncError> {
        let (done, wait) = sync_channel(1);
        self.order(BlockOrder::Sync(done))?;
        match wait.recv() {
            Ok(()) => Ok(()),
            Err(_) => Err(self.failure()),
        }
    }

    /// Ends the thread. The directory stays locked for this process, which writes the coins next.
    pub fn end(mut self) -> Result<DraftWithBlocks, SyncError> {
        self.sync()?;
        self.orders = None;
        let blocks = self.join()?;
        Ok(DraftWithBlocks {
            draft: self.draft.take().expect("the draft stays until the end"),
            blocks,
        })
    }

    fn order(&mut self, order: BlockOrder) -> Result<(), SyncError> {
        match &self.orders {
            Some(orders) if orders.send(order).is_ok() => Ok(()),
            _ => Err(self.failure()),
        }
    }

    /// Returns the reason why the thread ended.
    fn failure(&mut self) -> SyncError {
        // While more orders may arrive, the thread ends only on an error.
        self.join().err().unwrap_or(SyncError::Interrupted)
    }

    fn join(&mut self) -> Result<BlockStore, SyncError> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(panic)) => resume_unwind(panic),
            // The error was already reported.
            None => Err(SyncError::Interrupted),
        }
    }
}

/// A data directory, its blocks and their heights.
type FoundDatadir = (FolderDraft, BlockStore, Range<Height>);

/// The parameters of a data directory's block store.
struct PositionRecord {
    log: PathBuf,
    network: Network,
    genesis: Vec<u8>,
    key: Obfuscation,
    kept: DatadirBlocks,
}

impl PositionRecord {
    /// The data directory that `request` writes, if it writes one that keeps blocks.
    fn of<'r>(
        request: &'r Request<'_>,
        options: &ConnectOptions<'_>,
        dir: &dyn ChainSource,
    ) -> Option<(&'r FolderOutput, Self)> {
        request.folders.iter().find_map(|output| match output.kind {
            FolderKind::Datadir(kept) => Some((
                output,
                Self {
                    log: options.positions.clone(),
                    network: request.env.params.network,
                    genesis: request.env.params.genesis_block(),
                    key: dir.obfuscation(),
                    kept,
                },
            )),
            FolderKind::Chainstate | FolderKind::KeptDatadir => None,
        })
    }

    /// Returns how many of these ascending blocks the directory of an earlier start has, with sums under this key.
    fn stored(
        &self,
        output: &FolderOutput,
        blocks: &[KnownBlock],
        key: CoinSumKey,
    ) -> Result<usize, SyncError> {
        if !self.log.exists() {
            return Ok(0);
        }
        let Some(draft) = FolderDraft::find_at(&output.path, output.replace)? else { return Ok(0) };
        remove_folder(&index_folder(draft.folder(), self.network))?;
        let folder = blocks_folder(draft.folder(), self.network);
        let store = BlockStore::open(&folder, &self.log, self.network.magic(), self.key, None)?;
        let has = |block: &KnownBlock| {
            let stored = store.stored(&block.hash);
            stored.is_ok_and(|it| it.undo.is_some() && it.spent.key == key)
        };
        Ok(blocks.partition_point(has))
    }

    /// Creates `folder` without blocks, or with only the genesis block if all blocks are kept.
    fn begin(&self, folder: &Path) -> Result<BlockStore, SyncError> {
        BlockStore::remove(folder, &self.log)?;
        let genesis = (self.kept == DatadirBlocks::All).then_some(&self.genesis[..]);
        let magic = self.network.magic();
        Ok(BlockStore::open(folder, &self.log, magic, self.key, genesis)?)
    }

    /// Opens `folder` with its blocks up to this one.
    fn reopen(&self, folder: &Path, last: &BlockHash) -> Result<BlockStore, SyncError> {
        let magic = self.network.magic();
        Ok(BlockStore::open_up_to(folder, &self.log, magic, self.key, last)?)
    }

    /// Finds the directory of an earlier start, if it has all blocks from height `first` up to the tip, and
    /// returns the heights it has.
    ///
    /// # Errors
    /// If all blocks are kept and this directory lacks some: the earlier start connected blocks without
    /// keeping them, or kept them in another directory.
    fn find(
        &self,
        request: &Request<'_>,
        output: &FolderOutput,
        first: Height,
        tip: KnownBlock,
    ) -> Result<Option<FoundDatadir>, SyncError> {
        let lacking = |what: &str| match self.kept {
            DatadirBlocks::All => Err(request.env.other_run(what)),
            DatadirBlocks::Last => Ok(None),
        };
        if !self.log.exists() {
            return lacking("without the data directory as output");
        }
        let Some(draft) = FolderDraft::find_at(&output.path, output.replace)? else {
            return lacking("with another data directory as output");
        };
        remove_folder(&index_folder(draft.folder(), self.network))?;
        let folder = blocks_folder(draft.folder(), self.network);
        let store = self.reopen(&folder, &tip.hash)?;
        let is_of_all = store.has(&request.env.params.genesis_hash);
        let start = match self.kept {
            // Blocks are stored in ascending height, so the lower ones are stored, too.
            DatadirBlocks::All if is_of_all && store.has_undo(&tip.hash) => 0,
            DatadirBlocks::Last if !is_of_all => first_below(&store, tip)?,
            DatadirBlocks::All | DatadirBlocks::Last => tip.height + 1,
        };
        match start <= first.min(tip.height) {
            true => Ok(Some((draft, store, start..tip.height + 1))),
            false => lacking("partly without the data directory as output"),
        }
    }
}

/// Returns the lowest height from which all blocks up to the tip are stored.
fn first_below(store: &BlockStore, tip: KnownBlock) -> Result<Height, SyncError> {
    let (mut height, mut hash) = (tip.height + 1, tip.hash);
    while store.has_undo(&hash) {
        height -= 1;
        hash = Header::parse(&store.stored(&hash)?.header).prev;
    }
    Ok(height)
}

impl Drop for DatadirWriter {
    /// Waits for the thread to end before the files are opened again.
    fn drop(&mut self) {
        self.orders = None;
        // Its error was already reported, or the sync failed before.
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
                // The thread that ordered this may no longer be waiting.
                let _ = done.send(());
            }
            BlockOrder::Hold(last) => {
                store.sync()?;
                drop(store);
                store = match last {
                    Some(last) => place.reopen(folder, &last)?,
                    None => place.begin(folder)?,
                };
            }
        }
    }
    Ok(store)
}

// Warns of kept blocks that lack the undo data a node needs.
//
// Connecting a block produces its undo data. Blocks proved by hints are not connected, and blocks that an
// earlier start connected without keeping them are not connected again. The user is warned as soon as this is
// known, before the rest of the work, and can start over. The [last blocks](crate::request::LAST_BLOCKS), which
// every node needs, always have undo data.

/// Warns of blocks in `done` that will lack undo data in the folder of kept blocks.
pub(crate) fn warn_of_missing(env: &RunEnv<'_>, dir: &dyn ChainSource, done: HeightRange) {
    let ranges = without_undo(dir, done);
    if !ranges.is_empty() {
        env.observer.event(Event::Warning(Warning::NoUndo { ranges }));
    }
}

/// Stores a block's undo data where the source keeps the block.
pub(crate) fn put_undo(
    archive: &dyn BlockArchive,
    block: &BlockWithUndo,
    key: CoinSumKey,
) -> Result<(), SyncError> {
    archive.put_undo(&block.id.hash, &block.prev(), block.spends(key))
}
