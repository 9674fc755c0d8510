//! Tests with invalid chains: reported block and reason equal the in-order engine's, wherever the parts of a
//! fault are.

use super::harness::agree;
use crate::swiftsync::harness::Chain;
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind, Shape, coins_of};
use apus_testkit::effort::rounds;
use apus_testkit::rng::Rng;
use bitcoin::{OutPoint, Sequence, Transaction, TxOut};
use proptest::prelude::*;

/// Makes a chain with mature coins.
fn builder(seed: u64) -> ChainBuilder {
    let mut builder = ChainBuilder::new(seed);
    builder.empty_blocks(101);
    builder.random_blocks(6, Shape::default());
    builder
}

fn spend(builder: &mut ChainBuilder, coin: (OutPoint, TxOut), satoshi: u64) -> Transaction {
    let output = builder.output(satoshi, ScriptKind::OpTrue);
    builder.spend_coins(&[coin], vec![output])
}

/// Returns the reason for which both engines refuse the block at the builder's tip, after adding this many
/// blocks above it.
fn refused(mut builder: ChainBuilder, above: usize, seed: u64) -> String {
    let height = builder.height();
    builder.random_blocks(above, Shape::default());
    let (at, error) = agree(&Chain::of(&builder), seed).refused.unwrap();
    assert_eq!(at, height);
    error.reject_reason()
}

const ABOVE: [usize; 3] = [0, 1, 12];

#[test]
fn an_invented_coin() {
    for above in ABOVE {
        let mut builder = builder(50);
        let coin = builder.mature_coin();
        let mut tx = spend(&mut builder, coin, 1_000);
        tx.input[0].previous_output.vout += 77;
        builder.block_with(vec![tx]);
        assert_eq!(refused(builder, above, 50), "bad-txns-inputs-missingorspent");
    }
}

/// The number of blocks between the valid spend and the second one varies.
#[test]
fn a_coin_spent_twice() {
    for between in [0, 1, 9] {
        for above in ABOVE {
            let mut builder = builder(51);
            let coin = builder.mature_coin();
            let one = spend(&mut builder, coin.clone(), 1_000);
            let other = spend(&mut builder, coin, 2_000);
            if between == 0 {
                builder.block_with(vec![one, other]);
            } else {
                builder.block_with(vec![one]);
                builder.random_blocks(between - 1, Shape::default());
                builder.block_with(vec![other]);
            }
            assert_eq!(refused(builder, above, 51), "bad-txns-inputs-missingorspent");
        }
    }
}

#[test]
fn a_coin_spent_before_it_is_made() {
    // In the block itself, and in a later one.
    for later in [0, 1, 2, 7] {
        let mut builder = builder(52);
        let coin = builder.mature_coin();
        let first = spend(&mut builder, coin, 9_000);
        let second = spend(&mut builder, coins_of(&first)[0].clone(), 1_000);
        let height = builder.height() + 1;
        if later == 0 {
            builder.block_with(vec![second, first]);
        } else {
            builder.block_with(vec![second]);
            builder.empty_blocks(later - 1);
            builder.block_with(vec![first]);
        }
        builder.random_blocks(3, Shape::default());
        let (at, error) = agree(&Chain::of(&builder), 52).refused.unwrap();
        assert_eq!((at, &*error.reject_reason()), (height, "bad-txns-inputs-missingorspent"));
    }
}

#[test]
fn an_output_of_the_same_block_spent_twice_or_unspendable() {
    let mut twice = builder(53);
    let coin = twice.mature_coin();
    let first = spend(&mut twice, coin, 9_000);
    let made = coins_of(&first)[0].clone();
    let spends = [1_000, 2_000].map(|satoshi| spend(&mut twice, made.clone(), satoshi));
    twice.block_with([vec![first], spends.into()].concat());
    assert_eq!(refused(twice, 2, 53), "bad-txns-inputs-missingorspent");

    let mut no_coin = builder(54);
    let coin = no_coin.mature_coin();
    let output = no_coin.output(0, ScriptKind::OpReturn);
    let first = no_coin.spend_coins(&[coin], vec![output]);
    let second = spend(&mut no_coin, coins_of(&first)[0].clone(), 0);
    no_coin.block_with(vec![first, second]);
    assert_eq!(refused(no_coin, 2, 54), "bad-txns-inputs-missingorspent");
}

#[test]
fn a_coinbase_spent_too_early() {
    for above in ABOVE {
        let mut builder = builder(55);
        let height = builder.height() + 1;
        let young = builder.utxo().iter().find(|(_, coin)| {
            coin.coinbase && coin.height + 100 > height && coin.output.value.to_sat() > 1_000
        });
        let coin = young.map(|(name, coin)| (*name, coin.output.clone())).unwrap();
        let tx = spend(&mut builder, coin, 1_000);
        builder.block_with(vec![tx]);
        assert_eq!(refused(builder, above, 55), "bad-txns-premature-spend-of-coinbase");
    }
}

#[test]
fn more_out_than_in_and_more_than_fees_allow() {
    let mut out = builder(56);
    let coin = out.mature_coin();
    let too_much = coin.1.value.to_sat() + 1;
    let tx = spend(&mut out, coin, too_much);
    out.block_with(vec![tx]);
    assert_eq!(refused(out, 3, 56), "bad-txns-in-belowout");

    for (more, fine) in [(501, false), (500, true)] {
        let mut greedy = builder(57);
        let coin = greedy.mature_coin();
        let satoshi = coin.1.value.to_sat() - 500;
        let tx = spend(&mut greedy, coin, satoshi);
        let value = ChainBuilder::subsidy(greedy.height() + 1) + more;
        let coinbase_outputs = Some(vec![greedy.output(value, ScriptKind::OpTrue)]);
        greedy.add_plan(BlockPlan {
            transactions: vec![tx],
            coinbase_outputs,
            ..BlockPlan::default()
        });
        if fine {
            assert_eq!(agree(&Chain::of(&greedy), 57).refused, None);
        } else {
            assert_eq!(refused(greedy, 3, 57), "bad-cb-amount");
        }
    }
}

#[test]
fn an_unmet_relative_lock() {
    let mut builder = builder(58);
    let coin = builder.mature_coin();
    let mut tx = spend(&mut builder, coin, 1_000);
    tx.input[0].sequence = Sequence::from_height(60_000);
    builder.block_with(vec![tx]);
    assert_eq!(refused(builder, 4, 58), "bad-txns-nonfinal");
}

/// Core checks for existing outputs of a block before it looks up the spent coins, even where no valid block
/// can repeat a transaction.
#[test]
fn a_transaction_that_exists_already() {
    for (between, spent) in [(0, false), (1, false), (8, false), (0, true), (8, true)] {
        let mut builder = builder(59);
        let coin = builder.mature_coin();
        let tx = spend(&mut builder, coin, 9_000);
        builder.block_with(vec![tx.clone()]);
        if spent {
            let coin = coins_of(&tx)[0].clone();
            let next = spend(&mut builder, coin, 8_000);
            builder.block_with(vec![next]);
        }
        builder.empty_blocks(between);
        // Repeats the transaction, and spends its outputs at once, and later.
        let next = spend(&mut builder, coins_of(&tx)[0].clone(), 7_000);
        let later = spend(&mut builder, coins_of(&next)[0].clone(), 6_000);
        builder.block_with(vec![tx, next]);
        let height = builder.height();
        builder.block_with(vec![later]);
        let (at, error) = agree(&Chain::of(&builder), 59).refused.unwrap();
        let reason = if spent { "bad-txns-inputs-missingorspent" } else { "bad-txns-BIP30" };
        assert_eq!((at, &*error.reject_reason()), (height, reason), "{between} {spent}");
    }
}

/// The lowest of several invalid blocks is reported, whether or not the others use its coins.
#[test]
fn several_invalid_blocks() {
    let mut builder = builder(60);
    let coin = builder.mature_coin();
    let spends: Vec<_> = (1..5).map(|n| spend(&mut builder, coin.clone(), 1_000 * n)).collect();
    builder.empty_blocks(2);
    for tx in spends {
        builder.block_with(vec![tx]);
    }
    let (at, error) = agree(&Chain::of(&builder), 60).refused.unwrap();
    assert_eq!(
        (at, &*error.reject_reason()),
        (builder.height() - 2, "bad-txns-inputs-missingorspent")
    );
}

/// Makes a transaction with random spends of earlier or later outputs, valid or not.
fn any_spend(
    builder: &mut ChainBuilder,
    known: &[(OutPoint, TxOut)],
    rng: &mut Rng,
) -> Transaction {
    let inputs = 1 + rng.index(3);
    let mut coins: Vec<(OutPoint, TxOut)> = Vec::new();
    for _ in 0..inputs {
        let coin = match rng.one_in(12) {
            true => known[rng.index(known.len())].clone(),
            false => builder.mature_coin(),
        };
        if coins.iter().all(|(name, _)| *name != coin.0) {
            coins.push(coin);
        }
    }
    let most: u64 = coins.iter().map(|(_, output)| output.value.to_sat()).sum();
    let satoshi = if rng.one_in(9) { most + 1 } else { most / 2 };
    let outputs = vec![
        builder.output(satoshi / 2, ScriptKind::OpTrue),
        builder.output(satoshi - satoshi / 2, ScriptKind::OpTrue),
    ];
    let mut tx = builder.spend_coins(&coins, outputs);
    if rng.one_in(9) {
        tx.input[0].sequence = Sequence::from_height(rng.below(300) as u16);
    }
    tx
}

/// Makes a chain with such transactions in random blocks; some are repeated later, and some are spent before
/// they exist.
fn strewn(seed: u64) -> ChainBuilder {
    let (mut builder, mut rng) = (builder(seed), Rng::new(seed));
    let mut waiting: Vec<Transaction> = Vec::new();
    for _ in 0..rng.between(2, 25) {
        if rng.one_in(2) {
            builder.random_block(Shape::default());
            continue;
        }
        let mut known: Vec<(OutPoint, TxOut)> = builder
            .blocks()
            .iter()
            .rev()
            .take(12)
            .flat_map(|block| block.txdata.iter().flat_map(coins_of))
            .collect();
        known.extend(waiting.iter().flat_map(coins_of));
        let mut transactions = Vec::new();
        for _ in 0..rng.index(3) {
            let tx = any_spend(&mut builder, &known, &mut rng);
            known.extend(coins_of(&tx));
            if rng.one_in(4) {
                waiting.push(tx.clone());
            }
            if !rng.one_in(6) {
                transactions.push(tx);
            }
        }
        if rng.one_in(4) && !waiting.is_empty() {
            let tx = waiting.swap_remove(rng.index(waiting.len()));
            if !transactions.contains(&tx) {
                transactions.push(tx);
            }
        }
        builder.block_with(transactions);
    }
    builder
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(40, 4000) as u32))]

    #[test]
    fn any_spends_get_the_same_verdict(seed: u64) {
        agree(&Chain::of(&strewn(seed)), seed);
    }
}

/// The chains of the test above cover all kinds of faults.
#[test]
fn strewn_chains_are_refused_for_many_reasons() {
    let reasons: std::collections::BTreeSet<String> = (0..60)
        .map(|seed| {
            let refused = agree(&Chain::of(&strewn(seed)), seed).refused;
            refused.map_or(String::new(), |(_, error)| error.reject_reason())
        })
        .collect();
    for reason in
        ["", "bad-txns-inputs-missingorspent", "bad-txns-in-belowout", "bad-txns-nonfinal"]
    {
        assert!(reasons.contains(reason), "{reasons:?}");
    }
    assert!(reasons.len() > 4, "{reasons:?}");
}
