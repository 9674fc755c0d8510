//! [`DamagedCopies`]: the peers that sent damaged copies, by block, to report them if no intact copy
//! arrives.

use crate::error::SourceError;
use apus_chain::{BlockError, BlockHash, Height};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of remembered blocks; the lowest ones are kept.
const BLOCKS_MAX: usize = 1024;

/// Maximum number of remembered peers for each block.
const PEERS_MAX: usize = 64;

/// Blocks without an intact copy so far.
#[derive(Debug, Default)]
pub(super) struct DamagedCopies(Mutex<BTreeMap<Height, Copies>>);

#[derive(Debug)]
struct Copies {
    hash: BlockHash,
    peers: BTreeSet<String>,
    error: BlockError,
}

impl DamagedCopies {
    /// Records that a damaged copy came from `peer`.
    pub(super) fn note(
        &self,
        height: Height,
        hash: BlockHash,
        peer: Option<String>,
        error: BlockError,
    ) {
        let mut blocks = self.0.lock();
        let new = || Copies { hash, peers: BTreeSet::new(), error: error.clone() };
        let copies = blocks.entry(height).or_insert_with(new);
        if copies.hash != hash {
            *copies = new();
        }
        if copies.peers.len() < PEERS_MAX {
            copies.peers.extend(peer);
        }
        copies.error = error;
        if blocks.len() > BLOCKS_MAX {
            blocks.pop_last();
        }
    }

    /// Forgets a block because an intact copy arrived, or the block is no longer wanted.
    pub(super) fn forget(&self, height: Height) {
        let mut blocks = self.0.lock();
        if !blocks.is_empty() {
            blocks.remove(&height);
        }
    }

    /// Returns the error for the lowest block.
    pub(super) fn error(&self) -> Option<SourceError> {
        let blocks = self.0.lock();
        let (&height, Copies { hash, peers, error }) = blocks.first_key_value()?;
        let (hash, error) = (*hash, error.clone());
        Some(SourceError::DamagedCopies { height, hash, peers: peers.len().max(1), error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ERROR: BlockError = BlockError::MerkleRoot;

    #[test]
    fn reports_the_lowest_block_and_the_number_of_peers() {
        let damaged = DamagedCopies::default();
        assert!(damaged.error().is_none());
        for (height, peer) in [(9, "a"), (5, "a"), (5, "b"), (5, "b"), (7, "c")] {
            damaged.note(height, BlockHash([height as u8; 32]), Some(peer.to_owned()), ERROR);
        }
        let said = damaged.error().unwrap();
        assert!(matches!(said, SourceError::DamagedCopies { height: 5, peers: 2, .. }), "{said}");
        damaged.forget(5);
        let said = damaged.error().unwrap();
        assert!(matches!(said, SourceError::DamagedCopies { height: 7, peers: 1, .. }), "{said}");
    }

    #[test]
    fn remembers_so_much_at_most() {
        let damaged = DamagedCopies::default();
        for number in (0..2 * BLOCKS_MAX as u32).rev() {
            damaged.note(number, BlockHash([1; 32]), None, ERROR);
        }
        for number in 0..2 * PEERS_MAX {
            damaged.note(0, BlockHash([1; 32]), Some(number.to_string()), ERROR);
        }
        let blocks = damaged.0.lock();
        assert_eq!(blocks.len(), BLOCKS_MAX);
        assert_eq!(blocks[&0].peers.len(), PEERS_MAX);
    }
}
