//! Verifies a [`Proof`] and computes the roots without its leaves: [`Roots::verify`] and [`Roots::update`].
//!
//! One climb from the targets to the roots, row by row, computes each node's hash both before and after the
//! deletion. Invariants:
//!
//! - A leaf is proved at its target, or the whole proof is refused: no node is computed twice or both given
//!   and computed, no hash is left over, no hash is empty, and each target ends at a root.
//! - Up to the order of the leaves, a set of leaves has exactly one proof: a leaf next to an empty tree
//!   cannot be claimed at its old place, because the empty sibling that this needs is refused.
//! - After an error the roots are unchanged.
//!
//! Verification does not check that a given hash is the hash of a leaf. The caller has computed it with
//! [`leaf_hash`](crate::leaf_hash), from at least 80 bytes after a tag, so it cannot be the hash of a node,
//! which covers 64 bytes without a tag. If the caller passed a node's hash as a leaf, it could be proved at
//! that node's place.

mod climb;

use crate::{Fragment, FragmentError, LiveLeaf, NodeHash, PROOF_ROWS, Position, Proof, Roots};
use climb::Climb;

/// Why a proof proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// The number of leaves differs from the number of targets.
    #[error("the proof has {targets} targets, but {leaves} leaves were given")]
    Leaves {
        /// Targets of the proof.
        targets: usize,
        /// Leaves given.
        leaves: usize,
    },
    /// A deleted leaf, which has no place in the forest.
    #[error("the leaf for target {target} is empty: deleted leaves cannot be proved")]
    EmptyLeaf {
        /// Its target.
        target: u64,
    },
    /// An empty hash, which no proof needs: a node next to an empty one takes its parent's place.
    #[error("hash {index} of the proof is empty: proofs contain no empty nodes")]
    EmptyHash {
        /// Its index, from 0.
        index: usize,
    },
    /// A target where the forest has no node.
    #[error("target {target} is outside a forest of {leaves} leaves")]
    Outside {
        /// The target.
        target: u64,
        /// How many leaves the forest has had.
        leaves: u64,
    },
    /// A target more than once.
    #[error("target {target} occurs twice in the proof")]
    Twice {
        /// The target.
        target: u64,
    },
    /// A target above another target, so it is not a leaf.
    #[error("target {target} is above another target, so it is not a leaf")]
    Nested {
        /// The upper one.
        target: u64,
    },
    /// Fewer hashes than the targets need.
    #[error("the proof has {hashes} hashes and needs at least one more, for node {position}")]
    Missing {
        /// Hashes in the proof.
        hashes: usize,
        /// Position of the node whose hash is missing, numbered like targets.
        position: u64,
    },
    /// More hashes than the targets need.
    #[error("the proof has {hashes} hashes, but its targets need {needed}")]
    Surplus {
        /// Hashes in the proof.
        hashes: usize,
        /// Hashes that were used.
        needed: usize,
    },
    /// The proof leads to a wrong root.
    #[error("the tree of 2^{row} leaves has root {expected}, but the proof leads to {found}")]
    Root {
        /// The tree's height.
        row: u32,
        /// The root.
        expected: NodeHash,
        /// The root that the proof leads to.
        found: NodeHash,
    },
    /// The forest has no room for the added leaves.
    #[error(transparent)]
    Added(#[from] FragmentError),
}

impl Roots {
    /// Checks that these leaves are in the forest, each at the proof's target of the same index.
    pub fn verify(&self, proof: &Proof, leaves: &[NodeHash]) -> Result<(), ProofError> {
        let targets = sorted(self.leaves, proof, leaves)?;
        Climb::new(self, &targets, &proof.hashes, false).up_to_roots().map(|_| ())
    }

    /// Deletes the leaves `spent` if the proof shows that they are in the forest, as in
    /// [`verify`](Self::verify), then appends the leaves `added`; empty ones count as already deleted.
    pub fn update(
        &mut self,
        proof: &Proof,
        spent: &[NodeHash],
        added: &[NodeHash],
    ) -> Result<(), ProofError> {
        let targets = sorted(self.leaves, proof, spent)?;
        let hashes = Climb::new(self, &targets, &proof.hashes, true).up_to_roots()?;
        let mut forest = Fragment::of_forest(&Self { leaves: self.leaves, hashes });
        let all = (0..).zip(added).map(|(place, hash)| LiveLeaf { place, hash: *hash });
        let live: Vec<LiveLeaf> = all.filter(|leaf| !leaf.hash.is_empty()).collect();
        forest.push_live(added.len() as u64, &live)?;
        *self = forest.roots().expect("a forest begins with the first leaf");
        Ok(())
    }
}

/// The claimed position of a leaf, and its hash.
type Target = (Position, NodeHash);

/// Sorts the targets by ascending position. Refuses duplicates, targets outside the forest, empty leaves and
/// empty hashes.
fn sorted(forest: u64, proof: &Proof, leaves: &[NodeHash]) -> Result<Vec<Target>, ProofError> {
    if proof.targets.len() != leaves.len() {
        return Err(ProofError::Leaves { targets: proof.targets.len(), leaves: leaves.len() });
    }
    if let Some(index) = proof.hashes.iter().position(NodeHash::is_empty) {
        return Err(ProofError::EmptyHash { index });
    }
    let mut targets: Vec<Target> = Vec::with_capacity(leaves.len());
    for (&target, leaf) in proof.targets.iter().zip(leaves) {
        if leaf.is_empty() {
            return Err(ProofError::EmptyLeaf { target });
        }
        let position = Position::of_number(target, PROOF_ROWS).filter(|at| at.is_in(forest));
        let position = position.ok_or(ProofError::Outside { target, leaves: forest })?;
        targets.push((position, *leaf));
    }
    targets.sort_unstable_by_key(|(position, _)| *position);
    match targets.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(ProofError::Twice { target: number(pair[0].0) }),
        None => Ok(targets),
    }
}

/// A position's number in proofs. Every position in a forest is also in the largest forest.
fn number(position: Position) -> u64 {
    position.number(PROOF_ROWS).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
