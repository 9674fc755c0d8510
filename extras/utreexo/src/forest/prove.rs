//! Makes the proof of a block in one walk over the pages above the leaves that it spends.
//!
//! A leaf's place in Utreexo is not where it was added: a node whose sibling is empty has moved up to its
//! parent's place, with everything below it. So the walk begins at the root of a tree, whose place never
//! changes, and moves to a child's place only where both children exist. The proof is the siblings of nodes
//! above spent leaves that are not above spent leaves themselves. The walk goes from left to right, so it
//! meets the nodes of one row in order.
//!
//! The walk reads only shapes, which are adjacent in memory, and notes where hashes are. The hashes are
//! scattered over memory; a separate loop that only fetches them is faster.

use super::cache::{Cache, Slot};
use super::id::ROWS;
use super::page::{rank, right_child};
use super::touched::TouchedPage;
use crate::Proof;

/// Rows above the leaves in the forest whose places proofs use.
const FOREST_ROWS: u32 = 63;

/// A perfect tree of a forest. There is one for each 1 bit in the number of leaves.
#[derive(Clone, Copy)]
pub(super) struct Tree {
    /// Its height.
    pub(super) row: u32,
    /// Its index among trees of its height, if all trees had that height.
    pub(super) index: u64,
}

/// The location of a node in the pages.
pub(super) struct Spot {
    pub(super) level: usize,
    pub(super) index: u64,
    pub(super) row: usize,
    pub(super) bit: u64,
}

/// The trees of a forest of `leaves` leaves, highest first.
pub(super) fn trees(leaves: u64) -> impl Iterator<Item = Tree> {
    let rows = (0..u64::BITS).rev().filter(move |row| leaves >> row & 1 == 1);
    // Clears the bit of the tree itself.
    rows.map(move |row| Tree { row, index: leaves >> row ^ 1 })
}

impl Tree {
    /// The location of its root, not in the bottom row of a page unless the root is a leaf.
    pub(super) fn root(self) -> Spot {
        self.in_level(self.row.saturating_sub(1) / ROWS)
    }

    fn in_level(self, level: u32) -> Spot {
        let row = self.row - level * ROWS;
        let (index, in_page) = (self.index >> (ROWS - row), ROWS - row);
        let bit = 1 << ((self.index & ((1 << in_page) - 1)) << row);
        Spot { level: level as usize, index, row: row as usize, bit }
    }

    /// Position number of its root, in a forest of 63 rows.
    fn position(self) -> u64 {
        let before = (1u128 << (FOREST_ROWS + 1)) - (1u128 << (FOREST_ROWS + 1 - self.row));
        before as u64 + self.index
    }
}

/// Proves the spent leaves. `order` gives, by ascending leaf, the index of each in the block.
pub(super) fn prove(
    levels: &[Vec<TouchedPage>],
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
    levels: &'a [Vec<TouchedPage>],
    /// Positions of spent leaves, from left to right.
    places: Vec<u64>,
    /// Locations of the proof's hashes, by the rows of their positions.
    rows: [Vec<(Slot, u8)>; FOREST_ROWS as usize + 1],
}

impl Walk<'_> {
    /// Walks down from a node above spent leaves, with position `place`, in page `at` of the touched pages of
    /// its level.
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

    fn sibling(&mut self, page: &TouchedPage, row: usize, bit: u64, place: u64) {
        let at = page.shape.place_of_live(row, bit) as u8;
        self.rows[place.leading_ones() as usize].push((page.slot(), at));
    }
}
