//! AVX2: eight messages in the eight 32-bit lanes of a register.
//!
//! For processors with neither AVX-512 nor the SHA extensions. A rotation takes three instructions in AVX2,
//! so the SHA extensions are faster if a processor has both.
#![allow(unsafe_code)] // Loads, stores and `target_feature` functions.

use crate::lanes::{Columns, HashLanes, States, implement_lanes};
use crate::padded::PaddedMessage;
use core::arch::x86_64::*;
use core::ops::Range;

/// Proof that the processor has the instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    pub(crate) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }
}

implement_lanes!(Avx2, __m256i, 8, #[target_feature(enable = "avx2")]);

#[inline]
#[target_feature(enable = "avx2")]
fn constant(value: u32) -> __m256i {
    _mm256_set1_epi32(value as i32)
}

#[inline]
#[target_feature(enable = "avx2")]
fn add(a: __m256i, b: __m256i) -> __m256i {
    _mm256_add_epi32(a, b)
}

#[inline]
#[target_feature(enable = "avx2")]
fn ror<const N: i32>(a: __m256i) -> __m256i {
    // Registers hold the counts because `32 - N` cannot be a constant argument; the compiler turns them back
    // into constants.
    let right = _mm256_srl_epi32(a, _mm_cvtsi32_si128(N));
    _mm256_or_si256(right, _mm256_sll_epi32(a, _mm_cvtsi32_si128(32 - N)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn shr<const N: i32>(a: __m256i) -> __m256i {
    _mm256_srli_epi32::<N>(a)
}

#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn xor3(a: __m256i, b: __m256i, c: __m256i) -> __m256i {
    _mm256_xor_si256(_mm256_xor_si256(a, b), c)
}

#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn choose(e: __m256i, f: __m256i, g: __m256i) -> __m256i {
    _mm256_xor_si256(g, _mm256_and_si256(e, _mm256_xor_si256(f, g)))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn majority(a: __m256i, b: __m256i, c: __m256i) -> __m256i {
    let with_c = _mm256_and_si256(c, _mm256_or_si256(a, b));
    _mm256_or_si256(_mm256_and_si256(a, b), with_c)
}

#[inline]
#[target_feature(enable = "avx2")]
fn swap_bytes(a: __m256i) -> __m256i {
    let reversed = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    _mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(reversed))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(words: &[u32; 8]) -> __m256i {
    // SAFETY: reads 32 bytes from an array of 32; needs no alignment.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(a: __m256i, words: &mut [u32; 8]) {
    // SAFETY: writes 32 bytes to an array of 32; needs no alignment.
    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), a) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load_bytes(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: reads 32 bytes from an array of 32; needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn store_bytes(a: __m256i, out: &mut [u8; 32]) {
    // SAFETY: writes 32 bytes to an array of 32; needs no alignment.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), a) }
}

/// Transposes the two 4x4 squares of words in four rows.
#[inline]
#[target_feature(enable = "avx2")]
fn squares(a: __m256i, b: __m256i, c: __m256i, d: __m256i) -> [__m256i; 4] {
    let (ab, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (cd, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab, cd),
        _mm256_unpackhi_epi64(ab, cd),
        _mm256_unpacklo_epi64(ab_high, cd_high),
        _mm256_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// Turns rows of eight words into words of eight rows, and reverses the bytes of each word.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(rows: &[__m256i; 8]) -> [__m256i; 8] {
    let low = squares(rows[0], rows[1], rows[2], rows[3]);
    let high = squares(rows[4], rows[5], rows[6], rows[7]);
    let mut words = [constant(0); 8];
    for k in 0..4 {
        words[k] = swap_bytes(_mm256_permute2x128_si256::<0x20>(low[k], high[k]));
        words[4 + k] = swap_bytes(_mm256_permute2x128_si256::<0x31>(low[k], high[k]));
    }
    words
}

/// Loads the words of one block per lane.
#[inline]
#[target_feature(enable = "avx2")]
fn words_of(blocks: [&[u8; 64]; 8]) -> [__m256i; 16] {
    let (mut starts, mut ends) = ([constant(0); 8], [constant(0); 8]);
    for (lane, block) in blocks.into_iter().enumerate() {
        let (halves, _) = block.as_chunks();
        starts[lane] = load_bytes(&halves[0]);
        ends[lane] = load_bytes(&halves[1]);
    }
    let mut words = [constant(0); 16];
    words[..8].copy_from_slice(&transpose(&starts));
    words[8..].copy_from_slice(&transpose(&ends));
    words
}

#[inline]
#[target_feature(enable = "avx2")]
fn words_of_blocks(messages: &[PaddedMessage<'_>; 8], block: usize) -> [__m256i; 16] {
    let mut buffers = [[0; 64]; 8];
    let mut blocks = [&[0; 64]; 8];
    for ((chosen, buffer), message) in blocks.iter_mut().zip(&mut buffers).zip(messages) {
        *chosen = &message.blocks_from(block, buffer)[0];
    }
    words_of(blocks)
}

#[inline]
#[target_feature(enable = "avx2")]
fn words_of_64(blocks: &[[u8; 64]; 8]) -> [__m256i; 16] {
    words_of(blocks.each_ref())
}

#[inline]
#[target_feature(enable = "avx2")]
fn words_of_36(messages: &[[u8; 36]; 8]) -> [__m256i; 9] {
    let (mut rows, mut last) = ([constant(0); 8], [0; 8]);
    for (lane, message) in messages.iter().enumerate() {
        let (starts, _) = message.as_chunks();
        rows[lane] = load_bytes(&starts[0]);
        let (words, _) = message.as_chunks();
        last[lane] = u32::from_be_bytes(words[8]);
    }
    let [a, b, c, d, e, f, g, h] = transpose(&rows);
    [a, b, c, d, e, f, g, h, load(&last)]
}

#[inline]
#[target_feature(enable = "avx2")]
fn digests(state: &[__m256i; 8]) -> [[u8; 32]; 8] {
    let mut out = [[0; 32]; 8];
    for (out, row) in out.iter_mut().zip(transpose(state)) {
        store_bytes(row, out);
    }
    out
}

#[inline]
#[target_feature(enable = "avx2")]
fn even(a: __m256i) -> __m256i {
    _mm256_and_si256(a, _mm256_set1_epi64x(0xffff_ffff))
}

#[inline]
#[target_feature(enable = "avx2")]
fn odd(a: __m256i) -> __m256i {
    _mm256_srli_epi64::<32>(a)
}

#[inline]
#[target_feature(enable = "avx2")]
fn add_64(a: __m256i, b: __m256i) -> __m256i {
    _mm256_add_epi64(a, b)
}

#[inline]
#[target_feature(enable = "avx2")]
fn total_64(a: __m256i) -> u64 {
    let mut words = [0; 8];
    store(a, &mut words);
    words.chunks_exact(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32).sum()
}
