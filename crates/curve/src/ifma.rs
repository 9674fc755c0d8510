//! AVX-512 IFMA: eight lanes of 64-bit words, for [`crate::radix52`].
//!
//! Invariant: code reaches these operations only through a [`crate::Kernel`] that this processor
//! can run.
#![allow(unsafe_code)] // Intrinsics, loads and stores.

use crate::radix52::Radix52;
use crate::words::{Line, MAX_LANES, Multiply52, Words};
use core::arch::x86_64::*;

/// Eight field elements.
pub(crate) type FieldIfma = Radix52<Ifma>;

/// Eight words. The crate makes one only after it has detected AVX-512 IFMA, see the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ifma(__m512i);

/// Wraps intrinsics that need nothing but AVX-512F and IFMA.
macro_rules! ifma {
    ($value:expr) => {{
        // SAFETY: the processor has AVX-512F and IFMA, see the module.
        let word = unsafe { $value };
        Ifma(word)
    }};
}

/// Blocks of 128 bits: the even ones of `a`, then those of `b`.
#[inline(always)]
fn even_blocks(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the processor has AVX-512F, see the module.
    unsafe { _mm512_shuffle_i64x2::<0x88>(a, b) }
}

/// The same for the odd ones.
#[inline(always)]
fn odd_blocks(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the processor has AVX-512F, see the module.
    unsafe { _mm512_shuffle_i64x2::<0xdd>(a, b) }
}

/// Word `2 * i` of `a`, then of `b`, for each i.
#[inline(always)]
fn even_words(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the processor has AVX-512F, see the module.
    unsafe { _mm512_unpacklo_epi64(a, b) }
}

/// Word `2 * i + 1` of `a`, then of `b`, for each i.
#[inline(always)]
fn odd_words(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the processor has AVX-512F, see the module.
    unsafe { _mm512_unpackhi_epi64(a, b) }
}

/// Eight rows of eight words, transposed: in pairs of rows, fours, and eights.
#[inline(always)]
fn transpose(rows: [__m512i; 8]) -> [Ifma; 8] {
    let [r0, r1, r2, r3, r4, r5, r6, r7] = rows;
    // Words 0 2 4 6 and 1 3 5 7 of pairs of rows.
    let (even_01, odd_01) = (even_words(r0, r1), odd_words(r0, r1));
    let (even_23, odd_23) = (even_words(r2, r3), odd_words(r2, r3));
    let (even_45, odd_45) = (even_words(r4, r5), odd_words(r4, r5));
    let (even_67, odd_67) = (even_words(r6, r7), odd_words(r6, r7));
    // Words 0 4, 1 5, 2 6 and 3 7 of fours.
    let (w04, w26) = (even_blocks(even_01, even_23), odd_blocks(even_01, even_23));
    let (w15, w37) = (even_blocks(odd_01, odd_23), odd_blocks(odd_01, odd_23));
    let (v04, v26) = (even_blocks(even_45, even_67), odd_blocks(even_45, even_67));
    let (v15, v37) = (even_blocks(odd_45, odd_67), odd_blocks(odd_45, odd_67));
    [
        Ifma(even_blocks(w04, v04)),
        Ifma(even_blocks(w15, v15)),
        Ifma(even_blocks(w26, v26)),
        Ifma(even_blocks(w37, v37)),
        Ifma(odd_blocks(w04, v04)),
        Ifma(odd_blocks(w15, v15)),
        Ifma(odd_blocks(w26, v26)),
        Ifma(odd_blocks(w37, v37)),
    ]
}

/// Reads eight words.
#[inline(always)]
fn read(line: &Line) -> __m512i {
    // SAFETY: the processor has AVX-512F; reads 64 bytes from an array of 64; needs no alignment.
    unsafe { _mm512_loadu_si512(line.0.as_ptr().cast()) }
}

/// Writes eight words.
#[inline(always)]
fn write(words: &mut [u64; 8], value: Ifma) {
    // SAFETY: the processor has AVX-512F; writes 64 bytes to an array of 64; needs no alignment.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), value.0) }
}

impl Words for Ifma {
    const LANES: usize = 8;

    #[inline(always)]
    fn splat(word: u64) -> Self {
        ifma!(_mm512_set1_epi64(word as i64))
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        ifma!(_mm512_add_epi64(self.0, other.0))
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        ifma!(_mm512_sub_epi64(self.0, other.0))
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        ifma!(_mm512_and_si512(self.0, other.0))
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        ifma!(_mm512_or_si512(self.0, other.0))
    }
    // A register holds the count, because the intrinsic with a constant wants a `u32`; the compiler
    // turns it back into a constant.
    #[inline(always)]
    fn shift_right<const N: i32>(self) -> Self {
        ifma!(_mm512_srl_epi64(self.0, _mm_cvtsi32_si128(N)))
    }
    #[inline(always)]
    fn shift_left<const N: i32>(self) -> Self {
        ifma!(_mm512_sll_epi64(self.0, _mm_cvtsi32_si128(N)))
    }
    #[inline(always)]
    fn shift_left_and_drop<const N: i32>(self) -> Self {
        self.shift_left::<N>()
    }
    #[inline(always)]
    fn select(mask: u8, zero: Self, one: Self) -> Self {
        ifma!(_mm512_mask_blend_epi64(mask, zero.0, one.0))
    }
    /// Through memory: `load` is rare.
    #[inline(always)]
    fn load(rows: &[[u64; 4]]) -> [Self; 4] {
        let mut words = [Line([0; 8]); 4];
        for (lane, row) in rows[..8].iter().enumerate() {
            for (word, value) in words.iter_mut().zip(row) {
                word.0[lane] = *value;
            }
        }
        [Self(read(&words[0])), Self(read(&words[1])), Self(read(&words[2])), Self(read(&words[3]))]
    }
    #[inline(always)]
    fn load_lines(rows: &[&Line; MAX_LANES]) -> [Self; 8] {
        let mut loaded = [Self::splat(0).0; 8];
        for (register, row) in loaded.iter_mut().zip(rows) {
            *register = read(row);
        }
        transpose(loaded)
    }
    #[inline(always)]
    fn load_half_lines(rows: &[&Line; MAX_LANES]) -> [Self; 4] {
        let [x0, x1, x2, x3, ..] = Self::load_lines(rows);
        [x0, x1, x2, x3]
    }
    /// Through memory: `store` is rare.
    #[inline(always)]
    fn store(words: &[Self; 4], rows: &mut [[u64; 4]]) {
        for (w, word) in words.iter().enumerate() {
            let mut lanes = [0; 8];
            write(&mut lanes, *word);
            for (row, lane) in rows[..8].iter_mut().zip(lanes) {
                row[w] = lane;
            }
        }
    }
    #[inline(always)]
    fn store_lines(words: &[Self; 8], rows: &mut [Line]) {
        let mut registers = [words[0].0; 8];
        for (register, word) in registers.iter_mut().zip(words) {
            *register = word.0;
        }
        for (row, lane) in rows[..8].iter_mut().zip(transpose(registers)) {
            write(&mut row.0, lane);
        }
    }
}

impl Multiply52 for Ifma {
    #[inline(always)]
    fn add_low(self, a: Self, b: Self) -> Self {
        ifma!(_mm512_madd52lo_epu64(self.0, a.0, b.0))
    }
    #[inline(always)]
    fn add_high(self, a: Self, b: Self) -> Self {
        ifma!(_mm512_madd52hi_epu64(self.0, a.0, b.0))
    }
}
