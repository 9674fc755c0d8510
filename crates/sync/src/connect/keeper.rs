//! [`Keeper`]: writes connected blocks and their undo data into a data directory that is being made: all of
//! them, or [the last ones](crate::request::LAST_BLOCKS).
//!
//! A thread of its own writes, through a short queue, so that the thread which connects never waits
//! for the disk while that keeps up. Blocks are durable before the coins that came of them: where a
//! start goes on, all blocks up to the store's are there, and what lies behind is cut off. Where blocks
//! are disconnected, the coins go first.

use crate::error::{IoError, SyncError, UsageError};
use crate::folder::{DatadirBlocks, FolderDraft, FolderKind, FolderOutput, at};
use crate::request::{ConnectOptions, Request, first_of_last};
use crate::sink::datadir::blocks_folder;
use crate::source::ChainSource;
use apus_chain::{CoinSumKey, Height, KeyedCoinSum, KnownBlock};
use apus_datadir::{BlockPositions, BlockStore, BlockStoreError, SpentCoins, free_bytes};
use apus_engine::utxo::Connected;
use core::ops::Range;
use std::fs;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Orders on their way to the thread: so many blocks are held at most.
const QUEUE: usize = 4;

/// What the thread is to do.
enum Order {
    Put(Connected),
    /// Make everything durable, and say so.
    Sync(SyncSender<()>),
    /// Hold the blocks of these heights and no others.
    Hold(Range<Height>),
}

/// Takes blocks in ascending height.
pub(super) struct Keeper {
    /// There until it is dropped, which ends the thread.
    orders: Option<SyncSender<Order>>,
    thread: Option<JoinHandle<Result<(), SyncError>>>,
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
    pub(super) fn start(
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
            FolderKind::Chainstate => None,
        });
        let Some((output, what)) = found else { return Ok(None) };
        let (draft, mut holds) = match what {
            DatadirBlocks::All if from != 1 => return Err(SyncError::Usage(UsageError::NoUndo)),
            DatadirBlocks::All if tip.height == 0 => (FolderDraft::begin(output)?, 0..0),
            DatadirBlocks::All => all_kept(request, options, output, tip)?,
            DatadirBlocks::Last => last_kept(options, output, tip, first_of_last(end).max(from))?,
        };
        let folder = blocks_folder(draft.folder(), request.params.network);
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        let more = holds.end.max(1)..end + 1;
        expect_room(&folder, more.map(|height| dir.block_bytes(height)).sum())?;
        let (magic, key) = (request.params.network.magic(), dir.obfuscation());
        let positions = options.positions.clone();
        let open = move |keep| BlockStore::open(&folder, &positions, magic, key, keep);
        let mut store = open(holds.clone())?;
        if holds.end == 0 {
            store.append(&request.params.genesis_block(), 1, None)?;
            holds.end = 1;
        }
        let (orders, receiver) = sync_channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("blocks".to_owned())
            .spawn(move || obey(store, &open, sum_key, &receiver))
            .map_err(|error| SyncError::Io(IoError::Threads { wanted: 1, error }))?;
        let (orders, thread, draft) = (Some(orders), Some(thread), Some(draft));
        Ok(Some(Self { orders, thread, draft, from, holds }))
    }

    /// Takes the next blocks.
    pub(super) fn put(&mut self, blocks: Vec<Connected>) -> Result<(), SyncError> {
        for block in blocks {
            let height = block.block.id().height;
            if height >= self.holds.start {
                assert_eq!(height, self.holds.end, "blocks come in ascending height");
                self.holds.end += 1;
                self.order(Order::Put(block))?;
            }
        }
        Ok(())
    }

    /// Whether it has to go through all that a run at `tip` has connected of the last blocks once more,
    /// where the chain ends at `end`.
    pub(super) fn lacks_some(&self, tip: Height, end: Height) -> bool {
        self.holds.start > self.first(end) || self.holds.end <= tip
    }

    /// The run goes on from `tip` to `end`: forgets the blocks above the tip. What the run lacks, it is
    /// below.
    pub(super) fn go_on(&mut self, tip: Height, end: Height) -> Result<(), SyncError> {
        let holds = match self.lacks_some(tip, end) {
            true => self.first(end)..self.first(end),
            false => self.holds.start..self.holds.end.min(tip + 1).max(self.holds.start),
        };
        if holds == self.holds {
            return Ok(());
        }
        self.holds = holds.clone();
        self.order(Order::Hold(holds))
    }

    fn first(&self, end: Height) -> Height {
        match self.holds.start {
            0 => 0,
            _ => first_of_last(end).max(self.from),
        }
    }

    /// Waits until all that was taken is durable.
    pub(super) fn sync(&mut self) -> Result<(), SyncError> {
        let (done, wait) = sync_channel(1);
        self.order(Order::Sync(done))?;
        match wait.recv() {
            Ok(()) => Ok(()),
            Err(_) => Err(self.failure()),
        }
    }

    /// Ends the thread. The directory stays this run's, for what writes into it next.
    pub(super) fn end(mut self) -> Result<FolderDraft, SyncError> {
        self.sync()?;
        Ok(self.draft.take().expect("it is there until the end"))
    }

    fn order(&mut self, order: Order) -> Result<(), SyncError> {
        match &self.orders {
            Some(orders) if orders.send(order).is_ok() => Ok(()),
            _ => Err(self.failure()),
        }
    }

    /// Why the thread is gone.
    fn failure(&mut self) -> SyncError {
        let joined = self.thread.take().map(JoinHandle::join);
        match joined {
            Some(Ok(Err(error))) => error,
            Some(Err(panic)) => resume_unwind(panic),
            // It ends by itself only when no thread can order any more, or by what was told before.
            Some(Ok(Ok(()))) | None => SyncError::Interrupted,
        }
    }
}

/// The directory of an earlier start, and what it holds of the blocks up to the tip. All of these must
/// have been kept, and in this one: that start may have connected some without being asked to, or for
/// another one.
fn all_kept(
    request: &Request<'_>,
    options: &ConnectOptions<'_>,
    output: &FolderOutput,
    tip: KnownBlock,
) -> Result<(FolderDraft, Range<Height>), SyncError> {
    let other = |what: &str| {
        let folder = request.workdir.describe("");
        SyncError::Usage(UsageError::OtherRun { folder, what: what.to_owned() })
    };
    if !options.positions.exists() {
        return Err(other("without the data directory as output"));
    }
    let positions = BlockPositions::open(&options.positions)?;
    if !holds(&positions, tip)? || positions.heights().start > 0 {
        return Err(other("some of it without the data directory as output"));
    }
    let draft = FolderDraft::find(output)?;
    let draft = draft.ok_or_else(|| other("with another data directory as output"))?;
    Ok((draft, 0..tip.height + 1))
}

/// The same where only the last blocks are kept, from the height `first` on. Where these are not all
/// there, the directory begins anew: the run goes back for them.
fn last_kept(
    options: &ConnectOptions<'_>,
    output: &FolderOutput,
    tip: KnownBlock,
    first: Height,
) -> Result<(FolderDraft, Range<Height>), SyncError> {
    if let Some(draft) = FolderDraft::find(output)?
        && options.positions.exists()
    {
        let positions = BlockPositions::open(&options.positions)?;
        let start = positions.heights().start;
        if start > 0 && start <= first && holds(&positions, tip)? {
            return Ok((draft, start..tip.height + 1));
        }
        drop(draft);
    }
    Ok((FolderDraft::begin(output)?, first..first))
}

fn holds(positions: &BlockPositions, tip: KnownBlock) -> Result<bool, SyncError> {
    let there = positions.heights().contains(&tip.height);
    Ok(there && positions.read(tip.height)?.hash() == tip.hash)
}

/// Says before hours of work that a disk is too small for blocks of so many bytes and their undo data,
/// which take a seventh as much on the main chain.
fn expect_room(folder: &Path, block_bytes: u64) -> Result<(), SyncError> {
    let needed = block_bytes + block_bytes / 7;
    let free = free_bytes(folder).map_err(at(folder))?;
    if free < needed {
        return Err(SyncError::Io(IoError::NoRoom {
            folder: folder.display().to_string(),
            needed,
            free,
        }));
    }
    Ok(())
}

impl Drop for Keeper {
    /// Its thread is gone before the files are opened again.
    fn drop(&mut self) {
        self.orders = None;
        // What it failed at was told, or the run failed before.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

type Open = dyn Fn(Range<u32>) -> Result<BlockStore, BlockStoreError>;

fn obey(
    mut store: BlockStore,
    open: &Open,
    key: CoinSumKey,
    orders: &Receiver<Order>,
) -> Result<(), SyncError> {
    for order in orders {
        match order {
            Order::Put(Connected { block, undo, spent }) => {
                let bytes = block.block().bytes();
                let view = bytes.view();
                let sum = KeyedCoinSum { key, sum: spent };
                let spends = SpentCoins { undo: &undo, sum };
                store.append(view.raw(), view.tx_count() as u32, Some(spends))?;
            }
            Order::Sync(done) => {
                store.sync()?;
                // The thread that ordered it may not wait any more.
                let _ = done.send(());
            }
            Order::Hold(heights) => {
                store.sync()?;
                store = open(heights)?;
            }
        }
    }
    Ok(())
}
