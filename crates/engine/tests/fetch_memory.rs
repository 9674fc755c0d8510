//! The memory of a block's coins: a full block of nothing but inputs, with the longest scripts behind them.
//!
//! Its coins are a quarter of a gigabyte. Where no script is run and no undo data kept, they pass
//! through a few megabytes, and the sum of what was taken is that of the whole coins.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use apus_chain::{
    BlockChecker, BlockContext, BlockHash, CoinRef, CoinSum, CoinSumKey, HeaderChain, KnownBlock,
    Network, OutPoint, Params,
};
use apus_engine::utxo::store::EachCoin;
use apus_engine::utxo::{
    BatchedStore, BatcherOptions, Chainstate, ChainstateOptions, CoinBytes, CoinsStore,
    ConnectContext, Flush, PreparedBlock, StoreError,
};
use apus_testkit::chain::{ChainBuilder, mine, seal};
use bitcoin::consensus::encode::serialize;
use bitcoin::hashes::Hash;
use bitcoin::{Amount, ScriptBuf, Sequence, Transaction, TxIn, TxOut, Txid, Witness};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const KEY: CoinSumKey = CoinSumKey::new([0x5e; 16]);

/// As many as fit into a block.
const INPUTS: u32 = 24_000;

/// The longest script that is no reason for a coin not to be kept (Core `script.h`, `MAX_SCRIPT_SIZE`).
const SCRIPT_BYTES: usize = 10_000;

/// Has a coin with the longest script under every name, and holds none of them.
struct Everything {
    at_once: usize,
}

fn coin() -> CoinBytes {
    let script = [0x51; SCRIPT_BYTES];
    CoinBytes::new(CoinRef { height: 1, coinbase: false, amount: 1, script: &script })
}

impl CoinsStore for Everything {
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError> {
        Ok(None)
    }

    fn get(&self, _: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        Ok(Some(coin()))
    }

    fn at_once(&self) -> usize {
        self.at_once
    }

    fn write(&self, _: &Flush<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    fn undo(&self, _: &BlockHash) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(None)
    }

    fn for_each(&self, _: &mut EachCoin<'_>) -> Result<(), StoreError> {
        Ok(())
    }
}

/// The most that the system counted so far; none where it is not Linux.
fn most_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

/// The first block of a chain, which spends as many coins as it can, in one transaction.
fn block() -> bitcoin::Block {
    let input = |number: u32| TxIn {
        previous_output: bitcoin::OutPoint {
            txid: Txid::from_byte_array(apus_hash::sha256(&number.to_le_bytes())),
            vout: 0,
        },
        script_sig: ScriptBuf::new(),
        sequence: Sequence::MAX,
        witness: Witness::new(),
    };
    let spends = Transaction {
        version: bitcoin::transaction::Version::ONE,
        lock_time: bitcoin::absolute::LockTime::ZERO,
        input: (0..INPUTS).map(input).collect(),
        output: vec![TxOut { value: Amount::ZERO, script_pubkey: ScriptBuf::from(vec![0x51]) }],
    };
    let mut block = ChainBuilder::new(1).empty_blocks(1).remove(0);
    block.txdata.push(spends);
    seal(&mut block);
    mine(&mut block);
    block
}

/// Connects it, and what the chain state then has for the sum.
fn connect(params: &Params, store: Arc<dyn CoinsStore>, raw: &[u8]) -> CoinSum {
    let chain = HeaderChain::from_headers(params, 4_000_000_000, [raw.first_chunk().unwrap()]);
    let chain = chain.unwrap();
    let context = BlockContext {
        params,
        height: 1,
        hash: BlockHash(apus_hash::sha256d(&raw[..80])),
        median_time_past: chain.median_time_past(0).unwrap(),
        verifier: None,
    };
    let block = BlockChecker::new().check_owned(raw.to_vec(), &context);
    let block = block.map_err(|(_, error)| error).unwrap();
    let block = Arc::new(PreparedBlock::with_sums(params, block, &KEY));
    let options = ChainstateOptions { cache_bytes: 12 * MIB, prevout_threads: 8, scripts: None };
    let mut state = Chainstate::open(params, store, options).unwrap();
    state.keep_sum(KEY, CoinSum::default());
    state.set_undo_from(2);
    state.prefetch(&block);
    // As while the blocks below are connected: what may be fetched ahead is.
    std::thread::sleep(std::time::Duration::from_millis(500));
    state.begin(block, &ConnectContext { ancestry: &chain, check_scripts: false }).unwrap();
    state.settle().unwrap();
    assert_eq!(state.tip().height, 1);
    state.sum().unwrap()
}

/// One test, since others would use memory beside it.
#[test]
fn the_coins_of_a_block_take_little_memory_however_long_their_scripts_are() {
    let params = Params::of(Network::Regtest).clone();
    let block = block();
    let raw = serialize(&block);
    assert!(block.weight().to_wu() > 3_900_000, "{}", block.weight());
    let mut sum = CoinSum::default();
    for txin in &block.txdata[1].input {
        let txid = apus_chain::Txid(txin.previous_output.txid.to_byte_array());
        sum.sub(KEY.coin(&OutPoint { txid, vout: 0 }, coin().as_bytes()));
    }
    for (tx, height) in [(&block.txdata[0], 1), (&block.txdata[1], 1)] {
        let txid = apus_chain::Txid(tx.compute_txid().to_byte_array());
        for (vout, output) in tx.output.iter().enumerate() {
            if output.script_pubkey.is_op_return() {
                continue;
            }
            let coin = CoinBytes::new(CoinRef {
                height,
                coinbase: tx.is_coinbase(),
                amount: output.value.to_sat(),
                script: output.script_pubkey.as_bytes(),
            });
            sum.add(KEY.coin(&OutPoint { txid, vout: vout as u32 }, coin.as_bytes()));
        }
    }
    let batches = || BatcherOptions { size: 170, in_flight: 8, ..BatcherOptions::default() };
    let batched = |store| Arc::new(BatchedStore::new(store, batches()).unwrap());
    let before = most_bytes().unwrap_or(0);
    for store in [
        Arc::new(Everything { at_once: 1 }) as Arc<dyn CoinsStore>,
        batched(Arc::new(Everything { at_once: 100 })),
    ] {
        assert_eq!(connect(&params, store, &raw), sum);
    }
    let most = most_bytes().unwrap_or(0) - before;
    // Without a bound it would be the coins, 240 million bytes, and more. How far threads run ahead of one another
    // makes some ten million of a difference.
    assert!(most < 128 * MIB, "{most} bytes more than before");
}
