//! AVX-512: sixteen messages in the sixteen 32-bit lanes of a register.
//!
//! A rotation takes one instruction, and so does any function of three bits (`Ch`, `Maj`, exclusive or of
//! three), which makes this by far the fastest kernel. It reads blocks with masked loads, so it joins pieces
//! and padding in registers without copying.
#![allow(unsafe_code)] // Loads, stores and `target_feature` functions.

use crate::lanes::{Columns, HashLanes, States, implement_lanes};
use crate::padded::PaddedMessage;
use core::arch::x86_64::*;
use core::ops::Range;

/// Proof that the processor has the instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

impl Avx512 {
    pub(crate) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("bmi2");
        has.then_some(Self(()))
    }
}

implement_lanes!(Avx512, __m512i, 16, #[target_feature(enable = "avx512f,avx512bw,bmi2")]);

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn constant(value: u32) -> __m512i {
    _mm512_set1_epi32(value as i32)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn add(a: __m512i, b: __m512i) -> __m512i {
    _mm512_add_epi32(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn ror<const N: i32>(a: __m512i) -> __m512i {
    _mm512_ror_epi32::<N>(a)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn shr<const N: u32>(a: __m512i) -> __m512i {
    _mm512_srli_epi32::<N>(a)
}

// Truth tables for the ternary logic instruction: bit 4a + 2b + c of a constant is the function's value.

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
pub(crate) fn xor3(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    _mm512_ternarylogic_epi32::<0b1001_0110>(a, b, c)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
pub(crate) fn choose(e: __m512i, f: __m512i, g: __m512i) -> __m512i {
    _mm512_ternarylogic_epi32::<0b1100_1010>(e, f, g)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
pub(crate) fn majority(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    _mm512_ternarylogic_epi32::<0b1110_1000>(a, b, c)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn or3(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    _mm512_ternarylogic_epi32::<0b1111_1110>(a, b, c)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn swap_bytes(a: __m512i) -> __m512i {
    let reversed = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    _mm512_shuffle_epi8(a, _mm512_broadcast_i32x4(reversed))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn load(words: &[u32; 16]) -> __m512i {
    // SAFETY: reads 64 bytes from an array of 64; needs no alignment.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn store(a: __m512i, words: &mut [u32; 16]) {
    // SAFETY: writes 64 bytes to an array of 64; needs no alignment.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), a) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
pub(crate) fn whole(block: &[u8; 64]) -> __m512i {
    // SAFETY: reads 64 bytes from an array of 64; needs no alignment.
    unsafe { _mm512_loadu_si512(block.as_ptr().cast()) }
}

/// A mask of 64 bits with the lowest `n` set.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn ones(n: usize) -> u64 {
    _bzhi_u64(u64::MAX, n.min(64) as u32)
}

/// Loads the bytes of one piece that lie in the block at `first`, and zeros for the rest of the block. The
/// piece begins at `start`. All offsets count from the start of the message.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn part(piece: &[u8], start: usize, first: usize) -> __m512i {
    let below = start.saturating_sub(first);
    let above = (start + piece.len()).saturating_sub(first);
    let mask = ones(above) & !ones(below);
    if mask == 0 {
        // The load would read nothing. But if its address is unmapped, as it may be for an empty piece, the
        // processor takes a thousand cycles to find out.
        return constant(0);
    }
    let base = piece.as_ptr().wrapping_add(first).wrapping_sub(start);
    // SAFETY: the load reads byte j only if its bit is set: below <= j < above, hence start <=
    // first + j < start + piece.len(), which is inside the piece. The pointer itself may be
    // outside: the load does not access bytes whose bits are clear.
    unsafe { _mm512_maskz_loadu_epi8(mask, base.cast()) }
}

/// Joins 64 bytes of a padded message from all three pieces and the padding, if they do not lie wholly in the
/// second piece.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn joined<const BLOCK: usize>(message: &PaddedMessage<'_, BLOCK>, first: usize) -> __m512i {
    let [a, b, c] = message.pieces();
    let (ab, end) = (a.len() + b.len(), message.len());
    let mut row = part(b, a.len(), first);
    if first < a.len() {
        row = _mm512_or_si512(row, part(a, 0, first));
    }
    if first + 64 > ab {
        let is_last = first + 64 == message.blocks() * BLOCK;
        let length = message.bits().swap_bytes() as i64;
        let length = _mm512_maskz_set1_epi64(if is_last { 0x80 } else { 0 }, length);
        // The mark is in these bytes or, if the shift leaves nothing of it, in later ones.
        let mark = ones((end + 1).saturating_sub(first)) & !ones(end.saturating_sub(first));
        let mark = _mm512_maskz_set1_epi8(if end >= first { mark } else { 0 }, i8::MIN);
        row = or3(row, part(c, ab, first), _mm512_or_si512(mark, length));
    }
    row
}

/// Loads the 64 bytes of a padded message at `first`, a multiple of 64.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
pub(crate) fn bytes_at<const BLOCK: usize>(
    message: &PaddedMessage<'_, BLOCK>,
    first: usize,
) -> __m512i {
    let [a, b, _] = message.pieces();
    // The offset of a block that begins before the second piece wraps around to far beyond the piece's end.
    let rest = b.get(first.wrapping_sub(a.len())..).unwrap_or(&[]);
    _mm_prefetch::<_MM_HINT_T0>(rest.as_ptr().wrapping_add(127).cast());
    match rest.first_chunk() {
        Some(inner) => whole(inner),
        None => joined(message, first),
    }
}

/// Loads one block of each message, padding included: each of its words for all lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn words_of_blocks(messages: &[PaddedMessage<'_>; 16], block: usize) -> [__m512i; 16] {
    let mut rows = [constant(0); 16];
    for (row, message) in rows.iter_mut().zip(messages) {
        *row = bytes_at(message, block * 64);
    }
    transpose(&rows)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn words_of_64(blocks: &[[u8; 64]; 16]) -> [__m512i; 16] {
    let mut rows = [constant(0); 16];
    for (row, block) in rows.iter_mut().zip(blocks) {
        *row = whole(block);
    }
    transpose(&rows)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn words_of_36(messages: &[[u8; 36]; 16]) -> [__m512i; 9] {
    let mut rows = [constant(0); 16];
    for (row, message) in rows.iter_mut().zip(messages) {
        *row = part(message, 0, 0);
    }
    let [a, b, c, d, e, f, g, h, i, ..] = transpose(&rows);
    [a, b, c, d, e, f, g, h, i]
}

/// Transposes each 4x4 square of words in four rows: word `4 * q + k` of row `r` moves to row `k`,
/// word `4 * q + r`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn squares(a: __m512i, b: __m512i, c: __m512i, d: __m512i) -> [__m512i; 4] {
    let (ab, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (cd, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab, cd),
        _mm512_unpackhi_epi64(ab, cd),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// Transposes quarters: quarter `c` of row `r` moves to row `c`, quarter `r`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
pub(crate) fn quarters(a: __m512i, b: __m512i, c: __m512i, d: __m512i) -> [__m512i; 4] {
    const EVEN: i32 = 0b10_00_10_00;
    const ODD: i32 = 0b11_01_11_01;
    let (even, odd) = (_mm512_shuffle_i32x4::<EVEN>(a, b), _mm512_shuffle_i32x4::<ODD>(a, b));
    let even_high = _mm512_shuffle_i32x4::<EVEN>(c, d);
    let odd_high = _mm512_shuffle_i32x4::<ODD>(c, d);
    [
        _mm512_shuffle_i32x4::<EVEN>(even, even_high),
        _mm512_shuffle_i32x4::<EVEN>(odd, odd_high),
        _mm512_shuffle_i32x4::<ODD>(even, even_high),
        _mm512_shuffle_i32x4::<ODD>(odd, odd_high),
    ]
}

/// Turns rows of sixteen words into words of sixteen rows, and big-endian bytes into numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn transpose(rows: &[__m512i; 16]) -> [__m512i; 16] {
    let p = squares(rows[0], rows[1], rows[2], rows[3]);
    let q = squares(rows[4], rows[5], rows[6], rows[7]);
    let r = squares(rows[8], rows[9], rows[10], rows[11]);
    let s = squares(rows[12], rows[13], rows[14], rows[15]);
    let mut words = [constant(0); 16];
    for k in 0..4 {
        // Word 4c + k of the rows is in quarter c of these four registers.
        for (c, word) in quarters(p[k], q[k], r[k], s[k]).into_iter().enumerate() {
            words[4 * c + k] = swap_bytes(word);
        }
    }
    words
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
pub(crate) fn store_half(half: __m256i, out: &mut [u8; 32]) {
    // SAFETY: writes 32 bytes to an array of 32; needs no alignment.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), half) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn digests(state: &[__m512i; 8]) -> [[u8; 32]; 16] {
    let [a, b, c, d, e, f, g, h] = *state;
    let left = squares(swap_bytes(a), swap_bytes(b), swap_bytes(c), swap_bytes(d));
    let right = squares(swap_bytes(e), swap_bytes(f), swap_bytes(g), swap_bytes(h));
    let mut out = [[0; 32]; 16];
    for k in 0..4 {
        // Quarter c of both registers belongs to lane 4c + k.
        for (c, half) in halves(left[k], right[k]).into_iter().enumerate() {
            store_half(half, &mut out[4 * c + k]);
        }
    }
    out
}

/// Joins each quarter of `left` with the same quarter of `right`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
pub(crate) fn halves(left: __m512i, right: __m512i) -> [__m256i; 4] {
    let low = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
    let high = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    let low = _mm512_permutex2var_epi64(left, low, right);
    let high = _mm512_permutex2var_epi64(left, high, right);
    [
        _mm512_castsi512_si256(low),
        _mm512_extracti64x4_epi64::<1>(low),
        _mm512_castsi512_si256(high),
        _mm512_extracti64x4_epi64::<1>(high),
    ]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn even(a: __m512i) -> __m512i {
    _mm512_and_si512(a, _mm512_set1_epi64(0xffff_ffff))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn odd(a: __m512i) -> __m512i {
    _mm512_srli_epi64::<32>(a)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn add_64(a: __m512i, b: __m512i) -> __m512i {
    _mm512_add_epi64(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn total_64(a: __m512i) -> u64 {
    _mm512_reduce_add_epi64(a) as u64
}
