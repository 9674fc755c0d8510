//! What becomes of a hash state (eight words): a digest in bytes, or a part of a sum.
//!
//! Invariant: the digest is the words in order, each big-endian; a sum takes the same bytes as one
//! little-endian number of 256 bits.

use crate::lanes::Columns;

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
