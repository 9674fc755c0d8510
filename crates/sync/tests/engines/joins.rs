//! Joins of so many records that they are divided into parts, each of which some thread does; and runs that are
//! interrupted while they join, and while they judge.

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

/// A block with half a megabyte of coins, whose transactions lie anywhere among all.
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

/// Eight megabytes of records, which are spent in part.
fn large_world(seed: u64) -> World {
    let mut builder = random_chain(seed);
    for _ in 0..14 {
        large_block(&mut builder);
        builder.random_block(Shape::default());
    }
    builder.random_blocks(10, Shape::default());
    World::of(&builder.blocks())
}

/// Whichever thread does which, and whether what comes of them is in files or in memory.
#[test]
fn parts_come_to_the_set_of_all() {
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
        // A later start has it of what the record names.
        place.out = CrashStorage::new();
        job.expect(&world.truth, &place);
    }
}

/// Interrupts a run when it begins to join.
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

/// It ends where it is, and no block is judged by half of what was joined.
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

/// Sees how long blocks are judged, and interrupts that after some time.
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

/// What was judged is kept, however long it would be until anything were.
#[cfg(feature = "kernel")]
#[test]
fn an_interrupt_costs_no_block_that_was_judged() {
    let mut builder = random_chain(862);
    builder.random_blocks(60, Shape::default());
    let world = World::of(&builder.blocks());
    for keeps in [false, true] {
        let run = |place: &Place, desk: &Path, after| {
            let job = Job {
                engine: Engine::MergeSync,
                checkpoint_interval: Duration::from_secs(3600),
                assume_valid: None,
                threads: 1,
                ..world.job()
            };
            let job = if keeps { job.keeping(desk) } else { job };
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
        let desk = || tempfile::tempdir().unwrap();
        let (whole, observer) = run(&Place::new(), desk().path(), None);
        whole.unwrap();
        let took = *observer.took.lock().unwrap();
        // On a busy machine some of these come too late.
        let found = (1..100).any(|turn| {
            let (mut place, desk) = (Place::new(), desk());
            let (outcome, _) = run(&place, desk.path(), Some(took / 10 * (turn % 9 + 1)));
            let Err(error) = outcome else { return false };
            assert!(matches!(error, SyncError::Interrupted), "{error}");
            place.out = CrashStorage::new();
            let (outcome, observer) = run(&place, desk.path(), None);
            world.truth.check(&outcome.unwrap(), &place.out);
            let stop = world.truth.stop as usize;
            let goes_on = |event: &Event| match event {
                Event::Resumed { segments, of } => *of == stop && (1..stop).contains(segments),
                _ => false,
            };
            observer.events.all().iter().any(goes_on)
        });
        assert!(found, "{keeps}");
    }
}
