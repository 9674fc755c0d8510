//! Somebody stops the run, at any moment: it says so, writes nothing under a final name, and the
//! next start goes on.

use crate::harness::{Job, SET, Truth, World, files};
use apus_sync::{ErrorKind, Event, Observer, Outcome, Phase, SyncError};
use apus_testkit::rng::Rng;
use apus_testkit::storage::CrashStorage;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Sets the flag at the n-th event of a kind.
struct StopAt<'a> {
    flag: &'a AtomicBool,
    left: AtomicU64,
    what: fn(&Event) -> bool,
}

impl Observer for StopAt<'_> {
    fn event(&self, event: Event) {
        if (self.what)(&event) && self.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            self.flag.store(true, Ordering::SeqCst);
        }
    }
}

fn run_to(
    job: &Job,
    work: &CrashStorage,
    out: &CrashStorage,
    n: u64,
    what: fn(&Event) -> bool,
) -> (Result<Outcome, SyncError>, bool) {
    let flag = AtomicBool::new(false);
    let observer = StopAt { flag: &flag, left: AtomicU64::new(n), what };
    let result = job.run_watched(work, out, &observer, &flag);
    (result, flag.load(Ordering::SeqCst))
}

fn expect_interrupted(error: &SyncError) {
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    assert!(error.to_string().contains("interrupted"), "{error}");
}

/// Stops at each event of a kind and goes on; how often there was something to stop.
fn check(job: &Job, truth: &Truth, limit: u64, what: fn(&Event) -> bool) -> u64 {
    for n in 0..limit {
        let (work, out) = (CrashStorage::new(), CrashStorage::new());
        let (result, stopped) = run_to(job, &work, &out, n, what);
        match result {
            Err(error) => {
                assert!(stopped);
                expect_interrupted(&error);
                assert!(!files(&out).contains_key(SET));
            }
            // The last of the work was done when the flag was set.
            Ok(outcome) => truth.check(&outcome, &out),
        }
        job.expect(truth, &work, &out);
        if !stopped {
            return n;
        }
    }
    limit
}

#[test]
fn at_every_event() {
    let world = World::small(40);
    for threads in [1, 3] {
        let job = Job { threads, ..world.job() };
        assert_eq!(check(&job, &world.truth, 40, |_| true), 40);
    }
}

#[test]
fn while_headers_are_found() {
    let world = World::small(41);
    let what = |event: &Event| matches!(event, Event::Progress(Phase::Headers, _));
    assert!(check(&world.job(), &world.truth, 3, what) > 0);
}

#[test]
fn while_a_snapshot_is_read() {
    // More coins than are kept at once.
    let mut builder = apus_testkit::chain::ChainBuilder::new(42);
    for _ in 0..5 {
        let outputs = (0..1_000)
            .map(|n| builder.output(n, apus_testkit::chain::ScriptKind::OpTrue))
            .collect();
        let coinbase_outputs = Some(outputs);
        builder.add_plan(apus_testkit::chain::BlockPlan { coinbase_outputs, ..Default::default() });
    }
    let world = World::of(builder.blocks());
    let job = Job { hints: world.snapshot_hints(), memory_bytes: 0, ..world.job() };
    let what = |event: &Event| matches!(event, Event::Progress(Phase::Hints, _));
    assert_eq!(check(&job, &world.truth, 10, what), 4);
    // Nothing of a run is there before its hints are known.
    let (work, out) = (CrashStorage::new(), CrashStorage::new());
    expect_interrupted(&run_to(&job, &work, &out, 2, what).0.unwrap_err());
    assert!(!files(&work).contains_key("plan"));
}

#[test]
fn while_coins_are_written() {
    let world = World::small(43);
    let what = |event: &Event| matches!(event, Event::Progress(Phase::Coins, _));
    assert_eq!(check(&world.job(), &world.truth, 12, what), 12);
    // What was done is known to the next start.
    let (work, out) = (CrashStorage::new(), CrashStorage::new());
    expect_interrupted(&run_to(&world.job(), &work, &out, 3, what).0.unwrap_err());
    let (done, of) = world.job().expect(&world.truth, &work, &out).unwrap();
    assert_eq!(done, of);
}

#[test]
fn finished_segments_count() {
    let world = World::small(44);
    let job = Job { segment_bytes: Some(1), threads: 2, ..world.job() };
    let what = |event: &Event| matches!(event, Event::Progress(Phase::Blocks, _));
    let (work, out) = (CrashStorage::new(), CrashStorage::new());
    expect_interrupted(&run_to(&job, &work, &out, 9, what).0.unwrap_err());
    let (done, of) = job.expect(&world.truth, &work, &out).unwrap();
    // Ten were told; a few more may have been under way.
    assert!((10..of).contains(&done), "{done} of {of}");
}

#[test]
fn at_random_times() {
    let world = World::small(45);
    let mut rng = Rng::new(45);
    let mut stops = 0;
    for _ in 0..12 {
        let job = Job {
            threads: rng.between(1, 4) as usize,
            segment_bytes: Some(rng.between(1, 5_000)),
            ..world.job()
        };
        let (work, out) = (CrashStorage::new(), CrashStorage::new());
        loop {
            let flag = AtomicBool::new(false);
            let delay = Duration::from_micros(rng.below(30_000));
            let result = thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(delay);
                    flag.store(true, Ordering::SeqCst);
                });
                job.run_watched(&work, &out, &apus_sync::Silent, &flag)
            });
            match result {
                Ok(outcome) => {
                    world.truth.check(&outcome, &out);
                    break;
                }
                Err(error) => expect_interrupted(&error),
            }
            world.truth.check_files(&files(&out));
            stops += 1;
            // A machine too busy to get anything done between two stops.
            if stops % 8 == 0 {
                job.expect(&world.truth, &work, &out);
                break;
            }
        }
    }
    assert!(stops > 0, "no run was stopped");
}
