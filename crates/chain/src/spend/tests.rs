//! Tests the rules for spent coins, one by one.

mod sequence_locks;

use super::*;
use crate::amount::{COIN, MAX_MONEY};
use crate::params::Network;
use crate::tests::{bare_tx, input, output, with_tx};
use proptest::collection::vec;
use proptest::prelude::*;

const HEIGHT: Height = 1000;

fn coin(amount: u64) -> CoinRef<'static> {
    CoinRef { height: HEIGHT - 1, coinbase: false, amount, script: &[0x51] }
}

/// Spends `coins` in a transaction that pays out `amounts`.
fn spend(inputs: u32, coins: &[CoinRef<'_>], amounts: &[u64]) -> Result<u64, SpendError> {
    let mut tx = bare_tx();
    tx.input.extend((0..inputs).map(input));
    tx.output.extend(amounts.iter().map(|&amount| output(amount)));
    with_tx(&tx, |tx| check_tx_inputs(&tx, 3, Txid([9; 32]), coins, HEIGHT))
}

fn reason(result: Result<u64, SpendError>) -> &'static str {
    result.expect_err("a rule is broken").reason()
}

#[test]
fn the_difference_is_the_fee() {
    assert_eq!(spend(2, &[coin(70), coin(30)], &[40, 50]), Ok(10));
    assert_eq!(spend(2, &[coin(70), coin(30)], &[40, 60]), Ok(0));
    assert_eq!(spend(1, &[coin(MAX_MONEY)], &[0]), Ok(MAX_MONEY));
}

#[test]
fn an_input_without_a_coin_is_rejected() {
    let error = spend(2, &[coin(70)], &[1]).unwrap_err();
    let outpoint = OutPoint { txid: Txid([7; 32]), vout: 1 };
    assert_eq!(error, SpendError::MissingOrSpent { tx: 3, txid: Txid([9; 32]), vin: 1, outpoint });
    assert_eq!(error.reason(), "bad-txns-inputs-missingorspent");
}

#[test]
fn a_coinbase_matures_after_a_hundred_blocks() {
    let mined_at = |height| CoinRef { height, coinbase: true, ..coin(70) };
    assert_eq!(spend(1, &[mined_at(HEIGHT - 100)], &[70]), Ok(0));
    for height in [HEIGHT - 99, HEIGHT, HEIGHT + 1, u32::MAX] {
        let result = spend(2, &[coin(1), mined_at(height)], &[70]);
        assert!(matches!(result, Err(SpendError::PrematureSpend { vin: 1, coin_height, .. })
            if coin_height == height));
        assert_eq!(reason(result), "bad-txns-premature-spend-of-coinbase");
    }
}

#[test]
fn no_input_and_no_sum_of_inputs_exceeds_the_supply() {
    for coins in [
        [coin(MAX_MONEY + 1), coin(0)],
        [coin(1), coin(MAX_MONEY)],
        [coin(u64::MAX), coin(0)],
        [coin(1), coin(u64::MAX)],
    ] {
        assert_eq!(reason(spend(2, &coins, &[1])), "bad-txns-inputvalues-outofrange");
    }
}

#[test]
fn outputs_are_not_worth_more_than_inputs() {
    let error = spend(2, &[coin(70), coin(30)], &[41, 60]).unwrap_err();
    let (value_in, value_out) = (100, 101);
    let expected = SpendError::InBelowOut { tx: 3, txid: Txid([9; 32]), value_in, value_out };
    assert_eq!(error, expected);
    assert_eq!(error.reason(), "bad-txns-in-belowout");
}

/// A checked transaction has no such amounts, but they must never become money.
#[test]
fn amounts_out_of_range_are_never_paid_out() {
    for amounts in [&[u64::MAX][..], &[50, (-50i64) as u64], &[i64::MAX as u64; 3], &[u64::MAX; 2]]
    {
        assert_eq!(reason(spend(1, &[coin(70)], amounts)), "bad-txns-in-belowout");
    }
}

/// Maturity and amount of one coin are checked before the next coin (Core `CheckTxInputs`).
#[test]
fn the_first_bad_coin_decides() {
    let young = CoinRef { coinbase: true, ..coin(1) };
    let rich = coin(MAX_MONEY + 1);
    assert_eq!(reason(spend(2, &[young, rich], &[1])), "bad-txns-premature-spend-of-coinbase");
    assert_eq!(reason(spend(2, &[rich, young], &[1])), "bad-txns-inputvalues-outofrange");
    let both = CoinRef { coinbase: true, ..rich };
    assert_eq!(reason(spend(1, &[both], &[1])), "bad-txns-premature-spend-of-coinbase");
}

fn any_amount() -> impl Strategy<Value = u64> {
    prop_oneof![0..10u64, 0..=MAX_MONEY, MAX_MONEY - 5..=MAX_MONEY + 5, any::<u64>()]
}

proptest! {
    #[test]
    fn fees_match_unbounded_arithmetic(
        coins in vec(any_amount(), 1..4),
        amounts in vec(prop_oneof![0..10u64, 0..=MAX_MONEY], 1..4),
    ) {
        let coins: Vec<_> = coins.into_iter().map(coin).collect();
        let most = i128::from(MAX_MONEY);
        let sums = coins.iter().scan(0i128, |sum, coin| {
            *sum += i128::from(coin.amount);
            Some(*sum)
        });
        let value_in = sums.clone().last().unwrap();
        let value_out: i128 = amounts.iter().map(|&amount| i128::from(amount)).sum();
        let expected = if sums.max().unwrap() > most {
            Err("bad-txns-inputvalues-outofrange")
        } else if value_in < value_out {
            Err("bad-txns-in-belowout")
        } else {
            Ok((value_in - value_out) as u64)
        };
        let result = spend(coins.len() as u32, &coins, &amounts);
        prop_assert_eq!(result.map_err(|error| error.reason()), expected);
    }
}

// ---- the totals of a block, on both sides of each limit ----

#[test]
fn fees_stop_at_the_supply() {
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
fn a_coinbase_gets_at_most_subsidy_and_fees() {
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
