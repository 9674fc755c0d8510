//! Shared mergesync runs, through a queue in memory: they give the result of a single machine, even if machines answer
//! for other jobs or lose objects.

use crate::bad_blocks::{bad_blocks, files, wrong_height};
use crate::harness::{Job, Place, World, hash_of, random_chain};
use crate::memory_queue::{MACHINES, MemoryQueue, NotRemoved};
use crate::roots::{truth, with_roots};
use crate::world::Events;
use apus_chain::{BlockHash, HeightRange};
use apus_jobs::{ClusterError, JobStep};
use apus_sync::{DatadirBlocks, Engine, ErrorKind, Event, FolderKind, FolderOutput, Outcome};
use apus_sync::{Machines, SyncError, Warning};
use apus_testkit::chain::{ScriptKind, Shape, coins_of};
use apus_testkit::effort::rounds;
use bitcoin::Block;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of the steps in messages (`extras/jobs/src/queue`).
const BLOCKS: u8 = 0;
const JOIN: u8 = 1;
const CONNECT: u8 = 2;

/// Offsets of the step and of the body in a result.
const STEP: usize = 44;
const BODY: usize = 53;

/// Segments of one or two blocks.
const SHORTEST: u64 = 100;

/// Whether a warning contains these words.
fn says(warning: &Warning, words: &str) -> bool {
    matches!(warning, Warning::Extra(text) if text.contains(words))
}

/// A small chain whose expected result includes the roots of the forest.
fn small(seed: u64) -> World {
    rooted(World::small(seed))
}

fn of(chain: &[Block]) -> World {
    rooted(World::of(chain))
}

fn rooted(world: World) -> World {
    World { truth: truth(&world), ..world }
}

fn alone(world: &World) -> Job {
    with_roots(Job { engine: Engine::MergeSync, ..world.job() })
}

/// Runs a job on two machines, whose objects `alter` may change. Returns the warnings and the outcome.
fn shared(
    job: &Job,
    place: &Place,
    alter: impl FnMut(&mut Vec<u8>) -> bool + Send + 'static,
) -> (Vec<Warning>, Result<Outcome, SyncError>) {
    shared_by(MemoryQueue::new(alter), job, place)
}

/// Runs a job on the machines of a given queue.
fn shared_by(
    queue: MemoryQueue,
    job: &Job,
    place: &Place,
) -> (Vec<Warning>, Result<Outcome, SyncError>) {
    let queue = Arc::new(queue);
    let (warnings, outcome) = watched(&queue, job, place);
    let error = outcome.as_ref().err().map(ToString::to_string);
    assert_eq!(queue.objects(), 0, "they go with the run: {error:?}");
    (warnings, outcome)
}

/// Runs a job on the machines of a given queue; the run may stay open.
fn watched(
    queue: &Arc<MemoryQueue>,
    job: &Job,
    place: &Place,
) -> (Vec<Warning>, Result<Outcome, SyncError>) {
    let (events, never) = (Events::default(), AtomicBool::new(false));
    let machines: Arc<dyn Machines + Send + Sync> = Arc::clone(queue) as _;
    let job = Job { machines: Some(machines), ..job.clone() };
    let run = || job.run_watched(place, &events, &never);
    let outcome = queue.with_machines(&job.blocksdir, run);
    let warning = |event| match event {
        Event::Warning(warning) => Some(warning),
        _ => None,
    };
    (events.all().into_iter().filter_map(warning).collect(), outcome)
}

fn keeping(job: &Job, kind: DatadirBlocks, temp: &Path) -> Job {
    let kind = FolderKind::Datadir(kind);
    let folders = vec![FolderOutput { kind, path: temp.join("node"), replace: false }];
    Job { folders, ..job.clone() }
}

#[test]
fn several_machines_compute_the_same_set_as_one() {
    let world = small(870);
    for leave_witnesses in [false, true] {
        for segment_bytes in [SHORTEST, 2_000, 1 << 20] {
            let (place, job) =
                (Place::new(), Job { segment_bytes, leave_witnesses, ..alone(&world) });
            let (warnings, outcome) = shared(&job, &place, |_| true);
            assert!(warnings.is_empty(), "{warnings:?}");
            let outcome = outcome.unwrap();
            world.truth.check(&outcome, &place.out);
            assert_eq!(
                (outcome.validation.scripts.run, outcome.validation.scripts.assumed),
                (0, u64::from(world.truth.stop))
            );
            // Nothing is left behind.
            apus_sync::discard_progress(&place.work).unwrap();
            assert_eq!(apus_storage::Storage::names(&place.work).unwrap(), [""; 0]);
        }
    }
}

/// If a run cannot be removed, its result or verdict is still delivered.
#[test]
fn a_run_that_cannot_be_removed_causes_a_warning() {
    let world = small(877);
    let by_hints = Job { hints: Some(world.hints(world.truth.stop)), ..world.job() };
    let by_hints = with_roots(by_hints);
    for (job, says) in [
        (alone(&world), NotRemoved::AtClose),
        (alone(&world), NotRemoved::Later),
        (by_hints.clone(), NotRemoved::AtClose),
        (by_hints, NotRemoved::Later),
    ] {
        let (place, job) = (Place::new(), Job { segment_bytes: 2_000, ..job });
        let (warnings, outcome) = shared_by(MemoryQueue::that_does_not_close(says), &job, &place);
        world.truth.check(&outcome.unwrap(), &place.out);
        let [Warning::Extra(why)] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(
            why.contains("could not remove all its data") && why.contains("not empty"),
            "{why}"
        );
    }
    let mut builder = random_chain(878);
    wrong_height(&mut builder);
    builder.empty_blocks(2);
    let world = of(&builder.blocks());
    let queue = MemoryQueue::that_does_not_close(NotRemoved::AtClose);
    let (_, outcome) = shared_by(queue, &alone(&world), &Place::new());
    let error = outcome.unwrap_err();
    assert!(error.to_string().contains("[bad-cb-height]"), "{error}");
}

/// One machine and several give the same error.
fn fails_alike(job: &Job, reason: &str) {
    let expected = job.refused(&Place::new()).to_string();
    assert!(expected.contains(&format!("[{reason}]")), "{expected}");
    let place = Place::new();
    let (_, outcome) = shared(job, &place, |_| true);
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(error.to_string(), expected);
    assert!(place.output_files().is_empty());
}

/// In the first case, many segments are above the block, and the job keeps blocks.
#[test]
fn a_block_that_breaks_a_coin_rule_is_reported() {
    for (at, (reason, make)) in bad_blocks().into_iter().enumerate() {
        let mut builder = random_chain(871);
        builder.empty_blocks(1);
        let plan = make(&mut builder);
        builder.add_plan(plan);
        builder.empty_blocks(if at == 0 { 420 } else { 3 });
        let world = of(&builder.blocks());
        let temp = tempfile::tempdir().unwrap();
        let job = Job { segment_bytes: SHORTEST, ..alone(&world) };
        match at {
            0 => fails_alike(&keeping(&job, DatadirBlocks::All, temp.path()), reason),
            _ => fails_alike(&job, reason),
        }
    }
}

/// The lowest invalid block is reported, whichever step finds it: segments are cut below a block that the first step
/// rejects.
#[test]
fn the_lowest_invalid_block_is_reported() {
    let (reason, make) = bad_blocks()[0];
    for (lows, high) in
        [(vec![true], false), (vec![false], true), (vec![false], false), (vec![], false)]
    {
        for segment_bytes in [SHORTEST, 3_000] {
            let mut builder = random_chain(872);
            let mut wrong = |by_coins: bool| match by_coins {
                true => {
                    let plan = make(&mut builder);
                    hash_of(&builder.add_plan(plan))
                }
                false => hash_of(&wrong_height(&mut builder)),
            };
            let mut all: Vec<_> = lows.iter().map(|by_coins| wrong(*by_coins)).collect();
            all.push(wrong(high));
            builder.empty_blocks(2);
            let world = of(&builder.blocks());
            let job = Job { segment_bytes, ..alone(&world) };
            let error = job.refused(&Place::new()).to_string();
            assert!(error.contains(&all[0].to_string()), "{error}");
            let by_coins = lows.first().is_some_and(|by_coins| *by_coins);
            fails_alike(&job, if by_coins { reason } else { "bad-cb-height" });
        }
    }
}

/// A transaction that exists already is reported as such only while outputs of it are unspent (BIP-30): the job that
/// connects the block cannot tell, but the coordinator finds out. The last block makes the first step refuse one, too.
#[test]
fn a_repeated_transaction_is_reported() {
    for is_there in [true, false] {
        for has_wrong_height in [true, false] {
            let mut builder = random_chain(883);
            let (outpoint, _) = builder.mature_coin();
            let output = builder.output(9_000, ScriptKind::OpTrue);
            let tx = builder.spend(&[outpoint], vec![output]);
            let [spend, again] = [8_000, 7_000].map(|satoshi| {
                let output = builder.output(satoshi, ScriptKind::OpTrue);
                builder.spend_coins(&coins_of(&tx), vec![output])
            });
            builder.block_with(vec![tx.clone()]);
            builder.block_with(if is_there { Vec::new() } else { vec![spend] });
            builder.empty_blocks(2);
            builder.block_with(vec![tx, again]);
            match has_wrong_height {
                true => drop(wrong_height(&mut builder)),
                false => drop(builder.empty_blocks(2)),
            }
            let reason = if is_there { "bad-txns-BIP30" } else { "bad-txns-inputs-missingorspent" };
            for segment_bytes in [SHORTEST, 1 << 20] {
                fails_alike(&Job { segment_bytes, ..alone(&of(&builder.blocks())) }, reason);
            }
        }
    }
}

/// The first block of a chain is reported, too: it has no blocks below it to validate.
#[test]
fn an_invalid_first_block_is_reported() {
    let mut builder = apus_testkit::chain::ChainBuilder::new(873);
    wrong_height(&mut builder);
    builder.empty_blocks(5);
    fails_alike(&alone(&of(&builder.blocks())), "bad-cb-height");
}

/// The job keeps all blocks or only the last ones, with several segment sizes.
#[test]
fn machines_together_write_the_same_data_directory_as_one() {
    let mut builder = random_chain(874);
    builder.empty_blocks(400);
    builder.random_blocks(10, Shape::default());
    let world = of(&builder.blocks());
    let cases = [
        (DatadirBlocks::All, 4_000),
        (DatadirBlocks::Last, SHORTEST),
        (DatadirBlocks::All, SHORTEST),
        (DatadirBlocks::Last, 1 << 20),
    ];
    for (kind, segment_bytes) in cases.into_iter().take(rounds(2, 4) as usize) {
        let [one, other] = [false, true].map(|by_machines| {
            let (temp, place) = (tempfile::tempdir().unwrap(), Place::new());
            let job = keeping(&Job { segment_bytes, ..alone(&world) }, kind, temp.path());
            match by_machines {
                true => {
                    let outcome = shared(&job, &place, |_| true).1;
                    world.truth.check(&outcome.unwrap(), &place.out);
                }
                false => drop(job.expect(&world.truth, &place)),
            }
            files(&temp.path().join("node/regtest/blocks"))
        });
        assert!(one.keys().any(|name| name.starts_with("rev")));
        assert!(one == other, "{segment_bytes}: {:?}, {:?}", one.keys(), other.keys());
    }
}

/// Changes a result, perhaps using an earlier result of the step.
type Lie = fn(&mut Vec<u8>, &[u8]);

/// Falsifies the result of one job of a step.
fn liar(step: u8, lie: Lie) -> impl FnMut(&mut Vec<u8>) -> bool + Send + 'static {
    let (mut before, mut has_lied) = (None::<Vec<u8>>, false);
    move |bytes: &mut Vec<u8>| {
        if bytes.starts_with(b"APUSDONE") && bytes[STEP] == step && !has_lied {
            let own = bytes.clone();
            if let Some(before) = &before
                && before[BODY..] != bytes[BODY..]
            {
                lie(bytes, before);
                has_lied = true;
            }
            before = Some(own);
        }
        true
    }
}

fn copy_other(bytes: &mut Vec<u8>, from: usize, before: &[u8]) {
    bytes.truncate(from);
    bytes.extend_from_slice(&before[from..]);
}

/// Offset of the length of a part's coins: after the totals, the MuHash, and an empty list of existing outputs.
const COINS: usize = BODY + 3 * 8 + 16 + 768 + 1;

#[test]
fn results_of_another_job_are_refused_and_requeued() {
    let of_others = "it is for other blocks";
    let lies: [(u8, bool, Lie, &str); 6] = [
        (BLOCKS, true, |bytes, before| copy_other(bytes, BODY, before), of_others),
        // A wrong number of blocks.
        (CONNECT, false, |bytes, _| bytes[BODY] ^= 1, of_others),
        // The right number of blocks, but the wrong fragment of the forest.
        (CONNECT, true, |bytes, before| copy_other(bytes, BODY + 16, before), of_others),
        // No undo data, and no fragment.
        (
            CONNECT,
            false,
            |bytes, _| copy_other(bytes, BODY + 16, &[0_u8; BODY + 18]),
            "its undo data are for other blocks",
        ),
        (JOIN, true, |bytes, _| bytes[COINS] ^= 1, "its coins have the wrong length"),
        // The sum of the lengths overflows.
        (
            JOIN,
            true,
            |bytes, _| bytes[COINS..COINS + 8].fill(0xff),
            "its coins have the wrong length",
        ),
    ];
    let world = small(875);
    for (at, (step, has_roots, lie, why)) in lies.into_iter().enumerate() {
        let (temp, place) = (tempfile::tempdir().unwrap(), Place::new());
        let mut job = Job { segment_bytes: 2_000, with_placed: false, ..alone(&world) };
        job.commitment = job.commitment.filter(|_| has_roots);
        if why.contains("undo data") {
            job = keeping(&job, DatadirBlocks::All, temp.path());
        }
        let (warnings, outcome) = shared(&job, &place, liar(step, lie));
        let outcome = outcome.unwrap_or_else(|error| panic!("{at}: {error}"));
        world.truth.check_files(&place.output_files());
        assert_eq!(outcome.set.totals.coins, world.truth.coins);
        let [Warning::Extra(text)] = &warnings[..] else { panic!("{at}: {warnings:?}") };
        assert!(text.contains(" was refused") && text.contains(why), "{at}: {text}");
    }
}

/// Loses the object with this number among the objects of a step that other jobs read.
fn loses(step: u8, number: usize) -> impl FnMut(&mut Vec<u8>) -> bool + Send + 'static {
    // A job of the first step stores its records and its own runs. A job of the second step stores coins and places,
    // which the coordinator reads at once, and prevouts and leaves, which begin with heights like places.
    let (mut seen, mut is_step) = (0, step == BLOCKS);
    move |bytes: &mut Vec<u8>| {
        if bytes.starts_with(b"APUSDONE") {
            is_step |= bytes[STEP] == step;
            return true;
        }
        let counts = is_step && (step == BLOCKS || bytes.starts_with(&[0; 3]));
        seen += usize::from(counts);
        !(counts && seen == number + 1)
    }
}

/// An object of a job is missing when others need it, and the job is repeated.
#[test]
fn lost_objects_are_created_again() {
    let world = small(876);
    for step in [BLOCKS, JOIN] {
        let mut lost = 0;
        for number in 0..5 {
            // With fingerprints: otherwise small segments may have identical own runs, and so share one object.
            let job = Job { segment_bytes: 2_000, assume_valid: None, ..alone(&world) };
            let place = Place::new();
            let (warnings, outcome) = shared(&job, &place, loses(step, number));
            let outcome = outcome.unwrap_or_else(|error| panic!("{step} {number}: {error}"));
            world.truth.check(&outcome, &place.out);
            let is_lost = |warning: &Warning| says(warning, " is lost, and the job is requeued");
            let is_refused =
                warnings.len() == 1 && says(&warnings[0], " was refused") && step == JOIN;
            let all_lost = !warnings.is_empty() && warnings.iter().all(is_lost);
            assert!(is_refused || all_lost, "{step} {number}: {warnings:?}");
            lost += u32::from(all_lost);
        }
        assert!(lost > 1, "{step}: {lost}");
    }
}

/// If an object of a part of the join is lost in the next step, and the payload of the part as well, the payload is
/// stored again and the part joined again. (Segments ignore their payload in the first pass.)
#[test]
fn a_lost_payload_of_an_earlier_step_is_stored_again() {
    let world = small(879);
    let is_payload =
        |bytes: &[u8], step| bytes.starts_with(b"APUSTOLD") && bytes.get(STEP) == Some(&step);
    let mut lost = 0;
    for number in 0..5 {
        let (place, job) = (Place::new(), Job { segment_bytes: 2_000, ..alone(&world) });
        let is_lost = Arc::new(AtomicBool::new(false));
        let (mut is_later, once) = (false, Arc::clone(&is_lost));
        let queue = MemoryQueue::new(loses(JOIN, number)).losing(move |bytes| {
            is_later |= is_payload(bytes, CONNECT);
            is_later && is_payload(bytes, JOIN) && !once.swap(true, Ordering::Relaxed)
        });
        let (_, outcome) = shared_by(queue, &job, &place);
        let outcome = outcome.unwrap_or_else(|error| panic!("{number}: {error}"));
        world.truth.check(&outcome, &place.out);
        lost += u32::from(is_lost.load(Ordering::Relaxed));
    }
    assert!(lost > 0);
}

/// Turns the answer of a finished job into a verdict that something is invalid (`extras/jobs/src/queue`).
fn refuses(message: &mut Vec<u8>, what: &[u8]) {
    const WORKER: usize = 93;
    let length = u32::from_le_bytes(*message[WORKER..].first_chunk().unwrap());
    message.truncate(WORKER + 4 + length as usize);
    message.push(1);
    message.extend(what);
    message.extend(text("it is invalid"));
}

/// Turns the answer of a finished job into a verdict about an invalid block.
fn blames(message: &mut Vec<u8>, height: u32, hash: BlockHash) {
    refuses(message, &[&[0][..], &height.to_le_bytes(), &hash.0, &text("bad-cb-amount")].concat());
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

/// Gives, for the range of a machine's job, the height that the machine names, and the height of the block whose hash
/// it names.
type Named = fn(HeightRange) -> [u32; 2];

/// A verdict about a block outside the job is refused, with the machine's name, and the job is repeated.
#[test]
fn a_verdict_about_a_block_of_another_job_is_refused() {
    let world = small(880);
    let hashes: Vec<BlockHash> = world.chain.iter().map(hash_of).collect();
    let stop = world.truth.stop;
    // The named block is below all blocks, in another job, above all blocks, or has another block's hash. Parts of
    // the join have no blocks.
    let lies: [(JobStep, Named); 6] = [
        (JobStep::Blocks, |_| [0, 0]),
        (JobStep::Blocks, |range| [range.end, range.end]),
        (JobStep::Connect, |range| [range.start - 1, range.start - 1]),
        (JobStep::Connect, |_| [u32::MAX, 0]),
        (JobStep::Blocks, |range| [range.start, range.start - 1]),
        (JobStep::Join, |range| [range.start, range.start]),
    ];
    for (at, (step, lie)) in lies.into_iter().enumerate() {
        let (hashes, mut has_lied) = (hashes.clone(), false);
        let queue = MemoryQueue::new(|_| true).saying(move |key, message| {
            if key.step == step && !has_lied && key.range.end < stop {
                has_lied = true;
                let [height, of] = lie(key.range);
                blames(message, height, hashes[of as usize]);
            }
        });
        let (place, job) = (Place::new(), Job { segment_bytes: SHORTEST, ..alone(&world) });
        let (warnings, outcome) = shared_by(queue, &job, &place);
        world.truth.check(&outcome.unwrap_or_else(|error| panic!("{at}: {error}")), &place.out);
        let [Warning::Extra(why)] = &warnings[..] else { panic!("{at}: {warnings:?}") };
        assert!(
            why.contains(" was refused") && why.contains("does not belong to the job"),
            "{at}: {why}"
        );
    }
}

/// A verdict about a block of the job, or about anything else, does not count if the job passes on the coordinator.
#[test]
fn a_verdict_is_checked_by_the_coordinator() {
    let world = small(883);
    let hashes: Vec<BlockHash> = world.chain.iter().map(hash_of).collect();
    for (step, is_block) in [
        (JobStep::Blocks, true),
        (JobStep::Blocks, false),
        (JobStep::Join, false),
        (JobStep::Connect, true),
        (JobStep::Connect, false),
    ] {
        let (hashes, mut has_lied) = (hashes.clone(), false);
        let queue = MemoryQueue::new(|_| true).saying(move |key, message| {
            if key.step == step && !has_lied {
                has_lied = true;
                let height = key.range.start;
                match is_block {
                    true => blames(message, height, hashes[height as usize]),
                    false => refuses(message, &[2]),
                }
            }
        });
        let (place, job) = (Place::new(), Job { segment_bytes: SHORTEST, ..alone(&world) });
        let (warnings, outcome) = shared_by(queue, &job, &place);
        let at = format!("{step:?} {is_block}");
        world.truth.check(&outcome.unwrap_or_else(|error| panic!("{at}: {error}")), &place.out);
        let [Warning::Extra(why)] = &warnings[..] else { panic!("{at}: {warnings:?}") };
        assert!(
            why.contains(" was refused") && why.contains("the job succeeds here"),
            "{at}: {why}"
        );
    }
}

/// A job that passed once, and is repeated because its object was lost, cannot have an invalid block.
#[test]
fn machines_that_disagree_about_a_block_are_named() {
    let world = small(881);
    let hashes: Vec<BlockHash> = world.chain.iter().map(hash_of).collect();
    let mut done = BTreeSet::new();
    let queue = MemoryQueue::new(loses(BLOCKS, 1)).saying(move |key, message| {
        if key.step == JobStep::Blocks && !done.insert(key) {
            let height = key.range.start;
            blames(message, height, hashes[height as usize]);
        }
    });
    let (place, job) = (Place::new(), Job { segment_bytes: 2_000, ..alone(&world) });
    let (_, outcome) = shared_by(queue, &job, &place);
    let error = outcome.unwrap_err();
    assert!(matches!(ClusterError::of(&error), Some(ClusterError::Differ { .. })), "{error}");
    assert!(place.output_files().is_empty());
}

/// A machine that does not see the objects of others, for instance because its folder is not mounted, does not end the
/// run.
#[test]
fn a_machine_that_sees_no_objects_is_tolerated() {
    let world = small(882);
    let (place, job) = (Place::new(), Job { segment_bytes: 2_000, ..alone(&world) });
    let (warnings, outcome) =
        shared_by(MemoryQueue::new(|_| true).blinding(&["one"]), &job, &place);
    world.truth.check(&outcome.unwrap(), &place.out);
    let is_expected = |warning: &Warning| {
        says(warning, " is lost, and the job is requeued")
            || says(warning, "one could not process ")
    };
    assert!(!warnings.is_empty() && warnings.iter().all(is_expected), "{warnings:?}");
    // If no machine sees them, the run fails eventually.
    let queue = Arc::new(MemoryQueue::new(|_| true).blinding(&MACHINES));
    let place = Place::new();
    let (_, outcome) = watched(&queue, &job, &place);
    let error = outcome.unwrap_err();
    assert!(matches!(ClusterError::of(&error), Some(ClusterError::BadResults { .. })), "{error}");
}
