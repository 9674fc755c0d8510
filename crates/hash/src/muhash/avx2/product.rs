//! Products modulo the prime of four pairs of numbers in lanes.
//!
//! The instruction multiplies the lower 32 bits of two lanes to 64. Limbs of 28 bits leave four,
//! so that sums of sixteen limbs (four levels of Karatsuba's method) still fit, of which only one
//! may be 2^28 and not below. Sums of products may overflow on the way, but the columns of the
//! whole product do not: each is at most 110 times 2^56.

use super::{LIMB_BITS, LIMBS, LIMBS_USED, Numbers};
use crate::muhash::karatsuba::{define_longer, define_products};
use crate::muhash::number::PRIME_DIFF;
use core::arch::x86_64::*;

/// Limbs that the school method multiplies: few, since there are only sixteen registers.
const BASE: usize = 7;

/// The columns of a product, and what is needed on the way to them.
pub(super) struct Room {
    columns: [__m256i; 2 * LIMBS],
    shorter: (Shorter, [__m256i; LIMBS]),
}

type Shorter = ([__m256i; LIMBS / 4], [__m256i; LIMBS / 2]);

/// Room to work, filled with `any` value.
pub(super) fn room(any: __m256i) -> Room {
    let shorter = ([any; LIMBS / 4], [any; LIMBS / 2]);
    Room { columns: [any; 2 * LIMBS], shorter: (shorter, [any; LIMBS]) }
}

define_products!(__m256i, 7: [0 1 2 3 4 5 6], #[target_feature(enable = "avx2")]);
define_longer!(
    product_16, product_8, Shorter, __m256i, LIMBS, #[target_feature(enable = "avx2")]
);

#[inline]
#[target_feature(enable = "avx2")]
fn zero() -> __m256i {
    _mm256_setzero_si256()
}

#[inline]
#[target_feature(enable = "avx2")]
fn add(a: __m256i, b: __m256i) -> __m256i {
    _mm256_add_epi64(a, b)
}

#[inline]
#[target_feature(enable = "avx2")]
fn sub(a: __m256i, b: __m256i) -> __m256i {
    _mm256_sub_epi64(a, b)
}

#[inline]
#[target_feature(enable = "avx2")]
fn mul(a: __m256i, b: __m256i) -> __m256i {
    _mm256_mul_epu32(a, b)
}

/// Columns to come, that of column `c` at `c % BASE`.
type Rows = [__m256i; BASE];

#[inline]
#[target_feature(enable = "avx2")]
fn begin() -> Rows {
    [zero(); BASE]
}

#[inline]
#[target_feature(enable = "avx2")]
fn row<const I: usize>(rows: &mut Rows, a: &[__m256i; BASE], b: __m256i) -> __m256i {
    for (limb, a) in a.iter().enumerate() {
        let column = (I + limb) % BASE;
        rows[column] = add(rows[column], mul(*a, b));
    }
    let column = rows[I];
    rows[I] = zero();
    column
}

#[inline]
#[target_feature(enable = "avx2")]
fn end(rows: &Rows) -> [__m256i; BASE] {
    *rows
}

/// `numbers *= factors`, lane by lane.
#[target_feature(enable = "avx2")]
pub(super) fn multiply(numbers: &mut Numbers, factors: &Numbers, room: &mut Room) {
    product_16(numbers, factors, &mut room.columns, &mut room.shorter);
    reduce(&room.columns, numbers);
}

/// Carries, and folds what is above 2^3080 onto what is below, `PRIME_DIFF` times 2^8.
///
/// Out of the upper half, which is a number below 2^3081, comes a carry of one at most; out of the
/// lower half, one below 2^36. Folded as well, together they widen the two lowest limbs, and what
/// is carried on from there is one at most when it comes to limb 3.
#[target_feature(enable = "avx2")]
fn reduce(columns: &[__m256i; 2 * LIMBS], out: &mut Numbers) {
    let times = _mm256_set1_epi64x((PRIME_DIFF << 8) as i64);
    let mask = _mm256_set1_epi64x((1 << LIMB_BITS) - 1);
    let limb_of = |column| _mm256_and_si256(column, mask);
    let carry_of = |column| _mm256_srli_epi64::<{ LIMB_BITS as i32 }>(column);
    let (mut carry, mut carry_high) = (zero(), zero());
    for i in 0..LIMBS_USED {
        let column = add(columns[LIMBS_USED + i], carry_high);
        carry_high = carry_of(column);
        let column = add(add(columns[i], mul(limb_of(column), times)), carry);
        out[i] = limb_of(column);
        carry = carry_of(column);
    }
    let carry = add(carry, mul(carry_high, times));
    let mut carried = add(out[0], mul(limb_of(carry), times));
    out[0] = limb_of(carried);
    carried = add(add(out[1], mul(carry_of(carry), times)), carry_of(carried));
    out[1] = limb_of(carried);
    carried = add(out[2], carry_of(carried));
    out[2] = limb_of(carried);
    out[3] = add(out[3], carry_of(carried));
}
