//! [`BatcherStats`]: what a batcher did, in numbers.

use std::time::Duration;

/// Times, summed up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waited {
    /// All together.
    pub sum: Duration,
    /// The longest.
    pub longest: Duration,
}

impl Waited {
    pub(super) fn add(&mut self, time: Duration) {
        self.sum = self.sum.saturating_add(time);
        self.longest = self.longest.max(time);
    }
}

/// What a batcher did since it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatcherStats {
    /// Coins taken in.
    pub taken_in: u64,
    /// Coins of batches that have ended, well or not.
    pub answered: u64,
    /// Batches begun: the sum of the next four.
    pub batches: u64,
    /// Of the batches, those that were full.
    pub full: u64,
    /// Those that went since a producer's block was complete.
    pub complete: u64,
    /// Those that went since all producers waited.
    pub idle: u64,
    /// Those that went since the first coin had waited long enough.
    pub deadline: u64,
    /// Coins of the largest batch.
    pub size_max: u64,
    /// How long batches waited, counted from their first coin.
    pub waited: Waited,
    /// How long the store took for batches, with all tries and pauses.
    pub latency: Waited,
    /// Tries after the first.
    pub retries: u64,
    /// Batches that failed for good.
    pub failures: u64,
    /// Batches under way now.
    pub in_flight: u64,
    /// Batches under way at most.
    pub in_flight_max: u64,
    /// Coins that waited for their batch at most.
    pub waiting_max: u64,
    /// How often a producer had to wait to hand more in.
    pub held_up: u64,
}
