//! Amounts of money: the range that consensus allows, Core's compressed form, and the amount that a block may
//! create.
//!
//! An amount is a `u64` in satoshi. The compressed form exists because most amounts end in zeros.
//! Each amount that fits 64 bits has exactly one compressed form, and [`decompress_amount`] rejects
//! compressed forms that stand for no such amount. Callers compute sums themselves.
//!
//! The upper bound on the supply ignores burnt fees and unclaimed rewards: the real supply may be
//! lower, never higher.

use crate::header::Height;
use core::num::NonZeroU32;

/// Satoshi in one bitcoin (Core `consensus/amount.h`, `COIN`).
pub const COIN: u64 = 100_000_000;

/// The maximum for an amount and for a sum of outputs (Core `consensus/amount.h`, `MAX_MONEY`).
pub const MAX_MONEY: u64 = 21_000_000 * COIN;

/// Returns whether consensus allows the amount (Core `consensus/amount.h`, `MoneyRange`).
pub const fn money_range(amount: u64) -> bool {
    amount <= MAX_MONEY
}

/// The maximum number of trailing zeros that the compressed form removes.
const ZEROS_MAX: u64 = 9;

/// Compresses an amount (Core `compressor.cpp`, `CompressAmount`).
///
/// Defined for `0..=MAX_MONEY`; above `u64::MAX / 9` the result would not fit and wraps, as in
/// Core.
pub const fn compress_amount(amount: u64) -> u64 {
    if amount == 0 {
        return 0;
    }
    let (mut rest, mut zeros) = (amount, 0);
    while zeros < ZEROS_MAX && rest.is_multiple_of(10) {
        rest /= 10;
        zeros += 1;
    }
    let head = if zeros < ZEROS_MAX {
        // The last digit is 1 to 9, so base nine is enough for it.
        (rest / 10).wrapping_mul(9).wrapping_add(rest % 10 - 1)
    } else {
        rest - 1
    };
    head.wrapping_mul(10).wrapping_add(zeros).wrapping_add(1)
}

/// Decompresses an amount (Core `compressor.cpp`, `DecompressAmount`); `None` if it does not fit 64
/// bits.
///
/// Core lets the multiplication wrap there. Core never writes such a number, and a wrapped one
/// could pass for a valid amount, so this function rejects it.
pub const fn decompress_amount(short: u64) -> Option<u64> {
    if short == 0 {
        return Some(0);
    }
    let (head, zeros) = ((short - 1) / 10, (short - 1) % 10);
    let rest = if zeros < ZEROS_MAX {
        // Below 2^64, since the head is at most u64::MAX / 10.
        head / 9 * 10 + head % 9 + 1
    } else {
        head + 1
    };
    rest.checked_mul(10u64.pow(zeros as u32))
}

/// A compressed amount up to this fits 64 bits, regardless of its digits: they are at most a tenth of it,
/// followed by nine zeros. Coins hardly ever have a higher one.
pub(crate) const SHORT_FITS: u64 = u64::MAX / 1_000_000_000 * 10 - 10;

/// The reward before the first halving.
const FIRST_SUBSIDY: u64 = 50 * COIN;

/// Returns the new satoshi that a block at this height may create (Core `validation.cpp`,
/// `GetBlockSubsidy`). `interval` is
/// [`Params::subsidy_halving_interval`](crate::Params::subsidy_halving_interval).
pub const fn block_subsidy(height: Height, interval: NonZeroU32) -> u64 {
    let halvings = height / interval.get();
    if halvings >= u64::BITS { 0 } else { FIRST_SUBSIDY >> halvings }
}

/// Returns the maximum supply after the block at this height, in satoshi: the subsidies of heights 1 to
/// `height`. The genesis block's subsidy does not count, because it was never spendable. Saturates, but no
/// chain comes near that.
pub fn max_supply(height: Height, interval: NonZeroU32) -> u64 {
    let blocks = |from: u64, to: u64| to.saturating_sub(from);
    let (interval_u64, end) = (u64::from(interval.get()), u64::from(height) + 1);
    (0..u64::from(u64::BITS)).fold(0u64, |supply, era| {
        // The heights of this era, from 1 up to `height`.
        let from = (era * interval_u64).max(1);
        let to = ((era + 1) * interval_u64).min(end);
        supply.saturating_add(blocks(from, to).saturating_mul(FIRST_SUBSIDY >> era))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{Network, Params};
    use proptest::prelude::*;

    #[test]
    fn compressed_amounts_up_to_the_bound_always_fit() {
        for short in (0..100_000).chain(SHORT_FITS - 100_000..=SHORT_FITS) {
            assert!(decompress_amount(short).is_some(), "{short}");
        }
        assert!((SHORT_FITS + 1..SHORT_FITS + 40).any(|short| decompress_amount(short).is_none()));
    }

    #[test]
    fn published_vectors_match() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../fixtures/bip-vectors/compressed_amount.json"
        );
        let text = std::fs::read_to_string(path).unwrap();
        let rows: Vec<(u64, String)> = serde_json::from_str(&text).unwrap();
        assert!(rows.len() >= 6);
        for (amount, hex) in rows {
            let short = u64::from_str_radix(hex.trim_start_matches("0x"), 16).unwrap();
            assert_eq!(compress_amount(amount), short);
            assert_eq!(decompress_amount(short), Some(amount));
        }
    }

    #[test]
    fn the_limit_is_inside_the_range() {
        assert_eq!(MAX_MONEY, 2_100_000_000_000_000);
        assert!(money_range(MAX_MONEY) && !money_range(MAX_MONEY + 1));
    }

    #[test]
    fn compressed_amounts_beyond_64_bits_are_rejected() {
        // 1 + 10 * (n - 1) + 9 stands for n * 10^9.
        let greatest = u64::MAX / 1_000_000_000;
        assert_eq!(decompress_amount(greatest * 10), Some(greatest * 1_000_000_000));
        assert_eq!(decompress_amount((greatest + 1) * 10), None);
        assert_eq!(decompress_amount(u64::MAX), None);
    }

    proptest! {
        #[test]
        fn every_amount_round_trips(digits in 0..=MAX_MONEY, zeros in 0u32..16) {
            let ten = 10u64.pow(zeros);
            let amount = digits / ten * ten;
            prop_assert_eq!(decompress_amount(compress_amount(amount)), Some(amount));
        }

        #[test]
        fn no_amount_has_two_short_forms(short in any::<u64>(), shift in 0u32..64) {
            let short = short >> shift;
            if let Some(amount) = decompress_amount(short)
                && money_range(amount)
            {
                prop_assert_eq!(compress_amount(amount), short);
            }
        }
    }

    const MAIN: NonZeroU32 = NonZeroU32::new(210_000).unwrap();

    #[test]
    fn the_subsidy_halves_at_each_interval_and_ends() {
        for (height, subsidy) in [
            (0, 5_000_000_000),
            (209_999, 5_000_000_000),
            (210_000, 2_500_000_000),
            (420_000, 1_250_000_000),
            (840_000, 312_500_000),
            (6_929_999, 1),
            (6_930_000, 0),
            (64 * 210_000, 0),
            (u32::MAX, 0),
        ] {
            assert_eq!(block_subsidy(height, MAIN), subsidy, "{height}");
        }
        assert_eq!(
            block_subsidy(150, Params::of(Network::Regtest).subsidy_halving_interval),
            2_500_000_000
        );
    }

    #[test]
    fn the_supply_matches_known_values() {
        assert_eq!(max_supply(0, MAIN), 0);
        assert_eq!(max_supply(1, MAIN), 5_000_000_000);
        assert_eq!(max_supply(4_521, MAIN), 4_521 * 5_000_000_000);
        assert_eq!(max_supply(209_999, MAIN), 209_999 * 5_000_000_000);
        assert_eq!(max_supply(210_000, MAIN), 209_999 * 5_000_000_000 + 2_500_000_000);
        // The final supply, without the genesis block's subsidy.
        assert_eq!(max_supply(u32::MAX, MAIN), 2_099_999_997_690_000 - 5_000_000_000);
        assert_eq!(max_supply(u32::MAX, NonZeroU32::MAX), u64::MAX, "saturates");
    }

    proptest! {
        #[test]
        fn supply_is_the_sum_of_subsidies(height in 0u32..20_000, interval in 1u32..300) {
            let interval = NonZeroU32::new(interval).unwrap();
            let sum: u64 = (1..=height).map(|h| block_subsidy(h, interval)).sum();
            prop_assert_eq!(max_supply(height, interval), sum);
        }

        #[test]
        fn each_block_adds_its_subsidy(height in 1u32..=10_000_000) {
            prop_assert_eq!(
                max_supply(height, MAIN) - max_supply(height - 1, MAIN),
                block_subsidy(height, MAIN)
            );
        }
    }
}
