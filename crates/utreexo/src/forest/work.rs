//! [`Work`]: pages whose hashes are to be computed, many at a time.

use super::page::{Page, RowMasks, Shape, above, bits, right_child};
use crate::NodeHash;
use apus_hash::sha512_256;

/// Pages that are worked on together: enough that most lanes of the hash function have something to do in each row,
/// few enough that they stay near the processor.
pub(super) const PAGES_AT_ONCE: usize = 128;

/// A page, and above which nodes of its bottom row hashes are missing.
pub(super) struct Work {
    pub(super) page: Page,
    pub(super) shape: Shape,
    missing: RowMasks,
}

impl Work {
    pub(super) fn new(page: Page, shape: Shape, mask: u64) -> Self {
        let (own, mut missing) = (shape.own, above(mask));
        missing.iter_mut().zip(own).for_each(|(missing, own)| *missing &= own);
        Self { page, shape, missing }
    }

    pub(super) fn root(&self) -> NodeHash {
        self.page.root(&self.shape)
    }
}

/// Computes what is missing, row by row, the nodes of a row together.
pub(super) fn compute(work: &mut [Work]) {
    let (mut pairs, mut hashes) = (Vec::new(), Vec::new());
    for row in 1..RowMasks::default().len() {
        pairs.clear();
        for Work { page, shape, missing } in &*work {
            for bit in bits(missing[row]) {
                pairs.push(page.hash(shape, row - 1, bit).0);
                pairs.push(page.hash(shape, row - 1, right_child(row, bit)).0);
            }
        }
        hashes.resize(pairs.len() / 2, [0; 32]);
        sha512_256::pairs(&pairs, &mut hashes);
        let mut hashes = hashes.iter().copied().map(NodeHash);
        for Work { page, shape, missing } in &mut *work {
            let places = bits(missing[row]).map(|bit| shape.place(row, bit));
            places.zip(&mut hashes).for_each(|(place, hash)| page.set(place, hash));
        }
    }
}
