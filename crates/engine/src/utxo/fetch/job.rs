//! [`FetchJob`]: the inputs of one block, the thread that looks each one up, and the results.
//!
//! Claims come from one counter, so each input has one owner. An owner sets its result once, with
//! the ordering of [`OnceLock`], and the taking thread reads it. The result of an input in a
//! [`LookUpClaim`] is always set, even if its owner panics, unless the job was abandoned; so
//! waiting for one ends.
//!
//! Coins with heap memory are moved out when they are taken. The memory fetched but not taken is
//! counted, and bounded for the threads that fetch ahead, even for the largest block.

use crate::coin::CoinBytes;
use crate::utxo::store::{StoreError, each_answered, panicked};
use crate::utxo::view::CoinsView;
use apus_chain::OutPoint;
use parking_lot::Mutex;
use std::hint;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// How often to poll for a result before waiting for its owner: some microseconds, about as long as
/// falling asleep and being woken takes.
const SPINS: usize = 200;

/// A view's answer. Errors are boxed: they are rare, and larger than coins.
type Answer = Result<Option<CoinBytes>, Box<StoreError>>;

/// An answer that has not been taken yet.
enum FetchedCoin {
    /// It needs no memory except its slot.
    Light(Answer),
    /// It has heap memory, and is moved out when taken.
    Heavy(Mutex<Option<CoinBytes>>),
}

/// Maximum number of batched look-ups in progress ahead: one, and the next. Each is as large as the
/// view prefers.
const CALLS_MAX: usize = 2;

/// A counter on its own cache lines.
#[repr(align(128))]
struct PaddedCounter(AtomicUsize);

/// The answers fetched but not taken yet, for all jobs of a pool.
pub(super) struct FetchAhead {
    /// Their memory, without the slots of the inputs.
    bytes: AtomicU64,
    /// At this limit no more is fetched ahead.
    bytes_max: u64,
    /// Batched look-ups in progress ahead.
    calls: AtomicUsize,
}

impl FetchAhead {
    pub(super) fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicU64::new(0), bytes_max, calls: AtomicUsize::new(0) })
    }

    /// Returns whether the threads that fetch ahead must wait.
    pub(super) fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= self.bytes_max
    }

    /// Returns whether one more batched look-up may start.
    pub(super) fn has_call(&self) -> bool {
        self.calls.load(Ordering::Relaxed) < CALLS_MAX
    }

    /// Counts a look-up of `coins` until the result is dropped; `None` if enough are in progress.
    /// Look-ups of one coin are not counted.
    pub(super) fn call(&self, coins: usize) -> Option<Call<'_>> {
        if coins == 1 {
            return Some(Call(None));
        }
        let one_more = |calls: usize| (calls < CALLS_MAX).then(|| calls + 1);
        let counted = self.calls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        // Created only if counted, because dropping it decrements the count.
        counted.is_ok().then(|| Call(Some(&self.calls)))
    }
}

/// A look-up in progress.
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
    /// How many look-ups the view prefers in one call.
    pub(super) at_once: usize,
    pub(super) wanted: Vec<OutPoint>,
    /// As long as `wanted`. Allocated by the first thread that fetches something for another: as
    /// long as the taking thread is alone it needs no slots, and these would be its largest cost.
    found: OnceLock<Vec<OnceLock<FetchedCoin>>>,
    /// The first input that no thread has claimed, or any number after the last.
    unclaimed: PaddedCounter,
    abandoned: AtomicBool,
    /// This job's share of `ahead`.
    held: AtomicU64,
    ahead: Arc<FetchAhead>,
    /// Number of threads working on this job. Changed by the pool, under its lock.
    pub(super) helpers: AtomicUsize,
}

impl FetchJob {
    /// Creates a job without claims.
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
            unclaimed: PaddedCounter(AtomicUsize::new(0)),
            abandoned: AtomicBool::new(false),
            helpers: AtomicUsize::new(0),
        }
    }

    /// Returns the slot for the result of an input.
    fn slot(&self, index: usize) -> &OnceLock<FetchedCoin> {
        let slots = || self.wanted.iter().map(|_| OnceLock::new()).collect();
        &self.found.get_or_init(slots)[index]
    }

    /// Returns how many inputs no thread has claimed.
    pub(super) fn unclaimed(&self) -> usize {
        self.wanted.len().saturating_sub(self.unclaimed.0.load(Ordering::Relaxed))
    }

    /// Claims up to `count` of the next inputs; empty if all are claimed.
    pub(super) fn claim(&self, count: usize) -> Range<usize> {
        // Checked first, so that the counter passes the end by little, however often this is
        // called.
        if self.unclaimed() == 0 {
            return 0..0;
        }
        // The counter only determines which thread owns an input; results have their own ordering.
        let start = self.unclaimed.0.fetch_add(count, Ordering::Relaxed);
        start.min(self.wanted.len())..(start + count).min(self.wanted.len())
    }

    /// Queries the view.
    pub(super) fn look_up(&self, index: usize) -> Result<Option<CoinBytes>, StoreError> {
        self.view.coin(&self.wanted[index])
    }

    /// Looks up an input that the caller has claimed, for the taking thread.
    pub(super) fn fetch(&self, index: usize) {
        self.set(index, caught(|| self.look_up(index)));
    }

    /// Looks up inputs that the caller has claimed in one call, for the taking thread. An error
    /// applies to each of them.
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

    /// Returns the result of an input, if available. This moves it out: call it once.
    #[inline]
    pub(super) fn found(&self, index: usize) -> Option<Result<Option<CoinBytes>, StoreError>> {
        self.found.get()?[index].get().map(|found| self.give(index, found))
    }

    fn give(&self, index: usize, found: &FetchedCoin) -> Result<Option<CoinBytes>, StoreError> {
        let coin = match found {
            FetchedCoin::Light(answer) => return answer.clone().map_err(|error| *error),
            FetchedCoin::Heavy(coin) => coin.lock().take(),
        };
        // The coin was already taken, so look it up again.
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

    /// Stops all further look-ups.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.unclaimed.0.store(self.wanted.len(), Ordering::Relaxed);
    }

    /// Returns whether the taking thread needs nothing more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}

/// Inputs that a thread claimed for the taking thread. Inputs without a result when this is
/// dropped, for any reason, get an error.
pub(super) struct LookUpClaim<'a> {
    job: &'a FetchJob,
    /// Inputs without a result yet.
    left: Range<usize>,
}

impl<'a> LookUpClaim<'a> {
    pub(super) fn new(job: &'a FetchJob, claimed: Range<usize>) -> Self {
        Self { job, left: claimed }
    }

    /// Looks the inputs up until the job is abandoned. Returns whether it was.
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

impl Drop for LookUpClaim<'_> {
    fn drop(&mut self) {
        if self.job.is_abandoned() {
            return;
        }
        for index in self.left.clone() {
            // Some may have been set before the failure.
            if self.job.slot(index).get().is_none() {
                let error = StoreError::look_up("the thread that looked it up ended");
                self.job.set(index, Err(Box::new(error)));
            }
        }
    }
}

/// A view must handle its own broken state after a panic: the job is unchanged.
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
    fn refused_calls_do_not_reduce_the_count() {
        let ahead = FetchAhead::new(1);
        let mut calls: Vec<_> = (0..CALLS_MAX).map(|_| ahead.call(10).unwrap()).collect();
        for _ in 0..3 {
            assert!(ahead.call(10).is_none() && !ahead.has_call());
            assert!(ahead.call(1).is_some(), "a look-up of one coin is not a call");
        }
        calls.pop();
        assert!(ahead.has_call());
        calls.push(ahead.call(10).unwrap());
        assert!(ahead.call(10).is_none());
    }
}
