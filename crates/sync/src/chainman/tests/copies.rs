//! Damaged copies, blocks without parents, headers with a time to come.

use super::desk::{Desk, rejected};
use crate::chainman::SubmitOutcome::{Accepted, Duplicate, Inconclusive, Orphan};
use apus_testkit::chain::{BlockPlan, Commitment, mine};
use bitcoin::consensus::{deserialize, serialize};
use bitcoin::hashes::Hash;
use bitcoin::{Amount, Block, OutPoint, ScriptBuf, TxOut, Txid, Witness};

#[test]
fn orphans_wait_for_their_parents() {
    let mut desk = Desk::new();
    desk.build("genesis", "a1 a2 a3 a4");
    desk.build("a2", "b3");
    for name in ["a4", "a3", "b3", "a2"] {
        desk.expect(name, Orphan, "genesis");
    }
    assert_eq!(desk.manager.orphans_count(), 4);
    desk.expect("a3", Orphan, "genesis");
    desk.expect("a1", Accepted, "a4");
    assert_eq!(desk.manager.orphans_count(), 0);
    desk.expect("b3", Duplicate, "a4");
}

#[test]
fn a_block_that_its_orphans_pull_up_is_accepted() {
    let mut desk = Desk::new();
    desk.build("genesis", "a1 a2");
    desk.build("genesis", "b1 b2 b3");
    desk.accept("a1 a2");
    desk.expect("b3", Orphan, "a2");
    desk.expect("b2", Orphan, "a2");
    desk.expect("b1", Accepted, "b3");
}

#[test]
fn a_block_that_its_orphans_bring_to_judgement_is_rejected() {
    let mut desk = Desk::new();
    desk.build("genesis", "a1 a2");
    desk.build("genesis", "b1 b2 b3");
    desk.spoil("b1");
    desk.accept("a1 a2");
    desk.expect("b3", Orphan, "a2");
    desk.expect("b2", Orphan, "a2");
    desk.expect("b1", rejected("bad-b1"), "a2");
    desk.expect("b2", rejected("duplicate-invalid"), "a2");
}

/// Another copy of a block.
fn altered(raw: &[u8], alter: impl FnOnce(&mut Block)) -> Vec<u8> {
    let mut block: Block = deserialize(raw).unwrap();
    alter(&mut block);
    serialize(&block)
}

#[test]
fn a_damaged_copy_does_not_count_against_the_block() {
    let mut desk = Desk::new();
    desk.build("genesis", "a1");
    let spend = |desk: &Desk, vout| {
        let nowhere = OutPoint { txid: Txid::from_byte_array([1; 32]), vout };
        desk.builder
            .spend(&[nowhere], vec![TxOut { value: Amount::ZERO, script_pubkey: ScriptBuf::new() }])
    };
    let transactions = vec![spend(&desk, 0), spend(&desk, 1)];
    desk.build_with("a1", "a2", BlockPlan { transactions, ..BlockPlan::default() });
    desk.accept("a1");
    let good = desk.raw("a2");
    let other = altered(&good, |block| block.txdata[0].output[0].value = Amount::ZERO);
    assert_eq!(desk.submit_raw(other), rejected("bad-txnmrklroot"));
    let doubled = altered(&good, |block| block.txdata.push(block.txdata[2].clone()));
    assert_eq!(desk.submit_raw(doubled), rejected("bad-txns-duplicate"));
    let mut long_count = good[..80].to_vec();
    long_count.extend([0xfd, 1, 0]);
    long_count.extend(&good[81..]);
    assert_eq!(desk.submit_raw(long_count), rejected("non-canonical ReadCompactSize()"));
    let short = good[..good.len() - 1].to_vec();
    assert_eq!(desk.submit_raw(short), rejected("DataStream::read(): end of data"));
    desk.expect("a2", Accepted, "a2");
}

#[test]
fn what_needs_no_context_is_said_first_and_not_held_against_the_header() {
    let mut desk = Desk::new();
    desk.build("genesis", "a1");
    desk.build_with(
        "a1",
        "a2",
        BlockPlan { coinbase_outputs: Some(vec![]), ..BlockPlan::default() },
    );
    desk.build("a2", "a3");
    // Core does not keep the header of such a block, so its child has no parent.
    desk.expect("a2", rejected("bad-txns-vout-empty"), "genesis");
    desk.accept("a1");
    desk.expect("a2", rejected("bad-txns-vout-empty"), "a1");
    desk.expect("a2", rejected("bad-txns-vout-empty"), "a1");
    desk.expect("a3", Orphan, "a1");
}

#[test]
fn what_needs_context_is_held_against_the_header() {
    let mut desk = Desk::new();
    desk.build("genesis", "a1 a2");
    let coinbase = desk.builder.block(desk.builder.tip()).txdata[0].clone();
    // The coinbase of height 2 again.
    let plan = BlockPlan { coinbase: Some(coinbase), ..BlockPlan::default() };
    desk.build_with("a2", "b3", plan);
    desk.build("b3", "b4");
    desk.accept("a1 a2");
    desk.expect("b3", rejected("bad-cb-height"), "a2");
    desk.expect("b3", rejected("duplicate-invalid"), "a2");
    desk.expect("b4", rejected("bad-prevblk"), "a2");
    desk.reconsider("b3");
    desk.expect("b3", rejected("bad-cb-height"), "a2");
}

#[test]
fn a_copy_with_a_damaged_witness_leaves_the_header_and_nothing_else() {
    let mut desk = Desk::new();
    let plan = BlockPlan { commitment: Commitment::Always, ..BlockPlan::default() };
    desk.build("genesis", "a1");
    desk.build_with("a1", "a2", plan);
    desk.build("a2", "a3 a4");
    desk.build("a1", "b2");
    desk.accept("a1");
    let good = desk.raw("a2");
    let witness = |items: &[[u8; 32]]| Witness::from_slice(items);
    for (items, reason) in
        [(&[][..], "bad-witness-nonce-size"), (&[[1; 32]], "bad-witness-merkle-match")]
    {
        let bad = altered(&good, |block| block.txdata[0].input[0].witness = witness(items));
        assert_eq!(desk.submit_raw(bad), rejected(reason));
    }
    desk.expect("b2", Accepted, "b2");
    // The parent's header is known, its block is missing.
    desk.expect("a3", Inconclusive, "b2");
    desk.expect("a4", Inconclusive, "b2");
    desk.expect("a2", Accepted, "a4");
}

#[test]
fn a_damaged_copy_among_orphans_does_not_shut_the_good_one_out() {
    let mut desk = Desk::new();
    let plan = BlockPlan { commitment: Commitment::Always, ..BlockPlan::default() };
    desk.build("genesis", "a1");
    desk.build_with("a1", "a2", plan);
    let bad = altered(&desk.raw("a2"), |block| {
        block.txdata[0].input[0].witness = Witness::from_slice(&[[1; 32]]);
    });
    assert_eq!(desk.submit_raw(bad.clone()), rejected("bad-witness-merkle-match"));
    desk.expect("a2", Orphan, "genesis");
    assert_eq!(desk.submit_raw(bad), rejected("bad-witness-merkle-match"));
    assert_eq!(desk.manager.orphans_count(), 1);
    desk.expect("a1", Accepted, "a2");
}

#[test]
fn bytes_behind_a_block_are_not_looked_at() {
    let mut desk = Desk::new();
    desk.build("genesis", "a1 a2");
    desk.build("genesis", "b1");
    let trailing = [desk.raw("a1"), vec![1, 2, 3]].concat();
    assert_eq!(desk.submit_raw(trailing), Accepted);
    desk.accept("a2");
    desk.expect("a1", Duplicate, "a2");
    desk.invalidate("a1");
    desk.reconsider("a1");
    desk.expect_tip("a2");
}

#[test]
fn a_header_from_the_future_may_come_again() {
    let mut desk = Desk::new();
    let at = |time| BlockPlan { time: Some(time), ..BlockPlan::default() };
    desk.build_with("genesis", "a1", at(1_400_000_000));
    desk.build("a1", "a2");
    desk.manager.set_mock_time(1_400_000_000 - 7_201);
    desk.expect("a1", rejected("time-too-new"), "genesis");
    desk.expect("a2", Orphan, "genesis");
    desk.expect("a1", rejected("time-too-new"), "genesis");
    desk.manager.set_mock_time(1_400_000_000 - 7_200);
    // Now its child is the one that comes too early.
    desk.expect("a1", Accepted, "a1");
    desk.manager.set_mock_time(0);
    desk.expect("a2", Accepted, "a2");
}

#[test]
fn headers_have_cores_reasons() {
    let mut desk = Desk::new();
    desk.build("genesis", "a1 a2");
    desk.accept("a1");
    let remined = |desk: &Desk, alter: fn(&mut Block)| {
        altered(&desk.raw("a2"), |block| {
            alter(block);
            mine(block);
        })
    };
    let old = remined(&desk, |block| block.header.time = 1);
    assert_eq!(desk.submit_raw(old), rejected("time-too-old"));
    let version = |block: &mut Block| block.header.version = bitcoin::block::Version::ONE;
    let version = remined(&desk, version);
    assert_eq!(desk.submit_raw(version), rejected("bad-version(0x00000001)"));
    let bits =
        |block: &mut Block| block.header.bits = bitcoin::CompactTarget::from_consensus(0x207f_fffe);
    let bits = remined(&desk, bits);
    assert_eq!(desk.submit_raw(bits), rejected("bad-diffbits"));
    let unmined = altered(&desk.raw("a2"), |block| {
        while block.header.validate_pow(block.header.target()).is_ok() {
            block.header.nonce += 1;
        }
    });
    assert_eq!(desk.submit_raw(unmined), rejected("high-hash"));
    let other = remined(&desk, |block| {
        block.header.prev_blockhash = bitcoin::hashes::Hash::all_zeros();
    });
    assert_eq!(desk.submit_raw(other), rejected("prev-blk-not-found"));
    let answer = desk.manager.submit(vec![0; 79]).unwrap();
    assert_eq!(answer.hash, None);
    assert_eq!(answer.outcome, rejected("DataStream::read(): end of data"));
    desk.expect("a2", Accepted, "a2");
}
