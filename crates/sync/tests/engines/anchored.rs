//! Hints are anchored: no block that Core would check is processed with them, unless the user allows it.

use crate::harness::{Job, Place, World, assuming, hash_of, random_chain};
use crate::world::{Truth, snapshot};
use apus_chain::{BlockHash, Network, Params, ScriptCheckReason};
use apus_sync::{
    ErrorKind, Event, HintedValidity, HintsInput, NotAnchored, Observer, Outcome, Phase, Stop,
    SyncError, UnanchoredBlocks, UsageError,
};
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::utxo_set;
use apus_testkit::storage::CrashStorage;
use std::num::NonZeroU32;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

#[derive(Default)]
struct Seen {
    phases: Mutex<Vec<Phase>>,
    warnings: Mutex<Vec<String>>,
}

impl Observer for Seen {
    fn event(&self, event: Event) {
        match event {
            Event::Started(phase) => self.phases.lock().unwrap().push(phase),
            Event::Warning(warning) if warning.is_of_run() => {
                self.warnings.lock().unwrap().push(warning.to_string());
            }
            _ => {}
        }
    }
}

/// Makes both kinds of hints up to `stop`.
fn hints_of(world: &World, stop: u32) -> [HintsInput; 2] {
    let part = &world.chain[..=stop as usize];
    let path = world.folder.path().join(format!("{stop}.dat"));
    std::fs::write(&path, snapshot(part, &utxo_set(part))).unwrap();
    [world.hints(stop), HintsInput::Snapshot(path)]
}

/// Makes jobs with both kinds of hints, which end where their hints end.
fn jobs(world: &World, job: &Job, stop: u32) -> [Job; 2] {
    hints_of(world, stop).map(|hints| Job {
        hints: Some(hints),
        stop: Stop::At(stop),
        ..job.clone()
    })
}

fn run_seen(job: &Job, place: &Place) -> (Result<Outcome, SyncError>, Seen) {
    let seen = Seen::default();
    let ended = job.run_watched(place, &seen, &AtomicBool::new(false));
    (ended, seen)
}

/// Expects a refusal before the first block and an unchanged work folder.
fn refusal_in(job: &Job, place: &Place) -> NotAnchored {
    let before = place.work.live_files();
    let (ended, seen) = run_seen(job, place);
    let error = ended.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    let SyncError::Usage(UsageError::NotAnchored(refused)) = error else { panic!("{error}") };
    assert!(!seen.phases.lock().unwrap().contains(&Phase::Blocks));
    assert!(place.work.live_files() == before, "the work folder was changed");
    assert!(place.output_files().is_empty());
    assert_eq!(place.height(), None);
    *refused
}

fn expect_refused(world: &World, job: &Job, stop: u32) -> NotAnchored {
    let [one, other] = jobs(world, job, stop).map(|job| refusal_in(&job, &Place::new()));
    assert_eq!(one, other);
    assert_eq!((one.last.height, one.last.hash), (stop, hash_of(&world.chain[stop as usize])));
    one
}

/// Expects success without a warning.
fn expect_taken(world: &World, job: &Job, stop: u32) {
    let truth = Truth::of(&world.chain[..=stop as usize]);
    for job in jobs(world, job, stop) {
        let place = Place::new();
        let (ended, seen) = run_seen(&job, &place);
        let outcome = ended.unwrap_or_else(|error| panic!("{stop}: {error}"));
        truth.check(&outcome, &place.out);
        assert_eq!(outcome.validation.hints.unanchored, None);
        assert_eq!(*seen.warnings.lock().unwrap(), Vec::<String>::new());
    }
}

fn assuming_block(world: &World, height: usize) -> Job {
    Job { assume_valid: Some(hash_of(&world.chain[height])), ..world.job() }
}

/// Returns rules with blocks a day apart, so that fifteen of them are more than two weeks.
fn daily() -> &'static Params {
    let day = NonZeroU32::new(86_400).unwrap();
    let mut params = assuming(Network::Regtest).clone();
    params.pow_target_spacing_seconds = day;
    Box::leak(Box::new(params))
}

#[test]
fn hints_reach_up_to_the_assumed_valid_block() {
    let world = World::small(760);
    let job = assuming_block(&world, 105);
    expect_taken(&world, &job, 105);
    expect_taken(&world, &job, 104);
    for stop in [106, 120] {
        let refused = expect_refused(&world, &job, stop);
        assert_eq!(refused.reason, ScriptCheckReason::AboveAssumedValid);
        assert_eq!(refused.last_assumed, Some(105));
        assert!(refused.could_be_assumed);
        let said = refused.to_string();
        for words in [
            &format!("block {stop} ({})", hash_of(&world.chain[stop as usize])),
            "the block is above the one assumed to be valid",
            "hints that stop at block 105 or below",
            "no hints",
            &format!("--assumevalid {}", hash_of(&world.chain[stop as usize])),
            "--assumevalid hints",
        ] {
            assert!(said.contains(words), "{words} is not in: {said}");
        }
    }
    // The suggested remedy works.
    expect_taken(&world, &assuming_block(&world, 106), 106);
}

#[test]
fn hints_reach_up_to_two_weeks_below_the_tip() {
    let world = World::small(761);
    // The tip is at 124.
    let job = Job { params: daily(), ..assuming_block(&world, 120) };
    expect_taken(&world, &job, 109);
    let refused = expect_refused(&world, &job, 110);
    assert_eq!(refused.reason, ScriptCheckReason::TooRecent);
    assert_eq!((refused.last_assumed, refused.could_be_assumed), (Some(109), false));
    let said = refused.to_string();
    assert!(said.contains("the block has less than two weeks of work on top of it"), "{said}");
    assert!(said.contains("stop at block 109 or below"), "{said}");
    assert!(!said.replace("--assumevalid hints", "").contains("--assumevalid"), "{said}");
}

#[test]
fn hints_need_a_chain_with_the_minimum_work() {
    let world = World::small(762);
    // Each of the 125 blocks takes two hashes.
    let with = |minimum_chain_work| {
        let params = Params { minimum_chain_work, ..assuming(Network::Regtest).clone() };
        Job { params: Box::leak(Box::new(params)), ..assuming_block(&world, 105) }
    };
    expect_taken(&world, &with(250), 105);
    let refused = expect_refused(&world, &with(251), 105);
    assert_eq!(refused.reason, ScriptCheckReason::TooLittleWork);
    assert_eq!((refused.last_assumed, refused.could_be_assumed), (None, false));
    let said = refused.to_string();
    assert!(said.contains("less work than the real chain"), "{said}");
    assert!(!said.contains("stop at block"), "{said}");
}

#[test]
fn hints_need_a_chain_with_the_assumed_valid_block() {
    let mut builder = random_chain(763);
    let chain = builder.blocks();
    builder.set_tip(chain[110].block_hash());
    let stale = builder.empty_blocks(3);
    let world = World::laid_out(&chain, |blocks| {
        let mut files = BlockFiles::regtest();
        files.blocks(blocks);
        files.blocks(&stale);
        files
    });
    for hash in [hash_of(&stale[2]), BlockHash([7; 32])] {
        let job = Job { assume_valid: Some(hash), ..world.job() };
        // Hints below the fork are refused, too. Core is less strict there: it would check only the branch.
        for stop in [100, 115] {
            let refused = expect_refused(&world, &job, stop);
            assert_eq!(refused.reason, ScriptCheckReason::NotInHeaders);
            assert_eq!((refused.last_assumed, refused.could_be_assumed), (None, true));
            let said = refused.to_string();
            assert!(said.contains("not in the best chain of headers"), "{said}");
        }
    }
    let refused = expect_refused(&world, &Job { assume_valid: None, ..world.job() }, 115);
    assert_eq!(refused.reason, ScriptCheckReason::NoAssumedValid);
    assert_eq!((refused.last_assumed, refused.could_be_assumed), (None, true));
    expect_taken(&world, &assuming_block(&world, 115), 115);
}

/// The blocks that only the user vouches for are reported, before the first block and at the end.
#[test]
fn the_user_may_vouch_for_blocks() {
    let world = World::small(764);
    let assumed = |job| Job { hinted_validity: HintedValidity::Assumed, ..job };
    let none = Job { assume_valid: None, ..world.job() };
    for (job, first, reason) in [
        (assuming_block(&world, 105), 106, ScriptCheckReason::AboveAssumedValid),
        (none.clone(), 1, ScriptCheckReason::NoAssumedValid),
    ] {
        for job in jobs(&world, &assumed(job), 110) {
            let place = Place::new();
            let (ended, seen) = run_seen(&job, &place);
            let outcome = ended.unwrap();
            Truth::of(&world.chain[..=110]).check(&outcome, &place.out);
            let unanchored = UnanchoredBlocks { first, last: 110, reason };
            assert_eq!(outcome.validation.hints.unanchored, Some(unanchored));
            let warnings = seen.warnings.into_inner().unwrap();
            assert_eq!(warnings, [unanchored.to_string()]);
            let words = ["--assumevalid hints", &format!("blocks {first} to 110"), "signatures"];
            assert!(words.iter().all(|words| warnings[0].contains(words)), "{warnings:?}");
        }
    }
    // If the user's word is not needed, there is no warning.
    expect_taken(&world, &assumed(assuming_block(&world, 105)), 105);
    // A sync that claims no validity has no warning either.
    let job = Job { hinted_validity: HintedValidity::NotAsked, ..none };
    expect_taken(&world, &job, 110);
}

/// Each start checks again.
#[test]
fn a_resumed_sync_needs_the_same_as_a_new_one() {
    let world = World::small(765);
    let truth = Truth::of(&world.chain[..=110]);
    let anchored = |job: &Job| Job { hinted_validity: HintedValidity::Anchored, ..job.clone() };
    let refused_job = Job { assume_valid: None, ..world.job() };
    let [by_file, by_snapshot] = jobs(&world, &refused_job, 110);
    for job in [by_file, by_snapshot] {
        let job = Job { hinted_validity: HintedValidity::Assumed, ..job };
        let place = Place::new();
        job.expect(&truth, &place);
        // Everything is done except the outputs.
        let place = Place { out: CrashStorage::new(), ..place };
        let refused = refusal_in(&anchored(&job), &place);
        assert_eq!(refused.reason, ScriptCheckReason::NoAssumedValid);
        assert!(job.expect(&truth, &place).validation.hints.unanchored.is_some());
    }
    for job in jobs(&world, &assuming_block(&world, 110), 110) {
        let place = Place::new();
        job.expect(&truth, &place);
        let place = Place { out: CrashStorage::new(), ..place };
        let job = Job { hinted_validity: HintedValidity::Assumed, ..job };
        assert_eq!(job.expect(&truth, &place).validation.hints.unanchored, None);
    }
}

/// Every rule is checked above the hints, even on top of blocks that were assumed valid.
#[cfg(feature = "kernel")]
#[test]
fn blocks_above_vouched_hints_are_connected() {
    let world = World::small(766);
    let job = Job {
        hints: Some(world.hints(110)),
        hinted_validity: HintedValidity::Assumed,
        ..assuming_block(&world, 105)
    };
    let outcome = job.expect(&world.truth, &Place::new());
    assert_eq!(
        (outcome.validation.connected_from, outcome.validation.scripts.run),
        (Some(111), 10)
    );
    let reason = ScriptCheckReason::AboveAssumedValid;
    assert_eq!(
        outcome.validation.hints.unanchored,
        Some(UnanchoredBlocks { first: 106, last: 110, reason })
    );
}
