//! [`Pool`]: the open jobs, and the threads that sleep until there is one.
//!
//! One lock guards the list of jobs. It is taken once per job and thread, not once per input. A
//! thread goes to sleep, under that lock, only while the list has nothing to claim, so a sleeper
//! has never missed a job that still needs it: waking only affects speed.
//!
//! Threads are woken for slow look-ups. If everything is in memory, a block takes the taking thread
//! less than a millisecond. On cores busy with other work, such as script verification, it lost
//! more by waiting for a preempted thread that had claimed inputs than that thread had gained. A
//! view that prefers batched look-ups is behind a network, regardless of its average time per look-up,
//! so it is queried as early as possible.
//!
//! The same lock counts the threads working on a job, which is how [`Pool::withdraw`] knows that
//! all have left. The count is decremented however a thread leaves, even by a panic.
//!
//! [`FetchPace`] measures the speed of one thread's look-ups and derives decisions from it.
//!
//! Coins come from memory in some hundred nanoseconds, or from a disk in a hundred microseconds and
//! more, and one block has both. From memory, several inputs are claimed at once, because threads
//! that update one counter for each input would slow each other down. From a disk they are claimed
//! one by one, so that none waits behind another.
//!
//! Waking threads pays off if look-ups are slow on average: a cache that has most coins leaves a
//! few for the disk, and those few take most of the time. The clock keeps running while a thread is
//! preempted, so one long look-up means little. These guesses affect only the speed, never the
//! results.

use super::job::{FetchAhead, FetchJob, LookUpClaim};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The state that the threads of a fetcher share.
pub(super) struct Pool {
    queue: Mutex<FetchQueue>,
    /// Signals inputs to claim.
    work: Condvar,
    /// Signals that a thread has left a job.
    left: Condvar,
    /// Sleeping threads that no other thread has started to wake. Temporarily too high if one wakes
    /// by itself; then a notification finds no sleeper.
    asleep: AtomicUsize,
    /// The last known average time of a look-up.
    average_ns: AtomicU64,
    closed: AtomicBool,
    threads: usize,
    pub(super) ahead: Arc<FetchAhead>,
}

struct FetchQueue {
    /// Jobs in order of their start, including all that may have unclaimed inputs.
    jobs: VecDeque<Arc<FetchJob>>,
}

impl FetchQueue {
    /// Returns the oldest job with something to claim.
    fn first(&mut self) -> Option<&Arc<FetchJob>> {
        while self.jobs.front()?.unclaimed() == 0 {
            self.jobs.pop_front();
        }
        self.jobs.front()
    }
}

impl Pool {
    /// Creates a pool for this many threads, which fetch at most `ahead`.
    pub(super) fn new(threads: usize, ahead: Arc<FetchAhead>) -> Self {
        Self {
            queue: Mutex::new(FetchQueue { jobs: VecDeque::new() }),
            work: Condvar::new(),
            left: Condvar::new(),
            asleep: AtomicUsize::new(0),
            average_ns: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            threads,
            ahead,
        }
    }

    /// Makes a job available to the threads, and wakes as many as are useful.
    pub(super) fn publish(&self, job: &Arc<FetchJob>) {
        let inputs = job.unclaimed();
        if inputs == 0 {
            return;
        }
        self.queue.lock().jobs.push_back(Arc::clone(job));
        if job.at_once > 1 {
            // Start the round trip now instead of when the first coin is taken.
            self.wake(inputs.div_ceil(job.at_once));
        } else if self.pace().is_slow() {
            // The taking thread works too.
            self.wake(inputs - 1);
        }
    }

    /// Returns the initial pace of a thread.
    pub(super) fn pace(&self) -> FetchPace {
        FetchPace::of(self.average_ns.load(Ordering::Relaxed))
    }

    /// Records the pace of a thread that has done its part of a job.
    pub(super) fn remember(&self, pace: &FetchPace) {
        self.average_ns.store(pace.average_ns(), Ordering::Relaxed);
    }

    /// Wakes a thread for each unclaimed input if look-ups turn out to be slow.
    pub(super) fn met(&self, pace: &FetchPace, job: &FetchJob) {
        if pace.is_slow() {
            self.wake(job.unclaimed());
        }
    }

    /// Lets threads that stopped because enough was fetched resume: the taking thread must now fetch
    /// coins itself.
    pub(super) fn resume(&self, job: &FetchJob) {
        if job.at_once > 1 && !self.ahead.is_full() {
            self.wake(job.unclaimed().div_ceil(job.at_once).saturating_sub(1));
        }
    }

    /// Wakes up to `count` threads.
    fn wake(&self, count: usize) {
        if self.asleep.load(Ordering::Relaxed) == 0 {
            return;
        }
        let others = |asleep: usize| Some(asleep.saturating_sub(count));
        let asleep = self.asleep.fetch_update(Ordering::Relaxed, Ordering::Relaxed, others);
        for _ in 0..count.min(asleep.unwrap_or(0)) {
            self.work.notify_one();
        }
    }

    /// Removes a job. When this returns, no thread uses it any more.
    pub(super) fn withdraw(&self, job: &Arc<FetchJob>) {
        job.abandon();
        let mut queue = self.queue.lock();
        queue.jobs.retain(|other| !Arc::ptr_eq(other, job));
        while job.helpers.load(Ordering::Relaxed) > 0 {
            self.left.wait(&mut queue);
        }
    }

    /// Ends all threads, each after its current claim.
    pub(super) fn close(&self) {
        let queue = self.queue.lock();
        self.closed.store(true, Ordering::Relaxed);
        drop(queue);
        self.work.notify_all();
    }

    /// Runs one thread.
    pub(super) fn serve(&self) {
        let mut queue = self.queue.lock();
        while !self.closed.load(Ordering::Relaxed) {
            let job = queue.first().cloned().filter(|job| self.may_help(job));
            let Some(job) = job else {
                let one_more = |asleep: usize| Some((asleep + 1).min(self.threads));
                let _ = self.asleep.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
                self.work.wait(&mut queue);
                continue;
            };
            job.helpers.fetch_add(1, Ordering::Relaxed);
            drop(queue);
            let helper = Helper { pool: self, job: Some(job) };
            helper.job.iter().for_each(|job| self.help(job));
            drop(helper);
            queue = self.queue.lock();
        }
    }

    /// Returns whether more may be fetched ahead.
    fn may_help(&self, job: &FetchJob) -> bool {
        !self.ahead.is_full() && (job.at_once == 1 || self.ahead.has_call())
    }

    /// Fetches inputs of a job until all are claimed, or enough fetched inputs are waiting.
    fn help(&self, job: &FetchJob) {
        let mut pace = self.pace();
        while !self.closed.load(Ordering::Relaxed) && !self.ahead.is_full() {
            // Other threads are already fetching.
            let Some(_call) = self.ahead.call(job.at_once) else { break };
            let claimed = job.claim(pace.chunk().max(job.at_once));
            if claimed.is_empty() {
                break;
            }
            let count = claimed.len();
            let claimed = LookUpClaim::new(job, claimed);
            let stopped = pace.measure(count, || claimed.fetch());
            if stopped {
                return;
            }
            self.met(&pace, job);
        }
        self.remember(&pace);
    }

    #[cfg(test)]
    pub(super) fn asleep(&self) -> usize {
        // Hold the lock, so that the counted threads are really asleep.
        let _queue = self.queue.lock();
        self.asleep.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn open(&self) -> usize {
        self.queue.lock().jobs.len()
    }
}

/// A thread working on a job, counted until this is dropped.
struct Helper<'a> {
    pool: &'a Pool,
    /// `None` only during the drop.
    job: Option<Arc<FetchJob>>,
}

impl Drop for Helper<'_> {
    fn drop(&mut self) {
        let _queue = self.pool.queue.lock();
        // The thread that withdraws the job then owns it alone, so release this reference before
        // decrementing the count.
        let last =
            self.job.take().is_some_and(|job| job.helpers.fetch_sub(1, Ordering::Relaxed) == 1);
        if last {
            self.pool.left.notify_all();
        }
    }
}

/// Inputs claimed at once if look-ups are fast.
const CHUNK_MAX: usize = 16;

/// A higher average means that not all look-ups were from memory.
const SLOW_NS: u64 = 1_000;

/// The average covers about this many measurements.
const AVERAGE_OF: u64 = 64;

/// Upper limit for one look-up: too low to turn a fast average slow by itself.
const COUNTED_NS: u64 = 40 * SLOW_NS;

const _: () = assert!(COUNTED_NS < AVERAGE_OF * SLOW_NS);

/// The pace of one thread.
#[derive(Clone, Copy)]
pub(super) struct FetchPace {
    chunk: usize,
    average_ns: u64,
}

impl FetchPace {
    /// Creates a pace from the average of other threads. Without data, look-ups are assumed to be
    /// fast.
    pub(super) fn of(average_ns: u64) -> Self {
        Self { chunk: 1, average_ns }
    }

    /// Returns the average time of a look-up, where each counts for at most 40 microseconds.
    pub(super) fn average_ns(&self) -> u64 {
        self.average_ns
    }

    /// Returns how many inputs to claim next.
    pub(super) fn chunk(&self) -> usize {
        self.chunk
    }

    /// Returns whether look-ups are slow.
    pub(super) fn is_slow(&self) -> bool {
        self.average_ns > SLOW_NS
    }

    /// Runs `count` look-ups and measures their speed.
    pub(super) fn measure<T>(&mut self, count: usize, look_ups: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = look_ups();
        self.learn(count, started.elapsed());
        result
    }

    pub(super) fn learn(&mut self, count: usize, took: Duration) {
        let each_ns = took.as_nanos() as u64 / count.max(1) as u64;
        let counted_ns = each_ns.min(COUNTED_NS);
        self.average_ns = ((AVERAGE_OF - 1) * self.average_ns + counted_ns) / AVERAGE_OF;
        let quick = each_ns <= SLOW_NS;
        self.chunk = if quick { (2 * self.chunk).min(CHUNK_MAX) } else { 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_nanos(200);
    const SLOW: Duration = Duration::from_millis(5);

    #[test]
    fn chunks_grow_while_look_ups_are_fast_and_shrink_to_one_after_a_slow_one() {
        let mut pace = FetchPace::of(0);
        let mut chunks = vec![pace.chunk()];
        for _ in 0..6 {
            pace.learn(1, QUICK);
            chunks.push(pace.chunk());
        }
        assert_eq!(chunks, [1, 2, 4, 8, 16, 16, 16]);
        pace.learn(16, SLOW);
        assert_eq!(pace.chunk(), 1);
        assert!(!pace.is_slow(), "one look-up means little");
    }

    #[test]
    fn a_few_slow_look_ups_make_the_pace_slow_and_many_fast_ones_fast() {
        let mut pace = FetchPace::of(200);
        let learned = |pace: &mut FetchPace, took, slow| {
            (1..1000).find(|_| {
                pace.learn(1, took);
                pace.is_slow() == slow
            })
        };
        assert_eq!(learned(&mut pace, SLOW, true), Some(2));
        let until_quick = learned(&mut pace, QUICK, false).unwrap();
        assert!(until_quick < 50, "{until_quick}");
        for _ in 0..10_000 {
            pace.learn(1, SLOW);
        }
        let until_quick = learned(&mut pace, QUICK, false).unwrap();
        assert!(
            until_quick < 300,
            "old measurements must be forgotten sooner than after {until_quick}"
        );
    }

    #[test]
    fn look_ups_are_slow_above_a_microsecond_each() {
        assert!(!FetchPace::of(1000).is_slow() && FetchPace::of(1001).is_slow());
        for (took_ns, chunk) in [(16_000, 2), (16_016, 1)] {
            let mut pace = FetchPace::of(0);
            pace.learn(16, Duration::from_nanos(took_ns));
            assert_eq!(pace.chunk(), chunk, "sixteen took {took_ns} ns");
        }
    }

    #[test]
    fn a_disk_counts_as_slow_even_for_few_look_ups() {
        let mut pace = FetchPace::of(0);
        for look_up in 0..1000 {
            let disk = look_up % 33 == 0;
            pace.learn(1, if disk { Duration::from_micros(100) } else { QUICK });
        }
        assert!(pace.is_slow());
    }
}
