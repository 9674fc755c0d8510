//! Tests [`Meter`] and [`Sizes`] on their own.

use super::super::peers::{Meter, Sizes};
use super::*;
use proptest::prelude::*;

#[test]
fn a_steady_rate_is_measured_at_once_and_kept() {
    let mut meter = Meter::default();
    assert_eq!(meter.rate(0), None);
    for _ in 0..100 {
        meter.add(5_000, 10);
        assert!((meter.rate(0).unwrap() - 500.0).abs() < 1e-6);
    }
}

#[test]
fn the_rate_follows_changes_and_silence_lowers_it() {
    let mut meter = Meter::default();
    (0..1_000).for_each(|_| meter.add(5_000, 10));
    (0..4_000).for_each(|_| meter.add(500, 10));
    let rate = meter.rate(0).unwrap();
    assert!((49.0..65.0).contains(&rate), "{rate}");
    assert!(meter.rate(8_000).unwrap() < rate / 1.4);
}

#[test]
fn bytes_without_time_cause_no_division_by_zero() {
    let mut meter = Meter::default();
    meter.add(1_000, 0);
    assert_eq!(meter.rate(0), Some(1_000.0));
}

#[test]
fn sizes_start_at_a_megabyte_and_depend_on_height() {
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
    fn rates_are_always_finite(
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
