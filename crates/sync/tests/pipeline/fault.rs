//! Tests of disk errors: each operation fails once, in every way that a person can fix. The error names the
//! file and the remedy, and the next start ends with the right result.

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

/// Two folders on disks that can fail.
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

/// Asserts that the message names the place, the cause and the remedy.
fn expect_helpful(error: &SyncError, folder: &str, kind: io::ErrorKind) {
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    let text = error.to_string();
    assert!(text.contains(folder), "{text}");
    assert!(text.contains("made to fail"), "the system's own words are missing: {text}");
    let remedy = match kind {
        io::ErrorKind::StorageFull => "Free some space",
        io::ErrorKind::PermissionDenied => "Allow access",
        _ => "",
    };
    assert!(text.contains(remedy), "{text}");
}

/// Makes each operation of a start on these files fail, in one way or in all ways.
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
                    // The system asked for a retry, which succeeded.
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
fn in_a_resumed_sync() {
    let world = World::small(31);
    let job = Job { hints: world.snapshot_hints(), memory_bytes: 0, ..world.job() };
    let mut work = job.stopped_after(3);
    // These are leftovers of crashes, which are removed or do not matter.
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

/// From some operation on, all fail, as on a disk that stays full.
#[test]
fn a_permanent_failure_is_reported() {
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
            // Sometimes the system asks for a retry.
            storage.fail_every(Operation::Write, 50, io::ErrorKind::Interrupted);
            storage.fail_every(Operation::Read, 50, io::ErrorKind::Interrupted);
        }
        let job = Job { threads: 2, hints: world.snapshot_hints(), ..world.job() };
        disks.start(&job, &world.truth).unwrap();
    }
}

/// An error when looking up a file does not mean that the file is missing.
#[test]
fn a_foreign_file_survives_disk_errors() {
    let world = World::small(36);
    let foreign = Files::from([("set.dat".to_owned(), b"a thesis, precious".to_vec())]);
    for n in 0..2 {
        let disks = Disks::holding(&Files::new(), &foreign);
        disks.out.fail_nth(Operation::Len, n, io::ErrorKind::Other);
        disks.start(&world.job(), &world.truth).unwrap_err();
        assert_eq!(files(&disks.out_disk)["set.dat"], foreign["set.dat"]);
        disks.out.heal();
        let error = disks.start(&world.job(), &world.truth).unwrap_err();
        assert!(matches!(error, SyncError::Usage(UsageError::OutputExists { .. })), "{error}");
        assert_eq!(files(&disks.out_disk)["set.dat"], foreign["set.dat"]);
        // Without that file, the start succeeds quickly: no progress was lost.
        disks.out_disk.remove("set.dat").unwrap();
        let done = world.job().expect(&world.truth, &disks.work, &disks.out_disk).unwrap();
        assert_eq!(done.0, done.1);
    }
}
