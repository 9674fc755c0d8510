//! SHA-512/256 of many messages at once (FIPS 180-4): the hash function of Utreexo's trees and
//! leaves.
//!
//! The SHA-512 kernels are: portable for one message, AVX2 for four, AVX-512 for eight. Few x86-64 processors
//! have instructions for SHA-512 rounds, so lanes gain more than in SHA-256. Rounds, padding, sorting and the
//! kernels' tokens are shared with SHA-256. Only [`sha512_256`] is public.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod sha512_256;
#[cfg(test)]
mod tests;

use crate::lanes::column;
use crate::rounds::define_rounds;
use core::ops::Range;

/// The length of a block in bytes.
const BLOCK: usize = 128;

/// A message as SHA-512 processes it.
type PaddedSha512<'a> = crate::padded::PaddedMessage<'a, BLOCK>;

/// The states of `N` hashes: each word for all lanes.
type States<const N: usize> = crate::lanes::States<N, u64>;

/// A kernel for `N` messages at once.
trait Sha512Lanes<const N: usize>: Copy {
    /// Continues all states over the same range of blocks of their messages.
    fn absorb(self, states: &mut States<N>, messages: &[PaddedSha512<'_>; N], blocks: Range<usize>);

    /// Computes SHA-512/256 of each 64-byte message.
    fn pairs(self, pairs: &[[[u8; 64]; N]], out: &mut [[[u8; 32]; N]]);
}

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
fn compress(state: &mut [u64; 8], blocks: &[[u8; BLOCK]]) {
    for block in blocks {
        let (bytes, _) = block.as_chunks::<8>();
        let mut words = core::array::from_fn(|i| u64::from_be_bytes(bytes[i]));
        compress_words!(state, &mut words);
    }
}

/// Continues `state` over these blocks of a message.
fn absorb(state: &mut [u64; 8], message: &PaddedSha512<'_>, blocks: Range<usize>) {
    let mut next = blocks.start;
    while next < blocks.end {
        let mut buffer = [0; BLOCK];
        let run = message.blocks_from(next, &mut buffer);
        let run = &run[..run.len().min(blocks.end - next)];
        compress(state, run);
        next += run.len();
    }
}

/// Computes SHA-512/256 of 64 bytes.
fn pair(pair: &[u8; 64]) -> [u8; 32] {
    let mut block = [0; BLOCK];
    block[..64].copy_from_slice(pair);
    block[64] = 0x80;
    block[BLOCK - 2..].copy_from_slice(&(64u16 * 8).to_be_bytes());
    let mut state = INITIAL_256;
    compress(&mut state, &[block]);
    digest(&state)
}

/// Returns the digest in bytes: the first half of the state.
#[inline]
fn digest(state: &[u64; 8]) -> [u8; 32] {
    let mut out = [0; 32];
    for (bytes, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(state) {
        *bytes = word.to_be_bytes();
    }
    out
}

/// The kernel of one lane.
#[derive(Clone, Copy, Debug)]
struct Portable;

impl Sha512Lanes<1> for Portable {
    fn absorb(
        self,
        states: &mut States<1>,
        [message]: &[PaddedSha512<'_>; 1],
        blocks: Range<usize>,
    ) {
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

/// Implements [`Sha512Lanes`] for `$token`. Besides what `define_rounds!` needs, these must be in
/// scope:
///
/// - `load` and `store`: a register from and to an array of words,
/// - `words_of_blocks`, `words_of_64`: the words of a block of each message, of 64-byte messages
///   side by side,
/// - `digests`: of the first halves of the states in the lanes.
///
/// Only its methods call the kernel's functions, and the token proves that these may be called.
#[cfg(target_arch = "x86_64")]
macro_rules! implement_lanes {
    ($token:ident, $register:ty, $n:literal, #[$attribute:meta]) => {
        crate::rounds::define_rounds!(sha512, $register, #[$attribute]);

        #[$attribute]
        fn absorb(states: &mut States<$n>, messages: &[PaddedSha512<'_>; $n], blocks: Range<usize>) {
            let mut state = [constant(0); 8];
            for (lanes, words) in state.iter_mut().zip(&*states) {
                *lanes = load(words);
            }
            for block in blocks {
                let mut words = words_of_blocks(messages, block);
                compress_words!(&mut state, &mut words);
            }
            for (words, lanes) in states.iter_mut().zip(state) {
                store(lanes, words);
            }
        }

        #[$attribute]
        fn pairs(pairs: &[[[u8; 64]; $n]], out: &mut [[[u8; 32]; $n]]) {
            for (pairs, out) in pairs.iter().zip(out) {
                let mut state = [constant(0); 8];
                for (lanes, word) in state.iter_mut().zip(super::INITIAL_256) {
                    *lanes = constant(word);
                }
                let [a, b, c, d, e, f, g, h] = words_of_64(pairs);
                let (zero, mark, length) = (constant(0), constant(1 << 63), constant(64 * 8));
                let mut words =
                    [a, b, c, d, e, f, g, h, mark, zero, zero, zero, zero, zero, zero, length];
                compress_words!(&mut state, &mut words);
                let [a, b, c, d, ..] = state;
                *out = digests(&[a, b, c, d]);
            }
        }

        crate::lanes::forward_lanes! { @each Sha512Lanes, $token, $n;
            fn absorb(states: &mut States<$n>, messages: &[PaddedSha512<'_>; $n], blocks: Range<usize>);
            fn pairs(messages: &[[[u8; 64]; $n]], out: &mut [[[u8; 32]; $n]]);
        }
    };
}
#[cfg(target_arch = "x86_64")]
use implement_lanes;

/// Initial hash value of SHA-512/256 (FIPS 180-4, 5.3.6.2).
pub(crate) const INITIAL_256: [u64; 8] = [
    0x2231_2194_fc2b_f72c,
    0x9f55_5fa3_c84c_64c2,
    0x2393_b86b_6f53_b151,
    0x9638_7719_5940_eabd,
    0x9628_3ee2_a88e_ffe3,
    0xbe5e_1e25_5386_3992,
    0x2b01_99fc_2c85_b8aa,
    0x0eb7_2ddc_81c5_2ca2,
];
