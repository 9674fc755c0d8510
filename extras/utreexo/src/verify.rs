//! Whether a [`Proof`] holds, and what roots are once its leaves are deleted: [`Roots::verify`] and
//! [`Roots::update`].
//!
//! One climb from the targets to the roots computes both what nodes are and what they become, all of a height
//! together. What always holds:
//!
//! - A leaf is proved where its target says, or the whole is refused: no node is computed twice or is both
//!   given and computed, no hash is left over, none is empty, and each target ends at a root.
//! - For a set of leaves there is one proof, in as many orders as there are of the leaves: next to an empty tree
//!   no leaf can be claimed at its old place, as the empty sibling that this takes is refused.
//! - On an error the roots are what they were.
//!
//! Not looked at is whether a hash is one of a leaf. The caller has computed it, by
//! [`leaf_hash`](crate::leaf_hash), of at least 80 bytes behind a tag. So it is no node's, whose hash is one of
//! 64 bytes without a tag; a node's hash, given as a leaf, could be proved where the node stands.

mod climb;

use crate::{Fragment, FragmentError, LiveLeaf, NodeHash, PROOF_ROWS, Position, Proof, Roots};
use climb::Climb;

/// Why a proof proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// Not as many leaves as targets.
    #[error("the proof is of {targets} leaves, and {leaves} are to be proved")]
    Leaves {
        /// Targets of the proof.
        targets: usize,
        /// Leaves given.
        leaves: usize,
    },
    /// A leaf that was deleted: such a one is nowhere.
    #[error("the leaf for target {target} is empty, which no proof shows to be there")]
    EmptyLeaf {
        /// Its target.
        target: u64,
    },
    /// A hash that no proof needs: what stands next to nothing takes its parent's place.
    #[error("hash {index} of the proof is empty, and empty nodes are in no proof")]
    EmptyHash {
        /// Which one, counted from 0.
        index: usize,
    },
    /// A target where the forest has no node.
    #[error("target {target} is no place in a forest of {leaves} leaves")]
    Outside {
        /// The target.
        target: u64,
        /// How many leaves the forest has had.
        leaves: u64,
    },
    /// A target more than once.
    #[error("target {target} stands in the proof twice")]
    Twice {
        /// The target.
        target: u64,
    },
    /// A target above another one: leaves have nothing below them.
    #[error("target {target} of the proof stands above another target, and so is no leaf")]
    Nested {
        /// The upper one.
        target: u64,
    },
    /// Fewer hashes than the targets need.
    #[error("the proof has {hashes} hashes and lacks at least one more, for node {position}")]
    Missing {
        /// Hashes that there are.
        hashes: usize,
        /// Where the node stands whose hash would come next, counted as targets are.
        position: u64,
    },
    /// More hashes than the targets need.
    #[error("the proof has {hashes} hashes, and its targets need {needed}")]
    Surplus {
        /// Hashes that there are.
        hashes: usize,
        /// Hashes that were used.
        needed: usize,
    },
    /// A tree that has another root.
    #[error("the tree of 2^{row} leaves has the root {expected}, and the proof leads to {found}")]
    Root {
        /// The tree's height.
        row: u32,
        /// The root.
        expected: NodeHash,
        /// What the proof makes of it.
        found: NodeHash,
    },
    /// No room for the leaves to be added.
    #[error(transparent)]
    Added(#[from] FragmentError),
}

impl Roots {
    /// Whether these leaves are in the forest, each at the proof's target of the same index.
    pub fn verify(&self, proof: &Proof, leaves: &[NodeHash]) -> Result<(), ProofError> {
        let targets = sorted(self.leaves, proof, leaves)?;
        Climb::new(self, &targets, &proof.hashes, false).up_to_roots().map(|_| ())
    }

    /// Deletes the leaves `spent`, if the proof shows them to be in the forest, as in [`verify`](Self::verify),
    /// then appends the leaves `added`, of which empty ones count as deleted before.
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

/// Where a leaf is to be, and the leaf.
type Target = (Position, NodeHash);

/// The targets by ascending position, each once, each in the forest, none of an empty leaf; no hash is empty.
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

/// A position as proofs say it. Those in a forest are in the largest one.
fn number(position: Position) -> u64 {
    position.number(PROOF_ROWS).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
