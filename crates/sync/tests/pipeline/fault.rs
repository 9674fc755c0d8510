//! The disk says no: every single operation fails once, in every way that a person can mend. The
//! error names the file and the remedy, and the next start ends with the right result.

use crate::harness::{Files, Job, Named, Truth, World, files};
use apus_storage::Storage;
use apus_sync::{ErrorKind, SyncError, UsageError};
use apus_testkit::effort::rounds;
use apus_testkit::storage::{CrashStorage, FaultStorage, Operation};
use std::io;

const KINDS: [io::ErrorKind; 4] = [
    io::ErrorKind::StorageFull,
    io::ErrorKind::PermissionDenied,
    io::ErrorKind::Interrupted,
    io::ErrorKind::Other,
];

/// Two folders whose disks can fail, and what is on them.
struct Disks {
    work_disk: CrashStorage,
    out_disk: CrashStorage,
    work: FaultStorage,
    out: FaultStorage,
}

impl Disks {
    fn holding(work: &Files, out: &Files) -> Self {
        let work_disk = CrashStorage::holding(work.clone());
        let out_disk = CrashStorage::holding(out.clone());
        let work = FaultStorage::new(Named::new("/work", work_disk.clone()));
        let out = FaultStorage::new(Named::new("/out", out_disk.clone()));
        Self { work_disk, out_disk, work, out }
    }

    fn start(&self, job: &Job, truth: &Truth) -> Result<(), SyncError> {
        let outcome = job.run(&self.work, &self.out)?;
        truth.check(&outcome, &self.out_disk);
        apus_sync::discard_progress(&self.work)
    }
}

/// What a person needs to know.
fn expect_helpful(error: &SyncError, folder: &str, kind: io::ErrorKind) {
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    let text = error.to_string();
    assert!(text.contains(folder), "{text}");
    assert!(text.contains("made to fail"), "the system's own words are missing: {text}");
    let remedy = match kind {
        io::ErrorKind::StorageFull => "free some space",
        io::ErrorKind::PermissionDenied => "allow access",
        _ => "",
    };
    assert!(text.contains(remedy), "{text}");
}

/// Fails each operation of a start on the files given, in one of the ways or in all of them.
fn check_every_operation(job: &Job, truth: &Truth, work: &Files, out: &Files) {
    let whole = Disks::holding(work, out);
    whole.start(job, truth).unwrap();
    let one_in = rounds(KINDS.len() as u64, 1);
    for (folder, calls) in [("/work", whole.work.calls()), ("/out", whole.out.calls())] {
        assert!(calls > 8, "{folder}: {calls}");
        for n in 0..calls {
            for (_, kind) in (n..).zip(KINDS).filter(|(number, _)| number % one_in == 0) {
                let disks = Disks::holding(work, out);
                let faulty = if folder == "/work" { &disks.work } else { &disks.out };
                faulty.fail_nth(Operation::Any, n, kind);
                println!("{folder}, operation {n}, {kind:?}");
                match disks.start(job, truth) {
                    Err(error) => expect_helpful(&error, folder, kind),
                    // The system asks for another try, and gets it.
                    Ok(()) => assert_eq!(kind, io::ErrorKind::Interrupted),
                }
                assert_eq!(faulty.failed(), 1);
                truth.check_files(&files(&disks.out_disk));
                faulty.heal();
                disks.start(job, truth).unwrap();
                assert!(files(&disks.work_disk).is_empty());
            }
        }
    }
}

#[test]
fn in_a_run_from_nothing() {
    let world = World::small(30);
    check_every_operation(&world.job(), &world.truth, &Files::new(), &Files::new());
}

#[test]
fn in_a_run_that_goes_on() {
    let world = World::small(31);
    let job = Job { hints: world.snapshot_hints(), memory_bytes: 0, ..world.job() };
    let mut work = job.stopped_after(3);
    // What crashes leave behind: it goes, or nothing depends on it.
    for name in ["merge-0.run", "spill-7.run", "segment-00000099-00000100.part.tmp", "plan.tmp"] {
        work.insert(name.to_owned(), vec![1, 2, 3]);
    }
    let drafts = Files::from([("set.dat.incomplete".to_owned(), vec![7; 5_000])]);
    check_every_operation(&job, &world.truth, &work, &drafts);
}

#[test]
fn in_a_run_whose_outputs_are_there_already() {
    let world = World::small(32);
    let work = world.job().stopped_before_outputs();
    let out = Files::from([
        ("set.dat".to_owned(), world.truth.snapshot.clone()),
        ("set.hints".to_owned(), world.truth.hints.clone()),
    ]);
    check_every_operation(&world.job(), &world.truth, &work, &out);
}

#[test]
fn in_a_merge_of_many_rounds() {
    let world = World::small(33);
    let many = Job { segment_bytes: Some(2_000), memory_bytes: 0, ..world.job() };
    let work = many.stopped_before_outputs();
    assert!(work.len() > 20, "{}", work.len());
    let calls = {
        let whole = Disks::holding(&work, &Files::new());
        whole.start(&many, &world.truth).unwrap();
        whole.work.calls()
    };
    for n in (0..calls).step_by(7) {
        let disks = Disks::holding(&work, &Files::new());
        disks.work.fail_nth(Operation::Any, n, io::ErrorKind::StorageFull);
        let error = disks.start(&many, &world.truth).unwrap_err();
        expect_helpful(&error, "/work", io::ErrorKind::StorageFull);
        world.truth.check_files(&files(&disks.out_disk));
        disks.work.heal();
        disks.start(&many, &world.truth).unwrap();
    }
}

/// From some moment on nothing works any more, as when a disk is full and stays full.
#[test]
fn for_good() {
    let world = World::small(34);
    let (job, truth) = (Job { threads: 3, ..world.job() }, &world.truth);
    for operation in [Operation::Write, Operation::Sync, Operation::Create, Operation::Rename] {
        for n in 0..14 {
            let disks = Disks::holding(&Files::new(), &Files::new());
            disks.work.fail_from(operation, n, io::ErrorKind::StorageFull);
            match disks.start(&job, truth) {
                Err(error) => expect_helpful(&error, "/work", io::ErrorKind::StorageFull),
                Ok(()) => assert!(disks.work.failed() == 0 && n > 3),
            }
            truth.check_files(&files(&disks.out_disk));
            disks.work.heal();
            disks.start(&job, truth).unwrap();
        }
    }
}

#[test]
fn transfers_of_a_few_bytes_at_a_time() {
    let world = World::small(35);
    for bytes in [1, 7, 4_096] {
        let disks = Disks::holding(&Files::new(), &Files::new());
        for storage in [&disks.work, &disks.out] {
            storage.short_transfers(bytes);
            // And every now and then the system asks for another try.
            storage.fail_every(Operation::Write, 50, io::ErrorKind::Interrupted);
            storage.fail_every(Operation::Read, 50, io::ErrorKind::Interrupted);
        }
        let job = Job { threads: 2, hints: world.snapshot_hints(), ..world.job() };
        disks.start(&job, &world.truth).unwrap();
    }
}

/// A file that cannot even be looked at is not one that is not there.
#[test]
fn a_foreign_file_of_the_outputs_name_survives_a_disk_that_cannot_tell() {
    let world = World::small(36);
    let foreign = Files::from([("set.dat".to_owned(), b"somebody's thesis".to_vec())]);
    for n in 0..2 {
        let disks = Disks::holding(&Files::new(), &foreign);
        disks.out.fail_nth(Operation::Len, n, io::ErrorKind::Other);
        disks.start(&world.job(), &world.truth).unwrap_err();
        assert_eq!(files(&disks.out_disk)["set.dat"], foreign["set.dat"]);
        disks.out.heal();
        let error = disks.start(&world.job(), &world.truth).unwrap_err();
        assert!(matches!(error, SyncError::Usage(UsageError::OutputExists { .. })), "{error}");
        assert_eq!(files(&disks.out_disk)["set.dat"], foreign["set.dat"]);
        // Out of the way, the rest is quick: nothing was given up.
        disks.out_disk.remove("set.dat").unwrap();
        let done = world.job().expect(&world.truth, &disks.work, &disks.out_disk).unwrap();
        assert_eq!(done.0, done.1);
    }
}
