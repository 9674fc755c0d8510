//! [`MemoryParts`]: how the memory that a run may use is divided where blocks are connected in order.
//!
//! In one place, so that the parts can be seen to add up: what holds blocks, coins or undo data has a
//! part here and counts what it holds. What is in no part comes on top, and does not grow with the
//! chain but for some bytes for each block: the program and its stacks, tables of the store that are
//! being written, headers, and what the allocator cannot use or give back. The coins of one block come on top
//! too, where its scripts are run or its undo data is kept: 244 MB for the worst there could be, less what the
//! cache can give up for it.

/// The parts of a run's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryParts {
    /// For changed coins, those that are on their way to the store among them, and for undo data until
    /// it is there.
    pub coins_bytes: u64,
    /// For the store's cache of what it has read.
    pub store_bytes: u64,
    /// For blocks, from when they are to be read until they are connected and nothing holds them
    /// any more.
    pub blocks_bytes: u64,
    /// For blocks that no thread has looked at yet: on their way from peers, or read from files with
    /// their neighbours.
    pub incoming_bytes: u64,
}

/// Two full blocks and what is known of each: less would leave threads idle. A budget that is smaller
/// is exceeded by it.
const BLOCKS_BYTES_MIN: u64 = 16 << 20;

/// Coins with the longest scripts on their way from servers: less would have batches wait for each other.
const ANSWERS_BYTES_MIN: u64 = 14 << 20;

/// With less for coins than this, they have three quarters of the budget, and some of the rest comes on
/// top: with few coins in memory each block is looked up, and soon written, on disk.
const COINS_BYTES_MIN: u64 = 96 << 20;

/// From so much for coins on, a sixth of what is more is left to what an allocator cannot use between
/// them: tables come and go, and pieces of other sizes take their places.
const COINS_BYTES_WHOLE: u64 = 128 << 20;

impl MemoryParts {
    /// Divides `bytes` for a run whose blocks so many threads read from files.
    pub fn with_files(bytes: u64, threads: usize) -> Self {
        Self::divide(bytes, threads as u64 * Self::reader_bytes(bytes, threads))
    }

    /// Divides `bytes` for a run whose blocks come from peers.
    pub fn with_peers(bytes: u64) -> Self {
        Self::divide(bytes, (bytes / 8).clamp(8 << 20, 128 << 20))
    }

    /// The part for blocks of a run's `bytes`.
    pub fn blocks_bytes(bytes: u64) -> u64 {
        (bytes / 8).clamp(BLOCKS_BYTES_MIN, 64 << 20)
    }

    /// What each of so many threads that read files reads at once.
    pub fn reader_bytes(bytes: u64, threads: usize) -> u64 {
        (bytes / (8 * threads as u64)).clamp(256 << 10, 4 << 20)
    }

    /// For coins on their way from servers, where the store lies there and has no cache of what it reads. It
    /// is what they would take if each had the longest script, which next to none has, so some of it is
    /// taken of what may come on top.
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
        fn the_parts_are_the_whole(mib in 4u64..1 << 20, threads in 1usize..64) {
            let bytes = mib * MIB;
            for memory in [MemoryParts::with_files(bytes, threads), MemoryParts::with_peers(bytes)] {
                // Beside what blocks need at least, and what a thread reads at least.
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
    fn most_is_for_coins() {
        for memory in [MemoryParts::with_files(450 * MIB, 2), MemoryParts::with_peers(450 * MIB)] {
            assert!(memory.coins_bytes > 450 * MIB / 2, "{memory:?}");
        }
        assert_eq!(MemoryParts::with_files(4 * MIB, 2).coins_bytes, 3 * MIB);
    }
}
