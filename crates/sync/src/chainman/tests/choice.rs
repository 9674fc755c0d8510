//! Which chain is the active one.

use super::desk::{Desk, rejected};
use crate::chainman::SubmitOutcome::{Accepted, Duplicate, Inconclusive, Orphan};
use apus_chain::BlockHash;

#[test]
fn of_equal_work_the_first_stays() {
    let mut desk = Desk::new();
    desk.build("genesis", "a1 a2");
    desk.build("genesis", "b1 b2 b3");
    desk.accept("a1");
    desk.expect("b1", Inconclusive, "a1");
    desk.expect("b2", Accepted, "b2");
    desk.expect("a2", Inconclusive, "b2");
    desk.expect("b3", Accepted, "b3");
    desk.expect("b1", Duplicate, "b3");
    desk.expect("a2", Duplicate, "b3");
}

#[test]
fn chains_overtake_each_other_back_and_forth() {
    let mut desk = Desk::new();
    desk.build("genesis", "a1 a2 a3 a4 a5 a6");
    desk.build("a1", "b2 b3 b4 b5");
    desk.accept("a1 a2");
    desk.expect("b2", Inconclusive, "a2");
    desk.expect("b3", Accepted, "b3");
    desk.expect("a3", Inconclusive, "b3");
    desk.expect("a4", Accepted, "a4");
    desk.expect("b4", Inconclusive, "a4");
    desk.expect("b5", Accepted, "b5");
    desk.expect("a5", Inconclusive, "b5");
    desk.expect("a6", Accepted, "a6");
}

#[test]
fn a_block_that_fails_takes_its_chain_with_it() {
    let mut desk = Desk::new();
    desk.build("genesis", "a1 a2 a3");
    desk.build("a1", "b2 b3 b4 b5");
    desk.spoil("b3");
    desk.accept("a1 a2 a3");
    desk.expect("b2", Inconclusive, "a3");
    desk.expect("b3", Inconclusive, "a3");
    // Only now is b3 judged, and b4 would have completed its chain.
    desk.expect("b4", rejected("bad-b3"), "a3");
    desk.expect("b5", rejected("bad-prevblk"), "a3");
    for name in ["b3", "b4"] {
        desk.expect(name, rejected("duplicate-invalid"), "a3");
    }
    desk.expect("b2", Duplicate, "a3");
    // What is left of the branch goes on elsewhere.
    desk.build("b2", "c3 c4");
    desk.expect("c3", Inconclusive, "a3");
    desk.expect("c4", Accepted, "c4");
}

#[test]
fn a_block_that_fails_at_the_tip_leaves_the_tip() {
    let mut desk = Desk::new();
    desk.build("genesis", "a1 a2");
    desk.spoil("a2");
    desk.accept("a1");
    desk.expect("a2", rejected("bad-a2"), "a1");
    desk.expect("a2", rejected("duplicate-invalid"), "a1");
    assert_eq!(desk.judge.lock().unwrap().moves, 2, "judged once");
}

#[test]
fn after_a_failure_the_best_of_all_others_is_next() {
    let mut desk = Desk::new();
    desk.build("genesis", "a1 a2 a3");
    desk.build("genesis", "b1 b2 b3 b4");
    desk.build("b2", "c3");
    desk.spoil("b4");
    // Nothing of b and c is whole before b1 comes.
    desk.accept("a1 a2 a3");
    for name in ["c3", "b4", "b3", "b2"] {
        desk.expect(name, Orphan, "a3");
    }
    desk.expect("b1", Inconclusive, "a3");
    desk.invalidate("a3");
    // Of b3 and c3, which have equal work, the one that came first is whole first.
    desk.expect_tip("c3");
}

#[test]
fn invalidated_blocks_leave_and_come_back() {
    let mut desk = Desk::new();
    desk.build("genesis", "a1 a2 a3");
    desk.build("a1", "b2");
    desk.accept("a1 a2 a3");
    desk.expect("b2", Inconclusive, "a3");
    desk.invalidate("a2");
    desk.expect_tip("b2");
    desk.expect("a3", rejected("duplicate-invalid"), "b2");
    desk.build("a3", "a4");
    desk.expect("a4", rejected("bad-prevblk"), "b2");
    desk.reconsider("a3");
    desk.expect_tip("a3");
    desk.expect("a4", Accepted, "a4");
    desk.invalidate("a1");
    desk.expect_tip("genesis");
    desk.reconsider("b2");
    // The descendants of what was reconsidered are good again, the rest of the family is not.
    desk.expect_tip("b2");
    desk.reconsider("a1");
    desk.expect_tip("a4");
}

#[test]
fn of_equal_work_the_older_is_back_after_an_invalidation() {
    let mut desk = Desk::new();
    desk.build("genesis", "a1");
    desk.build("genesis", "b1 b2");
    desk.accept("a1");
    desk.expect("b1", Inconclusive, "a1");
    desk.accept("b2");
    desk.invalidate("b2");
    desk.expect_tip("a1");
    desk.reconsider("b2");
    desk.invalidate("b1");
    desk.expect_tip("a1");
}

#[test]
fn what_is_reconsidered_is_judged_again() {
    let mut desk = Desk::new();
    desk.build("genesis", "a1 a2 a3");
    desk.spoil("a2");
    desk.accept("a1");
    desk.expect("a2", rejected("bad-a2"), "a1");
    desk.reconsider("a2");
    desk.expect_tip("a1");
    desk.expect("a3", rejected("bad-prevblk"), "a1");
    desk.judge.lock().unwrap().bad.clear();
    desk.reconsider("a2");
    desk.expect_tip("a2");
    desk.expect("a3", Accepted, "a3");
}

#[test]
fn blocks_beside_the_chain_can_be_invalidated() {
    let mut desk = Desk::new();
    desk.build("genesis", "a1 a2");
    desk.build("genesis", "b1 b2 b3");
    desk.accept("a1 a2");
    desk.expect("b1", Inconclusive, "a2");
    desk.invalidate("b1");
    desk.expect_tip("a2");
    desk.expect("b2", rejected("bad-prevblk"), "a2");
    desk.reconsider("b1");
    desk.expect("b2", Inconclusive, "a2");
    desk.expect("b3", Accepted, "b3");
}

#[test]
fn unknown_blocks_and_the_genesis_block_stay_as_they_are() {
    let mut desk = Desk::new();
    desk.build("genesis", "a1 a2");
    desk.accept("a1");
    for hash in [BlockHash([7; 32]), desk.hash("a2")] {
        assert!(!desk.manager.invalidate(&hash).unwrap());
        assert!(!desk.manager.reconsider(&hash).unwrap());
    }
    desk.invalidate("genesis");
    desk.reconsider("genesis");
    desk.expect_tip("a1");
    let genesis = super::desk::regtest().genesis_block();
    assert_eq!(desk.submit_raw(genesis), Duplicate);
}
