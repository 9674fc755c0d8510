//! What a block may add up to, on both sides of each limit.

use super::*;
use crate::amount::{COIN, MAX_MONEY};
use crate::params::Network;
use crate::tests::{bare_tx, input, output, with_tx};

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
