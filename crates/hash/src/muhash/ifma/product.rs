//! Products modulo the prime of eight pairs of numbers in lanes.
//!
//! The instructions multiply the lower 52 bits of two lanes and add the lower or the upper 52 bits
//! of the product. Limbs of 48 bits leave four bits, so that sums of eight limbs (three levels of
//! Karatsuba's method) still fit. Upper halves then count 2^52, four bits more than the next
//! column, and go there times 16.
//!
//! What makes the columns fit: with limbs below 2^49, the *lower halves* in a column of a base
//! product are at most eight times 2^52; each level combines at most four columns, so they come to
//! less than 2^61 either way in the end. The true value of a column is below 64 times 2^98, and
//! what its lower halves do not hold its upper ones do, so those are less than 2^53 either way and
//! 2^57 once times 16. Together, a column is a signed number well within 2^62.

use super::{LIMB_BITS, LIMBS, Numbers};
use crate::muhash::karatsuba::{define_products, halves};
use crate::muhash::number::PRIME_DIFF;
use core::arch::x86_64::*;

/// Limbs that the school method multiplies.
const BASE: usize = 8;

/// The columns of a product, and what is needed on the way to them.
pub(super) struct Room {
    columns: [__m512i; 2 * LIMBS],
    shorter: ([__m512i; LIMBS / 2], [__m512i; LIMBS]),
}

/// Room to work, filled with `any` value.
pub(super) fn room(any: __m512i) -> Room {
    Room { columns: [any; 2 * LIMBS], shorter: ([any; LIMBS / 2], [any; LIMBS]) }
}

define_products!(
    __m512i, 8: [0 1 2 3 4 5 6 7], #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
);

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn zero() -> __m512i {
    _mm512_setzero_si512()
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn add(a: __m512i, b: __m512i) -> __m512i {
    _mm512_add_epi64(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn sub(a: __m512i, b: __m512i) -> __m512i {
    _mm512_sub_epi64(a, b)
}

/// `sum` and the lower 52 bits of `a * b`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn add_lower(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
    _mm512_madd52lo_epu64(sum, a, b)
}

/// `sum` and `a * b` without its lower 52 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn add_upper(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
    _mm512_madd52hi_epu64(sum, a, b)
}

/// Upper halves as the next column counts them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn as_next(upper: __m512i) -> __m512i {
    _mm512_slli_epi64::<{ 52 - LIMB_BITS }>(upper)
}

/// Columns to come, that of column `c` at `c % BASE`.
struct Rows {
    lower: [__m512i; BASE],
    upper: [__m512i; BASE],
    /// Upper halves of the last complete column.
    before: __m512i,
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn begin() -> Rows {
    Rows { lower: [zero(); BASE], upper: [zero(); BASE], before: zero() }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn row<const I: usize>(rows: &mut Rows, a: &[__m512i; BASE], b: __m512i) -> __m512i {
    for (limb, a) in a.iter().enumerate() {
        let column = (I + limb) % BASE;
        rows.lower[column] = add_lower(rows.lower[column], *a, b);
        rows.upper[column] = add_upper(rows.upper[column], *a, b);
    }
    let column = add(rows.lower[I], as_next(rows.before));
    rows.before = rows.upper[I];
    (rows.lower[I], rows.upper[I]) = (zero(), zero());
    column
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn end(rows: &Rows) -> [__m512i; BASE] {
    let mut columns = [zero(); BASE];
    let mut before = rows.before;
    for (i, column) in columns.iter_mut().enumerate() {
        *column = add(rows.lower[i], as_next(before));
        before = rows.upper[i];
    }
    columns
}

/// `numbers *= factors`, lane by lane.
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
pub(super) fn multiply(numbers: &mut Numbers, factors: &Numbers, room: &mut Room) {
    product_8(numbers, factors, &mut room.columns, &mut room.shorter);
    reduce(&room.columns, numbers);
}

/// Carries, and folds what is above 2^3072 onto what is below, `PRIME_DIFF` times.
///
/// Carries are signed, since columns are. Out of the upper half, which is a number below 2^3075,
/// comes one of -1 to 4; it counts `PRIME_DIFF` squared. Out of the lower half comes one of at
/// least -2^15; `SPARE` makes both together positive, and is taken away again below. What both
/// come to is less than 2^24, and times `PRIME_DIFF` it widens the lowest limb by less than 2^45.
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn reduce(columns: &[__m512i; 2 * LIMBS], out: &mut Numbers) {
    const SPARE: i64 = 1 << 22;
    let times = _mm512_set1_epi64(PRIME_DIFF as i64);
    let mask = _mm512_set1_epi64((1 << LIMB_BITS) - 1);
    let [low, high]: [&Numbers; 2] = halves(columns);
    let (mut carry, mut carry_high) = (_mm512_set1_epi64(-SPARE * PRIME_DIFF as i64), zero());
    let mut before = zero();
    for i in 0..LIMBS {
        let column = add(high[i], carry_high);
        let limb = _mm512_and_si512(column, mask);
        carry_high = _mm512_srai_epi64::<LIMB_BITS>(column);

        let column = add_lower(add(low[i], as_next(before)), limb, times);
        let column = add(column, carry);
        before = add_upper(zero(), limb, times);
        out[i] = _mm512_and_si512(column, mask);
        carry = _mm512_srai_epi64::<LIMB_BITS>(column);
    }
    let carry = add(carry, as_next(before));
    let carry = add(add(carry, _mm512_set1_epi64(SPARE)), _mm512_mul_epi32(carry_high, times));
    out[0] = add_lower(out[0], carry, times);
}
