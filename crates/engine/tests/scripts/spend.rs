//! A transaction that spends outputs which the test makes up, given to the pool.

use apus_chain::CoinRef;
use apus_engine::script::{RawBlock, RawTx, ScriptFailure, ScriptPool};
use apus_engine::utxo::CoinBytes;
use std::sync::{Arc, OnceLock};

/// The pool of all tests.
pub(crate) fn pool() -> &'static ScriptPool {
    static POOL: OnceLock<ScriptPool> = OnceLock::new();
    POOL.get_or_init(|| ScriptPool::new(2).unwrap())
}

/// An output as a stored coin.
pub(crate) fn coin(script: &[u8], amount: u64) -> CoinBytes {
    CoinBytes::new(CoinRef { height: 1, coinbase: false, amount, script })
}

/// All scripts of one transaction.
pub(crate) fn verify(raw: Vec<u8>, spent: Vec<CoinBytes>, flags: u32) -> Result<(), ScriptFailure> {
    let length = raw.len();
    let block: Arc<dyn RawBlock> = Arc::new(raw);
    let mut batch = pool().begin(flags);
    batch.add(1, RawTx::new(block, 0..length), spent);
    batch.finish().wait()
}
