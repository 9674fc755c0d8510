//! [`CacheReplay`]: the second pass over the proofs of a chain, for many caches at once.

use super::held::{CacheRule, HeldLeaves};
use super::track::{Spends, Track};
use super::{CachesError, ProvedBlock};

/// The data that a verifier with a given cache receives for the blocks so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCost {
    /// Number of coins that the blocks spend.
    pub coins: u64,
    /// How many of them were remembered. The others need targets and leaf data.
    pub remembered: u64,
    /// Number of hashes in proofs.
    pub hashes: u64,
    /// Bytes of proofs: targets and hashes, including their counts.
    pub proof_bytes: u64,
    /// Bytes of leaf data.
    pub leaf_bytes: u64,
    /// The most leaves remembered at a time.
    pub held_max: usize,
}

/// The second pass over the proofs of a chain, which counts what each cache saves.
pub struct CacheReplay<'a> {
    spends: &'a Spends,
    track: Track,
    caches: Vec<(HeldLeaves, CacheCost)>,
    /// Entry `n` is how many of the last block's first `n` spent leaves are not remembered.
    asked: Vec<u32>,
}

impl<'a> CacheReplay<'a> {
    /// Starts before the first leaf, with these caches.
    pub fn new(spends: &'a Spends, rules: &[CacheRule]) -> Self {
        let caches =
            rules.iter().map(|rule| (HeldLeaves::new(*rule), CacheCost::default())).collect();
        Self { spends, track: Track::default(), caches, asked: Vec::new() }
    }

    /// Applies the next block. `leaf_bytes` are the sizes of its leaf data, in the order of the targets.
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

    /// The cost with each cache for the blocks so far.
    pub fn costs(&self) -> impl Iterator<Item = (CacheRule, CacheCost)> {
        self.caches.iter().map(|(held, cost)| (held.rule(), *cost))
    }
}

impl CacheCost {
    /// Adds the cost of a block.
    fn add(
        &mut self,
        held: &HeldLeaves,
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

/// Length of a number as a CompactSize, in bytes.
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
    fn lengths_match_the_written_bytes() {
        for edge in [0, 0xfd, 0x1_0000, 0x1_0000_0000, u64::MAX] {
            for number in [edge.saturating_sub(1), edge, edge.saturating_add(1)] {
                let mut out = Vec::new();
                apus_chain::write_compact_size(&mut out, number);
                assert_eq!(compact_size_bytes(number), out.len() as u64, "{number}");
            }
        }
    }
}
