//! Fetching the coins that a block spends on several threads, while the block is being connected.
//!
//! [`wanted_of`] lists what a block spends and does not create itself; [`PrevoutFetcher::start`]
//! sets threads to look it up, and [`Fetching::take`] hands the coins out one by one, in block
//! order. A thread that asks for a coin which is not there yet fetches other ones instead of
//! waiting, so nothing is lost where threads are few, and a slow disk is asked many things at once
//! where they are many. A view that wants to be asked for many coins with one call is. Coins that wait to
//! be taken are bounded in memory: beyond that no thread fetches ahead, and the taking thread goes on
//! alone.
//!
//! Nothing is decided here: a coin comes as the view gives it, an error with the input that met it,
//! and each input is looked up once. A fetching changes nothing, and once dropped leaves nothing.

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
    /// Starts the threads. Without any, each coin is looked up by the thread that takes it. They stop
    /// fetching while coins that were not taken yet take `ahead_bytes` beside a place for each input.
    pub fn new(threads: usize, ahead_bytes: u64) -> io::Result<Self> {
        let pool = Arc::new(Pool::new(threads, FetchAhead::new(ahead_bytes)));
        let mut fetcher = Self { pool, threads: Vec::new() };
        for number in 0..threads {
            let pool = Arc::clone(&fetcher.pool);
            let builder = thread::Builder::new().name(format!("prevouts-{number}"));
            // Those that were started before one could not be end as the fetcher is dropped.
            fetcher.threads.push(builder.spawn(move || pool.serve())?);
        }
        Ok(fetcher)
    }

    /// How many threads there are.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Begins to look `wanted` up and returns at once. The view must give the same answers until
    /// the fetching is dropped.
    ///
    /// Of several fetchings the one that was started first is served first.
    pub fn start(&self, view: Arc<dyn CoinsView>, wanted: Vec<OutPoint>) -> Fetching {
        let job = Arc::new(FetchJob::new(view, wanted, Arc::clone(&self.pool.ahead)));
        if self.threads.is_empty() {
            // No other thread knows of it, so all of it is this thread's.
            let mine = 0..job.wanted.len();
            return Fetching {
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
        Fetching { pool, job, pace: self.pool.pace(), mine: 0..0, next: 0, timed: true }
    }
}

impl Drop for PrevoutFetcher {
    fn drop(&mut self) {
        self.pool.close();
        for thread in self.threads.drain(..) {
            // A thread catches what a look-up throws; nothing else in it can fail.
            let _ = thread.join();
        }
    }
}

/// The coins of one block, on their way.
///
/// Once this is dropped no thread holds the view or looks anything up in it: what was not begun is
/// never begun, and look-ups under way, at most one call a thread, are waited for.
pub struct Fetching {
    /// Where the other threads are; none where the taking thread works alone.
    pool: Option<Arc<Pool>>,
    job: Arc<FetchJob>,
    pace: FetchPace,
    /// Inputs claimed by this thread and not looked up yet.
    mine: Range<usize>,
    /// The first input that has not been taken.
    next: usize,
    /// Whether the pace since the last claim has been measured.
    timed: bool,
}

impl Fetching {
    /// How many inputs are wanted.
    pub fn len(&self) -> usize {
        self.job.wanted.len()
    }

    /// Whether none are.
    pub fn is_empty(&self) -> bool {
        self.job.wanted.is_empty()
    }

    /// The coin of the wanted input `index`, or none if the view has none.
    ///
    /// Inputs are taken in ascending order, each once. One that was taken or passed over before is
    /// looked up anew.
    ///
    /// # Panics
    /// When nothing of that index is wanted.
    pub fn take(&mut self, index: usize) -> Result<Option<CoinBytes>, StoreError> {
        assert!(index < self.len(), "input {index} of {} that are wanted", self.len());
        if index < self.next {
            return self.job.look_up(index);
        }
        self.next = index + 1;
        loop {
            // Inputs passed over are not wanted any more.
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

    /// Looks up the next inputs of this thread from `index` on with one call.
    fn fetch_together(&mut self, index: usize) {
        let start = self.mine.start.max(index);
        let end = self.mine.end.min(start.saturating_add(self.job.at_once));
        self.mine.start = end;
        if start < end {
            self.timed(|job| job.fetch_together(start..end));
        }
    }

    /// Claims the next inputs for this thread, unless all are claimed.
    fn claim(&mut self) -> bool {
        if let Some(pool) = &self.pool {
            pool.go_on(&self.job);
        }
        self.mine = self.job.claim(self.pace.chunk().max(self.job.at_once));
        self.timed = false;
        !self.mine.is_empty()
    }

    /// Looks something up, with a look at the clock if it is the first time since the last claim.
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

impl Drop for Fetching {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.withdraw(&self.job);
        }
    }
}

#[cfg(test)]
mod tests;
