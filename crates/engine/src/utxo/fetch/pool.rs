//! [`Pool`]: the jobs that are open, and the threads that sleep until there is one.
//!
//! One lock guards the list of jobs and is taken once a job and thread, never once an input. A
//! thread goes to sleep only while the list has nothing to claim, under that lock, so a sleeper has
//! never seen a job that still needs it: waking is a matter of speed alone.
//!
//! Threads are woken for look-ups that are slow. Where all is in memory a block takes the taking
//! thread less than a millisecond; on cores that have other things to do, as they have while scripts
//! are verified, it lost more by waiting for a thread that had claimed inputs and was kept from
//! running than that thread had gained. A view that wants to be asked for many coins at once lies
//! beyond a network, whatever a look-up takes there on average: it is asked as soon as it can be.
//!
//! A thread that is at work on a job is counted under the same lock, which is how
//! [`Pool::withdraw`] knows that all have left. It is counted out however it leaves, also where it
//! panics.
//!
//! [`FetchPace`] is how fast one thread's look-ups are, and what follows from it.
//!
//! Coins come from memory in some hundred nanoseconds or from a disk in a hundred microseconds and
//! more, and one block has both. From memory, inputs are claimed several at once, because threads
//! that change one counter for each would hinder each other; from a disk one by one, so that none
//! waits for its turn behind another.
//!
//! Threads are worth waking where look-ups are slow on average: a cache that knows most coins leaves
//! a few for the disk, and those few take most of the time. The clock runs on while the system runs
//! something else instead of a thread, so one long look-up means little. Only the speed is guessed
//! at; results never depend on it.

use super::job::{Claimed, FetchAhead, FetchJob};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What the threads of a fetcher share.
pub(super) struct Pool {
    queue: Mutex<FetchQueue>,
    /// There is something to claim.
    work: Condvar,
    /// A thread has left a job.
    left: Condvar,
    /// Threads that sleep and that no other has begun to wake. Too many for a while if one wakes by
    /// itself; then a notification finds no sleeper.
    asleep: AtomicUsize,
    /// What a thread last knew of the time that a look-up takes.
    average_ns: AtomicU64,
    closed: AtomicBool,
    threads: usize,
    pub(super) ahead: Arc<FetchAhead>,
}

struct FetchQueue {
    /// In order of their start. All that may have unclaimed inputs are here.
    jobs: VecDeque<Arc<FetchJob>>,
}

impl FetchQueue {
    /// The oldest job with something to claim.
    fn first(&mut self) -> Option<&Arc<FetchJob>> {
        while self.jobs.front()?.unclaimed() == 0 {
            self.jobs.pop_front();
        }
        self.jobs.front()
    }
}

impl Pool {
    /// For so many threads, which fetch so much ahead at most.
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

    /// Nothing that panics runs under the lock.
    fn lock(&self) -> MutexGuard<'_, FetchQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the threads at a job, and wakes as many as are of use.
    pub(super) fn publish(&self, job: &Arc<FetchJob>) {
        let inputs = job.unclaimed();
        if inputs == 0 {
            return;
        }
        self.lock().jobs.push_back(Arc::clone(job));
        if job.at_once > 1 {
            // The way there and back is begun now, and not when the first coin is taken.
            self.wake(inputs.div_ceil(job.at_once));
        } else if self.pace().is_slow() {
            // The taking thread works too.
            self.wake(inputs - 1);
        }
    }

    /// The pace to begin with.
    pub(super) fn pace(&self) -> FetchPace {
        FetchPace::of(self.average_ns.load(Ordering::Relaxed))
    }

    /// Remembers the pace of a thread that has done its part of a job.
    pub(super) fn remember(&self, pace: &FetchPace) {
        self.average_ns.store(pace.average_ns(), Ordering::Relaxed);
    }

    /// Slow look-ups are worth a thread each, whatever was expected of a job.
    pub(super) fn met(&self, pace: &FetchPace, job: &FetchJob) {
        if pace.is_slow() {
            self.wake(job.unclaimed());
        }
    }

    /// The taking thread has to fetch by itself: threads that stopped since enough was there may go on.
    pub(super) fn go_on(&self, job: &FetchJob) {
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

    /// Takes a job back. When this returns no thread has it any more.
    pub(super) fn withdraw(&self, job: &Arc<FetchJob>) {
        job.abandon();
        let mut queue = self.lock();
        queue.jobs.retain(|other| !Arc::ptr_eq(other, job));
        while job.helpers.load(Ordering::Relaxed) > 0 {
            queue = self.left.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends all threads, each after what it has claimed.
    pub(super) fn close(&self) {
        let queue = self.lock();
        self.closed.store(true, Ordering::Relaxed);
        drop(queue);
        self.work.notify_all();
    }

    /// The life of one thread.
    pub(super) fn serve(&self) {
        let mut queue = self.lock();
        while !self.closed.load(Ordering::Relaxed) {
            let job = queue.first().cloned().filter(|job| self.may_help(job));
            let Some(job) = job else {
                let one_more = |asleep: usize| Some((asleep + 1).min(self.threads));
                let _ = self.asleep.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            job.helpers.fetch_add(1, Ordering::Relaxed);
            drop(queue);
            let helper = Helper { pool: self, job: Some(job) };
            helper.job.iter().for_each(|job| self.help(job));
            drop(helper);
            queue = self.lock();
        }
    }

    /// Whether more may be fetched ahead.
    fn may_help(&self, job: &FetchJob) -> bool {
        !self.ahead.is_full() && (job.at_once == 1 || self.ahead.has_call())
    }

    /// Fetches inputs of a job until all are claimed, or enough is there that was not taken.
    fn help(&self, job: &FetchJob) {
        let mut pace = self.pace();
        while !self.closed.load(Ordering::Relaxed) && !self.ahead.is_full() {
            // Others are at it.
            let Some(_call) = self.ahead.call(job.at_once) else { break };
            let claimed = job.claim(pace.chunk().max(job.at_once));
            if claimed.is_empty() {
                break;
            }
            let count = claimed.len();
            let claimed = Claimed::new(job, claimed);
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
        // Under the lock: those counted are in fact asleep.
        let _queue = self.lock();
        self.asleep.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn open(&self) -> usize {
        self.lock().jobs.len()
    }
}

/// A thread at work on a job, counted until this is dropped.
struct Helper<'a> {
    pool: &'a Pool,
    /// Until then.
    job: Option<Arc<FetchJob>>,
}

impl Drop for Helper<'_> {
    fn drop(&mut self) {
        let _queue = self.pool.lock();
        // The thread that withdraws the job has it to itself then: this goes before that can be seen.
        let last =
            self.job.take().is_some_and(|job| job.helpers.fetch_sub(1, Ordering::Relaxed) == 1);
        if last {
            self.pool.left.notify_all();
        }
    }
}

/// Inputs claimed at once where look-ups are quick.
const CHUNK_MAX: usize = 16;

/// An average above this is not from memory alone.
const SLOW_NS: u64 = 1_000;

/// The average is of about so many measurements.
const AVERAGE_OF: u64 = 64;

/// What a look-up counts for at most: too little to make a quick average slow by itself.
const COUNTED_NS: u64 = 40 * SLOW_NS;

const _: () = assert!(COUNTED_NS < AVERAGE_OF * SLOW_NS);

/// The pace of one thread.
#[derive(Clone, Copy)]
pub(super) struct FetchPace {
    chunk: usize,
    average_ns: u64,
}

impl FetchPace {
    /// As fast as others were. Where nothing is known, look-ups are taken to be quick.
    pub(super) fn of(average_ns: u64) -> Self {
        Self { chunk: 1, average_ns }
    }

    /// How long a look-up takes on average, where none counts for more than 40 microseconds.
    pub(super) fn average_ns(&self) -> u64 {
        self.average_ns
    }

    /// How many inputs to claim next.
    pub(super) fn chunk(&self) -> usize {
        self.chunk
    }

    /// Whether look-ups are slow.
    pub(super) fn is_slow(&self) -> bool {
        self.average_ns > SLOW_NS
    }

    /// Does `count` look-ups and learns how fast they were.
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
    fn chunks_grow_while_look_ups_are_quick_and_are_single_when_one_is_slow() {
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
    fn a_few_slow_look_ups_make_it_slow_and_many_quick_ones_quick() {
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
        assert!(until_quick < 300, "what was long ago is forgotten, not after {until_quick}");
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
    fn a_disk_for_few_look_ups_is_slow() {
        let mut pace = FetchPace::of(0);
        for look_up in 0..1000 {
            let disk = look_up % 33 == 0;
            pace.learn(1, if disk { Duration::from_micros(100) } else { QUICK });
        }
        assert!(pace.is_slow());
    }
}
