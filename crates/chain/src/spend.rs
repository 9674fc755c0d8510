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
use crate::coin::{CoinRef, CoinValue};
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
    let value_out = value_out(tx);
    let coins = spent.iter().map(CoinRef::value);
    check_fee(tx.inputs().len(), value_out, coins, height).map_err(|wrong| {
        let vin = match wrong {
            FeeError::Missing { vin } | FeeError::Premature { vin } => vin,
            FeeError::InputValues { vin } => vin,
            FeeError::InBelowOut { value_in } => {
                return SpendError::InBelowOut { tx: index, txid, value_in, value_out };
            }
            FeeError::OutOfRange { fee } => {
                return SpendError::FeeOutOfRange { tx: index, txid, fee };
            }
        };
        let input = tx.inputs().nth(vin).expect("the transaction has such an input");
        let (tx, outpoint) = (index, OutPoint::from_bytes(input.outpoint()));
        match (wrong, spent.get(vin)) {
            (FeeError::Premature { .. }, Some(coin)) => {
                SpendError::PrematureSpend { tx, txid, vin, outpoint, coin_height: coin.height }
            }
            (FeeError::InputValues { .. }, Some(coin)) => {
                SpendError::InputValues { tx, txid, vin, outpoint, amount: coin.amount }
            }
            _ => SpendError::MissingOrSpent { tx, txid, vin, outpoint },
        }
    })
}

/// What of a transaction and its coins does not fit, by the places of its inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeeError {
    /// An input has no coin.
    Missing {
        /// Which one.
        vin: usize,
    },
    /// An input spends a coinbase that lies less than [`COINBASE_MATURITY`] below.
    Premature {
        /// Which one.
        vin: usize,
    },
    /// The coins up to that of an input are more than there can be.
    InputValues {
        /// Which one.
        vin: usize,
    },
    /// The outputs take more than the coins bring.
    InBelowOut {
        /// What they bring, in satoshi.
        value_in: u64,
    },
    /// The difference is no amount. It cannot be where neither side is out of range.
    OutOfRange {
        /// The difference, in satoshi.
        fee: u64,
    },
}

/// The fee of a transaction that is no coinbase, of which no more is known than how many inputs it has and
/// what its outputs add up to, if its coins allow it: [`check_tx_inputs`] without names.
#[inline]
pub fn check_fee(
    inputs: usize,
    value_out: u64,
    spent: impl IntoIterator<Item = CoinValue>,
    height: Height,
) -> Result<u64, FeeError> {
    let mut value_in = 0u64;
    let mut spent = spent.into_iter();
    for vin in 0..inputs {
        let coin = spent.next().ok_or(FeeError::Missing { vin })?;
        // A coin from above the block, which cannot be, would not be mature either.
        if coin.coinbase && height.saturating_sub(coin.height) < COINBASE_MATURITY {
            return Err(FeeError::Premature { vin });
        }
        // An amount that is out of range by itself takes the sum with it.
        value_in = value_in.saturating_add(coin.amount);
        if !money_range(value_in) {
            return Err(FeeError::InputValues { vin });
        }
    }
    let fee = value_in.checked_sub(value_out).ok_or(FeeError::InBelowOut { value_in })?;
    if money_range(fee) { Ok(fee) } else { Err(FeeError::OutOfRange { fee }) }
}

/// What the outputs add up to (Core `primitives/transaction.cpp`, `GetValueOut`). Amounts that no
/// checked transaction has, negative ones and endless sums, count as more than there can be.
pub fn value_out(tx: &TxView<'_>) -> u64 {
    tx.outputs().fold(0u64, |total, output| {
        total.saturating_add(u64::try_from(output.value()).unwrap_or(u64::MAX))
    })
}

#[cfg(test)]
mod tests;
