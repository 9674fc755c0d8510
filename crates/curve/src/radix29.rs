//! Field elements in nine unsigned limbs of 29 bits, the uppermost of 24, for AVX2: 32-bit factors
//! have 64-bit products, and the three spare bits make most sums and differences fit a factor
//! without a carry.
//!
//! Intervals, with `w` = 2^29 and `t` = 2^24. A number of magnitude m has limbs ≤ `m * (w + 2^6)`,
//! but limb 0 ≤ `m * (w + w/8)` and the uppermost ≤ `m * (t + 2^9)`. A clean one has the limbs of
//! magnitude 1, but the uppermost of magnitude m; this counts as *limb magnitude* 1. Magnitudes are
//! ≤ 7 where limbs become factors, so that limbs are below 2^32, and ≤ 31 elsewhere.
//!
//! *Columns.* Let k be the product of the factors' limb magnitudes, or the sum of both products in
//! a sum of products. Column 7 has eight products of limbs of full width, two with a limb
//! 0, so it is at most `k * (6 * (w + 2^6)^2 + 2 * (w + w/8) * (w + 2^6)) < k * 8.26 * 2^58`. With
//! k ≤ 7, that is below 2^63.86. Each other column has fewer products of full width; those with an
//! uppermost limb are below `7 * w * 31 * t`.
//!
//! *Fold.* 2^261 ≡ 2^37 + 31264 (mod p), so an upper limb h < w adds 31264 h < 2^44 to one limb and
//! `2^8 h` < 2^37 to the next. Together with carries below 2^35, a lower column grows by less than
//! 2^45, and 2^63.86 + 2^45 is below 2^64.
//!
//! *Why unsigned.* A kernel with signed limbs (`vpmuldq`) gave wrong sums when it was compiled for
//! VBMI2, although all its intervals hold. We suspect the compiler, without proof: LLVM writes the
//! sign extension as two shifts, and VBMI2 lets it merge shifts into funnel shifts. Here no
//! operation depends on that: limbs are unsigned, there is no bias, and `vpmuludq` only masks. The
//! kernel's functions enable AVX2 alone, and the self-test must pass before it may run.

use crate::field::{FieldVector, U256};
use crate::portable::reduced;
use crate::words::{Line, MAX_LANES, Multiply32, add_limbs, select_limbs, splat_limbs, sub_limbs};

const LOW_29: u64 = (1 << 29) - 1;
const LOW_24: u64 = (1 << 24) - 1;
/// `2^261 mod p` is `2^37 + FOLD_261`.
const FOLD_261: u64 = 977 << 5;
/// The limbs of p.
const P_LIMBS: [u64; 9] =
    [LOW_29 - 976, LOW_29 - 8, LOW_29, LOW_29, LOW_29, LOW_29, LOW_29, LOW_29, LOW_24];

/// `W::LANES` field elements. See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Radix29<W>([W; 9]);

/// Nine clean limbs of a number.
#[inline(always)]
fn limbs_29(x: &U256) -> [u64; 9] {
    [
        x[0] & LOW_29,
        x[0] >> 29 & LOW_29,
        (x[0] >> 58 | x[1] << 6) & LOW_29,
        x[1] >> 23 & LOW_29,
        (x[1] >> 52 | x[2] << 12) & LOW_29,
        x[2] >> 17 & LOW_29,
        (x[2] >> 46 | x[3] << 18) & LOW_29,
        x[3] >> 11 & LOW_29,
        x[3] >> 40,
    ]
}

/// The 17 columns of a product: column i counts `2^(29 * i)`. The index is a constant, so that the
/// compiler unrolls everything.
trait Columns<W> {
    fn column<const I: usize>(&self) -> W;
}

/// `a * b`.
struct Product<'a, W>(&'a [W; 9], &'a [W; 9]);

/// `a * a`; the second array is `2 * a`, so that each pair of different limbs is multiplied once.
struct Square<'a, W>(&'a [W; 9], &'a [W; 9]);

/// The sum of two products.
struct TwoProducts<'a, W>(Product<'a, W>, Product<'a, W>);

impl<W: Multiply32> Columns<W> for Product<'_, W> {
    #[inline(always)]
    fn column<const I: usize>(&self) -> W {
        let first = I.saturating_sub(8);
        let mut sum = self.0[first].multiply(self.1[I - first]);
        for j in 1..9 {
            if j > first && j <= I {
                sum = sum.add(self.0[j].multiply(self.1[I - j]));
            }
        }
        sum
    }
}

impl<W: Multiply32> Columns<W> for Square<'_, W> {
    #[inline(always)]
    fn column<const I: usize>(&self) -> W {
        let (a, twice) = (self.0, self.1);
        let first = I.saturating_sub(8);
        if 2 * first == I {
            return a[first].multiply(a[first]);
        }
        let mut sum = twice[first].multiply(a[I - first]);
        for j in 1..9 {
            if j > first && 2 * j < I {
                sum = sum.add(twice[j].multiply(a[I - j]));
            }
        }
        if I.is_multiple_of(2) { sum.add(a[I / 2].multiply(a[I / 2])) } else { sum }
    }
}

impl<W: Multiply32> Columns<W> for TwoProducts<'_, W> {
    #[inline(always)]
    fn column<const I: usize>(&self) -> W {
        self.0.column::<I>().add(self.1.column::<I>())
    }
}

/// Folds 17 columns, each below 2^63.9, into a clean number of magnitude 1. The columns are
/// computed when they are needed, from the middle upwards and then from the lowest, which keeps few
/// of them in registers.
///
/// Let q ≤ 50 be the product of the factors' magnitudes (or the sum of both products). The
/// uppermost column is at most `q * (t + 2^9)^2`, so `high[8]` is below `q * 2^19.01`. Limb 8 is
/// below `high[8] * 2^15 + 2^37.2` before it is cut, so what exceeds 2^256 is below
/// `q * 2^10.01 + 2^13.2 < 2^16`. Times 977, it adds less than w/8 to limb 0; times 8, less than
/// 2^19 to limb 1, which has to be carried.
#[inline(always)]
fn reduce<W: Multiply32>(columns: &impl Columns<W>) -> [W; 9] {
    let (mask, fold) = (W::splat(LOW_29), W::splat(FOLD_261));
    let middle = columns.column::<8>();
    let mut carry = middle.shift_right::<29>();
    let mut high = [mask; 9];
    macro_rules! upper {
        ($($i:literal)*) => {$(
            let sum = columns.column::<{ 9 + $i }>().add(carry);
            high[$i] = sum.and(mask);
            carry = sum.shift_right::<29>();
        )*};
    }
    upper!(0 1 2 3 4 5 6 7);
    carry.assert_below(25);
    high[8] = carry;

    let top_fold = W::splat(FOLD_261 << 8);
    let low = columns.column::<0>().add(high[0].multiply(fold)).add(high[8].multiply(top_fold));
    let mut limbs = [low.and(mask); 9];
    let mut carry = low.shift_right::<29>().add(high[8].shift_left::<16>());
    macro_rules! lower {
        ($($i:literal)*) => {$(
            let sum = columns.column::<$i>().add(high[$i].multiply(fold));
            let sum = sum.add(high[$i - 1].shift_left::<8>()).add(carry);
            limbs[$i] = sum.and(mask);
            carry = sum.shift_right::<29>();
        )*};
    }
    lower!(1 2 3 4 5 6 7);
    let sum = middle.and(mask).add(high[8].multiply(fold));
    let sum = sum.add(high[7].shift_left::<8>()).add(carry);
    limbs[8] = sum.and(W::splat(LOW_24));
    let above = sum.shift_right::<24>();
    above.assert_below(16);
    fold_above(&mut limbs, above);
    limbs
}

/// Adds `above * 2^256`, as `above * (2^32 + 977)`.
#[inline(always)]
fn fold_above<W: Multiply32>(limbs: &mut [W; 9], above: W) {
    limbs[0] = limbs[0].add(above.multiply(W::splat(977)));
    limbs[1] = limbs[1].add(above.shift_left::<3>());
}

/// `a * b`. See the module for the intervals.
#[inline(always)]
pub(crate) fn product<W: Multiply32>(a: &[W; 9], b: &[W; 9]) -> [W; 9] {
    reduce(&Product(a, b))
}

/// `a * a`.
#[inline(always)]
pub(crate) fn square<W: Multiply32>(a: &[W; 9]) -> [W; 9] {
    let mut twice = *a;
    for limb in &mut twice {
        *limb = limb.add(*limb);
    }
    reduce(&Square(a, &twice))
}

/// `a * b + c * d`, reduced once.
#[inline(always)]
pub(crate) fn sum_of_products<W: Multiply32>(
    a: &[W; 9],
    b: &[W; 9],
    c: &[W; 9],
    d: &[W; 9],
) -> [W; 9] {
    reduce(&TwoProducts(Product(a, b), Product(c, d)))
}

impl<W: Multiply32> Radix29<W> {
    #[inline(always)]
    fn of_words(words: &[W]) -> Self {
        let mask = W::splat(LOW_29);
        let [w0, w1, w2, w3] = [words[0], words[1], words[2], words[3]];
        Self([
            w0.and(mask),
            w0.shift_right::<29>().and(mask),
            w0.shift_right::<58>().or(w1.shift_left_and_drop::<6>()).and(mask),
            w1.shift_right::<23>().and(mask),
            w1.shift_right::<52>().or(w2.shift_left_and_drop::<12>()).and(mask),
            w2.shift_right::<17>().and(mask),
            w2.shift_right::<46>().or(w3.shift_left_and_drop::<18>()).and(mask),
            w3.shift_right::<11>().and(mask),
            w3.shift_right::<40>(),
        ])
    }

    /// Carries from limb to limb: limbs 0 to 7 end below 2^29. Limbs are below 2^32 before, so
    /// carries are ≤ 8.
    #[inline(always)]
    fn carry_in_order(&self) -> Self {
        let mask = W::splat(LOW_29);
        let mut limbs = self.0;
        for i in 0..8 {
            limbs[i + 1] = limbs[i + 1].add(limbs[i].shift_right::<29>());
            limbs[i] = limbs[i].and(mask);
        }
        Self(limbs)
    }

    /// Four words of a number below 2^256, not fully reduced.
    ///
    /// After the first fold the uppermost limb is at most 2^24 + 8. If it exceeds 24 bits, the
    /// second fold leaves it below 2^4 and the rest has room for its carries; if not, nothing
    /// changes.
    #[inline(always)]
    fn words(&self) -> [W; 4] {
        let mut number = self.carry_in_order();
        for _ in 0..2 {
            let above = number.0[8].shift_right::<24>();
            number.0[8] = number.0[8].and(W::splat(LOW_24));
            fold_above(&mut number.0, above);
            number = number.carry_in_order();
        }
        let a = &number.0;
        a[8].assert_below(24);
        [
            a[0].or(a[1].shift_left::<29>()).or(a[2].shift_left_and_drop::<58>()),
            a[2].shift_right::<6>()
                .or(a[3].shift_left::<23>())
                .or(a[4].shift_left_and_drop::<52>()),
            a[4].shift_right::<12>()
                .or(a[5].shift_left::<17>())
                .or(a[6].shift_left_and_drop::<46>()),
            a[6].shift_right::<18>().or(a[7].shift_left::<11>()).or(a[8].shift_left::<40>()),
        ]
    }
}

impl<W: Multiply32> FieldVector for Radix29<W> {
    const LANES: usize = W::LANES;

    #[inline(always)]
    fn splat(number: &U256) -> Self {
        Self(splat_limbs(limbs_29(number)))
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
        Self(W::product(&self.0, &other.0))
    }
    #[inline(always)]
    fn square(&self) -> Self {
        Self(W::square(&self.0))
    }
    #[inline(always)]
    fn sum_of_products(a: &Self, b: &Self, c: &Self, d: &Self) -> Self {
        Self(W::sum_of_products(&a.0, &b.0, &c.0, &d.0))
    }
    #[inline(always)]
    fn add(&self, other: &Self) -> Self {
        Self(add_limbs(&self.0, &other.0))
    }
    /// Each limb of `(M + 1) * p` is at least the limb of magnitude M that it pays for, while M ≤
    /// 7: `(M + 1) * (w - 977) ≥ M * (w + w/8)` and `(M + 1) * (t - 1) ≥ M * (t + 2^9)`.
    #[inline(always)]
    fn sub<const M: u64>(&self, other: &Self) -> Self {
        const { assert!(M <= 7) };
        Self(sub_limbs((&self.0, &other.0), (M + 1, &P_LIMBS)))
    }
    #[inline(always)]
    fn times<const K: u64>(&self) -> Self {
        let mut limbs = self.0;
        for limb in &mut limbs {
            *limb = match K {
                2 => limb.add(*limb),
                3 => limb.add(*limb).add(*limb),
                4 => limb.shift_left::<2>(),
                8 => limb.shift_left::<3>(),
                _ => limb.multiply(W::splat(K)),
            };
        }
        Self(limbs)
    }
    /// All limbs at once. A magnitude ≤ 31 makes carries below 2^6.
    #[inline(always)]
    fn carry(&self) -> Self {
        let mask = W::splat(LOW_29);
        let mut limbs = self.0;
        for limb in &mut limbs[..8] {
            *limb = limb.and(mask);
        }
        for i in 0..8 {
            limbs[i + 1] = limbs[i + 1].add(self.0[i].shift_right::<29>());
        }
        Self(limbs)
    }
    #[inline(always)]
    fn carry_for_52(&self) -> Self {
        *self
    }
    /// The uppermost limb is below 2^30, so `above` is below 2^6.
    #[inline(always)]
    fn normalize_weak(&self) -> Self {
        let mut number = *self;
        let above = number.0[8].shift_right::<24>();
        number.0[8] = number.0[8].and(W::splat(LOW_24));
        fold_above(&mut number.0, above);
        number.carry()
    }
    #[inline(always)]
    fn select(mask: u8, zero: &Self, one: &Self) -> Self {
        Self(select_limbs(mask, &zero.0, &one.0))
    }
}
