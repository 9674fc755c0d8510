//! Tests of starts that do not fit the content of the work folder.

use crate::harness::{Job, Place, World};
use crate::world::Truth;
use apus_chain::BlockHash;
use apus_engine::utxo::store::MemoryStore;
use apus_sync::{
    ErrorKind, HintedValidity, InvalidError, IoError, RECORD, Stop, SyncError, UsageError,
};
use apus_testkit::storage::CrashStorage;
use std::sync::Arc;

/// Runs a sync to this height, keeping its progress.
fn done_to(world: &World, stop: u32, hints: Option<u32>) -> (Job, Place) {
    let place = Place::new();
    let hints = hints.map(|at| world.hints(at));
    let job = Job { hints, stop: Stop::At(stop), ..world.job() };
    job.expect(&Truth::of(&world.chain[..=stop as usize]), &place);
    let job = Job { stop: Stop::At(world.truth.stop), ..job };
    (job, Place { out: CrashStorage::new(), ..place })
}

fn expect_other(job: &Job, place: &Place, words: &str) {
    let before = place.work.live_files();
    let error = job.refused(place);
    assert!(matches!(error, SyncError::Usage(UsageError::OtherRun { .. })), "{error}");
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains(words), "{words} is not in: {error}");
    assert!(place.work.live_files() == before, "another sync's files were changed");
}

#[test]
fn another_sync_is_refused() {
    let world = World::small(740);
    let (plain, place) = done_to(&world, 110, None);
    expect_other(&Job { assume_valid: None, ..plain.clone() }, &place, "not no block");
    let other = Some(BlockHash([7; 32]));
    expect_other(&Job { assume_valid: other, ..plain.clone() }, &place, "0707");
    let hints = Some(world.hints(105));
    expect_other(&Job { hints, ..plain.clone() }, &place, "without hints");
    expect_other(&Job { stop: Stop::At(109), ..plain.clone() }, &place, "already at block 110");
    plain.expect(&world.truth, &place);

    let (hinted, place) = done_to(&world, 110, Some(105));
    // Other assumed-valid blocks must not make the sync refuse the hints.
    let hinted = Job { hinted_validity: HintedValidity::Assumed, ..hinted };
    expect_other(&Job { hints: None, ..hinted.clone() }, &place, "with hints");
    let hints = Some(world.hints(106));
    expect_other(&Job { hints, ..hinted.clone() }, &place, "106");
    expect_other(&Job { assume_valid: None, ..hinted.clone() }, &place, "not no block");
    expect_other(&Job { stop: Stop::At(109), ..hinted.clone() }, &place, "already at block 110");
    hinted.expect(&world.truth, &place);
}

/// If a sync ended where its hints end, the same command continues above them.
#[test]
fn a_sync_continues_above_finished_hints() {
    let world = World::small(741);
    let (job, place) = done_to(&world, 105, Some(105));
    assert_eq!(place.height(), None);
    job.expect(&world.truth, &place);
}

#[test]
fn a_damaged_record_is_refused() {
    let world = World::small(742);
    for hints in [None, Some(105)] {
        let (job, place) = done_to(&world, 110, hints);
        let files = place.work.live_files();
        for at in [0, 9, 20, 60, files[RECORD].len() - 1] {
            let mut damaged = files.clone();
            damaged.get_mut(RECORD).unwrap()[at] ^= 4;
            let work = CrashStorage::holding(damaged);
            let place = Place { work, ..Place::with(Arc::clone(&place.store)) };
            let error = job.refused(&place);
            assert!(matches!(error, SyncError::Io(IoError::WorkdirDamaged { .. })), "{error}");
            assert!(error.to_string().contains(RECORD), "{error}");
        }
        // Tries coins at a block that is in no record, and a record without such coins.
        let mut without = files.clone();
        without.remove(RECORD);
        let work = CrashStorage::holding(without);
        let lost = Place { work, ..Place::with(Arc::clone(&place.store)) };
        let error = job.refused(&lost);
        assert!(matches!(error, SyncError::Io(IoError::WorkdirDamaged { .. })), "{error}");
        let work = CrashStorage::holding(files);
        let anew = Place { work, ..Place::with(Arc::new(MemoryStore::new())) };
        job.expect(&world.truth, &anew);
    }
}

#[test]
fn impossible_stop_heights_are_refused() {
    let world = World::small(743);
    let place = Place::new();
    let error = Job { stop: Stop::At(0), ..world.job() }.refused(&place);
    assert!(matches!(error, SyncError::Usage(UsageError::NothingToDo)), "{error}");
    let error = Job { stop: Stop::At(9_999), ..world.job() }.refused(&place);
    assert!(
        matches!(error, SyncError::Invalid(InvalidError::StopAboveTip { stop: 9_999, .. })),
        "{error}"
    );
    let hints = Some(world.hints(100));
    let error = Job { stop: Stop::At(99), hints, ..world.job() }.refused(&place);
    assert!(
        matches!(error, SyncError::Usage(UsageError::StopHeight { wanted: 99, hints: 100 })),
        "{error}"
    );
    // Reported before the blocks below are processed: processing them leaves a plan in the work folder.
    let hints = Some(world.hints(100));
    let error = Job { stop: Stop::At(9_999), hints, ..world.job() }.refused(&place);
    assert!(
        matches!(error, SyncError::Invalid(InvalidError::StopAboveTip { stop: 9_999, .. })),
        "{error}"
    );
    assert!(place.work.live_files().is_empty());
    assert_eq!(place.height(), None);
}

/// A build that cannot run scripts says so before it leaves anything behind.
#[cfg(not(feature = "kernel"))]
#[test]
fn missing_script_support_is_reported_early() {
    use apus_sync::SilentObserver;
    use std::sync::atomic::AtomicBool;
    let world = World::small(744);
    let tip = Job { stop: Stop::AtTip, ..world.job() };
    for job in [Job { assume_valid: None, ..world.job() }, tip] {
        let place = Place::new();
        let open = || panic!("no store is needed");
        let (folder, flag) = (place.hints_folder.path(), AtomicBool::new(false));
        let ended = job.run_in(&place.work, &place.out, &open, folder, &SilentObserver, &flag);
        let error = ended.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        assert!(matches!(error, SyncError::Scripts(_)), "{error}");
        assert!(place.work.live_files().is_empty() && place.output_files().is_empty());
    }
}
