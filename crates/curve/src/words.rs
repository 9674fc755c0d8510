//! [`Words`]: a register of 64-bit words, one in each lane, and the few operations that field
//! kernels need.
//!
//! The kernels of [`crate::radix29`] and [`crate::radix52`] are written once against this trait.
//! The implementations with intrinsics are thin; tests run the same kernels on `Emulated` words,
//! on any machine.
//!
//! Invariant: all words are unsigned, and no operation of a kernel overflows. Hardware would wrap
//! silently, so `Emulated` words panic instead: a sum of 2^64 or more, a difference below zero, a
//! shifted-out bit, a factor too wide for its multiplication. A test of a kernel at its greatest
//! magnitudes therefore tests its interval arguments too.

/// The most lanes of any kernel.
pub(crate) const MAX_LANES: usize = 8;

/// A point's affine coordinates in memory, `x` then `y`, each less than 2^256, the least
/// significant word first.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line(pub(crate) [u64; 8]);

impl Line {
    pub(crate) const fn new(x: &[u64; 4], y: &[u64; 4]) -> Self {
        Self([x[0], x[1], x[2], x[3], y[0], y[1], y[2], y[3]])
    }

    pub(crate) fn x(&self) -> [u64; 4] {
        [self.0[0], self.0[1], self.0[2], self.0[3]]
    }

    pub(crate) fn y(&self) -> [u64; 4] {
        [self.0[4], self.0[5], self.0[6], self.0[7]]
    }
}

/// A register of unsigned 64-bit words. See the module's invariant.
pub(crate) trait Words: Copy {
    /// At most [`MAX_LANES`].
    const LANES: usize;

    /// The same word in each lane.
    fn splat(word: u64) -> Self;
    /// The sum, which is less than 2^64.
    fn add(self, other: Self) -> Self;
    /// The difference, which is not negative.
    fn sub(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn shift_right<const N: i32>(self) -> Self;
    /// `self * 2^N`, which is less than 2^64.
    fn shift_left<const N: i32>(self) -> Self;
    /// `self * 2^N` modulo 2^64.
    fn shift_left_and_drop<const N: i32>(self) -> Self;
    /// Lanes of `mask` (bit `i` for lane `i`) from `other`, the rest from `self`.
    fn select(mask: u8, zero: Self, one: Self) -> Self;
    /// Word `w` of `rows[lane]` becomes lane `lane` of register `w`.
    fn load(rows: &[[u64; 4]]) -> [Self; 4];
    /// The same for rows of eight words.
    fn load_lines(rows: &[&Line; MAX_LANES]) -> [Self; 8];
    /// The same for the first four of the eight words.
    fn load_half_lines(rows: &[&Line; MAX_LANES]) -> [Self; 4];
    /// The inverse of `load`.
    fn store(words: &[Self; 4], rows: &mut [[u64; 4]]);
    /// The inverse of `load_lines`, for neighbours in memory.
    fn store_lines(words: &[Self; 8], rows: &mut [Line]);
    /// Asserts in tests that each word is less than `2^bits`.
    #[inline(always)]
    fn assert_below(self, _bits: u32) {}
}

/// The same number in each lane.
#[inline(always)]
pub(crate) fn splat_limbs<W: Words, const N: usize>(limbs: [u64; N]) -> [W; N] {
    let mut splat = [W::splat(0); N];
    for (out, limb) in splat.iter_mut().zip(limbs) {
        *out = W::splat(limb);
    }
    splat
}

/// The sum, limb by limb.
#[inline(always)]
pub(crate) fn add_limbs<W: Words, const N: usize>(a: &[W; N], b: &[W; N]) -> [W; N] {
    let mut sum = *a;
    for (limb, b) in sum.iter_mut().zip(b) {
        *limb = limb.add(*b);
    }
    sum
}

/// `a + times * p - b`, limb by limb.
#[inline(always)]
pub(crate) fn sub_limbs<W: Words, const N: usize>(
    (a, b): (&[W; N], &[W; N]),
    (times, p): (u64, &[u64; N]),
) -> [W; N] {
    let mut difference = *a;
    for i in 0..N {
        difference[i] = difference[i].add(W::splat(times * p[i])).sub(b[i]);
    }
    difference
}

/// Lanes of `mask` from `one`, the rest from `zero`.
#[inline(always)]
pub(crate) fn select_limbs<W: Words, const N: usize>(
    mask: u8,
    zero: &[W; N],
    one: &[W; N],
) -> [W; N] {
    let mut limbs = *zero;
    for (limb, one) in limbs.iter_mut().zip(one) {
        *limb = W::select(mask, *limb, *one);
    }
    limbs
}

/// Words with the multiplication of SSE and AVX2 (`vpmuludq`).
pub(crate) trait Multiply32: Words {
    /// The product. Both factors are less than 2^32: the hardware ignores the upper half.
    fn multiply(self, other: Self) -> Self;
    /// [`crate::radix29::product`], out of line where that is faster.
    fn product(a: &[Self; 9], b: &[Self; 9]) -> [Self; 9];
    /// [`crate::radix29::square`].
    fn square(a: &[Self; 9]) -> [Self; 9];
    /// [`crate::radix29::sum_of_products`].
    fn sum_of_products(a: &[Self; 9], b: &[Self; 9], c: &[Self; 9], d: &[Self; 9]) -> [Self; 9];
}

/// Words with the multiplications of AVX-512 IFMA (`vpmadd52luq`, `vpmadd52huq`).
pub(crate) trait Multiply52: Words {
    /// `self` plus the low 52 bits of `a * b`. The hardware ignores bits 52 to 63 of both factors.
    fn add_low(self, a: Self, b: Self) -> Self;
    /// `self` plus bits 52 to 103 of that product.
    fn add_high(self, a: Self, b: Self) -> Self;
}

/// Words in plain Rust, for tests: every violated interval panics. Out of line, because kernels are
/// long.
#[cfg(test)]
pub(crate) mod emulated {
    use super::{Line, MAX_LANES, Multiply32, Multiply52, Words};
    use crate::radix29;
    use core::array::from_fn;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Emulated<const L: usize>([u64; L]);

    impl<const L: usize> Emulated<L> {
        fn each(self, other: Self, operation: impl Fn(u64, u64) -> Option<u64>) -> Self {
            Self(from_fn(|i| operation(self.0[i], other.0[i]).expect("a violated interval")))
        }
    }

    impl<const L: usize> Words for Emulated<L> {
        const LANES: usize = L;

        #[inline(never)]
        fn splat(word: u64) -> Self {
            Self([word; L])
        }
        #[inline(never)]
        fn add(self, other: Self) -> Self {
            self.each(other, u64::checked_add)
        }
        #[inline(never)]
        fn sub(self, other: Self) -> Self {
            self.each(other, u64::checked_sub)
        }
        #[inline(never)]
        fn and(self, other: Self) -> Self {
            self.each(other, |a, b| Some(a & b))
        }
        #[inline(never)]
        fn or(self, other: Self) -> Self {
            self.each(other, |a, b| Some(a | b))
        }
        #[inline(never)]
        fn shift_right<const N: i32>(self) -> Self {
            Self(self.0.map(|a| a >> N))
        }
        #[inline(never)]
        fn shift_left<const N: i32>(self) -> Self {
            self.each(self, |a, _| (a << N >> N == a).then_some(a << N))
        }
        #[inline(never)]
        fn shift_left_and_drop<const N: i32>(self) -> Self {
            Self(self.0.map(|a| a << N))
        }
        #[inline(never)]
        fn select(mask: u8, zero: Self, one: Self) -> Self {
            Self(from_fn(|i| if mask >> i & 1 == 1 { one.0[i] } else { zero.0[i] }))
        }
        #[inline(never)]
        fn load(rows: &[[u64; 4]]) -> [Self; 4] {
            from_fn(|w| Self(from_fn(|i| rows[i][w])))
        }
        #[inline(never)]
        fn load_lines(rows: &[&Line; MAX_LANES]) -> [Self; 8] {
            from_fn(|w| Self(from_fn(|i| rows[i].0[w])))
        }
        #[inline(never)]
        fn load_half_lines(rows: &[&Line; MAX_LANES]) -> [Self; 4] {
            from_fn(|w| Self(from_fn(|i| rows[i].0[w])))
        }
        #[inline(never)]
        fn store(words: &[Self; 4], rows: &mut [[u64; 4]]) {
            for (i, row) in rows.iter_mut().enumerate().take(L) {
                *row = words.map(|word| word.0[i]);
            }
        }
        #[inline(never)]
        fn store_lines(words: &[Self; 8], rows: &mut [Line]) {
            for (i, row) in rows.iter_mut().enumerate().take(L) {
                *row = Line(words.map(|word| word.0[i]));
            }
        }
        #[inline(never)]
        fn assert_below(self, bits: u32) {
            assert!(self.0.iter().all(|word| word >> bits == 0), "{self:x?} has over {bits} bits");
        }
    }

    impl<const L: usize> Multiply32 for Emulated<L> {
        #[inline(never)]
        fn multiply(self, other: Self) -> Self {
            self.assert_below(32);
            other.assert_below(32);
            self.each(other, u64::checked_mul)
        }
        #[inline(never)]
        fn product(a: &[Self; 9], b: &[Self; 9]) -> [Self; 9] {
            radix29::product(a, b)
        }
        #[inline(never)]
        fn square(a: &[Self; 9]) -> [Self; 9] {
            radix29::square(a)
        }
        #[inline(never)]
        fn sum_of_products(
            a: &[Self; 9],
            b: &[Self; 9],
            c: &[Self; 9],
            d: &[Self; 9],
        ) -> [Self; 9] {
            radix29::sum_of_products(a, b, c, d)
        }
    }

    const LOW_52: u64 = (1 << 52) - 1;

    impl<const L: usize> Multiply52 for Emulated<L> {
        #[inline(never)]
        fn add_low(self, a: Self, b: Self) -> Self {
            let low = |a: u64, b: u64| Some((a & LOW_52).wrapping_mul(b & LOW_52) & LOW_52);
            self.add(a.each(b, low))
        }
        #[inline(never)]
        fn add_high(self, a: Self, b: Self) -> Self {
            let high = |a, b| ((u128::from(a & LOW_52) * u128::from(b & LOW_52)) >> 52) as u64;
            self.add(a.each(b, |a, b| Some(high(a, b))))
        }
    }
}
