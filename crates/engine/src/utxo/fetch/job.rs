//! [`FetchJob`]: the inputs of one block, which thread looks each one up, and what was found.
//!
//! Claims come from one counter, so each input has one owner. An owner's result is set once, with
//! the ordering of [`OnceLock`], and read by the thread that takes it. An input that was [`Claimed`] is
//! always set, even where its owner panics, unless the job was abandoned; so waiting for one ends.
//!
//! Coins that take memory of their own are given away as they are taken. What was fetched and not taken
//! is counted, and bounded for the threads that fetch ahead, whatever a block spends.

use crate::coin::CoinBytes;
use crate::utxo::store::{StoreError, each_answered, panicked};
use crate::utxo::view::CoinsView;
use apus_chain::OutPoint;
use std::hint;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// How often a result is looked for before its owner is waited for: some microseconds, about as
/// long as it takes to fall asleep and be woken.
const SPINS: usize = 200;

/// What a view answered. Errors are boxed: they are rare, and wider than coins.
type Answer = Result<Option<CoinBytes>, Box<StoreError>>;

/// An answer that waits to be taken.
enum FetchedCoin {
    /// It takes no memory beyond its place.
    Light(Answer),
    /// It does, and is given away.
    Heavy(Mutex<Option<CoinBytes>>),
}

/// Calls for many coins at once that may be under way ahead: one, and the next. Each is as much as the view
/// wants to have under way.
const CALLS_MAX: usize = 2;

/// A counter that shares its cache lines with nothing.
#[repr(align(128))]
struct Alone(AtomicUsize);

/// What was fetched and not taken yet, by all jobs of a pool.
pub(super) struct FetchAhead {
    /// Memory that it takes beside a place for each input.
    bytes: AtomicU64,
    /// From so much on nothing more is fetched ahead.
    bytes_max: u64,
    /// Calls for many coins at once that are under way ahead.
    calls: AtomicUsize,
}

impl FetchAhead {
    pub(super) fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicU64::new(0), bytes_max, calls: AtomicUsize::new(0) })
    }

    /// Whether the threads that fetch ahead are to wait.
    pub(super) fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= self.bytes_max
    }

    /// Whether one more call for many coins may be under way.
    pub(super) fn has_call(&self) -> bool {
        self.calls.load(Ordering::Relaxed) < CALLS_MAX
    }

    /// Counts a call for so many coins until what it gives is dropped; none where enough are under way.
    /// Those for one coin are not counted.
    pub(super) fn call(&self, coins: usize) -> Option<Call<'_>> {
        if coins == 1 {
            return Some(Call(None));
        }
        let one_more = |calls: usize| (calls < CALLS_MAX).then(|| calls + 1);
        let counted = self.calls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        // Made only where it is counted: dropped, it counts itself out.
        counted.is_ok().then(|| Call(Some(&self.calls)))
    }
}

/// A call that is under way.
pub(super) struct Call<'a>(Option<&'a AtomicUsize>);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if let Some(calls) = self.0 {
            calls.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The look-ups of one block.
pub(super) struct FetchJob {
    view: Arc<dyn CoinsView>,
    /// How many look-ups the view wants with one call.
    pub(super) at_once: usize,
    pub(super) wanted: Vec<OutPoint>,
    /// As long as `wanted`. Made by the first thread that fetches something for another: while the
    /// taking thread is alone it needs no room, which would cost it more than all else here.
    found: OnceLock<Vec<OnceLock<FetchedCoin>>>,
    /// The first input that no thread has claimed, or anything beyond the last.
    unclaimed: Alone,
    abandoned: AtomicBool,
    /// What of `ahead` is this job's.
    held: AtomicU64,
    ahead: Arc<FetchAhead>,
    /// Threads at work on this. Changed by the pool, under its lock.
    pub(super) helpers: AtomicUsize,
}

impl FetchJob {
    /// A job of which nothing is claimed.
    pub(super) fn new(
        view: Arc<dyn CoinsView>,
        wanted: Vec<OutPoint>,
        ahead: Arc<FetchAhead>,
    ) -> Self {
        Self {
            held: AtomicU64::new(0),
            ahead,
            at_once: view.at_once().max(1),
            view,
            wanted,
            found: OnceLock::new(),
            unclaimed: Alone(AtomicUsize::new(0)),
            abandoned: AtomicBool::new(false),
            helpers: AtomicUsize::new(0),
        }
    }

    /// The place for the result of an input.
    fn slot(&self, index: usize) -> &OnceLock<FetchedCoin> {
        let slots = || self.wanted.iter().map(|_| OnceLock::new()).collect();
        &self.found.get_or_init(slots)[index]
    }

    /// How many inputs no thread has claimed.
    pub(super) fn unclaimed(&self) -> usize {
        self.wanted.len().saturating_sub(self.unclaimed.0.load(Ordering::Relaxed))
    }

    /// Claims up to `count` of the next inputs; none where all are claimed.
    pub(super) fn claim(&self, count: usize) -> Range<usize> {
        // Asked first, so that the counter passes the end by little, however often this is called.
        if self.unclaimed() == 0 {
            return 0..0;
        }
        // The counter only says which thread owns an input; results have their own ordering.
        let start = self.unclaimed.0.fetch_add(count, Ordering::Relaxed);
        start.min(self.wanted.len())..(start + count).min(self.wanted.len())
    }

    /// Asks the view.
    pub(super) fn look_up(&self, index: usize) -> Result<Option<CoinBytes>, StoreError> {
        self.view.coin(&self.wanted[index])
    }

    /// Looks up an input that the caller has claimed, for the taking thread.
    pub(super) fn fetch(&self, index: usize) {
        self.set(index, caught(|| self.look_up(index)));
    }

    /// Looks up inputs that the caller has claimed with one call, for the taking thread. An error is
    /// that of each of them.
    pub(super) fn fetch_together(&self, claimed: Range<usize>) {
        let look_up = || {
            let coins = self.view.coins(&self.wanted[claimed.clone()])?;
            each_answered(&coins, claimed.len())?;
            Ok(coins)
        };
        match caught(look_up) {
            Ok(coins) => claimed.zip(coins).for_each(|(index, coin)| self.set(index, Ok(coin))),
            Err(error) => claimed.for_each(|index| self.set(index, Err(error.clone()))),
        }
    }

    fn set(&self, index: usize, answer: Answer) {
        let found = match answer {
            Ok(Some(coin)) if coin.heap_bytes() > 0 => {
                let bytes = coin.heap_bytes() as u64;
                self.held.fetch_add(bytes, Ordering::Relaxed);
                self.ahead.bytes.fetch_add(bytes, Ordering::Relaxed);
                FetchedCoin::Heavy(Mutex::new(Some(coin)))
            }
            answer => FetchedCoin::Light(answer),
        };
        let set = self.slot(index).set(found);
        debug_assert!(set.is_ok(), "an input has one owner");
    }

    /// The result of an input, if it is there. It is given away: to be asked for once.
    #[inline]
    pub(super) fn found(&self, index: usize) -> Option<Result<Option<CoinBytes>, StoreError>> {
        self.found.get()?[index].get().map(|found| self.give(index, found))
    }

    fn give(&self, index: usize, found: &FetchedCoin) -> Result<Option<CoinBytes>, StoreError> {
        let coin = match found {
            FetchedCoin::Light(answer) => return answer.clone().map_err(|error| *error),
            FetchedCoin::Heavy(coin) => coin.lock().unwrap_or_else(PoisonError::into_inner).take(),
        };
        // It was given away before.
        let Some(coin) = coin else { return self.look_up(index) };
        let bytes = coin.heap_bytes() as u64;
        self.held.fetch_sub(bytes, Ordering::Relaxed);
        self.ahead.bytes.fetch_sub(bytes, Ordering::Relaxed);
        Ok(Some(coin))
    }

    /// Waits for an input that another thread has claimed.
    pub(super) fn wait(&self, index: usize) -> Result<Option<CoinBytes>, StoreError> {
        for _ in 0..SPINS {
            if let Some(found) = self.found(index) {
                return found;
            }
            hint::spin_loop();
        }
        self.give(index, self.slot(index).wait())
    }

    /// Nothing more is to be looked up.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.unclaimed.0.store(self.wanted.len(), Ordering::Relaxed);
    }

    /// Whether the taking thread wants nothing more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}

/// Inputs that a thread claimed to look them up for another. What it goes without looking up, however that comes, has
/// an error for its result.
pub(super) struct Claimed<'a> {
    job: &'a FetchJob,
    /// Those that have no result yet.
    left: Range<usize>,
}

impl<'a> Claimed<'a> {
    pub(super) fn new(job: &'a FetchJob, claimed: Range<usize>) -> Self {
        Self { job, left: claimed }
    }

    /// Looks them up, until nothing more is wanted of the job. Whether that is so.
    pub(super) fn fetch(mut self) -> bool {
        while !self.left.is_empty() && !self.job.is_abandoned() {
            if self.job.at_once > 1 {
                self.job.fetch_together(self.left.clone());
                self.left.start = self.left.end;
            } else {
                self.job.fetch(self.left.start);
                self.left.start += 1;
            }
        }
        self.job.is_abandoned()
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        if self.job.is_abandoned() {
            return;
        }
        for index in self.left.clone() {
            // Some may have been set before the thread met what ended it.
            if self.job.slot(index).get().is_none() {
                let error = StoreError::look_up("the thread that looked it up ended");
                self.job.set(index, Err(Box::new(error)));
            }
        }
    }
}

/// What a view leaves broken behind a panic is its own: nothing of a job is changed.
fn caught<T>(look_up: impl FnOnce() -> Result<T, StoreError>) -> Result<T, Box<StoreError>> {
    catch_unwind(AssertUnwindSafe(|| look_up().map_err(Box::new)))
        .unwrap_or_else(|panic| Err(Box::new(panicked(&*panic))))
}

impl Drop for FetchJob {
    fn drop(&mut self) {
        self.ahead.bytes.fetch_sub(*self.held.get_mut(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_is_refused_is_not_counted_out() {
        let ahead = FetchAhead::new(1);
        let mut calls: Vec<_> = (0..CALLS_MAX).map(|_| ahead.call(10).unwrap()).collect();
        for _ in 0..3 {
            assert!(ahead.call(10).is_none() && !ahead.has_call());
            assert!(ahead.call(1).is_some(), "one coin is no call");
        }
        calls.pop();
        assert!(ahead.has_call());
        calls.push(ahead.call(10).unwrap());
        assert!(ahead.call(10).is_none());
    }
}
