//! What a verifier saves that remembers some leaves: how many hashes, and how much leaf data, it need not be sent.
//!
//! A verifier that remembers a leaf has its hash and data, knows where it is, and keeps the nodes that prove it, from
//! the block that adds the leaf to the one that spends it. It is told which leaves those are by the one who makes
//! proofs and knows the blocks to come.
//!
//! What such a verifier knows, and needs, follows from which leaves are live and which are remembered, without a
//! hash. Count only nodes with two living children: what is next to nothing stands in its parent's place.
//!
//! - It knows the roots, and both children of each node that has a remembered leaf below. Of two siblings it so
//!   knows both or none, and with a node it knows all above.
//! - A leaf that it does not remember is proved once what is computed from it meets a known node. So it needs a
//!   hash for each node that has no remembered leaf below, and such a spent leaf below one child and not below the
//!   other; without a cache those are the hashes of a [`Proof`].
//! - After the block it knows what it needs of the new forest, since all that changed lies above spent leaves, whose
//!   ways up it went or knew, or beside added ones, which it was all given.
//!
//! [`Lifetimes`] is the first walk over the proofs of a chain, which finds when each leaf is spent, and
//! [`CacheReplay`] the second, which needs that. Both hold every proof against the places that they know: a target
//! that leads to no live leaf, or another number of hashes than its targets need, is an error. Whether hashes are
//! the right ones is not looked at.

mod held;
mod outline;
mod replay;
mod track;

pub use held::{CachePolicy, CacheRule};
pub use replay::{CacheCost, CacheReplay};
pub use track::{Lifetimes, Spends};

use crate::Proof;
use apus_chain::{BLOCK_SIZE_MAX, Height};

/// The most leaves that a block adds: an output has nine bytes at least, each of weight four.
const ADDED_MAX: u64 = BLOCK_SIZE_MAX as u64 / 36;

/// About how many bytes of memory both walks take for so many leaves.
pub fn caches_bytes(leaves: u64) -> u64 {
    // When each is spent, four bytes, and two bits of an outline.
    leaves.saturating_mul(4).saturating_add(leaves / 4)
}

/// What files of proofs say of a block.
#[derive(Clone, Copy, Debug)]
pub struct ProvedBlock<'a> {
    /// The block; each is the one above that before it.
    pub height: Height,
    /// Leaves that there ever were after it.
    pub leaves_after: u64,
    /// Of the leaves that it spends.
    pub proof: &'a Proof,
}

/// Why proofs are not those of a chain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CachesError {
    /// A target that leads nowhere.
    #[error("target {target} is not the place of a leaf that is there, among {leaves} leaves")]
    NoLeaf {
        /// The target.
        target: u64,
        /// Leaves that there ever were.
        leaves: u64,
    },
    /// A target more than once.
    #[error("target {target} stands in the proof twice")]
    Twice {
        /// The target.
        target: u64,
    },
    /// Other hashes than the targets need.
    #[error("the proof has {found} hashes, and its targets need {needed}")]
    Hashes {
        /// Hashes that there are.
        found: usize,
        /// Hashes that it takes.
        needed: usize,
    },
    /// Fewer leaves than before, or more than a block can add.
    #[error(
        "there cannot be {after} leaves after it and {before} before: a block adds {ADDED_MAX} at most"
    )]
    Leaves {
        /// Leaves before the block.
        before: u64,
        /// Leaves after it.
        after: u64,
    },
    /// No memory for what is kept of each leaf.
    #[error("{leaves} leaves take about {bytes} bytes of memory, which are not there")]
    Memory {
        /// How many leaves.
        leaves: u64,
        /// About how many bytes.
        bytes: u64,
    },
    /// The second walk finds something else than the first.
    #[error("it spends and adds other leaves than when it was read first: the files have changed")]
    Changed,
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
