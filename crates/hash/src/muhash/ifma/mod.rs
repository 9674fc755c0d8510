//! AVX-512 with the 52-bit multiplication of IFMA: eight numbers in the eight 64-bit lanes of a
//! register, sixteen keys at a time.
//!
//! Invariant: a running product is eight numbers of 64 limbs of 48 bits, so that 3072 bits fill
//! them exactly; a limb may be a little wider, but is below 2^49.
#![allow(unsafe_code)] // Functions that need the instructions.

mod key_stream;
mod product;

use super::kernel::{Lanes, forward_lanes};
use super::number::Num3072;
use core::arch::x86_64::*;

/// Limbs of a number.
const LIMBS: usize = 64;

/// Bits of a limb.
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

forward_lanes!(Ifma);

/// Running products and room to work, side by side: some 30 KB, the first-level cache.
struct State {
    products: Numbers,
    factors: [Numbers; 2],
    words: key_stream::Words,
    room: product::Room,
}

impl State {
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    fn new() -> Self {
        let zero = _mm512_setzero_si512();
        let mut products = [zero; LIMBS];
        products[0] = _mm512_set1_epi64(1);
        Self {
            products,
            factors: [products; 2],
            words: [zero; key_stream::WORDS],
            room: product::room(zero),
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    fn multiply(&mut self, keys: &[[u8; 32]]) {
        key_stream::numbers_of(keys, &mut self.words, &mut self.factors);
        for factors in &self.factors {
            product::multiply(&mut self.products, factors, &mut self.room);
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    fn product(&self) -> Num3072 {
        let limbs = stored(&self.products);
        let mut product = Num3072::ONE;
        for lane in 0..8 {
            let digits = limbs.iter().map(|limbs| limbs[lane]);
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
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn stored(numbers: &Numbers) -> [[u64; 8]; LIMBS] {
    let mut limbs = [[0; 8]; LIMBS];
    for (limbs, lanes) in limbs.iter_mut().zip(numbers) {
        // SAFETY: 64 bytes are written to an array of 64; no alignment is needed.
        unsafe { _mm512_storeu_si512(limbs.as_mut_ptr().cast(), *lanes) }
    }
    limbs
}

/// The parts of a step, for tests.
#[cfg(test)]
impl Ifma {
    /// The numbers of keys.
    pub(super) fn numbers_of(self, keys: &[[u8; 32]]) -> [[[u64; 8]; LIMBS]; 2] {
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
        a: &[[u64; 8]; LIMBS],
        b: &[[u64; 8]; LIMBS],
    ) -> [[u64; 8]; LIMBS] {
        // SAFETY: as above; and numbers are integers, of which any bits are a value.
        unsafe {
            let mut state = State::new();
            state.products = core::mem::transmute::<[[u64; 8]; LIMBS], Numbers>(*a);
            let factors = core::mem::transmute::<[[u64; 8]; LIMBS], Numbers>(*b);
            product::multiply(&mut state.products, &factors, &mut state.room);
            stored(&state.products)
        }
    }
}
