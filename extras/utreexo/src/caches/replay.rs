//! [`CacheReplay`]: the second walk over the proofs of a chain, for many caches at once.

use super::held::{CacheRule, Held};
use super::track::{Spends, Track};
use super::{CachesError, ProvedBlock};

/// What verifiers with one cache are sent for the blocks so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCost {
    /// Coins that the blocks spend.
    pub coins: u64,
    /// How many of them were remembered. Of the others there are targets and leaf data.
    pub remembered: u64,
    /// Hashes in proofs.
    pub hashes: u64,
    /// Bytes of proofs: targets and hashes, with their counts.
    pub proof_bytes: u64,
    /// Bytes of leaf data.
    pub leaf_bytes: u64,
    /// The most leaves that were remembered at a time.
    pub held_max: usize,
}

/// See the module.
pub struct CacheReplay<'a> {
    spends: &'a Spends,
    track: Track,
    caches: Vec<(Held, CacheCost)>,
    /// For each leaf that the last block spends, how many of those before it are not remembered.
    asked: Vec<u32>,
}

impl<'a> CacheReplay<'a> {
    /// Begins before the first leaf, with these caches.
    pub fn new(spends: &'a Spends, rules: &[CacheRule]) -> Self {
        let caches = rules.iter().map(|rule| (Held::new(*rule), CacheCost::default())).collect();
        Self { spends, track: Track::default(), caches, asked: Vec::new() }
    }

    /// Takes the next block, whose leaf data have so many bytes each, in the order of the targets.
    pub fn block(
        &mut self,
        block: &ProvedBlock<'_>,
        leaf_bytes: &[u32],
    ) -> Result<(), CachesError> {
        let added = self.track.block(block)?;
        let first = added.start;
        let spent_at = self.spends.of(added).ok_or(CachesError::Changed)?;
        let is_same = self.spends.are_at(&self.track.spent, block.height)
            && leaf_bytes.len() == block.proof.targets.len();
        if !is_same {
            return Err(CachesError::Changed);
        }
        for (held, cost) in &mut self.caches {
            cost.add(held, &self.track, block, leaf_bytes, &mut self.asked);
            held.spend(block.height);
            held.add(block.height, first, spent_at);
            cost.held_max = cost.held_max.max(held.count());
        }
        Ok(())
    }

    /// What each cache makes of the blocks so far.
    pub fn costs(&self) -> impl Iterator<Item = (CacheRule, CacheCost)> {
        self.caches.iter().map(|(held, cost)| (held.rule(), *cost))
    }
}

impl CacheCost {
    /// Counts what a block needs.
    fn add(
        &mut self,
        held: &Held,
        track: &Track,
        block: &ProvedBlock<'_>,
        leaf_bytes: &[u32],
        asked: &mut Vec<u32>,
    ) {
        let mut count = 0;
        asked.clear();
        asked.push(0);
        for (leaf, target) in track.spent.iter().zip(&track.targets) {
            if !held.has(*leaf) {
                let target = *target as usize;
                self.proof_bytes += compact_size_bytes(block.proof.targets[target]);
                self.leaf_bytes += u64::from(leaf_bytes[target]);
                count += 1;
            }
            asked.push(count);
        }
        let hashes = held.hashes(&track.branches, asked);
        self.proof_bytes += compact_size_bytes(count.into()) + compact_size_bytes(hashes);
        self.proof_bytes += 32 * hashes;
        self.hashes += hashes;
        self.coins += track.spent.len() as u64;
        self.remembered += track.spent.len() as u64 - u64::from(count);
    }
}

/// Bytes of a number as a CompactSize.
fn compact_size_bytes(number: u64) -> u64 {
    match number {
        0..=0xfc => 1,
        0xfd..=0xffff => 3,
        0x1_0000..=0xffff_ffff => 5,
        _ => 9,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_as_many_bytes_as_are_written() {
        for edge in [0, 0xfd, 0x1_0000, 0x1_0000_0000, u64::MAX] {
            for number in [edge.saturating_sub(1), edge, edge.saturating_add(1)] {
                let mut out = Vec::new();
                apus_chain::write_compact_size(&mut out, number);
                assert_eq!(compact_size_bytes(number), out.len() as u64, "{number}");
            }
        }
    }
}
