//! The test harness: connects a builder's blocks to a chain state, without scripts.

use apus_chain::{
    BlockChecker, BlockContext, BlockHash, CheckedBlock, CoinRef, CoinSum, CoinSumKey, HeaderChain,
    Height, Network, OutPoint, Params, Txid,
};
use apus_engine::utxo::store::MemoryStore;
use apus_engine::utxo::{CoinBytes, CoinsStore, CoinsView, ConnectContext, PreparedBlock};
use apus_sync::engines::in_order::{Chainstate, ChainstateError, ChainstateOptions};
use apus_testkit::chain::{ChainBuilder, UtxoSet};
use bitcoin::Block;
use bitcoin::consensus::encode::serialize;
use bitcoin::hashes::Hash;
use std::collections::BTreeMap;
use std::sync::Arc;

const NOW: i64 = 4_000_000_000;

/// Coins by outpoint: height, coinbase, amount, script.
pub(crate) type Coins = BTreeMap<OutPoint, (Height, bool, u64, Vec<u8>)>;

/// The key for sums of coins.
pub(crate) const KEY: CoinSumKey = CoinSumKey::new([0x5e; 16]);

pub(crate) fn regtest() -> Params {
    Params::of(Network::Regtest).clone()
}

pub(crate) fn options(prevout_threads: usize) -> ChainstateOptions {
    ChainstateOptions { cache_bytes: 1 << 22, prevout_threads, scripts: None }
}

pub(crate) fn open(store: &Arc<MemoryStore>, threads: usize) -> Chainstate {
    let from = store;
    let store: Arc<dyn CoinsStore> = Arc::clone(store) as _;
    let mut state = Chainstate::open(&regtest(), store, options(threads)).unwrap();
    state.keep_sum(KEY, sum_of(&stored(from)));
    state
}

/// Makes the chain of the blocks' headers.
pub(crate) fn headers(params: &Params, blocks: &[Block]) -> HeaderChain {
    let raw: Vec<Vec<u8>> = blocks.iter().map(serialize).collect();
    let headers = raw.iter().map(|block| block.first_chunk().unwrap());
    HeaderChain::from_headers(params, NOW, headers).unwrap()
}

/// Checks a block as far as possible without coins.
pub(crate) fn checked(
    params: &Params,
    chain: &HeaderChain,
    height: Height,
    block: &Block,
) -> CheckedBlock {
    let hash = BlockHash(block.block_hash().to_byte_array());
    let median_time_past = chain.median_time_past(height - 1).unwrap();
    let context = BlockContext { params, height, hash, median_time_past, verifier: None };
    BlockChecker::new().check_owned(serialize(block), &context).map_err(|(_, error)| error).unwrap()
}

/// Connects one block to the tip.
pub(crate) fn connect(
    state: &mut Chainstate,
    params: &Params,
    chain: &HeaderChain,
    block: &Block,
) -> Result<(), ChainstateError> {
    let height = state.tip().height + 1;
    let block = checked(params, chain, height, block);
    state.connect(block, &ConnectContext { ancestry: chain, check_scripts: false })
}

/// Connects many blocks, prefetching the coins of the next one meanwhile.
pub(crate) fn connect_all(
    state: &mut Chainstate,
    chain: &HeaderChain,
    blocks: &[Block],
) -> Result<(), ChainstateError> {
    let params = regtest();
    let start = state.tip().height + 1;
    let prepared: Vec<Arc<PreparedBlock>> = (start..)
        .zip(blocks)
        .map(|(height, block)| checked(&params, chain, height, block))
        .map(|block| Arc::new(PreparedBlock::new(&params, block)))
        .collect();
    for (at, block) in prepared.iter().enumerate() {
        if let Some(next) = prepared.get(at + 1) {
            state.prefetch(next);
        }
        let context = ConnectContext { ancestry: chain, check_scripts: false };
        state.begin(Arc::clone(block), &context)?;
    }
    state.settle()
}

/// Reads the coins in a store.
pub(crate) fn stored(store: &MemoryStore) -> Coins {
    let mut coins = Coins::new();
    store
        .for_each(&mut |outpoint, coin| {
            coins.insert(*outpoint, read(coin));
            Ok(())
        })
        .unwrap();
    coins
}

fn read(coin: &CoinBytes) -> (Height, bool, u64, Vec<u8>) {
    let coin = coin.coin();
    (coin.height, coin.coinbase, coin.amount, coin.script.to_vec())
}

/// Returns the model's coins.
pub(crate) fn expected(set: &UtxoSet) -> Coins {
    set.iter()
        .map(|(outpoint, coin)| {
            let txid = Txid(outpoint.txid.to_byte_array());
            let name = OutPoint { txid, vout: outpoint.vout };
            let script = coin.output.script_pubkey.to_bytes();
            (name, (coin.height, coin.coinbase, coin.output.value.to_sat(), script))
        })
        .collect()
}

/// Returns the sum of these coins.
pub(crate) fn sum_of(coins: &Coins) -> CoinSum {
    let one = |(name, (height, coinbase, amount, script)): (&OutPoint, &(_, _, _, Vec<u8>))| {
        let coin = CoinRef { height: *height, coinbase: *coinbase, amount: *amount, script };
        KEY.coin(name, CoinBytes::new(coin).as_bytes())
    };
    coins.iter().map(one).fold(CoinSum::default(), CoinSum::plus)
}

/// Returns the coins that the chain state has for these outpoints.
pub(crate) fn seen(state: &Chainstate, names: impl Iterator<Item = OutPoint>) -> Coins {
    names.filter_map(|name| Some((name, read(&state.cache().coin(&name).unwrap()?)))).collect()
}

/// Makes a random chain with spends.
pub(crate) fn random_chain(seed: u64, blocks: usize) -> ChainBuilder {
    let mut builder = ChainBuilder::new(seed);
    builder.empty_blocks(100);
    builder.random_blocks(blocks, apus_testkit::chain::Shape::default());
    builder
}
