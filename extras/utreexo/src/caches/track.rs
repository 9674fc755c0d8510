//! [`Track`]: the forest's outline after each block, and what each block spends; [`Lifetimes`]: when each
//! leaf is spent.

use super::outline::{Branch, Outline};
use super::{ADDED_MAX, CachesError, ProvedBlock, caches_bytes};
use apus_chain::Height;
use std::ops::Range;

/// Stands for the spending height of leaves that are never spent.
pub(super) const NEVER: Height = Height::MAX;

/// The forest's outline after the last block, and what that block spends.
#[derive(Default)]
pub(super) struct Track {
    outline: Outline,
    /// Leaves that the last block spends, ascending.
    pub(super) spent: Vec<u64>,
    /// For each of `spent`, the index of its target in the proof.
    pub(super) targets: Vec<u32>,
    /// Nodes with two live children, before the last block, above the leaves that it spends.
    pub(super) branches: Vec<Branch>,
    order: Vec<(u64, u32)>,
}

impl Track {
    /// Applies the next block and returns the leaves that it adds.
    pub(super) fn block(&mut self, block: &ProvedBlock<'_>) -> Result<Range<u64>, CachesError> {
        let (before, after) = (self.outline.leaves(), block.leaves_after);
        let added = after.checked_sub(before).filter(|added| *added <= ADDED_MAX);
        let added = added.ok_or(CachesError::Leaves { before, after })?;
        self.find_leaves(&block.proof.targets)?;
        self.outline.branches(&self.spent, &mut self.branches);
        let (found, needed) = (block.proof.hashes.len(), self.hashes());
        if found != needed {
            return Err(CachesError::Hashes { found, needed });
        }
        self.spent.iter().for_each(|leaf| self.outline.delete(*leaf));
        self.outline.add(added);
        Ok(before..after)
    }

    fn find_leaves(&mut self, targets: &[u64]) -> Result<(), CachesError> {
        self.order.clear();
        for (index, &target) in (0..).zip(targets) {
            let no_leaf = CachesError::NoLeaf { target, leaves: self.outline.leaves() };
            self.order.push((self.outline.leaf(target).ok_or(no_leaf)?, index));
        }
        self.order.sort_unstable();
        if let Some(pair) = self.order.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(CachesError::Twice { target: targets[pair[0].1 as usize] });
        }
        self.spent.clear();
        self.spent.extend(self.order.iter().map(|(leaf, _)| *leaf));
        self.targets.clear();
        self.targets.extend(self.order.iter().map(|(_, index)| *index));
        Ok(())
    }

    /// Number of hashes that a verifier without a cache needs.
    fn hashes(&self) -> usize {
        let is_half =
            |branch: &&Branch| branch.middle == branch.first || branch.middle == branch.end;
        self.branches.iter().filter(is_half).count()
    }
}

/// The first pass over the proofs of a chain, which finds when each leaf is spent.
pub struct Lifetimes {
    track: Track,
    spent_at: Vec<Height>,
}

impl Lifetimes {
    /// Starts before the first leaf and reserves memory for `leaves` leaves, the number at the end.
    pub fn new(leaves: u64) -> Result<Self, CachesError> {
        let mut spent_at = Vec::new();
        let room = usize::try_from(leaves).ok().map(|leaves| spent_at.try_reserve_exact(leaves));
        match room {
            Some(Ok(())) => Ok(Self { track: Track::default(), spent_at }),
            _ => Err(CachesError::Memory { leaves, bytes: caches_bytes(leaves) }),
        }
    }

    /// Applies the next block.
    pub fn block(&mut self, block: &ProvedBlock<'_>) -> Result<(), CachesError> {
        let added = self.track.block(block)?;
        for leaf in &self.track.spent {
            self.spent_at[*leaf as usize] = block.height;
        }
        self.spent_at.resize(added.end as usize, NEVER);
        Ok(())
    }

    /// Returns when each leaf is spent. Call it after the last block.
    pub fn finish(self) -> Spends {
        Spends { spent_at: self.spent_at }
    }
}

/// The height at which each leaf is spent, found by [`Lifetimes`].
pub struct Spends {
    spent_at: Vec<Height>,
}

impl Spends {
    /// Leaves ever added.
    pub fn leaves(&self) -> u64 {
        self.spent_at.len() as u64
    }

    /// The spending heights of these leaves; `None` if there are fewer leaves.
    pub(super) fn of(&self, leaves: Range<u64>) -> Option<&[Height]> {
        self.spent_at.get(leaves.start as usize..leaves.end as usize)
    }

    /// Whether all of these leaves are spent at that height.
    pub(super) fn are_at(&self, leaves: &[u64], height: Height) -> bool {
        leaves.iter().all(|leaf| self.spent_at.get(*leaf as usize) == Some(&height))
    }
}
