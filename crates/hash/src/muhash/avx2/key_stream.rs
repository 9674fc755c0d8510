//! From keys to numbers: ChaCha20 of eight keys in the 32-bit lanes of a register, and its words
//! cut into limbs of 28 bits.
//!
//! Seven words are eight limbs, still in 32-bit lanes; the even lanes then become the first four
//! numbers, the odd ones the other four.
#![allow(unsafe_code)] // Loads.

use super::{LIMB_BITS, Numbers};
use crate::muhash::chacha20::{define_key_stream, words_of_keys};
use core::arch::x86_64::*;

/// Keys that are expanded at once.
pub(super) const KEYS: usize = 8;

/// Six blocks, zeros up to a multiple of seven words, and one more for the last limb to look at.
pub(super) const WORDS: usize = 99;
pub(super) type Words = [__m256i; WORDS];

const BLOCKS: usize = 6;

define_key_stream!(__m256i, #[target_feature(enable = "avx2")]);

#[inline]
#[target_feature(enable = "avx2")]
fn constant(value: u32) -> __m256i {
    _mm256_set1_epi32(value as i32)
}

#[inline]
#[target_feature(enable = "avx2")]
fn add_32(a: __m256i, b: __m256i) -> __m256i {
    _mm256_add_epi32(a, b)
}

#[inline]
#[target_feature(enable = "avx2")]
fn xor(a: __m256i, b: __m256i) -> __m256i {
    _mm256_xor_si256(a, b)
}

#[inline]
#[target_feature(enable = "avx2")]
fn rotate_left<const BITS: i32>(a: __m256i) -> __m256i {
    // By whole bytes it is a shuffle, one instruction instead of three.
    let bytes = match BITS {
        16 => _mm_set_epi8(13, 12, 15, 14, 9, 8, 11, 10, 5, 4, 7, 6, 1, 0, 3, 2),
        8 => _mm_set_epi8(14, 13, 12, 15, 10, 9, 8, 11, 6, 5, 4, 7, 2, 1, 0, 3),
        _ => return _mm256_or_si256(shift_left(a, BITS), shift_right(a, 32 - BITS)),
    };
    _mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(bytes))
}

/// By 32 bits gives zero.
#[inline]
#[target_feature(enable = "avx2")]
fn shift_left(a: __m256i, bits: i32) -> __m256i {
    _mm256_sll_epi32(a, _mm_cvtsi32_si128(bits))
}

#[inline]
#[target_feature(enable = "avx2")]
fn shift_right(a: __m256i, bits: i32) -> __m256i {
    _mm256_srl_epi32(a, _mm_cvtsi32_si128(bits))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(words: &[u32; 8]) -> __m256i {
    // SAFETY: 32 bytes are read from an array of 32; no alignment is needed.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

/// The numbers of at most eight keys, those of even index in `out[0]`; a lane without a key gets
/// the number one. `words` must have zeros behind the six blocks, and keeps them.
#[target_feature(enable = "avx2")]
pub(super) fn numbers_of(keys: &[[u8; 32]], words: &mut Words, out: &mut [Numbers; 2]) {
    let mut lanes = [constant(0); 8];
    for (lanes, words) in lanes.iter_mut().zip(&words_of_keys(keys)) {
        *lanes = load(words);
    }
    for (counter, words) in (0..).zip(words.as_chunks_mut().0).take(BLOCKS) {
        key_stream(&lanes, counter, words);
    }

    let (mut mask, mut one) = ([0; KEYS], [1; KEYS]);
    mask[..keys.len()].fill((1 << LIMB_BITS) - 1);
    one[..keys.len()].fill(0);
    let (mask, one) = (load(&mask), load(&one));
    let [even, odd] = out;
    let even_and_odd = even.as_chunks_mut().0.iter_mut().zip(odd.as_chunks_mut().0);
    for (i, (even, odd)) in even_and_odd.enumerate() {
        limbs_of_words(&words[7 * i..][..8], mask, even, odd);
    }
    even[0] = _mm256_or_si256(even[0], even_lanes(one));
    odd[0] = _mm256_or_si256(odd[0], odd_lanes(one));
}

#[inline]
#[target_feature(enable = "avx2")]
fn even_lanes(a: __m256i) -> __m256i {
    _mm256_and_si256(a, _mm256_set1_epi64x(0xffff_ffff))
}

#[inline]
#[target_feature(enable = "avx2")]
fn odd_lanes(a: __m256i) -> __m256i {
    _mm256_srli_epi64::<32>(a)
}

/// Eight limbs of seven words. The eighth word is looked at, but none of its bits is used.
#[inline]
#[target_feature(enable = "avx2")]
fn limbs_of_words(
    words: &[__m256i],
    mask: __m256i,
    even: &mut [__m256i; 8],
    odd: &mut [__m256i; 8],
) {
    for i in 0..8 {
        let (word, bit) = (28 * i / 32, (28 * i % 32) as i32);
        let low = shift_right(words[word], bit);
        let high = shift_left(words[word + 1], 32 - bit);
        let limb = _mm256_and_si256(_mm256_or_si256(low, high), mask);
        (even[i], odd[i]) = (even_lanes(limb), odd_lanes(limb));
    }
}
