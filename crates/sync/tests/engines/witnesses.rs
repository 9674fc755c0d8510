//! Runs that leave the witnesses of assumed blocks alone: whatever copies have of them, the set is the same.

use crate::harness::{Job, Place, World, random_chain};
use crate::world::Events;
use apus_sync::{Engine, ErrorKind, Event, Observer, SyncError, UsageError};
use apus_testkit::blkfile::BlockFiles;
use bitcoin::{Block, Witness};
use std::sync::atomic::{AtomicBool, Ordering};

/// What becomes of a block's witnesses in a file.
type Change = fn(&mut Block);

/// As a peer sends a block that is asked for without them.
fn strip(block: &mut Block) {
    block.txdata.iter_mut().flat_map(|tx| &mut tx.input).for_each(|input| input.witness.clear());
}

/// What no miner committed to, full of signature operations.
fn spoil(block: &mut Block) {
    let script = vec![0xac; 40_000];
    for input in block.txdata.iter_mut().skip(1).flat_map(|tx| &mut tx.input) {
        input.witness = Witness::from_slice(&[&script]);
    }
}

/// A chain in whose files blocks are changed.
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

/// Nothing depends on what is not looked at: neither whether a block is taken, nor any output.
#[test]
fn any_witnesses_will_do() {
    for (seed, change) in [(760, strip as Change), (761, spoil)] {
        let world = world(seed, change);
        for job in jobs(&world) {
            let outcome = job.expect(&world.truth, &Place::new());
            assert_eq!(outcome.unseen_witnesses, u64::from(world.truth.stop));
            let error = Job { leave_witnesses: false, ..job }.refused(&Place::new());
            assert_eq!(error.kind(), ErrorKind::Wrong, "{error}");
        }
    }
}

/// A node that gets the blocks needs their witnesses, and so do proofs.
#[test]
fn blocks_that_are_handed_on_are_checked() {
    let (good, bad) = (World::small(762), world(762, spoil));
    let folder = tempfile::tempdir().unwrap();
    let leaving =
        |world: &World| Job { leave_witnesses: true, ..world.job() }.keeping(folder.path());
    assert_eq!(leaving(&bad).refused(&Place::new()).kind(), ErrorKind::Wrong);
    assert_eq!(leaving(&good).expect(&good.truth, &Place::new()).unseen_witnesses, 0);
    for world in [&good, &bad] {
        let job = Job { leave_witnesses: true, ..world.by_proofs(&[1, 70, 112]) };
        match job.run(&Place::new()) {
            Ok(outcome) => assert_eq!(outcome.unseen_witnesses, 0),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Wrong, "{error}"),
        }
        assert_eq!(job.run(&Place::new()).is_ok(), std::ptr::eq(world, &good));
    }
}

/// Ends a run once so many events were told.
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

/// What was skipped is not said to be checked because a later start checks the rest; and where an earlier
/// start checked, the rest is checked, too.
#[test]
fn a_later_start_does_not_mix() {
    let world = World::small(763);
    for job in jobs(&world) {
        for leaves_first in [true, false] {
            let first = Job { leave_witnesses: leaves_first, ..job.clone() };
            let second = Job { leave_witnesses: !leaves_first, ..job.clone() };
            // The later, the more was done; at some point there is a plan or a record.
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
                    Ok(outcome) if leaves_first => assert_eq!(outcome.unseen_witnesses, 0),
                    Ok(outcome) => begun += usize::from(outcome.unseen_witnesses == 0),
                }
            }
            assert!(begun > 0, "no start found what another one began");
        }
    }
}
