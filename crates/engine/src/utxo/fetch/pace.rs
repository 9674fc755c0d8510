//! [`Pace`]: how fast one thread's look-ups are, and what follows from it.
//!
//! Coins come from memory in some hundred nanoseconds or from a disk in a hundred microseconds and
//! more, and one block has both. From memory, inputs are claimed several at once, because threads
//! that change one counter for each would hinder each other; from a disk one by one, so that none
//! waits for its turn behind another. Only the speed is guessed at; results never depend on it.

use std::time::{Duration, Instant};

/// Inputs claimed at once where look-ups are quick.
const CHUNK_MAX: usize = 16;

/// A look-up that takes longer asks something slower than memory.
const SLOW: Duration = Duration::from_micros(10);

/// The pace of one thread.
pub(super) struct Pace {
    chunk: usize,
}

impl Pace {
    /// Nothing is known yet.
    pub(super) fn new() -> Self {
        Self { chunk: 1 }
    }

    /// How many inputs to claim next.
    pub(super) fn chunk(&self) -> usize {
        self.chunk
    }

    /// Whether the last look-ups were slow.
    pub(super) fn is_slow(&self) -> bool {
        self.chunk == 1
    }

    /// Does `count` look-ups and learns how fast they were.
    pub(super) fn measure<T>(&mut self, count: usize, look_ups: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = look_ups();
        self.learn(count, started.elapsed());
        result
    }

    fn learn(&mut self, count: usize, took: Duration) {
        let quick = took <= SLOW * count as u32;
        self.chunk = if quick { (2 * self.chunk).min(CHUNK_MAX) } else { 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_grow_while_look_ups_are_quick_and_are_single_when_one_is_slow() {
        let mut pace = Pace::new();
        let mut chunks = vec![pace.chunk()];
        for _ in 0..6 {
            pace.learn(pace.chunk(), SLOW);
            assert!(!pace.is_slow());
            chunks.push(pace.chunk());
        }
        assert_eq!(chunks, [1, 2, 4, 8, 16, 16, 16]);
        pace.learn(16, 16 * SLOW + Duration::from_nanos(1));
        assert!(pace.is_slow());
        assert_eq!(pace.chunk(), 1);
    }
}
