//! SHA-256 for one message at a time in plain Rust, for processors without anything better.
//!
//! Also the measure of the other kernels: each must give what this one gives. It does not try to
//! use vectors; that is what the lane kernels are for.

use crate::rounds::define_rounds;

#[inline]
fn constant(value: u32) -> u32 {
    value
}

#[inline]
fn add(a: u32, b: u32) -> u32 {
    a.wrapping_add(b)
}

#[inline]
fn ror<const N: u32>(a: u32) -> u32 {
    a.rotate_right(N)
}

#[inline]
fn shr<const N: u32>(a: u32) -> u32 {
    a >> N
}

#[inline]
fn xor3(a: u32, b: u32, c: u32) -> u32 {
    a ^ b ^ c
}

#[inline]
fn choose(e: u32, f: u32, g: u32) -> u32 {
    g ^ (e & (f ^ g))
}

#[inline]
fn majority(a: u32, b: u32, c: u32) -> u32 {
    (a & b) | (c & (a | b))
}

define_rounds!(sha256, u32);

/// Continues `state` over whole blocks.
pub(crate) fn compress(state: &mut [u32; 8], blocks: &[[u8; 64]]) {
    for block in blocks {
        let (bytes, _) = block.as_chunks::<4>();
        let mut words = core::array::from_fn(|i| u32::from_be_bytes(bytes[i]));
        compress_words!(state, &mut words);
    }
}
