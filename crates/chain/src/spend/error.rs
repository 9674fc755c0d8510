//! [`SpendError`]: what can be wrong with a block once its coins are known, in Core's words.

use crate::hashes::Txid;
use crate::height::Height;
use crate::outpoint::OutPoint;
use crate::sigops::BLOCK_SIGOPS_COST_MAX;
use crate::spend::COINBASE_MATURITY;

/// Why a block is invalid on top of the coins that it finds (Core `validation.cpp`,
/// `ConnectBlock`; `consensus/tx_verify.cpp`, `CheckTxInputs`). `tx` is the transaction's place in
/// the block, amounts are in satoshi.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SpendError {
    /// A coin does not exist, or not any more.
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
    /// A coin's amount, or the sum up to it, is more than there can be.
    #[error(
        "transaction {tx} ({txid}): with {outpoint} of {amount} satoshi, input {vin} brings more \
         than there can be"
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
        /// What its inputs bring.
        value_in: u64,
        /// What its outputs take.
        value_out: u64,
    },
    /// The fee is more than there can be. Core has this rule after others that leave no such fee.
    #[error("transaction {tx} ({txid}) has a fee of {fee} satoshi, more than there can be")]
    FeeOutOfRange {
        /// The transaction.
        tx: usize,
        /// Its id.
        txid: Txid,
        /// Its fee.
        fee: u64,
    },
    /// The fees of the block up to a transaction are more than there can be.
    #[error(
        "up to transaction {tx} ({txid}) the fees add up to {fees} satoshi, more than there can be"
    )]
    AccumulatedFeeOutOfRange {
        /// The transaction.
        tx: usize,
        /// Its id.
        txid: Txid,
        /// The sum.
        fees: u64,
    },
    /// A relative lock time is not over (BIP-68).
    #[error("transaction {tx} ({txid}) has a relative lock time that is not over")]
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
    #[error("the coinbase pays out {value_out} satoshi where subsidy and fees are {limit}")]
    CoinbaseAmount {
        /// What it pays out.
        value_out: u64,
        /// Subsidy and fees.
        limit: u64,
    },
    /// An output exists already and is not spent (BIP-30).
    #[error("transaction {tx} ({txid}) makes {outpoint}, which exists and is not spent")]
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
    /// Core's reject reason.
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
