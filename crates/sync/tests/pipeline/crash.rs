//! Tests power failures at every sync point; data that was not durable is lost, kept or kept in part. The next
//! start must resume and end with the right result.
//!
//! The work folder and the output folder are on one disk here, so that a crash hits both at the same moment.

use crate::harness::{Files, HINTS, Job, PLACED, SET, Truth, World, files};
use apus_storage::{Storage, StorageFile};
use apus_testkit::effort::rounds;
use apus_testkit::storage::{AfterCrash, CrashStorage};
use std::io::{self, Read};

const WORK: &str = "work.";
const OUT: &str = "out.";

/// One of the two folders on the disk.
#[derive(Clone)]
struct Part {
    disk: CrashStorage,
    prefix: &'static str,
}

impl Part {
    fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

impl Storage for Part {
    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
        self.disk.create(&self.path(name))
    }
    fn sync(&self, name: &str) -> io::Result<()> {
        self.disk.sync(&self.path(name))
    }
    fn open(&self, name: &str, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        self.disk.open(&self.path(name), offset)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(&self.path(from), &self.path(to))
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(&self.path(name))
    }
    fn sync_names(&self) -> io::Result<()> {
        self.disk.sync_names()
    }
    fn names(&self) -> io::Result<Vec<String>> {
        let names = self.disk.names()?.into_iter();
        Ok(names.filter_map(|name| Some(name.strip_prefix(self.prefix)?.to_owned())).collect())
    }
    fn len(&self, name: &str) -> io::Result<u64> {
        self.disk.len(&self.path(name))
    }
}

/// Returns both folders.
fn parts(disk: &CrashStorage) -> (Part, Part) {
    let part = |prefix| Part { disk: disk.clone(), prefix };
    (part(WORK), part(OUT))
}

/// Runs a start on the disk, including the end of the sync if it succeeds.
fn start(job: &Job, disk: &CrashStorage, truth: &Truth) -> Result<(), apus_sync::SyncError> {
    let (work, out) = parts(disk);
    let outcome = job.run(&work, &out)?;
    // This holds even if the disk will lose all of it: the program still sees its own files.
    truth.check(&outcome, &out);
    apus_sync::discard_progress(&work)
}

/// Runs a start on the remains of a crash, which must succeed; returns the number of finished segments that it
/// found.
fn go_on(job: &Job, image: &CrashStorage, truth: &Truth) -> usize {
    let (_, out) = parts(image);
    truth.check_files(&files(&out));
    let named = crate::harness::Named::new("work", parts(image).0);
    let events = crate::harness::Events::default();
    let never = std::sync::atomic::AtomicBool::new(false);
    let outcome = job.run_watched(&named, &out, &events, &never);
    truth.check(&outcome.unwrap_or_else(|error| panic!("{error}")), &out);
    let created = named.created();
    let made = created.iter().filter(|name| name.starts_with("segment-") && name.ends_with(".run"));
    let done = match events.resumed() {
        Some((done, of)) => {
            assert_eq!(made.count(), of - done, "finished segments are not processed again");
            done
        }
        None => 0,
    };
    // The end must be durable: only the outputs remain, and they are complete.
    apus_sync::discard_progress(&named).unwrap();
    for left in [image.durable_image(), image.crash_image(1), image.crash_image(2)] {
        let expected = [
            (format!("{OUT}{SET}"), truth.snapshot.clone()),
            (format!("{OUT}{HINTS}"), truth.hints.clone()),
            (format!("{OUT}{PLACED}"), truth.commitment.1.clone()),
        ];
        assert!(left.live_files() == Files::from(expected), "{:?}", left.live_files().keys());
    }
    done
}

/// Possible contents of the disk after the crash, for some seeds.
fn images(disk: &CrashStorage, seeds: u64) -> Vec<CrashStorage> {
    let partly = (0..seeds).map(|seed| disk.crash_image(seed));
    [disk.durable_image()].into_iter().chain(partly).collect()
}

/// Returns the number of sync points of a whole sync.
fn syncs(job: &Job, truth: &Truth) -> u64 {
    let disk = CrashStorage::new();
    start(job, &disk, truth).unwrap();
    disk.syncs()
}

/// Runs a start on `disk`, which crashes at this sync point.
fn crash(job: &Job, disk: &CrashStorage, at: u64, after: AfterCrash, truth: &Truth) {
    disk.crash_at(at, after);
    let result = start(job, disk, truth);
    assert!(disk.crashed());
    // If only the last sync point is lost, the start may not notice it.
    assert_eq!(result.is_err(), after == AfterCrash::Fail);
}

fn check_every_point(job: &Job, truth: &Truth, seeds: u64) {
    let all = syncs(job, truth);
    let mut most = 0;
    for at in 0..all {
        for after in [AfterCrash::Fail, AfterCrash::Unnoticed] {
            let disk = CrashStorage::new();
            crash(job, &disk, at, after, truth);
            for (number, image) in images(&disk, seeds).iter().enumerate() {
                println!("crash at {at} ({after:?}), image {number}");
                let durable = durable_segments(&disk);
                let done = go_on(job, image, truth);
                if number == 0 {
                    assert_eq!(done, durable);
                }
                // In the last two sync points, a finished sync discards its progress.
                assert!(done >= durable || at >= all - 2, "only {done} of {durable} segments");
                most = most.max(done);
            }
        }
    }
    assert!(most >= 4, "no crash came so late that most segments were done");
}

/// Returns the number of segments that are certain to survive: their partial results are durable, and written
/// last.
fn durable_segments(disk: &CrashStorage) -> usize {
    let files = disk.durable_image().live_files();
    let part = |name: &&String| name.starts_with(WORK) && name.ends_with(".part");
    if files.contains_key("work.plan") { files.keys().filter(part).count() } else { 0 }
}

#[test]
fn at_every_sync_point_of_a_run_by_hints() {
    let world = World::small(20);
    check_every_point(&world.job(), &world.truth, 4);
}

#[test]
fn at_every_sync_point_of_a_run_by_a_snapshot() {
    let world = World::small(21);
    // So little memory forces the sync to merge runs early.
    let job = Job { hints: world.snapshot_hints(), memory_bytes: 0, ..world.job() };
    check_every_point(&job, &world.truth, 2);
}

#[test]
fn at_any_moment_of_several_threads() {
    let world = World::small(22);
    let job = Job { threads: 3, ..world.job() };
    let all = syncs(&job, &world.truth);
    for at in 0..all {
        let disk = CrashStorage::new();
        crash(&job, &disk, at, AfterCrash::Fail, &world.truth);
        for image in images(&disk, 2) {
            let done = go_on(&job, &image, &world.truth);
            assert!(done >= durable_segments(&disk) || at >= all - 2);
        }
    }
}

#[test]
fn twice_in_a_row() {
    let world = World::small(23);
    let (job, truth) = (world.job(), &world.truth);
    // Combines each first crash with some second ones, or with all.
    let one_in = rounds(7, 1);
    for first in 0..syncs(&job, truth) {
        let disk = CrashStorage::new();
        crash(&job, &disk, first, AfterCrash::Fail, truth);
        let image = disk.crash_image(first);
        // The remaining files determine how far the second start gets.
        let left = {
            let copy = CrashStorage::holding(image.live_files());
            start(&job, &copy, truth).unwrap();
            copy.syncs()
        };
        for second in (0..left).filter(|second| (first + second) % one_in == 0) {
            for after in [AfterCrash::Fail, AfterCrash::Unnoticed] {
                let disk = CrashStorage::holding(image.live_files());
                crash(&job, &disk, second, after, truth);
                for image in images(&disk, 1) {
                    println!("crash at {first}, then at {second} ({after:?})");
                    go_on(&job, &image, truth);
                }
            }
        }
    }
}

/// The sync still advances if it crashes five times, each time soon after its start.
#[test]
fn five_crashes_in_a_row_do_not_stop_progress() {
    let world = World::small(24);
    let job = Job { segment_bytes: Some(1), ..world.job() };
    let mut image = CrashStorage::new();
    let mut done = 0;
    for round in 0..5 {
        image.crash_at(40, AfterCrash::Fail);
        start(&job, &image, &world.truth).unwrap_err();
        let durable = durable_segments(&image);
        assert!(durable > done, "no progress in round {round}");
        done = durable;
        image = image.crash_image(round);
    }
    assert!(go_on(&job, &image, &world.truth) >= done);
}
