//! [`FieldVector`]: a vector of elements of the field of secp256k1, the integers modulo
//! `p = 2^256 - 2^32 - 977` (SEC 2, section 2.4.1), and the powers that inverses and square roots
//! need.
//!
//! A number in memory is four words ([`U256`]), the least significant first. In a register it is a
//! sum of unsigned limbs, reduced lazily, as in libsecp256k1's `field.h`. Two properties bound it:
//!
//! - Its *magnitude* `m`: each limb is at most `m` times (its full width plus a little), so the
//!   number is less than about `m * 2^256`. The magnitude is never stored; each function documents
//!   what it takes and gives.
//! - A *clean* number has limbs of nearly their width except the uppermost, which may be `m` times
//!   as large.
//!
//! | function | takes magnitudes | gives |
//! |---|---|---|
//! | `load`, `load_points`, `splat` | | 1, clean |
//! | `mul`, `square`, `sum_of_products` | see there | 1, clean |
//! | `add` | a, b | a + b |
//! | `sub::<M>` | a, b ≤ M ≤ 7 | a + M + 1 |
//! | `times::<K>` | a | K · a |
//! | `carry` | a ≤ 31 | a, clean |
//! | `carry_for_52` | a ≤ 31 | a, clean where `mul` demands it |
//! | `normalize_weak` | a ≤ 31 | 1, clean |
//! | `store`, `store_points` | a ≤ 7 | |

use crate::words::{Line, MAX_LANES};

/// A number below 2^256, the least significant word first.
pub(crate) type U256 = [u64; 4];

/// The field's prime.
pub(crate) const P: U256 = [0xFFFF_FFFE_FFFF_FC2F, u64::MAX, u64::MAX, u64::MAX];
pub(crate) const ONE: U256 = [1, 0, 0, 0];
/// `2^256 mod p`.
pub(crate) const FOLD: u64 = 0x1_0000_03D1;

/// Reads 32 bytes, the most significant first.
pub(crate) fn from_bytes(bytes: &[u8; 32]) -> U256 {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().rev().zip(bytes.as_chunks().0) {
        *word = u64::from_be_bytes(*bytes);
    }
    words
}

/// Whether `x` is less than `y`.
pub(crate) fn is_less(x: &U256, y: &U256) -> bool {
    x.iter().rev().lt(y.iter().rev())
}

/// A vector of field elements. The module explains magnitudes.
pub(crate) trait FieldVector: Copy {
    /// The number of elements, at most [`MAX_LANES`].
    const LANES: usize;

    /// The same number in each lane.
    fn splat(number: &U256) -> Self;
    /// One number for each lane.
    fn load(numbers: &[U256]) -> Self;
    /// Writes numbers of magnitude ≤ 7, fully reduced.
    fn store(&self, numbers: &mut [U256]);
    /// Coordinates of the first `LANES` points.
    fn load_points(points: &[&Line; MAX_LANES]) -> (Self, Self);
    /// Only their `x`.
    fn load_xs(points: &[&Line; MAX_LANES]) -> Self;
    /// Writes points with coordinates of magnitude ≤ 7 as numbers below 2^256, not fully reduced.
    fn store_points(x: &Self, y: &Self, points: &mut [Line]);

    /// The product. The product of both magnitudes is ≤ 50. IFMA: both factors are clean. AVX2:
    /// both magnitudes are ≤ 7, or the factor is clean, which counts as 1; and the product of both
    /// counts is ≤ 7.
    fn mul(&self, other: &Self) -> Self;
    /// The same for `self * self`.
    fn square(&self) -> Self;
    /// `a * b + c * d`, where the sum of both products obeys the limits of `mul`.
    fn sum_of_products(a: &Self, b: &Self, c: &Self, d: &Self) -> Self;
    /// The sum, of the sum of both magnitudes.
    fn add(&self, other: &Self) -> Self;
    /// `self - other`, computed as `self + (M + 1) * p - other`.
    fn sub<const M: u64>(&self, other: &Self) -> Self;
    /// `self * K`.
    fn times<const K: u64>(&self) -> Self;
    /// Moves each limb's overflow into the next limb. The number stays the same.
    fn carry(&self) -> Self;
    /// `carry`, only in kernels whose `mul` takes nothing but clean numbers.
    fn carry_for_52(&self) -> Self;
    /// Folds what exceeds 2^256, and carries.
    fn normalize_weak(&self) -> Self;
    /// Lanes of `mask` from `one`, the rest from `zero`.
    fn select(mask: u8, zero: &Self, one: &Self) -> Self;

    /// Minus the number (magnitude 1) in lanes of `mask`; of magnitude 2.
    #[inline(always)]
    fn negate_where(&self, mask: u8) -> Self {
        Self::select(mask, self, &Self::splat(&[0; 4]).sub::<1>(self))
    }

    /// `self^(2^count)` for `count` ≥ 1.
    #[inline(always)]
    fn square_times(&self, count: usize) -> Self {
        let mut power = self.square();
        for _ in 1..count {
            power = power.square();
        }
        power
    }
}

/// `x^(2^n - 1)` for n = 2, 22 and 223: the addition chain of libsecp256k1's `secp256k1_fe_sqrt`.
#[inline(always)]
fn powers_of_ones<F: FieldVector>(x: &F) -> (F, F, F) {
    let x2 = x.square().mul(x);
    let x3 = x2.square().mul(x);
    let x6 = x3.square_times(3).mul(&x3);
    let x9 = x6.square_times(3).mul(&x3);
    let x11 = x9.square_times(2).mul(&x2);
    let x22 = x11.square_times(11).mul(&x11);
    let x44 = x22.square_times(22).mul(&x22);
    let x88 = x44.square_times(44).mul(&x44);
    let x176 = x88.square_times(88).mul(&x88);
    let x220 = x176.square_times(44).mul(&x44);
    let x223 = x220.square_times(3).mul(&x3);
    (x2, x22, x223)
}

/// `x^((p + 1) / 4)`: a square root of `x` if it has one, because p ≡ 3 modulo 4. Takes and gives
/// magnitude 1.
#[inline(always)]
pub(crate) fn square_root<F: FieldVector>(x: &F) -> F {
    let (x2, x22, x223) = powers_of_ones(x);
    x223.square_times(23).mul(&x22).square_times(6).mul(&x2).square_times(2)
}

/// `x^(p - 2)`: the inverse by Fermat's little theorem, 0 for 0. Takes and gives magnitude 1.
#[inline(always)]
pub(crate) fn inverse<F: FieldVector>(x: &F) -> F {
    let (x2, x22, x223) = powers_of_ones(x);
    x223.square_times(23)
        .mul(&x22)
        .square_times(5)
        .mul(x)
        .square_times(3)
        .mul(&x2)
        .square_times(2)
        .mul(x)
}
