//! [`BlockTotals`]: what the transactions of a block add up to, and the limits on it.
//!
//! Transactions are counted in block order, so that the first one too many is the one named.

use super::error::SpendError;
use super::value_out;
use crate::amount::money_range;
use crate::block::TxView;
use crate::hashes::Txid;
use crate::height::Height;
use crate::params::Params;
use crate::sigops::BLOCK_SIGOPS_COST_MAX;
use crate::subsidy::block_subsidy;

/// Fees and signature operations of a block so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockTotals {
    fees: u64,
    sigop_cost: u64,
}

impl BlockTotals {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self { fees: 0, sigop_cost: 0 }
    }

    /// The fees in satoshi.
    pub const fn fees(&self) -> u64 {
        self.fees
    }

    /// The cost of the signature operations.
    pub const fn sigop_cost(&self) -> u64 {
        self.sigop_cost
    }

    /// Counts the fee of a transaction that is no coinbase (Core `validation.cpp`, `ConnectBlock`:
    /// "bad-txns-accumulated-fee-outofrange").
    pub fn add_fee(&mut self, tx: usize, txid: Txid, fee: u64) -> Result<(), SpendError> {
        self.fees = self.fees.saturating_add(fee);
        if money_range(self.fees) {
            return Ok(());
        }
        Err(SpendError::AccumulatedFeeOutOfRange { tx, txid, fees: self.fees })
    }

    /// Counts what [`transaction_sigop_cost`](crate::transaction_sigop_cost) says of a transaction,
    /// the coinbase included (Core `validation.cpp`, `ConnectBlock`: "bad-blk-sigops").
    pub fn add_sigop_cost(&mut self, tx: usize, txid: Txid, cost: u64) -> Result<(), SpendError> {
        self.sigop_cost = self.sigop_cost.saturating_add(cost);
        if self.sigop_cost <= BLOCK_SIGOPS_COST_MAX {
            return Ok(());
        }
        Err(SpendError::SigOps { tx, txid, cost: self.sigop_cost })
    }

    /// What the coinbase may take, in satoshi: subsidy and fees, once all transactions are counted.
    pub fn coinbase_max(&self, height: Height, params: &Params) -> u64 {
        self.fees.saturating_add(block_subsidy(height, params.subsidy_halving_interval))
    }

    /// Whether the coinbase takes no more than subsidy and fees, once all transactions are counted
    /// (Core `validation.cpp`, `ConnectBlock`: "bad-cb-amount").
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amount::{COIN, MAX_MONEY};
    use crate::block::testing::{bare_tx, input, output, with_tx};
    use crate::network::Network;

    #[test]
    fn fees_stop_at_all_the_money() {
        let mut totals = BlockTotals::new();
        assert_eq!(totals.add_fee(1, Txid::ZERO, MAX_MONEY - 1), Ok(()));
        assert_eq!(totals.add_fee(2, Txid::ZERO, 1), Ok(()));
        assert_eq!(totals.fees(), MAX_MONEY);
        let error = totals.add_fee(3, Txid::ZERO, 1).unwrap_err();
        let fees = MAX_MONEY + 1;
        assert_eq!(error, SpendError::AccumulatedFeeOutOfRange { tx: 3, txid: Txid::ZERO, fees });
        assert_eq!(error.reason(), "bad-txns-accumulated-fee-outofrange");
        assert!(totals.add_fee(4, Txid::ZERO, u64::MAX).is_err());
    }

    #[test]
    fn signature_operations_stop_at_the_limit() {
        let mut totals = BlockTotals::new();
        assert_eq!(totals.add_sigop_cost(0, Txid::ZERO, 79_999), Ok(()));
        assert_eq!(totals.add_sigop_cost(1, Txid::ZERO, 1), Ok(()));
        assert_eq!(totals.sigop_cost(), BLOCK_SIGOPS_COST_MAX);
        let error = totals.add_sigop_cost(2, Txid::ZERO, 1).unwrap_err();
        assert_eq!(error, SpendError::SigOps { tx: 2, txid: Txid::ZERO, cost: 80_001 });
        assert_eq!(error.reason(), "bad-blk-sigops");
    }

    #[test]
    fn a_coinbase_takes_subsidy_and_fees_and_no_more() {
        let params = Params::of(Network::Main);
        let mut totals = BlockTotals::new();
        totals.add_fee(1, Txid::ZERO, 7).unwrap();
        let paying = |amount: u64, height: u32| {
            let mut coinbase = bare_tx();
            coinbase.input.push(input(0));
            coinbase.output.extend([output(amount - 1), output(1)]);
            with_tx(&coinbase, |coinbase| totals.check_coinbase(&coinbase, height, params))
        };
        assert_eq!(paying(50 * COIN + 7, 209_999), Ok(()));
        assert_eq!(paying(25 * COIN + 7, 210_000), Ok(()));
        let (value_out, limit) = (25 * COIN + 8, 25 * COIN + 7);
        let error = paying(value_out, 210_000).unwrap_err();
        assert_eq!(error, SpendError::CoinbaseAmount { value_out, limit });
        assert_eq!(error.reason(), "bad-cb-amount");
        assert!(paying(50 * COIN + 8, 209_999).is_err());
    }
}
