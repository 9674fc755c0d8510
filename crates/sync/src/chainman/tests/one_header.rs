//! What one proof of work can have written down: blocks without parents, in many copies.

use super::desk::{Desk, Judge, TestCoins, regtest, rejected};
use crate::chainman::ChainManager;
use crate::chainman::SubmitOutcome::{Accepted, Orphan};
use apus_chain::ActivationHeight;
use apus_testkit::chain::{BlockPlan, Commitment};
use apus_testkit::rng::Rng;
use apus_testkit::storage::CrashStorage;
use bitcoin::consensus::{deserialize, serialize};
use bitcoin::hashes::Hash;
use bitcoin::{Amount, Block, OutPoint, ScriptBuf, TxOut, Txid, Witness};
use std::sync::{Arc, Mutex};

/// Bytes of all files.
fn written(storage: &CrashStorage) -> usize {
    storage.live_files().values().map(Vec::len).sum()
}

/// The block with other items as its coinbase's witness, which no header commits to.
fn copy(raw: &[u8], items: &[Vec<u8>]) -> Vec<u8> {
    let mut block: Block = deserialize(raw).unwrap();
    block.txdata[0].input[0].witness = Witness::from_slice(items);
    serialize(&block)
}

fn on(storage: &CrashStorage) -> Desk {
    let judge = Arc::new(Mutex::new(Judge::default()));
    let (manager, _) = Desk::on(storage, &judge);
    Desk::of(manager, judge)
}

/// `a1`, and `a2` on it, which commits to its witnesses.
fn build(desk: &mut Desk) {
    let plan = BlockPlan { commitment: Commitment::Always, ..BlockPlan::default() };
    desk.build("genesis", "a1");
    desk.build_with("a1", "a2", plan);
    desk.build("a2", "a3");
}

#[test]
fn a_hundred_copies_leave_no_trace_and_the_right_one_last_is_taken() {
    let storage = CrashStorage::new();
    let mut desk = on(&storage);
    build(&mut desk);
    let good = desk.raw("a2");
    let large = |byte: u8| vec![byte; 3_700_000];
    for number in 0..120 {
        let (items, reason) = match number % 12 {
            0..10 => (vec![vec![number + 1; 32]], "bad-witness-merkle-match"),
            10 => (vec![vec![number; 32], vec![0; 32]], "bad-witness-nonce-size"),
            _ => (vec![large(number)], "bad-witness-nonce-size"),
        };
        assert_eq!(desk.submit_raw(copy(&good, &items)), rejected(reason));
    }
    assert_eq!((written(&storage), desk.manager.orphans_count()), (0, 0));
    // Without witnesses it could be the right one, where segwit is not active.
    let bare = copy(&good, &[]);
    for _ in 0..3 {
        assert_eq!(desk.submit_raw(bare.clone()), Orphan);
        desk.expect("a2", Orphan, "genesis");
        desk.expect("a3", Orphan, "genesis");
    }
    assert_eq!(desk.manager.orphans_count(), 3);
    let bound = good.len() + bare.len() + desk.raw("a3").len() + 1_000;
    assert!(written(&storage) < bound, "{} bytes", written(&storage));
    // The same after a start that goes on.
    let before = written(&storage);
    let (judge, _) = (Arc::clone(&desk.judge), desk.manager.close().unwrap());
    let (manager, _) = Desk::on(&storage, &judge);
    desk.manager = manager;
    assert_eq!(desk.manager.orphans_count(), 3);
    desk.expect("a2", Orphan, "genesis");
    assert_eq!(desk.submit_raw(bare), Orphan);
    assert!(written(&storage) < before + 200, "only that the log was closed");
    desk.expect("a1", Accepted, "a3");
}

#[test]
fn copies_in_any_order_come_to_the_same() {
    let mut rng = Rng::new(9);
    for _ in 0..30 {
        let storage = CrashStorage::new();
        let mut desk = on(&storage);
        build(&mut desk);
        let good = desk.raw("a2");
        let mut given = vec![desk.raw("a1"), good.clone(), desk.raw("a3"), copy(&good, &[])];
        given.extend((0..6).map(|number| copy(&good, &[vec![number; 32]])));
        rng.shuffle(&mut given);
        let judge = Arc::clone(&desk.judge);
        for raw in given {
            desk.submit_raw(raw);
            if rng.below(4) == 0 {
                drop(desk.manager);
                desk.manager = Desk::on(&storage, &judge).0;
            }
        }
        desk.expect_tip("a3");
        assert_eq!(desk.manager.orphans_count(), 0);
    }
}

/// Before segwit no block has witnesses, whatever its coinbase looks like.
#[test]
fn before_segwit_the_copy_without_witnesses_is_the_right_one() {
    let mut params = regtest().clone();
    params.activate("segwit@100".parse::<ActivationHeight>().unwrap());
    let judge = Arc::new(Mutex::new(Judge::default()));
    let coins = Box::new(TestCoins(Arc::clone(&judge)));
    let mut desk = Desk::of(ChainManager::in_memory(&params, coins, None), judge);
    build(&mut desk);
    let bare = copy(&desk.raw("a2"), &[]);
    desk.expect("a2", Orphan, "genesis");
    assert_eq!(desk.submit_raw(bare), Orphan);
    desk.expect("a1", Accepted, "a2");
    desk.expect("a3", Accepted, "a3");
}

/// A block that is too heavy is so wherever it stands.
#[test]
fn no_block_waits_that_is_too_heavy() {
    let mut desk = Desk::new();
    desk.build("genesis", "a1");
    let nowhere = OutPoint { txid: Txid::from_byte_array([1; 32]), vout: 0 };
    let output = TxOut { value: Amount::ZERO, script_pubkey: ScriptBuf::new() };
    for (bytes, fits) in [(3_998_000, true), (3_999_450, false)] {
        let mut spend = desk.builder.spend(&[nowhere], vec![output.clone()]);
        spend.input[0].witness = Witness::from_slice(&[vec![0; bytes]]);
        let commitment = Commitment::Always;
        let plan = BlockPlan { transactions: vec![spend], commitment, ..BlockPlan::default() };
        desk.build_with("a1", "a2", plan);
        assert!(desk.raw("a2").len() < 4_000_000, "it can be read");
        let outcome = if fits { Orphan } else { rejected("bad-blk-weight") };
        desk.expect("a2", outcome, "genesis");
    }
}

/// Those that made room for others are not written down again.
#[test]
fn what_was_forgotten_is_not_kept_again() {
    let storage = CrashStorage::new();
    let mut desk = on(&storage);
    desk.build("genesis", "a1 a2 a3 a4");
    desk.manager.orphans = crate::chainman::orphans::Orphans::new(1, 1 << 20);
    desk.expect("a2", Orphan, "genesis");
    desk.expect("a3", Orphan, "genesis");
    let before = written(&storage);
    for _ in 0..5 {
        desk.expect("a2", rejected("prev-blk-not-found"), "genesis");
        desk.expect("a3", Orphan, "genesis");
    }
    assert_eq!(written(&storage), before);
    desk.expect("a1", Accepted, "a1");
    desk.expect("a2", Accepted, "a3");
}
