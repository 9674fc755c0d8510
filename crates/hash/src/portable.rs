//! SHA-256 for one message at a time in plain Rust, for processors without anything better.
//!
//! Also the measure of the other kernels: each must give what this one gives. It does not try to
//! use vectors; that is what the lane kernels are for.

use crate::rounds::{self, Word};

impl Word for u32 {
    #[inline(always)]
    fn constant(self, value: u32) -> Self {
        value
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    #[inline(always)]
    fn ror<const N: i32>(self) -> Self {
        self.rotate_right(N as u32)
    }

    #[inline(always)]
    fn shr<const N: i32>(self) -> Self {
        self >> N
    }

    #[inline(always)]
    fn xor3(self, b: Self, c: Self) -> Self {
        self ^ b ^ c
    }

    #[inline(always)]
    fn choose(self, f: Self, g: Self) -> Self {
        g ^ (self & (f ^ g))
    }

    #[inline(always)]
    fn majority(self, b: Self, c: Self) -> Self {
        (self & b) | (c & (self | b))
    }
}

/// Continues `state` over whole blocks.
pub(crate) fn compress(state: &mut [u32; 8], blocks: &[[u8; 64]]) {
    for block in blocks {
        let (words, _) = block.as_chunks::<4>();
        *state = rounds::compress(*state, core::array::from_fn(|i| u32::from_be_bytes(words[i])));
    }
}
