//! Tests of chains that are in the future by this machine's clock: either the clock or the chain is wrong.

use crate::chains::{PATIENCE, Run, chain};
use crate::harness::at_once;
use apus_sync::{ErrorKind, SourceError, SyncError};
use apus_testkit::chain::{BlockPlan, ChainBuilder};
use apus_testkit::peer::{Behaviour, FakePeer};
use bitcoin::Block;
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the chain with `count` more blocks, dated tomorrow.
fn of_tomorrow(chain: &[Block], seed: u64, count: u32) -> Vec<Block> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as u32;
    let mut builder = ChainBuilder::new(seed);
    chain[1..].iter().for_each(|block| builder.add(block.clone()));
    for later in 0..count {
        let time = Some(now + 86_400 + later);
        builder.add_plan(BlockPlan { time, ..BlockPlan::default() });
    }
    builder.blocks()
}

#[test]
fn chains_of_the_future() {
    at_once(&[
        ("the only chain", blocks_of_the_only_peer_are_not_left_out),
        ("most peers", blocks_of_most_peers_are_not_left_out),
        ("one of two", one_of_two_peers_cannot_end_the_sync),
    ]);
}

fn expect_clock(error: &SyncError) {
    assert!(matches!(error, SyncError::Source(SourceError::Clock(_))), "{error}");
    assert_eq!((error.kind(), error.class()), (ErrorKind::Io, "clock"), "{error}");
    assert!(error.to_string().contains("Set the clock"), "{error}");
}

fn blocks_of_the_only_peer_are_not_left_out() {
    let all = of_tomorrow(&chain(101, 110).blocks(), 102, 9);
    let peer = FakePeer::start(&all, &[Behaviour::Honest]);
    let error = Run::new(false, PATIENCE).over(&[&peer]).unwrap_err();
    expect_clock(&error);
    assert!(error.to_string().contains("block 111 "), "{error}");
}

fn blocks_of_most_peers_are_not_left_out() {
    let now = chain(103, 110).blocks();
    let later = of_tomorrow(&now, 104, 1);
    let peers = [&later, &now, &later].map(|chain| FakePeer::start(chain, &[Behaviour::Honest]));
    let error = Run::new(false, PATIENCE).over(&[&peers[0], &peers[1], &peers[2]]).unwrap_err();
    expect_clock(&error);
}

/// Any miner can create a block in the future, and any peer can send it.
fn one_of_two_peers_cannot_end_the_sync() {
    let now = chain(105, 110).blocks();
    let honest = FakePeer::start(&now, &[Behaviour::Honest]);
    let liar = FakePeer::start(&of_tomorrow(&now, 106, 3), &[Behaviour::Honest]);
    let run = Run::new(false, PATIENCE);
    run.check(run.over(&[&honest, &liar]), &now);
    let warnings = run.reported.warnings.lock().unwrap().join("\n");
    let of_clock = "1 peer(s) have a chain up to at least block 113, but its block 111 ";
    assert!(warnings.contains(of_clock) && warnings.contains("set it"), "{warnings}");
    assert!(warnings.contains("announced blocks up to 113"), "{warnings}");
}
