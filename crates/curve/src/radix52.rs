//! Field elements in five unsigned limbs of 52 bits, the uppermost of 48, for AVX-512 IFMA.
//!
//! Intervals. A number of magnitude m has limbs ≤ `m * 2^52`, the uppermost ≤ `m * (2^48 + 2^6)`. A
//! clean one has limbs below 2^52 exactly, and the same uppermost limb, which is below 2^52 while m
//! ≤ 15.
//!
//! *Factors* must be clean: `vpmadd52` ignores bits 52 to 63. That is why `carry_for_52` carries
//! here, and why the carries between upper columns need no masks. A column is a sum of at most five
//! low halves and five high halves, each below 2^52, so it is below 2^56, or 2^57 for two products.
//! Column 9 has only the high half of the product of the uppermost limbs, below `m_a * m_b * 2^44`,
//! so that it is below 2^52 if the product of magnitudes (or the sum of both) is ≤ 50, and no bit
//! of it is lost.

use crate::field::{FOLD, FieldVector, U256};
use crate::portable::{FOLD_260, LOW_48, LOW_52, P_LIMBS, limbs_52, reduced};
use crate::words::{Line, MAX_LANES, Multiply52, add_limbs, select_limbs, splat_limbs, sub_limbs};

/// `W::LANES` field elements. See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Radix52<W>([W; 5]);

/// Adds the ten columns of `a * b`.
#[inline(always)]
fn add_columns<W: Multiply52>(columns: &mut [W; 10], a: &[W; 5], b: &[W; 5]) {
    for i in 0..5 {
        a[i].assert_below(52);
        b[i].assert_below(52);
        for j in 0..5 {
            columns[i + j] = columns[i + j].add_low(a[i], b[j]);
            columns[i + j + 1] = columns[i + j + 1].add_high(a[i], b[j]);
        }
    }
}

/// Folds ten columns, each below 2^57, into a clean number of magnitude 1.
///
/// The folds of columns 5 to 9 add less than 2^53 to each lower column. Their last part is a high
/// half at 2^260, below 2^37. So what exceeds 2^256 is below 2^41 + 2^10, and its fold is below
/// 2^75: a low and a high half. The carries are below 2^6 each, so limb 4 ends at or below 2^48 +
/// 2^6.
#[inline(always)]
fn reduce<W: Multiply52>(mut columns: [W; 10]) -> Radix52<W> {
    for i in 5..9 {
        columns[i + 1] = columns[i + 1].add(columns[i].shift_right::<52>());
    }
    columns[9].assert_below(52);
    let fold = W::splat(FOLD_260);
    let mut limbs = [columns[0], columns[1], columns[2], columns[3], columns[4]];
    for i in 0..5 {
        limbs[i] = limbs[i].add_low(columns[5 + i], fold);
    }
    for i in 0..4 {
        limbs[i + 1] = limbs[i + 1].add_high(columns[5 + i], fold);
    }
    // The lower columns carry 2^57 / 2^52 at most, but not before limb 4 is cut: what they carry
    // into it stays.
    let at_260 = W::splat(0).add_high(columns[9], fold);
    let above = at_260.shift_left::<4>().add(limbs[4].shift_right::<48>());
    limbs[4] = limbs[4].and(W::splat(LOW_48));
    above.assert_below(52);
    limbs[0] = limbs[0].add_low(above, W::splat(FOLD));
    limbs[1] = limbs[1].add_high(above, W::splat(FOLD));
    Radix52(limbs).carry()
}

impl<W: Multiply52> Radix52<W> {
    #[inline(always)]
    fn of_words(words: &[W]) -> Self {
        let mask = W::splat(LOW_52);
        let [w0, w1, w2, w3] = [words[0], words[1], words[2], words[3]];
        Self([
            w0.and(mask),
            w0.shift_right::<52>().or(w1.shift_left_and_drop::<12>()).and(mask),
            w1.shift_right::<40>().or(w2.shift_left_and_drop::<24>()).and(mask),
            w2.shift_right::<28>().or(w3.shift_left_and_drop::<36>()).and(mask),
            w3.shift_right::<16>(),
        ])
    }

    /// Four words of a number below 2^256, not fully reduced.
    ///
    /// After one fold the uppermost limb exceeds 48 bits by less than 2^9. If it does exceed them,
    /// the second fold leaves it below 2^10; if not, nothing is left to carry.
    #[inline(always)]
    fn words(&self) -> [W; 4] {
        let a = self.carry().normalize_weak().normalize_weak().0;
        a[4].assert_below(48);
        [
            a[0].or(a[1].shift_left_and_drop::<52>()),
            a[1].shift_right::<12>().or(a[2].shift_left_and_drop::<40>()),
            a[2].shift_right::<24>().or(a[3].shift_left_and_drop::<28>()),
            a[3].shift_right::<36>().or(a[4].shift_left::<16>()),
        ]
    }
}

#[cfg(test)]
impl<W: Multiply52> Radix52<W> {
    /// The limbs of eight lanes.
    #[inline(always)]
    pub(crate) fn of_limbs(lanes: &[[u64; 5]; 8]) -> Self {
        let (mut lower, mut upper) = ([[0; 4]; 8], [[0; 4]; 8]);
        for (lane, [x0, x1, x2, x3, x4]) in lanes.iter().enumerate() {
            (lower[lane], upper[lane][0]) = ([*x0, *x1, *x2, *x3], *x4);
        }
        let ([x0, x1, x2, x3], [x4, ..]) = (W::load(&lower), W::load(&upper));
        Self([x0, x1, x2, x3, x4])
    }

    #[inline(always)]
    pub(crate) fn limbs(&self) -> [[u64; 5]; 8] {
        let [x0, x1, x2, x3, x4] = self.0;
        let (mut lower, mut upper) = ([[0; 4]; 8], [[0; 4]; 8]);
        W::store(&[x0, x1, x2, x3], &mut lower);
        W::store(&[x4; 4], &mut upper);
        let mut lanes = [[0; 5]; 8];
        for (lane, limbs) in lanes.iter_mut().enumerate() {
            let [x0, x1, x2, x3] = lower[lane];
            *limbs = [x0, x1, x2, x3, upper[lane][0]];
        }
        lanes
    }
}

impl<W: Multiply52> FieldVector for Radix52<W> {
    const LANES: usize = W::LANES;

    #[inline(always)]
    fn splat(number: &U256) -> Self {
        Self(splat_limbs(limbs_52(number)))
    }
    #[inline(always)]
    fn load(numbers: &[U256]) -> Self {
        Self::of_words(&W::load(numbers))
    }
    #[inline(always)]
    fn store(&self, numbers: &mut [U256]) {
        W::store(&self.words(), numbers);
        for number in numbers.iter_mut().take(W::LANES) {
            *number = reduced(*number);
        }
    }
    #[inline(always)]
    fn load_points(points: &[&Line; MAX_LANES]) -> (Self, Self) {
        let words = W::load_lines(points);
        (Self::of_words(&words[..4]), Self::of_words(&words[4..]))
    }
    #[inline(always)]
    fn load_xs(points: &[&Line; MAX_LANES]) -> Self {
        Self::of_words(&W::load_half_lines(points))
    }
    #[inline(always)]
    fn store_points(x: &Self, y: &Self, points: &mut [Line]) {
        let ([x0, x1, x2, x3], [y0, y1, y2, y3]) = (x.words(), y.words());
        W::store_lines(&[x0, x1, x2, x3, y0, y1, y2, y3], points);
    }
    #[inline(always)]
    fn mul(&self, other: &Self) -> Self {
        let mut columns = [W::splat(0); 10];
        add_columns(&mut columns, &self.0, &other.0);
        reduce(columns)
    }
    #[inline(always)]
    fn square(&self) -> Self {
        let (a, mut columns) = (&self.0, [W::splat(0); 10]);
        for i in 0..5 {
            a[i].assert_below(52);
            for j in i + 1..5 {
                columns[i + j] = columns[i + j].add_low(a[i], a[j]);
                columns[i + j + 1] = columns[i + j + 1].add_high(a[i], a[j]);
            }
        }
        for column in &mut columns[1..9] {
            *column = column.add(*column);
        }
        for i in 0..5 {
            columns[2 * i] = columns[2 * i].add_low(a[i], a[i]);
            columns[2 * i + 1] = columns[2 * i + 1].add_high(a[i], a[i]);
        }
        reduce(columns)
    }
    #[inline(always)]
    fn sum_of_products(a: &Self, b: &Self, c: &Self, d: &Self) -> Self {
        let mut columns = [W::splat(0); 10];
        add_columns(&mut columns, &a.0, &b.0);
        add_columns(&mut columns, &c.0, &d.0);
        reduce(columns)
    }
    #[inline(always)]
    fn add(&self, other: &Self) -> Self {
        Self(add_limbs(&self.0, &other.0))
    }
    /// Each limb of `(M + 1) * p` is at least the limb of magnitude M that it pays for:
    /// `(M + 1) * (2^52 - 2^33) ≥ M * 2^52` and `(M + 1) * (2^48 - 1) ≥ M * (2^48 + 2^6)`.
    #[inline(always)]
    fn sub<const M: u64>(&self, other: &Self) -> Self {
        const { assert!(M <= 7) };
        Self(sub_limbs((&self.0, &other.0), (M + 1, &P_LIMBS)))
    }
    /// By sums, because a 64-bit multiplication takes three of the processor's operations.
    #[inline(always)]
    fn times<const K: u64>(&self) -> Self {
        let mut limbs = self.0;
        for limb in &mut limbs {
            let one = *limb;
            let mut sum = if K & 1 == 1 { one } else { W::splat(0) };
            if K & 2 != 0 {
                sum = sum.add(one.shift_left::<1>());
            }
            if K & 4 != 0 {
                sum = sum.add(one.shift_left::<2>());
            }
            if K & 8 != 0 {
                sum = sum.add(one.shift_left::<3>());
            }
            if K & 16 != 0 {
                sum = sum.add(one.shift_left::<4>());
            }
            *limb = sum;
        }
        Self(limbs)
    }
    /// In order, so that limbs 0 to 3 end below 2^52. Limbs are below 2^58 before.
    #[inline(always)]
    fn carry(&self) -> Self {
        let mask = W::splat(LOW_52);
        let mut limbs = self.0;
        for i in 0..4 {
            limbs[i + 1] = limbs[i + 1].add(limbs[i].shift_right::<52>());
            limbs[i] = limbs[i].and(mask);
        }
        Self(limbs)
    }
    #[inline(always)]
    fn carry_for_52(&self) -> Self {
        self.carry()
    }
    /// The uppermost limb is below 2^54, so `above` is below 2^6, and its fold below 2^39.
    #[inline(always)]
    fn normalize_weak(&self) -> Self {
        let mut number = *self;
        let above = number.0[4].shift_right::<48>();
        number.0[4] = number.0[4].and(W::splat(LOW_48));
        number.0[0] = number.0[0].add_low(above, W::splat(FOLD));
        number.carry()
    }
    #[inline(always)]
    fn select(mask: u8, zero: &Self, one: &Self) -> Self {
        Self(select_limbs(mask, &zero.0, &one.0))
    }
}
