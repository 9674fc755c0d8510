//! Tests of hints by outpoint: a snapshot that does not fit the chain must make the sync fail.

use crate::swiftsync::harness::{Chain, KINDS, coin_hints, model_coins, snapshot, without_bip34};
use crate::swiftsync::shapes::{pay, small_chain};
use apus_chain::{Height, HeightRange, OutPoint, Txid};
use apus_sync::engines::swiftsync::{HintError, SwiftSyncError};
use apus_testkit::chain::{BlockPlan, ChainBuilder};

/// Runs a sync in three segments with these coins, with either aggregate; returns its error.
fn run(chain: &Chain, coins: &[(OutPoint, Height)]) -> SwiftSyncError {
    let errors = KINDS.map(|kind| chain.run_with_snapshot(kind, 3, coins).unwrap_err());
    assert_eq!(errors[0], errors[1]);
    errors[0].clone()
}

fn expect_missing(chain: &Chain, coins: &[(OutPoint, Height)], range: HeightRange) {
    let error = HintError::CoinsMissing { range, missing: 1 };
    assert_eq!(run(chain, coins), error.into());
}

/// The small chain and the coins at its tip. Its segments are 1..4, 4..7 and 7..10.
fn small() -> (Chain, Vec<(OutPoint, Height)>) {
    let chain = Chain::of(&small_chain());
    let coins = snapshot(&chain.utxo());
    (chain, coins)
}

#[test]
fn each_coin_left_out() {
    let (chain, coins) = small();
    for index in 0..coins.len() {
        let mut wrong = coins.clone();
        wrong.remove(index);
        let error = run(&chain, &wrong);
        assert!(matches!(error, SwiftSyncError::Unbalanced { .. }), "{error}");
    }
}

#[test]
fn a_coin_of_no_transaction() {
    let (chain, mut coins) = small();
    coins.push((OutPoint { txid: Txid([3; 32]), vout: 0 }, 5));
    expect_missing(&chain, &coins, HeightRange::new(4, 7));
}

#[test]
fn a_coin_past_a_transactions_last_output() {
    let (chain, coins) = small();
    for (outpoint, height) in coins.clone() {
        let mut wrong = coins.clone();
        wrong.push((OutPoint { vout: 100, ..outpoint }, height));
        let error = run(&chain, &wrong);
        let missing =
            matches!(error, SwiftSyncError::Hints(HintError::CoinsMissing { missing: 1, .. }));
        assert!(missing, "{error}");
    }
}

#[test]
fn each_coin_named_twice() {
    let (chain, coins) = small();
    for &coin in &coins {
        let error = run(&chain, &[&coins[..], &[coin]].concat());
        assert!(matches!(error, SwiftSyncError::Hints(HintError::CoinsMissing { .. })), "{error}");
    }
}

#[test]
fn a_coin_attributed_to_another_segment() {
    let (chain, coins) = small();
    let index = coins.iter().position(|(_, height)| *height == 3).unwrap();
    for height in [4, 6, 7, 9] {
        let mut wrong = coins.clone();
        wrong[index].1 = height;
        let range = if height < 7 { HeightRange::new(4, 7) } else { HeightRange::new(7, 10) };
        match run(&chain, &wrong) {
            SwiftSyncError::Hints(HintError::CoinsMissing { range: found, missing: 1 }) => {
                assert_eq!(found, range);
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_spent_output_named_as_a_coin() {
    let (chain, coins) = small();
    let spends = chain.blocks[1..].iter().flat_map(|block| &block.txdata[1..]);
    let spent: Vec<_> = spends.flat_map(|tx| &tx.input).map(|i| i.previous_output).collect();
    assert!(spent.len() > 8);
    for outpoint in spent {
        let made = |block: &bitcoin::Block| {
            block.txdata.iter().any(|tx| tx.compute_txid() == outpoint.txid)
        };
        let height = chain.blocks.iter().position(made).unwrap() as Height;
        let outpoint = crate::swiftsync::harness::outpoint_of(&outpoint);
        let error = run(&chain, &[&coins[..], &[(outpoint, height)]].concat());
        assert!(matches!(error, SwiftSyncError::Unbalanced { .. }), "{error}");
    }
}

/// A coin is only looked up in the block that created it according to the snapshot, even if another block of
/// the segment created it.
#[test]
fn a_coin_of_another_block() {
    let (chain, coins) = small();
    for at in 0..coins.len() {
        let mut wrong = coins.clone();
        wrong[at].1 = if wrong[at].1 == chain.stop() { 1 } else { wrong[at].1 + 1 };
        let error = run(&chain, &wrong);
        assert!(matches!(error, SwiftSyncError::Hints(HintError::CoinsMissing { .. })), "{error}");
    }
}

#[test]
fn an_unspendable_output_named_as_a_coin() {
    let (chain, coins) = small();
    let block = &chain.blocks[3];
    let tx = &block.txdata[1];
    let vout = tx.output.iter().position(|o| o.script_pubkey.is_op_return()).unwrap();
    let outpoint = bitcoin::OutPoint { txid: tx.compute_txid(), vout: vout as u32 };
    let wrong = [&coins[..], &[(crate::swiftsync::harness::outpoint_of(&outpoint), 3)]].concat();
    let error = run(&chain, &wrong);
    assert!(matches!(error, SwiftSyncError::Hints(HintError::CoinsMissing { .. })), "{error}");
}

#[test]
fn the_snapshot_of_another_height() {
    let builder = small_chain();
    let chain = Chain::of(&builder);
    let right = snapshot(&chain.utxo());
    for stop in 1..chain.stop() {
        let early = builder.utxo_at(chain.blocks[stop as usize].block_hash());
        if snapshot(&early) != right {
            run(&chain, &snapshot(&early));
        }
    }
}

#[test]
fn two_transactions_of_one_id_named_once() {
    // The outpoint in the snapshot belongs to the later block, and no block spends the earlier one's coin.
    let mut builder = ChainBuilder::new(50);
    let coinbase = builder.coinbase(1, vec![pay(1), pay(2)]);
    for _ in 0..2 {
        let plan = BlockPlan { coinbase: Some(coinbase.clone()), ..BlockPlan::default() };
        builder.add_plan(plan);
    }
    let chain = Chain::with(&without_bip34(), builder.blocks());
    let coins = snapshot(&chain.utxo());
    assert_eq!(coins.len(), 2);
    for kind in KINDS {
        for segments in [1, 2] {
            let error = chain.run_with_snapshot(kind, segments, &coins).unwrap_err();
            assert!(matches!(error, SwiftSyncError::Unbalanced { .. }), "{error}");
        }
    }
}

#[test]
fn two_transactions_of_one_id_do_not_hide_a_coin_that_is_missing() {
    let mut builder = ChainBuilder::new(51);
    let coinbase = builder.coinbase(1, vec![pay(1), pay(2)]);
    for _ in 0..2 {
        let plan = BlockPlan { coinbase: Some(coinbase.clone()), ..BlockPlan::default() };
        builder.add_plan(plan);
    }
    let chain = Chain::with(&without_bip34(), builder.blocks());
    let mut coins = snapshot(&chain.utxo());
    coins.push((OutPoint { txid: Txid([3; 32]), vout: 0 }, 2));
    let range = HeightRange::new(1, 3);
    let error = HintError::CoinsMissing { range, missing: 1 };
    let result = chain.run_with_snapshot(KINDS[0], 1, &coins);
    assert_eq!(result, Err(error.into()));
}

#[test]
fn the_found_hints_are_the_indices_of_the_coins() {
    let (chain, coins) = small();
    let outcome = chain.run_with_snapshot(KINDS[0], 3, &coins).unwrap();
    assert_eq!(outcome.hints, chain.hints());
    assert_eq!(outcome.coins, model_coins(&chain.utxo()));
    // Coins of other ranges do not matter.
    let engine = chain.engine(KINDS[0]);
    let range = HeightRange::new(4, 7);
    let done = chain.segment(&engine, coin_hints(&coins, range), &[6, 4, 5]).unwrap();
    assert_eq!(done.hints.range(), range);
    for height in range.heights() {
        assert_eq!(done.hints.block(height).unwrap(), chain.hints()[height as usize - 1]);
    }
}
