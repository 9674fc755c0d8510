//! Tests of the choice of the active chain.

use super::sandbox::{Sandbox, rejected};
use crate::chainman::SubmitOutcome::{Accepted, Duplicate, Inconclusive, Orphan};
use apus_chain::BlockHash;

#[test]
fn on_equal_work_the_first_chain_stays_active() {
    let mut sandbox = Sandbox::new();
    sandbox.build("genesis", "a1 a2");
    sandbox.build("genesis", "b1 b2 b3");
    sandbox.accept("a1");
    sandbox.expect("b1", Inconclusive, "a1");
    sandbox.expect("b2", Accepted, "b2");
    sandbox.expect("a2", Inconclusive, "b2");
    sandbox.expect("b3", Accepted, "b3");
    sandbox.expect("b1", Duplicate, "b3");
    sandbox.expect("a2", Duplicate, "b3");
}

#[test]
fn chains_overtake_each_other_back_and_forth() {
    let mut sandbox = Sandbox::new();
    sandbox.build("genesis", "a1 a2 a3 a4 a5 a6");
    sandbox.build("a1", "b2 b3 b4 b5");
    sandbox.accept("a1 a2");
    sandbox.expect("b2", Inconclusive, "a2");
    sandbox.expect("b3", Accepted, "b3");
    sandbox.expect("a3", Inconclusive, "b3");
    sandbox.expect("a4", Accepted, "a4");
    sandbox.expect("b4", Inconclusive, "a4");
    sandbox.expect("b5", Accepted, "b5");
    sandbox.expect("a5", Inconclusive, "b5");
    sandbox.expect("a6", Accepted, "a6");
}

#[test]
fn a_failed_block_fails_its_descendants() {
    let mut sandbox = Sandbox::new();
    sandbox.build("genesis", "a1 a2 a3");
    sandbox.build("a1", "b2 b3 b4 b5");
    sandbox.spoil("b3");
    sandbox.accept("a1 a2 a3");
    sandbox.expect("b2", Inconclusive, "a3");
    sandbox.expect("b3", Inconclusive, "a3");
    // b4 completes the chain, so only now is b3 validated.
    sandbox.expect("b4", rejected("bad-b3"), "a3");
    sandbox.expect("b5", rejected("bad-prevblk"), "a3");
    for name in ["b3", "b4"] {
        sandbox.expect(name, rejected("duplicate-invalid"), "a3");
    }
    sandbox.expect("b2", Duplicate, "a3");
    // The valid part of the branch continues with other blocks.
    sandbox.build("b2", "c3 c4");
    sandbox.expect("c3", Inconclusive, "a3");
    sandbox.expect("c4", Accepted, "c4");
}

#[test]
fn a_failed_block_above_the_tip_does_not_move_the_tip() {
    let mut sandbox = Sandbox::new();
    sandbox.build("genesis", "a1 a2");
    sandbox.spoil("a2");
    sandbox.accept("a1");
    sandbox.expect("a2", rejected("bad-a2"), "a1");
    sandbox.expect("a2", rejected("duplicate-invalid"), "a1");
    assert_eq!(sandbox.state.lock().unwrap().moves, 2, "validated once");
}

#[test]
fn after_a_failure_the_best_other_chain_is_active() {
    let mut sandbox = Sandbox::new();
    sandbox.build("genesis", "a1 a2 a3");
    sandbox.build("genesis", "b1 b2 b3 b4");
    sandbox.build("b2", "c3");
    sandbox.spoil("b4");
    // No chain of b and c is complete before b1 arrives.
    sandbox.accept("a1 a2 a3");
    for name in ["c3", "b4", "b3", "b2"] {
        sandbox.expect(name, Orphan, "a3");
    }
    sandbox.expect("b1", Inconclusive, "a3");
    sandbox.invalidate("a3");
    // b3 and c3 have equal work, so the chain that was complete first wins.
    sandbox.expect_tip("c3");
}

#[test]
fn invalidated_blocks_leave_the_chain_until_reconsidered() {
    let mut sandbox = Sandbox::new();
    sandbox.build("genesis", "a1 a2 a3");
    sandbox.build("a1", "b2");
    sandbox.accept("a1 a2 a3");
    sandbox.expect("b2", Inconclusive, "a3");
    sandbox.invalidate("a2");
    sandbox.expect_tip("b2");
    sandbox.expect("a3", rejected("duplicate-invalid"), "b2");
    sandbox.build("a3", "a4");
    sandbox.expect("a4", rejected("bad-prevblk"), "b2");
    sandbox.reconsider("a3");
    sandbox.expect_tip("a3");
    sandbox.expect("a4", Accepted, "a4");
    sandbox.invalidate("a1");
    sandbox.expect_tip("genesis");
    sandbox.reconsider("b2");
    // The descendants of a reconsidered block are valid again, the rest of the family is not.
    sandbox.expect_tip("b2");
    sandbox.reconsider("a1");
    sandbox.expect_tip("a4");
}

#[test]
fn on_equal_work_the_older_chain_returns_after_an_invalidation() {
    let mut sandbox = Sandbox::new();
    sandbox.build("genesis", "a1");
    sandbox.build("genesis", "b1 b2");
    sandbox.accept("a1");
    sandbox.expect("b1", Inconclusive, "a1");
    sandbox.accept("b2");
    sandbox.invalidate("b2");
    sandbox.expect_tip("a1");
    sandbox.reconsider("b2");
    sandbox.invalidate("b1");
    sandbox.expect_tip("a1");
}

#[test]
fn a_reconsidered_block_is_validated_again() {
    let mut sandbox = Sandbox::new();
    sandbox.build("genesis", "a1 a2 a3");
    sandbox.spoil("a2");
    sandbox.accept("a1");
    sandbox.expect("a2", rejected("bad-a2"), "a1");
    sandbox.reconsider("a2");
    sandbox.expect_tip("a1");
    sandbox.expect("a3", rejected("bad-prevblk"), "a1");
    sandbox.state.lock().unwrap().bad.clear();
    sandbox.reconsider("a2");
    sandbox.expect_tip("a2");
    sandbox.expect("a3", Accepted, "a3");
}

#[test]
fn blocks_off_the_chain_can_be_invalidated() {
    let mut sandbox = Sandbox::new();
    sandbox.build("genesis", "a1 a2");
    sandbox.build("genesis", "b1 b2 b3");
    sandbox.accept("a1 a2");
    sandbox.expect("b1", Inconclusive, "a2");
    sandbox.invalidate("b1");
    sandbox.expect_tip("a2");
    sandbox.expect("b2", rejected("bad-prevblk"), "a2");
    sandbox.reconsider("b1");
    sandbox.expect("b2", Inconclusive, "a2");
    sandbox.expect("b3", Accepted, "b3");
}

#[test]
fn unknown_blocks_and_the_genesis_block_cannot_be_marked() {
    let mut sandbox = Sandbox::new();
    sandbox.build("genesis", "a1 a2");
    sandbox.accept("a1");
    for hash in [BlockHash([7; 32]), sandbox.hash("a2")] {
        assert!(!sandbox.manager.invalidate(&hash).unwrap());
        assert!(!sandbox.manager.reconsider(&hash).unwrap());
    }
    sandbox.invalidate("genesis");
    sandbox.reconsider("genesis");
    sandbox.expect_tip("a1");
    let genesis = super::sandbox::regtest().genesis_block();
    assert_eq!(sandbox.submit_raw(genesis), Duplicate);
}
