//! Tests of folders on which a node starts: however the coins were computed, the last blocks are present with
//! their undo data.

use crate::harness::{Job, Place, World, hash_of};
use crate::world::Truth;
use apus_datadir::{IndexEntry, read_index};
use apus_engine::utxo::CoinsStore;
use apus_sync::{
    DatadirBlocks, ErrorKind, Event, FolderKind, FolderOutput, HintsInput, LAST_BLOCKS, Observer,
    Phase, Stop, SyncError, UsageError,
};
use apus_testkit::chain::{ChainBuilder, Shape, hints, utxo_set};
use apus_testkit::oracle::{self, BitOrder};
use apus_testkit::storage::{AfterCrash, CrashStorage};
use bitcoin::Block;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The height at which syncs end.
const STOP: u32 = 400;

/// The last block processed with hints.
const UNDER: u32 = STOP - LAST_BLOCKS;

/// Makes a chain whose last blocks spend coins of any age, including coins of its first blocks.
fn long_chain(seed: u64) -> Vec<Block> {
    let mut builder = ChainBuilder::new(seed);
    builder.random_blocks(116, Shape { transactions_max: 4, ..Shape::default() });
    builder.empty_blocks(220);
    builder.random_blocks(STOP as usize - 336, Shape { transactions_max: 4, ..Shape::default() });
    let chain = builder.blocks();
    assert_eq!(chain.len() as u32, STOP + 1);
    chain
}

fn world(seed: u64) -> World {
    World::of(&long_chain(seed))
}

fn pruned(world: &World, hints: Option<HintsInput>, folder: &Path) -> Job {
    let (kind, path) = (FolderKind::Datadir(DatadirBlocks::Last), folder.join("node"));
    let folders = vec![FolderOutput { kind, path, replace: false }];
    Job { hints, folders, ..world.job() }
}

/// Makes a snapshot of the chain's set, which names survivors by outpoint.
fn snapshot(world: &World, stop: u32) -> HintsInput {
    let part = &world.chain[..=stop as usize];
    let magic = apus_chain::Network::Regtest.magic();
    let bytes = oracle::snapshot(magic, part[stop as usize].block_hash(), &utxo_set(part));
    let path = world.folder.path().join(format!("{stop}.dat"));
    fs::write(&path, bytes).unwrap();
    HintsInput::Snapshot(path)
}

fn entries(folder: &Path) -> Vec<IndexEntry> {
    let mut entries = Vec::new();
    let read = read_index(&folder.join("node/regtest/blocks"), &mut |entry| {
        entries.push(entry);
        ControlFlow::Continue(())
    });
    read.unwrap();
    entries.sort_unstable_by_key(|entry| entry.height);
    entries
}

/// Checks that the folder has the last blocks up to `stop`, as many as a node needs, without gaps and with undo
/// data.
fn expect_last(folder: &Path, stop: u32) {
    let entries = entries(folder);
    assert_eq!(entries.len() as u32, stop + 1);
    for entry in entries {
        let kept = entry.height + LAST_BLOCKS > stop;
        assert_eq!((entry.data.is_some(), entry.undo.is_some()), (kept, kept), "{entry:?}");
    }
}

#[test]
fn hints_into_the_last_blocks_are_followed_to_the_one_below() {
    let world = world(801);
    let spends_old = world.chain[UNDER as usize + 1..].iter().flat_map(|block| &block.txdata[1..]);
    let old: Vec<_> = world.chain[..=UNDER as usize]
        .iter()
        .flat_map(|b| &b.txdata)
        .map(|t| t.compute_txid())
        .collect();
    let spends_old = spends_old
        .flat_map(|tx| &tx.input)
        .filter(|input| old.contains(&input.previous_output.txid))
        .count();
    assert!(spends_old > 20, "{spends_old}");
    let ways = [
        ("file to the end", Some(world.hints(STOP)), UNDER + 1),
        ("snapshot", Some(snapshot(&world, STOP)), UNDER + 1),
        ("file into the last", Some(world.hints(STOP - 30)), UNDER + 1),
        ("snapshot into the last", Some(snapshot(&world, STOP - 1)), UNDER + 1),
        ("file to the last one below", Some(world.hints(UNDER)), UNDER + 1),
        ("file below", Some(world.hints(40)), 41),
        ("none", None, 1),
    ];
    for (way, hints, from) in ways {
        let sandbox = tempfile::tempdir().unwrap();
        let outcome = pruned(&world, hints, sandbox.path()).expect(&world.truth, &Place::new());
        assert_eq!(outcome.validation.connected_from, Some(from), "{way}");
        let read = outcome.written.folders[0].blocks_read_back;
        let last = u64::from(LAST_BLOCKS);
        assert_eq!((read.blocks, read.undo, read.undo_at_end), (last, last, last), "{way}");
        expect_last(sandbox.path(), STOP);
    }
}

/// On so short a chain, hints are useless.
#[test]
fn a_chain_of_last_blocks_alone_is_connected() {
    let chain = long_chain(802);
    let world = World::of(&chain[..=LAST_BLOCKS as usize]);
    let sandbox = tempfile::tempdir().unwrap();
    let job = pruned(&world, Some(world.hints(LAST_BLOCKS)), sandbox.path());
    let outcome = job.expect(&world.truth, &Place::new());
    assert_eq!(
        (outcome.validation.connected_from, outcome.validation.hints.aggregate),
        (Some(1), None)
    );
    assert!(outcome.validation.hints.info.is_some_and(|hints| hints.stop_height == LAST_BLOCKS));
    expect_last(sandbox.path(), LAST_BLOCKS);
}

/// If no node starts on the blocks, hints are followed to their end.
#[test]
fn without_a_folder_of_blocks_all_hints_are_followed() {
    let world = world(803);
    let job = Job { hints: Some(world.hints(STOP)), ..world.job() };
    assert_eq!(job.expect(&world.truth, &Place::new()).validation.connected_from, None);
}

/// Connected blocks do not depend on hints, so hints may reach above the assumed-valid block if all blocks
/// processed with them are below.
#[test]
fn hints_must_be_anchored_up_to_the_last_used_block() {
    let world = world(804);
    for (assumed, is_well) in [(UNDER, true), (UNDER - 1, false)] {
        let sandbox = tempfile::tempdir().unwrap();
        let assume_valid = Some(hash_of(&world.chain[assumed as usize]));
        let job = pruned(&world, Some(world.hints(STOP)), sandbox.path());
        let job = Job { assume_valid, ..job };
        match (is_well, cfg!(feature = "kernel")) {
            (true, true) => {
                let outcome = job.expect(&world.truth, &Place::new());
                assert_eq!(outcome.validation.scripts.run, u64::from(LAST_BLOCKS));
            }
            // A build that cannot run scripts reports that before it begins.
            (true, false) => assert_eq!(job.refused(&Place::new()).kind(), ErrorKind::Usage),
            (false, _) => {
                let error = job.refused(&Place::new());
                assert!(matches!(error, SyncError::Usage(UsageError::NotAnchored(_))), "{error}");
            }
        }
    }
}

/// Wrong hints either make the sync fail, or concern coins that are not needed.
#[test]
fn wrong_hints_make_the_run_fail_or_do_not_matter() {
    let world = world(805);
    let right = hints(&world.chain, &utxo_set(&world.chain));
    let spent_in_last = |height: u32, index: u32| {
        // Indexes count the block's spendable outputs, in order.
        let below =
            hints(&world.chain[..=UNDER as usize], &utxo_set(&world.chain[..=UNDER as usize]));
        height <= UNDER && below[height as usize - 1].contains(&index)
    };
    let mut seen = [0; 3];
    for height in (1..=STOP).step_by(9) {
        let at = height as usize - 1;
        let mut wrong = right.clone();
        // The first output's hint is inverted.
        let was = wrong[at].first() == Some(&0);
        match was {
            true => drop(wrong[at].remove(0)),
            false => wrong[at].insert(0, 0),
        }
        let path = world.folder.path().join("wrong.hints");
        fs::write(&path, oracle::hints_file(&wrong, BitOrder::Msb)).unwrap();
        let sandbox = tempfile::tempdir().unwrap();
        let job = pruned(&world, Some(crate::world::hintsfile(&path)), sandbox.path());
        let harmless = height > UNDER || (!was && spent_in_last(height, 0));
        match harmless {
            true => drop(job.expect(&world.truth, &Place::new())),
            false => {
                let error = job.refused(&Place::new());
                assert_eq!(error.kind(), ErrorKind::Wrong, "{height}: {error}");
            }
        }
        seen[usize::from(harmless) + usize::from(height > UNDER)] += 1;
    }
    assert!(seen[0] > 5 && seen[2] > 5, "{seen:?}");
}

/// Stops a sync at the first progress of a phase, after `after` such reports.
struct StopAt<'a> {
    phase: Phase,
    after: AtomicU64,
    interrupt: &'a AtomicBool,
    stopped: Mutex<bool>,
}

impl Observer for StopAt<'_> {
    fn event(&self, event: Event) {
        let is_phase = match event {
            Event::Progress(phase, _) => phase == self.phase,
            Event::Started(phase) => phase == self.phase,
            _ => false,
        };
        let left = self.after.load(Ordering::SeqCst);
        if is_phase && left > 0 {
            self.after.store(left - 1, Ordering::SeqCst);
        } else if is_phase && !self.interrupt.swap(true, Ordering::SeqCst) {
            *self.stopped.lock().unwrap() = true;
        }
    }
}

/// Each phase is stopped at several moments; the next start resumes, or repeats the work that was not durable.
#[test]
fn a_stop_anywhere_does_not_change_the_result() {
    let world = world(806);
    let phases = [
        Phase::Spends,
        Phase::Blocks,
        Phase::Fill,
        Phase::Connect,
        Phase::Coins,
        Phase::Index,
        Phase::CheckCoins,
        Phase::CheckBlocks,
    ];
    let (mut stopped, mut rounds) = (0, 0);
    for phase in phases {
        for after in [0, 1, 2, 7] {
            let sandbox = tempfile::tempdir().unwrap();
            let (job, place) =
                (pruned(&world, Some(world.hints(STOP)), sandbox.path()), Place::new());
            let flag = AtomicBool::new(false);
            let observer = StopAt {
                phase,
                after: AtomicU64::new(after),
                interrupt: &flag,
                stopped: Mutex::default(),
            };
            match job.run_watched(&place, &observer, &flag) {
                Ok(outcome) => world.truth.check(&outcome, &place.out),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Interrupted, "{phase:?} {after}: {error}");
                    stopped += 1;
                    job.expect(&world.truth, &place);
                }
            }
            rounds += 1;
            expect_last(sandbox.path(), STOP);
        }
    }
    assert!(stopped > rounds / 2, "{stopped} of {rounds}");
}

/// Crashes after each durable step in the work folder: the next start resumes from the saved state.
#[test]
fn crashed_while_blocks_are_connected() {
    let world = world(807);
    let (mut crashes, mut step) = (0, 3);
    loop {
        let sandbox = tempfile::tempdir().unwrap();
        let (job, mut place) =
            (pruned(&world, Some(world.hints(STOP)), sandbox.path()), Place::new());
        place.work.crash_at(step, AfterCrash::Fail);
        let crashed = job.run(&place).is_err();
        if crashed {
            crashes += 1;
            place.work = place.work.durable_image();
            job.expect(&world.truth, &place);
        }
        expect_last(sandbox.path(), STOP);
        if !crashed {
            break;
        }
        step += step / 2;
    }
    assert!(crashes > 5, "{crashes}");
}

/// An earlier start connected blocks without a folder, or with another one: the sync disconnects them
/// with the undo data that it still has, and connects them again.
#[test]
fn blocks_connected_without_a_folder_are_connected_again() {
    let world = world(808);
    let place = Place::new();
    let short = Job { stop: Stop::At(STOP - 20), ..world.job() };
    let part = Truth::of(&world.chain[..=(STOP - 20) as usize]);
    short.expect(&part, &place);
    for (stop, name) in [(STOP - 10, "one"), (STOP, "other")] {
        let sandbox = tempfile::tempdir().unwrap();
        let next = Place { out: CrashStorage::new(), ..copy(&place) };
        let job = Job { stop: Stop::At(stop), ..pruned(&world, None, sandbox.path()) };
        let truth = Truth::of(&world.chain[..=stop as usize]);
        job.expect(&truth, &next);
        assert_eq!(place.height(), Some(stop), "{name}");
        expect_last(sandbox.path(), stop);
    }
}

/// Copies the work folder and the coins.
fn copy(place: &Place) -> Place {
    Place {
        work: place.work.clone(),
        out: place.out.clone(),
        store: std::sync::Arc::clone(&place.store) as std::sync::Arc<dyn CoinsStore>,
        hints_folder: tempfile::tempdir().unwrap(),
    }
}
