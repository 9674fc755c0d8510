//! [`Scale`]: from values to pixels, and the ticks that people can read off.
//!
//! Ticks lie within their scale, in ascending order, at round values. What a value means, and its
//! unit, is for the caller.

use super::words;

/// How values are spread over an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spacing {
    Linear,
    /// Equal ratios are equally long; both ends are above zero.
    Log,
}

/// An axis: values `from` to `to`, the former less than the latter, lie at these pixels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    spacing: Spacing,
    from: f64,
    to: f64,
    pixels: (f64, f64),
}

/// A place on an axis with its words.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tick {
    pub(super) at: f64,
    pub(super) label: String,
}

impl Scale {
    pub(super) fn new(spacing: Spacing, (from, to): (f64, f64), pixels: (f64, f64)) -> Self {
        debug_assert!(from < to && (spacing == Spacing::Linear || from > 0.0), "{from} to {to}");
        Self { spacing, from, to, pixels }
    }

    fn stretched(&self, value: f64) -> f64 {
        match self.spacing {
            Spacing::Linear => value,
            Spacing::Log => value.max(f64::MIN_POSITIVE).log10(),
        }
    }

    /// The pixel of a value; of the nearer end for one outside.
    pub(super) fn at(&self, value: f64) -> f64 {
        let [from, to] = [self.from, self.to].map(|value| self.stretched(value));
        let share = ((self.stretched(value) - from) / (to - from)).clamp(0.0, 1.0);
        self.pixels.0 + share * (self.pixels.1 - self.pixels.0)
    }

    fn ticks_at(
        &self,
        values: impl IntoIterator<Item = f64>,
        label: impl Fn(f64) -> String,
    ) -> Vec<Tick> {
        // Rounding errors of a sum of steps must not cost the last tick.
        let slack = (self.to - self.from) * 1e-9;
        values
            .into_iter()
            .filter(|value| (self.from - slack..=self.to + slack).contains(value))
            .map(|value| Tick { at: self.at(value), label: label(value) })
            .collect()
    }

    /// Ticks of plain numbers, at most `count_max` where the scale is linear.
    pub(super) fn number_ticks(&self, count_max: usize) -> Vec<Tick> {
        match self.spacing {
            Spacing::Linear => {
                let step = round_step(self.to - self.from, count_max);
                self.ticks_at(multiples(step, self.from, self.to), |v| words::tick(v, step))
            }
            Spacing::Log => {
                let (from, to) = (self.from.log10().floor(), self.to.log10().ceil());
                let decades = (from as i32)..=(to as i32);
                let many = to - from > 3.0;
                let within: &[f64] = if many { &[1.0] } else { &[1.0, 2.0, 5.0] };
                let values = decades.flat_map(|ten| within.iter().map(move |d| d * power(ten)));
                self.ticks_at(values, |value| words::tick(value, value))
            }
        }
    }

    /// Ticks of seconds, with their units, on a logarithmic scale.
    pub(super) fn time_ticks(&self) -> Vec<Tick> {
        let shown = match self.to / self.from {
            ratio if ratio < 300.0 => [true, false, true],
            ratio if ratio < 3e4 => [true, true, false],
            _ => [true, false, false],
        };
        let marks = || TIMES.iter().filter(|mark| shown[mark.2]);
        let name = |value: f64| marks().find(|mark| mark.0 == value).map_or("", |mark| mark.1);
        self.ticks_at(marks().map(|mark| mark.0), |value| name(value).to_owned())
    }
}

/// Times for ticks. The last number says where they stand: 0 always, 1 where these are far apart,
/// 2 where they are further.
const TIMES: [(f64, &str, usize); 36] = [
    (0.001, "1 ms", 0),
    (0.002, "2 ms", 2),
    (0.003, "3 ms", 1),
    (0.005, "5 ms", 2),
    (0.01, "10 ms", 0),
    (0.02, "20 ms", 2),
    (0.03, "30 ms", 1),
    (0.05, "50 ms", 2),
    (0.1, "100 ms", 0),
    (0.2, "200 ms", 2),
    (0.3, "300 ms", 1),
    (0.5, "500 ms", 2),
    (1.0, "1 s", 0),
    (2.0, "2 s", 2),
    (3.0, "3 s", 1),
    (5.0, "5 s", 2),
    (10.0, "10 s", 0),
    (20.0, "20 s", 2),
    (30.0, "30 s", 1),
    (60.0, "1 min", 0),
    (120.0, "2 min", 2),
    (180.0, "3 min", 1),
    (300.0, "5 min", 2),
    (600.0, "10 min", 0),
    (1_200.0, "20 min", 2),
    (1_800.0, "30 min", 1),
    (3_600.0, "1 h", 0),
    (7_200.0, "2 h", 2),
    (10_800.0, "3 h", 1),
    (18_000.0, "5 h", 2),
    (36_000.0, "10 h", 0),
    (86_400.0, "1 d", 1),
    (2.0 * 86_400.0, "2 d", 2),
    (4.0 * 86_400.0, "4 d", 0),
    (40.0 * 86_400.0, "40 d", 0),
    (400.0 * 86_400.0, "400 d", 0),
];

/// Multiples of `step` from `from` to `to`, with room for rounding at the end.
fn multiples(step: f64, from: f64, to: f64) -> impl Iterator<Item = f64> {
    let first = (from / step - 1e-9).ceil();
    let count = ((to / step + 1e-9).floor() - first).max(0.0) as usize;
    (0..=count).map(move |index| (first + index as f64) * step)
}

fn power(ten: i32) -> f64 {
    10f64.powi(ten)
}

/// The smallest of 1, 2, 5, 10, … that divides `length` into no more than `count_max` steps.
pub(super) fn round_step(length: f64, count_max: usize) -> f64 {
    let least = length / count_max.max(1) as f64;
    let decade = power(least.log10().floor() as i32);
    let steps = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * decade);
    // By a hair too small from rounding is as good.
    steps.into_iter().find(|step| *step >= least * (1.0 - 1e-9)).unwrap_or(10.0 * decade)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(ticks: &[Tick]) -> Vec<&str> {
        ticks.iter().map(|tick| tick.label.as_str()).collect()
    }

    #[test]
    fn steps_are_round() {
        for (length, count, step) in [
            (10.0, 5, 2.0),
            (886_000.0, 6, 200_000.0),
            (0.87, 5, 0.2),
            (1.0, 1, 1.0),
            (7.0, 7, 1.0),
        ] {
            assert!((round_step(length, count) - step).abs() < 1e-9 * step, "{length} {count}");
        }
    }

    #[test]
    fn ticks_read_well() {
        let linear = |from, to, count| {
            let scale = Scale::new(Spacing::Linear, (from, to), (0.0, 100.0));
            scale.number_ticks(count)
        };
        let heights = linear(0.0, 900_000.0, 5);
        assert_eq!(labels(&heights), ["0", "200,000", "400,000", "600,000", "800,000"]);
        assert_eq!(labels(&linear(0.0, 0.5, 5)), ["0", "0.1", "0.2", "0.3", "0.4", "0.5"]);
        assert_eq!(labels(&linear(0.9, 2.1, 4)), ["1.0", "1.5", "2.0"]);
        let log = |from, to| Scale::new(Spacing::Log, (from, to), (0.0, 100.0));
        assert_eq!(labels(&log(0.9, 30.0).number_ticks(0)), ["1", "2", "5", "10", "20"]);
        assert_eq!(
            labels(&log(0.5, 20_000.0).number_ticks(0)),
            ["1", "10", "100", "1,000", "10,000"]
        );
        assert_eq!(
            labels(&log(0.8, 4_000.0).time_ticks()),
            ["1 s", "3 s", "10 s", "30 s", "1 min", "3 min", "10 min", "30 min", "1 h"]
        );
        assert_eq!(
            labels(&log(0.05, 1e5).time_ticks()),
            ["100 ms", "1 s", "10 s", "1 min", "10 min", "1 h", "10 h"]
        );
        assert_eq!(labels(&log(0.8, 12.0).time_ticks()), ["1 s", "2 s", "5 s", "10 s"]);
    }

    #[test]
    fn equal_ratios_are_equally_long_on_a_logarithmic_scale() {
        let scale = Scale::new(Spacing::Log, (1.0, 100.0), (0.0, 200.0));
        assert_eq!([1.0, 10.0, 100.0].map(|v| scale.at(v)), [0.0, 100.0, 200.0]);
        assert_eq!([0.0, 1e9].map(|v| scale.at(v)), [0.0, 200.0], "no further than the ends");
    }

    proptest! {
        #[test]
        fn ticks_ascend_within_the_scale(
            from in -1e9..1e9, length in 1e-6..1e9, count in 1usize..12,
        ) {
            let scale = Scale::new(Spacing::Linear, (from, from + length), (10.0, 500.0));
            let ticks = scale.number_ticks(count);
            // One less where neither end is round.
            prop_assert!(ticks.len() <= count + 1, "{} ticks", ticks.len());
            prop_assert!(ticks.iter().all(|tick| (10.0..=500.0).contains(&tick.at)));
            prop_assert!(ticks.windows(2).all(|pair| pair[0].at < pair[1].at));
        }

        #[test]
        fn places_follow_values(a in 1e-3..1e9, b in 1e-3..1e9, log: bool) {
            let spacing = if log { Spacing::Log } else { Spacing::Linear };
            let scale = Scale::new(spacing, (1e-3, 1e9), (500.0, 0.0));
            let (low, high) = if a < b { (a, b) } else { (b, a) };
            prop_assert!(scale.at(low) >= scale.at(high));
        }
    }
}
