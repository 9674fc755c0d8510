//! One message at a time: [`Sha256`], [`sha256`], [`sha256d`]; and [`Single`], the kernels for that, also as a lane
//! kernel with one lane.
//!
//! Invariant: how the bytes are cut into updates never changes the digest. Many messages are
//! faster in [`sha256d_many`](crate::sha256d_many). A digest is the words of a state in order, each big-endian; a sum
//! takes the same bytes as one little-endian number of 256 bits.
//!
//! The kernel in plain Rust, for processors without anything better, is also the measure of the other kernels: each
//! must give what this one gives. It does not try to use vectors; that is what the lane kernels are for.

use crate::groups::{Columns, HashLanes, States, column, set_column};
use crate::kernel::HashEngine;
use crate::many::Padded;
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
    /// One that gets a bit wrong.
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

    /// The state after `state` and one block.
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

/// The block that pads a 64-byte message.
const PADDING_64: [u8; 64] = {
    let mut block = [0; 64];
    block[0] = 0x80;
    block[62] = 2; // 512 bits
    block
};

impl HashLanes<1> for Single {
    fn absorb(self, states: &mut States<1>, [message]: &[Padded<'_>; 1], blocks: Range<usize>) {
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

/// SHA-256 of a message that arrives in parts.
#[derive(Clone, Debug)]
pub struct Sha256 {
    kernel: Single,
    state: [u32; 8],
    /// The bytes of the block not yet full; how many they are follows from `len`.
    pending: [u8; 64],
    len: u64,
}

impl Default for Sha256 {
    fn default() -> Self {
        Self::new()
    }
}

impl Sha256 {
    /// Starts an empty message.
    pub fn new() -> Self {
        Self::with(HashEngine::current().single)
    }

    pub(crate) fn with(kernel: Single) -> Self {
        Self { kernel, state: INITIAL, pending: [0; 64], len: 0 }
    }

    /// Appends bytes.
    pub fn update(&mut self, mut data: &[u8]) {
        let used = (self.len % 64) as usize;
        self.len = self.len.wrapping_add(data.len() as u64);
        if used > 0 {
            let (now, later) = data.split_at(data.len().min(64 - used));
            self.pending[used..used + now.len()].copy_from_slice(now);
            if used + now.len() < 64 {
                return;
            }
            self.kernel.compress(&mut self.state, &[self.pending]);
            data = later;
        }
        let (blocks, rest) = data.as_chunks();
        self.kernel.compress(&mut self.state, blocks);
        self.pending[..rest.len()].copy_from_slice(rest);
    }

    /// The digest of everything appended.
    pub fn finalize(mut self) -> [u8; 32] {
        let used = (self.len % 64) as usize;
        let mut tail = [[0; 64]; 2];
        tail[0][..used].copy_from_slice(&self.pending[..used]);
        tail[0][used] = 0x80;
        let blocks = if used < 56 { 1 } else { 2 };
        tail[blocks - 1][56..].copy_from_slice(&self.len.wrapping_mul(8).to_be_bytes());
        self.kernel.compress(&mut self.state, &tail[..blocks]);
        bytes_of(&self.state)
    }
}

/// SHA-256 of one message.
pub fn sha256(data: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(data);
    hash.finalize()
}

/// SHA-256 of the SHA-256 of one message: Bitcoin's hash of headers and transactions.
pub fn sha256d(data: &[u8]) -> [u8; 32] {
    sha256(&sha256(data))
}

/// The digest as bytes.
#[inline]
pub(crate) fn bytes_of(state: &[u32; 8]) -> [u8; 32] {
    let mut out = [0; 32];
    for (bytes, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *bytes = word.to_be_bytes();
    }
    out
}

/// The block that pads a digest which is hashed again.
#[inline]
pub(crate) fn block_of(state: &[u32; 8]) -> [u8; 64] {
    let mut block = [0; 64];
    block[..32].copy_from_slice(&bytes_of(state));
    block[32] = 0x80;
    block[62..].copy_from_slice(&(32u16 * 8).to_be_bytes());
    block
}

/// The second block of a 100-byte message, whose last 36 bytes are `message`.
#[inline]
pub(crate) fn keyed_block(message: &[u8; 36]) -> [u8; 64] {
    let mut block = [0; 64];
    block[..36].copy_from_slice(message);
    block[36] = 0x80;
    block[62..].copy_from_slice(&(100u16 * 8).to_be_bytes());
    block
}

/// Adds one digest, given as words.
#[inline]
pub(crate) fn add_to_columns(columns: &mut Columns, state: &[u32; 8]) {
    for (column, word) in columns.iter_mut().zip(state) {
        *column += u64::from(word.swap_bytes());
    }
}

/// Adds the columns to a 256-bit number, least significant limb first, modulo 2^256.
pub(crate) fn add_columns_to(sum: &mut [u64; 4], columns: &Columns) {
    let mut carry = 0;
    for (limb, pair) in sum.iter_mut().zip(columns.as_chunks::<2>().0) {
        carry += u128::from(*limb) + u128::from(pair[0]) + (u128::from(pair[1]) << 32);
        *limb = carry as u64;
        carry >>= 64;
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
