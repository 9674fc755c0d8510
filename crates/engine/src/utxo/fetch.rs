//! Fetches the coins that a block spends on several threads, while the block is being connected.
//!
//! [`wanted_of`] lists the coins that a block spends and does not create itself;
//! [`PrevoutFetcher::start`] lets threads look them up, and [`CoinsFetch::take`] returns the coins
//! one by one, in block order. If a requested coin is not available yet, the calling thread fetches
//! other coins instead of waiting. So few threads lose nothing, and many threads send a slow disk
//! many requests at once. A view that prefers batched look-ups gets them. Memory for coins that
//! were fetched but not taken is bounded: at the bound, no thread fetches ahead, and only the
//! taking thread continues.
//!
//! Results are passed on unchanged: each coin as the view returns it, each error with the input
//! that caused it, and each input is looked up once. A fetch changes nothing, and leaves nothing
//! after it is dropped.

mod job;
mod pool;

pub use crate::connect::{Place, wanted_of};

use super::store::StoreError;
use super::view::CoinsView;
use crate::coin::CoinBytes;
use apus_chain::OutPoint;
use job::{FetchAhead, FetchJob};
use pool::{FetchPace, Pool};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Threads that fetch coins. Idle ones sleep; all end when this is dropped.
pub struct PrevoutFetcher {
    pool: Arc<Pool>,
    threads: Vec<JoinHandle<()>>,
}

impl PrevoutFetcher {
    /// Starts the threads. Without any, the taking thread looks up each coin itself. Threads stop
    /// fetching while coins not taken yet use `ahead_bytes`, in addition to a slot for each input.
    pub fn new(threads: usize, ahead_bytes: u64) -> io::Result<Self> {
        let pool = Arc::new(Pool::new(threads, FetchAhead::new(ahead_bytes)));
        let mut fetcher = Self { pool, threads: Vec::new() };
        for number in 0..threads {
            let pool = Arc::clone(&fetcher.pool);
            let builder = thread::Builder::new().name(format!("prevouts-{number}"));
            // On failure, dropping the fetcher ends the threads started before.
            fetcher.threads.push(builder.spawn(move || pool.serve())?);
        }
        Ok(fetcher)
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Starts looking up `wanted` and returns at once. The view must give the same answers until
    /// the fetch is dropped.
    ///
    /// Of several fetches, the one started first has priority.
    pub fn start(&self, view: Arc<dyn CoinsView>, wanted: Vec<OutPoint>) -> CoinsFetch {
        let job = Arc::new(FetchJob::new(view, wanted, Arc::clone(&self.pool.ahead)));
        if self.threads.is_empty() {
            // No other thread knows the job, so this thread owns all of it.
            let mine = 0..job.wanted.len();
            return CoinsFetch {
                pool: None,
                job,
                pace: FetchPace::of(0),
                mine,
                next: 0,
                timed: true,
            };
        }
        self.pool.publish(&job);
        let pool = Some(Arc::clone(&self.pool));
        CoinsFetch { pool, job, pace: self.pool.pace(), mine: 0..0, next: 0, timed: true }
    }
}

impl Drop for PrevoutFetcher {
    fn drop(&mut self) {
        self.pool.close();
        for thread in self.threads.drain(..) {
            // The thread catches panics of look-ups; nothing else in it can fail.
            let _ = thread.join();
        }
    }
}

/// The coins of one block, being fetched.
///
/// Once this is dropped, no thread holds the view or looks anything up in it: look-ups that have
/// not started never will, and drop waits for those in progress, at most one call per thread.
pub struct CoinsFetch {
    /// The pool of the other threads; `None` if the taking thread works alone.
    pool: Option<Arc<Pool>>,
    job: Arc<FetchJob>,
    pace: FetchPace,
    /// Inputs claimed by this thread but not looked up yet.
    mine: Range<usize>,
    /// The first input that has not been taken.
    next: usize,
    /// Whether the pace since the last claim has been measured.
    timed: bool,
}

impl CoinsFetch {
    /// Returns the number of wanted inputs.
    pub fn len(&self) -> usize {
        self.job.wanted.len()
    }

    /// Returns whether nothing is wanted.
    pub fn is_empty(&self) -> bool {
        self.job.wanted.is_empty()
    }

    /// Returns the coin of the wanted input `index`, or `None` if the view has none.
    ///
    /// Inputs are taken in ascending order, each once. An input that was taken or skipped before is
    /// looked up again.
    ///
    /// # Panics
    ///
    /// Panics if `index` is out of range.
    pub fn take(&mut self, index: usize) -> Result<Option<CoinBytes>, StoreError> {
        assert!(index < self.len(), "input {index} of {} wanted inputs", self.len());
        if index < self.next {
            return self.job.look_up(index);
        }
        self.next = index + 1;
        loop {
            // Skipped inputs are no longer wanted.
            self.mine.start = self.mine.start.max(index);
            if self.job.at_once > 1 {
                if let Some(found) = self.job.found(index) {
                    return found;
                }
                if self.mine.is_empty() && !self.claim() {
                    return self.job.wait(index);
                }
                self.fetch_together(index);
                continue;
            }
            if self.mine.start == index && self.mine.next().is_some() {
                return self.timed(|job| job.look_up(index));
            }
            if let Some(found) = self.job.found(index) {
                return found;
            }
            if !self.mine.is_empty() || self.claim() {
                if self.mine.start > index {
                    let other = self.mine.start;
                    self.mine.start += 1;
                    self.timed(|job| job.fetch(other));
                }
            } else {
                return self.job.wait(index);
            }
        }
    }

    /// Looks up the next inputs of this thread from `index` on in one call.
    fn fetch_together(&mut self, index: usize) {
        let start = self.mine.start.max(index);
        let end = self.mine.end.min(start.saturating_add(self.job.at_once));
        self.mine.start = end;
        if start < end {
            self.timed(|job| job.fetch_together(start..end));
        }
    }

    /// Claims the next inputs for this thread; returns false if all are claimed.
    fn claim(&mut self) -> bool {
        if let Some(pool) = &self.pool {
            pool.resume(&self.job);
        }
        self.mine = self.job.claim(self.pace.chunk().max(self.job.at_once));
        self.timed = false;
        !self.mine.is_empty()
    }

    /// Runs a look-up, and measures its time if it is the first one since the last claim.
    fn timed<T>(&mut self, look_up: impl FnOnce(&FetchJob) -> T) -> T {
        if self.timed {
            return look_up(&self.job);
        }
        self.timed = true;
        let result = self.pace.measure(1, || look_up(&self.job));
        if let Some(pool) = &self.pool {
            pool.remember(&self.pace);
            pool.met(&self.pace, &self.job);
        }
        result
    }
}

impl Drop for CoinsFetch {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.withdraw(&self.job);
        }
    }
}

#[cfg(test)]
mod tests;
