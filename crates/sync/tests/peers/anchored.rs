//! Tests that hints are anchored in a chain of headers before any block is requested.

use crate::harness::{World, at_once};
use apus_chain::{BlockHash, Network, Params, ScriptCheckReason};
use apus_sync::{
    Event, HintedValidity, NotAnchored, Observer, Outcome, Phase, SyncError, UsageError,
};
use apus_testkit::chain::ChainBuilder;
use apus_testkit::peer::{Behaviour, FakePeer};
use apus_testkit::storage::CrashStorage;
use bitcoin::Block;
use bitcoin::hashes::Hash;
use std::num::NonZeroU32;
use std::sync::Once;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// These tests mostly wait, so they run in parallel.
#[test]
fn hints_without_an_anchor() {
    at_once(&[
        ("refused", no_block_is_requested),
        ("too young", a_chain_that_stays_too_young_is_refused),
        ("longer", a_longer_chain_is_waited_for),
    ]);
}

/// Returns rules with blocks a day apart, so that fifteen of them are more than two weeks, and an assumed-valid
/// block.
fn daily(assumed: BlockHash) -> &'static Params {
    Box::leak(Box::new(Params {
        pow_target_spacing_seconds: NonZeroU32::new(86_400).unwrap(),
        pow_no_retargeting: true,
        default_assume_valid: Some(assumed),
        ..Params::of(Network::Regtest).clone()
    }))
}

/// Returns rules that assume the last block of a world's chain valid.
fn assuming_the_last(world: &World) -> &'static Params {
    daily(BlockHash(world.chain.last().unwrap().block_hash().to_byte_array()))
}

fn refused(ended: Result<Outcome, SyncError>, peer: &FakePeer) -> NotAnchored {
    let error = ended.unwrap_err();
    let SyncError::Usage(UsageError::NotAnchored(refused)) = error else { panic!("{error}") };
    assert_eq!(peer.seen.asked.load(Ordering::Relaxed), 0, "blocks were requested");
    *refused
}

fn no_block_is_requested() {
    let world = World::small(61);
    let peer = FakePeer::start(&world.chain, &[Behaviour::Honest]);
    let mut job = world.job();
    job.hinted_validity = HintedValidity::Anchored;
    let refused = refused(job.run(&[&peer]), &peer);
    assert_eq!(refused.reason, ScriptCheckReason::NoAssumedValid);
    job.hinted_validity = HintedValidity::Assumed;
    job.expect(&[&peer]);
}

fn a_chain_that_stays_too_young_is_refused() {
    let world = World::small(62);
    let peer = FakePeer::start(&world.chain, &[Behaviour::Honest]);
    let mut job = world.job();
    job.hinted_validity = HintedValidity::Anchored;
    job.params = assuming_the_last(&world);
    job.patience = Duration::from_secs(2);
    let refused = refused(job.run(&[&peer]), &peer);
    assert_eq!(refused.reason, ScriptCheckReason::TooRecent);
}

/// Extends the peer's chain as soon as the sync reads the hints.
struct Grows<'a> {
    peer: &'a FakePeer,
    longer: Vec<Block>,
    once: Once,
}

impl Observer for Grows<'_> {
    fn event(&self, event: Event) {
        if event == Event::Started(Phase::Hints) {
            self.once.call_once(|| {
                self.peer.set_chain(&self.longer);
                self.peer.hang_up();
            });
        }
    }
}

fn a_longer_chain_is_waited_for() {
    let world = World::small(63);
    let mut longer = ChainBuilder::new(64);
    world.chain[1..].iter().for_each(|block| longer.add(block.clone()));
    longer.empty_blocks(15);
    let peer = FakePeer::start(&world.chain, &[Behaviour::Honest]);
    let mut job = world.job();
    job.hinted_validity = HintedValidity::Anchored;
    job.params = assuming_the_last(&world);
    let out = CrashStorage::new();
    let grows = Grows { peer: &peer, longer: longer.blocks(), once: Once::new() };
    let outcome = job.run_in(&[&peer], &CrashStorage::new(), &out, &grows).unwrap();
    world.truth.check(&outcome, &out);
    assert_eq!(
        (outcome.chain.tip_height, outcome.validation.hints.unanchored),
        (world.truth.stop + 15, None)
    );
}
