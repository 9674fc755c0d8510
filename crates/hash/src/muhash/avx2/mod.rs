//! AVX2: four numbers in the four 64-bit lanes of a register, eight keys at a time.
//!
//! Invariant: a running product is four numbers of 110 limbs of 28 bits, followed by two of zero
//! so that halves have halves. Limb 3 may be 2^28; the others are below.
#![allow(unsafe_code)] // Functions that need the instructions.

mod key_stream;
mod product;

use super::kernel::{Lanes, forward_lanes};
use super::number::Num3072;
use core::arch::x86_64::*;

/// Limbs of a number, with the zeros.
const LIMBS: usize = 112;

/// Limbs of a number that may be other than zero.
const LIMBS_USED: usize = 110;

/// Bits of a limb.
const LIMB_BITS: u32 = 28;

/// Four numbers, limb by limb.
type Numbers = [__m256i; LIMBS];

/// Proof that the processor has the instructions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx2(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }
}

forward_lanes!(Avx2);

/// Running products and room to work, side by side: the first-level cache.
struct State {
    products: Numbers,
    factors: [Numbers; 2],
    words: key_stream::Words,
    room: product::Room,
}

impl State {
    #[target_feature(enable = "avx2")]
    fn new() -> Self {
        let zero = _mm256_setzero_si256();
        let mut products = [zero; LIMBS];
        products[0] = _mm256_set1_epi64x(1);
        Self {
            products,
            factors: [products; 2],
            words: [zero; key_stream::WORDS],
            room: product::room(zero),
        }
    }

    #[target_feature(enable = "avx2")]
    fn multiply(&mut self, keys: &[[u8; 32]]) {
        key_stream::numbers_of(keys, &mut self.words, &mut self.factors);
        for factors in &self.factors {
            product::multiply(&mut self.products, factors, &mut self.room);
        }
    }

    #[target_feature(enable = "avx2")]
    fn product(&self) -> Num3072 {
        let limbs = stored(&self.products);
        let mut product = Num3072::ONE;
        for lane in 0..4 {
            let digits = limbs.iter().map(|limbs| limbs[lane]).take(LIMBS_USED);
            let lane = Num3072::from_digits(LIMB_BITS, digits);
            // A lane that never had a key costs nothing.
            if lane != Num3072::ONE {
                product.multiply(&lane);
            }
        }
        product
    }
}

/// Numbers out of their registers: limb by limb, in each the lanes.
#[target_feature(enable = "avx2")]
fn stored(numbers: &Numbers) -> [[u64; 4]; LIMBS] {
    let mut limbs = [[0; 4]; LIMBS];
    for (limbs, lanes) in limbs.iter_mut().zip(numbers) {
        // SAFETY: 32 bytes are written to an array of 32; no alignment is needed.
        unsafe { _mm256_storeu_si256(limbs.as_mut_ptr().cast(), *lanes) }
    }
    limbs
}

/// The parts of a step, for tests.
#[cfg(test)]
impl Avx2 {
    /// The numbers of keys.
    pub(super) fn numbers_of(self, keys: &[[u8; 32]]) -> [[[u64; 4]; LIMBS]; 2] {
        // SAFETY: the token exists only where `detect` found the instructions.
        unsafe {
            let mut state = State::new();
            key_stream::numbers_of(keys, &mut state.words, &mut state.factors);
            [stored(&state.factors[0]), stored(&state.factors[1])]
        }
    }

    /// The product of numbers, lane by lane.
    pub(super) fn multiplied(
        self,
        a: &[[u64; 4]; LIMBS],
        b: &[[u64; 4]; LIMBS],
    ) -> [[u64; 4]; LIMBS] {
        // SAFETY: as above; and numbers are integers, of which any bits are a value.
        unsafe {
            let mut state = State::new();
            state.products = core::mem::transmute::<[[u64; 4]; LIMBS], Numbers>(*a);
            let factors = core::mem::transmute::<[[u64; 4]; LIMBS], Numbers>(*b);
            product::multiply(&mut state.products, &factors, &mut state.room);
            stored(&state.products)
        }
    }
}
