//! How fast a peer is, and how large blocks are: averages that forget.
//!
//! Arithmetic of `f64` without transcendental functions, so that the same events give the same
//! numbers everywhere. A [`Meter`] knows no clock; its caller decides which time counts.

use apus_chain::Height;
use std::collections::BTreeMap;

/// After so much time a measurement weighs half, in milliseconds.
const MEMORY_MS: f64 = 8_000.0;
/// How many blocks share one average: some weeks of them.
const BUCKET_HEIGHTS: u32 = 4_096;
/// The size of a block as long as none is known, in bytes.
const SIZE_START: f64 = 1_000_000.0;
/// No average stands for more blocks, so that it follows.
const WEIGHT_MAX: f64 = 8.0;
/// No block is larger (BIP-141: 4,000,000 weight units, of which a byte has at least one).
pub(super) const SIZE_MAX: u64 = 4_000_000;
/// No block takes less: its header, a count and a coinbase.
const SIZE_MIN: f64 = 120.0;

/// Bytes for time, the recent ones counting most.
#[derive(Debug, Clone, Default)]
pub(super) struct Meter {
    bytes: f64,
    time_ms: f64,
}

impl Meter {
    /// So many bytes came within so much time.
    pub(super) fn add(&mut self, bytes: u64, time_ms: u64) {
        let kept = MEMORY_MS / (MEMORY_MS + time_ms as f64);
        self.bytes = self.bytes * kept + bytes as f64;
        self.time_ms = self.time_ms * kept + time_ms as f64;
    }

    /// Bytes per millisecond, if nothing came for the last `silent_ms`; none before the first byte.
    pub(super) fn rate(&self, silent_ms: u64) -> Option<f64> {
        let mut now = self.clone();
        now.add(0, silent_ms);
        (now.bytes > 0.0).then(|| now.bytes / now.time_ms.max(1.0))
    }
}

/// What blocks weigh on average, by where they stand in the chain: different consumers are at
/// different heights at the same time, and blocks grew from two hundred bytes to two million.
#[derive(Debug, Clone, Default)]
pub(super) struct Sizes(BTreeMap<u32, Size>);

#[derive(Debug, Clone, Copy)]
struct Size {
    average: f64,
    /// How many blocks that stands for; one if it is a neighbour's.
    weight: f64,
}

impl Sizes {
    /// What a block at this height is expected to have, in bytes: at most [`SIZE_MAX`].
    pub(super) fn expected(&self, height: Height) -> u64 {
        self.nearest(height / BUCKET_HEIGHTS).average as u64
    }

    /// A block at this height had so many bytes.
    pub(super) fn add(&mut self, height: Height, bytes: u64) {
        let bucket = height / BUCKET_HEIGHTS;
        let Size { average, weight } = self.nearest(bucket);
        let weight = if self.0.contains_key(&bucket) { weight } else { weight.min(1.0) };
        let size = (bytes.min(SIZE_MAX) as f64).max(SIZE_MIN);
        let average = average + (size - average) / (weight + 1.0);
        self.0.insert(bucket, Size { average, weight: (weight + 1.0).min(WEIGHT_MAX) });
    }

    /// The bucket that was seen and is nearest.
    fn nearest(&self, bucket: u32) -> Size {
        let below = self.0.range(..=bucket).next_back();
        let above = self.0.range(bucket..).next();
        match (below, above) {
            (Some((low, size)), Some((high, _))) if bucket - low <= high - bucket => *size,
            (_, Some((_, size))) | (Some((_, size)), None) => *size,
            (None, None) => Size { average: SIZE_START, weight: 0.0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_steady_rate_is_found_at_once_and_kept() {
        let mut meter = Meter::default();
        assert_eq!(meter.rate(0), None);
        for _ in 0..100 {
            meter.add(5_000, 10);
            assert!((meter.rate(0).unwrap() - 500.0).abs() < 1e-6);
        }
    }

    #[test]
    fn a_change_is_followed_and_silence_counts() {
        let mut meter = Meter::default();
        (0..1_000).for_each(|_| meter.add(5_000, 10));
        (0..4_000).for_each(|_| meter.add(500, 10));
        let rate = meter.rate(0).unwrap();
        assert!((49.0..65.0).contains(&rate), "{rate}");
        assert!(meter.rate(8_000).unwrap() < rate / 1.4);
    }

    #[test]
    fn bytes_without_time_are_no_division_by_zero() {
        let mut meter = Meter::default();
        meter.add(1_000, 0);
        assert_eq!(meter.rate(0), Some(1_000.0));
    }

    #[test]
    fn sizes_start_at_a_megabyte_and_belong_to_heights() {
        let mut sizes = Sizes::default();
        assert_eq!(sizes.expected(700_000), 1_000_000);
        (0..200).for_each(|_| sizes.add(1_000, 215));
        (0..200).for_each(|_| sizes.add(800_000, 1_600_000));
        assert!((215..220).contains(&sizes.expected(0)));
        assert!((215..220).contains(&sizes.expected(300_000)));
        assert!(sizes.expected(600_000) > 1_599_000);
        assert!(sizes.expected(900_000) > 1_599_000);
    }

    proptest! {
        #[test]
        fn whatever_comes_numbers_stay_numbers(
            events in prop::collection::vec((any::<u64>(), 0u64..1 << 50), 1..50),
            heights in prop::collection::vec((any::<u32>(), any::<u64>()), 1..50),
        ) {
            let mut meter = Meter::default();
            for (bytes, time) in events {
                meter.add(bytes, time);
                prop_assert!(meter.rate(time).is_none_or(|rate| rate.is_finite() && rate >= 0.0));
            }
            let mut sizes = Sizes::default();
            for (height, bytes) in heights {
                sizes.add(height, bytes);
                prop_assert!((120..=SIZE_MAX).contains(&sizes.expected(height)));
            }
        }
    }
}
