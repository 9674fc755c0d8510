//! Targets and work: [`U256`], the compact form of a target, and the amount of hashing that a target
//! represents.
//!
//! The arithmetic is Core's `arith_uint256`, including its wrapping. It has only the operations that proof of
//! work needs; this is not a general big-number library.
//!
//! **Work is kept in 128 bits.** The work of one header is below 2^128 unless its target is below
//! 2^128. In that case its hash, which was checked first, starts with 128 zero bits, and finding
//! one is as hard as a second preimage. The whole main chain has less than 2^97. Sums saturate, so
//! that more work never compares as less even then.

use crate::hashes::BlockHash;

/// An unsigned number of 256 bits, least significant limb first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct U256([u64; 4]);

/// A decoded compact target (Core `arith_uint256::SetCompact`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compact {
    /// The absolute value, its low 256 bits.
    pub value: U256,
    /// Whether the sign bit is set on a number that is not zero.
    pub negative: bool,
    /// Whether the number has more than 256 bits.
    pub overflow: bool,
}

impl U256 {
    /// Zero.
    pub const ZERO: Self = Self([0; 4]);
    /// One.
    pub const ONE: Self = Self([1, 0, 0, 0]);

    /// Reads 32 bytes, least significant first, for comparing a hash with a target.
    pub const fn from_le_bytes(bytes: &[u8; 32]) -> Self {
        let mut limbs = [0u64; 4];
        let mut i = 0;
        while i < 32 {
            limbs[i / 8] |= (bytes[i] as u64) << (8 * (i % 8));
            i += 1;
        }
        Self(limbs)
    }

    /// Returns the number whose low 32 bits are `value`.
    pub const fn from_u32(value: u32) -> Self {
        Self([value as u64, 0, 0, 0])
    }

    /// Reads a compact target exactly as Core does: accepts every form and reports anomalies in
    /// flags (Core `arith_uint256.cpp`, `SetCompact`).
    pub const fn from_compact(bits: u32) -> Compact {
        let size = bits >> 24;
        let mut word = bits & 0x007f_ffff;
        let value = if size <= 3 {
            word >>= 8 * (3 - size);
            Self::from_u32(word)
        } else {
            Self::from_u32(word).shl(8 * (size - 3))
        };
        Compact {
            value,
            negative: word != 0 && bits & 0x0080_0000 != 0,
            overflow: word != 0
                && (size > 34 || (word > 0xff && size > 33) || (word > 0xffff && size > 32)),
        }
    }

    /// Returns the compact form, rounded down to its three bytes (Core `arith_uint256.cpp`,
    /// `GetCompact`).
    pub const fn to_compact(self) -> u32 {
        let mut size = self.bit_length().div_ceil(8);
        let mut compact = if size <= 3 {
            (self.0[0] << (8 * (3 - size))) as u32
        } else {
            self.shr(8 * (size - 3)).0[0] as u32
        };
        // This bit is the sign. If it is set, move a byte into the exponent.
        if compact & 0x0080_0000 != 0 {
            compact >>= 8;
            size += 1;
        }
        compact | size << 24
    }

    /// Returns the number of bits; zero has none.
    pub const fn bit_length(self) -> u32 {
        let mut i = 4;
        while i > 0 {
            i -= 1;
            if self.0[i] != 0 {
                return 64 * i as u32 + 64 - self.0[i].leading_zeros();
            }
        }
        0
    }

    const fn limb(self, index: i64) -> u64 {
        if index >= 0 && index < 4 { self.0[index as usize] } else { 0 }
    }

    const fn shl(self, count: u32) -> Self {
        let (limbs, bits) = ((count / 64) as i64, count % 64);
        let mut out = [0; 4];
        let mut i = 0;
        while i < 4 {
            let at = i as i64 - limbs;
            out[i] = self.limb(at) << bits;
            if bits > 0 {
                out[i] |= self.limb(at - 1) >> (64 - bits);
            }
            i += 1;
        }
        Self(out)
    }

    const fn shr(self, count: u32) -> Self {
        let (limbs, bits) = ((count / 64) as i64, count % 64);
        let mut out = [0; 4];
        let mut i = 0;
        while i < 4 {
            let at = i as i64 + limbs;
            out[i] = self.limb(at) >> bits;
            if bits > 0 {
                out[i] |= self.limb(at + 1) << (64 - bits);
            }
            i += 1;
        }
        Self(out)
    }

    fn wrapping_sub(self, other: Self) -> Self {
        let mut out = [0; 4];
        let mut borrow = false;
        for (i, limb) in out.iter_mut().enumerate() {
            let (difference, first) = self.0[i].overflowing_sub(other.0[i]);
            let (difference, second) = difference.overflowing_sub(u64::from(borrow));
            (*limb, borrow) = (difference, first || second);
        }
        Self(out)
    }

    fn not(self) -> Self {
        Self(self.0.map(|limb| !limb))
    }

    /// Returns the low 256 bits of the product.
    pub fn wrapping_mul_u32(self, factor: u32) -> Self {
        let mut carry = 0u128;
        Self(self.0.map(|limb| {
            let product = u128::from(limb) * u128::from(factor) + carry;
            carry = product >> 64;
            product as u64
        }))
    }

    /// Returns the quotient, rounded down; `None` if `divisor` is zero.
    pub fn checked_div(self, divisor: Self) -> Option<Self> {
        if divisor == Self::ZERO {
            return None;
        }
        let mut quotient = Self::ZERO;
        let mut rest = self;
        // Schoolbook division, bit by bit from the first position where the divisor can fit.
        let places = (self.bit_length() + 1).saturating_sub(divisor.bit_length());
        for place in (0..places).rev() {
            let part = divisor.shl(place);
            if rest >= part {
                rest = rest.wrapping_sub(part);
                quotient.0[place as usize / 64] |= 1 << (place % 64);
            }
        }
        Some(quotient)
    }

    /// Returns the number, or `u128::MAX` if it is larger.
    pub fn saturating_u128(self) -> u128 {
        match self.0 {
            [low, high, 0, 0] => u128::from(low) | u128::from(high) << 64,
            _ => u128::MAX,
        }
    }
}

impl Ord for U256 {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.0.iter().rev().cmp(other.0.iter().rev())
    }
}

impl PartialOrd for U256 {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl core::fmt::Debug for U256 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let [a, b, c, d] = self.0;
        write!(f, "{d:016x}{c:016x}{b:016x}{a:016x}")
    }
}

/// Returns the target that `bits` claims, unless it is negative, zero, too large for 256 bits or
/// easier than `pow_limit` (Core `pow.cpp`, `DeriveTarget`).
pub fn derive_target(bits: u32, pow_limit: U256) -> Option<U256> {
    let Compact { value, negative, overflow } = U256::from_compact(bits);
    let in_range = !negative && !overflow && value != U256::ZERO && value <= pow_limit;
    in_range.then_some(value)
}

/// Returns whether `hash` meets the target that `bits` claims (Core `pow.cpp`, `CheckProofOfWork`).
pub fn check_proof_of_work(hash: &BlockHash, bits: u32, pow_limit: U256) -> bool {
    derive_target(bits, pow_limit).is_some_and(|target| U256::from_le_bytes(&hash.0) <= target)
}

/// Returns the average number of hashes to find a block with this target: 2^256 / (target + 1), or
/// 0 for a target that no block can have (Core `chain.cpp`, `GetBitsProof`).
pub fn block_work(bits: u32) -> u128 {
    let Compact { value, negative, overflow } = U256::from_compact(bits);
    if negative || overflow || value == U256::ZERO {
        return 0;
    }
    // 2^256 does not fit, but 2^256 / (t + 1) is (2^256 - t - 1) / (t + 1) + 1, and that dividend is the
    // complement of t.
    let above = value.wrapping_sub(U256::ZERO.not());
    let quotient = value.not().checked_div(above).unwrap_or(U256::ZERO);
    quotient.saturating_u128().saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bitcoin::CompactTarget;
    use bitcoin::pow::Target;
    use proptest::prelude::*;

    fn reference(value: U256) -> Target {
        let mut bytes = [0; 32];
        for (chunk, limb) in bytes.chunks_mut(8).zip(value.0) {
            chunk.copy_from_slice(&limb.to_le_bytes());
        }
        Target::from_le_bytes(bytes)
    }

    fn any_u256() -> impl Strategy<Value = U256> {
        (proptest::array::uniform4(any::<u64>()), 0u32..=256).prop_map(|(a, n)| U256(a).shr(n))
    }

    proptest! {
        #[test]
        fn compact_agrees_with_the_reference(bits in any::<u32>()) {
            let Compact { value, negative, overflow } = U256::from_compact(bits);
            // The reference maps a negative number to zero and does not flag overflow.
            if !negative && !overflow && bits & 0x0080_0000 == 0 && bits >> 24 <= 32 {
                prop_assert_eq!(reference(value), Target::from_compact(CompactTarget::from_consensus(bits)));
            }
        }

        #[test]
        fn compact_rounds_down_and_is_stable(value in any_u256()) {
            let bits = value.to_compact();
            prop_assert_eq!(bits, reference(value).to_compact_lossy().to_consensus());
            let back = U256::from_compact(bits);
            prop_assert!(!back.negative && !back.overflow && back.value <= value);
            prop_assert_eq!(back.value.to_compact(), bits);
        }

        #[test]
        fn work_agrees_with_the_reference(value in any_u256()) {
            let bits = value.to_compact();
            let target = U256::from_compact(bits).value;
            if target != U256::ZERO {
                let work = reference(target).to_work().to_be_bytes();
                let (high, low) = work.split_first_chunk::<16>().unwrap();
                let expected = if *high == [0; 16] {
                    u128::from_be_bytes(low.try_into().unwrap())
                } else {
                    u128::MAX
                };
                prop_assert_eq!(block_work(bits), expected);
            }
        }

        #[test]
        fn quotient_times_divisor_and_rest_is_the_dividend(a in any_u256(), b in 1u32..) {
            let quotient = a.checked_div(U256::from_u32(b)).unwrap();
            let rest = a.wrapping_sub(quotient.wrapping_mul_u32(b));
            prop_assert!(rest < U256::from_u32(b));
            prop_assert!(quotient <= a);
        }

        #[test]
        fn order_matches_the_numbers(a in any_u256(), b in any_u256()) {
            prop_assert_eq!(a.cmp(&b), reference(a).cmp(&reference(b)));
        }

        #[test]
        fn shifts_undo_each_other(a in any_u256(), n in 0u32..300) {
            if a.bit_length() + n <= 256 {
                prop_assert_eq!(a.shl(n).shr(n), a);
            }
            prop_assert_eq!(a.shr(n).bit_length(), a.bit_length().saturating_sub(n));
        }
    }

    #[test]
    fn division_by_zero_returns_none() {
        assert_eq!(U256::ONE.checked_div(U256::ZERO), None);
        assert_eq!(U256::ZERO.checked_div(U256::ONE), Some(U256::ZERO));
    }

    /// Values that follow from the definition, at each of its limits.
    #[test]
    fn compact_targets_match_known_values() {
        for (bits, value, negative, overflow) in [
            (0x0000_0000u32, "0", false, false),
            (0x0012_3456, "0", false, false),
            (0x0180_3456, "0", false, false),
            (0x0112_3456, "12", false, false),
            (0x01fe_dcba, "7e", true, false),
            (0x0212_3456, "1234", false, false),
            (0x0312_3456, "123456", false, false),
            (0x0412_3456, "12345600", false, false),
            (0x0492_3456, "12345600", true, false),
            (0x0500_9234, "92340000", false, false),
            (0x1d00_ffff, "ffff0000000000000000000000000000000000000000000000000000", false, false),
            (
                0x207f_ffff,
                "7fffff0000000000000000000000000000000000000000000000000000000000",
                false,
                false,
            ),
            (
                0x2100_ffff,
                "ffff000000000000000000000000000000000000000000000000000000000000",
                false,
                false,
            ),
            (0x2101_0000, "0", false, true),
            (
                0x2200_00ff,
                "ff00000000000000000000000000000000000000000000000000000000000000",
                false,
                false,
            ),
            (0x2200_0100, "0", false, true),
            (0x2300_0001, "0", false, true),
            (0xff12_3456, "0", false, true),
            (0xff00_0000, "0", false, false),
        ] {
            let got = U256::from_compact(bits);
            assert_eq!(
                format!("{:?}", got.value).trim_start_matches('0'),
                value.trim_start_matches('0'),
                "{bits:08x}"
            );
            assert_eq!((got.negative, got.overflow), (negative, overflow), "{bits:08x}");
        }
    }

    #[test]
    fn work_matches_known_values() {
        assert_eq!(block_work(0x1d00_ffff), 0x1_0001_0001);
        assert_eq!(block_work(0x207f_ffff), 2);
        assert_eq!(block_work(0x0100_0000), 0);
        assert_eq!(block_work(0x0492_3456), 0);
        assert_eq!(block_work(0x2300_0001), 0);
        // A target of one: work above 128 bits saturates.
        assert_eq!(block_work(0x0101_0000), u128::MAX);
    }

    #[test]
    fn proof_of_work_needs_a_target_in_range_and_a_hash_at_most_it() {
        let limit = U256::from_compact(0x1d00_ffff).value;
        let mut at = [0u8; 32];
        at[26..28].copy_from_slice(&[0xff, 0xff]);
        let mut above = at;
        above[0] = 1;
        assert!(check_proof_of_work(&BlockHash(at), 0x1d00_ffff, limit));
        assert!(
            !check_proof_of_work(&BlockHash(above), 0x1d00_ffff, limit),
            "one above the target"
        );
        let low = BlockHash::ZERO;
        assert!(check_proof_of_work(&low, 0x0312_3456, limit));
        for (bits, why) in [
            (0x0492_3456, "negative"),
            (0x0000_0000, "zero"),
            (0xff12_3456, "overflow"),
            (0x1d01_0000, "above the limit"),
        ] {
            assert!(!check_proof_of_work(&low, bits, limit), "{why}");
        }
    }
}
