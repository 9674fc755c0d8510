//! [`Work`]: pages with missing hashes, which are computed for many pages at a time.

use super::page::{Page, RowMasks, Shape, above, bits, right_child};
use crate::NodeHash;
use apus_hash::sha512_256;

/// Number of pages processed together: enough to fill most lanes of the hash function in each row, few enough
/// to stay in the processor's cache.
pub(super) const PAGES_AT_ONCE: usize = 128;

/// A page, and which of its nodes lack a hash.
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

/// Computes the missing hashes, row by row, all nodes of a row together.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forest::page::PageFault;
    use proptest::prelude::*;

    /// The nodes of a bottom row; few, some, most or all are live.
    fn bottom() -> impl Strategy<Value = [NodeHash; 64]> {
        let mask = (any::<[u64; 3]>(), 0..5).prop_map(|([a, b, c], kind)| match kind {
            0 => a & b & c,
            1 => a,
            2 => a | b | c,
            3 => u64::MAX,
            _ => 1 << (a % 64),
        });
        (mask, any::<u8>()).prop_map(|(mask, seed)| {
            core::array::from_fn(|node| match mask >> node & 1 {
                0 => NodeHash::EMPTY,
                _ => NodeHash([seed.wrapping_add(node as u8) | 1; 32]),
            })
        })
    }

    /// Sets the hashes of the nodes in `mask`, and computes the nodes above them.
    fn changed(mut page: Page, bottom: &[NodeHash; 64], mask: u64) -> Page {
        let values: Vec<NodeHash> =
            bits(mask).map(|bit| bottom[bit.trailing_zeros() as usize]).collect();
        let before = page.shape();
        let shape = page.change(&before, mask, &values);
        assert_eq!((shape.live, shape.own), (page.shape().live, page.shape().own));
        let mut work = [Work::new(page, shape, mask)];
        compute(&mut work);
        let [work] = work;
        work.page
    }

    /// Checks every node against its two children, one by one.
    fn assert_is(page: &Page, bottom: &[NodeHash; 64]) {
        let (shape, mut nodes) = (page.shape(), bottom.to_vec());
        for row in 0..shape.live.len() {
            for (at, node) in nodes.iter().enumerate() {
                assert_eq!(page.hash(&shape, row, 1 << (at << row)), *node, "row {row}, {at}");
            }
            nodes = nodes
                .chunks(2)
                .map(|pair| NodeHash::parent(&pair[0], &pair[pair.len() - 1]))
                .collect();
        }
    }

    proptest! {
        #[test]
        fn nodes_are_the_parents_of_the_row_below(first in bottom(), second in bottom(), mask: u64) {
            let mut page = changed(Page::default(), &first, u64::MAX);
            assert_is(&page, &first);
            page = changed(page, &second, mask);
            let mixed = core::array::from_fn(|at| if mask >> at & 1 == 1 { second[at] } else { first[at] });
            assert_is(&page, &mixed);
            let mut bytes = Vec::new();
            page.write(&mut bytes);
            prop_assert_eq!(bytes.len(), 12 + 32 * page.live().count_ones() as usize);
            match Page::read(&bytes) {
                Err(fault) => prop_assert_eq!((fault, page.live()), (PageFault::Empty, 0)),
                Ok(read) => {
                    let shape = read.shape();
                    let mut work = [Work::new(read, shape, u64::MAX)];
                    compute(&mut work);
                    prop_assert_eq!(&work[0].page, &page);
                }
            }
        }

        #[test]
        fn any_bytes_are_a_page_or_a_fault(mask: u64, rest in prop::collection::vec(any::<u8>(), 0..200)) {
            let mask = (mask & 0x8000_0100_0000_0401).to_le_bytes();
            let bytes = [&mask, &crc32c::crc32c(&mask).to_le_bytes()[..], &rest].concat();
            for bytes in [&bytes, &rest] {
                if let Ok(page) = Page::read(bytes) {
                    let mut again = Vec::new();
                    page.write(&mut again);
                    prop_assert_eq!(&again, bytes);
                }
            }
        }
    }
}
