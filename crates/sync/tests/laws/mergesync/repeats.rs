//! Tests of BIP-30 where a valid block may repeat a transaction: repeated coinbases, their descendants, and the
//! two exceptions of history.

use crate::mergesync::harness::agree;
use crate::swiftsync::harness::{Chain, without_bip34};
use apus_chain::{BlockHash, Height, KnownBlock, Params};
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind, coins_of};
use apus_testkit::effort::rounds;
use apus_testkit::rng::Rng;
use bitcoin::hashes::Hash;
use bitcoin::{OutPoint, Transaction, TxOut};
use proptest::prelude::*;

const BTC: u64 = 100_000_000;

/// Makes a chain of coinbases with two outputs, the first of which are repeated many times; and spends of
/// random coins, which may be repeated, too.
fn repeated(seed: u64) -> ChainBuilder {
    let (mut builder, mut rng) = (ChainBuilder::new(seed), Rng::new(seed));
    let coinbases: Vec<Transaction> = (1..4)
        .map(|height| {
            let outputs = [20, 30].map(|btc| builder.output(btc * BTC, ScriptKind::OpTrue));
            builder.coinbase(height, outputs.into())
        })
        .collect();
    for coinbase in &coinbases {
        builder.add_plan(BlockPlan { coinbase: Some(coinbase.clone()), ..BlockPlan::default() });
    }
    builder.empty_blocks(100);
    let mut spends: Vec<Transaction> = Vec::new();
    let mut coins: Vec<(OutPoint, TxOut)> = coinbases.iter().flat_map(coins_of).collect();
    for (name, _) in coins.clone() {
        if !rng.one_in(5) {
            let output = builder.output(BTC, ScriptKind::OpTrue);
            let tx = builder.spend(&[name], vec![output]);
            builder.block_with(vec![tx.clone()]);
            coins.extend(coins_of(&tx));
            spends.push(tx);
        }
    }
    for _ in 0..rng.between(3, 30) {
        let mut transactions: Vec<Transaction> = Vec::new();
        for _ in 0..rng.index(4) {
            let tx = match rng.one_in(12) {
                true => spends.get(rng.index(spends.len().max(1))).cloned(),
                false => {
                    // Spends mostly coins that exist and that this block does not spend already.
                    let coin = match rng.one_in(20) {
                        true => coins[rng.index(coins.len())].clone(),
                        false => builder.mature_coin(),
                    };
                    let half = coin.1.value / 2;
                    let outputs = [half, half].map(|half| TxOut { value: half, ..coin.1.clone() });
                    Some(builder.spend_coins(&[coin], outputs.into()))
                }
            };
            let Some(tx) = tx else { continue };
            let spent = |other: &Transaction| other.input[0] == tx.input[0];
            let may = !transactions.iter().any(spent) || rng.one_in(20);
            if may && !transactions.contains(&tx) {
                coins.extend(coins_of(&tx));
                spends.push(tx.clone());
                transactions.push(tx);
            }
        }
        let again = rng.one_in(8).then(|| coinbases[rng.index(3)].clone());
        builder.add_plan(BlockPlan { coinbase: again, transactions, ..BlockPlan::default() });
    }
    if rng.one_in(2) {
        // The last repeated coinbases mature, and are spent.
        builder.empty_blocks(100);
        for (name, _) in coinbases.iter().flat_map(coins_of) {
            if rng.one_in(2) {
                let output = builder.output(BTC / 4, ScriptKind::OpTrue);
                let tx = builder.spend(&[name], vec![output]);
                builder.block_with(vec![tx]);
            }
        }
    }
    builder
}

fn known(height: usize, chain: &[bitcoin::Block]) -> KnownBlock {
    let hash = BlockHash(chain[height].block_hash().to_byte_array());
    KnownBlock { height: height as Height, hash }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(60, 4000) as u32))]

    #[test]
    fn repeated_transactions_get_the_same_verdict(seed: u64, excepted in 0usize..3) {
        let blocks = repeated(seed).blocks();
        // Some blocks are exceptions, which may repeat any transaction.
        let mut rng = Rng::new(seed);
        let bip30_repeats =
            (0..excepted).map(|_| known(104 + rng.index(blocks.len() - 104), &blocks)).collect();
        let params = Params { bip30_repeats, ..without_bip34() };
        agree(&Chain::with(&params, blocks), seed);
    }
}

#[test]
fn some_repeated_chains_are_refused_and_some_accepted() {
    let mut reasons = std::collections::BTreeMap::new();
    for seed in 0..80 {
        let chain = Chain::with(&without_bip34(), repeated(seed).blocks());
        let refused = agree(&chain, seed).refused;
        let reason = refused.map_or(String::new(), |(_, error)| error.reject_reason());
        *reasons.entry(reason).or_insert(0) += 1;
    }
    for reason in ["", "bad-txns-BIP30", "bad-txns-inputs-missingorspent"] {
        assert!(reasons.contains_key(reason), "{reasons:?}");
    }
}

/// Returns a builder at a block that repeats the coinbase of block 1. `spent` of its two outputs were spent
/// before; also returns these spends.
fn coinbase_again(spent: usize) -> (ChainBuilder, Vec<Transaction>) {
    let mut builder = ChainBuilder::new(70);
    let outputs = [20, 30].map(|btc| builder.output(btc * BTC, ScriptKind::OpTrue));
    // It states the height at which it will be repeated.
    let coinbase = builder.coinbase(102 + spent as u32, outputs.into());
    let plan = || BlockPlan { coinbase: Some(coinbase.clone()), ..BlockPlan::default() };
    builder.add_plan(plan());
    builder.empty_blocks(100);
    let spends: Vec<Transaction> = coins_of(&coinbase)
        .iter()
        .map(|coin| {
            let output = builder.output(BTC, ScriptKind::OpTrue);
            builder.spend_coins(std::slice::from_ref(coin), vec![output])
        })
        .collect();
    for tx in &spends[..spent] {
        builder.block_with(vec![tx.clone()]);
    }
    builder.add_plan(plan());
    (builder, spends)
}

/// Transactions that depend on a coinbase are repeated with it, whether or not their outputs still exist.
#[test]
fn descendants_of_a_repeated_coinbase_are_repeated() {
    for (there, with_next) in [(false, false), (false, true), (true, false), (true, true)] {
        let (mut builder, spends) = coinbase_again(2);
        let output = builder.output(BTC / 2, ScriptKind::OpTrue);
        let next = builder.spend_coins(&coins_of(&spends[0]), vec![output]);
        let output = builder.output(BTC / 3, ScriptKind::OpTrue);
        let other = builder.spend_coins(&coins_of(&spends[0]), vec![output]);
        if !there {
            builder.block_with(vec![next]);
        }
        builder.empty_blocks(100);
        // Its output is spent at once, or survives.
        let mut transactions = vec![spends[0].clone()];
        transactions.extend(with_next.then_some(other));
        builder.block_with(transactions);
        let last = builder.height();
        for _ in 0..4 {
            let result = agree(&Chain::with(&without_bip34(), builder.blocks()), u64::from(last));
            match there {
                false => assert_eq!(result.refused, None),
                true => {
                    let (height, error) = result.refused.unwrap();
                    assert_eq!((height, &*error.reject_reason()), (last, "bad-txns-BIP30"));
                }
            }
        }
    }
}

/// A coinbase is repeated too early or by an exception, and then spent.
#[test]
fn an_existing_coinbase_is_repeated_and_spent() {
    for spent in [0, 1] {
        let (mut builder, spends) = coinbase_again(spent);
        let again = builder.height();
        builder.empty_blocks(100);
        for tx in &spends[spent..] {
            builder.block_with(vec![tx.clone()]);
        }
        let blocks = builder.blocks();
        let repeat = known(again as usize, &blocks);
        // BIP-34 is active from that very block, whose hash is known, or from a lower one.
        let by_bip34 = |height: Height| Params {
            bip34_height: height,
            bip34_hash: Some(known(height as usize, &blocks).hash),
            ..without_bip34()
        };
        let excepted = Params { bip30_repeats: vec![repeat].into(), ..without_bip34() };
        for (params, refused) in [
            (without_bip34(), true),
            (by_bip34(again + 1), true),
            (by_bip34(again), true),
            (excepted, false),
        ] {
            for seed in 0..8 {
                let result = agree(&Chain::with(&params, blocks.clone()), seed);
                let found = result.refused.map(|(height, error)| (height, error.reject_reason()));
                assert_eq!(found, refused.then(|| (again, "bad-txns-BIP30".to_owned())));
            }
        }
    }
}
