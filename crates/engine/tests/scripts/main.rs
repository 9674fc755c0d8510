//! Core's interpreter behind the pool, tested with Core's vectors and real blocks.
//!
//! Omitted: Core's `sighash.json`, because the interpreter does not expose these hashes; the other
//! vectors and the blocks have signatures over them.

#![allow(clippy::unwrap_used, reason = "tests")]

mod assets;
mod blocks;
mod bytes;
mod core_scripts;
mod core_txs;
mod deferral;
mod hints;
mod long;
mod multisig;
mod provers;
mod text;

use crate::provers::Pools;
use apus_chain::{BlockHash, CoinRef, KnownBlock, VERIFY_P2SH};
use apus_engine::script::{RawBlock, RawTx, ScriptFailure, interpreter};
use apus_engine::utxo::CoinBytes;
use std::sync::{Arc, OnceLock};

/// The block of all batches.
pub(crate) const BLOCK: KnownBlock = KnownBlock { height: 1, hash: BlockHash([1; 32]) };

/// Returns the pools of all tests.
pub(crate) fn pools() -> &'static Pools {
    static POOLS: OnceLock<Pools> = OnceLock::new();
    POOLS.get_or_init(|| Pools::new(&interpreter().unwrap()))
}

/// Returns an output as a stored coin.
pub(crate) fn coin(script: &[u8], amount: u64) -> CoinBytes {
    CoinBytes::new(CoinRef { height: 1, coinbase: false, amount, script })
}

/// Runs all scripts of one transaction.
pub(crate) fn verify(raw: Vec<u8>, spent: Vec<CoinBytes>, flags: u32) -> Result<(), ScriptFailure> {
    let length = raw.len();
    let block: Arc<dyn RawBlock> = Arc::new(raw);
    pools().verdict(|pool| {
        let mut batch = pool.begin(BLOCK, flags);
        batch.add(1, RawTx::new(Arc::clone(&block), 0..length), spent.clone());
        batch.finish().wait()
    })
}

// ---- a failing script reports the violated rule, in Core's words ----

/// Returns a transaction with one input, an empty script and otherwise minimal content.
fn spend_with(script_sig: &[u8]) -> Vec<u8> {
    let mut raw = vec![1, 0, 0, 0, 1];
    raw.extend([7; 36]);
    raw.push(u8::try_from(script_sig.len()).unwrap());
    raw.extend(script_sig);
    raw.extend([0xff; 4]);
    raw.extend([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    raw
}

#[test]
fn a_failing_script_reports_cores_text() {
    const OP_IF: u8 = 0x63;
    const OP_CAT: u8 = 0x7e;
    const OP_VERIFY: u8 = 0x69;
    for (script_sig, script, name) in [
        (&[0x51][..], &[OP_IF][..], "Invalid OP_IF construction"),
        (&[], &[OP_CAT], "Attempted to use a disabled opcode"),
        (&[0x6a], &[0x51], "OP_RETURN was encountered"),
        (&[0x00], &[OP_VERIFY], "Script failed an OP_VERIFY operation"),
        (
            &[],
            &[0x00],
            "Script evaluated without error but finished with a false/empty top stack element",
        ),
    ] {
        let failure = verify(spend_with(script_sig), vec![coin(script, 0)], VERIFY_P2SH);
        let expected = format!("block-script-verify-flag-failed ({name})");
        assert_eq!(failure.unwrap_err().reason(), expected);
    }
    assert_eq!(verify(spend_with(&[]), vec![coin(&[0x51], 0)], VERIFY_P2SH), Ok(()));
}
