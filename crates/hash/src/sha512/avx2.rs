//! AVX2: four messages in the four 64-bit lanes of a register.
#![allow(unsafe_code)] // Loads, stores and `target_feature` functions.

use super::{BLOCK, PaddedSha512, Sha512Lanes, States, implement_lanes};
use crate::avx2::{Avx2, choose, load_bytes, majority, store_bytes, xor3};
use core::arch::x86_64::*;
use core::ops::Range;

implement_lanes!(Avx2, __m256i, 4, #[target_feature(enable = "avx2")]);

#[inline]
#[target_feature(enable = "avx2")]
fn constant(value: u64) -> __m256i {
    _mm256_set1_epi64x(value as i64)
}

#[inline]
#[target_feature(enable = "avx2")]
fn add(a: __m256i, b: __m256i) -> __m256i {
    _mm256_add_epi64(a, b)
}

#[inline]
#[target_feature(enable = "avx2")]
fn ror<const N: i32>(a: __m256i) -> __m256i {
    if N == 8 {
        // A rotation by whole bytes takes one instruction instead of three.
        let rotated = _mm_set_epi8(8, 15, 14, 13, 12, 11, 10, 9, 0, 7, 6, 5, 4, 3, 2, 1);
        return _mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(rotated));
    }
    // Registers hold the counts because `64 - N` cannot be a constant argument; the compiler turns them back
    // into constants.
    let right = _mm256_srl_epi64(a, _mm_cvtsi32_si128(N));
    _mm256_or_si256(right, _mm256_sll_epi64(a, _mm_cvtsi32_si128(64 - N)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn shr<const N: i32>(a: __m256i) -> __m256i {
    _mm256_srli_epi64::<N>(a)
}

#[inline]
#[target_feature(enable = "avx2")]
fn swap_bytes(a: __m256i) -> __m256i {
    let reversed = _mm_set_epi8(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(reversed))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(words: &[u64; 4]) -> __m256i {
    // SAFETY: reads 32 bytes from an array of 32; needs no alignment.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(a: __m256i, words: &mut [u64; 4]) {
    // SAFETY: writes 32 bytes to an array of 32; needs no alignment.
    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), a) }
}

/// Turns rows of four words into words of four rows, and reverses the bytes of each word.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (ab, ab_odd) = (_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    let (cd, cd_odd) = (_mm256_unpacklo_epi64(c, d), _mm256_unpackhi_epi64(c, d));
    [
        swap_bytes(_mm256_permute2x128_si256::<0x20>(ab, cd)),
        swap_bytes(_mm256_permute2x128_si256::<0x20>(ab_odd, cd_odd)),
        swap_bytes(_mm256_permute2x128_si256::<0x31>(ab, cd)),
        swap_bytes(_mm256_permute2x128_si256::<0x31>(ab_odd, cd_odd)),
    ]
}

/// Loads the four words at byte `32 * quarter` of each block.
#[inline]
#[target_feature(enable = "avx2")]
fn quarter<const BYTES: usize>(blocks: [&[u8; BYTES]; 4], quarter: usize) -> [__m256i; 4] {
    let mut rows = [constant(0); 4];
    for (row, block) in rows.iter_mut().zip(blocks) {
        *row = load_bytes(&block.as_chunks().0[quarter]);
    }
    transpose(rows)
}

#[inline]
#[target_feature(enable = "avx2")]
fn words_of_blocks(messages: &[PaddedSha512<'_>; 4], block: usize) -> [__m256i; 16] {
    let mut buffers = [[0; BLOCK]; 4];
    let mut blocks = [&[0; BLOCK]; 4];
    for ((chosen, buffer), message) in blocks.iter_mut().zip(&mut buffers).zip(messages) {
        *chosen = &message.blocks_from(block, buffer)[0];
    }
    let mut words = [constant(0); 16];
    for (i, words) in words.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *words = quarter(blocks, i);
    }
    words
}

#[inline]
#[target_feature(enable = "avx2")]
fn words_of_64(pairs: &[[u8; 64]; 4]) -> [__m256i; 8] {
    let pairs = pairs.each_ref();
    let ([a, b, c, d], [e, f, g, h]) = (quarter(pairs, 0), quarter(pairs, 1));
    [a, b, c, d, e, f, g, h]
}

#[inline]
#[target_feature(enable = "avx2")]
fn digests(state: &[__m256i; 4]) -> [[u8; 32]; 4] {
    let mut out = [[0; 32]; 4];
    for (out, row) in out.iter_mut().zip(transpose(*state)) {
        store_bytes(row, out);
    }
    out
}
