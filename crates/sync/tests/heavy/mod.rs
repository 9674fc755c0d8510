//! Measures the memory for a full block of only inputs, which spend coins with the longest scripts.

use apus_chain::{
    BlockChecker, BlockContext, BlockHash, CoinRef, CoinSum, CoinSumKey, HeaderChain, Height,
    OutPoint, Params,
};
use apus_engine::script::ScriptPool;
use apus_engine::utxo::{CoinBytes, CoinsStore, ConnectContext, PreparedBlock};
use apus_sync::engines::in_order::{Chainstate, ChainstateOptions};
use apus_testkit::chain::{ChainBuilder, mine, seal};
use bitcoin::hashes::Hash;
use bitcoin::{Amount, ScriptBuf, Sequence, Transaction, TxIn, TxOut, Txid, Witness};
use std::sync::Arc;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const KEY: CoinSumKey = CoinSumKey::new([0x5e; 16]);

/// Number of inputs that fit into a block.
pub(crate) const INPUTS: u32 = 24_000;

/// The longest script that a kept coin can have (Core `script.h`, `MAX_SCRIPT_SIZE`).
pub(crate) const SCRIPT_BYTES: usize = 10_000;

/// Returns the coin of every outpoint.
pub(crate) fn coin() -> CoinBytes {
    let script = [0x51; SCRIPT_BYTES];
    CoinBytes::new(CoinRef { height: 1, coinbase: false, amount: 1, script: &script })
}

/// Returns the outpoint of an input's coin.
pub(crate) fn outpoint(number: u32) -> OutPoint {
    OutPoint { txid: apus_chain::Txid(apus_hash::sha256(&number.to_le_bytes())), vout: 0 }
}

/// Returns the peak memory that the system reports; `None` except on Linux.
pub(crate) fn most_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

/// Makes the first block of a chain, which spends as many coins as it can, in one transaction.
pub(crate) fn block() -> bitcoin::Block {
    let input = |number: u32| TxIn {
        previous_output: bitcoin::OutPoint {
            txid: Txid::from_byte_array(outpoint(number).txid.0),
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

/// Connects the block with this much memory for coins, keeping undo data from a height on and running scripts
/// if there is an interpreter. Returns the chain state's sum.
pub(crate) fn connect(
    params: &Params,
    store: Arc<dyn CoinsStore>,
    raw: &[u8],
    undo_from: Height,
    scripts: Option<ScriptPool>,
) -> (Chainstate, CoinSum) {
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
    let check_scripts = scripts.is_some();
    let options = ChainstateOptions { cache_bytes: 12 * MIB, prevout_threads: 8, scripts };
    let mut state = Chainstate::open(params, store, options).unwrap();
    state.keep_sum(KEY, CoinSum::default());
    state.set_undo_from(undo_from);
    state.prefetch(&block);
    // Gives the threads the time to fetch ahead all that they may, as while blocks below are connected.
    std::thread::sleep(std::time::Duration::from_millis(500));
    state.begin(block, &ConnectContext { ancestry: &chain, check_scripts }).unwrap();
    state.settle().unwrap();
    assert_eq!(state.tip().height, 1);
    let sum = state.sum().unwrap();
    (state, sum)
}
