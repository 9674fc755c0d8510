//! A proof file: everything needed to validate a range of blocks from the roots before it
//! (`docs/utreexo.md`).
//!
//! [`RangeWriter`] writes one block by block; [`RangeFile`] opens one and gives the *entry* of any of its
//! blocks: the [`Proof`](crate::Proof) of the coins that the block spends and does not create itself, then
//! their compact leaves, in the order of its inputs. This module does not look into entries, and nothing in a
//! file is proved: its checksums protect against corruption on disk only, and anyone can make a file.

mod read;
mod write;

pub use read::{RangeBlock, RangeFile, RangeFileError};
pub use write::RangeWriter;

use crate::Roots;
use apus_chain::{BlockHash, COIN_HEIGHT_MAX, Height, HeightRange};

const MAGIC: [u8; 8] = *b"APUSPRF\x0a";
const END_MAGIC: [u8; 8] = *b"\x0aAPUSPRE";
const VERSION: u32 = 1;

/// Bytes of the head before the roots.
const HEAD_BYTES: usize = 52;

/// Bytes of a block's record in the tail.
const RECORD_BYTES: usize = 56;

/// Bytes of the foot.
const FOOT_BYTES: usize = 24;

/// The most bytes that an entry can have. The inputs of a valid block, each with the longest script and all
/// nodes above it in a forest of 2^40 leaves, take less.
pub const ENTRY_BYTES_MAX: u32 = 1 << 28;

/// The most blocks that a file can have: their records stay in memory while it is open, at most 14 MiB.
pub const RANGE_BLOCKS_MAX: u32 = 1 << 18;

/// The start of a range and the roots there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeHead {
    /// Network magic.
    pub network: [u8; 4],
    /// Height of the first block, at least 1.
    pub first: Height,
    /// Hash of the block before it.
    pub before: BlockHash,
    /// The roots after that block.
    pub roots: Roots,
}

/// The file name for a range.
pub fn range_file_name(heights: HeightRange) -> String {
    format!("proofs-{:08}-{:08}.dat", heights.start, heights.end)
}

/// The range in a file name; `None` if it is not the name of a proof file.
pub fn range_of_name(name: &str) -> Option<HeightRange> {
    let (start, end) = name.strip_prefix("proofs-")?.strip_suffix(".dat")?.split_once('-')?;
    let height = |digits: &str| {
        let are_digits = digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<Height>().ok().filter(|_| are_digits)
    };
    let (start, end) = (height(start)?, height(end)?);
    (start < end).then(|| HeightRange::new(start, end))
}

/// The heights of `blocks` blocks from `first` on; `None` if a file cannot have that range.
fn heights(first: Height, blocks: u32) -> Option<HeightRange> {
    if first == 0 || !(1..=RANGE_BLOCKS_MAX).contains(&blocks) {
        return None;
    }
    let end = first.checked_add(blocks).filter(|end| end - 1 <= COIN_HEIGHT_MAX)?;
    Some(HeightRange::new(first, end))
}

#[cfg(test)]
mod tests;
