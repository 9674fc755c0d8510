//! [`Pool`]: the jobs that are open, and the threads that sleep until there is one.
//!
//! One lock guards the list of jobs and is taken once a job and thread, never once an input. A
//! thread goes to sleep only while the list has nothing to claim, under that lock, so a sleeper has
//! never seen a job that still needs it: waking is a matter of speed alone, and how many are woken
//! is a guess that is put right on the way. A thread that is at work on a job is counted under the
//! same lock, which is how [`Pool::withdraw`] knows that all have left.

use super::job::Job;
use super::pace::Pace;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Quick look-ups that are worth waking a thread for: about a hundred microseconds of them, where a
/// thread needs some ten to wake.
const QUICK_PER_THREAD: usize = 512;

/// What the threads of a fetcher share.
pub(super) struct Pool {
    queue: Mutex<Queue>,
    /// There is something to claim.
    work: Condvar,
    /// A thread has left a job.
    left: Condvar,
    asleep: AtomicUsize,
    /// Whether the last look-ups, of whichever job, were slow.
    slow: AtomicBool,
    closed: AtomicBool,
    threads: usize,
    /// Threads that find a core to run on besides the one that takes.
    on_cores: usize,
}

struct Queue {
    /// In order of their start. All that may have unclaimed inputs are here.
    jobs: VecDeque<Arc<Job>>,
}

impl Queue {
    /// The oldest job with something to claim.
    fn first(&mut self) -> Option<&Arc<Job>> {
        while self.jobs.front()?.unclaimed() == 0 {
            self.jobs.pop_front();
        }
        self.jobs.front()
    }
}

impl Pool {
    /// For so many threads on so many cores.
    pub(super) fn new(threads: usize, cores: usize) -> Self {
        Self {
            queue: Mutex::new(Queue { jobs: VecDeque::new() }),
            work: Condvar::new(),
            left: Condvar::new(),
            asleep: AtomicUsize::new(0),
            slow: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            threads,
            on_cores: threads.min(cores - 1),
        }
    }

    /// Nothing that panics runs under the lock.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the threads at a job, and wakes as many as are of use.
    pub(super) fn publish(&self, job: &Arc<Job>) {
        let inputs = job.unclaimed();
        if inputs == 0 {
            return;
        }
        self.lock().jobs.push_back(Arc::clone(job));
        // The taking thread works too: the last input is always its own.
        let useful = if self.slow.load(Ordering::Relaxed) {
            self.threads.min(inputs - 1)
        } else {
            self.on_cores.min(inputs / QUICK_PER_THREAD)
        };
        self.wake(useful);
    }

    /// Learns the pace at which a thread works on a job. Slow look-ups are worth a thread each.
    pub(super) fn met(&self, pace: &Pace, job: &Job) {
        let slow = pace.is_slow();
        if slow != self.slow.load(Ordering::Relaxed) {
            self.slow.store(slow, Ordering::Relaxed);
        }
        if slow {
            self.wake(job.unclaimed());
        }
    }

    fn wake(&self, count: usize) {
        for _ in 0..count.min(self.asleep.load(Ordering::Relaxed)) {
            self.work.notify_one();
        }
    }

    /// Takes a job back. When this returns no thread has it any more.
    pub(super) fn withdraw(&self, job: &Arc<Job>) {
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
        let mut pace = Pace::new();
        let mut queue = self.lock();
        while !self.closed.load(Ordering::Relaxed) {
            let Some(job) = queue.first().cloned() else {
                self.asleep.fetch_add(1, Ordering::Relaxed);
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                self.asleep.fetch_sub(1, Ordering::Relaxed);
                continue;
            };
            job.helpers.fetch_add(1, Ordering::Relaxed);
            drop(queue);
            self.help(&job, &mut pace);
            queue = self.lock();
            let last = job.helpers.fetch_sub(1, Ordering::Relaxed) == 1;
            drop(job);
            if last {
                self.left.notify_all();
            }
        }
    }

    /// Fetches inputs of a job until all are claimed.
    fn help(&self, job: &Job, pace: &mut Pace) {
        while !self.closed.load(Ordering::Relaxed) {
            let claimed = job.claim(pace.chunk());
            if claimed.is_empty() {
                return;
            }
            let mut fetched = 0;
            pace.measure(claimed.len(), || {
                for index in claimed {
                    if job.is_abandoned() {
                        return;
                    }
                    job.fetch(index);
                    fetched += 1;
                }
            });
            if job.is_abandoned() {
                return;
            }
            self.met(pace, job);
        }
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
