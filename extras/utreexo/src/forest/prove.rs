//! The proof of a block, by one walk over the pages above the leaves that it spends.
//!
//! A leaf's place in Utreexo is not where it was put: what is next to nothing has moved up into its parent's place,
//! and all below with it. So the walk begins at the root of a tree, whose place never changes, and a place goes on to
//! that of the child only where both children are there. Siblings of what leads to spent leaves, and not to spent ones
//! themselves, are the proof. The walk goes from left to right, so it comes by those of one row in their order.
//!
//! The walk looks at shapes alone, which lie side by side, and only notes where hashes are: these are all over the
//! memory, and are fetched faster by a loop that does nothing else.

use super::cache::{Cache, Slot};
use super::id::ROWS;
use super::page::{rank, right_child};
use super::touched::Touched;
use crate::Proof;

/// Rows of the forest in whose places proofs speak, but for the lowest.
const FOREST_ROWS: u32 = 63;

/// A perfect tree of a forest, one for each bit of its number of leaves.
#[derive(Clone, Copy)]
pub(super) struct Tree {
    /// Its height.
    pub(super) row: u32,
    /// Which one of its height it would be if all were that high.
    pub(super) index: u64,
}

/// A node, by where it is in the pages.
pub(super) struct Spot {
    pub(super) level: usize,
    pub(super) index: u64,
    pub(super) row: usize,
    pub(super) bit: u64,
}

/// The trees of so many leaves, the highest first.
pub(super) fn trees(leaves: u64) -> impl Iterator<Item = Tree> {
    let rows = (0..u64::BITS).rev().filter(move |row| leaves >> row & 1 == 1);
    // The bit of the tree itself is not counted.
    rows.map(move |row| Tree { row, index: leaves >> row ^ 1 })
}

impl Tree {
    /// Where its root is: not in the bottom row of a page, unless it is a leaf.
    pub(super) fn root(self) -> Spot {
        self.in_level(self.row.saturating_sub(1) / ROWS)
    }

    /// Where its root is once more if it is that of a page: in the bottom row of the one above.
    pub(super) fn root_as_child(self) -> Spot {
        self.in_level(self.row / ROWS)
    }

    fn in_level(self, level: u32) -> Spot {
        let row = self.row - level * ROWS;
        let (index, in_page) = (self.index >> (ROWS - row), ROWS - row);
        let bit = 1 << ((self.index & ((1 << in_page) - 1)) << row);
        Spot { level: level as usize, index, row: row as usize, bit }
    }

    /// The place of its root in Utreexo, in a forest of 63 rows.
    fn position(self) -> u64 {
        let before = (1u128 << (FOREST_ROWS + 1)) - (1u128 << (FOREST_ROWS + 1 - self.row));
        before as u64 + self.index
    }
}

/// Proves the leaves that are spent. `order` says which of them, by ascending leaf, is which one of the block.
pub(super) fn prove(
    levels: &[Vec<Touched>],
    cache: &Cache,
    leaves: u64,
    order: impl Iterator<Item = usize>,
) -> Proof {
    let rows = [const { Vec::new() }; FOREST_ROWS as usize + 1];
    let mut walk = Walk { levels, places: Vec::new(), rows };
    for tree in trees(leaves) {
        let Spot { level, index, row, bit } = tree.root();
        if let Ok(at) = levels[level].binary_search_by_key(&index, |page| page.index)
            && levels[level][at].spent[row] & bit != 0
        {
            walk.node(level, at, row, bit, tree.position());
        }
    }
    let mut targets = vec![0; walk.places.len()];
    for (place, of_block) in walk.places.into_iter().zip(order) {
        targets[of_block] = place;
    }
    let hashes = walk.rows.iter().flatten();
    let hashes = hashes.map(|(slot, place)| cache.page(*slot).hash_at(usize::from(*place)));
    let mut out = Vec::with_capacity(walk.rows.iter().map(Vec::len).sum());
    out.extend(hashes);
    Proof { targets, hashes: out }
}

struct Walk<'a> {
    levels: &'a [Vec<Touched>],
    /// Of spent leaves, from left to right.
    places: Vec<u64>,
    /// Where the proof's hashes are, by the rows of their places.
    rows: [Vec<(Slot, u8)>; FOREST_ROWS as usize + 1],
}

impl Walk<'_> {
    /// Goes down from a node above spent leaves that has this place: of page `at` of those touched.
    fn node(&mut self, level: usize, at: usize, mut row: usize, mut bit: u64, mut place: u64) {
        let page = &self.levels[level][at];
        while row > 0 {
            let (below, right) = (row - 1, right_child(row, bit));
            if page.shape.own[row] & bit != 0 {
                place <<= 1;
                for (child, place) in [(bit, place), (right, place | 1)] {
                    if page.spent[below] & child != 0 {
                        self.node(level, at, below, child, place);
                    } else {
                        self.sibling(page, below, child, place);
                    }
                }
                return;
            }
            bit = if page.shape.live[below] & bit != 0 { bit } else { right };
            row = below;
        }
        match level.checked_sub(1) {
            None => self.places.push(place),
            Some(below) => {
                let child = page.first_child + rank(page.mask, bit);
                self.node(below, child, ROWS as usize, 1, place);
            }
        }
    }

    fn sibling(&mut self, page: &Touched, row: usize, bit: u64, place: u64) {
        let at = page.shape.place_of_live(row, bit) as u8;
        self.rows[place.leading_ones() as usize].push((page.slot(), at));
    }
}
