//! Tests that a sync's key serves for one verdict: after a verdict against the hints, the key is never used
//! again. Until then it is kept, so that the work done under it counts.

use crate::harness::{Files, HINTS, Job, SET, World, files, hintsfile};
use apus_sync::engines::swiftsync::SwiftSyncError;
use apus_sync::{ErrorKind, SyncError};
use apus_testkit::chain::{hints, utxo_set};
use apus_testkit::oracle::{self, BitOrder};
use apus_testkit::storage::{AfterCrash, CrashStorage, FaultStorage, Operation};
use std::io;

/// Offset of the key in a plan: after the sync's identity, which has a fixed length.
const SECRET: usize = 8 + 4 + 4 + 4 + 4 + 32 + 32 + 1 + 4 + 4 + 1 + 1;

fn secret(files: &Files) -> Option<[u8; 32]> {
    Some(files.get("plan")?[SECRET..][..32].try_into().unwrap())
}

/// Returns the number of segments in a work folder's plan.
fn segments(files: &Files) -> u64 {
    u32::from_le_bytes(files["plan"][SECRET + 32..][..4].try_into().unwrap()).into()
}

/// Makes a sync whose hints leave one coin out: they fit every block, but the sums differ.
fn wrong_job(world: &World) -> Job {
    let mut hints = hints(&world.chain, &utxo_set(&world.chain));
    let block = hints.iter_mut().rfind(|block| block.len() > 1).unwrap();
    block.remove(0);
    let path = world.file("wrong.hints", &oracle::hints_file(&hints, BitOrder::Msb));
    Job { hints: hintsfile(&path), ..world.job() }
}

fn expect_unbalanced(error: &SyncError) {
    assert_eq!(error.kind(), ErrorKind::Wrong);
    let unbalanced = matches!(error.downcast(), Some(SwiftSyncError::Unbalanced { .. }));
    assert!(unbalanced, "{error}");
}

#[test]
fn two_runs_have_two_keys() {
    let world = World::small(70);
    let keys = [(); 2].map(|()| secret(&world.job().stopped_after(1)).unwrap());
    assert_ne!(keys[0], keys[1]);
    assert!(keys.iter().all(|key| *key != [0; 32]));
}

#[test]
fn a_key_is_kept_until_the_verdict() {
    let world = World::small(71);
    let work = world.job().stopped_after(2);
    let disk = CrashStorage::holding(work.clone());
    world.job().expect(&world.truth, &disk, &CrashStorage::new());
    assert_eq!(secret(&disk.live_files()), secret(&work));
}

#[test]
fn a_verdict_against_the_hints_ends_the_run() {
    let world = World::small(72);
    let job = wrong_job(&world);
    let before = job.stopped_after(2);
    let mut held = before.clone();
    held.insert("lock".to_owned(), Vec::new());
    held.insert("notes".to_owned(), vec![1]);
    let (disk, out) = (CrashStorage::holding(held), CrashStorage::new());
    expect_unbalanced(&job.run(&disk, &out).unwrap_err());
    assert!(files(&out).is_empty());
    for left in [disk.live_files(), disk.durable_image().live_files()] {
        assert_eq!(left.keys().collect::<Vec<_>>(), ["lock", "notes"]);
    }

    // Another sync with the same hints fails as well, under another key.
    let (disk, again) = (CrashStorage::new(), job.stopped_after(1));
    assert_ne!(secret(&again), secret(&before));
    expect_unbalanced(&job.run(&disk, &out).unwrap_err());
    // The folder is then free for better hints.
    world.job().expect(&world.truth, &disk, &out);
}

/// Power fails while the folder is deleted: either all segments remain and give the same verdict, or the key is
/// gone. A surviving key without its segments could be used for another attempt.
#[test]
fn a_crash_while_the_folder_is_wiped() {
    let world = World::small(73);
    let job = wrong_job(&world);
    let work = job.stopped_before_verdict();
    let (key, of) = (secret(&work), segments(&work));
    let all = {
        let disk = CrashStorage::holding(work.clone());
        expect_unbalanced(&job.run(&disk, &CrashStorage::new()).unwrap_err());
        disk.syncs()
    };
    for at in 0..all {
        let disk = CrashStorage::holding(work.clone());
        disk.crash_at(at, AfterCrash::Fail);
        // The error is the verdict, even if wiping the folder fails.
        let verdict = job.run(&disk, &CrashStorage::new()).unwrap_err();
        for image in (0..6).map(|seed| disk.crash_image(seed)).chain([disk.durable_image()]) {
            if verdict.downcast::<SwiftSyncError>().is_some() && secret(&image.live_files()) == key
            {
                let parts = image.live_files();
                let parts = parts.keys().filter(|name| name.ends_with(".part")).count();
                assert_eq!(parts as u64, of, "the key outlived its segments");
            }
            expect_unbalanced(&job.run(&image, &CrashStorage::new()).unwrap_err());
            assert!(files(&image).is_empty());
            world.job().expect(&world.truth, &image, &CrashStorage::new());
        }
    }
}

#[test]
fn a_disk_that_fails_while_the_folder_is_wiped() {
    let world = World::small(74);
    let job = wrong_job(&world);
    let work = job.stopped_before_verdict();
    let calls = {
        let disk = FaultStorage::new(CrashStorage::holding(work.clone()));
        expect_unbalanced(&job.run(&disk, &CrashStorage::new()).unwrap_err());
        disk.calls()
    };
    for n in 0..calls {
        let disk = CrashStorage::holding(work.clone());
        let faulty = FaultStorage::new(disk.clone());
        faulty.fail_nth(Operation::Any, n, io::ErrorKind::Other);
        let error = job.run(&faulty, &CrashStorage::new()).unwrap_err();
        if error.kind() == ErrorKind::Wrong {
            expect_unbalanced(&error);
        }
        faulty.heal();
        // The next start reaches the same verdict, and then the folder is free.
        expect_unbalanced(&job.run(&faulty, &CrashStorage::new()).unwrap_err());
        world.job().expect(&world.truth, &disk, &CrashStorage::new());
    }
}

impl Job {
    /// Returns the work folder of a sync with all segments finished except the last.
    fn stopped_before_verdict(&self) -> Files {
        self.stopped_after(segments(&self.stopped_after(0)) - 1)
    }
}

/// A block that breaks a rule says nothing about the hints: the work done is kept, in case the user finds
/// that the block files were to blame.
#[test]
fn a_bad_block_keeps_the_progress() {
    let world = World::small(75);
    let work = world.job().stopped_after(2);
    // The last block loses a byte of its coinbase, and has no other copy.
    let broken = World::laid_out(world.chain.clone(), |blocks| {
        let mut files = apus_testkit::blkfile::BlockFiles::regtest();
        let (last, rest) = blocks.split_last().unwrap();
        files.blocks(rest);
        let mut bytes = bitcoin::consensus::encode::serialize(last);
        bytes[140] ^= 1;
        files.record(&bytes);
        files
    });
    let job = Job { blocksdir: broken.blocksdir(), ..world.job() };
    let (disk, out) = (CrashStorage::holding(work.clone()), CrashStorage::new());
    let error = job.run(&disk, &out).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Wrong, "{error}");
    assert_eq!(secret(&disk.live_files()), secret(&work));
    assert!(!files(&out).contains_key(SET) && !files(&out).contains_key(HINTS));
    let (done, of) = world.job().expect(&world.truth, &disk, &out).unwrap();
    assert!(done >= 2 && done < of, "{done} of {of}");
}
