//! Tests the bound on the supply: unspent amounts are at most the sum of all subsidies.

use crate::swiftsync::harness::{Chain, KINDS};
use crate::swiftsync::shapes::{coin, data, mined, pay, pay_to};
use apus_chain::MAX_MONEY;
use apus_sync::engines::pass::Pass;
use apus_sync::engines::swiftsync::SwiftSyncError;
use apus_testkit::chain::{BlockPlan, ChainBuilder};
use bitcoin::TxOut;

const SUBSIDY: u64 = 5_000_000_000;

/// Makes three blocks that leave only `left` of the subsidies unclaimed, and a transaction that spends the
/// first block's output into `outputs`.
fn spends_into(outputs: Vec<TxOut>, left: u64) -> Chain {
    let mut builder = ChainBuilder::new(40);
    let first = mined(&mut builder);
    builder.empty_blocks(1);
    let transactions = vec![builder.spend(&[coin(&first, 0)], outputs)];
    let coinbase_outputs = Some(vec![pay(SUBSIDY - left)]);
    builder.add_plan(BlockPlan { transactions, coinbase_outputs, ..BlockPlan::default() });
    Chain::of(&builder)
}

fn expect_supply_error(chain: &Chain, amount: u128) {
    let (stop, supply) = (chain.stop(), u64::from(chain.stop()) * SUBSIDY);
    for kind in KINDS {
        let error = SwiftSyncError::Supply { amount, supply, stop };
        assert_eq!(chain.run(kind, &chain.hints()), Err(error));
    }
}

#[test]
fn exactly_the_bound_passes_and_one_satoshi_more_does_not() {
    // The sums cannot see amounts: these spends balance with any amounts.
    let right = spends_into(vec![pay(SUBSIDY)], 0);
    assert!(right.run(KINDS[0], &right.hints()).is_ok());
    expect_supply_error(&spends_into(vec![pay(SUBSIDY + 1)], 0), 3 * u128::from(SUBSIDY) + 1);
}

#[test]
fn unspendable_amounts_count() {
    let too_long = |satoshi| pay_to(satoshi, vec![0; 10_001]);
    for lost in [data, too_long] {
        let right = spends_into(vec![pay(SUBSIDY - 7), lost(7)], 0);
        assert!(right.run(KINDS[0], &right.hints()).is_ok());
        let wrong = spends_into(vec![pay(SUBSIDY - 7), lost(8)], 0);
        expect_supply_error(&wrong, 3 * u128::from(SUBSIDY) + 1);
    }
}

#[test]
fn a_coinbase_that_claims_too_much() {
    let mut builder = ChainBuilder::new(41);
    builder.empty_blocks(2);
    let coinbase_outputs = Some(vec![pay(SUBSIDY), pay(1)]);
    builder.add_plan(BlockPlan { coinbase_outputs, ..BlockPlan::default() });
    expect_supply_error(&Chain::of(&builder), 3 * u128::from(SUBSIDY) + 1);
}

#[test]
fn unclaimed_rewards_leave_slack() {
    // The documented limit of this kind of sync.
    let made_up = spends_into(vec![pay(SUBSIDY + 100)], 100);
    assert!(made_up.run(KINDS[0], &made_up.hints()).is_ok());
    expect_supply_error(&spends_into(vec![pay(SUBSIDY + 101)], 100), 3 * u128::from(SUBSIDY) + 1);
}

#[test]
fn the_bound_follows_the_halvings() {
    // Regtest halves after 150 blocks, but the last block claims the subsidy of the one before it.
    let mut builder = ChainBuilder::new(42);
    builder.empty_blocks(149);
    let coinbase_outputs = Some(vec![pay(SUBSIDY)]);
    builder.add_plan(BlockPlan { coinbase_outputs, ..BlockPlan::default() });
    let chain = Chain::of(&builder);
    let supply = 149 * SUBSIDY + SUBSIDY / 2;
    let amount = 150 * u128::from(SUBSIDY);
    let error = SwiftSyncError::Supply { amount, supply, stop: 150 };
    assert_eq!(chain.run(KINDS[0], &chain.hints()), Err(error));
}

/// Makes a chain of two blocks. The second creates `amounts` out of nothing, each in its own transaction
/// because none may create more than [`MAX_MONEY`]; each has an output of that amount, made by `output`, and an
/// output of zero that the next transaction spends.
fn out_of_nothing(amounts: &[u64], output: fn(u64) -> TxOut) -> Chain {
    let mut builder = ChainBuilder::new(43);
    let mut last = mined(&mut builder);
    let mut transactions = Vec::new();
    for &amount in amounts {
        last = builder.spend(&[coin(&last, 0)], vec![pay(0), output(amount)]);
        transactions.push(last.clone());
    }
    let coinbase_outputs = Some(vec![pay(0)]);
    builder.add_plan(BlockPlan { transactions, coinbase_outputs, ..BlockPlan::default() });
    Chain::of(&builder)
}

/// Returns amounts whose sum is 2^64, which is zero in 64 bits.
fn amounts_of_2_64() -> Vec<u64> {
    let total = 1u128 << 64;
    let mut amounts = vec![MAX_MONEY; (total / u128::from(MAX_MONEY)) as usize];
    amounts.push((total % u128::from(MAX_MONEY)) as u64);
    assert_eq!(amounts.iter().map(|&amount| u128::from(amount)).sum::<u128>(), total);
    amounts
}

#[test]
fn coins_of_more_than_64_bits_do_not_wrap() {
    expect_supply_error(&out_of_nothing(&amounts_of_2_64(), pay), 1 << 64);
}

#[test]
fn unspendable_amounts_of_more_than_64_bits_do_not_wrap() {
    expect_supply_error(&out_of_nothing(&amounts_of_2_64(), data), 1 << 64);
}

#[test]
fn coins_and_unspendable_amounts_together_do_not_wrap() {
    fn either(amount: u64) -> TxOut {
        // The full amounts are coins and the odd one is data, so neither sum wraps alone.
        if amount == MAX_MONEY { pay(amount) } else { data(amount) }
    }
    expect_supply_error(&out_of_nothing(&amounts_of_2_64(), either), 1 << 64);
}

#[test]
fn totals_that_no_chain_reaches_are_above_the_bound() {
    // A damaged checkpoint may hold such totals: adding them must not wrap either.
    let chain = spends_into(vec![pay(SUBSIDY)], 0);
    let mut whole = chain.run(KINDS[0], &chain.hints()).unwrap().whole;
    (whole.survivors.amount, whole.unspendable_amount) = (1 << 127, 1 << 127);
    let error = chain.engine(KINDS[0]).conclude(&whole, chain.stop()).unwrap_err();
    let (amount, supply, stop) = (u128::MAX, 3 * SUBSIDY, 3);
    assert_eq!(error, SwiftSyncError::Supply { amount, supply, stop });
}
