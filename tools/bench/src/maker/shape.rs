//! [`Shape`]: the heights of a chain's parts, and the coins that its first blocks must provide.
//!
//! First come coinbases with thousands of outputs, then a hundred blocks until they can be spent,
//! then the busy blocks, then coinbases alone, so many that a node which assumes the last busy
//! block valid skips its scripts.

use super::law::{self, Profile};
use apus_chain::{Height, HeightRange};
use apus_testkit::rng::Rng;

/// Blocks before a coinbase can be spent (Core `consensus/consensus.h`, `COINBASE_MATURITY`).
pub(super) const MATURITY: u32 = 100;
/// Outputs that can and will be spent, of 1,000 coins that are spent by the same blocks.
const SUPPLY_PER_MILLE: u64 = 1_000;
/// Outputs of a coinbase at the start, where so many are needed that there is a choice.
const FUNDING_OUTPUTS: usize = 2_000;
/// Coinbases with many outputs. Fewer than the blocks before the first halving.
const FUNDING_BLOCKS_MAX: usize = 145;

/// Where a chain's parts begin and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) profile: Profile,
    /// Coinbases with many outputs.
    pub(super) funding: HeightRange,
    /// Full blocks.
    pub(super) busy: HeightRange,
    /// Height of the last block.
    pub(super) tip: Height,
}

impl Shape {
    /// The shape of a chain with so many busy blocks of this weight, and so many blocks after.
    pub(super) fn new(profile: Profile, blocks: u32, block_weight: u32, tail_blocks: u32) -> Self {
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

    /// For each coinbase at the start, the heights at which its outputs are to be spent.
    pub(super) fn funding_dues(&self, block_weight: u32, rng: &mut Rng) -> Vec<Vec<Height>> {
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

/// After so many busy blocks they live on what they made themselves.
const NEED_BLOCKS: u32 = 20_000;

/// How many coins of the first blocks a busy block spends: what earlier busy blocks do not yet
/// provide when all coins live as long as they should.
fn need(profile: Profile, block: u32, block_weight: u32) -> u64 {
    let inputs = u64::from(block_weight) / profile.weight_per_input();
    let provided = u64::from(law::spent_within(profile, block)) * SUPPLY_PER_MILLE / 1_000;
    inputs * 10_000u64.saturating_sub(provided) / 10_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_one_another() {
        let sizes = [(1, 4_000), (10, 400_000), (600, 4_000_000), (90_000, 4_000_000)];
        let short = (600, 4_000_000);
        let all = sizes.map(|size| (Profile::MainnetLike, size));
        for (profile, (blocks, weight)) in all.into_iter().chain([(Profile::FewCoins, short)]) {
            let shape = Shape::new(profile, blocks, weight, 2_100);
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
            // A coinbase stays below the limit of a block: an output weighs some 145.
            assert!(dues.iter().all(|dues| dues.len() < 24_000), "{blocks}");
        }
    }
}
