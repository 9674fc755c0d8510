//! What a transaction may take from the coins it spends, and what a block may add up to.
//!
//! The rules of Core's `ConnectBlock` that need the coins but run no script. They judge coins that
//! the caller has looked up; one that is not there is a [`SpendError::MissingOrSpent`]. Sums never
//! overflow: what is out of range is refused first.

mod error;
mod totals;

pub use error::SpendError;
pub use totals::BlockTotals;

use crate::amount::money_range;
use crate::block::TxView;
use crate::coin::CoinRef;
use crate::hashes::Txid;
use crate::height::Height;
use crate::outpoint::OutPoint;

/// How deep a coinbase must lie before it may be spent (Core `consensus/consensus.h`).
pub const COINBASE_MATURITY: Height = 100;

/// The fee of a transaction that is no coinbase, if its coins allow it (Core
/// `consensus/tx_verify.cpp`, `Consensus::CheckTxInputs`).
///
/// `index` and `txid` name the transaction in errors; `spent` are the coins that its inputs spend,
/// in the order of the inputs; `height` is the block's. An input beyond the last coin is refused as
/// missing.
pub fn check_tx_inputs(
    tx: &TxView<'_>,
    index: usize,
    txid: Txid,
    spent: &[CoinRef<'_>],
    height: Height,
) -> Result<u64, SpendError> {
    let mut value_in = 0u64;
    for (vin, input) in tx.inputs().enumerate() {
        let outpoint = || OutPoint::from_bytes(input.outpoint());
        let Some(coin) = spent.get(vin) else {
            return Err(SpendError::MissingOrSpent { tx: index, txid, vin, outpoint: outpoint() });
        };
        // A coin from above the block, which cannot be, would not be mature either.
        if coin.coinbase && height.saturating_sub(coin.height) < COINBASE_MATURITY {
            let outpoint = outpoint();
            let coin_height = coin.height;
            return Err(SpendError::PrematureSpend { tx: index, txid, vin, outpoint, coin_height });
        }
        // An amount that is out of range by itself takes the sum with it.
        value_in = value_in.saturating_add(coin.amount);
        if !money_range(value_in) {
            let (outpoint, amount) = (outpoint(), coin.amount);
            return Err(SpendError::InputValues { tx: index, txid, vin, outpoint, amount });
        }
    }
    let value_out = value_out(tx);
    let Some(fee) = value_in.checked_sub(value_out) else {
        return Err(SpendError::InBelowOut { tx: index, txid, value_in, value_out });
    };
    if !money_range(fee) {
        return Err(SpendError::FeeOutOfRange { tx: index, txid, fee });
    }
    Ok(fee)
}

/// What the outputs add up to (Core `primitives/transaction.cpp`, `GetValueOut`). Amounts that no
/// checked transaction has, negative ones and endless sums, count as more than there can be.
fn value_out(tx: &TxView<'_>) -> u64 {
    tx.outputs().fold(0u64, |total, output| {
        total.saturating_add(u64::try_from(output.value()).unwrap_or(u64::MAX))
    })
}

#[cfg(test)]
mod tests;
