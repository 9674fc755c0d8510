//! Tests of BIP-30: a coinbase that exists already, on chains where blocks need not state their height.

use crate::chainstate::harness::*;
use apus_chain::{BlockHash, CoinSum, HeaderChain, Height, KnownBlock, Params};
use apus_engine::utxo::CoinsStore;
use apus_engine::utxo::store::MemoryStore;
use apus_sync::engines::in_order::{Chainstate, ChainstateError};
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind, utxo_set};
use bitcoin::hashes::Hash;
use bitcoin::{Block, OutPoint};
use std::sync::Arc;

const BTC: u64 = 100_000_000;

/// Returns regtest's rules with a later activation of heights in coinbases.
fn without_bip34() -> Params {
    Params { bip34_height: 1_000_000, bip34_hash: None, ..regtest() }
}

/// Makes a chain whose last block repeats the coinbase of its first, with two outputs; `spent` of them were
/// spent before.
fn repeated(spent: u32) -> Vec<Block> {
    let mut builder = ChainBuilder::new(30);
    let outputs = [20, 30].map(|btc| builder.output(btc * BTC, ScriptKind::OpTrue));
    let coinbase = builder.coinbase(1, outputs.into());
    let plan = || BlockPlan { coinbase: Some(coinbase.clone()), ..BlockPlan::default() };
    builder.add_plan(plan());
    builder.empty_blocks(100);
    let txid = coinbase.compute_txid();
    for vout in 0..spent {
        let output = builder.output(BTC, ScriptKind::OpTrue);
        let tx = builder.spend(&[OutPoint { txid, vout }], vec![output]);
        builder.block_with(vec![tx]);
    }
    builder.add_plan(plan());
    builder.blocks()
}

fn known(height: usize, blocks: &[Block]) -> KnownBlock {
    let hash = BlockHash(blocks[height].block_hash().to_byte_array());
    KnownBlock { height: height as Height, hash }
}

fn open_with(params: &Params, store: &Arc<MemoryStore>) -> Chainstate {
    let store: Arc<dyn CoinsStore> = Arc::clone(store) as _;
    let mut state = Chainstate::open(params, store, options(0)).unwrap();
    state.keep_sum(KEY, CoinSum::default());
    state
}

fn connect_each(
    state: &mut Chainstate,
    params: &Params,
    chain: &HeaderChain,
    blocks: &[Block],
) -> Result<(), ChainstateError> {
    blocks.iter().try_for_each(|block| connect(state, params, chain, block))
}

#[test]
fn a_coinbase_is_repeated_only_once_all_of_it_is_spent() {
    let params = without_bip34();
    for (spent, valid) in [(0, false), (1, false), (2, true)] {
        let blocks = repeated(spent);
        let (store, chain) = (Arc::new(MemoryStore::new()), headers(&params, &blocks));
        let mut state = open_with(&params, &store);
        let connected = connect_each(&mut state, &params, &chain, &blocks[1..]);
        let end = if valid { blocks.len() } else { blocks.len() - 1 };
        match connected {
            Ok(()) => assert!(valid, "{spent} spent"),
            Err(ChainstateError::Invalid { error, .. }) => {
                assert!(!valid, "{spent} spent");
                assert_eq!(error.reject_reason(), "bad-txns-BIP30");
            }
            Err(error) => panic!("{error}"),
        }
        state.flush().unwrap();
        assert_eq!(stored(&store), expected(&utxo_set(&blocks[..end])));
        assert_eq!(state.totals().coins, stored(&store).len() as u64);
        assert_eq!(state.sum(), Some(sum_of(&stored(&store))));
    }
}

/// Until a later block repeats a coinbase, its coins are like any other.
#[test]
fn coins_not_overwritten_yet_are_kept() {
    let blocks = repeated(0);
    let params = Params { bip30_unspendable: vec![known(1, &blocks)].into(), ..without_bip34() };
    let chain = headers(&params, &blocks);
    let mut state = open_with(&params, &Arc::new(MemoryStore::new()));
    connect_each(&mut state, &params, &chain, &blocks[1..3]).unwrap();
    for height in [2, 1] {
        let block = checked(&params, &chain, height, &blocks[height as usize]);
        state.disconnect(&block).unwrap();
        let coins = expected(&utxo_set(&blocks[..height as usize]));
        assert_eq!(state.totals().coins, coins.len() as u64);
        assert_eq!(state.sum(), Some(sum_of(&coins)));
    }
}

/// The two blocks that may repeat a coinbase: the previous coins are lost, and stay lost when the blocks are
/// disconnected.
#[test]
fn coins_overwritten_by_an_exception_do_not_come_back() {
    let blocks = repeated(0);
    let last = blocks.len() - 1;
    let params = Params {
        bip30_repeats: vec![known(last, &blocks)].into(),
        bip30_unspendable: vec![known(1, &blocks)].into(),
        ..without_bip34()
    };
    let chain = headers(&params, &blocks);
    for flushed in [false, true] {
        let store = Arc::new(MemoryStore::new());
        let mut state = open_with(&params, &store);
        for _ in 0..2 {
            connect_each(&mut state, &params, &chain, &blocks[1..last]).unwrap();
            if flushed {
                state.flush().unwrap();
            }
            connect(&mut state, &params, &chain, &blocks[last]).unwrap();
            state.flush().unwrap();
            assert_eq!(stored(&store), expected(&utxo_set(&blocks)));
            assert_eq!(state.totals().coins, stored(&store).len() as u64);
            assert_eq!(state.sum(), Some(sum_of(&stored(&store))));
            for height in (1..=last).rev() {
                let block = checked(&params, &chain, height as Height, &blocks[height]);
                state.disconnect(&block).unwrap();
                if flushed {
                    state.flush().unwrap();
                    assert_eq!(state.totals().coins, stored(&store).len() as u64, "{height}");
                    assert_eq!(state.sum(), Some(sum_of(&stored(&store))), "{height}");
                }
            }
            state.flush().unwrap();
            assert_eq!(stored(&store).len(), 0);
            assert_eq!(state.totals().coins, 0);
            assert_eq!(state.sum(), Some(CoinSum::default()));
        }
    }
}
