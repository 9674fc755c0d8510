//! Syncs that do not read the witnesses of assumed-valid blocks: whatever witnesses the copies have, the set is
//! the same.

use crate::harness::{Job, Place, World, hash_of, random_chain};
use crate::world::{Events, Truth};
use apus_sync::{Engine, ErrorKind, Event, Observer, Stop, SyncError, UsageError};
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind, Shape};
use bitcoin::{Block, Witness};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A change to a block's witnesses in a file.
type Change = fn(&mut Block);

/// Removes the witnesses, as a peer does if the block is requested without them.
fn strip(block: &mut Block) {
    block.txdata.iter_mut().flat_map(|tx| &mut tx.input).for_each(|input| input.witness.clear());
}

/// Replaces the witnesses by ones that no miner committed to, full of signature operations.
fn spoil(block: &mut Block) {
    let script = vec![0xac; 40_000];
    for input in block.txdata.iter_mut().skip(1).flat_map(|tx| &mut tx.input) {
        input.witness = Witness::from_slice(&[&script]);
    }
}

/// Makes files of a chain whose blocks are changed.
fn world(seed: u64, change: Change) -> World {
    World::laid_out(&random_chain(seed).blocks(), |blocks| {
        let mut blocks = blocks.to_vec();
        let before = blocks.clone();
        blocks.iter_mut().for_each(change);
        assert_ne!(blocks, before, "there are witnesses");
        let mut files = BlockFiles::regtest();
        files.blocks(&blocks);
        files
    })
}

fn jobs(world: &World) -> [Job; 4] {
    let leaving = Job { leave_witnesses: true, ..world.job() };
    [
        Job { engine: Engine::MergeSync, ..leaving.clone() },
        Job { hints: Some(world.hints(world.truth.stop)), ..leaving.clone() },
        Job { hints: Some(world.hints(108)), ..leaving.clone() },
        leaving,
    ]
}

/// Skipped witnesses change nothing: neither whether a block is accepted, nor any output.
#[test]
fn any_witnesses_give_the_same_set() {
    for (seed, change) in [(760, strip as Change), (761, spoil)] {
        let world = world(seed, change);
        for job in jobs(&world) {
            let outcome = job.expect(&world.truth, &Place::new());
            assert_eq!(outcome.validation.unseen_witnesses, u64::from(world.truth.stop));
            let error = Job { leave_witnesses: false, ..job }.refused(&Place::new());
            assert_eq!(error.kind(), ErrorKind::Wrong, "{error}");
        }
    }
}

/// A node that gets the blocks needs intact witnesses.
#[test]
fn blocks_that_are_handed_on_are_checked() {
    let (good, bad) = (World::small(762), world(762, spoil));
    let folder = tempfile::tempdir().unwrap();
    let leaving =
        |world: &World| Job { leave_witnesses: true, ..world.job() }.keeping(folder.path());
    assert_eq!(leaving(&bad).refused(&Place::new()).kind(), ErrorKind::Wrong);
    assert_eq!(leaving(&good).expect(&good.truth, &Place::new()).validation.unseen_witnesses, 0);
}

/// Stops a sync after this many events.
struct StopAfter<'a> {
    flag: &'a AtomicBool,
    seen: Events,
    events: usize,
}

impl Observer for StopAfter<'_> {
    fn event(&self, event: Event) {
        self.seen.event(event);
        self.flag.fetch_or(self.seen.all().len() >= self.events, Ordering::SeqCst);
    }
}

/// Skipped witnesses are not reported as checked because a later start checks the rest; and if an earlier
/// start checked witnesses, the rest are checked, too.
#[test]
fn checked_and_skipped_witnesses_are_not_mixed() {
    let world = World::small(763);
    for job in jobs(&world) {
        for leaves_first in [true, false] {
            let first = Job { leave_witnesses: leaves_first, ..job.clone() };
            let second = Job { leave_witnesses: !leaves_first, ..job.clone() };
            // Later stops leave more finished work; from some point on, the folder has a plan or a record.
            let mut begun = 0;
            for events in (4..40).step_by(6) {
                let (place, flag) = (Place::new(), AtomicBool::new(false));
                let observer = StopAfter { flag: &flag, seen: Events::default(), events };
                let Err(stopped) = first.run_watched(&place, &observer, &flag) else { break };
                assert_eq!(stopped.kind(), ErrorKind::Interrupted, "{stopped}");
                match second.run(&place) {
                    Err(SyncError::Usage(UsageError::OtherRun { what, .. })) => {
                        assert!(leaves_first && what.contains("--witnesses"), "{what}");
                        begun += 1;
                        first.expect(&world.truth, &place);
                    }
                    Err(error) => panic!("{error}"),
                    Ok(outcome) if leaves_first => {
                        assert_eq!(outcome.validation.unseen_witnesses, 0)
                    }
                    Ok(outcome) => begun += usize::from(outcome.validation.unseen_witnesses == 0),
                }
            }
            assert!(begun > 0, "no start found another one's progress");
        }
    }
}

/// Makes files with these blocks; a sync should end on `chain`.
fn laid_out(chain: Vec<Block>, blocks: &[Block]) -> World {
    let folder = tempfile::tempdir().unwrap();
    let mut files = BlockFiles::regtest();
    files.blocks(blocks);
    files.write(&folder.path().join("blocks"));
    World { folder, truth: Truth::of(&chain), chain }
}

/// Makes the job for each engine that needs no hints, with progress always made durable.
fn ways(job: Job) -> [Job; 3] {
    let ways = [(Engine::Utxo, None), (Engine::MergeSync, None), (Engine::MergeSync, Some(4))];
    ways.map(|(engine, batch_segments)| Job {
        engine,
        batch_segments,
        checkpoint_interval: Duration::ZERO,
        ..job.clone()
    })
}

/// The chain with the assumed-valid block has an invalid one below it, and the sync continues on another
/// chain. No block of that one is below the assumed-valid block: its scripts are run, which needs its
/// witnesses, and these are checked.
#[test]
fn witnesses_of_the_next_chain_are_checked() {
    let mut builder = random_chain(764);
    let trunk = builder.tip();
    let greedy = builder.output(ChainBuilder::subsidy(121) + 1, ScriptKind::OpTrue);
    builder.add_plan(BlockPlan { coinbase_outputs: Some(vec![greedy]), ..BlockPlan::default() });
    builder.empty_blocks(12);
    let heavy = builder.blocks();
    builder.set_tip(trunk);
    builder.random_blocks(6, Shape::default());
    let good = builder.blocks();
    let assume_valid = Some(hash_of(&heavy[heavy.len() - 5]));
    for spoiled in [false, true] {
        let mut beside = good[heavy.len() - 13..].to_vec();
        if spoiled {
            let before = beside[3].clone();
            spoil(&mut beside[3]);
            assert_ne!(beside[3], before);
        }
        let world = laid_out(good.clone(), &[&heavy[..], &beside].concat());
        let job = Job { assume_valid, leave_witnesses: true, stop: Stop::AtTip, ..world.job() };
        for job in ways(job) {
            if spoiled {
                let error = job.refused(&Place::new());
                assert_eq!(error.kind(), ErrorKind::Wrong, "{error}");
                continue;
            }
            let outcome = job.expect(&world.truth, &Place::new());
            assert!(
                outcome.validation.scripts.run >= beside.len() as u64,
                "{:?}",
                outcome.validation.scripts
            );
        }
    }
}

/// A start finds less of the chain than the one before: the assumed-valid block is missing. What was assumed
/// valid because of it is not reported as checked, and the sync resumes.
#[test]
fn a_chain_that_became_shorter_is_validated_as_it_is() {
    let mut builder = random_chain(765);
    builder.random_blocks(3, Shape::default());
    let stop = builder.height();
    let bad = builder.block_with_a_wrong_signature();
    builder.empty_blocks(12);
    let with_bad = builder.blocks();
    builder.set_tip(bad.header.prev_blockhash);
    builder.random_blocks(13, Shape::default());
    for (blocks, is_good) in [(builder.blocks(), true), (with_bad, false)] {
        let to = stop + u32::from(!is_good);
        let chain = blocks[..=to as usize].to_vec();
        let (long, short) = (laid_out(chain.clone(), &blocks), laid_out(chain.clone(), &chain));
        let assume_valid = Some(hash_of(&blocks[blocks.len() - 6]));
        let mut stopped = 0;
        for (leave_witnesses, events) in [true, false]
            .into_iter()
            .flat_map(|leave| (4..60).step_by(7).map(move |events| (leave, events)))
        {
            let job = Job { assume_valid, leave_witnesses, stop: Stop::At(to), ..long.job() };
            for first in ways(job) {
                let (place, flag) = (Place::new(), AtomicBool::new(false));
                let observer = StopAfter { flag: &flag, seen: Events::default(), events };
                if first.run_watched(&place, &observer, &flag).is_ok() {
                    continue;
                }
                stopped += 1;
                let second = Job { blocksdir: short.blocksdir(), ..first };
                match second.run(&place) {
                    Ok(outcome) => {
                        short.truth.check(&outcome, &place.out);
                        // Blocks that `utxo` connected stay connected, and are reported as they were
                        // processed.
                        let by_utxo = second.engine == Engine::Utxo;
                        assert!(is_good || by_utxo, "a script was not run");
                        let run = u64::from(to) - outcome.validation.scripts.assumed;
                        assert!(
                            outcome.validation.scripts.run == run
                                && (by_utxo || run == u64::from(to))
                        );
                        assert!(is_good || outcome.validation.scripts.assumed > 0);
                    }
                    Err(error) => {
                        assert!(!is_good, "{error}");
                        assert!(error.to_string().contains("script-verify-flag-failed"), "{error}");
                    }
                }
            }
        }
        assert!(stopped > 6, "{stopped}");
    }
}
