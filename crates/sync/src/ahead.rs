//! Blocks ahead of the one that is wanted: read, checked and prepared by worker threads in any
//! order, given out in ascending height.
//!
//! Workers claim short ranges of heights. How far they run ahead is bounded by the memory of blocks
//! that are claimed or ready, and of those that were given out and that somebody still holds; the
//! worker that has the lowest heights is never held, so the one who waits for a block always gets it.
//! What is done with a block is the caller's business: it brings the preparation, which runs on the
//! worker's thread.

use crate::error::SyncError;
use crate::memory::Memory;
use crate::outputs::context;
use crate::permits::Permits;
use crate::run::Request;
use crate::source::{BlockFetcher, BlockSource, ChainSource, SourceError, Taken};
use apus_chain::{
    BlockChecker, CheckedBlock, HeaderChain, Height, HeightRange, Params, ScriptVerifier,
};
use apus_engine::utxo::PreparedBlock;
use std::any::Any;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// Bytes of blocks that a worker claims at once, where blocks are small.
const CLAIM_BYTES: u64 = 1 << 20;

/// Blocks that a worker claims at most.
const CLAIM_BLOCKS: u32 = 256;

/// How many times its bytes a prepared block takes, in halves: what full blocks of the main chain's
/// kind do. It stands for the memory of a claim until its blocks are there.
const MEMORY_HALVES: u64 = 5;

/// What comes out of a queue.
pub(crate) trait Prepared: Send {
    /// Memory that it takes, made of a block of so many bytes.
    fn memory_bytes(&self, block_bytes: u64) -> u64 {
        block_bytes
    }

    /// By which to see whether somebody still has it, where it takes memory for as long.
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

/// What workers need to read and check blocks.
pub(crate) struct Supply<'a> {
    pub(crate) params: &'a Params,
    pub(crate) chain: &'a HeaderChain,
    pub(crate) verifier: Option<&'a dyn ScriptVerifier>,
    pub(crate) source: &'a dyn BlockSource,
    pub(crate) interrupt: &'a AtomicBool,
    /// Memory for blocks from when they are claimed until nobody has them any more.
    pub(crate) bytes_max: u64,
    /// How many workers compute at a time; the others wait for blocks.
    pub(crate) permits: Permits,
}

/// Has the blocks of `range` read, checked and prepared by worker threads, while `take` takes them out
/// of the queue on this one.
pub(crate) fn take_ahead<T: Prepared>(
    request: &Request<'_>,
    source: &dyn ChainSource,
    range: HeightRange,
    prepare: &(dyn Fn(CheckedBlock) -> T + Sync),
    take: impl FnOnce(&Ahead<T>) -> Result<(), SyncError>,
) -> Result<(), SyncError> {
    let supply = Supply {
        params: request.params,
        chain: source.chain(),
        verifier: request.verifier,
        source,
        interrupt: request.interrupt,
        bytes_max: Memory::of(request).blocks_bytes,
        permits: Permits::new(request.threads),
    };
    let ahead = Ahead::new(range);
    let blocks = range.end.saturating_sub(range.start) as usize;
    let fetchers = source.fetchers(request.threads).min(blocks);
    std::thread::scope(|scope| {
        let _guard = EndOnPanic(&ahead);
        for index in 0..fetchers {
            let spawned = std::thread::Builder::new()
                .name(format!("check-{index}"))
                .spawn_scoped(scope, || ahead.work(&supply, prepare));
            if let Err(error) = spawned {
                ahead.end();
                return Err(SyncError::Threads { wanted: fetchers, error });
            }
        }
        let taken = take(&ahead);
        ahead.end();
        taken
    })
}

/// The queue between workers and the one who takes blocks.
pub(crate) struct Ahead<T> {
    state: Mutex<State<T>>,
    /// A block became ready, or a worker failed.
    ready: Condvar,
    /// A block was given out.
    taken: Condvar,
    /// Nobody takes blocks any more.
    halt: AtomicBool,
}

struct State<T> {
    /// Heights that nobody claimed yet.
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

impl<T> State<T> {
    /// Memory of the blocks given out that somebody still has.
    fn bytes_given(&mut self) -> u64 {
        self.given.retain(|(block, _)| block.strong_count() > 0);
        self.given.iter().map(|(_, bytes)| bytes).sum()
    }
}

impl<T: Prepared> Ahead<T> {
    /// A queue for the blocks of `range`.
    pub(crate) fn new(range: HeightRange) -> Self {
        let state = State {
            unclaimed: range,
            next: range.start,
            bytes_ahead: 0,
            ready: BTreeMap::new(),
            given: Vec::new(),
            failure: None,
            ended: false,
        };
        Self {
            state: Mutex::new(state),
            ready: Condvar::new(),
            taken: Condvar::new(),
            halt: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next block in ascending height; none after the last. An error of a height is told when
    /// all blocks below it were given out.
    pub(crate) fn next(&self) -> Result<Option<(Height, T)>, SyncError> {
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
            if state.ended
                || (state.unclaimed.start >= state.unclaimed.end && height >= state.unclaimed.end)
            {
                return Ok(None);
            }
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The block after the one that [`next`](Self::next) gave last, if it is ready.
    pub(crate) fn peek<R>(&self, look: impl FnOnce(&T) -> R) -> Option<R> {
        let state = self.lock();
        state.ready.get(&state.next).map(|ready| look(&ready.block))
    }

    /// Sends the workers home.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.halt.store(true, Ordering::Relaxed);
        self.taken.notify_all();
        self.ready.notify_all();
    }

    /// One worker's life. `prepare` makes of a checked block what the taker wants.
    pub(crate) fn work(&self, supply: &Supply<'_>, prepare: &(dyn Fn(CheckedBlock) -> T + Sync)) {
        let _guard = EndOnPanic(self);
        let mut checker = BlockChecker::new();
        let mut fetcher = supply.source.fetcher(&self.halt);
        while let Some((range, bytes)) = self.claim(supply) {
            let mut blocks = Vec::with_capacity(range.count() as usize);
            let fetched = fetch(supply, range, &mut checker, &mut *fetcher, prepare, &mut blocks);
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

    /// Claims the lowest heights that nobody has, once there is room for them.
    fn claim(&self, supply: &Supply<'_>) -> Option<(HeightRange, u64)> {
        let mut state = self.lock();
        loop {
            let start = state.unclaimed.start;
            if state.ended || start >= state.unclaimed.end {
                return None;
            }
            if state.bytes_ahead == 0 || state.bytes_ahead + state.bytes_given() < supply.bytes_max
            {
                let mut end = start;
                let mut bytes = 0;
                while end < state.unclaimed.end && end - start < CLAIM_BLOCKS && bytes < CLAIM_BYTES
                {
                    bytes += supply.source.block_bytes(end);
                    end += 1;
                }
                state.unclaimed.start = end;
                let bytes = bytes * MEMORY_HALVES / 2;
                state.bytes_ahead += bytes;
                return Some((HeightRange::new(start, end), bytes));
            }
            state = self.taken.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Should a thread panic, those who wait for it must not wait for good.
pub(crate) struct EndOnPanic<'a, T: Prepared>(pub(crate) &'a Ahead<T>);

impl<T: Prepared> Drop for EndOnPanic<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}

/// Reads and checks the blocks of `range`, into `blocks` as they come.
fn fetch<T: Prepared>(
    supply: &Supply<'_>,
    range: HeightRange,
    checker: &mut BlockChecker,
    fetcher: &mut dyn BlockFetcher,
    prepare: &(dyn Fn(CheckedBlock) -> T + Sync),
    blocks: &mut Vec<(Height, Ready<T>)>,
) -> Result<(), SyncError> {
    let mut failure = None;
    let mut given = HashSet::new();
    fetcher.fetch(range, &mut |height, raw| {
        if supply.interrupt.load(Ordering::Relaxed) {
            failure = Some(SyncError::Interrupted);
            return Taken::Stop;
        }
        if !range.contains(height) || given.contains(&height) {
            // Not asked for, so no part of the answer.
            return Taken::NotWanted;
        }
        let _permit = supply.permits.take();
        let context = context(supply.params, supply.chain, supply.verifier, height);
        match checker.check_owned(raw.to_vec(), &context) {
            Ok(block) => {
                let block_bytes = block.bytes().view().raw().len() as u64;
                given.insert(height);
                let block = prepare(block);
                let bytes = block.memory_bytes(block_bytes);
                blocks.push((height, Ready { block, bytes }));
                Taken::Yes
            }
            Err((_, error)) if error.is_damage() => Taken::Damaged(error),
            Err((_, error)) => {
                failure = Some(SyncError::InvalidBlock { height, hash: context.hash, error });
                Taken::Stop
            }
        }
    })?;
    match failure {
        Some(error) => Err(error),
        None if given.len() as u64 != u64::from(range.count()) => {
            Err(SourceError::Incomplete { range }.into())
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
