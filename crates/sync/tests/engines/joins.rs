//! Joins with enough records for several partitions, done by several threads; and syncs that are interrupted
//! while they join, and while they validate.

use crate::harness::{Job, Place, World, random_chain};
use crate::world::Events;
use apus_sync::{Engine, Event, Observer, Phase, SyncError};
use apus_testkit::chain::{ChainBuilder, ScriptKind, Shape, coins_of};
use apus_testkit::storage::CrashStorage;
#[cfg(feature = "kernel")]
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(feature = "kernel")]
use std::sync::{Arc, Mutex};
use std::time::Duration;
#[cfg(feature = "kernel")]
use std::time::Instant;

/// Adds a block with half a megabyte of coins, whose transactions are spread over all partitions.
fn large_block(builder: &mut ChainBuilder) {
    let (outpoint, _) = builder.mature_coin();
    let outputs = (0..7).map(|_| builder.output(1_000, ScriptKind::OpTrue)).collect();
    let first = builder.spend(&[outpoint], outputs);
    let mut transactions = vec![first];
    for coin in coins_of(&transactions[0]) {
        let kinds = [ScriptKind::OpTrue].into_iter().chain([ScriptKind::Longest; 8]);
        let outputs = kinds.map(|kind| builder.output(50, kind)).collect();
        transactions.push(builder.spend_coins(&[coin], outputs));
    }
    builder.block_with(transactions);
}

/// Makes a chain with eight megabytes of records, some of which are spent.
fn large_world(seed: u64) -> World {
    let mut builder = random_chain(seed);
    for _ in 0..14 {
        large_block(&mut builder);
        builder.random_block(Shape::default());
    }
    builder.random_blocks(10, Shape::default());
    World::of(&builder.blocks())
}

/// Joining works with any distribution over threads, and with results in files or in memory.
#[test]
fn parallel_joins_give_the_same_set() {
    let world = large_world(860);
    for (threads, checkpoint_interval) in [(1, Duration::MAX), (3, Duration::ZERO)] {
        let engine = Engine::MergeSync;
        let job = Job { engine, threads, checkpoint_interval, ..world.job() };
        let mut place = Place::new();
        job.expect(&world.truth, &place);
        if checkpoint_interval.is_zero() {
            let names = apus_storage::Storage::names(&place.work).unwrap();
            let runs = names.iter().filter(|name| name.starts_with("spill-set-")).count();
            assert_eq!(runs, threads, "each thread has one: {names:?}");
        }
        // A later start finds the join result through its record.
        place.out = CrashStorage::new();
        job.expect(&world.truth, &place);
    }
}

/// Interrupts a sync when it begins to join.
struct Interrupts<'i> {
    events: Events,
    interrupt: &'i AtomicBool,
}

impl Observer for Interrupts<'_> {
    fn event(&self, event: Event) {
        if matches!(event, Event::Started(Phase::Join)) {
            self.interrupt.store(true, Ordering::Relaxed);
        }
        self.events.event(event);
    }
}

/// An interrupt ends the join, and no block is validated with half a join.
#[test]
fn an_interrupt_ends_the_join() {
    let world = World::small(861);
    for threads in [1, 2] {
        let job = Job { engine: Engine::MergeSync, threads, ..world.job() };
        let (place, interrupt) = (Place::new(), AtomicBool::new(false));
        let observer = Interrupts { events: Events::default(), interrupt: &interrupt };
        let error = job.run_watched(&place, &observer, &interrupt).unwrap_err();
        assert!(matches!(error, SyncError::Interrupted), "{error}");
        let all = observer.events.all();
        let has =
            |phase| all.iter().any(|event| matches!(event, Event::Started(it) if *it == phase));
        assert!(has(Phase::Join) && !has(Phase::Connect), "{all:?}");
        job.expect(&world.truth, &place);
    }
}

/// Measures how long validation takes, and interrupts it after some time.
#[cfg(feature = "kernel")]
struct InterruptsLater {
    events: Events,
    after: Option<Duration>,
    interrupt: Arc<AtomicBool>,
    began: Mutex<Option<Instant>>,
    took: Mutex<Duration>,
}

#[cfg(feature = "kernel")]
impl Observer for InterruptsLater {
    fn event(&self, event: Event) {
        match event {
            Event::Started(Phase::Connect) => {
                *self.began.lock().unwrap() = Some(Instant::now());
                let interrupt = Arc::clone(&self.interrupt);
                if let Some(after) = self.after {
                    std::thread::spawn(move || {
                        std::thread::sleep(after);
                        interrupt.store(true, Ordering::Relaxed);
                    });
                }
            }
            Event::Ended { phase: Phase::Connect, .. } => {
                *self.took.lock().unwrap() = self.began.lock().unwrap().unwrap().elapsed();
            }
            _ => {}
        }
        self.events.event(event);
    }
}

/// Validation progress survives an interrupt, however long the checkpoint interval is.
#[cfg(feature = "kernel")]
#[test]
fn an_interrupt_costs_no_validated_block() {
    let mut builder = random_chain(862);
    builder.random_blocks(60, Shape::default());
    let world = World::of(&builder.blocks());
    for keeps in [false, true] {
        let run = |place: &Place, sandbox: &Path, after| {
            let job = Job {
                engine: Engine::MergeSync,
                checkpoint_interval: Duration::from_secs(3600),
                assume_valid: None,
                threads: 1,
                ..world.job()
            };
            let job = if keeps { job.keeping(sandbox) } else { job };
            let observer = InterruptsLater {
                events: Events::default(),
                after,
                interrupt: Arc::default(),
                began: Mutex::default(),
                took: Mutex::default(),
            };
            let outcome = job.run_watched(place, &observer, &observer.interrupt);
            (outcome, observer)
        };
        let sandbox = || tempfile::tempdir().unwrap();
        let (whole, observer) = run(&Place::new(), sandbox().path(), None);
        whole.unwrap();
        let took = *observer.took.lock().unwrap();
        // On a busy machine, some of these interrupts come too late.
        let found = (1..100).any(|turn| {
            let (mut place, sandbox) = (Place::new(), sandbox());
            let (outcome, _) = run(&place, sandbox.path(), Some(took / 10 * (turn % 9 + 1)));
            let Err(error) = outcome else { return false };
            assert!(matches!(error, SyncError::Interrupted), "{error}");
            place.out = CrashStorage::new();
            let (outcome, observer) = run(&place, sandbox.path(), None);
            world.truth.check(&outcome.unwrap(), &place.out);
            let stop = world.truth.stop as usize;
            let resumes = |event: &Event| match event {
                Event::Resumed { segments, of } => *of == stop && (1..stop).contains(segments),
                _ => false,
            };
            observer.events.all().iter().any(resumes)
        });
        assert!(found, "{keeps}");
    }
}
