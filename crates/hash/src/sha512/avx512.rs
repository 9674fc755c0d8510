//! AVX-512: eight messages in the eight 64-bit lanes of a register.
//!
//! A rotation takes one instruction, and so does any function of three bits.
#![allow(unsafe_code)] // Loads, stores and `target_feature` functions.

use super::{BLOCK, PaddedSha512, Sha512Lanes, States, implement_lanes};
use crate::avx512::{
    Avx512, bytes_at, choose, halves, majority, quarters, store_half, whole, xor3,
};
use core::arch::x86_64::*;
use core::ops::Range;

implement_lanes!(Avx512, __m512i, 8, #[target_feature(enable = "avx512f,avx512bw,bmi2")]);

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn constant(value: u64) -> __m512i {
    _mm512_set1_epi64(value as i64)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn add(a: __m512i, b: __m512i) -> __m512i {
    _mm512_add_epi64(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn ror<const N: i32>(a: __m512i) -> __m512i {
    _mm512_ror_epi64::<N>(a)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn shr<const N: u32>(a: __m512i) -> __m512i {
    _mm512_srli_epi64::<N>(a)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn swap_bytes(a: __m512i) -> __m512i {
    let reversed = _mm_set_epi8(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    _mm512_shuffle_epi8(a, _mm512_broadcast_i32x4(reversed))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn load(words: &[u64; 8]) -> __m512i {
    // SAFETY: reads 64 bytes from an array of 64; needs no alignment.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn store(a: __m512i, words: &mut [u64; 8]) {
    // SAFETY: writes 64 bytes to an array of 64; needs no alignment.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), a) }
}

/// Turns rows of eight words into words of eight rows, and big-endian bytes into numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn transpose(rows: &[__m512i; 8]) -> [__m512i; 8] {
    let mut even = [constant(0); 4];
    let mut odd = [constant(0); 4];
    for (i, [upper, lower]) in rows.as_chunks().0.iter().enumerate() {
        even[i] = _mm512_unpacklo_epi64(*upper, *lower);
        odd[i] = _mm512_unpackhi_epi64(*upper, *lower);
    }
    // Words 2c and 2c + 1 of the rows are in quarter c of these registers.
    let [a, c, e, g] = quarters(even[0], even[1], even[2], even[3]);
    let [b, d, f, h] = quarters(odd[0], odd[1], odd[2], odd[3]);
    let mut words = [a, b, c, d, e, f, g, h];
    for word in &mut words {
        *word = swap_bytes(*word);
    }
    words
}

/// Loads the words of half a block of each message; that half begins at `first`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn words_of_half(messages: &[PaddedSha512<'_>; 8], first: usize) -> [__m512i; 8] {
    let mut rows = [constant(0); 8];
    for (row, message) in rows.iter_mut().zip(messages) {
        *row = bytes_at(message, first);
    }
    transpose(&rows)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn words_of_blocks(messages: &[PaddedSha512<'_>; 8], block: usize) -> [__m512i; 16] {
    let mut words = [constant(0); 16];
    words[..8].copy_from_slice(&words_of_half(messages, block * BLOCK));
    words[8..].copy_from_slice(&words_of_half(messages, block * BLOCK + BLOCK / 2));
    words
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn words_of_64(pairs: &[[u8; 64]; 8]) -> [__m512i; 8] {
    let mut rows = [constant(0); 8];
    for (row, pair) in rows.iter_mut().zip(pairs) {
        *row = whole(pair);
    }
    transpose(&rows)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn digests(state: &[__m512i; 4]) -> [[u8; 32]; 8] {
    let [a, b, c, d] = *state;
    let (a, b, c, d) = (swap_bytes(a), swap_bytes(b), swap_bytes(c), swap_bytes(d));
    let even = halves(_mm512_unpacklo_epi64(a, b), _mm512_unpacklo_epi64(c, d));
    let odd = halves(_mm512_unpackhi_epi64(a, b), _mm512_unpackhi_epi64(c, d));
    let mut out = [[0; 32]; 8];
    for (i, [left, right]) in out.as_chunks_mut().0.iter_mut().enumerate() {
        store_half(even[i], left);
        store_half(odd[i], right);
    }
    out
}
