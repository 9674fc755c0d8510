//! Runs with known rates, and what a course says of them.

use super::*;
use proptest::prelude::*;

/// Of a phase in which no thread waited.
const BUSY: f64 = f64::INFINITY;

fn blocks(done: u64, total: u64) -> Progress {
    Progress { blocks: done, blocks_total: total, ..Progress::default() }
}

fn hinted() -> Course {
    Course::new(expected(Way::Hints { connects: true }, false, true, false), 2)
}

fn phases(course: &Course) -> Vec<&'static str> {
    course.steps().iter().map(|step| step.phase.name()).collect()
}

/// A phase that moves evenly, told every tenth of a second.
fn run(course: &mut Course, phase: Phase, from: f64, seconds: f64, total: u64) {
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
    let mut course = Course::new(expected(Way::Hints { connects: false }, false, true, false), 2);
    run(&mut course, Phase::Headers, 0.0, 1.0, 10);
    course.started(Phase::Blocks, 1.0);
    for second in 0..=50 {
        course.progress(Phase::Blocks, 1.0 + second as f64, blocks(second, 100), BUSY);
    }
    // Fifty seconds of blocks, and coins at their share of a hundred.
    let step = course.running().expect("blocks run");
    assert!((step.left_seconds().expect("it has a rate") - 50.0).abs() < 1.5);
    let left = course.left_seconds().expect("it has a rate");
    assert!((left - 62.0).abs() < 2.0, "{left}");
    let fraction = course.fraction();
    assert!((fraction - 51.0 / 113.0).abs() < 0.03, "{fraction}");
}

#[test]
fn a_rate_is_that_of_the_last_minute() {
    let mut course = Course::new(vec![Expected::of(Phase::Blocks)], 1);
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
    let mut course = Course::new(vec![Expected::of(Phase::Blocks)], 1);
    course.started(Phase::Blocks, 0.0);
    for second in 0..=10 {
        course.progress(Phase::Blocks, f64::from(second), blocks(900 + second as u64, 1000), BUSY);
    }
    assert!((course.fraction() - 0.91).abs() < 0.001);
    assert!((course.left_seconds().expect("it has a rate") - 90.0).abs() < 2.0);
}

#[test]
fn weights_tell_before_blocks_and_bytes() {
    let mut step = Step::new(Expected::of(Phase::Blocks));
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
    let mut course = Course::new(expected(Way::Hints { connects: false }, false, true, false), 2);
    course.started(Phase::Blocks, 0.0);
    for second in 0..=50 {
        // One second of two threads' work in fifty.
        let (now, cpu) = (second as f64, second as f64 / 25.0);
        course.progress(Phase::Blocks, now, blocks(second, 100), cpu);
    }
    let left = course.left_seconds().expect("it has a rate");
    assert!((left - 50.0).abs() < 1.5, "{left}");
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
