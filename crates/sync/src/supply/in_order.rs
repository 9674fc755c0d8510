//! Blocks ahead of the one that is wanted: read, checked and prepared by worker threads in any
//! order, given out in ascending height.
//!
//! Workers claim short ranges of heights. How far they run ahead is bounded by the memory of blocks
//! that are claimed or ready, and of those that were given out and are still held; the
//! worker that has the lowest heights is never held, so the thread that waits for a block always gets it.
//! What is done with a block is the caller's business: it brings the preparation, which runs on the
//! worker's thread.

use super::{Supply, Walker};
use crate::error::{IoError, SyncError};
use crate::request::{MemoryParts, RunEnv};
use crate::source::ChainSource;
use apus_chain::{CheckedBlock, Height, HeightRange};
use apus_engine::utxo::PreparedBlock;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// Bytes of blocks that a worker claims at once, where blocks are small.
const CLAIM_BYTES: u64 = 1 << 20;

/// Blocks that a worker claims at most.
const CLAIM_BLOCKS: u32 = 256;

/// How many times its bytes a prepared block takes, in quarters: what full blocks of the main chain's
/// kind do. It stands for the memory of a claim until its blocks are there.
const MEMORY_QUARTERS: u64 = 10;

/// The same of a block that is not read: what was noted of it, and the coins that it spends.
const UNREAD_MEMORY_QUARTERS: u64 = 1;

/// What comes out of a queue.
pub trait Prepared: Send {
    /// Memory that it takes, made of a block of so many bytes.
    fn memory_bytes(&self, block_bytes: u64) -> u64 {
        block_bytes
    }

    /// By which to see whether it is still held, where it takes memory for as long.
    fn watch(&self) -> Option<Weak<dyn Any + Send + Sync>> {
        None
    }
}

/// What was made of a block, and the block's own bytes.
impl<T: Send> Prepared for (T, u64) {}

impl Prepared for Arc<PreparedBlock> {
    fn memory_bytes(&self, _: u64) -> u64 {
        PreparedBlock::memory_bytes(self)
    }

    fn watch(&self) -> Option<Weak<dyn Any + Send + Sync>> {
        let block: Arc<dyn Any + Send + Sync> = Arc::clone(self) as _;
        Some(Arc::downgrade(&block))
    }
}

/// Takes what was made of the block of a height, and how many bytes the block has.
pub type Put<'p, T> = dyn FnMut(Height, u64, T) + 'p;

/// How a worker makes something of the blocks of a range. Whether all came; if not, it was halted.
pub type Walk<'w, T> =
    dyn Fn(&mut Walker<'_>, HeightRange, &mut Put<'_, T>) -> Result<bool, SyncError> + Sync + 'w;

/// A way that checks blocks, and makes of each what `prepare` does.
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

/// Has the blocks of `range` read, checked and prepared by worker threads, while `take` takes them out
/// of the queue on this one. The witnesses of those up to the height `unseen` are left alone.
pub fn take_in_order<T: Prepared>(
    env: &RunEnv<'_>,
    source: &dyn ChainSource,
    (range, unseen): (HeightRange, Height),
    prepare: &(dyn Fn(CheckedBlock) -> T + Sync),
    take: impl FnOnce(&InOrder<T>) -> Result<(), SyncError>,
) -> Result<(), SyncError> {
    walk_in_order(env, source, (range, unseen, 0), &by_checking(prepare), take)
}

/// The same, where the caller says how workers come to what is put in order, and that blocks up to the height `unread`
/// are not read for it, or few of them.
pub fn walk_in_order<T: Prepared>(
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
    /// Memory for blocks from when they are claimed until nothing holds them any more.
    bytes_max: u64,
    /// Blocks up to this height are not read, and bytes of them that a worker claims at once.
    unread: (Height, u64),
    state: Mutex<InOrderState<T>>,
    /// A block became ready, or a worker failed.
    ready: Condvar,
    /// A block was given out.
    taken: Condvar,
    /// No more blocks are taken.
    halt: AtomicBool,
}

struct InOrderState<T> {
    /// Heights that no worker has claimed yet.
    unclaimed: HeightRange,
    /// The next height to be given out.
    next: Height,
    /// Memory of what is claimed and not given out.
    bytes_ahead: u64,
    ready: BTreeMap<Height, Ready<T>>,
    /// Blocks that were given out, and what each takes.
    given: Vec<(Weak<dyn Any + Send + Sync>, u64)>,
    /// The error at the lowest height.
    failure: Option<(Height, SyncError)>,
    ended: bool,
}

struct Ready<T> {
    block: T,
    bytes: u64,
}

impl<T> InOrderState<T> {
    /// Memory of the blocks given out that are still held.
    fn bytes_given(&mut self) -> u64 {
        self.given.retain(|(block, _)| block.strong_count() > 0);
        self.given.iter().map(|(_, bytes)| bytes).sum()
    }
}

impl<T: Prepared> InOrder<T> {
    /// A queue for the blocks of `range`.
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

    /// The same where blocks up to a height are not read by so many workers. These take little memory, and no time for
    /// which it is worth to have another thread wait, so more of them are claimed at once.
    fn unread(self, unread: Height, workers: usize) -> Self {
        let each = self.bytes_max / 2 / workers.max(1) as u64;
        Self { unread: (unread, each.clamp(CLAIM_BYTES, 4 * CLAIM_BYTES)), ..self }
    }

    /// Has `workers` threads fill the queue while `take` empties it on this one.
    pub fn run(
        &self,
        supply: &Supply<'_>,
        workers: usize,
        walk: &Walk<'_, T>,
        take: impl FnOnce(&Self) -> Result<(), SyncError>,
    ) -> Result<(), SyncError> {
        std::thread::scope(|scope| {
            let _guard = EndOnPanic(self);
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

    fn lock(&self) -> MutexGuard<'_, InOrderState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next block in ascending height; none after the last. An error of a height is told when
    /// all blocks below it were given out.
    pub fn next(&self) -> Result<Option<(Height, T)>, SyncError> {
        let mut state = self.lock();
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
                // A worker panicked: this is not the end of the blocks. The end of all threads tells of it.
                return Err(SyncError::Interrupted);
            }
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The block after the one that [`next`](Self::next) gave last, if it is ready.
    pub fn peek<R>(&self, look: impl FnOnce(&T) -> R) -> Option<R> {
        let state = self.lock();
        state.ready.get(&state.next).map(|ready| look(&ready.block))
    }

    /// Sends the workers home.
    pub fn end(&self) {
        self.lock().ended = true;
        self.halt.store(true, Ordering::Relaxed);
        self.taken.notify_all();
        self.ready.notify_all();
    }

    /// One worker's life. `walk` makes of blocks what the taker wants.
    pub fn work(&self, supply: &Supply<'_>, walk: &Walk<'_, T>) {
        let _guard = EndOnPanic(self);
        let mut walker = supply.walker(&self.halt);
        while let Some((range, bytes)) = self.claim(supply) {
            let mut blocks = Vec::with_capacity(range.count() as usize);
            let fetched = walk(&mut walker, range, &mut |height, block_bytes, block| {
                let bytes = block.memory_bytes(block_bytes);
                blocks.push((height, Ready { block, bytes }));
            });
            let mut state = self.lock();
            // What the claim was guessed to weigh goes, what it weighs comes.
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
                // What lies above is of no use; what lies below is being worked on.
                state.unclaimed.end = state.unclaimed.start;
            }
            drop(state);
            self.ready.notify_all();
        }
    }

    /// Claims the lowest heights that no worker has, once there is room for them.
    fn claim(&self, supply: &Supply<'_>) -> Option<(HeightRange, u64)> {
        let mut state = self.lock();
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
            state = self.taken.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Should a thread panic, the threads that wait for it must not wait for good.
pub struct EndOnPanic<'a, T: Prepared>(pub &'a InOrder<T>);

impl<T: Prepared> Drop for EndOnPanic<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}

#[cfg(test)]
mod tests;
