//! BIP-30, where a valid block may repeat a transaction: coinbases that come again, what hangs on them,
//! and the two that history excepts.

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

/// Coinbases with two outputs, of which the first ones come again and again; and spends of anything,
/// which may come again, too.
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
                    // Mostly what is there, and mostly not what this block spends already.
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
        // What came again last is mature, and spent.
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
    fn repeated_transactions_are_judged_alike(seed: u64, excepted in 0usize..3) {
        let blocks = repeated(seed).blocks();
        // Some of the blocks may repeat what they like.
        let mut rng = Rng::new(seed);
        let bip30_repeats =
            (0..excepted).map(|_| known(104 + rng.index(blocks.len() - 104), &blocks)).collect();
        let params = Params { bip30_repeats, ..without_bip34() };
        agree(&Chain::with(&params, blocks), seed);
    }
}

#[test]
fn repeated_chains_are_refused_and_not() {
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

/// A builder at a block that repeats the coinbase of block 1, of which so many of two outputs were
/// spent before, with these spends.
fn coinbase_again(spent: usize) -> (ChainBuilder, Vec<Transaction>) {
    let mut builder = ChainBuilder::new(70);
    let outputs = [20, 30].map(|btc| builder.output(btc * BTC, ScriptKind::OpTrue));
    // It states the height at which it will come again.
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

/// What hangs on a coinbase comes again with it, and is there already or not.
#[test]
fn what_hangs_on_a_repeated_coinbase_comes_again() {
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
        // What it makes is spent at once, or stays.
        let mut transactions = vec![spends[0].clone()];
        transactions.extend(with_next.then_some(other));
        builder.block_with(transactions);
        let last = builder.height();
        for _ in 0..4 {
            let said = agree(&Chain::with(&without_bip34(), builder.blocks()), u64::from(last));
            match there {
                false => assert_eq!(said.refused, None),
                true => {
                    let (height, error) = said.refused.unwrap();
                    assert_eq!((height, &*error.reject_reason()), (last, "bad-txns-BIP30"));
                }
            }
        }
    }
}

/// A coinbase that comes again too early, or may by exception, and is spent in the end.
#[test]
fn a_coinbase_that_is_there_comes_again_and_is_spent() {
    for spent in [0, 1] {
        let (mut builder, spends) = coinbase_again(spent);
        let again = builder.height();
        builder.empty_blocks(100);
        for tx in &spends[spent..] {
            builder.block_with(vec![tx.clone()]);
        }
        let blocks = builder.blocks();
        let repeat = known(again as usize, &blocks);
        // BIP-34 came with that very block, which is known, or with one below.
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
                let said = agree(&Chain::with(&params, blocks.clone()), seed);
                let told = said.refused.map(|(height, error)| (height, error.reject_reason()));
                assert_eq!(told, refused.then(|| (again, "bad-txns-BIP30".to_owned())));
            }
        }
    }
}
