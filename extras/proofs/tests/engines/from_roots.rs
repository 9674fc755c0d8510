//! Jobs that begin above a block with its roots, which the user trusts.

use crate::harness::{Job, Place, World, hash_of};
use crate::roots::{roots, truth};
use crate::utreexo::{by_proofs, engine, folder};
use crate::world::Truth;
use apus_chain::Height;
use apus_proofs::engine::ByProofsError;
use apus_proofs::{ProofsError, RootsBlock, TrustedRoots};
use apus_storage::Storage;
use apus_sync::{Stop, SyncError, UsageError};
use apus_testkit::storage::AfterCrash;
use apus_utreexo::Roots;
use std::fs;

/// The job with these roots of a block.
fn with(job: Job, world: &World, height: Height, roots: &[u8]) -> Job {
    let block = RootsBlock::Hash(hash_of(&world.chain[height as usize]));
    let roots = Roots::read(roots).unwrap();
    Job {
        outside: Some(engine(
            world,
            Some(TrustedRoots { roots, block, origin: "own.roots".to_owned() }),
        )),
        ..job
    }
}

/// A job with proof files that begin at these heights, and its expected result if it begins above a block.
pub(crate) fn from_roots(world: &World, starts: &[u32], height: Height) -> (Job, Truth) {
    let right = roots(&world.chain[..=height as usize]);
    // It does not know the coins below.
    let truth = Truth { coins: 0, amount: 0, ..truth(world) };
    (with(by_proofs(world, starts), world, height, &right), truth)
}

#[test]
fn roots_at_any_height_lead_to_the_same_roots() {
    let world = World::small(950);
    // Between two files, in the middle of one, below the last block, above the first.
    for height in [59, 60, 77, 119, 1] {
        let (job, truth) = from_roots(&world, &[1, 60, 61, 110], height);
        let outcome = job.expect(&truth, &Place::new());
        assert_eq!(outcome.validation.connected_from, Some(height + 1));
        assert_eq!(outcome.validation.scripts.assumed, u64::from(120 - height));
        assert_eq!(outcome.counts.blocks, u64::from(120 - height));
    }
    // No file below is needed.
    fs::remove_dir_all(folder(&world)).unwrap();
    let (job, truth) = from_roots(&world, &[60, 110], 59);
    job.expect(&truth, &Place::new());
    let (job, _) = from_roots(&world, &[60, 110], 58);
    let error = job.refused(&Place::new());
    assert!(error.to_string().contains("no proof file for block 59"), "{error}");
}

/// Where a file begins, its roots are compared at once. In the middle of a file, the first proof does not hold.
#[test]
fn wrong_roots_are_named_as_the_likely_cause() {
    let world = World::small(951);
    for (height, at_once) in [(59, true), (100, false)] {
        let mut wrong = roots(&world.chain[..=height as usize]);
        *wrong.last_mut().unwrap() ^= 1;
        let place = Place::new();
        let job = with(by_proofs(&world, &[1, 60]), &world, height, &wrong);
        let error = job.refused(&place);
        let is_it = match at_once {
            true => matches!(error.downcast(), Some(ProofsError::OtherRoots { .. })),
            false => error.downcast::<ByProofsError>().is_some(),
        };
        assert!(is_it, "{error}");
        let named = format!("block {height} ({})", hash_of(&world.chain[height as usize]));
        let text = error.to_string();
        assert!(text.contains(&named) && text.contains("own.roots"), "{text}");
        assert_eq!(place.work.names().unwrap().is_empty(), at_once);
    }
}

/// Progress belongs to the roots that it began with.
#[test]
fn progress_with_other_roots_is_not_resumed() {
    let world = World::small(952);
    let starts = [1, 40, 60, 100];
    let crashed = |job: &Job| {
        let place = Place::new();
        place.work.crash_at(4, AfterCrash::Fail);
        job.run(&place).unwrap_err();
        let work = place.work.durable_image();
        assert!(!work.names().unwrap().is_empty());
        Place { work, ..Place::new() }
    };
    let (job, expected) = from_roots(&world, &starts, 39);
    let whole = by_proofs(&world, &starts);
    let mut wrong = roots(&world.chain[..=39]);
    *wrong.last_mut().unwrap() ^= 1;
    // Within a file, so that only progress tells them apart.
    let (middle, _) = from_roots(&world, &starts, 50);
    let mut others = roots(&world.chain[..=50]);
    *others.last_mut().unwrap() ^= 1;
    let others = with(whole.clone(), &world, 50, &others);
    for (first, then, said) in [
        (&job, &whole, "from block 40 on, not 1"),
        (&whole, &job, "from block 1 on, not 40"),
        (&job, &middle, "from block 40 on, not 51"),
        (&middle, &others, "with other roots"),
    ] {
        let place = crashed(first);
        let error = then.refused(&place);
        assert!(matches!(error, SyncError::Usage(UsageError::OtherRun { .. })), "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
    job.expect(&expected, &crashed(&job));
}

/// A chain that has grown since is continued from the same roots.
#[test]
fn a_grown_chain_is_continued() {
    let world = World::small(953);
    let (job, expected) = from_roots(&world, &[1, 40, 60, 100], 39);
    let place = Place::new();
    Job { stop: Stop::At(99), ..job.clone() }.run(&place).unwrap();
    let place = Place { work: place.work.durable_image(), ..Place::new() };
    let outcome = job.expect(&expected, &place);
    assert_eq!(outcome.counts.blocks, 81);
}
