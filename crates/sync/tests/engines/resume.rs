//! Tests of syncs that stop at some point: the next start resumes, and the set is the same.

use crate::harness::{Call, Hooked, Job, Place, World, store_error};
use crate::world::{Events, Truth};
use apus_engine::utxo::CoinsStore;
use apus_sync::{
    DatadirBlocks, ErrorKind, Event, FolderKind, FolderOutput, Observer, Outcome, Phase, Progress,
    SilentObserver, Stop, SyncError, UsageError,
};
use apus_testkit::effort::rounds;
use apus_testkit::storage::{AfterCrash, CrashStorage};
use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// Runs a start with another store than the place's own.
fn run_on(
    job: &Job,
    place: &Place,
    store: &Arc<dyn CoinsStore>,
    interrupt: &AtomicBool,
) -> Result<Outcome, SyncError> {
    let open = || Ok(Arc::clone(store));
    job.run_in(
        &place.work,
        &place.out,
        &open,
        place.hints_folder.path(),
        &SilentObserver,
        interrupt,
    )
}

/// Returns the place after a power loss: the durable part of the work folder, and the unchanged store.
fn after_crash(place: Place, seed: Option<u64>) -> Place {
    let image = |storage: &CrashStorage| match seed {
        None => storage.durable_image(),
        Some(seed) => storage.crash_image(seed),
    };
    Place { work: image(&place.work), out: image(&place.out), ..place }
}

/// Makes jobs that flush after every block or only at the end, with hints for a part or without.
fn jobs(world: &World) -> [Job; 3] {
    let hour = Duration::from_secs(3_600);
    let hints = Some(world.hints(108));
    [
        world.job(),
        Job { checkpoint_interval: hour, ..world.job() },
        Job { hints, threads: 1, ..world.job() },
    ]
}

#[test]
fn a_stop_at_any_store_call_is_resumed() {
    let world = World::small(710);
    for job in jobs(&world) {
        for (call, step, limit) in
            [(Call::Get, 7, 60), (Call::Write, 9, 120), (Call::ForEach, 1, 2)]
        {
            for n in (0..limit).step_by(step) {
                let (place, flag) = (Place::new(), Arc::new(AtomicBool::new(false)));
                let set = Arc::clone(&flag);
                let store = Hooked::over(&place.store, move |at, before| {
                    if at == call && before >= n {
                        set.store(true, Ordering::SeqCst);
                    }
                    Ok(())
                });
                match run_on(&job, &place, &store, &flag) {
                    Ok(outcome) => world.truth.check(&outcome, &place.out),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}"),
                }
                drop(store);
                job.expect(&world.truth, &place);
            }
        }
    }
}

/// Sets the flag at the n-th event.
struct StopAt<'a> {
    flag: &'a AtomicBool,
    seen: Events,
    n: usize,
}

impl Observer for StopAt<'_> {
    fn event(&self, event: Event) {
        self.seen.event(event);
        if self.seen.all().len() > self.n {
            self.flag.store(true, Ordering::SeqCst);
        }
    }
}

#[test]
fn a_stop_at_any_event_is_resumed() {
    let world = World::small(711);
    let job = world.job();
    let mut stopped = 0;
    for n in (0..200).step_by(rounds(3, 1) as usize) {
        let (place, flag) = (Place::new(), AtomicBool::new(false));
        let observer = StopAt { flag: &flag, seen: Events::default(), n };
        match job.run_watched(&place, &observer, &flag) {
            Ok(outcome) => world.truth.check(&outcome, &place.out),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
                stopped += 1;
            }
        }
        job.expect(&world.truth, &place);
        if !flag.load(Ordering::SeqCst) {
            break;
        }
    }
    assert!(stopped > 3, "{stopped}");
}

#[test]
fn a_failed_store_write_is_resumed() {
    let world = World::small(712);
    for job in jobs(&world) {
        for (call, once) in [(Call::Write, true), (Call::Write, false), (Call::Written, false)] {
            for n in [0, 1, 2, 50, 110] {
                let place = Place::new();
                let store = Hooked::over(&place.store, move |at, before| {
                    let fails = at == call && if once { before == n } else { before >= n };
                    if fails { Err(store_error()) } else { Ok(()) }
                });
                match run_on(&job, &place, &store, &AtomicBool::new(false)) {
                    // The sync had fewer than n writes.
                    Ok(outcome) => world.truth.check(&outcome, &place.out),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                        assert!(error.to_string().contains("made to fail"), "{error}");
                        assert!(place.output_files().is_empty());
                    }
                }
                drop(store);
                job.expect(&world.truth, &place);
            }
        }
    }
}

/// Power fails when the record is written and the coins are not, and right after they are.
#[test]
fn a_crash_on_either_side_of_a_flush_is_resumed() {
    let world = World::small(713);
    for job in jobs(&world) {
        for call in [Call::Write, Call::Written] {
            for n in [0, 1, 2, 3, 60, 119] {
                let place = Place::new();
                let (work, out) = (place.work.clone(), place.out.clone());
                let store = Hooked::over(&place.store, move |at, before| {
                    let dead = work.crashed();
                    if at == call && before == n {
                        work.crash_at(work.syncs(), AfterCrash::Fail);
                        out.crash_at(out.syncs(), AfterCrash::Fail);
                    }
                    let stops = dead || (at == call && before == n);
                    if stops { Err(store_error()) } else { Ok(()) }
                });
                let ended = run_on(&job, &place, &store, &AtomicBool::new(false));
                drop(store);
                if ended.is_ok() {
                    continue;
                }
                let place = after_crash(place, (n % 2 == 0).then_some(n));
                job.expect(&world.truth, &place);
            }
        }
    }
}

/// A crash may come twice, the second time before the next flush is done.
#[test]
fn a_second_crash_before_the_next_flush() {
    let world = World::small(714);
    let job = world.job();
    let mut place = Place::new();
    for n in [5, 0, 1, 0, 0, 30, 0] {
        let work = place.work.clone();
        let store = Hooked::over(&place.store, move |at, before| {
            let dies = at == Call::Write && before >= n;
            if dies && !work.crashed() {
                work.crash_at(work.syncs(), AfterCrash::Fail);
            }
            if dies { Err(store_error()) } else { Ok(()) }
        });
        run_on(&job, &place, &store, &AtomicBool::new(false)).unwrap_err();
        drop(store);
        place = after_crash(place, None);
    }
    assert_eq!(place.height(), Some(36));
    job.expect(&world.truth, &place);
}

fn crash_at_syncs(job: &Job, truth: &Truth, of: fn(&Place) -> &CrashStorage, step: usize) {
    let whole = Place::new();
    job.expect(truth, &whole);
    for n in (0..of(&whole).syncs()).step_by(step) {
        let place = Place::new();
        of(&place).crash_at(n, AfterCrash::Fail);
        job.run(&place).unwrap_err();
        let place = after_crash(place, (n % 3 != 0).then_some(n));
        job.expect(truth, &place);
    }
}

#[test]
fn a_crash_at_a_sync_point_of_the_work_folder() {
    let world = World::small(715);
    let [every, last, hinted] = jobs(&world);
    crash_at_syncs(&every, &world.truth, |place| &place.work, 11);
    crash_at_syncs(&last, &world.truth, |place| &place.work, 1);
    crash_at_syncs(&hinted, &world.truth, |place| &place.work, 7);
}

#[test]
fn a_crash_at_a_sync_point_of_the_outputs() {
    let world = World::small(716);
    let [_, last, _] = jobs(&world);
    crash_at_syncs(&last, &world.truth, |place| &place.out, 1);
}

/// The sync ends higher each time, because the node's chain grows.
#[test]
fn a_chain_that_grew_between_two_starts_is_followed() {
    let world = World::small(717);
    let place = Place::new();
    for stop in [20, 99, 110, world.truth.stop] {
        let truth = Truth::of(&world.chain[..=stop as usize]);
        let place = Place {
            out: CrashStorage::new(),
            work: place.work.clone(),
            ..Place::with(Arc::clone(&place.store))
        };
        Job { stop: Stop::At(stop), ..world.job() }.expect(&truth, &place);
    }
}

/// The sync is stopped while it makes the hints; the next start requests a set at a higher block.
#[test]
fn a_chain_that_grew_while_hints_were_made() {
    let world = World::small(718);
    let (place, flag) = (Place::new(), AtomicBool::new(false));
    /// Interrupts while hints are made: only then are blocks processed in any order.
    struct StopAtBlocks<'a>(&'a AtomicBool);
    impl Observer for StopAtBlocks<'_> {
        fn event(&self, event: Event) {
            if event == Event::Started(Phase::Blocks) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
    }
    let lower = Job { stop: Stop::At(110), ..world.job() };
    let error = lower.run_watched(&place, &StopAtBlocks(&flag), &flag).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    assert_eq!(place.height(), Some(110));
    // The set at the lower block was finished.
    let place = Place { out: CrashStorage::new(), ..place };
    world.job().expect(&world.truth, &place);
}

/// Between two starts, blocks were connected without being kept, or were kept in another directory.
#[test]
fn a_data_directory_needs_all_blocks_from_the_first() {
    let world = World::small(719);
    let (sandbox, other_desk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let run = |place: Place, stop: u32, folder: Option<&TempDir>| {
        let job = Job { stop: Stop::At(stop), ..world.job() };
        let job = match folder {
            Some(folder) => job.keeping(folder.path()),
            None => job,
        };
        let ended = job.run(&place).map(drop);
        (Place { out: CrashStorage::new(), ..place }, ended)
    };
    let what = |ended: Result<(), SyncError>| match ended.unwrap_err() {
        SyncError::Usage(UsageError::OtherRun { what, .. }) => what,
        error => panic!("{error}"),
    };
    let (place, ended) = run(Place::new(), 105, Some(&sandbox));
    ended.unwrap();
    let (place, ended) = run(place, 110, Some(&other_desk));
    assert_eq!(what(ended), "with another data directory as output");
    assert_eq!(fs::read_dir(other_desk.path()).unwrap().count(), 0, "nothing may be created");
    let (place, ended) = run(place, 110, Some(&sandbox));
    ended.unwrap();
    let (place, ended) = run(place, 112, None);
    ended.unwrap();
    let (_, ended) = run(place, 115, Some(&sandbox));
    assert_eq!(what(ended), "partly without the data directory as output");
    let (place, ended) = run(Place::new(), 105, None);
    ended.unwrap();
    let (_, ended) = run(place, 110, Some(&other_desk));
    assert_eq!(what(ended), "without the data directory as output");
}

/// An earlier start with the same output lost its progress, and had followed another chain.
#[test]
fn a_data_directory_holds_nothing_of_an_earlier_draft() {
    let (world, sandbox) = (World::small(718), tempfile::tempdir().unwrap());
    let draft = sandbox.path().join("node.incomplete");
    fs::create_dir_all(draft.join("testnet3")).unwrap();
    fs::write(draft.join("apus.incomplete"), "").unwrap();
    world.job().keeping(sandbox.path()).expect(&world.truth, &Place::new());
    assert!(sandbox.path().join("node/regtest").is_dir());
    assert!(!sandbox.path().join("node/testnet3").exists());
}

/// A sync holds its data directory from the first block until it reports everything, even while it makes hints
/// after publishing the folder.
#[test]
fn a_data_directory_belongs_to_one_sync() {
    struct Locked<'a>(&'a Path, Mutex<Vec<Phase>>);
    impl Locked<'_> {
        fn is_held(&self) -> bool {
            let folders = ["node", "node.incomplete"].map(|name| self.0.join(name));
            let mark = folders.iter().find_map(|folder| {
                File::options().write(true).open(folder.join("apus.incomplete")).ok()
            });
            matches!(mark.unwrap().try_lock(), Err(TryLockError::WouldBlock))
        }
    }
    impl Observer for Locked<'_> {
        fn event(&self, event: Event) {
            let mut phases = self.1.lock().unwrap();
            if let Event::Started(phase) = event {
                phases.push(phase);
            }
            if phases.contains(&Phase::Connect) {
                assert!(self.is_held(), "{phases:?}");
            }
        }
    }
    let (world, sandbox) = (World::small(722), tempfile::tempdir().unwrap());
    let (job, place) = (world.job().keeping(sandbox.path()), Place::new());
    let observer = Locked(sandbox.path(), Mutex::default());
    let outcome = job.run_watched(&place, &observer, &AtomicBool::new(false)).unwrap();
    assert_eq!(observer.1.lock().unwrap().last(), Some(&Phase::Coins), "hints must come last");
    assert!(observer.is_held());
    let error = job.run(&Place::new()).unwrap_err();
    assert!(matches!(error, SyncError::Usage(UsageError::DraftInUse { .. })), "{error}");
    apus_sync::complete_folders(&outcome.written.folders).unwrap();
    assert!(
        apus_sync::complete_folders(&outcome.written.folders).is_err(),
        "it is no more to be done"
    );
}

/// The headers of a pruned node's index are read from the blocks, which takes long on a slow disk.
#[test]
fn a_stop_while_writing_the_index_is_resumed() {
    struct StopAtIndex<'a>(&'a AtomicBool, Mutex<Vec<Progress>>);
    impl Observer for StopAtIndex<'_> {
        fn event(&self, event: Event) {
            if let Event::Progress(Phase::Index, progress) = event {
                self.1.lock().unwrap().push(progress);
                self.0.store(true, Ordering::SeqCst);
            }
        }
    }
    let (world, sandbox) = (World::small(721), tempfile::tempdir().unwrap());
    let (kind, path) = (FolderKind::Datadir(DatadirBlocks::Last), sandbox.path().join("node"));
    let folders = vec![FolderOutput { kind, path: path.clone(), replace: false }];
    let (job, place, flag) = (Job { folders, ..world.job() }, Place::new(), AtomicBool::new(false));
    let observer = StopAtIndex(&flag, Mutex::default());
    let error = job.run_watched(&place, &observer, &flag).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    assert!(!path.exists());
    let reported = observer.1.into_inner().unwrap();
    let total = u64::from(world.truth.stop);
    assert!(reported.iter().all(|it| (1..=total).contains(&it.blocks) && it.blocks_total == total));
    assert_eq!(reported.len(), 1, "nothing may follow it: {reported:?}");
    job.expect(&world.truth, &place);
    assert!(path.join("regtest/blocks/index/CURRENT").exists());
}
