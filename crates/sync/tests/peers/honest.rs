//! Tests with honest peers.

use crate::harness::{Warnings, World};
use apus_sync::peers::BlocksFolderOptions;
use apus_testkit::peer::{Behaviour, FakePeer};
use apus_testkit::storage::CrashStorage;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[test]
fn from_one() {
    let world = World::small(1);
    world.job().expect(&[&FakePeer::start(&world.chain, &[Behaviour::Honest])]);
}

#[test]
fn from_eight_each_has_its_share() {
    let world = World::small(2);
    let delay = Duration::from_millis(20);
    let peer = || FakePeer::slow(&world.chain, &[Behaviour::Honest], delay);
    let peers: Vec<FakePeer> = (0..8).map(|_| peer()).collect();
    world.job().expect(&peers.iter().collect::<Vec<_>>());
    let blocks = |peer: &FakePeer| peer.seen.blocks.load(Ordering::Relaxed);
    let shares: Vec<u64> = peers.iter().map(blocks).collect();
    // On a busy machine, some peers are late.
    assert!(shares.iter().filter(|blocks| **blocks > 0).count() >= 4, "{shares:?}");
    assert!(shares.iter().all(|blocks| *blocks <= 60), "{shares:?}");
}

/// A user who lets peers connect and keeps no blocks gets a warning about what they can get.
#[test]
fn the_user_is_warned_about_served_data() {
    let world = World::small(6);
    let peer = FakePeer::start(&world.chain, &[Behaviour::Honest]);
    let folder = tempfile::tempdir().unwrap();
    let (blocks, log) = (folder.path().join("blocks"), folder.path().join("kept"));
    let keep = Some(BlocksFolderOptions { folder: blocks, log, datadir: None });
    for (listens, keep, expected) in [(true, None, 1), (false, None, 0), (true, keep, 0)] {
        let mut job = world.job();
        (job.listens, job.keep) = (listens, keep);
        let warnings = Warnings::default();
        let (work, out) = (CrashStorage::new(), CrashStorage::new());
        world.truth.check(&job.run_in(&[&peer], &work, &out, &warnings).unwrap(), &out);
        let warnings = warnings.0.into_inner().unwrap();
        let of_that = warnings.iter().filter(|warning| warning.contains("--blocks keep"));
        assert_eq!(of_that.count(), expected, "{warnings:?}");
    }
}

#[test]
fn memory_for_one_block_is_enough() {
    let world = World::small(3);
    let peer = FakePeer::start(&world.chain, &[Behaviour::Honest]);
    let mut job = world.job();
    job.bytes_max = 1;
    job.expect(&[&peer]);
}

/// One peer has only half of the chain, another has all of it.
#[test]
fn peers_that_lack_blocks_are_asked_for_the_others() {
    let world = World::small(4);
    let behind = FakePeer::start(&world.chain[..60], &[Behaviour::Honest]);
    let ahead = FakePeer::start(&world.chain, &[Behaviour::Honest]);
    world.job().expect(&[&behind, &ahead]);
}

/// A peer on a branch with less work has the blocks below it.
#[test]
fn the_chain_of_most_work_wins() {
    let world = World::small(5);
    let mut branch = apus_testkit::chain::ChainBuilder::new(77);
    world.chain[1..100].iter().for_each(|block| branch.add(block.clone()));
    branch.empty_blocks(3);
    let stale = FakePeer::start(&branch.blocks(), &[Behaviour::Honest]);
    let best = FakePeer::slow(&world.chain, &[Behaviour::Honest], Duration::from_millis(20));
    world.job().expect(&[&stale, &best]);
    assert!(stale.seen.blocks.load(Ordering::Relaxed) > 0, "it has 99 of the blocks");
}
