//! Reads blocks ahead: worker threads read, check and prepare them in any order, and they are returned in
//! ascending height.
//!
//! Workers claim short ranges of heights. The memory of claimed and ready blocks, and of returned blocks that
//! are still held, bounds how far they run ahead; the worker with the lowest heights never waits for memory, so
//! the thread that waits for a block always gets it. The caller supplies the preparation, which runs on the
//! worker's thread.

use super::{OnPanic, Supply, Walker};
use crate::error::{IoError, SyncError};
use crate::request::{MemoryParts, RunEnv};
use crate::source::ChainSource;
use apus_chain::{CheckedBlock, Height, HeightRange};
use apus_engine::utxo::PreparedBlock;
use parking_lot::{Condvar, Mutex};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Bytes of blocks that a worker claims at once, if blocks are small.
const CLAIM_BYTES: u64 = 1 << 20;

/// Maximum number of blocks in a claim.
const CLAIM_BLOCKS: u32 = 256;

/// Memory of a prepared block relative to its bytes, in quarters, as measured on full blocks of the main chain.
/// It estimates the memory of a claim until its blocks are read.
const MEMORY_QUARTERS: u64 = 10;

/// The same ratio for a block that is not read: its summary, and the coins that it spends.
const UNREAD_MEMORY_QUARTERS: u64 = 1;

/// An item that a queue returns.
pub trait QueueItem: Send {
    /// Returns the memory that it takes besides the value itself, if its block has this many bytes.
    fn memory_bytes(&self, block_bytes: u64) -> u64 {
        block_bytes
    }

    /// Returns a handle that shows whether the item is still held, if it takes memory for as long.
    fn watch(&self) -> Option<Weak<dyn Any + Send + Sync>> {
        None
    }
}

/// A block's prepared value, and the block's own bytes.
impl<T: Send> QueueItem for (T, u64) {}

impl QueueItem for Arc<PreparedBlock> {
    fn memory_bytes(&self, _: u64) -> u64 {
        PreparedBlock::memory_bytes(self)
    }

    fn watch(&self) -> Option<Weak<dyn Any + Send + Sync>> {
        let block: Arc<dyn Any + Send + Sync> = Arc::clone(self) as _;
        Some(Arc::downgrade(&block))
    }
}

/// Receives a block's height, its size in bytes, and the value prepared from it.
pub type Put<'p, T> = dyn FnMut(Height, u64, T) + 'p;

/// How a worker prepares the blocks of a range. Returns `false` if it was halted early.
pub type Walk<'w, T> =
    dyn Fn(&mut Walker<'_>, HeightRange, &mut Put<'_, T>) -> Result<bool, SyncError> + Sync + 'w;

/// A walk that checks blocks, and calls `prepare` on each.
pub fn by_checking<T>(
    prepare: &(dyn Fn(CheckedBlock) -> T + Sync),
) -> impl Fn(&mut Walker<'_>, HeightRange, &mut Put<'_, T>) -> Result<bool, SyncError> + Sync {
    |walker, range, put| {
        walker.take_owned(range, &mut |block| {
            let (height, bytes) = (block.height(), block.bytes().view().raw().len() as u64);
            put(height, bytes, prepare(block));
            Ok(())
        })
    }
}

/// Reads, checks and prepares the blocks of `range` on worker threads, while `take` takes them from the queue
/// on this thread. The witnesses of blocks up to the height `unseen` are not read.
pub fn take_in_order<T: QueueItem>(
    env: &RunEnv<'_>,
    source: &dyn ChainSource,
    (range, unseen): (HeightRange, Height),
    prepare: &(dyn Fn(CheckedBlock) -> T + Sync),
    take: impl FnOnce(&InOrder<T>) -> Result<(), SyncError>,
) -> Result<(), SyncError> {
    walk_in_order(env, source, (range, unseen, 0), &by_checking(prepare), take)
}

/// Like [`take_in_order`], but with the caller's own walk, which reads no blocks up to the height `unread`, or
/// only a few of them.
pub fn walk_in_order<T: QueueItem>(
    env: &RunEnv<'_>,
    source: &dyn ChainSource,
    (range, unseen, unread): (HeightRange, Height, Height),
    walk: &Walk<'_, T>,
    take: impl FnOnce(&InOrder<T>) -> Result<(), SyncError>,
) -> Result<(), SyncError> {
    let supply = Supply::of(env, source, unseen);
    let blocks = range.end.saturating_sub(range.start) as usize;
    let workers = source.fetchers(env.threads).min(blocks);
    let ahead =
        InOrder::new(range, MemoryParts::blocks_bytes(env.memory_bytes)).unread(unread, workers);
    ahead.run(&supply, workers, walk, take)
}

/// The queue between workers and the thread that takes blocks.
pub struct InOrder<T> {
    /// Memory for blocks from the claim until they are dropped.
    bytes_max: u64,
    /// The height up to which blocks are not read, and the bytes of such blocks that a worker claims at once.
    unread: (Height, u64),
    state: Mutex<InOrderState<T>>,
    /// A block became ready, or a worker failed.
    ready: Condvar,
    /// A block was returned.
    taken: Condvar,
    /// No more blocks are taken.
    halt: AtomicBool,
}

struct InOrderState<T> {
    /// Heights that no worker has claimed yet.
    unclaimed: HeightRange,
    /// The next height to return.
    next: Height,
    /// Memory of blocks that are claimed and not returned yet.
    bytes_ahead: u64,
    ready: BTreeMap<Height, Ready<T>>,
    /// Returned blocks, and the memory of each.
    given: Vec<(Weak<dyn Any + Send + Sync>, u64)>,
    /// The error at the lowest height.
    failure: Option<(Height, SyncError)>,
    ended: bool,
}

struct Ready<T> {
    block: T,
    bytes: u64,
}

impl<T> Ready<T> {
    /// Memory of the value itself, which is most of a small block's. The nodes of a map that grows at its end
    /// are half full.
    const OWN_BYTES: u64 = 2 * size_of::<(Height, Self)>() as u64;
}

impl<T> InOrderState<T> {
    /// Memory of the returned blocks that are still held.
    fn bytes_given(&mut self) -> u64 {
        self.given.retain(|(block, _)| block.strong_count() > 0);
        self.given.iter().map(|(_, bytes)| bytes).sum()
    }
}

impl<T: QueueItem> InOrder<T> {
    /// Creates a queue for the blocks of `range`.
    pub fn new(range: HeightRange, bytes_max: u64) -> Self {
        let state = InOrderState {
            unclaimed: range,
            next: range.start,
            bytes_ahead: 0,
            ready: BTreeMap::new(),
            given: Vec::new(),
            failure: None,
            ended: false,
        };
        Self {
            bytes_max,
            unread: (0, CLAIM_BYTES),
            state: Mutex::new(state),
            ready: Condvar::new(),
            taken: Condvar::new(),
            halt: AtomicBool::new(false),
        }
    }

    /// Sets the height up to which blocks are not read, and the number of workers. Such blocks take little
    /// memory, and too little time to be worth handing to another thread, so more of them are claimed at once.
    fn unread(self, unread: Height, workers: usize) -> Self {
        let each = self.bytes_max / 2 / workers.max(1) as u64;
        Self { unread: (unread, each.clamp(CLAIM_BYTES, 4 * CLAIM_BYTES)), ..self }
    }

    /// Fills the queue on `workers` threads while `take` empties it on this thread.
    pub fn run(
        &self,
        supply: &Supply<'_>,
        workers: usize,
        walk: &Walk<'_, T>,
        take: impl FnOnce(&Self) -> Result<(), SyncError>,
    ) -> Result<(), SyncError> {
        std::thread::scope(|scope| {
            let _guard = OnPanic(|| self.end());
            for index in 0..workers {
                let spawned = std::thread::Builder::new()
                    .name(format!("check-{index}"))
                    .spawn_scoped(scope, || self.work(supply, walk));
                if let Err(error) = spawned {
                    self.end();
                    return Err(SyncError::Io(IoError::Threads { wanted: workers, error }));
                }
            }
            let taken = take(self);
            self.end();
            taken
        })
    }

    /// Returns the next block in ascending height; `None` after the last. An error at a height is returned
    /// after all blocks below it.
    pub fn next(&self) -> Result<Option<(Height, T)>, SyncError> {
        let mut state = self.state.lock();
        loop {
            let height = state.next;
            if let Some(Ready { block, bytes }) = state.ready.remove(&height) {
                state.next += 1;
                state.bytes_ahead -= bytes;
                state.given.extend(block.watch().map(|watch| (watch, bytes)));
                self.taken.notify_all();
                return Ok(Some((height, block)));
            }
            if state.failure.as_ref().is_some_and(|(at, _)| *at <= height)
                && let Some((_, error)) = state.failure.take()
            {
                return Err(error);
            }
            if state.unclaimed.start >= state.unclaimed.end && height >= state.unclaimed.end {
                return Ok(None);
            }
            if state.ended {
                // A worker panicked: this is not the end of the blocks. Joining the threads passes the panic
                // on.
                return Err(SyncError::Interrupted);
            }
            self.ready.wait(&mut state);
        }
    }

    /// Looks at the block after the one that [`next`](Self::next) returned last, if it is ready.
    pub fn peek<R>(&self, look: impl FnOnce(&T) -> R) -> Option<R> {
        let state = self.state.lock();
        state.ready.get(&state.next).map(|ready| look(&ready.block))
    }

    /// Ends the workers.
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.halt.store(true, Ordering::Relaxed);
        self.taken.notify_all();
        self.ready.notify_all();
    }

    /// Runs one worker. `walk` prepares the blocks.
    pub fn work(&self, supply: &Supply<'_>, walk: &Walk<'_, T>) {
        let _guard = OnPanic(|| self.end());
        let mut walker = supply.walker(&self.halt);
        while let Some((range, bytes)) = self.claim(supply) {
            let mut blocks = Vec::with_capacity(range.count() as usize);
            let fetched = walk(&mut walker, range, &mut |height, block_bytes, block| {
                let bytes = block.memory_bytes(block_bytes) + Ready::<T>::OWN_BYTES;
                blocks.push((height, Ready { block, bytes }));
            });
            let mut state = self.state.lock();
            // Replace the estimated memory of the claim with the real one.
            state.bytes_ahead -= bytes;
            for (height, ready) in blocks {
                state.bytes_ahead += ready.bytes;
                state.ready.insert(height, ready);
            }
            if let Err(error) = fetched {
                let given = |height: &Height| state.ready.contains_key(height);
                let at = range.heights().find(|height| !given(height)).unwrap_or(range.end);
                if state.failure.as_ref().is_none_or(|(first, _)| at < *first) {
                    state.failure = Some((at, error));
                }
                // Blocks above are not needed; blocks below are already claimed.
                state.unclaimed.end = state.unclaimed.start;
            }
            drop(state);
            self.ready.notify_all();
        }
    }

    /// Claims the lowest unclaimed heights, once there is room for them.
    fn claim(&self, supply: &Supply<'_>) -> Option<(HeightRange, u64)> {
        let mut state = self.state.lock();
        loop {
            let start = state.unclaimed.start;
            if state.ended || start >= state.unclaimed.end {
                return None;
            }
            if state.bytes_ahead == 0 || state.bytes_ahead + state.bytes_given() < self.bytes_max {
                let (unread, unread_bytes) = self.unread;
                let (last, most, quarters) = match start <= unread {
                    true => (unread + 1, unread_bytes, UNREAD_MEMORY_QUARTERS),
                    false => (state.unclaimed.end, CLAIM_BYTES, MEMORY_QUARTERS),
                };
                let last = last.min(state.unclaimed.end).min(start + CLAIM_BLOCKS);
                let mut end = start;
                let mut bytes = 0;
                while end < last && bytes < most {
                    bytes += supply.source.block_bytes(end);
                    end += 1;
                }
                state.unclaimed.start = end;
                let bytes = bytes * quarters / 4;
                state.bytes_ahead += bytes;
                return Some((HeightRange::new(start, end), bytes));
            }
            self.taken.wait(&mut state);
        }
    }
}

#[cfg(test)]
mod tests;
