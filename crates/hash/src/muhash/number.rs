//! Numbers modulo the prime 2^3072 - 1103717.
//!
//! A [`Num3072`] is always fully reduced, so equal numbers have equal limbs. Not constant-time:
//! nothing hashed here is secret.

pub(super) use super::inverse::PRIME_DIFF;
use super::{BLOCK_BYTES, block, inverse};

/// The length of a number in bytes.
const SIZE: usize = Num3072::SIZE;

/// The number of 64-bit limbs.
const LIMBS: usize = 48;
const HALF: usize = LIMBS / 2;

/// A number below the modulus, least significant limb first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Num3072([u64; LIMBS]);

impl Num3072 {
    /// The length of a number in bytes.
    pub const SIZE: usize = 384;

    /// The number one.
    pub const ONE: Self = {
        let mut limbs = [0; LIMBS];
        limbs[0] = 1;
        Self(limbs)
    };

    /// Computes the number of a key: the first 384 bytes of its ChaCha20 key stream (Core
    /// `crypto/muhash.cpp`, `ToNum3072`, where the key is the SHA-256 of an element).
    pub fn of_key(key: &[u8; 32]) -> Self {
        let mut bytes = [0; SIZE];
        for (counter, chunk) in (0..).zip(bytes.as_chunks_mut::<BLOCK_BYTES>().0) {
            *chunk = block(key, counter, [0; 3]);
        }
        Self::from_bytes(&bytes)
    }

    /// Computes the number with the digits `digits` in base 2^`bits`, least significant first. Digits may be
    /// slightly too wide for their base. Together they have at least 3072 bits, and only a few more.
    pub(super) fn from_digits(bits: u32, digits: impl Iterator<Item = u64>) -> Self {
        let mut limbs = [0; LIMBS];
        let (mut pending, mut filled, mut done) = (0u128, 0, 0);
        for digit in digits {
            pending += u128::from(digit) << filled;
            filled += bits;
            if filled >= 64 {
                limbs[done] = pending as u64;
                pending >>= 64;
                filled -= 64;
                done += 1;
            }
        }
        debug_assert!(done == LIMBS && pending < 1 << 32);
        // The remainder counts multiples of 2^3072, each worth PRIME_DIFF.
        if add_small(&mut limbs, pending as u64 * PRIME_DIFF) {
            add_small(&mut limbs, PRIME_DIFF);
        }
        let mut number = Self(limbs);
        number.reduce_once();
        number
    }

    /// Reads any 384 bytes, little-endian, and reduces them.
    pub fn from_bytes(bytes: &[u8; SIZE]) -> Self {
        let mut limbs = [0; LIMBS];
        for (limb, bytes) in limbs.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *limb = u64::from_le_bytes(*bytes);
        }
        let mut number = Self(limbs);
        number.reduce_once();
        number
    }

    /// Parses the form that [`to_bytes`](Self::to_bytes) returns; `None` if the number is zero or not below
    /// the modulus.
    pub fn from_canonical(bytes: &[u8; SIZE]) -> Option<Self> {
        let number = Self::from_bytes(bytes);
        (number.0 != [0; LIMBS] && number.to_bytes() == *bytes).then_some(number)
    }

    /// Returns the number as 384 bytes, little-endian.
    pub fn to_bytes(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        for (bytes, limb) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.0) {
            *bytes = limb.to_le_bytes();
        }
        bytes
    }

    /// Subtracts the modulus from a number that is not below it, once: 2^3072 is less than twice the modulus.
    fn reduce_once(&mut self) {
        let above = self.0[0] >= PRIME_DIFF.wrapping_neg()
            && self.0[1..].iter().all(|&limb| limb == u64::MAX);
        if above {
            // Adding the difference and dropping bit 3072 has the same result.
            add_small(&mut self.0, PRIME_DIFF);
        }
    }

    /// `self *= other`.
    pub fn multiply(&mut self, other: &Self) {
        let mut low = [0; LIMBS];
        let mut high = [0; LIMBS];
        product(&self.0, &other.0, &mut low, &mut high);

        // 2^3072 is PRIME_DIFF modulo the prime: fold the upper half onto the lower.
        let mut carry = 0;
        for (low, high) in low.iter_mut().zip(high) {
            (*low, carry) = multiply_add(high, PRIME_DIFF, *low, carry);
        }
        // The rest is at most PRIME_DIFF. Folding it can carry once more, but then the lower limbs are small.
        let fold = carry * PRIME_DIFF;
        if add_small(&mut low, fold) {
            add_small(&mut low, PRIME_DIFF);
        }
        self.0 = low;
        self.reduce_once();
    }

    /// The multiplicative inverse; zero for zero.
    pub fn inverse(&self) -> Self {
        let digits = inverse::inverse(self.to_signed());
        // If the last digit is not negative, none is negative.
        Self::from_digits(inverse::STEPS, digits.into_iter().map(|digit| digit as u64))
    }

    /// Converts the number to signed limbs of fewer bits.
    fn to_signed(&self) -> inverse::SignedNumber {
        let limb = |at: usize| u128::from(self.0.get(at).copied().unwrap_or(0));
        core::array::from_fn(|i| {
            let bit = i * inverse::STEPS as usize;
            let pair = limb(bit / 64) | limb(bit / 64 + 1) << 64;
            (pair >> (bit % 64)) as i64 & ((1 << inverse::STEPS) - 1)
        })
    }
}

/// Returns `a * b + c + d` as a low and a high part; it cannot overflow.
#[inline(always)]
fn multiply_add(a: u64, b: u64, c: u64, d: u64) -> (u64, u64) {
    let sum = u128::from(a) * u128::from(b) + u128::from(c) + u128::from(d);
    (sum as u64, (sum >> 64) as u64)
}

/// Adds one limb; returns whether it carries out at the top.
fn add_small(limbs: &mut [u64], value: u64) -> bool {
    let mut carry = value;
    for limb in limbs {
        let (sum, over) = limb.overflowing_add(carry);
        *limb = sum;
        carry = u64::from(over);
        if !over {
            return false;
        }
    }
    carry != 0
}

/// `out += other`; returns the carry.
#[inline(always)]
fn add(out: &mut [u64], other: &[u64]) -> bool {
    let mut carry = false;
    for (out, &other) in out.iter_mut().zip(other) {
        let (sum, over) = out.overflowing_add(other);
        let (sum, over_again) = sum.overflowing_add(u64::from(carry));
        *out = sum;
        carry = over | over_again;
    }
    carry
}

/// `out -= other`; returns the borrow.
#[inline(always)]
fn subtract(out: &mut [u64], other: &[u64]) -> bool {
    let mut borrow = false;
    for (out, &other) in out.iter_mut().zip(other) {
        let (rest, under) = out.overflowing_sub(other);
        let (rest, under_again) = rest.overflowing_sub(u64::from(borrow));
        *out = rest;
        borrow = under | under_again;
    }
    borrow
}

/// Computes `|a - b|`; returns whether `a` is smaller.
#[inline(always)]
fn distance(a: &[u64; HALF], b: &[u64; HALF]) -> ([u64; HALF], bool) {
    let mut rest = *a;
    let negative = subtract(&mut rest, b);
    if negative {
        rest = *b;
        subtract(&mut rest, a);
    }
    (rest, negative)
}

/// Multiplies two halves of a number, six rows of the school method at a time, so that the sum of six rows in
/// a column stays in registers.
#[inline(never)]
fn half_product(a: &[u64; HALF], b: &[u64; HALF]) -> [u64; LIMBS] {
    const ROWS: usize = 6;
    let mut out = [0; LIMBS];
    for (start, rows) in a.as_chunks::<ROWS>().0.iter().enumerate() {
        let out = &mut out[start * ROWS..][..HALF + ROWS];
        let mut pending = [0; ROWS];
        for (&factor, out) in b.iter().zip(&mut *out) {
            let mut high;
            (*out, high) = multiply_add(rows[0], factor, *out, pending[0]);
            for row in 1..ROWS {
                let low;
                (low, high) = multiply_add(rows[row], factor, high, pending[row]);
                pending[row - 1] = low;
            }
            pending[ROWS - 1] = high;
        }
        out[HALF..].copy_from_slice(&pending);
    }
    out
}

/// Computes the full product with Karatsuba's method, one level deep: three products of halves; the school
/// method needs four.
fn product(a: &[u64; LIMBS], b: &[u64; LIMBS], low: &mut [u64; LIMBS], high: &mut [u64; LIMBS]) {
    let halves = |limbs: &[u64; LIMBS]| {
        let mut halves = [[0; HALF]; 2];
        halves.copy_from_slice(limbs.as_chunks::<HALF>().0);
        halves
    };
    let ([a0, a1], [b0, b1]) = (halves(a), halves(b));
    *low = half_product(&a0, &b0);
    *high = half_product(&a1, &b1);

    // The middle: a0 b1 + a1 b0 = a0 b0 + a1 b1 - (a0 - a1)(b0 - b1), at most 2^3073, never
    // negative; `top` is its bit 3072.
    let ((a, a_negative), (b, b_negative)) = (distance(&a0, &a1), distance(&b0, &b1));
    let cross = half_product(&a, &b);
    let mut middle = *low;
    let mut top = u64::from(add(&mut middle, high));
    if a_negative == b_negative {
        top -= u64::from(subtract(&mut middle, &cross));
    } else {
        top += u64::from(add(&mut middle, &cross));
    }

    // The middle belongs half a number higher.
    let carry = add(&mut low[HALF..], &middle[..HALF]);
    add_small(high, u64::from(carry));
    let carry = add(&mut high[..HALF], &middle[HALF..]);
    add_small(&mut high[HALF..], top + u64::from(carry));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A slow reference: 32-bit digits, the school method, division bit by bit.
    fn oracle(a: &[u8; SIZE], b: &[u8; SIZE]) -> [u8; SIZE] {
        let digits = |bytes: &[u8; SIZE]| -> Vec<u64> {
            bytes.chunks(4).map(|c| u64::from(u32::from_le_bytes(c.try_into().unwrap()))).collect()
        };
        let (a, b) = (digits(a), digits(b));
        let mut product = vec![0u64; 192];
        for (i, a) in a.iter().enumerate() {
            let mut carry = 0;
            for (j, b) in b.iter().enumerate() {
                let sum = product[i + j] + a * b + carry;
                product[i + j] = sum & 0xffff_ffff;
                carry = sum >> 32;
            }
            product[i + 96] = carry;
        }
        let mut modulus = vec![0xffff_ffffu64; 97];
        modulus[0] = (1 << 32) - 1_103_717;
        modulus[96] = 0;
        let mut rest = vec![0u64; 97];
        for bit in (0..6144).rev() {
            let mut carry = product[bit / 32] >> (bit % 32) & 1;
            for digit in &mut rest {
                let doubled = *digit << 1 | carry;
                (*digit, carry) = (doubled & 0xffff_ffff, doubled >> 32);
            }
            if rest.iter().rev().ge(modulus.iter().rev()) {
                let mut borrow = 0;
                for (digit, part) in rest.iter_mut().zip(&modulus) {
                    let left = *digit + (1 << 32) - part - borrow;
                    (*digit, borrow) = (left & 0xffff_ffff, 1 - (left >> 32));
                }
            }
        }
        let bytes: Vec<u8> = rest[..96].iter().flat_map(|d| (*d as u32).to_le_bytes()).collect();
        bytes.try_into().unwrap()
    }

    fn multiplied(a: &[u8; SIZE], b: &[u8; SIZE]) -> [u8; SIZE] {
        let mut number = Num3072::from_bytes(a);
        number.multiply(&Num3072::from_bytes(b));
        number.to_bytes()
    }

    /// Makes random bytes with long stretches of zeros and ones, in which carries travel far.
    fn any_bytes() -> impl Strategy<Value = [u8; SIZE]> {
        let piece = prop_oneof![
            Just([0u8; 32]),
            Just([0xff; 32]),
            any::<[u8; 32]>(),
            any::<(u8, usize)>().prop_map(|(value, at)| {
                let mut piece = [0; 32];
                piece[at % 32] = value;
                piece
            }),
        ];
        proptest::collection::vec(piece, 12).prop_map(|pieces| pieces.concat().try_into().unwrap())
    }

    fn modulus_plus(offset: i32) -> [u8; SIZE] {
        let mut bytes = [0xff; SIZE];
        let low = PRIME_DIFF.wrapping_neg().wrapping_add_signed(i64::from(offset));
        bytes[..8].copy_from_slice(&low.to_le_bytes());
        bytes
    }

    fn small(value: u64) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[..8].copy_from_slice(&value.to_le_bytes());
        bytes
    }

    proptest! {
        #[test]
        fn agrees_with_the_slow_way(a in any_bytes(), b in any_bytes()) {
            prop_assert_eq!(multiplied(&a, &b), oracle(&a, &b));
        }
    }

    proptest! {
        #[test]
        fn times_its_inverse_is_one(a in any_bytes()) {
            let number = Num3072::from_bytes(&a);
            prop_assume!(number.0 != [0; LIMBS]);
            let mut one = number.inverse();
            one.multiply(&number);
            prop_assert_eq!(one, Num3072::ONE);
        }
    }

    fn edges() -> [[u8; SIZE]; 10] {
        [
            small(0),
            small(1),
            small(2),
            small(PRIME_DIFF),
            small(u64::MAX),
            modulus_plus(-2),
            modulus_plus(-1),
            modulus_plus(0),
            modulus_plus(1),
            [0xff; SIZE],
        ]
    }

    #[test]
    fn limits_agree_with_the_slow_reference() {
        for a in &edges() {
            for b in &edges() {
                assert_eq!(multiplied(a, b), oracle(a, b));
            }
        }
        assert_eq!(multiplied(&modulus_plus(-1), &modulus_plus(-1)), small(1));
    }

    #[test]
    fn numbers_not_below_the_modulus_are_reduced_and_not_canonical() {
        assert_eq!(Num3072::from_bytes(&modulus_plus(0)).to_bytes(), small(0));
        assert_eq!(Num3072::from_bytes(&[0xff; SIZE]).to_bytes(), small(PRIME_DIFF - 1));
        assert_eq!(Num3072::from_bytes(&modulus_plus(-1)).to_bytes(), modulus_plus(-1));
        for bytes in [small(0), modulus_plus(0), modulus_plus(1), [0xff; SIZE]] {
            assert_eq!(Num3072::from_canonical(&bytes), None);
        }
        assert!(Num3072::from_canonical(&modulus_plus(-1)).is_some());
    }

    #[test]
    fn inverses_of_powers_of_two_and_of_limits_are_right() {
        let powers = (0..3072).map(|bit| {
            let mut power = [0; SIZE];
            power[bit / 8] = 1 << (bit % 8);
            power
        });
        for bytes in powers.chain(edges()) {
            let number = Num3072::from_bytes(&bytes);
            let inverse = number.inverse();
            let mut product = inverse.clone();
            product.multiply(&number);
            if number.0 == [0; LIMBS] {
                assert_eq!(inverse, number);
            } else {
                assert_eq!(product, Num3072::ONE);
            }
        }
    }
}
