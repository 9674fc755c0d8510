//! Tests in which the user stops the sync at any moment: it reports that, writes nothing under a final name,
//! and the next start resumes.

use crate::harness::{Job, Named, SET, Truth, World, files};
use apus_storage::Storage;
use apus_sync::{ErrorKind, Event, Observer, Outcome, Phase, SyncError};
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind, coins_of};
use apus_testkit::rng::Rng;
use apus_testkit::storage::CrashStorage;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Interrupts the sync at the n-th event of a kind.
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
    work: &dyn Storage,
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

/// Stops at each event of a kind and resumes; returns the number of stopped syncs.
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
            // All work was done when the flag was set.
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
        assert!(check(&job, &world.truth, 40, |_| true) > 12);
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
    // The snapshot has more coins than are kept or passed on at once.
    let mut builder = ChainBuilder::new(42);
    for _ in 0..5 {
        let outputs = (0..4_000).map(|n| builder.output(n, ScriptKind::OpTrue)).collect();
        builder.add_plan(BlockPlan { coinbase_outputs: Some(outputs), ..BlockPlan::default() });
    }
    let world = World::of(builder.blocks());
    let what = |event: &Event| matches!(event, Event::Progress(Phase::Hints, _));
    for threads in [1, 2] {
        let hints = world.snapshot_hints();
        let job = Job { hints, memory_bytes: 0, threads, ..world.job() };
        assert_eq!(check(&job, &world.truth, 10, what), 5);
        // The folder stays empty until the hints are known.
        let (work, out) = (CrashStorage::new(), CrashStorage::new());
        expect_interrupted(&run_to(&job, &work, &out, 2, what).0.unwrap_err());
        assert!(!files(&work).contains_key("plan"));
    }
}

/// Makes a chain with more transactions than are merged between two checks of the flag.
fn many_transactions(seed: u64) -> World {
    let mut builder = ChainBuilder::new(seed);
    let outputs = (0..2_200).map(|n| builder.output(n, ScriptKind::OpTrue)).collect();
    let plan = BlockPlan { coinbase_outputs: Some(outputs), ..BlockPlan::default() };
    let coins = coins_of(&builder.add_plan(plan).txdata[0]);
    builder.empty_blocks(100);
    let spend = |coin: &(bitcoin::OutPoint, bitcoin::TxOut)| {
        builder.spend_coins(std::slice::from_ref(coin), vec![coin.1.clone()])
    };
    let transactions = coins.iter().map(spend).collect();
    builder.block_with(transactions);
    World::of(builder.blocks())
}

#[test]
fn while_coins_are_written() {
    let world = many_transactions(43);
    let what = |event: &Event| matches!(event, Event::Progress(Phase::Coins, _));
    assert_eq!(check(&world.job(), &world.truth, 5, what), 2);
    // The next start finds the finished work.
    let (work, out) = (CrashStorage::new(), CrashStorage::new());
    expect_interrupted(&run_to(&world.job(), &work, &out, 1, what).0.unwrap_err());
    let (done, of) = world.job().expect(&world.truth, &work, &out).unwrap();
    assert_eq!(done, of);
}

#[test]
fn while_runs_are_merged_into_longer_ones() {
    let world = many_transactions(46);
    let job = Job { memory_bytes: 0, segment_bytes: Some(2_000), ..world.job() };
    let merged = |work: &Named| work.created().iter().filter(|n| n.starts_with("merge-")).count();
    let what = |event: &Event| matches!(event, Event::Started(Phase::Coins));
    let out = CrashStorage::new();
    let work = Named::new("work", CrashStorage::new());
    expect_interrupted(&run_to(&job, &work, &out, 0, what).0.unwrap_err());
    let before = merged(&work);
    job.expect(&world.truth, &work, &out);
    // The sync must stop before the last merge, which would also notice the flag.
    let all = merged(&work) - before;
    assert!(before < all, "{before} of {all}");
}

#[test]
fn finished_segments_count() {
    let world = World::small(44);
    let job = Job { segment_bytes: Some(1), threads: 2, ..world.job() };
    let what = |event: &Event| matches!(event, Event::Progress(Phase::Blocks, p) if p.blocks >= 10);
    let (work, out) = (CrashStorage::new(), CrashStorage::new());
    expect_interrupted(&run_to(&job, &work, &out, 0, what).0.unwrap_err());
    let (done, of) = job.expect(&world.truth, &work, &out).unwrap();
    // Segments in progress are still finished, because each is one block.
    assert!((10..of).contains(&done), "{done} of {of}");
}

#[test]
fn at_random_times() {
    let world = World::small(45);
    let mut rng = Rng::new(45);
    let mut stops = 0;
    let clock = Instant::now();
    world.job().run_afresh().unwrap();
    let about_a_run_us = clock.elapsed().as_micros() as u64;
    for _ in 0..12 {
        let job = Job {
            threads: rng.between(1, 4) as usize,
            segment_bytes: Some(rng.between(1, 5_000)),
            ..world.job()
        };
        let (work, out) = (CrashStorage::new(), CrashStorage::new());
        loop {
            // The first is stopped before it starts.
            let flag = AtomicBool::new(stops == 0);
            let delay = Duration::from_micros(rng.below(about_a_run_us));
            let result = thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(delay);
                    flag.store(true, Ordering::SeqCst);
                });
                job.run_watched(&work, &out, &apus_sync::SilentObserver, &flag)
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
            // The machine may be too busy to get anything done between two stops.
            if stops % 8 == 0 {
                job.expect(&world.truth, &work, &out);
                break;
            }
        }
    }
    assert!(stops > 0);
}
