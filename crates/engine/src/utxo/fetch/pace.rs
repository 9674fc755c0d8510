//! [`FetchPace`]: how fast one thread's look-ups are, and what follows from it.
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

use std::time::{Duration, Instant};

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
