//! [`best_rate`]: the most work per second that so many threads were seen to do at once.
//!
//! A limit is what the machine can do when nothing disturbs it, so the best of many short rounds
//! counts and not their mean. All threads begin a round together and it ends with the last of them:
//! a rate of two threads is one that two threads really had at the same moment. What is measured
//! must not block or panic; nothing here allocates between rounds.

use std::hint;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Long enough for the clock and for the threads to meet, short enough to fall between two
/// interruptions.
const ROUND: Duration = Duration::from_millis(2);

/// A best rate counts as found when so many rounds came so close to it; on a busy machine that takes
/// longer, but not without end.
const CONFIRMED: usize = 3;
const CLOSE: f64 = 0.97;
const SPANS_MAX: u32 = 5;

/// Calls in a round beyond which they are taken to cost nothing: the compiler may see that they do
/// nothing and leave them out, however many they are.
const CALLS_MAX: u64 = 1 << 40;

/// Looks at a barrier before the core is given to another thread.
const SPINS: u32 = 2_000;

/// Runs `work` on `threads` threads again and again for `span`, each on a state of its own from
/// `state`, and returns the most units per second of all threads together. `work` returns the
/// units that it did.
pub(super) fn best_rate<S>(
    threads: usize,
    span: Duration,
    state: impl Fn(usize) -> S + Sync,
    work: impl Fn(&mut S) -> u64 + Sync,
) -> f64 {
    let threads = threads.max(1);
    let course = Course::new(threads, span);
    thread::scope(|scope| {
        for index in 1..threads {
            let (course, state, work) = (&course, &state, &work);
            scope.spawn(move || course.run(index, state(index), work));
        }
        course.run(0, state(0), &work)
    })
}

/// What the threads of one measurement share.
struct Course {
    barrier: Barrier,
    epoch: Instant,
    span: Duration,
    calls: AtomicU64,
    over: AtomicBool,
    rounds: Vec<Round>,
}

/// What one thread did in the round that just ended: nanoseconds since the epoch, and units.
#[derive(Default)]
struct Round {
    start: AtomicU64,
    end: AtomicU64,
    units: AtomicU64,
}

impl Course {
    fn new(threads: usize, span: Duration) -> Self {
        Self {
            barrier: Barrier::new(threads),
            epoch: Instant::now(),
            span,
            calls: AtomicU64::new(1),
            over: AtomicBool::new(false),
            rounds: (0..threads).map(|_| Round::default()).collect(),
        }
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// One thread's part. The first thread is the one that judges rounds, and its result counts.
    fn run<S>(&self, index: usize, mut state: S, work: &impl Fn(&mut S) -> u64) -> f64 {
        // Brings code and data into the caches and the core out of its sleep.
        work(&mut state);
        let (mut rates, mut begun) = (Rates::default(), None);
        loop {
            self.barrier.wait();
            if self.over.load(Ordering::Acquire) {
                return rates.best();
            }
            let start = self.now();
            let calls = self.calls.load(Ordering::Relaxed);
            let units = (0..calls).map(|_| work(&mut state)).sum();
            let round = &self.rounds[index];
            round.start.store(start, Ordering::Relaxed);
            round.end.store(self.now(), Ordering::Relaxed);
            round.units.store(units, Ordering::Relaxed);
            self.barrier.wait();
            if index == 0 {
                let (nanoseconds, units) = self.judge();
                let begun = *begun.get_or_insert(start);
                if nanoseconds < ROUND.as_nanos() as u64 / 2 && calls < CALLS_MAX {
                    // Too short to trust: more calls from here on.
                    self.calls.store(calls * 2, Ordering::Relaxed);
                } else {
                    rates.push(units as f64 * 1e9 / nanoseconds as f64);
                }
                let spent = Duration::from_nanos(self.now() - begun);
                let over = spent >= self.span && rates.confirmed()
                    || spent >= self.span * SPANS_MAX && !rates.is_empty();
                self.over.store(over, Ordering::Release);
            }
        }
    }

    /// The last round's length, from the first start to the last end, and the units of all.
    fn judge(&self) -> (u64, u64) {
        let starts = self.rounds.iter().map(|round| round.start.load(Ordering::Relaxed));
        let ends = self.rounds.iter().map(|round| round.end.load(Ordering::Relaxed));
        let units = self.rounds.iter().map(|round| round.units.load(Ordering::Relaxed)).sum();
        let (start, end) = (starts.min().unwrap_or(0), ends.max().unwrap_or(0));
        (end.saturating_sub(start).max(1), units)
    }
}

/// The greatest rates seen, descending.
#[derive(Default)]
struct Rates {
    top: [f64; CONFIRMED],
    pushed: bool,
}

impl Rates {
    fn push(&mut self, rate: f64) {
        self.pushed = true;
        if let Some(place) = self.top.iter().position(|other| rate > *other) {
            self.top[place..].rotate_right(1);
            self.top[place] = rate;
        }
    }

    fn best(&self) -> f64 {
        self.top[0]
    }

    fn confirmed(&self) -> bool {
        let [best, .., least] = self.top;
        self.pushed && least >= CLOSE * best
    }

    /// Nothing was pushed yet. What does no work has a rate too, of zero.
    fn is_empty(&self) -> bool {
        !self.pushed
    }
}

/// Threads meet here without going to sleep: waking up would take longer than many a round.
struct Barrier {
    threads: usize,
    arrived: AtomicUsize,
    generation: AtomicUsize,
}

impl Barrier {
    fn new(threads: usize) -> Self {
        Self { threads, arrived: AtomicUsize::new(0), generation: AtomicUsize::new(0) }
    }

    fn wait(&self) {
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.generation.store(generation + 1, Ordering::Release);
            return;
        }
        let mut spins = 0;
        while self.generation.load(Ordering::Acquire) == generation {
            if spins < SPINS {
                spins += 1;
                hint::spin_loop();
            } else {
                // More threads than free cores: the one waited for may need this one.
                thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn every_thread_has_a_state_of_its_own_and_all_units_count() {
        let seen = Mutex::new(Vec::new());
        let rate = best_rate(
            3,
            Duration::from_millis(5),
            |index| {
                seen.lock().unwrap().push(index);
                index as u64
            },
            |state| {
                *state += 1;
                thread::sleep(Duration::from_micros(200));
                100
            },
        );
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2]);
        // Three threads of at most 100 units in 200 microseconds each: no more can be right.
        assert!(rate > 0.0 && rate <= 3.0 * 100.0 / 200e-6, "{rate}");
    }

    #[test]
    fn what_does_no_work_has_no_rate_and_an_end() {
        let rate = best_rate(2, Duration::from_millis(1), |_| (), |()| 0);
        assert_eq!(rate, 0.0);
    }

    #[test]
    fn a_best_rate_is_found_when_others_come_close() {
        let mut rates = Rates::default();
        assert!(rates.is_empty() && !rates.confirmed());
        for rate in [10.0, 99.0, 100.0, 50.0] {
            rates.push(rate);
        }
        assert_eq!((rates.best(), rates.confirmed()), (100.0, false));
        rates.push(98.0);
        assert_eq!((rates.best(), rates.confirmed()), (100.0, true));
        rates.push(200.0);
        assert_eq!((rates.best(), rates.confirmed()), (200.0, false));
    }

    #[test]
    fn a_barrier_holds_all_threads_back_and_can_be_used_again() {
        let (barrier, count) = (Barrier::new(4), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 1..=50 {
                        count.fetch_add(1, Ordering::Relaxed);
                        barrier.wait();
                        assert_eq!(count.load(Ordering::Relaxed), 4 * round);
                        barrier.wait();
                    }
                });
            }
        });
    }
}
