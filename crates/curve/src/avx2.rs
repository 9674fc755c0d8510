//! AVX2: four lanes of 64-bit words, for [`crate::radix29`].
//!
//! Invariant: code reaches these operations only through a [`crate::Kernel`] that this processor
//! can run.
#![allow(unsafe_code)] // Intrinsics, loads and stores.

use crate::radix29::{self, Radix29};
use crate::words::{Line, MAX_LANES, Multiply32, Words};
use core::arch::x86_64::*;

/// Four field elements.
pub(crate) type FieldAvx2 = Radix29<Avx2>;

/// Four words. The crate makes one only after it has detected AVX2, see the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(__m256i);

/// Wraps intrinsics that need nothing but AVX2.
macro_rules! avx2 {
    ($value:expr) => {{
        // SAFETY: the processor has AVX2, see the module.
        let word = unsafe { $value };
        Avx2(word)
    }};
}

/// Four rows of four words, transposed.
#[inline(always)]
fn transpose(rows: [__m256i; 4]) -> [Avx2; 4] {
    // SAFETY: the processor has AVX2, see the module.
    unsafe {
        let even_01 = _mm256_unpacklo_epi64(rows[0], rows[1]);
        let odd_01 = _mm256_unpackhi_epi64(rows[0], rows[1]);
        let even_23 = _mm256_unpacklo_epi64(rows[2], rows[3]);
        let odd_23 = _mm256_unpackhi_epi64(rows[2], rows[3]);
        [
            Avx2(_mm256_permute2x128_si256::<0x20>(even_01, even_23)),
            Avx2(_mm256_permute2x128_si256::<0x20>(odd_01, odd_23)),
            Avx2(_mm256_permute2x128_si256::<0x31>(even_01, even_23)),
            Avx2(_mm256_permute2x128_si256::<0x31>(odd_01, odd_23)),
        ]
    }
}

/// Words `4 * half` to `4 * half + 3` of a line.
#[inline(always)]
fn load_half(line: &Line, half: usize) -> __m256i {
    let words = &line.0[4 * half..4 * half + 4];
    // SAFETY: the processor has AVX2; reads 32 bytes from a slice of four words; needs no
    // alignment.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

#[inline(always)]
fn load_halves(rows: &[&Line; MAX_LANES], half: usize) -> [Avx2; 4] {
    let load = [
        load_half(rows[0], half),
        load_half(rows[1], half),
        load_half(rows[2], half),
        load_half(rows[3], half),
    ];
    transpose(load)
}

/// Writes a register to four words.
#[inline(always)]
fn write(words: &mut [u64], value: Avx2) {
    let words = &mut words[..4];
    // SAFETY: the processor has AVX2; writes 32 bytes to a slice of four words; needs no alignment.
    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), value.0) }
}

impl Words for Avx2 {
    const LANES: usize = 4;

    #[inline(always)]
    fn splat(word: u64) -> Self {
        avx2!(_mm256_set1_epi64x(word as i64))
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        avx2!(_mm256_add_epi64(self.0, other.0))
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        avx2!(_mm256_sub_epi64(self.0, other.0))
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        avx2!(_mm256_and_si256(self.0, other.0))
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        avx2!(_mm256_or_si256(self.0, other.0))
    }
    #[inline(always)]
    fn shift_right<const N: i32>(self) -> Self {
        avx2!(_mm256_srli_epi64::<N>(self.0))
    }
    #[inline(always)]
    fn shift_left<const N: i32>(self) -> Self {
        avx2!(_mm256_slli_epi64::<N>(self.0))
    }
    #[inline(always)]
    fn shift_left_and_drop<const N: i32>(self) -> Self {
        self.shift_left::<N>()
    }
    #[inline(always)]
    fn select(mask: u8, zero: Self, one: Self) -> Self {
        let lane = |i: u8| -i64::from(mask >> i & 1);
        let lanes = [lane(0), lane(1), lane(2), lane(3)];
        avx2!({
            let lanes = _mm256_set_epi64x(lanes[3], lanes[2], lanes[1], lanes[0]);
            _mm256_blendv_epi8(zero.0, one.0, lanes)
        })
    }
    #[inline(always)]
    fn load(rows: &[[u64; 4]]) -> [Self; 4] {
        let rows = &rows[..4];
        // SAFETY: the processor has AVX2; reads 32 bytes from an array of 32; needs no alignment.
        let load = |row: &[u64; 4]| unsafe { _mm256_loadu_si256(row.as_ptr().cast()) };
        transpose([load(&rows[0]), load(&rows[1]), load(&rows[2]), load(&rows[3])])
    }
    #[inline(always)]
    fn load_lines(rows: &[&Line; MAX_LANES]) -> [Self; 8] {
        let [x0, x1, x2, x3] = load_halves(rows, 0);
        let [y0, y1, y2, y3] = load_halves(rows, 1);
        [x0, x1, x2, x3, y0, y1, y2, y3]
    }
    #[inline(always)]
    fn load_half_lines(rows: &[&Line; MAX_LANES]) -> [Self; 4] {
        load_halves(rows, 0)
    }
    #[inline(always)]
    fn store(words: &[Self; 4], rows: &mut [[u64; 4]]) {
        let lanes = transpose([words[0].0, words[1].0, words[2].0, words[3].0]);
        for (row, lane) in rows[..4].iter_mut().zip(lanes) {
            write(row, lane);
        }
    }
    #[inline(always)]
    fn store_lines(words: &[Self; 8], rows: &mut [Line]) {
        let xs = transpose([words[0].0, words[1].0, words[2].0, words[3].0]);
        let ys = transpose([words[4].0, words[5].0, words[6].0, words[7].0]);
        for (i, row) in rows[..4].iter_mut().enumerate() {
            write(&mut row.0[..4], xs[i]);
            write(&mut row.0[4..], ys[i]);
        }
    }
}

impl Multiply32 for Avx2 {
    #[inline(always)]
    fn multiply(self, other: Self) -> Self {
        avx2!(_mm256_mul_epu32(self.0, other.0))
    }
    #[inline(always)]
    fn product(a: &[Self; 9], b: &[Self; 9]) -> [Self; 9] {
        // SAFETY: the processor has AVX2, see the module.
        unsafe { product(a, b) }
    }
    #[inline(always)]
    fn square(a: &[Self; 9]) -> [Self; 9] {
        // SAFETY: the processor has AVX2, see the module.
        unsafe { square(a) }
    }
    #[inline(always)]
    fn sum_of_products(a: &[Self; 9], b: &[Self; 9], c: &[Self; 9], d: &[Self; 9]) -> [Self; 9] {
        // SAFETY: the processor has AVX2, see the module.
        unsafe { sum_of_products(a, b, c, d) }
    }
}

// Out of line, so that the whole of a point addition stays in the cache of decoded instructions.

#[inline(never)]
#[target_feature(enable = "avx2")]
fn product(a: &[Avx2; 9], b: &[Avx2; 9]) -> [Avx2; 9] {
    radix29::product(a, b)
}

#[inline(never)]
#[target_feature(enable = "avx2")]
fn square(a: &[Avx2; 9]) -> [Avx2; 9] {
    radix29::square(a)
}

#[inline(never)]
#[target_feature(enable = "avx2")]
fn sum_of_products(a: &[Avx2; 9], b: &[Avx2; 9], c: &[Avx2; 9], d: &[Avx2; 9]) -> [Avx2; 9] {
    radix29::sum_of_products(a, b, c, d)
}
