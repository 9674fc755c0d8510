//! AVX-512 with the 52-bit multiplication of IFMA: eight numbers in the eight 64-bit lanes of a
//! register, sixteen keys at a time.
//!
//! Invariant: a running product is eight numbers of 64 limbs of 48 bits, which 3072 bits fill exactly. A limb
//! may be a little wider, but is below 2^49.
//!
//! From keys to numbers: ChaCha20 runs on sixteen keys in the 32-bit lanes of a register, and its
//! words are regrouped into limbs of 48 bits. Three words make two limbs. A limb is three
//! neighbours among the 16-bit pieces of two words, and one permutation fetches them for eight
//! keys, so nothing is transposed.
//!
//! Products modulo the prime: eight pairs of numbers in lanes. The instructions multiply the lower 52 bits of
//! two lanes and add the lower or the upper 52 bits of the product. Limbs of 48 bits leave four bits free, so
//! sums of eight limbs (three levels of Karatsuba's method) still fit. Upper halves then count 2^52, which is
//! 16 times the next column's unit, so 16 times their value is added there.
//!
//! Why the columns fit: with limbs below 2^49, the *lower halves* in a column of a base product are at most
//! eight times 2^52. Each level combines at most four columns, so in the end their absolute sum is below
//! 2^61. The true value of a column is below 64 times 2^98. The upper halves hold the rest of it, so their
//! absolute value is below 2^53, and below 2^57 after the factor 16. Together, a column is a signed number
//! well within 2^62.
#![allow(unsafe_code)] // `target_feature` functions.

use super::karatsuba::{define_products, halves};
use super::number::{Num3072, PRIME_DIFF};
use super::{ProductLanes, define_key_stream, forward_lanes, words_of_keys};
use core::arch::x86_64::*;

/// The number of limbs of a number.
const LIMBS: usize = 64;

/// The width of a limb in bits.
const LIMB_BITS: u32 = 48;

/// Eight numbers, limb by limb.
type Numbers = [__m512i; LIMBS];

/// Proof that the processor has the instructions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ifma(());

impl Ifma {
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512ifma");
        has.then_some(Self(()))
    }
}

forward_lanes!(Ifma, IfmaState);

/// Running products and scratch space, kept together: about 30 KB, which fits the first-level
/// cache.
struct IfmaState {
    products: Numbers,
    factors: [Numbers; 2],
    words: Words,
    room: IfmaRoom,
}

impl IfmaState {
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    fn new() -> Self {
        let zero = _mm512_setzero_si512();
        let mut products = [zero; LIMBS];
        products[0] = _mm512_set1_epi64(1);
        Self { products, factors: [products; 2], words: [zero; WORDS], room: room(zero) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    fn multiply(&mut self, keys: &[[u8; 32]]) {
        numbers_of(keys, &mut self.words, &mut self.factors);
        for factors in &self.factors {
            multiply(&mut self.products, factors, &mut self.room);
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    fn product(&self) -> Num3072 {
        let limbs = stored(&self.products);
        let mut product = Num3072::ONE;
        for lane in 0..8 {
            let digits = limbs.iter().map(|limbs| limbs[lane]);
            let lane = Num3072::from_digits(LIMB_BITS, digits);
            // Skip a lane that never had a key.
            if lane != Num3072::ONE {
                product.multiply(&lane);
            }
        }
        product
    }
}

/// Stores numbers from their registers: each limb for all lanes.
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn stored(numbers: &Numbers) -> [[u64; 8]; LIMBS] {
    let mut limbs = [[0; 8]; LIMBS];
    for (limbs, lanes) in limbs.iter_mut().zip(numbers) {
        // SAFETY: writes 64 bytes to an array of 64; needs no alignment.
        unsafe { _mm512_storeu_si512(limbs.as_mut_ptr().cast(), *lanes) }
    }
    limbs
}

/// Runs single steps, for tests.
#[cfg(test)]
impl Ifma {
    /// Computes the numbers of keys.
    pub(super) fn numbers_of(self, keys: &[[u8; 32]]) -> [[[u64; 8]; LIMBS]; 2] {
        // SAFETY: the token exists only if `detect` found the instructions.
        unsafe {
            let mut state = IfmaState::new();
            numbers_of(keys, &mut state.words, &mut state.factors);
            [stored(&state.factors[0]), stored(&state.factors[1])]
        }
    }

    /// Multiplies numbers, lane by lane.
    pub(super) fn multiplied(
        self,
        a: &[[u64; 8]; LIMBS],
        b: &[[u64; 8]; LIMBS],
    ) -> [[u64; 8]; LIMBS] {
        // SAFETY: as above; the numbers are integers, for which any bits are valid.
        unsafe {
            let mut state = IfmaState::new();
            state.products = core::mem::transmute::<[[u64; 8]; LIMBS], Numbers>(*a);
            let factors = core::mem::transmute::<[[u64; 8]; LIMBS], Numbers>(*b);
            multiply(&mut state.products, &factors, &mut state.room);
            stored(&state.products)
        }
    }
}

/// The number of keys expanded at once.
const KEYS: usize = 16;

/// The number of words of a key stream held at a time: three blocks, which make 32 limbs.
const WORDS: usize = 48;
type Words = [__m512i; WORDS];

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

/// The positions of a limb's pieces, for eight keys from `first` on: piece `2 * lane + half` of the first
/// word, or 32 more for the second word. The limb's lowest piece is `piece` pieces into the words.
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

/// Indexed by the group of eight keys, then by which of the two limbs.
const PLACES: [[[u16; 32]; 2]; 2] = [[places(0, 0), places(0, 1)], [places(8, 0), places(8, 1)]];

/// Selects the lowest three pieces of four, in the lanes with a key. Lanes with a key come first.
const fn pieces(present: u8) -> u32 {
    let four_for_each = (1u64 << (4 * present.count_ones())) - 1;
    0x7777_7777 & four_for_each as u32
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn load(words: &[u32; 16]) -> __m512i {
    // SAFETY: reads 64 bytes from an array of 64; needs no alignment.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn load_places(places: &[u16; 32]) -> __m512i {
    // SAFETY: reads 64 bytes from an array of 64; needs no alignment.
    unsafe { _mm512_loadu_si512(places.as_ptr().cast()) }
}

/// Computes the numbers of at most sixteen keys, the first eight in `out[0]`; a lane without a key gets the
/// number one.
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn numbers_of(keys: &[[u8; 32]], words: &mut Words, out: &mut [Numbers; 2]) {
    let mut lanes = [constant(0); 8];
    for (lanes, words) in lanes.iter_mut().zip(&words_of_keys(keys)) {
        *lanes = load(words);
    }
    // One mask per group, with a bit for each lane that has a key.
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

/// The number of limbs for the school method.
const BASE: usize = 8;

/// The columns of a product, and scratch space for computing them.
struct IfmaRoom {
    columns: [__m512i; 2 * LIMBS],
    shorter: ([__m512i; LIMBS / 2], [__m512i; LIMBS]),
}

/// Scratch space filled with `any` value.
fn room(any: __m512i) -> IfmaRoom {
    IfmaRoom { columns: [any; 2 * LIMBS], shorter: ([any; LIMBS / 2], [any; LIMBS]) }
}

define_products!(
    __m512i, 8: [0 1 2 3 4 5 6 7], #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
);

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn zero() -> __m512i {
    _mm512_setzero_si512()
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn add(a: __m512i, b: __m512i) -> __m512i {
    _mm512_add_epi64(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn sub(a: __m512i, b: __m512i) -> __m512i {
    _mm512_sub_epi64(a, b)
}

/// `sum` plus the lower 52 bits of `a * b`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn add_lower(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
    _mm512_madd52lo_epu64(sum, a, b)
}

/// `sum` plus `a * b` without its lower 52 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn add_upper(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
    _mm512_madd52hi_epu64(sum, a, b)
}

/// Upper halves in the units of the next column.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn as_next(upper: __m512i) -> __m512i {
    _mm512_slli_epi64::<{ 52 - LIMB_BITS }>(upper)
}

/// Columns in progress, column `c` at `c % BASE`.
struct Rows {
    lower: [__m512i; BASE],
    upper: [__m512i; BASE],
    /// Upper halves of the last complete column.
    before: __m512i,
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn begin() -> Rows {
    Rows { lower: [zero(); BASE], upper: [zero(); BASE], before: zero() }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn row<const I: usize>(rows: &mut Rows, a: &[__m512i; BASE], b: __m512i) -> __m512i {
    for (limb, a) in a.iter().enumerate() {
        let column = (I + limb) % BASE;
        rows.lower[column] = add_lower(rows.lower[column], *a, b);
        rows.upper[column] = add_upper(rows.upper[column], *a, b);
    }
    let column = add(rows.lower[I], as_next(rows.before));
    rows.before = rows.upper[I];
    (rows.lower[I], rows.upper[I]) = (zero(), zero());
    column
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn end(rows: &Rows) -> [__m512i; BASE] {
    let mut columns = [zero(); BASE];
    let mut before = rows.before;
    for (i, column) in columns.iter_mut().enumerate() {
        *column = add(rows.lower[i], as_next(before));
        before = rows.upper[i];
    }
    columns
}

/// `numbers *= factors`, lane by lane.
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn multiply(numbers: &mut Numbers, factors: &Numbers, room: &mut IfmaRoom) {
    product_8(numbers, factors, &mut room.columns, &mut room.shorter);
    reduce(&room.columns, numbers);
}

/// Carries, then folds the part above 2^3072 onto the part below, times `PRIME_DIFF`.
///
/// Carries are signed because columns are. The upper half is a number below 2^3075. Its carry is between -1
/// and 4, and counts `PRIME_DIFF` squared. The lower half's carry is at least -2^15; `SPARE` makes the sum of
/// both positive, and is subtracted again below. The sum is less than 2^24, and times `PRIME_DIFF` it widens
/// the lowest limb by less than 2^45.
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn reduce(columns: &[__m512i; 2 * LIMBS], out: &mut Numbers) {
    const SPARE: i64 = 1 << 22;
    let times = _mm512_set1_epi64(PRIME_DIFF as i64);
    let mask = _mm512_set1_epi64((1 << LIMB_BITS) - 1);
    let [low, high]: [&Numbers; 2] = halves(columns);
    let (mut carry, mut carry_high) = (_mm512_set1_epi64(-SPARE * PRIME_DIFF as i64), zero());
    let mut before = zero();
    for i in 0..LIMBS {
        let column = add(high[i], carry_high);
        let limb = _mm512_and_si512(column, mask);
        carry_high = _mm512_srai_epi64::<LIMB_BITS>(column);

        let column = add_lower(add(low[i], as_next(before)), limb, times);
        let column = add(column, carry);
        before = add_upper(zero(), limb, times);
        out[i] = _mm512_and_si512(column, mask);
        carry = _mm512_srai_epi64::<LIMB_BITS>(column);
    }
    let carry = add(carry, as_next(before));
    let carry = add(add(carry, _mm512_set1_epi64(SPARE)), _mm512_mul_epi32(carry_high, times));
    out[0] = add_lower(out[0], carry, times);
}
