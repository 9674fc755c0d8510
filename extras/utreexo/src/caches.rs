//! Computes how many hashes, and how much leaf data, a verifier saves by remembering some leaves.
//!
//! A verifier that remembers a leaf keeps its hash and data, its place, and the nodes that prove it, from the
//! block that adds the leaf to the block that spends it. The maker of the proofs, who knows the later blocks,
//! chooses which leaves to remember.
//!
//! Which nodes such a verifier knows, and which it needs, follows from which leaves are live and which are
//! remembered; no hash is computed. Only nodes with two live children count, because a node whose sibling is
//! empty takes its parent's place.
//!
//! - It knows the roots, and both children of every node above a remembered leaf. So it knows both of two
//!   siblings or neither, and with a node also all its ancestors.
//! - A leaf that it does not remember is proved once the nodes computed from it reach a known node. So it
//!   needs a hash for each node with no remembered leaf below that has a leaf to be proved below one child
//!   and none below the other. Without a cache these are the hashes of a [`Proof`].
//! - After the block it knows all nodes that it needs in the new forest: all changes lie above spent leaves,
//!   whose paths it computed or knew, or next to added leaves, all of which it received.
//!
//! [`Lifetimes`] is the first pass over the proofs of a chain and finds when each leaf is spent;
//! [`CacheReplay`] is the second and needs that result. Both check every proof against the places that they
//! track: a target that does not lead to a live leaf, or a number of hashes other than the targets need, is
//! an error. They do not check the hashes themselves.

mod held;
mod outline;
mod replay;
mod track;

pub use held::{CachePolicy, CacheRule};
pub use replay::{CacheCost, CacheReplay};
pub use track::{Lifetimes, Spends};

use crate::Proof;
use apus_chain::{BLOCK_SIZE_MAX, Height};

/// The most leaves that a block can add: an output takes at least nine bytes, each of weight four.
const ADDED_MAX: u64 = BLOCK_SIZE_MAX as u64 / 36;

/// Estimates the bytes of memory that each of the two passes takes for `leaves` leaves.
pub fn caches_bytes(leaves: u64) -> u64 {
    // Per leaf: four bytes for the height that spends it, and two bits of an outline.
    leaves.saturating_mul(4).saturating_add(leaves / 4)
}

/// A block's data in a proof file.
#[derive(Clone, Copy, Debug)]
pub struct ProvedBlock<'a> {
    /// Height of the block, one above the block before it.
    pub height: Height,
    /// Leaves ever added, after this block.
    pub leaves_after: u64,
    /// Proof of the leaves that it spends.
    pub proof: &'a Proof,
}

/// Formats a number of bytes in gigabytes.
fn gigabytes(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

/// Why proofs do not fit a chain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CachesError {
    /// A target that does not lead to a live leaf.
    #[error("target {target} is not the place of a live leaf, among {leaves} leaves")]
    NoLeaf {
        /// The target.
        target: u64,
        /// Leaves ever added.
        leaves: u64,
    },
    /// A target more than once.
    #[error("target {target} occurs twice in the proof")]
    Twice {
        /// The target.
        target: u64,
    },
    /// A number of hashes other than the targets need.
    #[error("the proof has {found} hashes, but its targets need {needed}")]
    Hashes {
        /// Hashes in the proof.
        found: usize,
        /// Hashes that the targets need.
        needed: usize,
    },
    /// Fewer leaves than before, or more than a block can add.
    #[error(
        "the number of leaves cannot change from {before} to {after}: a block adds at most {ADDED_MAX}"
    )]
    Leaves {
        /// Leaves before the block.
        before: u64,
        /// Leaves after it.
        after: u64,
    },
    /// Not enough memory for the records of all leaves.
    #[error("not enough memory: {leaves} leaves need about {}", gigabytes(*.bytes))]
    Memory {
        /// Number of leaves.
        leaves: u64,
        /// Approximate number of bytes.
        bytes: u64,
    },
    /// The second pass differs from the first.
    #[error(
        "the block does not spend and add the same leaves as in the first pass: the files have changed"
    )]
    Changed,
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
