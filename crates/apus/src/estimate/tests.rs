//! Compares estimates with jobs of known rates.

use super::*;
use proptest::prelude::*;

/// The processor time of a phase in which no thread waited.
const BUSY: f64 = f64::INFINITY;

fn blocks(done: u64, total: u64) -> Progress {
    of_size(1_000_000_000, done, total)
}

/// Returns progress over blocks of `size` bytes each.
fn of_size(size: u64, done: u64, total: u64) -> Progress {
    let (bytes, bytes_total) = (size * done, size * total);
    Progress { blocks: done, blocks_total: total, bytes, bytes_total, ..Progress::default() }
}

fn hinted() -> ProgressEstimate {
    ProgressEstimate::new(
        expected(RunMethod::Hints { connects: true }, false, true, Writes::Files),
        2,
    )
}

fn to_chainstate() -> ProgressEstimate {
    ProgressEstimate::new(
        expected(RunMethod::Hints { connects: false }, false, true, Writes::Coins),
        2,
    )
}

fn phases(estimate: &ProgressEstimate) -> Vec<&'static str> {
    estimate.steps().iter().map(|step| step.phase.name()).collect()
}

/// Runs a phase at an even rate, with a report every tenth of a second.
fn run(estimate: &mut ProgressEstimate, phase: Phase, from: f64, seconds: f64, total: u64) {
    estimate.started(phase, from);
    for tenth in 0..=(10.0 * seconds) as u64 {
        let now = tenth as f64 / 10.0;
        let done = (total as f64 * now / seconds) as u64;
        estimate.progress(phase, from + now, blocks(done, total), BUSY);
        estimate.keep();
    }
    estimate.ended(phase, from + seconds, total, BUSY);
    estimate.keep();
}

#[test]
fn skipped_phases_are_dropped_and_unexpected_ones_added() {
    let mut estimate = hinted();
    assert_eq!(phases(&estimate), ["headers", "hints", "blocks", "connect", "coins"]);
    estimate.started(Phase::Headers, 0.0);
    estimate.ended(Phase::Headers, 0.1, 1, BUSY);
    estimate.ahead(Phase::Connect, blocks(0, 10));
    estimate.started(Phase::Blocks, 0.1);
    assert_eq!(phases(&estimate), ["headers", "blocks", "connect", "coins"]);
    estimate.ended(Phase::Blocks, 0.2, 1, BUSY);
    estimate.started(Phase::Index, 0.2);
    assert_eq!(phases(&estimate), ["headers", "blocks", "index", "connect", "coins"]);
    estimate.ended(Phase::Index, 0.3, 1, BUSY);
    estimate.started(Phase::Coins, 0.3);
    assert_eq!(phases(&estimate), ["headers", "blocks", "index", "coins"]);
    estimate.ended(Phase::Coins, 0.4, 1, BUSY);
    assert_eq!(estimate.fraction(), 1.0);
    // Without blocks above the hints, the job skips the connect phase.
    let mut estimate = hinted();
    estimate.started(Phase::Blocks, 0.0);
    assert_eq!(phases(&estimate), ["blocks", "coins"]);
}

#[test]
fn time_left_covers_all_phases() {
    let mut estimate = to_chainstate();
    run(&mut estimate, Phase::Headers, 0.0, 1.0, 10);
    estimate.started(Phase::Blocks, 1.0);
    for second in 0..=50 {
        estimate.progress(Phase::Blocks, 1.0 + second as f64, blocks(second, 100), BUSY);
    }
    // The blocks need another fifty seconds. They are a sixth slower than on the reference machine, so the estimate
    // assumes the same of coins.
    let step = estimate.running().expect("blocks run");
    assert!((step.left_seconds().expect("it has a rate") - 50.0).abs() < 1.5);
    let left = estimate.left_seconds().expect("it has a rate");
    assert!((left - 63.3).abs() < 3.0, "{left}");
    let fraction = estimate.fraction();
    assert!((fraction - 51.0 / 114.3).abs() < 0.03, "{fraction}");
}

#[test]
fn a_rate_covers_the_last_minute() {
    let mut estimate = ProgressEstimate::new(vec![ExpectedPhase::of(Phase::Blocks)], 1);
    estimate.started(Phase::Blocks, 0.0);
    let mut done = 0;
    for second in 0..200 {
        done += if second < 100 { 10 } else { 1 };
        estimate.progress(Phase::Blocks, f64::from(second), blocks(done, 10_000), BUSY);
    }
    let rate = estimate.running().expect("blocks run").rate();
    assert!((rate.blocks - 1.0).abs() < 0.05, "{rate:?}");
}

#[test]
fn work_of_an_earlier_start_does_not_count_as_rate() {
    let mut estimate = ProgressEstimate::new(vec![ExpectedPhase::of(Phase::Blocks)], 1);
    estimate.started(Phase::Blocks, 0.0);
    for second in 0..=10 {
        estimate.progress(
            Phase::Blocks,
            f64::from(second),
            blocks(900 + second as u64, 1000),
            BUSY,
        );
    }
    assert!((estimate.fraction() - 0.91).abs() < 0.001);
    assert!((estimate.left_seconds().expect("it has a rate") - 90.0).abs() < 2.0);
}

#[test]
fn weights_take_precedence_over_blocks_and_bytes() {
    let mut step = PhaseStep::new(ExpectedPhase::of(Phase::Blocks));
    step.state = StepState::Running;
    let all = Progress { weight: 1, weight_total: 10, bytes: 5, blocks: 5, ..blocks(5, 10) };
    step.note(1.0, all);
    assert_eq!(step.fraction(), Some(0.1));
    step.note(1.0, Progress { weight_total: 0, bytes_total: 20, ..all });
    assert_eq!(step.fraction(), Some(0.25));
    step.note(1.0, Progress { bytes: 7, ..Progress::default() });
    assert_eq!(step.fraction(), None);
}

#[test]
fn blocks_above_hints_are_a_phase_of_their_own() {
    let mut estimate = hinted();
    estimate.ahead(Phase::Connect, blocks(0, 100));
    run(&mut estimate, Phase::Blocks, 0.0, 10.0, 900);
    estimate.started(Phase::Connect, 10.0);
    // The counts include the blocks below the hints' end.
    estimate.progress(Phase::Connect, 10.0, blocks(900, 1000), BUSY);
    assert_eq!(estimate.running().expect("it runs").fraction(), Some(0.0));
    estimate.progress(Phase::Connect, 20.0, blocks(950, 1000), BUSY);
    assert_eq!(estimate.running().expect("it runs").fraction(), Some(0.5));
}

#[test]
fn a_slow_network_does_not_make_the_machine_look_slow() {
    let mut estimate = to_chainstate();
    estimate.started(Phase::Blocks, 0.0);
    for second in 0..=50 {
        // The two threads work one second in fifty.
        let (now, cpu) = (second as f64, second as f64 / 25.0);
        estimate.progress(Phase::Blocks, now, of_size(10_000_000, second, 100), cpu);
    }
    let left = estimate.left_seconds().expect("it has a rate");
    assert!((50.0..57.0).contains(&left), "{left}");
}

/// A phase that pauses between two batches of blocks stays one phase, and its pause does not count.
#[test]
fn phases_continue_with_the_next_batch() {
    let expected = expected(RunMethod::Join, false, true, Writes::Files);
    let count = expected.len();
    let mut estimate = ProgressEstimate::new(expected, 1);
    let mut now = 0.0;
    for batch in 1..=4 {
        for phase in [Phase::Blocks, Phase::Join, Phase::Connect] {
            estimate.started(phase, now);
            for tenth in 0..=10 {
                let done = 10 * (batch - 1) + tenth;
                estimate.progress(phase, now + 0.5 * tenth as f64, of_size(1_000, done, 40), BUSY);
            }
            now += 5.0;
            match batch {
                4 => estimate.ended(phase, now, 0, BUSY),
                _ => estimate.paused(phase, now, BUSY),
            }
            let step = estimate.steps().iter().find(|step| step.phase == phase);
            let step = step.expect("it stays");
            assert_eq!(step.fraction(), Some(f64::from(batch as u32) / 4.0));
            assert!((step.seconds - 5.0 * f64::from(batch as u32)).abs() < 0.001);
        }
        assert!(estimate.steps().len() <= count, "{:?}", estimate.steps());
        let fraction = estimate.fraction();
        let about = f64::from(batch as u32) / 4.0;
        assert!((about - 0.15..=about).contains(&fraction), "{batch}: {fraction}");
    }
}

/// A recorded job: its input, and the duration of each phase in seconds.
struct Seen {
    name: &'static str,
    way: RunMethod,
    scripts: bool,
    writes: Writes,
    threads: usize,
    block_bytes: u64,
    coins: u64,
    phases: &'static [(Phase, f64)],
}

const HINTS: RunMethod = RunMethod::Hints { connects: true };

/// Recorded jobs: two-thread jobs of release builds, from `bench/runs`; and single-thread jobs of a test build, in
/// processor time, that write a data directory, and chainstates with some and with many coins.
const SEEN: &[Seen] = &[
    Seen {
        name: "joined, Zen 3",
        way: RunMethod::Join,
        scripts: false,
        writes: Writes::Files,
        threads: 2,
        block_bytes: 1_141_796_832,
        coins: 1_351_716,
        phases: &[
            (Phase::Blocks, 1.85),
            (Phase::Join, 1.55),
            (Phase::Connect, 0.24),
            (Phase::Coins, 0.14),
        ],
    },
    Seen {
        name: "in order, Zen 3",
        way: RunMethod::Order,
        scripts: false,
        writes: Writes::Files,
        threads: 2,
        block_bytes: 1_141_796_832,
        coins: 1_351_716,
        phases: &[(Phase::Connect, 8.69), (Phase::Coins, 1.14)],
    },
    Seen {
        name: "by hints, few coins",
        way: HINTS,
        scripts: false,
        writes: Writes::Files,
        threads: 2,
        block_bytes: 7_970_755_883,
        coins: 1_772_422,
        phases: &[(Phase::Blocks, 3.73), (Phase::Coins, 0.14)],
    },
    Seen {
        name: "joined, all scripts",
        way: RunMethod::Join,
        scripts: true,
        writes: Writes::Files,
        threads: 2,
        block_bytes: 226_828_464,
        coins: 433_457,
        phases: &[
            (Phase::Blocks, 0.27),
            (Phase::Join, 0.17),
            (Phase::Connect, 19.98),
            (Phase::Coins, 0.17),
        ],
    },
    Seen {
        name: "a data directory",
        way: RunMethod::Join,
        scripts: false,
        writes: Writes::AllBlocks,
        threads: 1,
        block_bytes: 1_141_796_832,
        coins: 1_351_716,
        phases: &[
            (Phase::Blocks, 6.14),
            (Phase::Join, 1.56),
            (Phase::Connect, 3.13),
            (Phase::Coins, 0.47),
            (Phase::Index, 0.02),
            (Phase::CheckCoins, 1.46),
            (Phase::CheckBlocks, 7.47),
        ],
    },
    Seen {
        name: "a chainstate without hints",
        way: RunMethod::Join,
        scripts: false,
        writes: Writes::Coins,
        threads: 1,
        block_bytes: 1_141_796_832,
        coins: 1_351_716,
        phases: &[
            (Phase::Blocks, 4.71),
            (Phase::Join, 1.67),
            (Phase::Connect, 0.28),
            (Phase::Coins, 0.49),
            (Phase::CheckCoins, 1.35),
        ],
    },
    Seen {
        name: "a chainstate of many coins",
        way: RunMethod::Join,
        scripts: false,
        writes: Writes::Coins,
        threads: 1,
        block_bytes: 337_534_543,
        coins: 6_000_739,
        phases: &[
            (Phase::Blocks, 2.15),
            (Phase::Join, 1.76),
            (Phase::Connect, 1.19),
            (Phase::Coins, 1.09),
            (Phase::CheckCoins, 2.47),
        ],
    },
    Seen {
        name: "a chainstate by hints",
        way: HINTS,
        scripts: false,
        writes: Writes::Coins,
        threads: 1,
        block_bytes: 1_141_796_832,
        coins: 1_351_716,
        phases: &[(Phase::Blocks, 3.08), (Phase::Coins, 0.41), (Phase::CheckCoins, 1.24)],
    },
];

impl Seen {
    /// The progress that a phase reports when `fraction` of its work is done.
    fn progress(&self, phase: Phase, fraction: f64) -> Progress {
        let of = |all: u64| (all as f64 * fraction) as u64;
        match phase {
            Phase::Coins | Phase::CheckCoins => {
                Progress { coins: of(self.coins), coins_total: self.coins, ..Progress::default() }
            }
            Phase::Blocks | Phase::Connect => Progress {
                bytes: of(self.block_bytes),
                bytes_total: self.block_bytes,
                coins_about: of(self.coins),
                ..Progress::default()
            },
            _ => Progress { bytes: of(1 << 30), bytes_total: 1 << 30, ..Progress::default() },
        }
    }

    /// Replays the job, and passes each moment to `look`: the seconds passed, and the estimate.
    fn replay(&self, look: &mut dyn FnMut(f64, &ProgressEstimate)) {
        let expected = expected(self.way, self.scripts, true, self.writes);
        let (mut estimate, mut from) = (ProgressEstimate::new(expected, self.threads), 0.0);
        for (phase, seconds) in self.phases {
            estimate.started(*phase, from);
            for hundredth in 0..=100 {
                let fraction = f64::from(hundredth) / 100.0;
                let now = from + seconds * fraction;
                estimate.progress(*phase, now, self.progress(*phase, fraction), BUSY);
                estimate.keep();
                look(now, &estimate);
            }
            from += seconds;
            estimate.ended(*phase, from, 0, BUSY);
        }
    }
}

/// After a tenth of the time, the estimated time left is within a factor of two, or within half a second.
#[test]
fn time_left_of_real_jobs_is_within_a_factor_of_two() {
    for seen in SEEN {
        let all: f64 = seen.phases.iter().map(|(_, seconds)| seconds).sum();
        let (name, mut checked) = (seen.name, 0);
        seen.replay(&mut |seconds, estimate| {
            let (right, fraction) = (all - seconds, estimate.fraction());
            let Some(left) = estimate.left_seconds().filter(|_| seconds >= 0.1 * all) else {
                return;
            };
            let is_near = left <= 2.0 * right + 0.5 && right <= 2.0 * left + 0.5;
            assert!(is_near, "{name}: {left:.1} s, not {right:.1} s, after {seconds:.1} s");
            let is_fair = (fraction - seconds / all).abs() < 0.2;
            assert!(is_fair, "{name}: {fraction} after {seconds:.1} s of {all:.1} s");
            checked += 1;
        });
        assert!(checked > 80, "{name}: there were {checked} estimates");
    }
}

proptest! {
    #[test]
    fn a_percentage_never_decreases_and_ends_at_100(
        lengths in prop::collection::vec((1u64..40, 1u64..1000), 5),
    ) {
        let mut estimate = hinted();
        let (mut from, mut last) = (0.0, 0.0);
        let order = [Phase::Headers, Phase::Hints, Phase::Blocks, Phase::Connect, Phase::Coins];
        for (phase, (tenths, total)) in order.into_iter().zip(lengths) {
            estimate.started(phase, from);
            for tenth in 0..=tenths {
                let done = total * tenth / tenths;
                estimate.progress(phase, from + tenth as f64 / 10.0, blocks(done, total), BUSY);
                let fraction = estimate.fraction();
                prop_assert!(fraction >= last && fraction <= 1.0, "{fraction} after {last}");
                estimate.keep();
                last = fraction;
            }
            from += tenths as f64 / 10.0;
            estimate.ended(phase, from, total, BUSY);
        }
        prop_assert!((estimate.fraction() - 1.0).abs() < 1e-9);
    }
}

/// Chains of the same size can differ widely in their number of coins, and the time to read coins back is proportional
/// to it.
#[test]
fn many_coins_take_longer_than_few() {
    let left = |coins_about: u64| {
        let mut estimate =
            ProgressEstimate::new(expected(RunMethod::Join, false, true, Writes::Coins), 2);
        estimate.started(Phase::Blocks, 0.0);
        for second in 0..=50 {
            let coins_about = coins_about * second / 100;
            let progress = Progress { coins_about, ..of_size(10_000_000, second, 100) };
            estimate.progress(Phase::Blocks, second as f64, progress, BUSY);
        }
        estimate.left_seconds().unwrap()
    };
    let (few, many) = (left(100_000), left(10_000_000));
    assert!(few > 50.0 && many > 2.0 * few, "{few} {many}");
    // The number that the job reports replaces the estimate.
    let mut estimate =
        ProgressEstimate::new(expected(RunMethod::Join, false, true, Writes::Coins), 2);
    run(&mut estimate, Phase::Blocks, 0.0, 10.0, 1);
    estimate.started(Phase::Join, 10.0);
    let before = estimate.fraction();
    estimate.ahead(Phase::Coins, Progress { coins_total: 100_000_000, ..Progress::default() });
    assert!(estimate.cost(estimate.steps().last().unwrap()) > 10.0, "{before}");
}

/// If a phase reports no total, its expected time counts down.
#[test]
fn time_left_of_a_phase_with_unknown_total_counts_down() {
    let mut estimate =
        ProgressEstimate::new(expected(RunMethod::Join, false, true, Writes::AllBlocks), 2);
    run(&mut estimate, Phase::Blocks, 0.0, 130.0, 100);
    run(&mut estimate, Phase::Join, 130.0, 75.0, 100);
    run(&mut estimate, Phase::Connect, 205.0, 100.0, 100);
    estimate.started(Phase::Index, 305.0);
    estimate.tick(305.0);
    let before = estimate.left_seconds().unwrap();
    estimate.tick(306.0);
    let after = estimate.left_seconds().unwrap();
    assert!(before > 100.0 && before - after <= 1.0 && after < before, "{before} {after}");
    estimate.tick(305.0 + STALL_SECONDS);
    assert_eq!(estimate.left_seconds(), None, "it has stalled");
}

/// The time for scripts is unknown until they run.
#[test]
fn time_left_is_unknown_before_scripts_run() {
    let mut estimate =
        ProgressEstimate::new(expected(RunMethod::Join, true, true, Writes::Files), 2);
    run(&mut estimate, Phase::Blocks, 0.0, 10.0, 100);
    estimate.started(Phase::Join, 10.0);
    estimate.progress(Phase::Join, 11.0, blocks(1, 2), BUSY);
    estimate.progress(Phase::Join, 12.0, blocks(2, 2), BUSY);
    assert!(estimate.running().unwrap().left_seconds().is_some());
    assert_eq!(estimate.left_seconds(), None);
    estimate.ended(Phase::Join, 12.0, 0, BUSY);
    estimate.started(Phase::Connect, 12.0);
    for second in 0..=10 {
        estimate.progress(Phase::Connect, (12 + second) as f64, blocks(second, 20), BUSY);
    }
    assert!((9.0..20.0).contains(&estimate.left_seconds().unwrap()));
}
