//! [`Keeper`]: writes connected blocks and their undo data into a data directory that is being made.
//!
//! A thread of its own writes, through a short queue, so that the thread which connects never waits
//! for the disk while that keeps up. Blocks are durable before the coins that came of them: where a
//! start goes on, all blocks up to the store's are there, and what lies behind is cut off. Where blocks
//! are disconnected, the coins go first.

use super::ConnectOptions;
use crate::error::SyncError;
use crate::folder::{FolderDraft, at};
use crate::run::{FolderKind, FolderOutput, Kept, Request};
use crate::sink::datadir::blocks_folder;
use crate::source::ChainSource;
use apus_chain::{Height, KnownBlock};
use apus_datadir::{BlockPositions, BlockStore, BlockStoreError, free_bytes};
use apus_engine::utxo::Connected;
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
    /// Drop the blocks above this height.
    KeepOnly(Height),
}

/// Takes blocks in ascending height.
pub(super) struct Keeper {
    /// There until it is dropped, which ends the thread.
    orders: Option<SyncSender<Order>>,
    thread: Option<JoinHandle<Result<(), SyncError>>>,
    /// Nobody else writes there meanwhile. There until the end.
    draft: Option<FolderDraft>,
}

impl Keeper {
    /// Begins after the block at `tip`, if `request` asks for a data directory that keeps blocks.
    pub(super) fn start(
        request: &Request<'_>,
        options: &ConnectOptions<'_>,
        dir: &dyn ChainSource,
        from: Height,
        tip: KnownBlock,
        end: Height,
    ) -> Result<Option<Self>, SyncError> {
        let keeps = |kind| matches!(kind, FolderKind::Datadir(Kept::Blocks));
        let Some(output) = request.folders.iter().find(|output| keeps(output.kind)) else {
            return Ok(None);
        };
        if from != 1 {
            return Err(SyncError::NoUndo);
        }
        let draft = match tip.height {
            0 => FolderDraft::begin(output)?,
            _ => kept(request, options, output, tip)?,
        };
        let folder = blocks_folder(draft.folder(), request.params.network);
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        expect_room(&folder, (tip.height + 1..=end).map(|height| dir.block_bytes(height)).sum())?;
        let magic = request.params.network.magic();
        let (key, keep) = (dir.obfuscation(), if tip.height == 0 { 0 } else { tip.height + 1 });
        let positions = options.positions.clone();
        let open = move |keep| BlockStore::open(&folder, &positions, magic, key, keep);
        let mut store = open(keep)?;
        if keep == 0 {
            store.append(&request.params.genesis_block(), 1, None)?;
        }
        let (orders, receiver) = sync_channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("blocks".to_owned())
            .spawn(move || obey(store, &open, &receiver))
            .map_err(|error| SyncError::Threads { wanted: 1, error })?;
        Ok(Some(Self { orders: Some(orders), thread: Some(thread), draft: Some(draft) }))
    }

    /// Takes the next blocks.
    pub(super) fn put(&mut self, blocks: Vec<Connected>) -> Result<(), SyncError> {
        blocks.into_iter().try_for_each(|block| self.order(Order::Put(block)))
    }

    /// Forgets the blocks above `height`.
    pub(super) fn keep_only(&mut self, height: Height) -> Result<(), SyncError> {
        self.order(Order::KeepOnly(height))
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

    /// Ends the thread. The directory stays this run's, for whoever writes into it next.
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
            // It ends by itself only when nobody can order any more, or by what was told before.
            Some(Ok(Ok(()))) | None => SyncError::Interrupted,
        }
    }
}

/// The directory of an earlier start. The blocks below the coins must have been kept, and in this one:
/// that start may have connected some without being asked to, or for another one.
fn kept(
    request: &Request<'_>,
    options: &ConnectOptions<'_>,
    output: &FolderOutput,
    tip: KnownBlock,
) -> Result<FolderDraft, SyncError> {
    let other = |what: &str| {
        let folder = request.workdir.describe("");
        SyncError::OtherRun { folder, what: what.to_owned() }
    };
    if !options.positions.exists() {
        return Err(other("without the data directory as output"));
    }
    let positions = BlockPositions::open(&options.positions)?;
    if positions.len() <= tip.height || positions.read(tip.height)?.hash() != tip.hash {
        return Err(other("some of it without the data directory as output"));
    }
    FolderDraft::find(output)?.ok_or_else(|| other("with another data directory as output"))
}

/// Says before hours of work that a disk is too small for blocks of so many bytes and their undo data,
/// which take a seventh as much on the main chain.
fn expect_room(folder: &Path, block_bytes: u64) -> Result<(), SyncError> {
    let needed = block_bytes + block_bytes / 7;
    let free = free_bytes(folder).map_err(at(folder))?;
    if free < needed {
        return Err(SyncError::NoRoom { folder: folder.display().to_string(), needed, free });
    }
    Ok(())
}

impl Drop for Keeper {
    /// Whoever opens the files next finds nobody there.
    fn drop(&mut self) {
        self.orders = None;
        // What it failed at was told, or the run failed before.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

type Open = dyn Fn(u32) -> Result<BlockStore, BlockStoreError>;

fn obey(mut store: BlockStore, open: &Open, orders: &Receiver<Order>) -> Result<(), SyncError> {
    for order in orders {
        match order {
            Order::Put(Connected { block, undo }) => {
                let bytes = block.block().bytes();
                let view = bytes.view();
                store.append(view.raw(), view.tx_count() as u32, Some(&undo))?;
            }
            Order::Sync(done) => {
                store.sync()?;
                // Nobody may wait any more.
                let _ = done.send(());
            }
            Order::KeepOnly(height) => {
                store.sync()?;
                store = open(height + 1)?;
            }
        }
    }
    Ok(())
}
