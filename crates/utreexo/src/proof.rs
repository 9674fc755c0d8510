//! [`Proof`]: that leaves are in a forest.

use crate::NodeHash;

/// The places of leaves in the order of a block's inputs, and the hashes that lead from them to the roots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proof {
    /// Positions of the leaves in a forest of 63 rows.
    pub targets: Vec<u64>,
    /// By ascending position.
    pub hashes: Vec<NodeHash>,
}
