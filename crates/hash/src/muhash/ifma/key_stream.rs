//! From keys to numbers: ChaCha20 of sixteen keys in the 32-bit lanes of a register, and its words
//! put together to limbs of 48 bits.
//!
//! Three words are two limbs. A limb is three neighbours among the 16-bit pieces of two words, and
//! one permutation fetches them for eight keys, so nothing is transposed.
#![allow(unsafe_code)] // Loads.

use super::{LIMBS, Numbers};
use crate::muhash::chacha20::{define_key_stream, words_of_keys};
use core::arch::x86_64::*;

/// Keys that are expanded at once.
pub(super) const KEYS: usize = 16;

/// Words of a key stream that are kept at a time: three blocks, which are 32 limbs.
pub(super) const WORDS: usize = 48;
pub(super) type Words = [__m512i; WORDS];

define_key_stream!(__m512i, #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]);

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn constant(value: u32) -> __m512i {
    _mm512_set1_epi32(value as i32)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn add_32(a: __m512i, b: __m512i) -> __m512i {
    _mm512_add_epi32(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn xor(a: __m512i, b: __m512i) -> __m512i {
    _mm512_xor_si512(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn rotate_left<const BITS: i32>(a: __m512i) -> __m512i {
    _mm512_rol_epi32::<BITS>(a)
}

/// Where the pieces of a limb are, for eight keys from `first` on: piece `2 * lane + half` of the
/// first word, or that of the second and 32 more. The lowest is `piece` pieces into the words.
const fn places(first: usize, piece: usize) -> [u16; 32] {
    let mut places = [0; 32];
    let mut at = 0;
    while at < 32 {
        let from = piece + at % 4;
        places[at] = (32 * (from / 2 % 2) + 2 * (first + at / 4) + from % 2) as u16;
        at += 1;
    }
    places
}

/// By group of eight keys, and by which of the two limbs.
const PLACES: [[[u16; 32]; 2]; 2] = [[places(0, 0), places(0, 1)], [places(8, 0), places(8, 1)]];

/// The lowest three pieces of four, in the lanes that have a key. Those are the first ones.
const fn pieces(present: u8) -> u32 {
    let four_for_each = (1u64 << (4 * present.count_ones())) - 1;
    0x7777_7777 & four_for_each as u32
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn load(words: &[u32; 16]) -> __m512i {
    // SAFETY: 64 bytes are read from an array of 64; no alignment is needed.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn load_places(places: &[u16; 32]) -> __m512i {
    // SAFETY: 64 bytes are read from an array of 64; no alignment is needed.
    unsafe { _mm512_loadu_si512(places.as_ptr().cast()) }
}

/// The numbers of at most sixteen keys, the first eight in `out[0]`; a lane without a key gets
/// the number one.
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
pub(super) fn numbers_of(keys: &[[u8; 32]], words: &mut Words, out: &mut [Numbers; 2]) {
    let mut lanes = [constant(0); 8];
    for (lanes, words) in lanes.iter_mut().zip(&words_of_keys(keys)) {
        *lanes = load(words);
    }
    // By group, a bit for each lane that has a key.
    let present = ((1u32 << keys.len().min(KEYS)) - 1).to_le_bytes();
    let present = [present[0], present[1]];
    for part in 0..2 {
        for (block, words) in (0..).zip(words.as_chunks_mut().0) {
            key_stream(&lanes, 3 * part + block, words);
        }
        let first = LIMBS / 2 * part as usize;
        for ((places, present), out) in PLACES.iter().zip(present).zip(&mut *out) {
            let pieces = pieces(present);
            let places = [load_places(&places[0]), load_places(&places[1])];
            let limbs = out[first..][..LIMBS / 2].as_chunks_mut().0;
            for ([low, high], [a, b, c]) in limbs.iter_mut().zip(words.as_chunks().0) {
                *low = _mm512_maskz_permutex2var_epi16(pieces, *a, places[0], *b);
                *high = _mm512_maskz_permutex2var_epi16(pieces, *b, places[1], *c);
            }
        }
    }
    for (present, numbers) in present.into_iter().zip(out) {
        let one = _mm512_set1_epi64(1);
        numbers[0] = _mm512_mask_mov_epi64(one, present, numbers[0]);
    }
}
