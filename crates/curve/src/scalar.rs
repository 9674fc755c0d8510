//! [`Scalar`]: an integer modulo n, the order of secp256k1 (SEC 2, section 2.4.1), always fully
//! reduced; and its split into two halves for the endomorphism (Gallant, Lambert and Vanstone,
//! 2001).
//!
//! Numbers are four words, the least significant first. Nothing here is secret, so nothing takes
//! constant time.

use crate::field::{U256, from_bytes, is_less};

/// The order of the group.
pub(crate) const N: U256 =
    [0xBFD2_5E8C_D036_4141, 0xBAAE_DCE6_AF48_A03B, 0xFFFF_FFFF_FFFF_FFFE, u64::MAX];
/// `2^256 - n`.
const FOLD: [u64; 3] = [0x402D_A173_2FC9_BEBF, 0x4551_2319_50B7_5FC4, 1];
/// `(n - 1) / 2`.
const HALF: U256 = [0xDFE9_2F46_681B_20A0, 0x5D57_6E73_57A4_501D, u64::MAX, 0x7FFF_FFFF_FFFF_FFFF];

/// An integer modulo n, less than n.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scalar(U256);

/// `a + b + carry`; the new carry is 0 or 1.
#[inline(always)]
fn add_word(a: u64, b: u64, carry: &mut u64) -> u64 {
    let sum = u128::from(a) + u128::from(b) + u128::from(*carry);
    *carry = (sum >> 64) as u64;
    sum as u64
}

/// `a + b * c + carry`, which fits two words for any four words.
#[inline(always)]
fn add_product(a: u64, b: u64, c: u64, carry: &mut u64) -> u64 {
    let sum = u128::from(a) + u128::from(b) * u128::from(c) + u128::from(*carry);
    *carry = (sum >> 64) as u64;
    sum as u64
}

/// `a - b` modulo 2^256.
#[inline(always)]
fn sub_256(a: &U256, b: &U256) -> U256 {
    let (mut out, mut borrow) = ([0; 4], false);
    for i in 0..4 {
        let (difference, first) = a[i].overflowing_sub(b[i]);
        let (difference, second) = difference.overflowing_sub(u64::from(borrow));
        (out[i], borrow) = (difference, first | second);
    }
    out
}

/// `a * b`.
#[inline(always)]
fn product(a: &U256, b: &U256) -> [u64; 8] {
    let mut out = [0; 8];
    for i in 0..4 {
        let mut carry = 0;
        for j in 0..4 {
            out[i + j] = add_product(out[i + j], a[i], b[j], &mut carry);
        }
        out[i + 4] = carry;
    }
    out
}

/// Replaces `high * 2^256` by `high * (2^256 - n)`, for the first H words of `high`; the rest are
/// 0.
#[inline(always)]
fn fold<const H: usize>(wide: &[u64; 8]) -> [u64; 8] {
    debug_assert!(wide[4 + H..].iter().all(|word| *word == 0), "a number too long");
    let mut out = [wide[0], wide[1], wide[2], wide[3], 0, 0, 0, 0];
    for i in 0..H {
        let mut carry = 0;
        for j in 0..3 {
            out[i + j] = add_product(out[i + j], wide[4 + i], FOLD[j], &mut carry);
        }
        for word in &mut out[i + 3..] {
            *word = add_word(*word, 0, &mut carry);
        }
    }
    out
}

/// `x + above * 2^256` modulo n, for a number below 2n.
#[inline(always)]
fn reduce_once(x: U256, above: u64) -> Scalar {
    let mut carry = 0;
    let folded = [
        add_word(x[0], FOLD[0], &mut carry),
        add_word(x[1], FOLD[1], &mut carry),
        add_word(x[2], FOLD[2], &mut carry),
        add_word(x[3], 0, &mut carry),
    ];
    Scalar(if carry + above != 0 { folded } else { x })
}

impl Scalar {
    pub(crate) const ZERO: Self = Self([0; 4]);
    pub(crate) const ONE: Self = Self([1, 0, 0, 0]);

    pub(crate) fn of_u128(number: u128) -> Self {
        Self([number as u64, (number >> 64) as u64, 0, 0])
    }

    /// The number modulo n, of 32 bytes, the most significant first.
    pub(crate) fn from_bytes_reduced(bytes: &[u8; 32]) -> Self {
        reduce_once(from_bytes(bytes), 0)
    }

    /// `None` unless the number is less than n.
    pub(crate) fn from_bytes(bytes: &[u8; 32]) -> Option<Self> {
        let number = from_bytes(bytes);
        is_less(&number, &N).then_some(Self(number))
    }

    pub(crate) fn number(&self) -> U256 {
        self.0
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.0 == [0; 4]
    }

    /// Whether the number exceeds `(n - 1) / 2`; BIP-146 calls such an S high.
    pub(crate) fn is_high(&self) -> bool {
        is_less(&HALF, &self.0)
    }

    pub(crate) fn neg(&self) -> Self {
        if self.is_zero() { *self } else { Self(sub_256(&N, &self.0)) }
    }

    #[inline(always)]
    pub(crate) fn add(&self, other: &Self) -> Self {
        let (mut sum, mut carry) = ([0; 4], 0);
        for (sum, (a, b)) in sum.iter_mut().zip(self.0.iter().zip(&other.0)) {
            *sum = add_word(*a, *b, &mut carry);
        }
        reduce_once(sum, carry)
    }

    /// The number with one of its lowest 64 bits flipped, modulo n.
    pub(crate) fn with_flipped_bit(&self, bit: u64) -> Self {
        let [word, rest @ ..] = self.0;
        let [x1, x2, x3] = rest;
        reduce_once([word ^ 1 << (bit % 64), x1, x2, x3], 0)
    }

    /// After the folds, the number is below 2^386, 2^260 and 2^256 + 2^134.
    #[inline(always)]
    pub(crate) fn mul(&self, other: &Self) -> Self {
        let [x0, x1, x2, x3, above, ..] =
            fold::<1>(&fold::<3>(&fold::<4>(&product(&self.0, &other.0))));
        reduce_once([x0, x1, x2, x3], above)
    }

    /// `self^(n - 2)`: the inverse by Fermat's little theorem, 0 for 0.
    fn inverse(&self) -> Self {
        let exponent = sub_256(&N, &[2, 0, 0, 0]);
        let mut power = Self::ONE;
        for bit in (0..256).rev() {
            power = power.mul(&power);
            if exponent[bit / 64] >> (bit % 64) & 1 == 1 {
                power = power.mul(self);
            }
        }
        power
    }
}

/// Inverts each number. None may be zero. Takes three multiplications for each and one inversion
/// (Montgomery's trick).
pub(crate) fn invert_all(scalars: &mut [Scalar]) {
    let mut before = Vec::with_capacity(scalars.len());
    let mut product = Scalar::ONE;
    for scalar in scalars.iter() {
        debug_assert!(!scalar.is_zero(), "zero has no inverse");
        before.push(product);
        product = product.mul(scalar);
    }
    let mut inverse = product.inverse();
    for (scalar, before) in scalars.iter_mut().zip(before).rev() {
        (*scalar, inverse) = (inverse.mul(&before), inverse.mul(scalar));
    }
}

/// A number between -2^128 and 2^128, exclusive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Half {
    pub(crate) is_negative: bool,
    pub(crate) magnitude: u128,
}

// The constants of libsecp256k1's `secp256k1_scalar_split_lambda` (`scalar_impl.h`), which proves
// that both halves are below 2^128. The short vectors are (A1, -MINUS_B1) and (2^128 + A2_LOW, A1).
const A1: u128 = 0x3086_D221_A7D4_6BCD_E86C_90E4_9284_EB15;
const MINUS_B1: u128 = 0xE443_7ED6_010E_8828_6F54_7FA9_0ABF_E4C3;
const A2_LOW: u128 = 0x14CA_50F7_A8E2_F3F6_57C1_108D_9D44_CFD8;
/// `2^384 * A1 / n`, rounded.
const G1: U256 =
    [0xE893_209A_45DB_B031, 0x3DAA_8A14_71E8_CA7F, 0xE86C_90E4_9284_EB15, 0x3086_D221_A7D4_6BCD];
/// `2^384 * MINUS_B1 / n`, rounded.
const G2: U256 =
    [0x1571_B4AE_8AC4_7F71, 0x2212_08AC_9DF5_06C6, 0x6F54_7FA9_0ABF_E4C4, 0xE443_7ED6_010E_8828];

/// `a * b / 2^384`, rounded; the result is below 2^128.
#[inline(always)]
fn high_of_product(a: &U256, b: &U256) -> u128 {
    let wide = product(a, b);
    let high = u128::from(wide[6]) | u128::from(wide[7]) << 64;
    high + u128::from(wide[5] >> 63)
}

#[inline(always)]
fn product_128(a: u128, b: u128) -> U256 {
    let [x0, x1, x2, x3, ..] =
        product(&[a as u64, (a >> 64) as u64, 0, 0], &[b as u64, (b >> 64) as u64, 0, 0]);
    [x0, x1, x2, x3]
}

/// Reads a number in two's complement. `None` if it does not fit, which the proof excludes.
#[inline(always)]
fn half(number: &U256) -> Option<Half> {
    let is_negative = number[3] >> 63 == 1;
    let [low, high, 0, 0] = (if is_negative { sub_256(&[0; 4], number) } else { *number }) else {
        return None;
    };
    Some(Half { is_negative, magnitude: u128::from(low) | u128::from(high) << 64 })
}

/// Splits k into k1 and k2 with `k ≡ k1 + k2 * λ` modulo n, where `λ * (x, y) = (β * x, y)` for
/// each point.
#[inline(always)]
pub(crate) fn split(k: &Scalar) -> Option<(Half, Half)> {
    let (c1, c2) = (high_of_product(&k.0, &G1), high_of_product(&k.0, &G2));
    let [x0, x1, x2, x3] = product_128(c2, A2_LOW);
    // c2 * (2^128 + A2_LOW), modulo 2^256.
    let upper = (u128::from(x2) | u128::from(x3) << 64).wrapping_add(c2);
    let c2_a2 = [x0, x1, upper as u64, (upper >> 64) as u64];
    let k1 = sub_256(&sub_256(&k.0, &product_128(c1, A1)), &c2_a2);
    let k2 = sub_256(&product_128(c1, MINUS_B1), &product_128(c2, A1));
    Some((half(&k1)?, half(&k2)?))
}

/// Writes signed digits d with `half = Σ d[i] * 2^(width * i)` and `|d[i]| ≤ 2^(width - 1)`. The
/// digits need room for 128 bits and a carry.
#[inline(always)]
pub(crate) fn signed_digits(half: &Half, width: u32, digits: &mut [i16]) {
    debug_assert!(digits.len() as u32 * width > 128, "no room for the last carry");
    let (mut rest, mut carry) = (half.magnitude, 0);
    for digit in digits {
        let value = (rest & ((1 << width) - 1)) as i16 + carry;
        rest >>= width;
        carry = i16::from(value > 1 << (width - 1));
        let value = value - (carry << width);
        *digit = if half.is_negative { -value } else { value };
    }
}
