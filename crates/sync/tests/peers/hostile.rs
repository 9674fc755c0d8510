//! Tests with misbehaving peers.

use crate::harness::{World, at_once};
use apus_p2p::network::NetworkError;
use apus_sync::{ErrorKind, InvalidError, SourceError, SyncError};
use apus_testkit::peer::{Behaviour, FakePeer};
use std::time::Duration;

/// These tests mostly wait, so they run in parallel.
#[test]
fn bad_peers() {
    at_once(&[
        ("next to an honest one", each_next_to_an_honest_one),
        ("alone", each_alone),
        ("damaged copies", a_block_with_only_damaged_copies),
    ]);
}

/// One bad peer among good ones must not matter.
fn each_next_to_an_honest_one() {
    let world = World::small(11);
    std::thread::scope(|scope| {
        for behaviour in Behaviour::BAD {
            let world = &world;
            scope.spawn(move || {
                let bad = FakePeer::start(&world.chain, &[behaviour]);
                let good =
                    FakePeer::slow(&world.chain, &[Behaviour::Honest], Duration::from_millis(2));
                if let Err(error) = world.job().try_expect(&[&bad, &good]) {
                    panic!("{behaviour:?}: {error}");
                }
            });
        }
    });
}

/// A bad peer alone gives the right set if it is only strange, and otherwise a network error, but never another
/// result or a hang.
fn each_alone() {
    let world = World::small(12);
    std::thread::scope(|scope| {
        // The slow drip delivers a chain, but takes an hour.
        let slow = [Behaviour::Drip, Behaviour::DripBlocks];
        for behaviour in Behaviour::BAD.into_iter().filter(|it| !slow.contains(it)) {
            let world = &world;
            scope.spawn(move || {
                let bad = FakePeer::start(&world.chain, &[behaviour]);
                let mut job = world.job();
                let strange = [
                    Behaviour::GoneAfter(2),
                    Behaviour::GoneAfter(9),
                    Behaviour::GarbageAfter(4),
                    Behaviour::SilentAfter(3),
                    Behaviour::Unrequested,
                    Behaviour::Repeats,
                    Behaviour::PingFlood,
                    Behaviour::AddressFlood,
                    Behaviour::OutOfOrder,
                    Behaviour::TwoVersions,
                    // This peer answers once its flood has ended.
                    Behaviour::HeaderFlood,
                    // This peer's blocks are right, as their headers prove.
                    Behaviour::WrongChecksum,
                ];
                let mutated = [Behaviour::MutatedTransactions, Behaviour::MutatedWitness];
                // The faults of these peers show only after their headers and blocks have arrived.
                let seconds = if mutated.contains(&behaviour) { 40 } else { 4 };
                job.patience = Duration::from_secs(seconds);
                match job.run(&[&bad]) {
                    Ok(outcome) => {
                        assert!(strange.contains(&behaviour), "{behaviour:?} led to a set");
                        assert_eq!(outcome.chain.stop.hash.to_string(), world.truth.stop_hash);
                        assert_eq!(outcome.set.totals.coins, world.truth.coins);
                    }
                    Err(error) => {
                        assert!(is_of_network(&error), "{behaviour:?}: {error}");
                        assert_eq!(error.kind(), expected_kind(&error), "{behaviour:?}: {error}");
                        if mutated.contains(&behaviour) {
                            assert!(is_of_copies(&error), "{behaviour:?}: {error}");
                        }
                    }
                }
            });
        }
    });
}

fn is_of_network(error: &SyncError) -> bool {
    matches!(
        error,
        SyncError::Network(NetworkError::Quiet { .. })
            | SyncError::Source(
                SourceError::Network(NetworkError::Quiet { .. })
                    | SourceError::NoHeaders { .. }
                    | SourceError::DamagedCopies { .. }
            )
            | SyncError::Invalid(InvalidError::ChainTooShort { .. })
    )
}

/// If several peers' copies of one block are damaged, the error names its height.
fn a_block_with_only_damaged_copies() {
    let world = World::small(15);
    let bad = || FakePeer::start(&world.chain, &[Behaviour::MutatedWitness]);
    let (one, two) = (bad(), bad());
    let mut job = world.job();
    job.patience = Duration::from_secs(60);
    let error = job.run(&[&one, &two]).unwrap_err();
    assert!(is_of_copies(&error), "{error}");
    let said = error.to_string();
    assert!(said.contains("2 peers sent damaged copies"), "{said}");
    assert!(said.contains(&world.chain[1].block_hash().to_string()), "{said}");
    assert!(said.contains("block 1 ("), "{said}");
}

fn is_of_copies(error: &SyncError) -> bool {
    matches!(error, SyncError::Source(SourceError::DamagedCopies { .. }))
}

fn expected_kind(error: &SyncError) -> ErrorKind {
    match error {
        SyncError::Network(_)
        | SyncError::Source(SourceError::Network(_) | SourceError::DamagedCopies { .. }) => {
            ErrorKind::Io
        }
        _ => ErrorKind::Wrong,
    }
}

/// The sync fails if its only peer never sends anything.
#[test]
fn no_peer_speaks() {
    let world = World::small(13);
    let gone = FakePeer::start(&world.chain, &[Behaviour::Honest]);
    let address = gone.address();
    drop(gone);
    let listener = std::net::TcpListener::bind(address);
    drop(listener);
    let silent = FakePeer::start(&world.chain, &[Behaviour::SilentAtOnce]);
    let mut job = world.job();
    job.patience = Duration::from_secs(1);
    let error = job.run(&[&silent]).unwrap_err();
    assert!(is_of_network(&error), "{error}");
    assert!(error.to_string().contains("no"), "{error}");
}

/// A block that its header commits to and that breaks a rule is the chain's fault, not a peer's.
#[test]
fn an_invalid_chain_is_refused() {
    use apus_testkit::chain::{BlockPlan, ChainBuilder};
    let world = World::small(14);
    let mut builder = ChainBuilder::new(5);
    world.chain[1..].iter().for_each(|block| builder.add(block.clone()));
    let empty = builder.coinbase(121, Vec::new());
    let invalid = builder.propose(BlockPlan { coinbase: Some(empty), ..BlockPlan::default() });
    let mut chain = world.chain.clone();
    chain.push(invalid);
    let world = World::of(chain);
    let peer = FakePeer::start(&world.chain, &[Behaviour::Honest]);
    let error = world.job().run(&[&peer]).unwrap_err();
    assert!(matches!(error, SyncError::NoWayOn { .. }), "{error}");
    assert!(error.to_string().contains("bad-txns-vout-empty"), "{error}");
}
