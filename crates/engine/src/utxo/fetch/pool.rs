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

use super::job::{Claimed, FetchAhead, FetchJob};
use super::pace::FetchPace;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

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
