//! [`MemoryParts`]: how a sync's memory is divided when blocks are connected in order.
//!
//! All parts are in one place to show that they add up: everything that holds blocks, coins or undo data has a
//! part here and counts the memory that it holds. Memory outside these parts is additional, and grows with the
//! chain only by some bytes for each block: the program and its stacks, tables that the store is writing,
//! headers, and what the allocator cannot use or return. With files, a block takes about 80 bytes while the chain
//! is found, and 56 after that; with peers, about 110. The coins of one block are additional, too, if its
//! scripts are run or its undo data is kept: 244 MB for the worst possible block, less what the cache can free
//! for it.

/// The parts of a sync's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryParts {
    /// For changed coins, including coins being written to the store, and for undo data until it is stored.
    pub coins_bytes: u64,
    /// For the store's read cache.
    pub store_bytes: u64,
    /// For blocks, from the time they are requested until they are connected and dropped.
    pub blocks_bytes: u64,
    /// For blocks that no thread has checked yet: in transit from peers, or read from files with their
    /// neighbours.
    pub incoming_bytes: u64,
}

/// Two full blocks and their derived data: with less, threads would idle. If the budget is smaller, the sync
/// exceeds it by this amount.
const BLOCKS_BYTES_MIN: u64 = 16 << 20;

/// Coins with the longest scripts in transit from servers: with less, batches would wait for each other.
const ANSWERS_BYTES_MIN: u64 = 14 << 20;

/// Below this size for coins, they get three quarters of the budget, and some of the rest is additional: with
/// few coins in memory each block is looked up, and soon written, on disk.
const COINS_BYTES_MIN: u64 = 96 << 20;

/// Above this size for coins, a sixth of the excess is reserved for the allocator's fragmentation: tables are
/// freed, and pieces of other sizes take their places.
const COINS_BYTES_WHOLE: u64 = 128 << 20;

impl MemoryParts {
    /// Divides `bytes` for a sync whose blocks this many threads read from files.
    pub fn with_files(bytes: u64, threads: usize) -> Self {
        Self::divide(bytes, threads as u64 * Self::reader_bytes(bytes, threads))
    }

    /// Divides `bytes` for a sync whose blocks come from peers.
    pub fn with_peers(bytes: u64) -> Self {
        Self::divide(bytes, (bytes / 8).clamp(8 << 20, 128 << 20))
    }

    /// The part for blocks, of a sync's `bytes`.
    pub fn blocks_bytes(bytes: u64) -> u64 {
        (bytes / 8).clamp(BLOCKS_BYTES_MIN, 64 << 20)
    }

    /// Bytes that each of the file-reading threads reads at once.
    pub fn reader_bytes(bytes: u64, threads: usize) -> u64 {
        (bytes / (8 * threads as u64)).clamp(256 << 10, 4 << 20)
    }

    /// For coins in transit from servers, if the store is remote and has no read cache. It assumes that each
    /// coin has the longest script, which almost none has, so part of it is taken from the allowance for memory
    /// on top.
    pub fn answers_bytes(&self) -> u64 {
        self.store_bytes + ANSWERS_BYTES_MIN
    }

    fn divide(bytes: u64, incoming_bytes: u64) -> Self {
        let store_bytes = (bytes / 8).min(64 << 20);
        let blocks_bytes = Self::blocks_bytes(bytes);
        let others = store_bytes + blocks_bytes + incoming_bytes;
        let rest = bytes.saturating_sub(others);
        let coins_bytes = rest - rest.saturating_sub(COINS_BYTES_WHOLE) / 6;
        let coins_bytes = coins_bytes.max(COINS_BYTES_MIN.min(bytes / 4 * 3));
        Self { coins_bytes, store_bytes, blocks_bytes, incoming_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn sum(memory: MemoryParts) -> u64 {
        let MemoryParts { coins_bytes, store_bytes, blocks_bytes, incoming_bytes } = memory;
        coins_bytes + store_bytes + blocks_bytes + incoming_bytes
    }

    proptest! {
        #[test]
        fn the_parts_add_up_to_the_whole(mib in 4u64..1 << 20, threads in 1usize..64) {
            let bytes = mib * MIB;
            for memory in [MemoryParts::with_files(bytes, threads), MemoryParts::with_peers(bytes)] {
                // Plus the minimum for blocks, and the minimum that a thread reads.
                let beyond = BLOCKS_BYTES_MIN + 8 * MIB + threads as u64 * (256 << 10);
                prop_assert!(sum(memory) <= bytes + beyond, "{memory:?}");
                if mib >= 200 {
                    prop_assert!((bytes / 6 * 5..=bytes).contains(&sum(memory)), "{memory:?}");
                }
                prop_assert!(memory.coins_bytes >= bytes / 4, "{memory:?}");
                prop_assert!(memory.blocks_bytes >= BLOCKS_BYTES_MIN);
            }
        }
    }

    #[test]
    fn coins_get_more_than_half() {
        for memory in [MemoryParts::with_files(450 * MIB, 2), MemoryParts::with_peers(450 * MIB)] {
            assert!(memory.coins_bytes > 450 * MIB / 2, "{memory:?}");
        }
        assert_eq!(MemoryParts::with_files(4 * MIB, 2).coins_bytes, 3 * MIB);
    }
}
