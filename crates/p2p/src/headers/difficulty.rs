//! Which changes of difficulty a chain can show, judged without the times of its blocks.

use apus_chain::{Height, Params, U256};

/// A retarget multiplies or divides the target by at most this (Core `pow.cpp`,
/// `CalculateNextWorkRequired`).
const RETARGET_FACTOR_MAX: u32 = 4;

/// Whether a header at `height` may have target `to` after one with target `from` (Core `pow.cpp`,
/// `PermittedDifficultyTransition`). Never false for a valid chain. Chains that allow blocks of
/// minimum difficulty may change to anything.
pub(super) fn permitted_transition(params: &Params, height: Height, from: u32, to: u32) -> bool {
    if params.pow_allow_min_difficulty_blocks {
        return true;
    }
    if !height.is_multiple_of(params.difficulty_adjustment_interval()) {
        return from == to;
    }
    let timespan = params.pow_target_timespan_seconds.get();
    let after = |seconds: u32| {
        let product = U256::from_compact(from).value.wrapping_mul_u32(seconds);
        let target = product.checked_div(U256::from_u32(timespan)).unwrap_or(U256::ZERO);
        // Through the compact form, which rounds, as the rule itself does.
        U256::from_compact(target.min(params.pow_limit).to_compact()).value
    };
    let found = U256::from_compact(to).value;
    let longest = timespan.saturating_mul(RETARGET_FACTOR_MAX);
    (after(timespan / RETARGET_FACTOR_MAX)..=after(longest)).contains(&found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::testing::raw_headers;
    use apus_chain::{Header, Network};

    #[test]
    fn real_chains_only_make_permitted_transitions() {
        for (name, first) in [
            ("main_0_4040.bin", 0),
            ("main_80640_82662.bin", 80_640),
            ("main_191520_193542.bin", 191_520),
        ] {
            let bits: Vec<u32> = raw_headers(name).iter().map(|r| Header::parse(r).bits).collect();
            for (height, pair) in (first + 1..).zip(bits.windows(2)) {
                assert!(permitted_transition(Params::of(Network::Main), height, pair[0], pair[1]));
            }
        }
    }

    #[test]
    fn a_period_keeps_its_target_and_a_retarget_keeps_within_four() {
        let main = Params::of(Network::Main);
        let permitted = |height, to| permitted_transition(main, height, 0x1b04_0000, to);
        assert!(permitted(2015, 0x1b04_0000));
        assert!(!permitted(2015, 0x1b03_ffff), "within a period");
        assert!(permitted(2016, 0x1b10_0000), "four times the target");
        assert!(!permitted(2016, 0x1b10_0001));
        assert!(permitted(2016, 0x1b01_0000), "a quarter of the target");
        assert!(!permitted(2016, 0x1b00_ffff));
        assert!(permitted_transition(main, 2016, 0x1d00_ffff, 0x1d00_ffff), "the limit stays");
        assert!(!permitted_transition(main, 2016, 0x1d00_ffff, 0x1d01_ffff), "above the limit");
    }

    #[test]
    fn anything_goes_where_minimum_difficulty_does() {
        let test4 = Params::of(Network::Testnet4);
        assert!(permitted_transition(test4, 17, 0x1b04_0000, 0x1d00_ffff));
    }
}
