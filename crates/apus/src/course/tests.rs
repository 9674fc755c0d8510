//! Runs with known rates, and what a course says of them.

use super::*;
use proptest::prelude::*;

/// Of a phase in which no thread waited.
const BUSY: f64 = f64::INFINITY;

fn blocks(done: u64, total: u64) -> Progress {
    of_size(1_000_000_000, done, total)
}

/// Of blocks of so many bytes.
fn of_size(size: u64, done: u64, total: u64) -> Progress {
    let (bytes, bytes_total) = (size * done, size * total);
    Progress { blocks: done, blocks_total: total, bytes, bytes_total, ..Progress::default() }
}

fn hinted() -> RunCourse {
    RunCourse::new(expected(RunWay::Hints { connects: true }, false, true, Writes::Files), 2)
}

fn to_chainstate() -> RunCourse {
    RunCourse::new(expected(RunWay::Hints { connects: false }, false, true, Writes::Coins), 2)
}

fn phases(course: &RunCourse) -> Vec<&'static str> {
    course.steps().iter().map(|step| step.phase.name()).collect()
}

/// A phase that moves evenly, told every tenth of a second.
fn run(course: &mut RunCourse, phase: Phase, from: f64, seconds: f64, total: u64) {
    course.started(phase, from);
    for tenth in 0..=(10.0 * seconds) as u64 {
        let now = tenth as f64 / 10.0;
        let done = (total as f64 * now / seconds) as u64;
        course.progress(phase, from + now, blocks(done, total), BUSY);
        course.keep();
    }
    course.ended(phase, from + seconds, total, BUSY);
    course.keep();
}

#[test]
fn phases_that_do_not_come_and_others_that_do() {
    let mut course = hinted();
    assert_eq!(phases(&course), ["headers", "hints", "blocks", "connect", "coins"]);
    course.started(Phase::Headers, 0.0);
    course.ended(Phase::Headers, 0.1, 1, BUSY);
    course.ahead(Phase::Connect, blocks(0, 10));
    course.started(Phase::Blocks, 0.1);
    assert_eq!(phases(&course), ["headers", "blocks", "connect", "coins"]);
    course.ended(Phase::Blocks, 0.2, 1, BUSY);
    course.started(Phase::Index, 0.2);
    assert_eq!(phases(&course), ["headers", "blocks", "index", "connect", "coins"]);
    course.ended(Phase::Index, 0.3, 1, BUSY);
    course.started(Phase::Coins, 0.3);
    assert_eq!(phases(&course), ["headers", "blocks", "index", "coins"]);
    course.ended(Phase::Coins, 0.4, 1, BUSY);
    assert_eq!(course.fraction(), 1.0);
    // Where nothing lies above the hints, nothing is connected.
    let mut course = hinted();
    course.started(Phase::Blocks, 0.0);
    assert_eq!(phases(&course), ["blocks", "coins"]);
}

#[test]
fn time_left_is_that_of_all_phases() {
    let mut course = to_chainstate();
    run(&mut course, Phase::Headers, 0.0, 1.0, 10);
    course.started(Phase::Blocks, 1.0);
    for second in 0..=50 {
        course.progress(Phase::Blocks, 1.0 + second as f64, blocks(second, 100), BUSY);
    }
    // Fifty seconds of blocks, which are a sixth slower here than where costs are from, and so are coins then.
    let step = course.running().expect("blocks run");
    assert!((step.left_seconds().expect("it has a rate") - 50.0).abs() < 1.5);
    let left = course.left_seconds().expect("it has a rate");
    assert!((left - 63.3).abs() < 3.0, "{left}");
    let fraction = course.fraction();
    assert!((fraction - 51.0 / 114.3).abs() < 0.03, "{fraction}");
}

#[test]
fn a_rate_is_that_of_the_last_minute() {
    let mut course = RunCourse::new(vec![Expected::of(Phase::Blocks)], 1);
    course.started(Phase::Blocks, 0.0);
    let mut done = 0;
    for second in 0..200 {
        done += if second < 100 { 10 } else { 1 };
        course.progress(Phase::Blocks, f64::from(second), blocks(done, 10_000), BUSY);
    }
    let rate = course.running().expect("blocks run").rate();
    assert!((rate.blocks - 1.0).abs() < 0.05, "{rate:?}");
}

#[test]
fn what_an_earlier_start_did_is_no_rate() {
    let mut course = RunCourse::new(vec![Expected::of(Phase::Blocks)], 1);
    course.started(Phase::Blocks, 0.0);
    for second in 0..=10 {
        course.progress(Phase::Blocks, f64::from(second), blocks(900 + second as u64, 1000), BUSY);
    }
    assert!((course.fraction() - 0.91).abs() < 0.001);
    assert!((course.left_seconds().expect("it has a rate") - 90.0).abs() < 2.0);
}

#[test]
fn weights_tell_before_blocks_and_bytes() {
    let mut step = PhaseStep::new(Expected::of(Phase::Blocks));
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
    let mut course = hinted();
    course.ahead(Phase::Connect, blocks(0, 100));
    run(&mut course, Phase::Blocks, 0.0, 10.0, 900);
    course.started(Phase::Connect, 10.0);
    // Blocks below are told of again.
    course.progress(Phase::Connect, 10.0, blocks(900, 1000), BUSY);
    assert_eq!(course.running().expect("it runs").fraction(), Some(0.0));
    course.progress(Phase::Connect, 20.0, blocks(950, 1000), BUSY);
    assert_eq!(course.running().expect("it runs").fraction(), Some(0.5));
}

#[test]
fn a_slow_line_says_nothing_of_what_this_machine_does() {
    let mut course = to_chainstate();
    course.started(Phase::Blocks, 0.0);
    for second in 0..=50 {
        // One second of two threads' work in fifty.
        let (now, cpu) = (second as f64, second as f64 / 25.0);
        course.progress(Phase::Blocks, now, of_size(10_000_000, second, 100), cpu);
    }
    let left = course.left_seconds().expect("it has a rate");
    assert!((50.0..57.0).contains(&left), "{left}");
}

/// A run that was seen: what it went over, and how long each phase took, in seconds.
struct Seen {
    name: &'static str,
    way: RunWay,
    scripts: bool,
    writes: Writes,
    threads: usize,
    block_bytes: u64,
    coins: u64,
    phases: &'static [(Phase, f64)],
}

const HINTS: RunWay = RunWay::Hints { connects: true };

/// Two threads, from `bench/runs`, of programs that were compiled to be fast; and one thread's, of one that was compiled for
/// tests, by processor time: to a data directory, and to chainstates of some and of many coins.
const SEEN: &[Seen] = &[
    Seen {
        name: "joined, Zen 3",
        way: RunWay::Join,
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
        way: RunWay::Order,
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
        way: RunWay::Join,
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
        way: RunWay::Join,
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
        way: RunWay::Join,
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
        way: RunWay::Join,
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
    /// What a phase tells that has done so much of its work.
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

    /// Goes through it, and shows each moment to `look`: seconds that passed, and what is said of it.
    fn replay(&self, look: &mut dyn FnMut(f64, &RunCourse)) {
        let expected = expected(self.way, self.scripts, true, self.writes);
        let (mut course, mut from) = (RunCourse::new(expected, self.threads), 0.0);
        for (phase, seconds) in self.phases {
            course.started(*phase, from);
            for hundredth in 0..=100 {
                let fraction = f64::from(hundredth) / 100.0;
                let now = from + seconds * fraction;
                course.progress(*phase, now, self.progress(*phase, fraction), BUSY);
                course.keep();
                look(now, &course);
            }
            from += seconds;
            course.ended(*phase, from, 0, BUSY);
        }
    }
}

/// From a tenth of the time on, what is told to be left is right within a factor of two, or within half a second.
#[test]
fn time_left_of_real_runs_is_right_within_a_factor_of_two() {
    for seen in SEEN {
        let all: f64 = seen.phases.iter().map(|(_, seconds)| seconds).sum();
        let (name, mut told) = (seen.name, 0);
        seen.replay(&mut |seconds, course| {
            let (right, fraction) = (all - seconds, course.fraction());
            let Some(left) = course.left_seconds().filter(|_| seconds >= 0.1 * all) else { return };
            let is_near = left <= 2.0 * right + 0.5 && right <= 2.0 * left + 0.5;
            assert!(is_near, "{name}: {left:.1} s, not {right:.1} s, after {seconds:.1} s");
            let is_fair = (fraction - seconds / all).abs() < 0.2;
            assert!(is_fair, "{name}: {fraction} after {seconds:.1} s of {all:.1} s");
            told += 1;
        });
        assert!(told > 80, "{name}: it was told {told} times");
    }
}

proptest! {
    #[test]
    fn a_percent_never_goes_back_and_ends_at_a_hundred(
        lengths in prop::collection::vec((1u64..40, 1u64..1000), 5),
    ) {
        let mut course = hinted();
        let (mut from, mut last) = (0.0, 0.0);
        let order = [Phase::Headers, Phase::Hints, Phase::Blocks, Phase::Connect, Phase::Coins];
        for (phase, (tenths, total)) in order.into_iter().zip(lengths) {
            course.started(phase, from);
            for tenth in 0..=tenths {
                let done = total * tenth / tenths;
                course.progress(phase, from + tenth as f64 / 10.0, blocks(done, total), BUSY);
                let fraction = course.fraction();
                prop_assert!(fraction >= last && fraction <= 1.0, "{fraction} after {last}");
                course.keep();
                last = fraction;
            }
            from += tenths as f64 / 10.0;
            course.ended(phase, from, total, BUSY);
        }
        prop_assert!((course.fraction() - 1.0).abs() < 1e-9);
    }
}

/// Chains of one size differ much in coins, and what reads coins back takes as long as there are coins.
#[test]
fn many_coins_take_longer_than_few() {
    let left = |coins_about: u64| {
        let mut course = RunCourse::new(expected(RunWay::Join, false, true, Writes::Coins), 2);
        course.started(Phase::Blocks, 0.0);
        for second in 0..=50 {
            let coins_about = coins_about * second / 100;
            let progress = Progress { coins_about, ..of_size(10_000_000, second, 100) };
            course.progress(Phase::Blocks, second as f64, progress, BUSY);
        }
        course.left_seconds().unwrap()
    };
    let (few, many) = (left(100_000), left(10_000_000));
    assert!(few > 50.0 && many > 2.0 * few, "{few} {many}");
    // What the run says is believed rather than what it seemed to be.
    let mut course = RunCourse::new(expected(RunWay::Join, false, true, Writes::Coins), 2);
    run(&mut course, Phase::Blocks, 0.0, 10.0, 1);
    course.started(Phase::Join, 10.0);
    let before = course.fraction();
    course.ahead(Phase::Coins, Progress { coins_total: 100_000_000, ..Progress::default() });
    assert!(course.cost(course.steps().last().unwrap()) > 10.0, "{before}");
}

/// Where a phase does not say how far it is, the time that it should take runs down.
#[test]
fn a_phase_of_unknown_length_has_a_time_left() {
    let mut course = RunCourse::new(expected(RunWay::Join, false, true, Writes::AllBlocks), 2);
    run(&mut course, Phase::Blocks, 0.0, 130.0, 100);
    run(&mut course, Phase::Join, 130.0, 75.0, 100);
    run(&mut course, Phase::Connect, 205.0, 100.0, 100);
    course.started(Phase::Index, 305.0);
    course.tick(305.0);
    let before = course.left_seconds().unwrap();
    course.tick(306.0);
    let after = course.left_seconds().unwrap();
    assert!(before > 100.0 && before - after <= 1.0 && after < before, "{before} {after}");
    course.tick(305.0 + STALL_SECONDS);
    assert_eq!(course.left_seconds(), None, "it stands still");
}

/// What scripts take shows only when they run.
#[test]
fn no_time_left_is_told_while_scripts_are_to_come() {
    let mut course = RunCourse::new(expected(RunWay::Join, true, true, Writes::Files), 2);
    run(&mut course, Phase::Blocks, 0.0, 10.0, 100);
    course.started(Phase::Join, 10.0);
    course.progress(Phase::Join, 11.0, blocks(1, 2), BUSY);
    course.progress(Phase::Join, 12.0, blocks(2, 2), BUSY);
    assert!(course.running().unwrap().left_seconds().is_some());
    assert_eq!(course.left_seconds(), None);
    course.ended(Phase::Join, 12.0, 0, BUSY);
    course.started(Phase::Connect, 12.0);
    for second in 0..=10 {
        course.progress(Phase::Connect, (12 + second) as f64, blocks(second, 20), BUSY);
    }
    assert!((9.0..20.0).contains(&course.left_seconds().unwrap()));
}
