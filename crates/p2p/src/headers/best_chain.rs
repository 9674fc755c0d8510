//! [`BestChain`]: the most-work chain of a header tree, indexed by height, and its locators.

use apus_chain::{BlockHash, HeaderId, HeaderTree, Height};

/// How many blocks below a header its locator lists without gaps; below that the gaps double (Core
/// `chain.cpp`, `LocatorEntries`).
const LOCATOR_DENSE: usize = 10;

/// Header ids of the most-work chain, the genesis block first: 4 bytes a header.
///
/// Reflects the tree's tip as of the last [`follow`](Self::follow).
#[derive(Debug, Clone)]
pub(super) struct BestChain {
    ids: Vec<HeaderId>,
}

/// Height of a header, or 0 if it is not connected.
pub(super) fn height_of(tree: &HeaderTree, id: HeaderId) -> Height {
    tree.connected(id).map_or(0, |header| header.height)
}

/// Work of the chain that ends in a header, or 0 if it is not connected.
pub(super) fn work_of(tree: &HeaderTree, id: HeaderId) -> u128 {
    tree.connected(id).map_or(0, |header| header.chain_work)
}

impl BestChain {
    pub(super) fn of(tree: &HeaderTree) -> Self {
        Self { ids: tree.path_to(tree.tip()) }
    }

    /// Moves to the tree's current tip. Returns true if the tip changed.
    pub(super) fn follow(&mut self, tree: &HeaderTree) -> bool {
        let tip = tree.tip();
        if self.ids.last() == Some(&tip) {
            return false;
        }
        let new: Vec<HeaderId> =
            tree.lineage_of(tip).take_while(|&id| self.height(tree, id).is_none()).collect();
        let first = new.last().map_or(0, |&id| height_of(tree, id));
        self.ids.truncate(first as usize);
        self.ids.extend(new.into_iter().rev());
        true
    }

    /// The ids, by height.
    pub(super) fn ids(&self) -> &[HeaderId] {
        &self.ids
    }

    /// Height of the header, if it is in this chain.
    fn height(&self, tree: &HeaderTree, id: HeaderId) -> Option<Height> {
        let height = height_of(tree, id);
        (self.ids.get(height as usize) == Some(&id)).then_some(height)
    }

    /// Height of the last header shared with the chain that ends in `id`.
    pub(super) fn fork_height(&self, tree: &HeaderTree, id: HeaderId) -> Height {
        tree.lineage_of(id).find_map(|id| self.height(tree, id)).unwrap_or(0)
    }

    /// The ancestor at `height` of a header at or above that height.
    fn ancestor(&self, tree: &HeaderTree, id: HeaderId, height: Height) -> HeaderId {
        for id in tree.lineage_of(id) {
            if height_of(tree, id) <= height {
                return id;
            }
            if self.height(tree, id).is_some() {
                return self.ids[height as usize];
            }
        }
        id
    }

    /// A locator of the chain that ends in `from` (Core `chain.cpp`, `LocatorEntries`): about 10 hashes plus
    /// the binary logarithm of the height, the genesis block last.
    pub(super) fn locator(&self, tree: &HeaderTree, from: HeaderId) -> Vec<BlockHash> {
        let mut hashes = Vec::with_capacity(40);
        let (mut id, mut height, mut step) = (from, height_of(tree, from), 1u32);
        loop {
            hashes.push(*tree.hash(id));
            if height == 0 {
                return hashes;
            }
            height = height.saturating_sub(step);
            if hashes.len() > LOCATOR_DENSE {
                step = step.saturating_mul(2);
            }
            id = self.ancestor(tree, id, height);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::tests::testing::{NOW, mined, regtest};
    use apus_chain::Header;

    fn tree_of(stretches: &[&[[u8; 80]]]) -> HeaderTree {
        let mut tree = HeaderTree::new(&regtest(0), NOW);
        for raw in stretches.iter().copied().flatten() {
            tree.accept(raw).unwrap();
        }
        tree
    }

    fn heights(tree: &HeaderTree, hashes: &[BlockHash]) -> Vec<Height> {
        hashes.iter().map(|hash| height_of(tree, tree.find(hash).unwrap())).collect()
    }

    #[test]
    fn a_locator_is_dense_at_first_and_ends_in_the_genesis_block() {
        let chain = mined(None, 100, 1);
        let tree = tree_of(&[&chain]);
        let best = BestChain::of(&tree);
        let locator = best.locator(&tree, tree.tip());
        assert_eq!(
            heights(&tree, &locator),
            [100, 99, 98, 97, 96, 95, 94, 93, 92, 91, 90, 89, 87, 83, 75, 59, 27, 0]
        );
        assert_eq!(heights(&tree, &best.locator(&tree, best.ids()[0])), [0]);
        assert_eq!(heights(&tree, &best.locator(&tree, best.ids()[2])), [2, 1, 0]);
    }

    #[test]
    fn a_locator_of_a_branch_goes_down_that_branch() {
        let chain = mined(None, 60, 1);
        let branch = mined(Some(&chain[39]), 15, 2);
        let tree = tree_of(&[&chain, &branch]);
        let best = BestChain::of(&tree);
        let end = tree.find(&Header::parse(&branch[14]).hash()).unwrap();
        let locator = best.locator(&tree, end);
        let mut on_branch: Vec<BlockHash> =
            branch[3..].iter().rev().map(|raw| Header::parse(raw).hash()).collect();
        on_branch.truncate(12);
        assert_eq!(locator[..12], on_branch);
        assert_eq!(heights(&tree, &locator)[12..], [42, 38, 30, 14, 0]);
        assert_eq!(locator[13], Header::parse(&chain[37]).hash());
        assert_eq!(best.fork_height(&tree, end), 40);
        assert_eq!(best.fork_height(&tree, tree.tip()), 60);
    }

    #[test]
    fn follows_the_tip_over_a_fork() {
        let chain = mined(None, 30, 1);
        let branch = mined(Some(&chain[9]), 25, 2);
        let mut tree = tree_of(&[&chain]);
        let mut best = BestChain::of(&tree);
        assert!(!best.follow(&tree));
        for raw in &branch {
            tree.accept(raw).unwrap();
        }
        assert!(best.follow(&tree));
        assert_eq!(best.ids(), tree.path_to(tree.tip()));
        assert_eq!(best.ids().len(), 36);
    }
}
