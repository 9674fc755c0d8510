//! The rules for the coins that a transaction spends, and for a block's totals.
//!
//! These are the rules of Core's `ConnectBlock` that need coins but run no script. The caller looks
//! up the coins; a missing one is a [`SpendError::MissingOrSpent`]. Sums never overflow: values out
//! of range are rejected first. Transactions are counted in block order, so the error names the
//! first one that exceeds a limit.
//!
//! Relative lock times (BIP-68) state how long a coin must age before an input may spend it. An [`Ancestry`]
//! provides heights and times of blocks; if a value is missing, the transaction counts as locked. Absolute
//! lock times need no coins; [`check`](crate::check) handles them.

#[cfg(test)]
mod tests;

use crate::amount::{block_subsidy, money_range};
use crate::block::TxView;
use crate::coin::{CoinRef, CoinValue};
use crate::hashes::{BlockHash, OutPoint, Txid};
use crate::header::Height;
use crate::header_chain::HeaderChain;
use crate::params::Params;
use crate::script::BLOCK_SIGOPS_COST_MAX;

/// The number of blocks before a coinbase may be spent (Core `consensus/consensus.h`).
pub const COINBASE_MATURITY: Height = 100;

/// Returns the fee of a transaction that is not a coinbase, if its coins allow the spend (Core
/// `consensus/tx_verify.cpp`, `Consensus::CheckTxInputs`).
///
/// `index` and `txid` identify the transaction in errors; `spent` contains the coins that its inputs spend,
/// in input order; `height` is the block's. An input without a coin is rejected as missing.
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

/// Why a transaction cannot spend its coins, with the input's index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeeError {
    /// An input has no coin.
    Missing {
        /// Index of the input.
        vin: usize,
    },
    /// An input spends a coinbase less than [`COINBASE_MATURITY`] blocks below.
    Premature {
        /// Index of the input.
        vin: usize,
    },
    /// The coins up to and including this input exceed the maximum supply.
    InputValues {
        /// Index of the input.
        vin: usize,
    },
    /// The outputs are worth more than the coins.
    InBelowOut {
        /// Sum of the coins, in satoshi.
        value_in: u64,
    },
    /// The difference is out of range. Impossible if both sides are in range.
    OutOfRange {
        /// The difference, in satoshi.
        fee: u64,
    },
}

/// Returns the fee of a transaction that is not a coinbase, if its coins allow the spend. Like
/// [`check_tx_inputs`], but takes only the number of inputs and the sum of the outputs, and names no
/// transaction in errors.
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
        // A coin from above the block, which is impossible, counts as immature too.
        if coin.coinbase && height.saturating_sub(coin.height) < COINBASE_MATURITY {
            return Err(FeeError::Premature { vin });
        }
        // An amount that is out of range makes the sum out of range too.
        value_in = value_in.saturating_add(coin.amount);
        if !money_range(value_in) {
            return Err(FeeError::InputValues { vin });
        }
    }
    let fee = value_in.checked_sub(value_out).ok_or(FeeError::InBelowOut { value_in })?;
    if money_range(fee) { Ok(fee) } else { Err(FeeError::OutOfRange { fee }) }
}

/// Returns the sum of the outputs (Core `primitives/transaction.cpp`, `GetValueOut`). Negative amounts and
/// overflowing sums, which no checked transaction has, count as more than the maximum supply.
pub fn value_out(tx: &TxView<'_>) -> u64 {
    tx.outputs().fold(0u64, |total, output| {
        total.saturating_add(u64::try_from(output.value()).unwrap_or(u64::MAX))
    })
}

/// The fees and signature operations of a block so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockTotals {
    fees: u64,
    sigop_cost: u64,
}

impl BlockTotals {
    /// Creates totals of zero.
    pub const fn new() -> Self {
        Self { fees: 0, sigop_cost: 0 }
    }

    /// Returns the fees in satoshi.
    pub const fn fees(&self) -> u64 {
        self.fees
    }

    /// Returns the cost of the signature operations.
    pub const fn sigop_cost(&self) -> u64 {
        self.sigop_cost
    }

    /// Adds the fee of a transaction that is not a coinbase (Core `validation.cpp`, `ConnectBlock`:
    /// "bad-txns-accumulated-fee-outofrange").
    pub fn add_fee(&mut self, tx: usize, txid: Txid, fee: u64) -> Result<(), SpendError> {
        self.fees = self.fees.saturating_add(fee);
        if money_range(self.fees) {
            return Ok(());
        }
        Err(SpendError::AccumulatedFeeOutOfRange { tx, txid, fees: self.fees })
    }

    /// Adds the [`transaction_sigop_cost`](crate::transaction_sigop_cost) of a transaction,
    /// including the coinbase (Core `validation.cpp`, `ConnectBlock`: "bad-blk-sigops").
    pub fn add_sigop_cost(&mut self, tx: usize, txid: Txid, cost: u64) -> Result<(), SpendError> {
        self.sigop_cost = self.sigop_cost.saturating_add(cost);
        if self.sigop_cost <= BLOCK_SIGOPS_COST_MAX {
            return Ok(());
        }
        Err(SpendError::SigOps { tx, txid, cost: self.sigop_cost })
    }

    /// Returns the most that the coinbase may pay out, in satoshi: subsidy and fees, once all
    /// transactions are counted.
    pub fn coinbase_max(&self, height: Height, params: &Params) -> u64 {
        self.fees.saturating_add(block_subsidy(height, params.subsidy_halving_interval))
    }

    /// Checks that the coinbase pays out no more than subsidy and fees, once all transactions are
    /// counted (Core `validation.cpp`, `ConnectBlock`: "bad-cb-amount").
    pub fn check_coinbase(
        &self,
        coinbase: &TxView<'_>,
        height: Height,
        params: &Params,
    ) -> Result<(), SpendError> {
        let value_out = value_out(coinbase);
        let limit = self.coinbase_max(height, params);
        if value_out > limit {
            Err(SpendError::CoinbaseAmount { value_out, limit })
        } else {
            Ok(())
        }
    }
}

/// The blocks below the one being connected.
pub trait Ancestry {
    /// Returns the hash of the block at `height`, or `None` above the last known block.
    fn hash(&self, height: Height) -> Option<BlockHash>;

    /// Returns the median of the times of the block at `height` and up to ten before it (Core
    /// `chain.h`, `GetMedianTimePast`), or `None` above the last known block.
    fn median_time_past(&self, height: Height) -> Option<u32>;
}

impl Ancestry for HeaderChain {
    fn hash(&self, height: Height) -> Option<BlockHash> {
        self.hash(height).copied()
    }

    fn median_time_past(&self, height: Height) -> Option<u32> {
        self.median_time_past(height)
    }
}

/// An input with this bit has no relative lock time (BIP-68, `SEQUENCE_LOCKTIME_DISABLE_FLAG`).
const DISABLE_FLAG: u32 = 1 << 31;

/// With this bit the lock counts time, otherwise blocks (BIP-68, `SEQUENCE_LOCKTIME_TYPE_FLAG`).
const TYPE_FLAG: u32 = 1 << 22;

/// The bits of the lock's length (BIP-68, `SEQUENCE_LOCKTIME_MASK`).
const MASK: u32 = 0xffff;

/// A time lock counts units of 512 seconds, 2^9 (BIP-68, `SEQUENCE_LOCKTIME_GRANULARITY`).
const GRANULARITY: u32 = 9;

/// Returns whether the relative lock times of a transaction have passed in the block at
/// `block_height` (Core `consensus/tx_verify.cpp`, `SequenceLocks`; BIP-68).
///
/// `coin_heights` returns the height of the coin that an input spends, given the input's index; a coin
/// created in the same block has the block's height. `ancestry` must know the blocks below `block_height`;
/// `bip68_active` is whether the block is at [`csv_height`](crate::Params::csv_height) or above.
pub fn check_sequence_locks(
    tx: &TxView<'_>,
    coin_heights: impl Fn(usize) -> Height,
    ancestry: &(impl Ancestry + ?Sized),
    block_height: Height,
    bip68_active: bool,
) -> bool {
    let mut locks = relative_locks(tx);
    !bip68_active
        || locks.all(|(vin, sequence)| {
            relative_lock_is_over(sequence, coin_heights(vin), ancestry, block_height)
        })
}

/// Returns the inputs of a transaction that have a relative lock time (BIP-68), with their sequence
/// numbers.
pub fn relative_locks<'a>(tx: &TxView<'a>) -> impl Iterator<Item = (usize, u32)> + use<'a> {
    // Core compares the version unsigned, so a negative version has locks too.
    let inputs = (tx.version() >= 2).then(|| tx.inputs().enumerate());
    let locks = inputs.into_iter().flatten().map(|(vin, input)| (vin, input.sequence()));
    locks.filter(|(_, sequence)| sequence & DISABLE_FLAG == 0)
}

/// Returns whether the relative lock time in a sequence number has passed in the block at
/// `block_height`, for a coin of the block at `coin_height`.
pub fn relative_lock_is_over(
    sequence: u32,
    coin_height: Height,
    ancestry: &(impl Ancestry + ?Sized),
    block_height: Height,
) -> bool {
    let length = sequence & MASK;
    if sequence & TYPE_FLAG == 0 {
        return u64::from(coin_height) + u64::from(length) <= u64::from(block_height);
    }
    // The elapsed time is between the median before the coin's block and the median before this block.
    let rested = || {
        let start = ancestry.median_time_past(coin_height.saturating_sub(1))?;
        let end = ancestry.median_time_past(block_height.checked_sub(1)?)?;
        Some(u64::from(start) + u64::from(length << GRANULARITY) <= u64::from(end))
    };
    rested().unwrap_or(false)
}

/// Why a block cannot spend its coins (Core `validation.cpp`, `ConnectBlock`; `consensus/tx_verify.cpp`,
/// `CheckTxInputs`). `tx` is the transaction's index in the block; amounts are in satoshi.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SpendError {
    /// A coin does not exist, or no longer exists.
    #[error(
        "transaction {tx} ({txid}): input {vin} spends {outpoint}, which does not exist or is spent"
    )]
    MissingOrSpent {
        /// The transaction.
        tx: usize,
        /// Its id.
        txid: Txid,
        /// The input.
        vin: usize,
        /// The coin.
        outpoint: OutPoint,
    },
    /// A coinbase is spent too early.
    #[error(
        "transaction {tx} ({txid}): input {vin} spends the coinbase {outpoint} of height \
         {coin_height} before {COINBASE_MATURITY} blocks have passed"
    )]
    PrematureSpend {
        /// The transaction.
        tx: usize,
        /// Its id.
        txid: Txid,
        /// The input.
        vin: usize,
        /// The coin.
        outpoint: OutPoint,
        /// The coin's height.
        coin_height: Height,
    },
    /// A coin's amount, or the sum up to it, exceeds the maximum supply.
    #[error(
        "transaction {tx} ({txid}): with {outpoint} of {amount} satoshi, the inputs up to {vin} add up to more \
         than the maximum supply"
    )]
    InputValues {
        /// The transaction.
        tx: usize,
        /// Its id.
        txid: Txid,
        /// The input.
        vin: usize,
        /// The coin.
        outpoint: OutPoint,
        /// The coin's amount.
        amount: u64,
    },
    /// The outputs are worth more than the inputs.
    #[error("transaction {tx} ({txid}) spends {value_in} satoshi and pays out {value_out}")]
    InBelowOut {
        /// The transaction.
        tx: usize,
        /// Its id.
        txid: Txid,
        /// Sum of its inputs.
        value_in: u64,
        /// Sum of its outputs.
        value_out: u64,
    },
    /// The fee exceeds the maximum supply. Core checks this after rules that exclude such a fee.
    #[error("transaction {tx} ({txid}) has a fee of {fee} satoshi, more than the maximum supply")]
    FeeOutOfRange {
        /// The transaction.
        tx: usize,
        /// Its id.
        txid: Txid,
        /// Its fee.
        fee: u64,
    },
    /// The fees of the block up to a transaction exceed the maximum supply.
    #[error(
        "up to transaction {tx} ({txid}) the fees add up to {fees} satoshi, more than the maximum supply"
    )]
    AccumulatedFeeOutOfRange {
        /// The transaction.
        tx: usize,
        /// Its id.
        txid: Txid,
        /// The sum.
        fees: u64,
    },
    /// A relative lock time has not passed (BIP-68).
    #[error("transaction {tx} ({txid}) has a relative lock time that has not passed")]
    NonFinal {
        /// The transaction.
        tx: usize,
        /// Its id.
        txid: Txid,
    },
    /// Too many signature operations.
    #[error(
        "up to transaction {tx} ({txid}) the signature operations cost {cost}, more than \
         {BLOCK_SIGOPS_COST_MAX}"
    )]
    SigOps {
        /// The transaction.
        tx: usize,
        /// Its id.
        txid: Txid,
        /// The cost so far.
        cost: u64,
    },
    /// The coinbase pays out more than subsidy and fees.
    #[error("the coinbase pays out {value_out} satoshi, but subsidy and fees are {limit}")]
    CoinbaseAmount {
        /// Sum of its outputs.
        value_out: u64,
        /// Subsidy and fees.
        limit: u64,
    },
    /// An output already exists and is unspent (BIP-30).
    #[error("transaction {tx} ({txid}) creates {outpoint}, which already exists and is unspent")]
    Bip30 {
        /// The transaction.
        tx: usize,
        /// Its id.
        txid: Txid,
        /// The output.
        outpoint: OutPoint,
    },
}

impl SpendError {
    /// Returns Core's reject reason.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::MissingOrSpent { .. } => "bad-txns-inputs-missingorspent",
            Self::PrematureSpend { .. } => "bad-txns-premature-spend-of-coinbase",
            Self::InputValues { .. } => "bad-txns-inputvalues-outofrange",
            Self::InBelowOut { .. } => "bad-txns-in-belowout",
            Self::FeeOutOfRange { .. } => "bad-txns-fee-outofrange",
            Self::AccumulatedFeeOutOfRange { .. } => "bad-txns-accumulated-fee-outofrange",
            Self::NonFinal { .. } => "bad-txns-nonfinal",
            Self::SigOps { .. } => "bad-blk-sigops",
            Self::CoinbaseAmount { .. } => "bad-cb-amount",
            Self::Bip30 { .. } => "bad-txns-BIP30",
        }
    }
}
