//! How much a block may create, and how much there can be at most.
//!
//! The bound ignores fees burnt and rewards not claimed: real supply may be lower, never higher.

use crate::amount::COIN;
use crate::height::Height;
use core::num::NonZeroU32;

/// The reward before the first halving.
const FIRST_SUBSIDY: u64 = 50 * COIN;

/// What a block of this height may create, in satoshi (Core `validation.cpp`, `GetBlockSubsidy`).
/// `interval` is [`Params::subsidy_halving_interval`](crate::Params::subsidy_halving_interval).
pub const fn block_subsidy(height: Height, interval: NonZeroU32) -> u64 {
    let halvings = height / interval.get();
    if halvings >= u64::BITS { 0 } else { FIRST_SUBSIDY >> halvings }
}

/// The most that can exist after the block of this height, in satoshi: the subsidies of heights 1
/// to `height`. The genesis block's is not among them, for it was never spendable. Saturates,
/// which no chain's numbers come near.
pub fn max_supply(height: Height, interval: NonZeroU32) -> u64 {
    let blocks = |from: u64, to: u64| to.saturating_sub(from);
    let (interval_u64, end) = (u64::from(interval.get()), u64::from(height) + 1);
    (0..u64::from(u64::BITS)).fold(0u64, |supply, era| {
        // Heights of this era, from 1 on and up to `height`.
        let from = (era * interval_u64).max(1);
        let to = ((era + 1) * interval_u64).min(end);
        supply.saturating_add(blocks(from, to).saturating_mul(FIRST_SUBSIDY >> era))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Network;
    use crate::params::Params;
    use proptest::prelude::*;

    const MAIN: NonZeroU32 = NonZeroU32::new(210_000).unwrap();

    #[test]
    fn halves_at_each_interval_and_ends() {
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
    fn supply_known_values() {
        assert_eq!(max_supply(0, MAIN), 0);
        assert_eq!(max_supply(1, MAIN), 5_000_000_000);
        assert_eq!(max_supply(4_521, MAIN), 4_521 * 5_000_000_000);
        assert_eq!(max_supply(209_999, MAIN), 209_999 * 5_000_000_000);
        assert_eq!(max_supply(210_000, MAIN), 209_999 * 5_000_000_000 + 2_500_000_000);
        // All there will ever be, without the genesis block's.
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
