//! [`locator`]: how an index names its best block.

use apus_chain::{HeaderChain, Height, write_compact_size};

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
