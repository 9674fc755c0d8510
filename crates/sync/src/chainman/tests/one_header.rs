//! The most that one proof of work can make this program store: blocks without parents, in many copies.

use super::sandbox::{Sandbox, TestCoins, TestState, regtest, rejected};
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

/// Returns the bytes of all files.
fn written(storage: &CrashStorage) -> usize {
    storage.live_files().values().map(Vec::len).sum()
}

/// Returns a copy of the block with another coinbase witness, to which no header commits.
fn copy(raw: &[u8], items: &[Vec<u8>]) -> Vec<u8> {
    let mut block: Block = deserialize(raw).unwrap();
    block.txdata[0].input[0].witness = Witness::from_slice(items);
    serialize(&block)
}

fn on(storage: &CrashStorage) -> Sandbox {
    let state = Arc::new(Mutex::new(TestState::default()));
    let (manager, _) = Sandbox::on(storage, &state);
    Sandbox::of(manager, state)
}

/// Builds `a1`, and on it `a2`, which commits to its witnesses.
fn build(sandbox: &mut Sandbox) {
    let plan = BlockPlan { commitment: Commitment::Always, ..BlockPlan::default() };
    sandbox.build("genesis", "a1");
    sandbox.build_with("a1", "a2", plan);
    sandbox.build("a2", "a3");
}

#[test]
fn a_hundred_copies_are_not_stored_and_the_right_one_is_accepted_last() {
    let storage = CrashStorage::new();
    let mut sandbox = on(&storage);
    build(&mut sandbox);
    let good = sandbox.raw("a2");
    let large = |byte: u8| vec![byte; 3_700_000];
    for number in 0..120 {
        let (items, reason) = match number % 12 {
            0..10 => (vec![vec![number + 1; 32]], "bad-witness-merkle-match"),
            10 => (vec![vec![number; 32], vec![0; 32]], "bad-witness-nonce-size"),
            _ => (vec![large(number)], "bad-witness-nonce-size"),
        };
        assert_eq!(sandbox.submit_raw(copy(&good, &items)), rejected(reason));
    }
    assert_eq!((written(&storage), sandbox.manager.orphans_count()), (0, 0));
    // A copy without witnesses could be the right one if segwit is not active.
    let bare = copy(&good, &[]);
    for _ in 0..3 {
        assert_eq!(sandbox.submit_raw(bare.clone()), Orphan);
        sandbox.expect("a2", Orphan, "genesis");
        sandbox.expect("a3", Orphan, "genesis");
    }
    assert_eq!(sandbox.manager.orphans_count(), 3);
    let bound = good.len() + bare.len() + sandbox.raw("a3").len() + 1_000;
    assert!(written(&storage) < bound, "{} bytes", written(&storage));
    // A restart stores none of them either.
    let before = written(&storage);
    let (state, _) = (Arc::clone(&sandbox.state), sandbox.manager.close().unwrap());
    let (manager, _) = Sandbox::on(&storage, &state);
    sandbox.manager = manager;
    assert_eq!(sandbox.manager.orphans_count(), 3);
    sandbox.expect("a2", Orphan, "genesis");
    assert_eq!(sandbox.submit_raw(bare), Orphan);
    assert!(written(&storage) < before + 200, "only that the log was closed");
    sandbox.expect("a1", Accepted, "a3");
}

#[test]
fn copies_in_any_order_give_the_same_result() {
    let mut rng = Rng::new(9);
    for _ in 0..30 {
        let storage = CrashStorage::new();
        let mut sandbox = on(&storage);
        build(&mut sandbox);
        let good = sandbox.raw("a2");
        let mut given = vec![sandbox.raw("a1"), good.clone(), sandbox.raw("a3"), copy(&good, &[])];
        given.extend((0..6).map(|number| copy(&good, &[vec![number; 32]])));
        rng.shuffle(&mut given);
        let state = Arc::clone(&sandbox.state);
        for raw in given {
            sandbox.submit_raw(raw);
            if rng.below(4) == 0 {
                drop(sandbox.manager);
                sandbox.manager = Sandbox::on(&storage, &state).0;
            }
        }
        sandbox.expect_tip("a3");
        assert_eq!(sandbox.manager.orphans_count(), 0);
    }
}

/// Before segwit, no block has witnesses, even if its coinbase has a commitment.
#[test]
fn before_segwit_only_the_copy_without_witnesses_is_accepted() {
    let mut params = regtest().clone();
    params.activate("segwit@100".parse::<ActivationHeight>().unwrap());
    let state = Arc::new(Mutex::new(TestState::default()));
    let coins = Box::new(TestCoins(Arc::clone(&state)));
    let mut sandbox = Sandbox::of(ChainManager::in_memory(&params, coins, None), state);
    build(&mut sandbox);
    let bare = copy(&sandbox.raw("a2"), &[]);
    sandbox.expect("a2", Orphan, "genesis");
    assert_eq!(sandbox.submit_raw(bare), Orphan);
    sandbox.expect("a1", Accepted, "a2");
    sandbox.expect("a3", Accepted, "a3");
}

/// A block that is too heavy is too heavy at any place.
#[test]
fn a_too_heavy_block_does_not_wait() {
    let mut sandbox = Sandbox::new();
    sandbox.build("genesis", "a1");
    let nowhere = OutPoint { txid: Txid::from_byte_array([1; 32]), vout: 0 };
    let output = TxOut { value: Amount::ZERO, script_pubkey: ScriptBuf::new() };
    for (bytes, fits) in [(3_998_000, true), (3_999_450, false)] {
        let mut spend = sandbox.builder.spend(&[nowhere], vec![output.clone()]);
        spend.input[0].witness = Witness::from_slice(&[vec![0; bytes]]);
        let commitment = Commitment::Always;
        let plan = BlockPlan { transactions: vec![spend], commitment, ..BlockPlan::default() };
        sandbox.build_with("a1", "a2", plan);
        assert!(sandbox.raw("a2").len() < 4_000_000, "it can be read");
        let outcome = if fits { Orphan } else { rejected("bad-blk-weight") };
        sandbox.expect("a2", outcome, "genesis");
    }
}

/// Blocks that were dropped are not stored again.
#[test]
fn dropped_blocks_are_not_stored_again() {
    let storage = CrashStorage::new();
    let mut sandbox = on(&storage);
    sandbox.build("genesis", "a1 a2 a3 a4");
    sandbox.manager.orphans = crate::chainman::orphans::Orphans::new(1, 1 << 20);
    sandbox.expect("a2", Orphan, "genesis");
    sandbox.expect("a3", Orphan, "genesis");
    let before = written(&storage);
    for _ in 0..5 {
        sandbox.expect("a2", rejected("prev-blk-not-found"), "genesis");
        sandbox.expect("a3", Orphan, "genesis");
    }
    assert_eq!(written(&storage), before);
    sandbox.expect("a1", Accepted, "a1");
    sandbox.expect("a2", Accepted, "a3");
}
