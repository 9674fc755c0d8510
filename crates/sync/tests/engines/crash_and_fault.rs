//! Guarantees of every engine for crashes and failing disks: after any loss, the same command computes
//! the same set.
//!
//! A crash loses everything in the work folder and the output folder that was not durable. The coins of a sync
//! that connects blocks are in a store with atomic writes.

use crate::harness::{Job, Place, World};
use crate::ways::ways;
use crate::world::{Truth, files};
use apus_storage::Storage;
use apus_sync::ErrorKind;
use apus_testkit::effort::rounds;
use apus_testkit::rng::Rng;
use apus_testkit::storage::{AfterCrash, CrashStorage, FaultStorage, Operation};
use std::io;
use std::sync::Arc;

/// Picks some of these points: the first, the last and random ones, or all in a long test.
fn some(points: u64, rng: &mut Rng) -> Vec<u64> {
    let few = rounds(6, points);
    let mut some: Vec<u64> = (0..few).map(|_| rng.below(points)).collect();
    match few < points {
        true => some.extend([0, points - 1]),
        false => some = (0..points).collect(),
    }
    some.sort_unstable();
    some.dedup();
    some
}

/// A folder of a sync.
#[derive(Debug, Clone, Copy)]
enum Folder {
    Work,
    Out,
}

fn of(place: &Place, folder: Folder) -> &CrashStorage {
    match folder {
        Folder::Work => &place.work,
        Folder::Out => &place.out,
    }
}

#[test]
fn a_crash_at_any_sync_point_gives_the_same_set() {
    let (world, mut rng) = (World::small(820), Rng::new(820));
    for (name, job, truth) in ways(&world) {
        let whole = Place::new();
        job.expect(&truth, &whole);
        for folder in [Folder::Work, Folder::Out] {
            for at in some(of(&whole, folder).syncs(), &mut rng) {
                for after in [AfterCrash::Fail, AfterCrash::Unnoticed] {
                    println!("{name}: {folder:?} crashes at {at}, {after:?}");
                    crash_and_resume(&job, &truth, folder, (at, after), &mut rng);
                }
            }
        }
    }
}

fn crash_and_resume(
    job: &Job,
    truth: &Truth,
    folder: Folder,
    (at, after): (u64, AfterCrash),
    rng: &mut Rng,
) {
    let mut place = Place::new();
    of(&place, folder).crash_at(at, after);
    let ended = job.run(&place);
    assert!(of(&place, folder).crashed());
    assert_eq!(ended.is_err(), after == AfterCrash::Fail);
    if ended.is_ok() && matches!(folder, Folder::Work) {
        // The disk lost all later writes, but the coins are where the sync ended. No crash can cause that in a
        // store that is written after the record in the work folder.
        place.store = Place::new().store;
    }
    let image = |disk: &CrashStorage, rng: &mut Rng| match rng.one_in(2) {
        true => disk.durable_image(),
        false => disk.crash_image(rng.next_u64()),
    };
    (place.work, place.out) = (image(&place.work, rng), image(&place.out, rng));
    truth.check_files(&files(&place.out));
    job.expect(truth, &place);
}

#[test]
fn a_failure_of_any_operation_gives_the_same_set() {
    let (world, mut rng) = (World::small(821), Rng::new(821));
    for (name, job, truth) in ways(&world) {
        let start = |place: &Place, work: &FaultStorage, out: &Arc<FaultStorage>| {
            let out: Arc<dyn Storage> = Arc::<FaultStorage>::clone(out);
            job.run_on(work, &out, place)
        };
        let disks = |place: &Place| {
            let out = Arc::new(FaultStorage::new(place.out.clone()));
            (FaultStorage::new(place.work.clone()), out)
        };
        let whole = Place::new();
        let (work, out) = disks(&whole);
        start(&whole, &work, &out).unwrap();
        for (folder, calls) in [(Folder::Work, work.calls()), (Folder::Out, out.calls())] {
            for at in some(calls, &mut rng) {
                println!("{name}: operation {at} of {folder:?} fails");
                let place = Place::new();
                let (work, out) = disks(&place);
                let faulty = if matches!(folder, Folder::Work) { &work } else { &*out };
                faulty.fail_nth(Operation::Any, at, io::ErrorKind::StorageFull);
                let error = start(&place, &work, &out).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                assert!(error.to_string().contains("made to fail"), "{error}");
                assert_eq!(faulty.failed(), 1);
                truth.check_files(&files(&place.out));
                faulty.heal();
                let outcome = start(&place, &work, &out).unwrap();
                truth.check(&outcome, &place.out);
            }
        }
    }
}
