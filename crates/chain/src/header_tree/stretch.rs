//! [`Stretch`]: consecutive headers with equal targets, which share all that follows from the targets.
//!
//! On main a target lasts for 2016 headers, so a header without its target and its chain work takes 24 bytes
//! less.

use crate::header::Height;
use crate::work::block_work;

/// Headers of one lineage from a first height on. Siblings may share a stretch.
#[derive(Debug, Clone)]
pub(super) struct Stretch {
    /// The compact target of each header.
    pub(super) bits: u32,
    /// The target of the nearest header, including these, that is not a minimum-difficulty exception. Without
    /// it, checking the rule would have to walk back from each header.
    pub(super) last_real_bits: u32,
    start: Height,
    /// The work of the chain below the first header.
    work_below: u128,
    /// The work of each header.
    block_work: u128,
}

impl Stretch {
    /// Returns a stretch that begins at height `start`, on a chain with this much work.
    pub(super) fn new(start: Height, work_below: u128, bits: u32, last_real_bits: u32) -> Self {
        Self { bits, last_real_bits, start, work_below, block_work: block_work(bits) }
    }

    /// Returns the work of the chain up to and including the header at `height`.
    pub(super) const fn chain_work(&self, height: Height) -> u128 {
        let count = (height - self.start) as u128 + 1;
        self.work_below.saturating_add(self.block_work.saturating_mul(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The shared work equals a sum header by header, even one that reaches the largest number.
        #[test]
        fn work_is_the_sum_of_all_headers(
            start in 0u32..10, below in 0u128.., bits in prop::sample::select(vec![0x207f_ffffu32, 0x1d00_ffff, 0x0100_0001, 0]),
        ) {
            let stretch = Stretch::new(start, below, bits, bits);
            let mut sum = below;
            for height in start..start + 20 {
                sum = sum.saturating_add(block_work(bits));
                prop_assert_eq!(stretch.chain_work(height), sum);
            }
        }
    }
}
