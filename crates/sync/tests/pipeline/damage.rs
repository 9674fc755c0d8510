//! Tests of damaged files in the work folder: they are made again, and no damage reaches a result.

use crate::harness::{Files, Job, World, files};
use apus_sync::{ErrorKind, IoError, SyncError};
use apus_testkit::rng::Rng;
use apus_testkit::storage::CrashStorage;

/// Returns a work folder with all segments finished, and the names of its files with this ending.
fn done(job: &Job, end: &str) -> (Files, Vec<String>) {
    let work = job.stopped_before_outputs();
    let names: Vec<String> = work.keys().filter(|name| name.ends_with(end)).cloned().collect();
    assert!(names.len() > 3);
    (work, names)
}

/// Runs a start that must notice at once that a segment changed after it was written.
fn expect_redone(world: &World, job: &Job, work: Files) {
    let disk = CrashStorage::holding(work);
    let (done, of) = job.expect(&world.truth, &disk, &CrashStorage::new()).unwrap();
    assert_eq!(done, of - 1);
}

/// Returns damaged versions of a file: with flipped bits, missing bytes and extra bytes.
fn damages(bytes: &[u8], flips: usize, rng: &mut Rng) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for _ in 0..flips {
        let mut copy = bytes.to_vec();
        copy[rng.index(bytes.len())] ^= 1 << rng.below(8);
        all.push(copy);
    }
    all.push(bytes[..bytes.len() - 1].to_vec());
    all.push(bytes[..rng.index(bytes.len())].to_vec());
    all.push(Vec::new());
    all.push([bytes, &[0]].concat());
    all.push([bytes, bytes].concat());
    all
}

#[test]
fn a_partial_result() {
    let world = World::small(80);
    let job = world.job();
    let (work, parts) = done(&job, ".part");
    let mut rng = Rng::new(80);
    for name in &parts {
        for bytes in damages(&work[name], 12, &mut rng) {
            let mut work = work.clone();
            work.insert(name.clone(), bytes);
            expect_redone(&world, &job, work);
        }
        let mut work = work.clone();
        work.remove(name);
        expect_redone(&world, &job, work);
    }
}

#[test]
fn partial_results_that_change_places() {
    let world = World::small(81);
    let (work, parts) = done(&world.job(), ".part");
    let mut swapped = work.clone();
    swapped.insert(parts[0].clone(), work[&parts[1]].clone());
    expect_redone(&world, &world.job(), swapped);
}

#[test]
fn a_run_of_another_length() {
    let world = World::small(82);
    let (work, runs) = done(&world.job(), ".run");
    for name in &runs {
        for bytes in damages(&work[name], 0, &mut Rng::new(82)) {
            let mut work = work.clone();
            work.insert(name.clone(), bytes);
            expect_redone(&world, &world.job(), work);
        }
        let mut work = work.clone();
        work.remove(name);
        expect_redone(&world, &world.job(), work);
    }
}

/// A flipped bit in a run shows only when all of it is read. Until then, the damage may look like another txid,
/// unreadable coins or an excessive length.
#[test]
fn a_flipped_bit_in_a_run() {
    let world = World::small(83);
    for job in [world.job(), Job { memory_bytes: 0, segment_bytes: Some(2_000), ..world.job() }] {
        let (work, runs) = done(&job, ".run");
        let mut rng = Rng::new(83);
        for name in runs.iter().step_by(runs.len() / 4) {
            let length = work[name].len();
            // These are in the txid, the length and the first coins' numbers; the others are anywhere.
            let mut places = vec![0, 1, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40];
            places.extend((0..20).map(|_| rng.index(length)));
            for place in places {
                let mut work = work.clone();
                work.get_mut(name).unwrap()[place] ^= 1 << rng.below(8);
                let (disk, out) = (CrashStorage::holding(work), CrashStorage::new());
                let error = job.run(&disk, &out).unwrap_err();
                assert!(
                    matches!(&error, SyncError::Io(IoError::RunDamaged { run, .. }) if run == name),
                    "byte {place} of {name}: {error}"
                );
                assert_eq!(error.kind(), ErrorKind::Io);
                assert!(files(&out).keys().all(|name| name.ends_with(".incomplete")));
                // This is the rerun that the error suggests.
                let (done, of) = job.expect(&world.truth, &disk, &out).unwrap();
                assert_eq!(done, of - 1);
            }
        }
    }
}

/// Swaps two runs of equal length, like a disk that mixes up its sectors.
#[test]
fn a_run_with_the_bytes_of_another() {
    let world = World::small(84);
    let job = Job { segment_bytes: Some(1), ..world.job() };
    let (work, runs) = done(&job, ".run");
    let twin = |name: &&String| {
        let length = work[*name].len();
        runs.iter().find(|other| other > name && length > 0 && work[*other].len() == length)
    };
    let first = runs.iter().find(|name| twin(name).is_some()).unwrap();
    let second = twin(&first).unwrap();
    let mut mixed = work.clone();
    mixed.insert(first.clone(), work[second].clone());
    let (disk, out) = (CrashStorage::holding(mixed), CrashStorage::new());
    let error = job.run(&disk, &out).unwrap_err();
    assert!(
        matches!(&error, SyncError::Io(IoError::RunDamaged { run, .. }) if run == first),
        "{error}"
    );
    let (done, of) = job.expect(&world.truth, &disk, &out).unwrap();
    assert_eq!(done, of - 1);
}

/// Damages several files at once: each start finds at least one, and the last start succeeds.
#[test]
fn damage_to_several_files_is_repaired() {
    let world = World::small(85);
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let (mut work, _) = done(&world.job(), ".run");
        for (name, bytes) in &mut work {
            if name != "plan" && rng.one_in(2) {
                let place = rng.index(bytes.len());
                bytes[place] ^= 1 << rng.below(8);
            }
        }
        let (disk, out) = (CrashStorage::holding(work), CrashStorage::new());
        let mut starts = 0;
        loop {
            match world.job().run(&disk, &out) {
                Ok(outcome) => break world.truth.check(&outcome, &out),
                Err(error) => {
                    assert!(matches!(error, SyncError::Io(IoError::RunDamaged { .. })), "{error}")
                }
            }
            starts += 1;
            assert!(starts < 8, "the damage comes back");
        }
    }
}
