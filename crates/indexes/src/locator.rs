//! [`locator`]: how an index names its best block; [`best_block_of`] reads it, and [`height_in`] finds it in a node's
//! block index.

use apus_chain::{BlockHash, HeaderChain, Height, Reader, write_compact_size};
use apus_datadir::{DatabaseLookUps, IndependentReadError};

/// The version in a stored locator (Core `primitives/block.h`, `CBlockLocator::DUMMY_VERSION`).
const VERSION: i32 = 70_016;

/// So many blocks come one by one; behind them the steps double.
const ONE_BY_ONE: usize = 10;

/// Returns the best block of an index as Core stores it: the locator of a chain's last block (Core `chain.cpp`,
/// `LocatorEntries`). A node reads only the first hash.
pub(crate) fn locator(chain: &HeaderChain) -> Vec<u8> {
    let (mut height, mut step): (Height, Height) = (chain.tip_height(), 1);
    let mut hashes = Vec::new();
    while let Some(hash) = chain.hash(height) {
        hashes.push(hash);
        if height == 0 {
            break;
        }
        height = height.saturating_sub(step);
        if hashes.len() > ONE_BY_ONE {
            step = step.saturating_mul(2);
        }
    }
    let mut out = VERSION.to_le_bytes().to_vec();
    write_compact_size(&mut out, hashes.len() as u64);
    hashes.iter().for_each(|hash| out.extend_from_slice(hash.as_bytes()));
    out
}

/// Reads the best block of an index; `None` if a node would not: it reads the whole locator, and takes one that is cut
/// off or of no block for none (Core `index/base.cpp`, `ReadBestBlock`).
pub(crate) fn best_block_of(locator: &[u8]) -> Option<BlockHash> {
    blocks_of(locator)?.first().copied()
}

/// Reads the blocks of a locator, the highest first; `None` if it is cut off.
pub(crate) fn blocks_of(locator: &[u8]) -> Option<Vec<BlockHash>> {
    let mut reader = Reader::new(locator);
    let _version = reader.u32().ok()?;
    let (count, mut blocks) = (reader.compact_size().ok()?, Vec::new());
    for _ in 0..count {
        blocks.push(BlockHash(*reader.array().ok()?));
    }
    Some(blocks)
}

/// Looks up the height of a block in a node's block index (Core `txdb.cpp`, `CBlockTreeDB`).
///
/// # Errors
/// If the block index cannot be read.
pub(crate) fn height_in(
    index: &mut DatabaseLookUps<'_>,
    hash: &BlockHash,
) -> Result<Option<Height>, IndependentReadError> {
    let key = [&b"b"[..], hash.as_bytes()].concat();
    let Some(entry) = index.get(&key)? else { return Ok(None) };
    let mut reader = Reader::new(&entry);
    let height = reader.varint().and_then(|_version| reader.varint()).ok();
    Ok(height.and_then(|height| height.try_into().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_best_block_is_read_as_a_node_reads_it() {
        let hashes = [[7; 32], [8; 32]].concat();
        let whole = [&VERSION.to_le_bytes()[..], &[2], &hashes].concat();
        assert_eq!(best_block_of(&whole), Some(BlockHash([7; 32])));
        for length in 0..whole.len() {
            assert_eq!(best_block_of(&whole[..length]), None, "{length}");
        }
        let of_none = [&VERSION.to_le_bytes()[..], &[0], &hashes].concat();
        assert_eq!(best_block_of(&of_none), None);
    }
}
