//! SHA-512 for one message at a time in plain Rust; also the measure of the other kernels.

use super::constants::INITIAL_256;
use super::lanes::{Lanes, States};
use super::{BLOCK, Padded};
use crate::lanes::column;
use crate::rounds::define_rounds;
use core::ops::Range;

#[inline]
fn constant(value: u64) -> u64 {
    value
}

#[inline]
fn add(a: u64, b: u64) -> u64 {
    a.wrapping_add(b)
}

#[inline]
fn ror<const N: u32>(a: u64) -> u64 {
    a.rotate_right(N)
}

#[inline]
fn shr<const N: u32>(a: u64) -> u64 {
    a >> N
}

#[inline]
fn xor3(a: u64, b: u64, c: u64) -> u64 {
    a ^ b ^ c
}

#[inline]
fn choose(e: u64, f: u64, g: u64) -> u64 {
    g ^ (e & (f ^ g))
}

#[inline]
fn majority(a: u64, b: u64, c: u64) -> u64 {
    (a & b) | (c & (a | b))
}

define_rounds!(sha512, u64);

/// Continues `state` over whole blocks.
pub(super) fn compress(state: &mut [u64; 8], blocks: &[[u8; BLOCK]]) {
    for block in blocks {
        let (bytes, _) = block.as_chunks::<8>();
        let mut words = core::array::from_fn(|i| u64::from_be_bytes(bytes[i]));
        compress_words!(state, &mut words);
    }
}

/// Continues `state` over these blocks of a message.
pub(super) fn absorb(state: &mut [u64; 8], message: &Padded<'_>, blocks: Range<usize>) {
    let mut next = blocks.start;
    while next < blocks.end {
        let mut buffer = [0; BLOCK];
        let run = message.blocks_from(next, &mut buffer);
        let run = &run[..run.len().min(blocks.end - next)];
        compress(state, run);
        next += run.len();
    }
}

/// SHA-512/256 of 64 bytes.
pub(super) fn pair(pair: &[u8; 64]) -> [u8; 32] {
    let mut block = [0; BLOCK];
    block[..64].copy_from_slice(pair);
    block[64] = 0x80;
    block[BLOCK - 2..].copy_from_slice(&(64u16 * 8).to_be_bytes());
    let mut state = INITIAL_256;
    compress(&mut state, &[block]);
    digest(&state)
}

/// The digest in bytes: the first half of the state.
#[inline]
pub(super) fn digest(state: &[u64; 8]) -> [u8; 32] {
    let mut out = [0; 32];
    for (bytes, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(state) {
        *bytes = word.to_be_bytes();
    }
    out
}

/// The kernel of one lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portable;

impl Lanes<1> for Portable {
    fn absorb(self, states: &mut States<1>, [message]: &[Padded<'_>; 1], blocks: Range<usize>) {
        let mut state = column(states, 0);
        absorb(&mut state, message, blocks);
        *states = state.map(|word| [word]);
    }

    fn pairs(self, pairs: &[[[u8; 64]; 1]], out: &mut [[[u8; 32]; 1]]) {
        for ([bytes], out) in pairs.iter().zip(out) {
            *out = [pair(bytes)];
        }
    }
}
