//! AVX2: four numbers in the four 64-bit lanes of a register, eight keys at a time.
//!
//! Invariant: a running product is four numbers of 110 limbs of 28 bits, followed by two zero limbs so that
//! halves can be halved again. Limb 3 may be 2^28; the others are smaller.
//!
//! From keys to numbers: ChaCha20 runs on eight keys in the 32-bit lanes of a register, and its
//! words are cut into limbs of 28 bits. Seven words make eight limbs, still in 32-bit lanes; the
//! even lanes then become the first four numbers, the odd ones the other four.
//!
//! Products modulo the prime: four pairs of numbers in lanes. The instruction multiplies the lower 32 bits of
//! two lanes to 64 bits. Limbs of 28 bits leave four bits free, so sums of sixteen limbs (four levels of
//! Karatsuba's method) still fit if at most one limb is exactly 2^28. Intermediate sums of products may
//! overflow, but the columns of the whole product do not: each is at most 110 times 2^56.
#![allow(unsafe_code)] // `target_feature` functions.

use super::karatsuba::{define_longer, define_products};
use super::number::{Num3072, PRIME_DIFF};
use super::{ProductLanes, define_key_stream, forward_lanes, words_of_keys};
use core::arch::x86_64::*;

/// The number of limbs of a number, including the two zeros.
const LIMBS: usize = 112;

/// The number of limbs that may be nonzero.
const LIMBS_USED: usize = 110;

/// The width of a limb in bits.
const LIMB_BITS: u32 = 28;

/// Four numbers, limb by limb.
type Numbers = [__m256i; LIMBS];

/// Proof that the processor has the instructions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx2Products(());

impl Avx2Products {
    pub(super) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }
}

forward_lanes!(Avx2Products, Avx2State);

/// Running products and scratch space, kept together so that they fit the first-level cache.
struct Avx2State {
    products: Numbers,
    factors: [Numbers; 2],
    words: Words,
    room: Avx2Room,
}

impl Avx2State {
    #[target_feature(enable = "avx2")]
    fn new() -> Self {
        let zero = _mm256_setzero_si256();
        let mut products = [zero; LIMBS];
        products[0] = _mm256_set1_epi64x(1);
        Self { products, factors: [products; 2], words: [zero; WORDS], room: room(zero) }
    }

    #[target_feature(enable = "avx2")]
    fn multiply(&mut self, keys: &[[u8; 32]]) {
        numbers_of(keys, &mut self.words, &mut self.factors);
        for factors in &self.factors {
            multiply(&mut self.products, factors, &mut self.room);
        }
    }

    #[target_feature(enable = "avx2")]
    fn product(&self) -> Num3072 {
        let limbs = stored(&self.products);
        let mut product = Num3072::ONE;
        for lane in 0..4 {
            let digits = limbs.iter().map(|limbs| limbs[lane]).take(LIMBS_USED);
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
#[target_feature(enable = "avx2")]
fn stored(numbers: &Numbers) -> [[u64; 4]; LIMBS] {
    let mut limbs = [[0; 4]; LIMBS];
    for (limbs, lanes) in limbs.iter_mut().zip(numbers) {
        // SAFETY: writes 32 bytes to an array of 32; needs no alignment.
        unsafe { _mm256_storeu_si256(limbs.as_mut_ptr().cast(), *lanes) }
    }
    limbs
}

/// Runs single steps, for tests.
#[cfg(test)]
impl Avx2Products {
    /// Computes the numbers of keys.
    pub(super) fn numbers_of(self, keys: &[[u8; 32]]) -> [[[u64; 4]; LIMBS]; 2] {
        // SAFETY: the token exists only if `detect` found the instructions.
        unsafe {
            let mut state = Avx2State::new();
            numbers_of(keys, &mut state.words, &mut state.factors);
            [stored(&state.factors[0]), stored(&state.factors[1])]
        }
    }

    /// Multiplies numbers, lane by lane.
    pub(super) fn multiplied(
        self,
        a: &[[u64; 4]; LIMBS],
        b: &[[u64; 4]; LIMBS],
    ) -> [[u64; 4]; LIMBS] {
        // SAFETY: as above; the numbers are integers, for which any bits are valid.
        unsafe {
            let mut state = Avx2State::new();
            state.products = core::mem::transmute::<[[u64; 4]; LIMBS], Numbers>(*a);
            let factors = core::mem::transmute::<[[u64; 4]; LIMBS], Numbers>(*b);
            multiply(&mut state.products, &factors, &mut state.room);
            stored(&state.products)
        }
    }
}

/// The number of keys expanded at once.
const KEYS: usize = 8;

/// The length of six blocks, zeros up to a multiple of seven words, and one more word that the last limb
/// reads.
const WORDS: usize = 99;
type Words = [__m256i; WORDS];

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
    // A rotation by whole bytes is a shuffle: one instruction instead of three.
    let bytes = match BITS {
        16 => _mm_set_epi8(13, 12, 15, 14, 9, 8, 11, 10, 5, 4, 7, 6, 1, 0, 3, 2),
        8 => _mm_set_epi8(14, 13, 12, 15, 10, 9, 8, 11, 6, 5, 4, 7, 2, 1, 0, 3),
        _ => return _mm256_or_si256(shift_left(a, BITS), shift_right(a, 32 - BITS)),
    };
    _mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(bytes))
}

/// Shifts left; a shift by 32 bits gives zero.
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
    // SAFETY: reads 32 bytes from an array of 32; needs no alignment.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

/// Computes the numbers of at most eight keys, with keys of even index in `out[0]`; a lane without a key gets
/// the number one. `words` must have zeros after the six blocks, and they stay zero.
#[target_feature(enable = "avx2")]
fn numbers_of(keys: &[[u8; 32]], words: &mut Words, out: &mut [Numbers; 2]) {
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

/// Converts seven words to eight limbs. It reads the eighth word but uses none of its bits.
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

/// The number of limbs for the school method: few, because AVX2 has only sixteen registers.
const BASE: usize = 7;

/// The columns of a product, and scratch space for computing them.
struct Avx2Room {
    columns: [__m256i; 2 * LIMBS],
    shorter: (Shorter, [__m256i; LIMBS]),
}

type Shorter = ([__m256i; LIMBS / 4], [__m256i; LIMBS / 2]);

/// Scratch space filled with `any` value.
fn room(any: __m256i) -> Avx2Room {
    let shorter = ([any; LIMBS / 4], [any; LIMBS / 2]);
    Avx2Room { columns: [any; 2 * LIMBS], shorter: (shorter, [any; LIMBS]) }
}

define_products!(__m256i, 7: [0 1 2 3 4 5 6], #[target_feature(enable = "avx2")]);
define_longer!(
    product_16, product_8, Shorter, __m256i, LIMBS, #[target_feature(enable = "avx2")]
);

#[inline]
#[target_feature(enable = "avx2")]
fn zero() -> __m256i {
    _mm256_setzero_si256()
}

#[inline]
#[target_feature(enable = "avx2")]
fn add(a: __m256i, b: __m256i) -> __m256i {
    _mm256_add_epi64(a, b)
}

#[inline]
#[target_feature(enable = "avx2")]
fn sub(a: __m256i, b: __m256i) -> __m256i {
    _mm256_sub_epi64(a, b)
}

#[inline]
#[target_feature(enable = "avx2")]
fn mul(a: __m256i, b: __m256i) -> __m256i {
    _mm256_mul_epu32(a, b)
}

/// Columns in progress, column `c` at `c % BASE`.
type Rows = [__m256i; BASE];

#[inline]
#[target_feature(enable = "avx2")]
fn begin() -> Rows {
    [zero(); BASE]
}

#[inline]
#[target_feature(enable = "avx2")]
fn row<const I: usize>(rows: &mut Rows, a: &[__m256i; BASE], b: __m256i) -> __m256i {
    for (limb, a) in a.iter().enumerate() {
        let column = (I + limb) % BASE;
        rows[column] = add(rows[column], mul(*a, b));
    }
    let column = rows[I];
    rows[I] = zero();
    column
}

#[inline]
#[target_feature(enable = "avx2")]
fn end(rows: &Rows) -> [__m256i; BASE] {
    *rows
}

/// `numbers *= factors`, lane by lane.
#[target_feature(enable = "avx2")]
fn multiply(numbers: &mut Numbers, factors: &Numbers, room: &mut Avx2Room) {
    product_16(numbers, factors, &mut room.columns, &mut room.shorter);
    reduce(&room.columns, numbers);
}

/// Carries, then folds the part above 2^3080 onto the part below, times `PRIME_DIFF` times 2^8.
///
/// The upper half is a number below 2^3081, so its carry is at most one; the lower half's carry is below
/// 2^36. Folding both widens the two lowest limbs. Their carry is at most one when it reaches limb 3.
#[target_feature(enable = "avx2")]
fn reduce(columns: &[__m256i; 2 * LIMBS], out: &mut Numbers) {
    let times = _mm256_set1_epi64x((PRIME_DIFF << 8) as i64);
    let mask = _mm256_set1_epi64x((1 << LIMB_BITS) - 1);
    let limb_of = |column| _mm256_and_si256(column, mask);
    let carry_of = |column| _mm256_srli_epi64::<{ LIMB_BITS as i32 }>(column);
    let (mut carry, mut carry_high) = (zero(), zero());
    for i in 0..LIMBS_USED {
        let column = add(columns[LIMBS_USED + i], carry_high);
        carry_high = carry_of(column);
        let column = add(add(columns[i], mul(limb_of(column), times)), carry);
        out[i] = limb_of(column);
        carry = carry_of(column);
    }
    let carry = add(carry, mul(carry_high, times));
    let mut carried = add(out[0], mul(limb_of(carry), times));
    out[0] = limb_of(carried);
    carried = add(add(out[1], mul(carry_of(carry), times)), carry_of(carried));
    out[1] = limb_of(carried);
    carried = add(out[2], carry_of(carried));
    out[2] = limb_of(carried);
    out[3] = add(out[3], carry_of(carried));
}
