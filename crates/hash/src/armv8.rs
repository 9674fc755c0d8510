//! The SHA-2 instructions of ARMv8, one message at a time.
//!
//! ARMv8 processors overlap independent messages by themselves, so this kernel interleaves nothing.
#![allow(unsafe_code)] // These intrinsics have no safe form.

use crate::rounds::K;
use core::arch::aarch64::*;

/// Proof that the processor has the instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Armv8(());

impl Armv8 {
    pub(crate) fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("sha2").then_some(Self(()))
    }

    /// Continues `state` over whole blocks.
    pub(crate) fn compress(self, state: &mut [u32; 8], blocks: &[[u8; 64]]) {
        // SAFETY: `self` exists only if `detect` found the feature.
        unsafe { compress(state, blocks) }
    }
}

#[inline]
#[target_feature(enable = "neon,sha2")]
fn four(words: &[u32; 4]) -> uint32x4_t {
    // SAFETY: reads 16 bytes from an array of 16; needs no alignment beyond the array's.
    unsafe { vld1q_u32(words.as_ptr()) }
}

#[target_feature(enable = "neon,sha2")]
fn compress(state: &mut [u32; 8], blocks: &[[u8; 64]]) {
    let (constants, _) = K.as_chunks::<4>();
    let (halves, _) = state.as_chunks_mut::<4>();
    let (mut abcd, mut efgh) = (four(&halves[0]), four(&halves[1]));
    for block in blocks {
        let (quarters, _) = block.as_chunks::<16>();
        let mut w: [uint32x4_t; 4] = core::array::from_fn(|i| {
            // SAFETY: reads 16 bytes from an array of 16.
            let quarter = unsafe { vld1q_u8(quarters[i].as_ptr()) };
            vreinterpretq_u32_u8(vrev32q_u8(quarter))
        });
        let before = (abcd, efgh);
        for i in 0..16 {
            // Computes four rounds; `added` already contains the round constants.
            let added = vaddq_u32(w[i % 4], four(&constants[i]));
            let old = abcd;
            abcd = vsha256hq_u32(abcd, efgh, added);
            efgh = vsha256h2q_u32(efgh, old, added);
            // The four words for the rounds 16 later; unused after round 48.
            let next = vsha256su0q_u32(w[i % 4], w[(i + 1) % 4]);
            w[i % 4] = vsha256su1q_u32(next, w[(i + 2) % 4], w[(i + 3) % 4]);
        }
        abcd = vaddq_u32(abcd, before.0);
        efgh = vaddq_u32(efgh, before.1);
    }
    // SAFETY: writes 16 bytes to each array of 16.
    unsafe {
        vst1q_u32(halves[0].as_mut_ptr(), abcd);
        vst1q_u32(halves[1].as_mut_ptr(), efgh);
    }
}
