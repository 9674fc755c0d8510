//! Tests with damaged copies, blocks without parents, and headers from the future.

use super::sandbox::{Sandbox, rejected};
use crate::chainman::SubmitOutcome::{Accepted, Duplicate, Inconclusive, Orphan};
use apus_testkit::chain::{BlockPlan, Commitment, mine};
use bitcoin::consensus::{deserialize, serialize};
use bitcoin::hashes::Hash;
use bitcoin::{Amount, Block, OutPoint, ScriptBuf, TxOut, Txid, Witness};

#[test]
fn orphans_wait_for_their_parents() {
    let mut sandbox = Sandbox::new();
    sandbox.build("genesis", "a1 a2 a3 a4");
    sandbox.build("a2", "b3");
    for name in ["a4", "a3", "b3", "a2"] {
        sandbox.expect(name, Orphan, "genesis");
    }
    assert_eq!(sandbox.manager.orphans_count(), 4);
    sandbox.expect("a3", Orphan, "genesis");
    sandbox.expect("a1", Accepted, "a4");
    assert_eq!(sandbox.manager.orphans_count(), 0);
    sandbox.expect("b3", Duplicate, "a4");
}

#[test]
fn a_block_with_more_work_through_orphans_is_accepted() {
    let mut sandbox = Sandbox::new();
    sandbox.build("genesis", "a1 a2");
    sandbox.build("genesis", "b1 b2 b3");
    sandbox.accept("a1 a2");
    sandbox.expect("b3", Orphan, "a2");
    sandbox.expect("b2", Orphan, "a2");
    sandbox.expect("b1", Accepted, "b3");
}

#[test]
fn a_block_whose_orphans_complete_a_failing_chain_is_rejected() {
    let mut sandbox = Sandbox::new();
    sandbox.build("genesis", "a1 a2");
    sandbox.build("genesis", "b1 b2 b3");
    sandbox.spoil("b1");
    sandbox.accept("a1 a2");
    sandbox.expect("b3", Orphan, "a2");
    sandbox.expect("b2", Orphan, "a2");
    sandbox.expect("b1", rejected("bad-b1"), "a2");
    sandbox.expect("b2", rejected("duplicate-invalid"), "a2");
}

/// Makes another copy of a block.
fn altered(raw: &[u8], alter: impl FnOnce(&mut Block)) -> Vec<u8> {
    let mut block: Block = deserialize(raw).unwrap();
    alter(&mut block);
    serialize(&block)
}

#[test]
fn a_damaged_copy_does_not_count_against_the_block() {
    let mut sandbox = Sandbox::new();
    sandbox.build("genesis", "a1");
    let spend = |sandbox: &Sandbox, vout| {
        let nowhere = OutPoint { txid: Txid::from_byte_array([1; 32]), vout };
        sandbox
            .builder
            .spend(&[nowhere], vec![TxOut { value: Amount::ZERO, script_pubkey: ScriptBuf::new() }])
    };
    let transactions = vec![spend(&sandbox, 0), spend(&sandbox, 1)];
    sandbox.build_with("a1", "a2", BlockPlan { transactions, ..BlockPlan::default() });
    sandbox.accept("a1");
    let good = sandbox.raw("a2");
    let other = altered(&good, |block| block.txdata[0].output[0].value = Amount::ZERO);
    assert_eq!(sandbox.submit_raw(other), rejected("bad-txnmrklroot"));
    let doubled = altered(&good, |block| block.txdata.push(block.txdata[2].clone()));
    assert_eq!(sandbox.submit_raw(doubled), rejected("bad-txns-duplicate"));
    let mut long_count = good[..80].to_vec();
    long_count.extend([0xfd, 1, 0]);
    long_count.extend(&good[81..]);
    assert_eq!(sandbox.submit_raw(long_count), rejected("non-canonical ReadCompactSize()"));
    let short = good[..good.len() - 1].to_vec();
    assert_eq!(sandbox.submit_raw(short), rejected("DataStream::read(): end of data"));
    sandbox.expect("a2", Accepted, "a2");
}

#[test]
fn context_free_faults_come_first_and_do_not_fail_the_header() {
    let mut sandbox = Sandbox::new();
    sandbox.build("genesis", "a1");
    sandbox.build_with(
        "a1",
        "a2",
        BlockPlan { coinbase_outputs: Some(vec![]), ..BlockPlan::default() },
    );
    sandbox.build("a2", "a3");
    // Core does not keep the header of such a block, so its child has no parent.
    sandbox.expect("a2", rejected("bad-txns-vout-empty"), "genesis");
    sandbox.accept("a1");
    sandbox.expect("a2", rejected("bad-txns-vout-empty"), "a1");
    sandbox.expect("a2", rejected("bad-txns-vout-empty"), "a1");
    sandbox.expect("a3", Orphan, "a1");
}

#[test]
fn contextual_faults_fail_the_header() {
    let mut sandbox = Sandbox::new();
    sandbox.build("genesis", "a1 a2");
    let coinbase = sandbox.builder.block(sandbox.builder.tip()).txdata[0].clone();
    // Repeats the coinbase of height 2.
    let plan = BlockPlan { coinbase: Some(coinbase), ..BlockPlan::default() };
    sandbox.build_with("a2", "b3", plan);
    sandbox.build("b3", "b4");
    sandbox.accept("a1 a2");
    sandbox.expect("b3", rejected("bad-cb-height"), "a2");
    sandbox.expect("b3", rejected("duplicate-invalid"), "a2");
    sandbox.expect("b4", rejected("bad-prevblk"), "a2");
    sandbox.reconsider("b3");
    sandbox.expect("b3", rejected("bad-cb-height"), "a2");
}

#[test]
fn only_the_header_of_a_copy_with_a_damaged_witness_is_kept() {
    let mut sandbox = Sandbox::new();
    let plan = BlockPlan { commitment: Commitment::Always, ..BlockPlan::default() };
    sandbox.build("genesis", "a1");
    sandbox.build_with("a1", "a2", plan);
    sandbox.build("a2", "a3 a4");
    sandbox.build("a1", "b2");
    sandbox.accept("a1");
    let good = sandbox.raw("a2");
    let witness = |items: &[[u8; 32]]| Witness::from_slice(items);
    for (items, reason) in
        [(&[][..], "bad-witness-nonce-size"), (&[[1; 32]], "bad-witness-merkle-match")]
    {
        let bad = altered(&good, |block| block.txdata[0].input[0].witness = witness(items));
        assert_eq!(sandbox.submit_raw(bad), rejected(reason));
    }
    sandbox.expect("b2", Accepted, "b2");
    // The parent's header is known, but its block is missing.
    sandbox.expect("a3", Inconclusive, "b2");
    sandbox.expect("a4", Inconclusive, "b2");
    sandbox.expect("a2", Accepted, "a4");
}

#[test]
fn a_damaged_orphan_does_not_exclude_the_intact_copy() {
    let mut sandbox = Sandbox::new();
    let plan = BlockPlan { commitment: Commitment::Always, ..BlockPlan::default() };
    sandbox.build("genesis", "a1");
    sandbox.build_with("a1", "a2", plan);
    let bad = altered(&sandbox.raw("a2"), |block| {
        block.txdata[0].input[0].witness = Witness::from_slice(&[[1; 32]]);
    });
    assert_eq!(sandbox.submit_raw(bad.clone()), rejected("bad-witness-merkle-match"));
    sandbox.expect("a2", Orphan, "genesis");
    assert_eq!(sandbox.submit_raw(bad), rejected("bad-witness-merkle-match"));
    assert_eq!(sandbox.manager.orphans_count(), 1);
    sandbox.expect("a1", Accepted, "a2");
}

#[test]
fn bytes_after_a_block_are_ignored() {
    let mut sandbox = Sandbox::new();
    sandbox.build("genesis", "a1 a2");
    sandbox.build("genesis", "b1");
    let trailing = [sandbox.raw("a1"), vec![1, 2, 3]].concat();
    assert_eq!(sandbox.submit_raw(trailing), Accepted);
    sandbox.accept("a2");
    sandbox.expect("a1", Duplicate, "a2");
    sandbox.invalidate("a1");
    sandbox.reconsider("a1");
    sandbox.expect_tip("a2");
}

#[test]
fn a_header_from_the_future_may_be_submitted_again() {
    let mut sandbox = Sandbox::new();
    let at = |time| BlockPlan { time: Some(time), ..BlockPlan::default() };
    sandbox.build_with("genesis", "a1", at(1_400_000_000));
    sandbox.build("a1", "a2");
    sandbox.manager.set_mock_time(1_400_000_000 - 7_201);
    sandbox.expect("a1", rejected("time-too-new"), "genesis");
    sandbox.expect("a2", Orphan, "genesis");
    sandbox.expect("a1", rejected("time-too-new"), "genesis");
    sandbox.manager.set_mock_time(1_400_000_000 - 7_200);
    // Now its child is too new.
    sandbox.expect("a1", Accepted, "a1");
    sandbox.manager.set_mock_time(0);
    sandbox.expect("a2", Accepted, "a2");
}

#[test]
fn rejected_headers_have_cores_reasons() {
    let mut sandbox = Sandbox::new();
    sandbox.build("genesis", "a1 a2");
    sandbox.accept("a1");
    let remined = |sandbox: &Sandbox, alter: fn(&mut Block)| {
        altered(&sandbox.raw("a2"), |block| {
            alter(block);
            mine(block);
        })
    };
    let old = remined(&sandbox, |block| block.header.time = 1);
    assert_eq!(sandbox.submit_raw(old), rejected("time-too-old"));
    let version = |block: &mut Block| block.header.version = bitcoin::block::Version::ONE;
    let version = remined(&sandbox, version);
    assert_eq!(sandbox.submit_raw(version), rejected("bad-version(0x00000001)"));
    let bits =
        |block: &mut Block| block.header.bits = bitcoin::CompactTarget::from_consensus(0x207f_fffe);
    let bits = remined(&sandbox, bits);
    assert_eq!(sandbox.submit_raw(bits), rejected("bad-diffbits"));
    let unmined = altered(&sandbox.raw("a2"), |block| {
        while block.header.validate_pow(block.header.target()).is_ok() {
            block.header.nonce += 1;
        }
    });
    assert_eq!(sandbox.submit_raw(unmined), rejected("high-hash"));
    let other = remined(&sandbox, |block| {
        block.header.prev_blockhash = bitcoin::hashes::Hash::all_zeros();
    });
    assert_eq!(sandbox.submit_raw(other), rejected("prev-blk-not-found"));
    let answer = sandbox.manager.submit(vec![0; 79]).unwrap();
    assert_eq!(answer.hash, None);
    assert_eq!(answer.outcome, rejected("DataStream::read(): end of data"));
    sandbox.expect("a2", Accepted, "a2");
}
