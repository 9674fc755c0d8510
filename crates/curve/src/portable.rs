//! One field element in plain Rust: five limbs of 52 bits, the uppermost of 48, as libsecp256k1's
//! `field_5x52_int128_impl.h`.
//!
//! Limbs of magnitude m are at most `m * 2^52`; the uppermost at most `m * (2^48 + 1)`. `mul` takes
//! any factors whose limbs are below 2^56 (magnitude ≤ 15), clean or not: see the intervals there.

use crate::field::{FOLD, FieldVector, P, U256};
use crate::words::{Line, MAX_LANES};
use core::array::from_fn;

pub(crate) const LOW_52: u64 = (1 << 52) - 1;
pub(crate) const LOW_48: u64 = (1 << 48) - 1;
/// `2^260 mod p`.
pub(crate) const FOLD_260: u64 = FOLD << 4;
/// The limbs of p.
pub(crate) const P_LIMBS: [u64; 5] = [LOW_52 - (FOLD - 1), LOW_52, LOW_52, LOW_52, LOW_48];

/// One field element. See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element([u64; 5]);

/// Five clean limbs of a number.
#[inline(always)]
pub(crate) fn limbs_52(x: &U256) -> [u64; 5] {
    [
        x[0] & LOW_52,
        (x[0] >> 52 | x[1] << 12) & LOW_52,
        (x[1] >> 40 | x[2] << 24) & LOW_52,
        (x[2] >> 28 | x[3] << 36) & LOW_52,
        x[3] >> 16,
    ]
}

#[inline(always)]
fn wide(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

/// Carries ten columns, folds the upper five, and carries again.
///
/// Columns are below `5 * 2^56 * 2^56 < 2^115` for one product and below 2^116 for two. Each carry
/// is below 2^64, so a column stays below 2^117. A folded limb adds less than `2^52 * 2^37`; the
/// last carry has less than 2^65 bits of worth, and `uppermost` is checked.
#[inline(always)]
fn reduce(mut columns: [u128; 9]) -> Element {
    let mut high = [0u64; 5];
    let mut carry = columns[4] >> 52;
    columns[4] &= u128::from(LOW_52);
    for i in 0..4 {
        let column = columns[5 + i] + carry;
        high[i] = column as u64 & LOW_52;
        carry = column >> 52;
    }
    debug_assert!(carry < 1 << 64, "the uppermost carry");
    high[4] = carry as u64;
    let mut limbs = [0; 5];
    let mut carry = 0;
    for i in 0..5 {
        let column = columns[i] + wide(high[i], FOLD_260) + carry;
        limbs[i] = column as u64 & LOW_52;
        carry = column >> 52;
    }
    // What is left counts 2^260: at most 2^64 * 2^37 / 2^52, so 2^50 and the four bits of limb 4.
    let above = (carry as u64) << 4 | limbs[4] >> 48;
    debug_assert!(carry < 1 << 58, "a carry beyond one word");
    limbs[4] &= LOW_48;
    let mut carry = wide(above, FOLD);
    for limb in &mut limbs {
        let column = u128::from(*limb) + carry;
        *limb = column as u64 & LOW_52;
        carry = column >> 52;
    }
    debug_assert!(carry == 0 && limbs[4] <= LOW_48 + 1);
    Element(limbs)
}

#[inline(always)]
fn add_columns(columns: &mut [u128; 9], a: &Element, b: &Element) {
    debug_assert!(a.0.iter().chain(&b.0).all(|limb| limb >> 56 == 0), "a factor too wide");
    for (i, x) in a.0.iter().enumerate() {
        for (j, y) in b.0.iter().enumerate() {
            columns[i + j] += wide(*x, *y);
        }
    }
}

impl Element {
    /// Folds and carries; from limbs below 2^60 to a number below 2^256 plus a little.
    #[inline(always)]
    fn fold(&self) -> Self {
        let mut limbs = self.0;
        limbs[0] += (limbs[4] >> 48) * FOLD;
        limbs[4] &= LOW_48;
        for i in 0..4 {
            limbs[i + 1] += limbs[i] >> 52;
            limbs[i] &= LOW_52;
        }
        Self(limbs)
    }

    /// A number below 2^256, not fully reduced. After one fold, the uppermost limb exceeds 48 bits
    /// by less than 2^9. If it does exceed them, the second fold leaves it below 2^10; if not,
    /// nothing is left to carry.
    #[inline(always)]
    fn words(&self) -> U256 {
        let a = self.fold().fold().0;
        debug_assert!(a[4] <= LOW_48);
        [
            a[0] | a[1] << 52,
            a[1] >> 12 | a[2] << 40,
            a[2] >> 24 | a[3] << 28,
            a[3] >> 36 | a[4] << 16,
        ]
    }

    /// The number itself, fully reduced.
    pub(crate) fn number(&self) -> U256 {
        reduced(self.words())
    }
}

/// `x mod p` for any `x` below 2^256: `x + FOLD` reaches 2^256 exactly if `x` reaches p.
#[inline(always)]
pub(crate) fn reduced(x: U256) -> U256 {
    let (mut sum, mut carry) = (x, FOLD);
    for word in &mut sum {
        let (added, over) = word.overflowing_add(carry);
        *word = added;
        carry = u64::from(over);
    }
    let is_reached = x[3] & x[2] & x[1] == u64::MAX && x[0] >= P[0];
    if is_reached { sum } else { x }
}

/// Minus a number, fully reduced.
pub(crate) fn negated(number: &U256) -> U256 {
    Element::splat(&[0; 4]).sub::<1>(&Element::splat(number)).number()
}

impl FieldVector for Element {
    const LANES: usize = 1;

    #[inline(always)]
    fn splat(number: &U256) -> Self {
        Self(limbs_52(number))
    }
    #[inline(always)]
    fn load(numbers: &[U256]) -> Self {
        Self(limbs_52(&numbers[0]))
    }
    #[inline(always)]
    fn store(&self, numbers: &mut [U256]) {
        numbers[0] = self.number();
    }
    #[inline(always)]
    fn load_points(points: &[&Line; MAX_LANES]) -> (Self, Self) {
        let [x0, x1, x2, x3, y0, y1, y2, y3] = points[0].0;
        (Self::splat(&[x0, x1, x2, x3]), Self::splat(&[y0, y1, y2, y3]))
    }
    #[inline(always)]
    fn load_xs(points: &[&Line; MAX_LANES]) -> Self {
        Self::splat(&points[0].x())
    }
    #[inline(always)]
    fn store_points(x: &Self, y: &Self, points: &mut [Line]) {
        points[0] = Line::new(&x.words(), &y.words());
    }
    #[inline(never)]
    fn mul(&self, other: &Self) -> Self {
        let mut columns = [0; 9];
        add_columns(&mut columns, self, other);
        reduce(columns)
    }
    #[inline(never)]
    fn square(&self) -> Self {
        let a = &self.0;
        debug_assert!(a.iter().all(|limb| limb >> 56 == 0), "a factor too wide");
        reduce([
            wide(a[0], a[0]),
            wide(2 * a[0], a[1]),
            wide(2 * a[0], a[2]) + wide(a[1], a[1]),
            wide(2 * a[0], a[3]) + wide(2 * a[1], a[2]),
            wide(2 * a[0], a[4]) + wide(2 * a[1], a[3]) + wide(a[2], a[2]),
            wide(2 * a[1], a[4]) + wide(2 * a[2], a[3]),
            wide(2 * a[2], a[4]) + wide(a[3], a[3]),
            wide(2 * a[3], a[4]),
            wide(a[4], a[4]),
        ])
    }
    #[inline(never)]
    fn sum_of_products(a: &Self, b: &Self, c: &Self, d: &Self) -> Self {
        let mut columns = [0; 9];
        add_columns(&mut columns, a, b);
        add_columns(&mut columns, c, d);
        reduce(columns)
    }
    #[inline(always)]
    fn add(&self, other: &Self) -> Self {
        Self(from_fn(|i| self.0[i] + other.0[i]))
    }
    #[inline(always)]
    fn sub<const M: u64>(&self, other: &Self) -> Self {
        Self(from_fn(|i| self.0[i] + (M + 1) * P_LIMBS[i] - other.0[i]))
    }
    #[inline(always)]
    fn times<const K: u64>(&self) -> Self {
        Self(self.0.map(|limb| limb * K))
    }
    #[inline(always)]
    fn carry(&self) -> Self {
        *self
    }
    #[inline(always)]
    fn carry_for_52(&self) -> Self {
        *self
    }
    #[inline(always)]
    fn normalize_weak(&self) -> Self {
        self.fold()
    }
    #[inline(always)]
    fn select(mask: u8, zero: &Self, one: &Self) -> Self {
        if mask & 1 == 1 { *one } else { *zero }
    }
}
