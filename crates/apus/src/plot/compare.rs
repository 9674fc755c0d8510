//! [`Comparison`]: how many times as fast as one run the others are.
//!
//! Times to the same height are divided. Runs that began at different heights are not compared: the
//! clock of one of them began where the other had long been. Neither are those of which one ran all scripts
//! and the other did not: that would compare what they were asked, and not what they are. Early times, which are mostly
//! beginnings and rounding, are left out of courses.

use super::run::{PlottedRun, number};
use crate::failure::Failure;

/// Runs beside one of them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Comparison {
    /// Which of the runs the others are compared with.
    pub(super) baseline: usize,
    /// For each run how many times as fast as the baseline it was to the greatest height that both
    /// reached; none for one that cannot be compared, and for the baseline.
    pub(super) ratios: Vec<Option<f64>>,
    /// For each run whether it is known to have run other scripts than the baseline.
    pub(super) unlike: Vec<bool>,
}

impl Comparison {
    /// Compares with the run of this label, or with the slowest.
    pub(super) fn new(runs: &[PlottedRun], baseline: Option<&str>) -> Result<Self, Failure> {
        let baseline = match baseline {
            None => slowest(runs),
            Some(label) => runs.iter().position(|run| run.label == label).ok_or_else(|| {
                let labels: Vec<_> = runs.iter().map(|run| format!("{:?}", run.label)).collect();
                let there = labels.join(", ");
                Failure::usage(format!("--baseline: no run is called {label:?}: there are {there}"))
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

    /// What is to be said where runs did not do the same; none where they did.
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

    /// A ratio in words, or why there is none.
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

/// The one with the greatest time to the height that all reached, of those that began lowest.
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

/// The ratio at each time of the baseline, in the order of time. Ends with the ratio of the whole.
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
            "--baseline: no run is called \"d\": there are \"a\", \"b\", \"c\""
        );
        assert_eq!(Comparison::new(&runs[..1], None).unwrap().words(0), "");
    }

    #[test]
    fn what_follows_the_last_block_counts_in_the_end() {
        let base = run("base", 0, &[(0.0, 0), (100.0, 1000)]);
        let mut fast = run("fast", 0, &[(0.0, 0), (4.0, 1000)]);
        fast.total_seconds = 5.0;
        let course = course(&base, &fast);
        assert_eq!(course.last(), Some(&(100.0, 20.0)));
        assert_eq!(Comparison::new(&[base, fast], None).unwrap().ratios, [None, Some(20.0)]);
    }

    #[test]
    fn a_run_that_began_elsewhere_is_not_compared() {
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
    fn runs_that_ran_other_scripts_are_not_compared() {
        let mut runs =
            [run("core", 0, &[(0.0, 0), (60.0, 100)]), run("ours", 0, &[(0.0, 0), (2.0, 100)])];
        let compare = |runs: &[PlottedRun]| Comparison::new(runs, None).unwrap();
        assert_eq!(compare(&runs).words(1), "30.0×", "neither says what it ran");
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
        fn ratios_are_positive_and_turn_around(
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
