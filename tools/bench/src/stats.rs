//! [`Spread`]: a few measurements of one thing, told as median, least and greatest.
//!
//! No mean and no deviation: the errors of timings go one way, and five runs have no distribution.

use serde::{Deserialize, Serialize};

/// Measurements in short.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle one, or between the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Of some measurements; none of none, or where one is no number.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.iter().any(|value| value.is_nan()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            sorted[middle - 1].midpoint(sorted[middle])
        };
        Some(Self { median, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_ones() {
        let spread = |values: &[f64]| Spread::of(values).map(|s| [s.median, s.min, s.max]);
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[1.0, f64::NAN]), None);
        assert_eq!(spread(&[3.0]), Some([3.0; 3]));
        assert_eq!(spread(&[4.0, 1.0]), Some([2.5, 1.0, 4.0]));
        assert_eq!(spread(&[9.0, 1.0, 2.0]), Some([2.0, 1.0, 9.0]));
        assert_eq!(spread(&[9.0, 1.0, 2.0, 3.0]), Some([2.5, 1.0, 9.0]));
    }

    proptest! {
        #[test]
        fn half_lies_on_each_side_whatever_the_order(
            values in prop::collection::vec(-1e9..1e9, 1..20),
            cut in any::<prop::sample::Index>(),
        ) {
            let spread = Spread::of(&values).unwrap();
            let below = values.iter().filter(|value| **value < spread.median).count();
            let above = values.iter().filter(|value| **value > spread.median).count();
            prop_assert!(below * 2 <= values.len() && above * 2 <= values.len());
            prop_assert!(values.contains(&spread.min) && values.contains(&spread.max));
            prop_assert!(values.iter().all(|v| (spread.min..=spread.max).contains(v)));
            let mut turned = values.clone();
            turned.rotate_left(cut.index(values.len()));
            prop_assert_eq!(Spread::of(&turned), Some(spread));
        }
    }
}
