//! Makes transactions for tests, with the `bitcoin` crate, and reads them as part of a block.

use super::{BlockLayout, TxView};
use bitcoin::consensus::serialize;
use bitcoin::{
    Amount, OutPoint, ScriptBuf, Sequence, Transaction, TxIn, TxOut, Witness, absolute, transaction,
};

/// Reads `tx` as the only transaction of a block.
pub(crate) fn with_tx<R>(tx: &Transaction, look: impl FnOnce(TxView<'_>) -> R) -> R {
    let raw = [&[0; 80][..], &[1], &serialize(tx)].concat();
    let mut layout = BlockLayout::new();
    look(layout.read(&raw).unwrap().tx(0).unwrap())
}

/// A transaction of version 2 without inputs and outputs.
pub(crate) fn bare_tx() -> Transaction {
    Transaction {
        version: transaction::Version::TWO,
        lock_time: absolute::LockTime::ZERO,
        input: vec![],
        output: vec![],
    }
}

/// An input that spends its own output, number `vout`.
pub(crate) fn input(vout: u32) -> TxIn {
    TxIn {
        previous_output: OutPoint { txid: "07".repeat(32).parse().unwrap(), vout },
        script_sig: ScriptBuf::new(),
        sequence: Sequence::MAX,
        witness: Witness::new(),
    }
}

/// An output of `amount` satoshi.
pub(crate) fn output(amount: u64) -> TxOut {
    TxOut { value: Amount::from_sat(amount), script_pubkey: ScriptBuf::from_bytes(vec![0x51]) }
}
