//! [`best_rate`]: the highest throughput seen from a given number of threads at once.
//!
//! A limit is the machine's undisturbed speed, so the best of many short rounds counts, not their mean. All
//! threads begin a round together, and it ends with the last of them: so two threads reached a rate of two
//! threads at the same moment. The measured work must not block or panic.

use super::cost::{KernelRates, WorkRate};
use super::work::double_compressions;
use apus_hash::{KeyedHasher, Message, Sha256Kernel, sha256, sha256d_many, sha256d_pairs};
use std::hint::{self, black_box};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Long enough for the clock and for the threads to meet, short enough to fall between two interruptions.
const ROUND: Duration = Duration::from_millis(2);

/// A best rate is confirmed when this many rounds came this close to it; a busy machine takes longer, up to a
/// bound.
const CONFIRMED: usize = 3;
const CLOSE: f64 = 0.97;
const SPANS_MAX: u32 = 5;

/// If a round reaches this number of calls, the work counts as free: the compiler may have optimised it away.
const CALLS_MAX: u64 = 1 << 40;

/// Polls of the other threads before yielding the core.
const SPINS: u32 = 2_000;

/// Calls `work` on `threads` threads repeatedly for `span`, each with its own state from `state`, and returns
/// the highest units per second of all threads together. `work` returns the number of units done.
fn best_rate<S: Send>(
    threads: usize,
    span: Duration,
    state: impl Fn(usize) -> S,
    work: impl Fn(&mut S) -> u64 + Sync,
) -> f64 {
    let mut states: Vec<S> = (0..threads.max(1)).map(state).collect();
    let (mut calls, mut rates, begun) = (1, TopRates::default(), Instant::now());
    loop {
        let (took, units) = round(&mut states, calls, &work);
        if took < ROUND / 2 && calls < CALLS_MAX {
            // The round was too short to trust: make more calls from here on.
            calls *= 2;
        } else {
            rates.push(units as f64 / took.as_secs_f64());
        }
        let spent = begun.elapsed();
        if spent >= span && rates.confirmed() || spent >= span * SPANS_MAX && !rates.is_empty() {
            return rates.best();
        }
    }
}

/// Calls `work` this many times on each thread, starting together: returns the time from the first start to
/// the last end, and the units of all threads.
fn round<S: Send>(
    states: &mut [S],
    calls: u64,
    work: &(impl Fn(&mut S) -> u64 + Sync),
) -> (Duration, u64) {
    let (threads, arrived) = (states.len(), AtomicUsize::new(0));
    let run = |state: &mut S| {
        // Warms the caches and wakes the core.
        work(state);
        meet(threads, &arrived);
        let start = Instant::now();
        let units: u64 = (0..calls).map(|_| work(state)).sum();
        (start, Instant::now(), units)
    };
    let run = &run;
    let parts: Vec<(Instant, Instant, u64)> = thread::scope(|scope| {
        let spawn = |state| scope.spawn(move || run(state));
        let all: Vec<_> = states.iter_mut().map(spawn).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        all.into_iter().map(join).collect()
    });
    let (start, end) = (parts.iter().map(|it| it.0).min(), parts.iter().map(|it| it.1).max());
    let took = end.zip(start).map_or(Duration::ZERO, |(end, start)| end - start);
    (took.max(Duration::from_nanos(1)), parts.iter().map(|it| it.2).sum())
}

/// A barrier that spins: waking a sleeping thread takes longer than many rounds.
fn meet(threads: usize, arrived: &AtomicUsize) {
    arrived.fetch_add(1, Ordering::AcqRel);
    let mut spins = 0;
    while arrived.load(Ordering::Acquire) < threads {
        if spins < SPINS {
            spins += 1;
            hint::spin_loop();
        } else {
            // More threads than free cores: the missing thread may need this core.
            thread::yield_now();
        }
    }
}

/// The highest rates seen, descending.
#[derive(Default)]
struct TopRates {
    top: [f64; CONFIRMED],
    pushed: bool,
}

impl TopRates {
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

    /// True before the first push. Work without units has a rate of zero, not none.
    fn is_empty(&self) -> bool {
        !self.pushed
    }
}

// ---- SHA-256 kernels ----
//
// A process has one kernel, which `APUS_SHA256_KERNEL` selects at its start, so a machine with several kernels needs
// one process for each. The messages are made up; SHA-256 takes the same time for all messages of one length.
// Compressions are counted by the definition, even if a kernel skips some.

/// Transactions of a block near the weight limit.
const TRANSACTIONS: usize = 2_500;

/// Bytes without witness of a transaction with two inputs and two or three outputs.
const USUAL_BYTES: usize = 250;

/// Batch sizes of a block: inner nodes, and outpoints.
const NODES: usize = 2_048;
const OUTPOINTS: usize = 8_192;

/// A message so long that its ends do not matter.
const STREAM_BYTES: usize = 64 << 10;

/// Names of the kernels that this machine can run, the fastest first.
pub(super) fn kernel_names() -> Vec<&'static str> {
    Sha256Kernel::available().into_iter().map(Sha256Kernel::name).collect()
}

/// Measures every shape for `span` on one thread and again on `threads`.
pub(super) fn kernel_rates(threads: usize, span: Duration) -> KernelRates {
    KernelRates {
        kernel: Sha256Kernel::current().name().to_owned(),
        transactions: messages(&lengths_of_a_block(), threads, span),
        transactions_of_one_length: messages(&[USUAL_BYTES; TRANSACTIONS], threads, span),
        merkle_nodes: merkle_nodes(threads, span),
        outpoints: outpoints(threads, span),
        stream: stream(threads, span),
    }
}

/// The [`best_rate`] of one thread and of all.
pub(super) fn rate<S: Send>(
    threads: usize,
    span: Duration,
    state: impl Fn(usize) -> S,
    work: impl Fn(&mut S) -> u64 + Sync,
) -> WorkRate {
    let one_thread = best_rate(1, span, &state, &work);
    let all_threads =
        if threads == 1 { one_thread } else { best_rate(threads, span, &state, &work) };
    WorkRate { one_thread, all_threads }
}

/// Lengths as in a block: most are 190 to 400 bytes, one in ten up to 2 kB, one in 150 up to 100 kB.
fn lengths_of_a_block() -> Vec<usize> {
    let mut state = 1u64;
    let mut below = |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        ((state >> 33) % limit) as usize
    };
    let mut length = || match below(150) {
        0 => 2_000 + below(98_000),
        1..=15 => 400 + below(1_600),
        _ => 190 + below(210),
    };
    (0..TRANSACTIONS).map(|_| length()).collect()
}

/// Double SHA-256 of consecutive messages, each in the pieces of a transaction with witness.
fn messages(lengths: &[usize], threads: usize, span: Duration) -> WorkRate {
    let bytes = vec![0x5a; lengths.iter().sum()];
    let compressions: u64 = lengths.iter().map(|&length| double_compressions(length as u64)).sum();
    let mut rest = &bytes[..];
    let messages: Vec<Message<'_>> = lengths
        .iter()
        .map(|&length| {
            let (message, later) = rest.split_at(length);
            rest = later;
            let (version, inner) = message.split_at(4);
            let (inner, lock_time) = inner.split_at(inner.len() - 4);
            Message([version, inner, lock_time])
        })
        .collect();
    let out = |_| vec![[0; 32]; messages.len()];
    rate(threads, span, out, |out| {
        sha256d_many(black_box(&messages), out);
        compressions
    })
}

fn merkle_nodes(threads: usize, span: Duration) -> WorkRate {
    let state = |_| (vec![[0x5a; 64]; NODES], vec![[0; 32]; NODES]);
    rate(threads, span, state, |(pairs, out)| {
        sha256d_pairs(black_box(pairs), out);
        NODES as u64 * double_compressions(64)
    })
}

fn outpoints(threads: usize, span: Duration) -> WorkRate {
    let hasher = KeyedHasher::new(&[7; 64]);
    let state = |_| (vec![[0x5a; 36]; OUTPOINTS], [0; 4]);
    rate(threads, span, state, |(outpoints, sum)| {
        hasher.sum_many(black_box(outpoints), sum);
        OUTPOINTS as u64
    })
}

fn stream(threads: usize, span: Duration) -> WorkRate {
    let state = |_| vec![0x5a_u8; STREAM_BYTES];
    rate(threads, span, state, |bytes| {
        black_box(sha256(black_box(bytes)));
        double_compressions(STREAM_BYTES as u64) - 1
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn every_thread_has_its_own_state_and_all_units_count() {
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
        // Three threads of at most 100 units per 200 microseconds each: the rate cannot be higher.
        assert!(rate > 0.0 && rate <= 3.0 * 100.0 / 200e-6, "{rate}");
    }

    #[test]
    fn work_without_units_ends_with_a_rate_of_zero() {
        let rate = best_rate(2, Duration::from_millis(1), |_| (), |()| 0);
        assert_eq!(rate, 0.0);
    }

    #[test]
    fn a_best_rate_is_found_when_others_come_close() {
        let mut rates = TopRates::default();
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
}

#[cfg(test)]
mod hashing_tests {
    use super::*;

    #[test]
    fn lengths_match_a_block_and_never_change() {
        let lengths = lengths_of_a_block();
        assert_eq!(lengths, lengths_of_a_block());
        assert!(lengths.iter().all(|length| (190..100_000).contains(length)));
        let usual = lengths.iter().filter(|length| **length < 400).count();
        assert!((TRANSACTIONS * 8 / 10..TRANSACTIONS).contains(&usual), "{usual}");
    }

    #[test]
    fn every_shape_gets_a_rate_for_one_thread_and_for_two() {
        let rates = kernel_rates(2, Duration::from_millis(1));
        assert_eq!(rates.kernel, Sha256Kernel::current().name());
        let KernelRates { transactions, transactions_of_one_length, .. } = rates;
        let shapes = [rates.merkle_nodes, rates.outpoints, rates.stream];
        for rate in [transactions, transactions_of_one_length].into_iter().chain(shapes) {
            // Any machine does a thousand per second, none 10^12.
            for found in [rate.one_thread, rate.all_threads] {
                assert!((1e3..1e12).contains(&found), "{found}");
            }
        }
    }
}
