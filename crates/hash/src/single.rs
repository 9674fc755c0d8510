//! [`Single`]: the kernels for one message at a time, also usable as lane kernels with one lane.
//!
//! The kernel in plain Rust is for processors without special instructions. It is also the reference: every
//! other kernel must compute the same values. It does not use vectors; the lane kernels do.

use crate::lanes::{
    Columns, HashLanes, States, add_to_columns, block_of, bytes_of, column, keyed_block, set_column,
};
use crate::padded::PaddedMessage;
use crate::rounds::{INITIAL, define_rounds};
use core::ops::Range;
use core::slice;

/// A kernel for one message at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Single {
    Portable,
    #[cfg(target_arch = "x86_64")]
    ShaNi(crate::shani::ShaNi),
    #[cfg(target_arch = "aarch64")]
    Armv8(crate::armv8::Armv8),
    /// A kernel that gets one bit wrong.
    #[cfg(test)]
    Wrong,
}

impl Single {
    /// Continues `state` over whole blocks.
    #[inline]
    pub(crate) fn compress(self, state: &mut [u32; 8], blocks: &[[u8; 64]]) {
        match self {
            Self::Portable => crate::single::compress(state, blocks),
            #[cfg(target_arch = "x86_64")]
            Self::ShaNi(kernel) => kernel.compress(state, blocks),
            #[cfg(target_arch = "aarch64")]
            Self::Armv8(kernel) => kernel.compress(state, blocks),
            #[cfg(test)]
            Self::Wrong => {
                crate::single::compress(state, blocks);
                state[7] ^= 1;
            }
        }
    }

    /// Returns the state after `state` and one block.
    #[inline]
    pub(crate) fn after(self, mut state: [u32; 8], block: &[u8; 64]) -> [u32; 8] {
        self.compress(&mut state, slice::from_ref(block));
        state
    }

    #[inline]
    fn rehash_one(self, state: &[u32; 8]) -> [u8; 32] {
        bytes_of(&self.after(INITIAL, &block_of(state)))
    }
}

/// Builds the padding block of a 64-byte message.
const PADDING_64: [u8; 64] = {
    let mut block = [0; 64];
    block[0] = 0x80;
    block[62] = 2; // 512 bits
    block
};

impl HashLanes<1> for Single {
    fn absorb(
        self,
        states: &mut States<1>,
        [message]: &[PaddedMessage<'_>; 1],
        blocks: Range<usize>,
    ) {
        let mut state = column(states, 0);
        let mut next = blocks.start;
        while next < blocks.end {
            let mut buffer = [0; 64];
            let run = message.blocks_from(next, &mut buffer);
            let run = &run[..run.len().min(blocks.end - next)];
            self.compress(&mut state, run);
            next += run.len();
        }
        set_column(states, 0, &state);
    }

    fn rehash(self, states: &States<1>) -> [[u8; 32]; 1] {
        [self.rehash_one(&column(states, 0))]
    }

    fn pairs(self, pairs: &[[[u8; 64]; 1]], out: &mut [[[u8; 32]; 1]]) {
        for ([pair], out) in pairs.iter().zip(out) {
            let state = self.after(self.after(INITIAL, pair), &PADDING_64);
            *out = [self.rehash_one(&state)];
        }
    }

    fn keyed(self, midstate: &[u32; 8], messages: &[[[u8; 36]; 1]], out: &mut [[[u8; 32]; 1]]) {
        for ([message], out) in messages.iter().zip(out) {
            *out = [bytes_of(&self.after(*midstate, &keyed_block(message)))];
        }
    }

    fn keyed_sum(self, midstate: &[u32; 8], messages: &[[[u8; 36]; 1]], columns: &mut Columns) {
        for [message] in messages {
            add_to_columns(columns, &self.after(*midstate, &keyed_block(message)));
        }
    }
}

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
