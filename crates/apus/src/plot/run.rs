//! [`PlottedRun`]: the data of a run that a chart shows, from a report or a log.
//!
//! A run has at least one point and at most [`POINTS_MAX`], since a chart shows no more while logs may have any number.
//! Its times never decrease.

use crate::estimate::keep_every_other;
use crate::failure::Failure;
use apus_sync::numbers::group_digits;
use clap::ValueEnum;

/// Maximum number of points of a run.
pub(super) const POINTS_MAX: usize = 8_192;

/// A run's progress at some time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PlotPoint {
    /// Seconds since the run's start.
    pub(super) seconds: f64,
    /// Blocks connected or processed so far, less those disconnected in a reorganization; or their bytes or
    /// transactions.
    pub(super) height: u64,
}

/// The measure of a run's progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum PlotMeasure {
    /// Heights: all blocks count equally.
    Height,
    /// Bytes of blocks, which are closer to the work.
    Bytes,
    /// Transactions, coinbases included.
    Transactions,
}

impl PlotMeasure {
    /// Returns the measure's name, as used for columns.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Height => "height",
            Self::Bytes => "bytes",
            Self::Transactions => "transactions",
        }
    }
}

/// The scripts that a run executed: they take most of its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScriptsRun {
    /// The scripts of every block.
    All,
    /// The scripts of some blocks at most; the others were assumed valid.
    Assumed,
    /// The file does not say.
    Unknown,
}

impl ScriptsRun {
    /// Whether two runs are known to have executed different scripts.
    pub(super) fn differ(self, other: Self) -> bool {
        self != other && self != Self::Unknown && other != Self::Unknown
    }

    /// Describes the scripts briefly.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::All => "every script run",
            Self::Assumed => "scripts assumed valid",
            Self::Unknown => "scripts unknown",
        }
    }
}

/// The data of a run for a chart.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PlottedRun {
    /// Name in legends.
    pub(super) label: String,
    /// A short description of the program and its options.
    pub(super) detail: String,
    /// The scripts that the run executed.
    pub(super) scripts: ScriptsRun,
    /// Whether the run is from a node's log, which has heights and transactions. A report has heights and bytes.
    pub(super) of_node: bool,
    /// Total time, which may include work after the last block.
    pub(super) total_seconds: f64,
    /// Maximum error of each time.
    pub(super) resolution_seconds: f64,
    /// Height before the first block: above zero for a run that resumed another.
    pub(super) start_height: u64,
    points: Vec<PlotPoint>,
    /// The points that are higher than all previous ones.
    climb: Vec<PlotPoint>,
}

impl PlottedRun {
    /// Creates a run without names. The points must be in the order of time.
    pub(super) fn new(points: Vec<PlotPoint>, start_height: u64) -> Self {
        debug_assert!(points.windows(2).all(|pair| pair[0].seconds <= pair[1].seconds));
        let mut climb: Vec<PlotPoint> = Vec::new();
        for point in &points {
            if climb.last().is_none_or(|last| last.height < point.height) {
                climb.push(*point);
            }
        }
        Self {
            label: String::new(),
            detail: String::new(),
            scripts: ScriptsRun::Unknown,
            of_node: false,
            total_seconds: points.last().map_or(0.0, |point| point.seconds),
            resolution_seconds: 0.0,
            start_height,
            points,
            climb,
        }
    }

    /// Converts the run to another measure: `of` returns the measure of all blocks up to a height.
    pub(super) fn measured(&self, of: impl Fn(u64) -> u64) -> Self {
        let by = |point: &PlotPoint| PlotPoint { height: of(point.height), ..*point };
        let points = self.points.iter().map(by).collect();
        let changed = Self::new(points, of(self.start_height));
        Self {
            points: changed.points,
            climb: changed.climb,
            start_height: changed.start_height,
            ..self.clone()
        }
    }

    /// Returns the points, thinned.
    pub(super) fn points(&self) -> &[PlotPoint] {
        &self.points
    }

    /// Returns the points that are higher than all previous ones.
    pub(super) fn climb(&self) -> &[PlotPoint] {
        &self.climb
    }

    /// Returns the greatest height.
    pub(super) fn height(&self) -> u64 {
        self.climb.last().map_or(0, |point| point.height)
    }

    /// Returns when the run first reached a height, interpolated; `None` if it never did. For the last height, returns
    /// the total time, including work after the last block.
    pub(super) fn seconds_to(&self, height: u64) -> Option<f64> {
        if height == self.height() { Some(self.total_seconds) } else { self.crossing(height) }
    }

    /// Returns when the blocks first reached a height, interpolated; ignores work after the last block.
    pub(super) fn crossing(&self, height: u64) -> Option<f64> {
        let index = self.climb.partition_point(|point| point.height < height);
        let after = self.climb.get(index)?;
        let Some(before) = index.checked_sub(1).map(|index| self.climb[index]) else {
            return Some(after.seconds);
        };
        let share = (height - before.height) as f64 / (after.height - before.height) as f64;
        Some(before.seconds + share * (after.seconds - before.seconds))
    }

    /// Returns the height at a time, interpolated.
    pub(super) fn height_at(&self, seconds: f64) -> f64 {
        let after = self.points.partition_point(|point| point.seconds <= seconds);
        match (after.checked_sub(1).map(|index| self.points[index]), self.points.get(after)) {
            (Some(before), Some(after)) => {
                let share = (seconds - before.seconds) / (after.seconds - before.seconds);
                before.height as f64 + share * (after.height as f64 - before.height as f64)
            }
            (Some(before), None) => before.height as f64,
            (None, after) => after.map_or(0.0, |point| point.height as f64),
        }
    }
}

/// Collects any number of points, and keeps as many as a chart can show: every n-th, the first and the last. Of several
/// points with the same time it keeps the last.
#[derive(Debug)]
pub(super) struct Thinner {
    kept: Vec<PlotPoint>,
    stride: u64,
    /// Points received since the last one kept.
    since_kept: u64,
    last: Option<PlotPoint>,
}

impl Thinner {
    pub(super) fn new() -> Self {
        Self { kept: Vec::new(), stride: 1, since_kept: 0, last: None }
    }

    /// Adds the next point; times must not decrease.
    pub(super) fn push(&mut self, point: PlotPoint) {
        if self.last.is_some_and(|last| last.seconds == point.seconds) {
            self.last = Some(point);
        } else {
            self.keep_last();
            self.last = Some(point);
        }
    }

    fn keep_last(&mut self) {
        let Some(last) = self.last else { return };
        self.since_kept += 1;
        if !self.kept.is_empty() && self.since_kept < self.stride {
            return;
        }
        self.kept.push(last);
        self.since_kept = 0;
        // Leave room for the last point.
        if self.kept.len() == POINTS_MAX - 1 {
            keep_every_other(&mut self.kept);
            self.stride *= 2;
        }
    }

    pub(super) fn finish(mut self) -> Vec<PlotPoint> {
        if let Some(last) = self.last.take() {
            self.kept.push(last);
        }
        self.kept
    }
}

/// Formats the points of runs as CSV: a header line, then a line `label,seconds,height` per point. With another
/// measure, the last column is that one. Quoted as in RFC 4180. Runs with many points are thinned as for charts.
pub(super) fn csv(runs: &[PlottedRun], measure: PlotMeasure) -> String {
    let mut out = format!("label,seconds,{}\n", measure.name());
    for run in runs {
        let plain = !run.label.contains([',', '"', '\n', '\r']);
        let quoted = || format!("\"{}\"", run.label.replace('"', "\"\""));
        let label = if plain { run.label.clone() } else { quoted() };
        for point in &run.points {
            out.push_str(&format!("{label},{},{}\n", point.seconds, point.height));
        }
    }
    out
}

// ---- numbers and times for people ----

/// Formats a number with this many decimals, and groups the digits of its integer part.
pub(super) fn decimal(value: f64, decimals: usize) -> String {
    let text = format!("{:.decimals$}", value.abs());
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let zero = text.bytes().all(|byte| byte == b'0' || byte == b'.');
    let sign = if value < 0.0 && !zero { "−" } else { "" };
    format!("{sign}{}{rest}", group_digits(whole))
}

/// Formats a number with at least three significant digits.
pub(super) fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor() as i32;
    decimal(value, (2 - magnitude).clamp(0, 9) as usize)
}

/// Formats a time in its two largest units.
pub(super) fn duration(seconds: f64) -> String {
    // Round first, so that no minute has 60 seconds.
    if seconds < 0.999_5 {
        format!("{} ms", number(seconds * 1e3))
    } else if seconds < 59.95 {
        format!("{} s", number(seconds))
    } else if seconds < 3_599.5 {
        let rounded = seconds.round();
        format!("{} min {:02} s", (rounded / 60.0).floor(), rounded % 60.0)
    } else {
        let rounded = (seconds / 60.0).round();
        let hours = (rounded / 60.0).floor();
        format!("{} h {:02} min", group_digits(&hours.to_string()), rounded % 60.0)
    }
}

/// Formats a run's total time, no finer than its clock's resolution.
pub(super) fn total(run: &PlottedRun) -> String {
    if run.total_seconds < run.resolution_seconds {
        return format!("< {}", duration(run.resolution_seconds));
    }
    duration(run.total_seconds)
}

/// A comparison of runs with a baseline: how many times faster each reached the same height.
///
/// Runs that began at different heights are not compared, since their times measure different work. Nor are runs with
/// and without all scripts, since that would compare their options. The curves leave out early times: they are mostly
/// startup and rounding.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Comparison {
    /// Index of the run that the others are compared with.
    pub(super) baseline: usize,
    /// For each run, its speedup over the baseline at the highest height that both reached; `None` for a run that
    /// cannot be compared, and for the baseline.
    pub(super) ratios: Vec<Option<f64>>,
    /// For each run, whether it is known to have run different scripts from the baseline.
    pub(super) unlike: Vec<bool>,
}

impl Comparison {
    /// Compares with the run that has this label, or with the slowest.
    pub(super) fn new(runs: &[PlottedRun], baseline: Option<&str>) -> Result<Self, Failure> {
        let baseline = match baseline {
            None => slowest(runs),
            Some(label) => runs.iter().position(|run| run.label == label).ok_or_else(|| {
                let labels: Vec<_> = runs.iter().map(|run| format!("{:?}", run.label)).collect();
                let there = labels.join(", ");
                Failure::usage(format!(
                    "--baseline: no run has the label {label:?}: use one of {there}"
                ))
            })?,
        };
        let others = runs.iter().enumerate();
        let ratios = others.map(|(index, run)| match index == baseline {
            true => None,
            false => ratio(&runs[baseline], run),
        });
        let differs = |run: &PlottedRun| run.scripts.differ(runs[baseline].scripts);
        Ok(Self { baseline, ratios: ratios.collect(), unlike: runs.iter().map(differs).collect() })
    }

    /// A warning if runs did not do the same work.
    pub(super) fn warning(&self, runs: &[PlottedRun]) -> Option<String> {
        let base = &runs[self.baseline];
        let others: Vec<&str> = runs
            .iter()
            .zip(&self.unlike)
            .filter(|(_, unlike)| **unlike)
            .map(|(run, _)| run.label.as_str())
            .collect();
        (!others.is_empty()).then(|| {
            format!(
                "not compared with {} ({}): {}",
                base.label,
                base.scripts.words(),
                others.join(", ")
            )
        })
    }

    /// Formats a ratio, or why there is none.
    pub(super) fn words(&self, index: usize) -> String {
        match self.ratios[index] {
            _ if self.ratios.len() < 2 => String::new(),
            _ if index == self.baseline => "baseline".to_owned(),
            _ if self.unlike[index] => "unlike".to_owned(),
            Some(ratio) => format!("{}×", number(ratio)),
            None => "–".to_owned(),
        }
    }
}

/// Finds the run that took longest to reach the height that all reached, among the runs with the lowest start.
fn slowest(runs: &[PlottedRun]) -> usize {
    let start = runs.iter().map(|run| run.start_height).min().unwrap_or(0);
    let height = runs.iter().map(PlottedRun::height).min().unwrap_or(0);
    let lowest = runs.iter().enumerate().filter(|(_, run)| run.start_height == start);
    let time = |run: &PlottedRun| (run.seconds_to(height).unwrap_or(0.0), run.total_seconds);
    let slower = |a: (f64, f64), b: (f64, f64)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1));
    lowest.max_by(|a, b| slower(time(a.1), time(b.1))).map_or(0, |(index, _)| index)
}

fn comparable_height(base: &PlottedRun, run: &PlottedRun) -> Option<u64> {
    if base.scripts.differ(run.scripts) {
        return None;
    }
    let height = base.height().min(run.height());
    (base.start_height.abs_diff(run.start_height) <= height / 100).then_some(height)
}

fn ratio(base: &PlottedRun, run: &PlottedRun) -> Option<f64> {
    let height = comparable_height(base, run)?;
    let (base_seconds, seconds) = (base.seconds_to(height)?, run.seconds_to(height)?);
    (base_seconds > 0.0 && seconds > 0.0).then(|| base_seconds / seconds)
}

/// Computes the ratio at each time of the baseline, in the order of time. The last one is the ratio of the total times.
pub(super) fn course(base: &PlottedRun, run: &PlottedRun) -> Vec<(f64, f64)> {
    let Some(last) = comparable_height(base, run) else { return Vec::new() };
    let trusted = |run: &PlottedRun| (20.0 * run.resolution_seconds).max(run.total_seconds / 200.0);
    let (base_least, least) = (trusted(base), trusted(run));
    let mut heights: Vec<u64> =
        base.climb().iter().chain(run.climb()).map(|point| point.height).collect();
    heights.sort_unstable();
    heights.dedup();
    let mut course = Vec::new();
    for height in heights.into_iter().filter(|height| *height < last) {
        if let (Some(base_seconds), Some(seconds)) = (base.crossing(height), run.crossing(height))
            && base_seconds >= base_least
            && seconds >= least
        {
            course.push((base_seconds, base_seconds / seconds));
        }
    }
    if let (Some(ratio), Some(seconds)) = (ratio(base, run), base.seconds_to(last)) {
        course.push((seconds, ratio));
    }
    course
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(points: &[(f64, u64)]) -> PlottedRun {
        let point = |&(seconds, height): &(f64, u64)| PlotPoint { seconds, height };
        PlottedRun::new(points.iter().map(point).collect(), 0)
    }

    #[test]
    fn heights_and_times_are_interpolated() {
        let run = run(&[(0.0, 0), (10.0, 100), (30.0, 200)]);
        assert_eq!(run.seconds_to(50), Some(5.0));
        assert_eq!(run.seconds_to(150), Some(20.0));
        assert_eq!(run.seconds_to(200), Some(30.0));
        assert_eq!(run.seconds_to(201), None);
        assert_eq!(
            [-1.0, 0.0, 5.0, 20.0, 99.0].map(|t| run.height_at(t)),
            [0.0, 0.0, 50.0, 150.0, 200.0]
        );
    }

    #[test]
    fn the_whole_time_counts_at_the_last_height_and_a_reorganization_does_not() {
        let mut run = run(&[(0.0, 0), (10.0, 100), (11.0, 90), (20.0, 180)]);
        run.total_seconds = 25.0;
        assert_eq!(run.seconds_to(95), Some(9.5), "when it was first reached");
        assert_eq!(run.seconds_to(180), Some(25.0));
        assert_eq!(run.crossing(180), Some(20.0));
        assert_eq!(run.height(), 180);
    }

    #[test]
    fn a_run_can_be_converted_to_another_measure() {
        let mut run = run(&[(0.0, 0), (10.0, 2), (30.0, 3)]);
        (run.total_seconds, run.scripts) = (40.0, ScriptsRun::All);
        let bytes = run.measured(|height| [0, 5, 7, 1_007][height as usize]);
        assert_eq!(
            (bytes.height(), bytes.total_seconds, bytes.scripts),
            (1_007, 40.0, ScriptsRun::All)
        );
        assert_eq!(bytes.crossing(507), Some(20.0));
    }

    #[test]
    fn runs_differ_only_if_the_scripts_of_both_are_known() {
        assert!(ScriptsRun::All.differ(ScriptsRun::Assumed));
        for (a, b) in [(ScriptsRun::All, ScriptsRun::All), (ScriptsRun::Unknown, ScriptsRun::All)] {
            assert!(!a.differ(b) && !b.differ(a));
        }
    }

    #[test]
    fn numbers_have_three_digits_or_all_they_need() {
        for (value, text) in [
            (0.0, "0"),
            (0.001_234, "0.00123"),
            (0.5, "0.500"),
            (9.996, "10.00"),
            (12.34, "12.3"),
            (123.4, "123"),
            (1_234_567.8, "1,234,568"),
            (-0.004, "−0.00400"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(decimal(-0.004, 2), "0.00");
        assert_eq!(decimal(-1_000.0, 1), "−1,000.0");
    }

    #[test]
    fn times_have_at_most_two_units() {
        for (seconds, text) in [
            (0.0, "0 ms"),
            (0.000_25, "0.250 ms"),
            (0.087, "87.0 ms"),
            (0.999_4, "999 ms"),
            (0.999_6, "1.000 s"),
            (12.34, "12.3 s"),
            (59.96, "1 min 00 s"),
            (83.0, "1 min 23 s"),
            (3_599.4, "59 min 59 s"),
            (3_599.6, "1 h 00 min"),
            (30_932.61, "8 h 36 min"),
            (360_000.0, "100 h 00 min"),
        ] {
            assert_eq!(duration(seconds), text, "{seconds}");
        }
    }

    #[test]
    fn labels_are_quoted_if_necessary() {
        let point = |seconds, height| PlotPoint { seconds, height };
        let mut plain = PlottedRun::new(vec![point(0.0, 0), point(0.25, 7)], 0);
        plain.label = "plain".to_owned();
        let mut odd = PlottedRun::new(vec![point(1e-6, 1)], 0);
        odd.label = "a \"b\", c".to_owned();
        let text = "label,seconds,height\nplain,0,0\nplain,0.25,7\n\"a \"\"b\"\", c\",0.000001,1\n";
        let runs = [plain, odd];
        assert_eq!(csv(&runs, PlotMeasure::Height), text);
        let by_bytes = text.replace("seconds,height", "seconds,bytes");
        assert_eq!(csv(&runs, PlotMeasure::Bytes), by_bytes);
    }

    proptest! {
        #[test]
        fn thinning_keeps_the_ends_and_the_order(count in 0usize..100_000, repeat in 1usize..4) {
            let mut thinner = Thinner::new();
            let point = |index: usize| PlotPoint {
                seconds: (index / repeat) as f64,
                height: index as u64,
            };
            (0..count).for_each(|index| thinner.push(point(index)));
            let kept = thinner.finish();
            let times = count.div_ceil(repeat);
            prop_assert!(kept.len() <= POINTS_MAX);
            prop_assert!(kept.len() >= times.min(POINTS_MAX / 2));
            prop_assert!(kept.windows(2).all(|pair| pair[0].seconds < pair[1].seconds));
            if count > 0 {
                prop_assert_eq!(kept[0], point(count.min(repeat) - 1));
                prop_assert_eq!(kept[kept.len() - 1], point(count - 1));
            }
        }
    }
}

#[cfg(test)]
mod comparison_tests {
    use super::*;
    use crate::plot::run::{PlotPoint, ScriptsRun};
    use proptest::prelude::*;

    fn run(label: &str, start_height: u64, points: &[(f64, u64)]) -> PlottedRun {
        let point = |&(seconds, height): &(f64, u64)| PlotPoint { seconds, height };
        let mut run = PlottedRun::new(points.iter().map(point).collect(), start_height);
        run.label = label.to_owned();
        run
    }

    #[test]
    fn the_slowest_is_the_baseline_unless_another_is_named() {
        let runs = [
            run("a", 0, &[(0.0, 0), (100.0, 1000)]),
            run("b", 0, &[(0.0, 0), (400.0, 1000)]),
            run("c", 0, &[(0.0, 0), (200.0, 500)]),
        ];
        let comparison = Comparison::new(&runs, None).unwrap();
        assert_eq!(comparison.baseline, 1, "as slow as c to height 500, and longer in all");
        let comparison = Comparison::new(&runs, Some("a")).unwrap();
        assert_eq!(comparison.ratios, [None, Some(0.25), Some(0.25)]);
        assert_eq!(comparison.words(0), "baseline");
        assert_eq!(comparison.words(1), "0.250×");
        let error = Comparison::new(&runs, Some("d")).unwrap_err();
        assert_eq!(
            error.message,
            "--baseline: no run has the label \"d\": use one of \"a\", \"b\", \"c\""
        );
        assert_eq!(Comparison::new(&runs[..1], None).unwrap().words(0), "");
    }

    #[test]
    fn time_after_the_last_block_counts_in_the_total() {
        let base = run("base", 0, &[(0.0, 0), (100.0, 1000)]);
        let mut fast = run("fast", 0, &[(0.0, 0), (4.0, 1000)]);
        fast.total_seconds = 5.0;
        let course = course(&base, &fast);
        assert_eq!(course.last(), Some(&(100.0, 20.0)));
        assert_eq!(Comparison::new(&[base, fast], None).unwrap().ratios, [None, Some(20.0)]);
    }

    #[test]
    fn a_run_with_another_start_height_is_not_compared() {
        let whole = run("whole", 0, &[(0.0, 0), (100.0, 1000)]);
        let rest = run("rest", 600, &[(0.0, 600), (500.0, 1000)]);
        assert_eq!(course(&whole, &rest), []);
        let comparison = Comparison::new(&[rest, whole], None).unwrap();
        assert_eq!((comparison.baseline, comparison.ratios[0]), (1, None));
        assert_eq!(comparison.words(0), "–");
    }

    #[test]
    fn times_within_the_clocks_rounding_are_left_out() {
        let line = |seconds: f64| -> Vec<(f64, u64)> {
            (0..=100).map(|step| (seconds * step as f64 / 100.0, step * 10)).collect()
        };
        let base = run("base", 0, &line(1000.0));
        let mut coarse = run("coarse", 0, &line(100.0));
        coarse.resolution_seconds = 1.0;
        let course = course(&base, &coarse);
        assert!(course.iter().all(|(seconds, _)| *seconds >= 200.0), "{course:?}");
        assert!(course.iter().all(|(_, ratio)| (ratio - 10.0).abs() < 1e-9), "{course:?}");
        coarse.resolution_seconds = 60.0;
        assert_eq!(super::course(&base, &coarse).len(), 1, "the whole is always there");
    }

    #[test]
    fn runs_with_different_scripts_are_not_compared() {
        let mut runs =
            [run("core", 0, &[(0.0, 0), (60.0, 100)]), run("ours", 0, &[(0.0, 0), (2.0, 100)])];
        let compare = |runs: &[PlottedRun]| Comparison::new(runs, None).unwrap();
        assert_eq!(compare(&runs).words(1), "30.0×", "neither file says which scripts ran");
        assert_eq!(compare(&runs).warning(&runs), None);
        (runs[0].scripts, runs[1].scripts) = (ScriptsRun::All, ScriptsRun::Assumed);
        let unlike = compare(&runs);
        assert_eq!((unlike.words(0), unlike.words(1)), ("baseline".into(), "unlike".into()));
        assert_eq!(course(&runs[0], &runs[1]), []);
        let said = unlike.warning(&runs).unwrap();
        assert_eq!(said, "not compared with core (every script run): ours");
        runs[1].scripts = ScriptsRun::All;
        assert_eq!(compare(&runs).words(1), "30.0×");
    }

    proptest! {
        #[test]
        fn ratios_are_positive_and_invert(
            a in prop::collection::vec((0.001..1e5, 0u64..1_000_000), 1..50),
            b in prop::collection::vec((0.001..1e5, 0u64..1_000_000), 1..50),
        ) {
            let sorted = |mut points: Vec<(f64, u64)>| {
                points.sort_by(|a, b| a.0.total_cmp(&b.0));
                run("run", 0, &points)
            };
            let (a, b) = (sorted(a), sorted(b));
            let course = course(&a, &b);
            prop_assert!(course.iter().all(|(_, ratio)| *ratio > 0.0 && ratio.is_finite()));
            prop_assert!(course.windows(2).all(|pair| pair[0].0 <= pair[1].0));
            let (there, back) = (ratio(&a, &b).unwrap(), ratio(&b, &a).unwrap());
            prop_assert!((there * back - 1.0).abs() < 1e-9);
        }
    }
}
