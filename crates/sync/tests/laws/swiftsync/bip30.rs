//! Tests of BIP-30: a sync with two coinbases of one id fails, except for the two cases of the main chain.

use crate::swiftsync::harness::{
    Chain, Hints, KINDS, SECRET, equal_segments, hash_of, index_hints, model_coins, without_bip34,
};
use crate::swiftsync::shapes::{coin, pay, spend};
use apus_chain::{
    BIP34_IMPLIES_BIP30_LIMIT, BlockChecker, BlockContext, BlockError, BlockHash, HeaderChain,
    Height, HeightRange, KnownBlock, Network, Params, Reader, Txid,
};
use apus_sync::engines::pass::{PartialResult, Pass};
use apus_sync::engines::swiftsync::aggregate::{AggregateKind, Aggregator};
use apus_sync::engines::swiftsync::{
    CoinbaseId, IndexHints, Partial, SegmentHints, SwiftSync, SwiftSyncError,
};
use apus_testkit::chain::{BlockPlan, ChainBuilder};
use bitcoin::hashes::Hash;
use bitcoin::{Block, Transaction};
use std::fs;
use std::path::Path;

const BTC: u64 = 100_000_000;

/// Makes a chain whose blocks at the given heights have the same coinbase with two outputs. Later blocks spend
/// the first output `spends` times.
fn repeated(heights: &[Height], spends: usize) -> (ChainBuilder, Transaction) {
    let mut builder = ChainBuilder::new(20);
    let coinbase = builder.coinbase(1, vec![pay(20 * BTC), pay(30 * BTC)]);
    for height in 1..=heights[heights.len() - 1] {
        let repeat = heights.contains(&height).then(|| coinbase.clone());
        builder.add_plan(BlockPlan { coinbase: repeat, ..BlockPlan::default() });
    }
    for outputs in 1..=spends {
        let tx = builder.spend(&[coin(&coinbase, 0)], vec![pay(BTC); outputs]);
        builder.block_with(vec![tx]);
    }
    (builder, coinbase)
}

/// Expects the error for any division of the chain: one segment, one for each block, and some others.
fn expect_duplicate(chain: &Chain, hints: &Hints, coinbase: &Transaction, at: [Height; 2]) {
    let txid = Txid(coinbase.compute_txid().to_byte_array());
    let [first, second] = at;
    for kind in KINDS {
        for segments in [1, 2, chain.stop()] {
            for reverse in [false, true] {
                let mut division = equal_segments(chain.stop(), segments);
                if reverse {
                    division.iter_mut().for_each(|segment| segment.reverse());
                    division.reverse();
                }
                let result = chain.run_divided(kind, &division, |range| index_hints(hints, range));
                let error = SwiftSyncError::DuplicateCoinbase { txid, first, second };
                assert_eq!(result, Err(error));
            }
        }
    }
}

#[test]
fn both_spent_balances_and_is_refused() {
    let (builder, coinbase) = repeated(&[2, 4], 2);
    let chain = Chain::with(&without_bip34(), builder.blocks());
    let mut hints = chain.hints();
    // The first outputs of both were spent, but the second ones exist twice.
    (hints[1], hints[3]) = (vec![1], vec![1]);
    expect_duplicate(&chain, &hints, &coinbase, [2, 4]);
}

#[test]
fn both_hinted_balances_and_is_refused() {
    let (builder, coinbase) = repeated(&[2, 5], 0);
    let chain = Chain::with(&without_bip34(), builder.blocks());
    let mut hints = chain.hints();
    (hints[1], hints[4]) = (vec![0, 1], vec![0, 1]);
    expect_duplicate(&chain, &hints, &coinbase, [2, 5]);
}

#[test]
fn one_hinted_and_one_spent_balances_and_is_refused() {
    let (builder, coinbase) = repeated(&[1, 2], 1);
    let chain = Chain::with(&without_bip34(), builder.blocks());
    for (first, second) in [(vec![0, 1], vec![1]), (vec![1], vec![0, 1])] {
        let mut hints = chain.hints();
        (hints[0], hints[1]) = (first, second);
        expect_duplicate(&chain, &hints, &coinbase, [1, 2]);
    }
}

#[test]
fn one_hinted_and_none_spent_does_not_balance() {
    let (builder, _) = repeated(&[2, 4], 0);
    let chain = Chain::with(&without_bip34(), builder.blocks());
    for kind in KINDS {
        let error = chain.run(kind, &chain.hints()).unwrap_err();
        assert!(matches!(error, SwiftSyncError::Unbalanced { .. }), "{error}");
    }
}

#[test]
fn repeats_are_found_in_any_order_of_the_coinbases() {
    let (builder, _) = repeated(&[1], 1);
    let chain = Chain::with(&without_bip34(), builder.blocks());
    let engine = chain.engine(AggregateKind::Sha256);
    let mut whole = chain.run(AggregateKind::Sha256, &chain.hints()).unwrap().whole;
    let id = |txid, height| CoinbaseId { txid: Txid([txid; 32]), height };
    whole.coinbases = vec![id(1, 9), id(2, 3), id(1, 4)];
    let error = SwiftSyncError::DuplicateCoinbase { txid: Txid([1; 32]), first: 4, second: 9 };
    assert_eq!(engine.conclude(&whole, chain.stop()), Err(error));
}

#[test]
fn three_times_names_the_first_two() {
    let (builder, coinbase) = repeated(&[2, 4, 5], 0);
    let chain = Chain::with(&without_bip34(), builder.blocks());
    let mut hints = chain.hints();
    for height in [2, 4, 5] {
        hints[height - 1] = vec![0, 1];
    }
    expect_duplicate(&chain, &hints, &coinbase, [2, 4]);
}

#[test]
fn one_spent_before_the_other_came_is_refused_although_bip30_allows_it() {
    let mut builder = ChainBuilder::new(21);
    let coinbase = builder.coinbase(1, vec![pay(50 * BTC)]);
    for outputs in 1..=2 {
        let plan = BlockPlan { coinbase: Some(coinbase.clone()), ..BlockPlan::default() };
        builder.add_plan(plan);
        let tx = builder.spend(&[coin(&coinbase, 0)], vec![pay(BTC); outputs]);
        builder.block_with(vec![tx]);
    }
    let chain = Chain::with(&without_bip34(), builder.blocks());
    expect_duplicate(&chain, &chain.hints(), &coinbase, [1, 3]);
}

#[test]
fn a_repeated_transaction_needs_a_repeated_coinbase() {
    // The same transaction twice: it spends the same coin twice, which balances because both copies of the
    // coinbase created it.
    let mut builder = ChainBuilder::new(22);
    let coinbase = builder.coinbase(1, vec![pay(50 * BTC)]);
    let tx = spend(&builder, &[coin(&coinbase, 0)], 2);
    for _ in 0..2 {
        let coinbase = Some(coinbase.clone());
        builder.add_plan(BlockPlan { coinbase, ..BlockPlan::default() });
        builder.block_with(vec![tx.clone()]);
    }
    let chain = Chain::with(&without_bip34(), builder.blocks());
    let hints = vec![vec![], vec![0, 1, 2], vec![], vec![0, 1, 2]];
    expect_duplicate(&chain, &hints, &coinbase, [1, 3]);
}

#[test]
fn a_repeated_transaction_alone_does_not_balance() {
    let mut builder = ChainBuilder::new(23);
    let first = builder.block_with(Vec::new()).txdata[0].clone();
    let tx = spend(&builder, &[coin(&first, 0)], 2);
    builder.block_with(vec![tx.clone()]);
    builder.block_with(vec![tx]);
    let chain = Chain::with(&without_bip34(), builder.blocks());
    for hints in [vec![vec![], vec![0, 1, 2], vec![0, 1, 2]], chain.hints()] {
        let error = chain.run(KINDS[0], &hints).unwrap_err();
        assert!(matches!(error, SwiftSyncError::Unbalanced { .. }), "{error}");
    }
}

#[test]
fn under_bip34_a_coinbase_of_another_height_is_invalid() {
    // This is why it is safe not to check coinbases from BIP-34 on.
    let (builder, _) = repeated(&[1, 2], 0);
    let chain = Chain::of(&builder);
    let raw = bitcoin::consensus::encode::serialize(&chain.blocks[2]);
    let result = BlockChecker::new().check(&raw, &chain.context(2)).map(|_| ());
    assert_eq!(result, Err(BlockError::CoinbaseHeight));
}

/// Returns the heights whose coinbases a sync remembers.
fn looked_at(chain: &Chain) -> Vec<Height> {
    let outcome = chain.run(KINDS[0], &chain.hints()).unwrap();
    let mut heights: Vec<_> = outcome.whole.coinbases.iter().map(|c| c.height).collect();
    heights.sort_unstable();
    heights
}

#[test]
fn coinbases_are_remembered_unless_bip34_is_known_to_hold() {
    let mut builder = ChainBuilder::new(24);
    builder.empty_blocks(6);
    let blocks = builder.blocks();
    let regtest = Params::of(Network::Regtest);
    let heights = |bip34_height, bip34_hash| {
        let params = Params { bip34_height, bip34_hash, ..regtest.clone() };
        looked_at(&Chain::with(&params, blocks.clone()))
    };
    let all: Vec<Height> = (1..=6).collect();
    let right = Some(hash_of(&blocks[4]));
    assert_eq!(heights(4, right), [1, 2, 3], "up to where BIP-34 began on the known chain");
    assert_eq!(heights(4, Some(hash_of(&blocks[5]))), all, "not the known chain");
    assert_eq!(heights(4, Some(BlockHash::ZERO)), all);
    assert_eq!(heights(7, right), all, "BIP-34 begins above the tip");
    assert_eq!(heights(4, None), all, "no chain is known");
    assert_eq!(heights(2, None), all, "block 1 may repeat in a later one");
    assert_eq!(heights(1, None), [0; 0], "BIP-34 holds from the start");
    assert_eq!(heights(0, None), [0; 0]);
}

#[test]
fn a_repeat_before_bip34_on_the_known_chain_is_refused() {
    let (mut builder, coinbase) = repeated(&[1, 2], 0);
    builder.empty_blocks(3);
    let known = Some(hash_of(&builder.blocks()[4]));
    let params = Params { bip34_height: 4, bip34_hash: known, ..without_bip34() };
    let chain = Chain::with(&params, builder.blocks());
    let mut hints = chain.hints();
    (hints[0], hints[1]) = (vec![0, 1], vec![0, 1]);
    expect_duplicate(&chain, &hints, &coinbase, [1, 2]);
}

#[test]
fn coinbases_are_remembered_again_where_early_ones_hold_heights() {
    // Core `validation.cpp`, BIP34_IMPLIES_BIP30_LIMIT: 1,983,702.
    assert_eq!(BIP34_IMPLIES_BIP30_LIMIT, 1_983_702);
    let mut builder = ChainBuilder::new(25);
    let parent = Chain::of(&builder);
    for (height, remembered) in [(1_983_701, false), (1_983_702, true), (3_000_000, true)] {
        let coinbase = builder.coinbase(height, vec![pay(1)]);
        let plan = BlockPlan { coinbase: Some(coinbase), ..BlockPlan::default() };
        let block = builder.propose(plan);
        let engine = parent.engine(AggregateKind::Sha256);
        let mut hints = IndexHints::new(height);
        hints.push([0]);
        let partial = one_block(&engine, &parent.params, height, &block, hints);
        let heights: Vec<_> = partial.coinbases.iter().map(|c| c.height).collect();
        assert_eq!(heights, if remembered { vec![height] } else { vec![] });
    }
}

/// Processes a single block, whatever its parent.
fn one_block(
    engine: &SwiftSync,
    params: &Params,
    height: Height,
    block: &Block,
    hints: IndexHints,
) -> Partial {
    let raw = bitcoin::consensus::encode::serialize(block);
    let context =
        BlockContext { params, height, hash: hash_of(block), median_time_past: 0, verifier: None };
    let mut checker = BlockChecker::new();
    let block = checker.check(&raw, &context).unwrap();
    let mut segment = engine.begin(SegmentHints::Indices(hints));
    engine.block(&mut segment, &block).unwrap();
    engine.finish(segment).unwrap().partial
}

/// Returns a regtest chain whose block at this height is listed as one with an overwritten coinbase.
fn with_exception(builder: &ChainBuilder, height: Height, hash: BlockHash) -> Chain {
    let bip30_unspendable = vec![KnownBlock { height, hash }].into();
    Chain::with(&Params { bip30_unspendable, ..without_bip34() }, builder.blocks())
}

#[test]
fn a_known_overwritten_coinbase_is_not_a_coin_and_has_no_index() {
    let (mut builder, _) = repeated(&[2, 4], 0);
    let free = builder.blocks()[3].txdata[0].clone();
    let tx = spend(&builder, &[coin(&free, 0)], 2);
    builder.block_with(vec![tx]);
    let chain = with_exception(&builder, 2, hash_of(&builder.blocks()[2]));
    let mut hints = chain.hints();
    assert_eq!(hints[1], [0; 0], "the model says that block 4 overwrote it");
    for kind in KINDS {
        let outcome = chain.run(kind, &hints).unwrap();
        assert_eq!(outcome.coins, model_coins(&chain.utxo()));
        assert_eq!(outcome.whole.unspendable_amount, u128::from(50 * BTC), "counts as supply");
        let heights: Vec<_> = outcome.whole.coinbases.iter().map(|c| c.height).collect();
        assert!(!heights.contains(&2) && heights.contains(&4));
        let totals = outcome.verdict.counts;
        assert_eq!((totals.transactions, totals.inputs, totals.outputs), (6, 1, 9));
    }
    // Its outputs have no index: the first one is past the end of the block.
    hints[1] = vec![0];
    let error = chain.run(KINDS[0], &hints).unwrap_err();
    assert!(matches!(error, SwiftSyncError::Hints(_)), "{error}");
}

#[test]
fn indices_begin_after_the_overwritten_coinbase() {
    let mut builder = ChainBuilder::new(26);
    let first = builder.block_with(Vec::new()).txdata[0].clone();
    let coinbase = builder.coinbase(1, vec![pay(20 * BTC), pay(30 * BTC)]);
    let transactions = vec![builder.spend(&[coin(&first, 0)], vec![pay(1), pay(2)])];
    let plan = BlockPlan { coinbase: Some(coinbase.clone()), transactions, ..BlockPlan::default() };
    let block = builder.add_plan(plan);
    builder.add_plan(BlockPlan { coinbase: Some(coinbase), ..BlockPlan::default() });
    let chain = with_exception(&builder, 2, hash_of(&block));
    let outcome = chain.run(KINDS[0], &[vec![], vec![0, 1], vec![0, 1]]).unwrap();
    assert_eq!(outcome.coins, model_coins(&chain.utxo()));
}

#[test]
fn the_exception_is_for_its_height_and_its_hash() {
    let (builder, coinbase) = repeated(&[2, 4], 0);
    let blocks = builder.blocks();
    for (height, hash) in [(3, hash_of(&blocks[2])), (2, hash_of(&blocks[4])), (2, BlockHash::ZERO)]
    {
        let chain = with_exception(&builder, height, hash);
        let mut hints = chain.hints();
        (hints[1], hints[3]) = (vec![0, 1], vec![0, 1]);
        expect_duplicate(&chain, &hints, &coinbase, [2, 4]);
    }
}

#[test]
fn an_overwritten_coinbase_still_counts_in_the_supply() {
    let (builder, _) = repeated(&[2, 4], 0);
    let mut chain = with_exception(&builder, 2, hash_of(&builder.blocks()[2]));
    let hints = chain.hints();
    assert!(chain.run(KINDS[0], &hints).is_ok(), "four rewards in four blocks");
    // The subsidy is half of the claimed amounts: they exceed the bound only together with the overwritten
    // coinbase.
    chain.params.subsidy_halving_interval = 4.try_into().unwrap();
    let result = chain.run(KINDS[0], &hints);
    let (amount, supply) = (u128::from(200 * BTC), 175 * BTC);
    assert_eq!(result, Err(SwiftSyncError::Supply { amount, supply, stop: 4 }));
}

/// The two blocks of the main chain whose coinbases were overwritten, and the two that overwrote them.
const MAIN: [(Height, Height); 2] = [(91_722, 91_880), (91_812, 91_842)];

pub(crate) fn main_block(height: Height) -> Block {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/main-blocks");
    let start = format!("{height}_");
    let named = |entry: &fs::DirEntry| entry.file_name().to_str().unwrap().starts_with(&start);
    let file = fs::read_dir(folder).unwrap().map(Result::unwrap).find(named).unwrap();
    bitcoin::consensus::encode::deserialize(&fs::read(file.path()).unwrap()).unwrap()
}

/// Makes an engine that knows only the genesis block's header.
pub(crate) fn main_engine(params: &Params) -> SwiftSync {
    let headers = HeaderChain::from_headers(params, 4_000_000_000, []).unwrap();
    let kind = AggregateKind::Sha256;
    SwiftSync::new(params, &headers, Aggregator::new(kind, &SECRET, *headers.tip_hash(), [0; 32]))
}

/// Processes and merges all four blocks unchanged; every output that has an index survives.
fn main_blocks(params: &Params) -> Partial {
    let engine = main_engine(params);
    let mut merged = engine.nothing();
    for height in MAIN.iter().flat_map(|&(first, second)| [first, second]) {
        let block = main_block(height);
        let outputs: usize = block.txdata.iter().map(|tx| tx.output.len()).sum();
        let own = params.is_bip30_unspendable(height, &hash_of(&block));
        let coinbase = if own { block.txdata[0].output.len() } else { 0 };
        let mut hints = IndexHints::new(height);
        hints.push(0..(outputs - coinbase) as u32);
        merged.merge(&one_block(&engine, params, height, &block, hints)).unwrap();
    }
    merged
}

#[test]
fn the_main_chains_two_exceptions() {
    let params = Params::of(Network::Main);
    let partial = main_blocks(params);
    assert_eq!(partial.unspendable_amount, u128::from(100 * BTC), "two rewards were lost");
    let mut heights: Vec<_> = partial.coinbases.iter().map(|c| c.height).collect();
    heights.sort_unstable();
    assert_eq!(heights, [91_842, 91_880]);
    for (first, second) in MAIN {
        let [first, second] = [first, second].map(|height| main_block(height).txdata[0].clone());
        assert_eq!(first.compute_txid(), second.compute_txid());
    }
    assert_eq!(conclude_main(partial), Ok(()));
}

#[test]
fn without_the_exceptions_the_main_chains_repeats_are_refused() {
    let params = Params { bip30_unspendable: vec![].into(), ..Params::of(Network::Main).clone() };
    let partial = main_blocks(&params);
    assert_eq!(partial.coinbases.len(), 4);
    match conclude_main(partial).unwrap_err() {
        SwiftSyncError::DuplicateCoinbase { first, second, .. } => {
            assert!(MAIN.contains(&(first, second)));
        }
        other => panic!("{other}"),
    }
}

/// Returns the verdict on these blocks as if they were all blocks from 1 to 91,880, and as if the coins that
/// they spend had been created.
fn conclude_main(mut partial: Partial) -> Result<(), SwiftSyncError> {
    let engine = main_engine(Params::of(Network::Main));
    partial.sums = engine.nothing().sums;
    partial.created = partial.counts.inputs;
    let mut bytes = Vec::new();
    partial.write(&mut bytes);
    // The four ranges of eight bytes each are replaced by one.
    assert_eq!(bytes[0], 4);
    let one = [&[1][..], &1u32.to_le_bytes(), &91_881u32.to_le_bytes(), &bytes[33..]].concat();
    let whole = Partial::read(&mut Reader::new(&one)).unwrap();
    assert_eq!(whole.ranges(), [HeightRange::new(1, 91_881)]);
    engine.conclude(&whole, 91_880).map(|_| ())
}
