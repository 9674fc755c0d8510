//! [`CompetingBranches`]: the heights at which a sync may have to leave a chain, and how many blocks it then
//! disconnects.
//!
//! If a block proves invalid, the sync continues on the best remaining chain. That chain forks off below the
//! block, perhaps far below, if it has more work than the blocks up to there. Because all branches are known in
//! advance, so is the undo data that may be needed to disconnect blocks.

use apus_chain::{HeaderId, HeaderTree, Height, HeightRange};
use std::collections::HashMap;

/// Returns the connected headers that are not on `path`, each with the height where its branch forks off.
pub(super) fn branches(tree: &HeaderTree, path: &[HeaderId]) -> HashMap<HeaderId, Height> {
    let height = |id| tree.connected(id).map_or(0, |header| header.height);
    let is_on_path = |id| path.get(height(id) as usize) == Some(&id);
    let mut forks: HashMap<HeaderId, Height> = HashMap::new();
    let off_chain = tree.ids().filter(|id| tree.connected(*id).is_some() && !is_on_path(*id));
    for id in off_chain {
        let mut above = Vec::new();
        let fork = tree.lineage_of(id).find_map(|id| match forks.get(&id) {
            Some(fork) => Some(*fork),
            None if is_on_path(id) => Some(height(id)),
            None => {
                above.push(id);
                None
            }
        });
        forks.extend(above.into_iter().map(|id| (id, fork.unwrap_or(0))));
    }
    forks
}

/// Ranges of a chain, ascending and disjoint. In each, another chain has at least as much work as this chain up
/// to that height, and forks off below the first height.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CompetingBranches(Vec<HeightRange>);

impl CompetingBranches {
    /// Finds the ranges of the chain `path`, given the heights where `branches` fork off.
    pub(super) fn new(
        tree: &HeaderTree,
        path: &[HeaderId],
        branches: &HashMap<HeaderId, Height>,
    ) -> Self {
        let work = |id| tree.connected(id).map_or(0, |header| header.chain_work);
        let stretch = |(id, fork): (&HeaderId, &Height)| {
            let end = path.partition_point(|on_path| work(*on_path) <= work(*id)) as Height;
            (end > fork + 1).then(|| HeightRange::new(fork + 1, end))
        };
        let mut all: Vec<HeightRange> = branches.iter().filter_map(stretch).collect();
        all.sort_unstable_by_key(|range| range.start);
        let mut apart: Vec<HeightRange> = Vec::new();
        for range in all {
            match apart.last_mut() {
                Some(last) if range.start < last.end => last.end = last.end.max(range.end),
                _ => apart.push(range),
            }
        }
        Self(apart)
    }

    /// Returns the lowest block whose undo data a sync at height `tip` may need.
    pub(super) fn lowest(&self, tip: Height) -> Option<Height> {
        let after = self.0.partition_point(|range| range.end <= tip);
        self.0.get(after).filter(|range| range.start <= tip).map(|range| range.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::{BlockHash, Network, Params};
    use apus_testkit::chain::ChainBuilder;
    use apus_testkit::rng::Rng;
    use bitcoin::consensus::serialize;
    use bitcoin::hashes::Hash;

    /// Later than all blocks of all tests.
    const NOW: i64 = 4_000_000_000;

    /// Undo data is needed exactly where the sync could switch to a branch, and down to the lowest fork of
    /// overlapping ranges.
    #[test]
    fn undo_data_is_needed_for_every_fork_and_no_more() {
        let (mut within, mut outside) = (0, 0);
        for seed in 0..40 {
            let (mut builder, mut rng) = (ChainBuilder::new(seed), Rng::new(seed));
            let mut tree = HeaderTree::new(Params::of(Network::Regtest), NOW);
            let mut made = vec![builder.tip()];
            for _ in 0..40 {
                let back = rng.below(made.len().min(6) as u64) as usize;
                builder.set_tip(made[made.len() - 1 - back]);
                let block = builder.block_with(Vec::new());
                made.push(block.block_hash());
                tree.accept(&serialize(&block.header).try_into().unwrap()).unwrap();
            }
            let path = tree.path_to(tree.tip());
            let branches = branches(&tree, &path);
            assert_eq!(branches.len() + path.len(), made.len());
            let competing = CompetingBranches::new(&tree, &path, &branches);
            // On regtest all blocks have the same work.
            let ends: Vec<(Height, Height)> = made
                .iter()
                .map(|hash| tree.find(&BlockHash(hash.to_byte_array())).unwrap())
                .filter_map(|id| Some((*branches.get(&id)?, tree.connected(id)?.height)))
                .collect();
            for tip in 0..path.len() as Height {
                let is_way = |(fork, height): &&(Height, Height)| *fork < tip && tip <= *height;
                let fork = ends.iter().filter(is_way).map(|(fork, _)| *fork).min();
                match (fork, competing.lowest(tip)) {
                    (Some(fork), Some(lowest)) => assert!(lowest <= fork + 1, "{seed}: {tip}"),
                    (None, None) => outside += 1,
                    (fork, lowest) => panic!("{seed}: {tip}: {fork:?}, {lowest:?}"),
                }
                within += usize::from(fork.is_some());
            }
        }
        assert!(within > 50 && outside > 50, "{within}, {outside}");
    }
}
