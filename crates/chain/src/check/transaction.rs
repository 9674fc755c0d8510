//! The rules for one transaction by itself, and when it is final.

use super::error::TxError;
use crate::amount::MAX_MONEY;
use crate::block::TxView;
use crate::outpoint::OutPoint;

/// Lock times below are heights, others are times (Core `script/script.h`).
pub const LOCKTIME_THRESHOLD: u32 = 500_000_000;

/// A sequence that switches the lock time off (Core `primitives/transaction.h`).
pub(super) const SEQUENCE_FINAL: u32 = 0xffff_ffff;

/// Greatest weight of a block (Core `consensus/consensus.h`); a stripped byte weighs four.
pub(super) const WEIGHT_MAX: usize = 4_000_000;

/// Up to this many inputs are compared each with each; more are sorted.
const INPUTS_COMPARED_MAX: usize = 8;

/// Everything that Core's `CheckTransaction` asks for (`consensus/tx_check.cpp`), in its order.
/// `is_coinbase` is what [`TxView::is_coinbase`] says, `scratch` is working space.
pub(super) fn check_transaction(
    tx: &TxView<'_>,
    is_coinbase: bool,
    scratch: &mut Vec<u64>,
) -> Result<(), TxError> {
    if tx.inputs().len() == 0 {
        return Err(TxError::NoInputs);
    }
    if tx.outputs().len() == 0 {
        return Err(TxError::NoOutputs);
    }
    let size = tx.stripped_size();
    if size * 4 > WEIGHT_MAX {
        return Err(TxError::Oversize { size });
    }
    check_amounts(tx)?;
    if has_duplicate_inputs(tx, scratch) {
        return Err(TxError::DuplicateInputs);
    }
    if is_coinbase {
        let length = tx.inputs().map(|input| input.script_sig().len()).sum();
        if !(2..=100).contains(&length) {
            return Err(TxError::CoinbaseLength { length });
        }
    } else if let Some(vin) = tx.inputs().position(|input| input.is_null()) {
        return Err(TxError::NullPrevout { vin });
    }
    Ok(())
}

fn check_amounts(tx: &TxView<'_>) -> Result<(), TxError> {
    let mut total = 0u64;
    for (vout, output) in tx.outputs().enumerate() {
        let value = output.value();
        let amount = u64::try_from(value).map_err(|_| TxError::OutputNegative { vout, value })?;
        if amount > MAX_MONEY {
            return Err(TxError::OutputTooLarge { vout, value });
        }
        total += amount;
        if total > MAX_MONEY {
            return Err(TxError::OutputTotalTooLarge);
        }
    }
    Ok(())
}

/// Whether a coin is spent twice (CVE-2018-17144). Most transactions have one input or two, where
/// there is nothing to sort.
#[inline]
pub(super) fn has_duplicate_inputs(tx: &TxView<'_>, scratch: &mut Vec<u64>) -> bool {
    let count = tx.inputs().len();
    if count < 2 {
        return false;
    }
    if count <= INPUTS_COMPARED_MAX {
        return tx.inputs().enumerate().any(|(index, input)| {
            tx.inputs().skip(index + 1).any(|other| input.outpoint() == other.outpoint())
        });
    }
    // Equal outpoints have equal fingerprints, and nearly no others do, so that the outpoints
    // themselves, which take longer to sort, seldom have to be looked at.
    scratch.clear();
    scratch.extend(tx.inputs().map(|input| fingerprint(input.outpoint())));
    scratch.sort_unstable();
    scratch.windows(2).any(|pair| pair[0] == pair[1]) && sorted_has_duplicates(tx)
}

/// The start of the txid, with the vout spread over all bits: outputs of one transaction are often
/// spent together.
fn fingerprint(outpoint: &[u8; OutPoint::SIZE]) -> u64 {
    let OutPoint { txid, vout } = OutPoint::from_bytes(outpoint);
    let start = txid.0.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    start.wrapping_add(u64::from(vout).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn sorted_has_duplicates(tx: &TxView<'_>) -> bool {
    let mut outpoints: Vec<_> = tx.inputs().map(|input| input.outpoint()).collect();
    outpoints.sort_unstable();
    outpoints.windows(2).any(|pair| pair[0] == pair[1])
}

/// Whether the transaction may stand in a block of this height (Core `consensus/tx_verify.cpp`,
/// `IsFinalTx`). `cutoff` is the time to compare with: the median time past of the block before
/// where BIP-113 is active, else the block's own time.
#[inline]
pub(super) fn is_final(tx: &TxView<'_>, height: u32, cutoff: u32) -> bool {
    let lock_time = tx.lock_time();
    let now = if lock_time < LOCKTIME_THRESHOLD { height } else { cutoff };
    lock_time == 0 || lock_time < now || tx.inputs().all(|input| input.sequence() == SEQUENCE_FINAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::testing::{bare_tx, input, output, with_tx};
    use bitcoin::Witness;

    /// In a block the bound on all its bytes comes first, so that no block has such a transaction.
    #[test]
    fn a_transaction_has_a_million_bytes_at_most() {
        let checked = |size: usize| {
            let mut large = bare_tx();
            large.input.push(input(0));
            // Bytes of witnesses don't count.
            large.input[0].witness = Witness::from_slice(&[[1; 100]]);
            large.output.push(output(1));
            // The length of the script takes five bytes in place of one.
            let others = large.base_size() + 3;
            large.output[0].script_pubkey = vec![0x51; size - others].into();
            with_tx(&large, |tx| {
                assert_eq!(tx.stripped_size(), size);
                check_transaction(&tx, false, &mut Vec::new())
            })
        };
        assert_eq!(checked(1_000_000), Ok(()));
        let error = checked(1_000_001).unwrap_err();
        assert_eq!(error, TxError::Oversize { size: 1_000_001 });
        assert_eq!(error.reason(), "bad-txns-oversize");
    }
}
