//! Runs of mergesync that machines share, through a queue in memory: what comes of them is what one machine comes to,
//! and what machines say of other jobs, or lose, does not count.

use crate::bad_blocks::{bad_blocks, files, wrong_height};
use crate::harness::{Job, Place, World, hash_of, random_chain};
use crate::memory_queue::{MACHINES, MemoryQueue, NotRemoved};
use crate::roots::{truth, with_roots};
use crate::world::Events;
use apus_chain::{BlockHash, HeightRange};
use apus_jobs::{ClusterError, JobStep};
use apus_sync::{DatadirBlocks, Engine, ErrorKind, Event, FolderKind, FolderOutput, Outcome};
use apus_sync::{Machines, SyncError, Warning};
use apus_testkit::chain::Shape;
use apus_testkit::effort::rounds;
use bitcoin::Block;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Steps of a run, as a job names them (`extras/jobs/src/queue`).
const BLOCKS: u8 = 0;
const JOIN: u8 = 1;
const CONNECT: u8 = 2;

/// The place of the step in what a job leaves, and of what is behind the job.
const STEP: usize = 44;
const BODY: usize = 53;

/// A block or two are a segment.
const SHORTEST: u64 = 100;

/// Whether a warning has these words.
fn says(warning: &Warning, words: &str) -> bool {
    matches!(warning, Warning::Extra(text) if text.contains(words))
}

/// A small chain, of which the roots of the forest are to come out.
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

/// Runs it on two machines, which put what `alter` makes of it; what was said of them, and what came of it.
fn shared(
    job: &Job,
    place: &Place,
    alter: impl FnMut(&mut Vec<u8>) -> bool + Send + 'static,
) -> (Vec<Warning>, Result<Outcome, SyncError>) {
    shared_by(MemoryQueue::new(alter), job, place)
}

/// The same, by a queue that is there.
fn shared_by(
    queue: MemoryQueue,
    job: &Job,
    place: &Place,
) -> (Vec<Warning>, Result<Outcome, SyncError>) {
    let queue = Arc::new(queue);
    let (said, outcome) = watched(&queue, job, place);
    let error = outcome.as_ref().err().map(ToString::to_string);
    assert_eq!(queue.objects(), 0, "they go with the run: {error:?}");
    (said, outcome)
}

/// The same, of a run that may not end for all.
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
    let said = |event| match event {
        Event::Warning(warning) => Some(warning),
        _ => None,
    };
    (events.all().into_iter().filter_map(said).collect(), outcome)
}

fn keeping(job: &Job, kind: DatadirBlocks, desk: &Path) -> Job {
    let kind = FolderKind::Datadir(kind);
    let folders = vec![FolderOutput { kind, path: desk.join("node"), replace: false }];
    Job { folders, ..job.clone() }
}

#[test]
fn machines_come_to_the_set_of_one() {
    let world = small(870);
    for leave_witnesses in [false, true] {
        for segment_bytes in [SHORTEST, 2_000, 1 << 20] {
            let (place, job) =
                (Place::new(), Job { segment_bytes, leave_witnesses, ..alone(&world) });
            let (said, outcome) = shared(&job, &place, |_| true);
            assert!(said.is_empty(), "{said:?}");
            let outcome = outcome.unwrap();
            world.truth.check(&outcome, &place.out);
            assert_eq!(
                (outcome.validation.scripts.run, outcome.validation.scripts.assumed),
                (0, u64::from(world.truth.stop))
            );
            // Nothing of it is left behind.
            apus_sync::discard_progress(&place.work).unwrap();
            assert_eq!(apus_storage::Storage::names(&place.work).unwrap(), [""; 0]);
        }
    }
}

/// A finished run is not thrown away, and a verdict is told, where what is left of the run cannot be removed.
#[test]
fn what_cannot_be_removed_is_a_warning() {
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
        let (said, outcome) = shared_by(MemoryQueue::that_does_not_close(says), &job, &place);
        world.truth.check(&outcome.unwrap(), &place.out);
        let [Warning::Extra(why)] = &said[..] else { panic!("{said:?}") };
        assert!(
            why.contains("not all of it could be removed") && why.contains("not empty"),
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

/// Refused with the same words by one machine and by several.
fn fails_alike(job: &Job, reason: &str) {
    let told = job.refused(&Place::new()).to_string();
    assert!(told.contains(&format!("[{reason}]")), "{told}");
    let place = Place::new();
    let (_, outcome) = shared(job, &place, |_| true);
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(error.to_string(), told);
    assert!(place.output_files().is_empty());
}

/// The first with many segments above it, and where blocks are kept.
#[test]
fn a_block_that_breaks_a_rule_about_coins() {
    for (at, (reason, make)) in bad_blocks().into_iter().enumerate() {
        let mut builder = random_chain(871);
        builder.empty_blocks(1);
        let plan = make(&mut builder);
        builder.add_plan(plan);
        builder.empty_blocks(if at == 0 { 420 } else { 3 });
        let world = of(&builder.blocks());
        let desk = tempfile::tempdir().unwrap();
        let job = Job { segment_bytes: SHORTEST, ..alone(&world) };
        match at {
            0 => fails_alike(&keeping(&job, DatadirBlocks::All, desk.path()), reason),
            _ => fails_alike(&job, reason),
        }
    }
}

/// Of several the lowest, whichever step finds them: segments below a block that the first step refuses are cut there.
#[test]
fn the_lowest_block_is_told() {
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

/// The first block of a chain, below which there is nothing to judge.
#[test]
fn the_first_block_is_told() {
    let mut builder = apus_testkit::chain::ChainBuilder::new(873);
    wrong_height(&mut builder);
    builder.empty_blocks(5);
    fails_alike(&alone(&of(&builder.blocks())), "bad-cb-height");
}

/// Of all blocks and of the last ones, cut in several ways.
#[test]
fn a_data_directory_is_the_one_of_one_machine() {
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
            let (desk, place) = (tempfile::tempdir().unwrap(), Place::new());
            let job = keeping(&Job { segment_bytes, ..alone(&world) }, kind, desk.path());
            match by_machines {
                true => {
                    let outcome = shared(&job, &place, |_| true).1;
                    world.truth.check(&outcome.unwrap(), &place.out);
                }
                false => drop(job.expect(&world.truth, &place)),
            }
            files(&desk.path().join("node/regtest/blocks"))
        });
        assert!(one.keys().any(|name| name.starts_with("rev")));
        assert!(one == other, "{segment_bytes}: {:?}, {:?}", one.keys(), other.keys());
    }
}

/// Makes something else of what a job left, perhaps by what an earlier one of the step did.
type Lie = fn(&mut Vec<u8>, &[u8]);

/// Lies once about a job of a step.
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

fn says_of_another(bytes: &mut Vec<u8>, from: usize, before: &[u8]) {
    bytes.truncate(from);
    bytes.extend_from_slice(&before[from..]);
}

/// Where the length of the coins of a part stands: behind sums, MuHash, and no outputs that existed.
const COINS: usize = BODY + 3 * 8 + 16 + 768 + 1;

#[test]
fn what_is_said_of_another_job_is_refused_and_done_again() {
    let of_others = "it is of other blocks";
    let lies: [(u8, bool, Lie, &str); 6] = [
        (BLOCKS, true, |bytes, before| says_of_another(bytes, BODY, before), of_others),
        // How many blocks were judged.
        (CONNECT, false, |bytes, _| bytes[BODY] ^= 1, of_others),
        // Just as many, and what their leaves make of the forest.
        (CONNECT, true, |bytes, before| says_of_another(bytes, BODY + 16, before), of_others),
        // No undo data, and no fragment before them.
        (
            CONNECT,
            false,
            |bytes, _| says_of_another(bytes, BODY + 16, &[0_u8; BODY + 18]),
            "its undo data are of other blocks",
        ),
        (JOIN, true, |bytes, _| bytes[COINS] ^= 1, "its coins are not as long as they should be"),
        // So long that it cannot be added up.
        (JOIN, true, |bytes, _| bytes[COINS..COINS + 8].fill(0xff), "its coins are not as long"),
    ];
    let world = small(875);
    for (at, (step, has_roots, lie, why)) in lies.into_iter().enumerate() {
        let (desk, place) = (tempfile::tempdir().unwrap(), Place::new());
        let mut job = Job { segment_bytes: 2_000, with_placed: false, ..alone(&world) };
        job.commitment = job.commitment.filter(|_| has_roots);
        if why.contains("undo data") {
            job = keeping(&job, DatadirBlocks::All, desk.path());
        }
        let (said, outcome) = shared(&job, &place, liar(step, lie));
        let outcome = outcome.unwrap_or_else(|error| panic!("{at}: {error}"));
        world.truth.check_files(&place.output_files());
        assert_eq!(outcome.set.totals.coins, world.truth.coins);
        let [Warning::Extra(said)] = &said[..] else { panic!("{at}: {said:?}") };
        assert!(said.contains(" was refused") && said.contains(why), "{at}: {said}");
    }
}

/// Loses the object with this number among those of a step that others read.
fn loses(step: u8, number: usize) -> impl FnMut(&mut Vec<u8>) -> bool + Send + 'static {
    // A job of the first step leaves records and what is its own. One of the second leaves coins and places, which the
    // coordinator reads at once, and answers and leaves, which are by height as places are.
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

/// What a job left for others is not there when they want it, and that job is done again.
#[test]
fn what_is_lost_is_left_again() {
    let world = small(876);
    for step in [BLOCKS, JOIN] {
        let mut lost = 0;
        for number in 0..5 {
            // With fingerprints: what segments of few coins have of their own would else be the same, and so one object.
            let job = Job { segment_bytes: 2_000, assume_valid: None, ..alone(&world) };
            let place = Place::new();
            let (said, outcome) = shared(&job, &place, loses(step, number));
            let outcome = outcome.unwrap_or_else(|error| panic!("{step} {number}: {error}"));
            world.truth.check(&outcome, &place.out);
            let is_lost = |said: &Warning| says(said, " is lost, and that is done again");
            let is_refused = said.len() == 1 && says(&said[0], " was refused") && step == JOIN;
            let all_lost = !said.is_empty() && said.iter().all(is_lost);
            assert!(is_refused || all_lost, "{step} {number}: {said:?}");
            lost += u32::from(all_lost);
        }
        assert!(lost > 1, "{step}: {lost}");
    }
}

/// Where what a part of the join left is lost in the next step, and what that part was told as well, it is told again, and
/// joined again. (Segments that are gathered read nothing of what they are told.)
#[test]
fn what_a_job_of_an_earlier_step_was_told_is_lost_too() {
    let world = small(879);
    let is_told =
        |bytes: &[u8], step| bytes.starts_with(b"APUSTOLD") && bytes.get(STEP) == Some(&step);
    let mut lost = 0;
    for number in 0..5 {
        let (place, job) = (Place::new(), Job { segment_bytes: 2_000, ..alone(&world) });
        let is_lost = Arc::new(AtomicBool::new(false));
        let (mut is_later, once) = (false, Arc::clone(&is_lost));
        let queue = MemoryQueue::new(loses(JOIN, number)).losing(move |bytes| {
            is_later |= is_told(bytes, CONNECT);
            is_later && is_told(bytes, JOIN) && !once.swap(true, Ordering::Relaxed)
        });
        let (_, outcome) = shared_by(queue, &job, &place);
        let outcome = outcome.unwrap_or_else(|error| panic!("{number}: {error}"));
        world.truth.check(&outcome, &place.out);
        lost += u32::from(is_lost.load(Ordering::Relaxed));
    }
    assert!(lost > 0);
}

/// Makes of an answer that a job is done another one: that something is at fault (`extras/jobs/src/queue`).
fn refuses(message: &mut Vec<u8>, what: &[u8]) {
    const WORKER: usize = 93;
    let length = u32::from_le_bytes(*message[WORKER..].first_chunk().unwrap());
    message.truncate(WORKER + 4 + length as usize);
    message.push(1);
    message.extend(what);
    message.extend(text("it is invalid"));
}

/// The same, that a block is invalid.
fn blames(message: &mut Vec<u8>, height: u32, hash: BlockHash) {
    refuses(message, &[&[0][..], &height.to_le_bytes(), &hash.0, &text("bad-cb-amount")].concat());
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

/// The height of a block that a machine names, and of which one it has the hash, by what its job is about.
type Named = fn(HeightRange) -> [u32; 2];

/// A machine that names a block which is not one of its job's is refused by name, and the job is done again.
#[test]
fn a_block_of_another_job_is_not_refused() {
    let world = small(880);
    let hashes: Vec<BlockHash> = world.chain.iter().map(hash_of).collect();
    let stop = world.truth.stop;
    // Below all blocks, of another job, above all, and under the hash of another block; parts of the join have none.
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
        let (said, outcome) = shared_by(queue, &job, &place);
        world.truth.check(&outcome.unwrap_or_else(|error| panic!("{at}: {error}")), &place.out);
        let [Warning::Extra(why)] = &said[..] else { panic!("{at}: {said:?}") };
        assert!(why.contains(" was refused") && why.contains("none of the job's"), "{at}: {why}");
    }
}

/// A machine that refuses a block of its job, or says that something else is at fault, is not believed where the same job
/// passes at the coordinator.
#[test]
fn what_a_machine_refuses_is_judged_once_more() {
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
        let (said, outcome) = shared_by(queue, &job, &place);
        let at = format!("{step:?} {is_block}");
        world.truth.check(&outcome.unwrap_or_else(|error| panic!("{at}: {error}")), &place.out);
        let [Warning::Extra(why)] = &said[..] else { panic!("{at}: {said:?}") };
        assert!(why.contains(" was refused") && why.contains("it passes here"), "{at}: {why}");
    }
}

/// A job that counts, and is done again since what it left was lost, cannot have an invalid block.
#[test]
fn machines_that_say_different_things_of_a_block_are_named() {
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

/// A machine that sees nothing of what others left, as where its folder is not mounted, does not end the run for all.
#[test]
fn a_machine_that_sees_no_objects_is_done_without() {
    let world = small(882);
    let (place, job) = (Place::new(), Job { segment_bytes: 2_000, ..alone(&world) });
    let (said, outcome) = shared_by(MemoryQueue::new(|_| true).blinding(&["one"]), &job, &place);
    world.truth.check(&outcome.unwrap(), &place.out);
    let is_told = |said: &Warning| {
        says(said, " is lost, and that is done again") || says(said, "one could not do ")
    };
    assert!(!said.is_empty() && said.iter().all(is_told), "{said:?}");
    // With no machine that sees them the run ends some time.
    let queue = Arc::new(MemoryQueue::new(|_| true).blinding(&MACHINES));
    let place = Place::new();
    let (_, outcome) = watched(&queue, &job, &place);
    let error = outcome.unwrap_err();
    assert!(matches!(ClusterError::of(&error), Some(ClusterError::Useless { .. })), "{error}");
}
