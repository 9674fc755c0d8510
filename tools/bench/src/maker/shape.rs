//! [`ChainShape`]: the parts of a chain, as ranges of heights.
//!
//! A chain of full blocks has four parts: coinbases with thousands of outputs; a hundred blocks until these
//! mature; the busy blocks; coinbase-only blocks, enough for a node that assumes the last busy block valid to
//! skip its scripts. The main chain's history has only the last two: its early blocks make its first coins.

use super::law::{ChainProfile, spent_within};
use apus_chain::{Height, HeightRange};
use apus_testkit::rng::Rng;

/// Blocks before a coinbase can be spent (Core `consensus/consensus.h`, `COINBASE_MATURITY`).
pub(super) const MATURITY: u32 = 100;
/// Funding outputs made, per 1,000 coins that the busy blocks will spend.
const SUPPLY_PER_MILLE: u64 = 1_000;
/// Outputs per funding coinbase, if the number of coinbases can be chosen.
const FUNDING_OUTPUTS: usize = 2_000;
/// Maximum number of funding coinbases: fewer than the blocks before the first halving.
const FUNDING_BLOCKS_MAX: usize = 145;

/// The ranges of a chain's parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChainShape {
    pub(super) profile: ChainProfile,
    /// Coinbases with many outputs.
    pub(super) funding: HeightRange,
    /// Full blocks.
    pub(super) busy: HeightRange,
    /// Height of the last block.
    pub(super) tip: Height,
}

impl ChainShape {
    /// The shape of a chain with this number of busy blocks of this weight, and of tail blocks.
    pub(super) fn new(
        profile: ChainProfile,
        blocks: u32,
        block_weight: u32,
        tail_blocks: u32,
    ) -> Self {
        let needs = (0..blocks.min(NEED_BLOCKS)).map(|block| need(profile, block, block_weight));
        let outputs: u64 = needs.sum();
        let funding_blocks = (outputs as usize / FUNDING_OUTPUTS).clamp(1, FUNDING_BLOCKS_MAX);
        let first_busy = 1 + funding_blocks as u32 + MATURITY;
        Self {
            profile,
            funding: HeightRange::new(1, 1 + funding_blocks as u32),
            busy: HeightRange::new(first_busy, first_busy + blocks),
            tip: first_busy + blocks - 1 + tail_blocks,
        }
    }

    /// The shape of the main chain's history with this number of blocks, and of tail blocks.
    pub(super) const fn history(blocks: u32, tail_blocks: u32) -> Self {
        Self {
            profile: ChainProfile::MainHistory,
            funding: HeightRange::new(1, 1),
            busy: HeightRange::new(1, 1 + blocks),
            tip: blocks + tail_blocks,
        }
    }

    /// For each funding coinbase, the heights at which its outputs are due.
    pub(super) fn funding_dues(&self, block_weight: u32, rng: &mut Rng) -> Vec<Vec<Height>> {
        if self.funding.count() == 0 {
            return Vec::new();
        }
        let blocks = self.busy.end - self.busy.start;
        let of_block = |block: u32| {
            let count = need(self.profile, block, block_weight) as usize;
            std::iter::repeat_n(self.busy.start + block, count)
        };
        let mut dues: Vec<Height> = (0..blocks.min(NEED_BLOCKS)).flat_map(of_block).collect();
        rng.shuffle(&mut dues);
        let funding_blocks = (self.funding.end - self.funding.start) as usize;
        let each = dues.len().div_ceil(funding_blocks).max(1);
        dues.chunks(each).map(<[_]>::to_vec).collect()
    }
}

/// After this many busy blocks, busy blocks produce all the coins that they spend.
const NEED_BLOCKS: u32 = 20_000;

/// Number of funding coins that a busy block spends: the part that earlier busy blocks do not provide yet,
/// given the lifetimes of coins.
fn need(profile: ChainProfile, block: u32, block_weight: u32) -> u64 {
    let inputs = u64::from(block_weight) / profile.weight_per_input();
    let provided = u64::from(spent_within(profile, block)) * SUPPLY_PER_MILLE / 1_000;
    inputs * 10_000u64.saturating_sub(provided) / 10_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_one_another() {
        let sizes = [(1, 4_000), (10, 400_000), (600, 4_000_000), (90_000, 4_000_000)];
        let short = (600, 4_000_000);
        let all = sizes.map(|size| (ChainProfile::MainnetLike, size));
        for (profile, (blocks, weight)) in all.into_iter().chain([(ChainProfile::FewCoins, short)])
        {
            let shape = ChainShape::new(profile, blocks, weight, 2_100);
            assert_eq!(shape.funding.start, 1);
            assert!(shape.funding.end <= 146);
            assert_eq!(shape.busy.start, shape.funding.end + MATURITY);
            assert_eq!(shape.busy.end, shape.busy.start + blocks);
            assert_eq!(shape.tip, shape.busy.end + 2_099);
            let dues = shape.funding_dues(weight, &mut Rng::at(1, 1));
            assert!(dues.len() <= shape.funding.count() as usize, "{blocks}");
            let coins: usize = dues.iter().map(Vec::len).sum();
            let needed: u64 = (0..blocks).map(|block| need(profile, block, weight)).sum();
            assert_eq!(coins as u64, needed);
            assert!(dues.iter().flatten().all(|due| shape.busy.contains(*due)));
            // A coinbase stays below the block limit: an output weighs about 145.
            assert!(dues.iter().all(|dues| dues.len() < 24_000), "{blocks}");
        }
    }
}
