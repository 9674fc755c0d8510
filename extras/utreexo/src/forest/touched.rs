//! [`TouchedPage`]: a page that a block touches.

use super::cache::Slot;
use super::id::ROWS;
use super::page::{RowMasks, Shape, above};
use std::ops::Range;

/// A page above leaves that a block spends or adds.
pub(super) struct TouchedPage {
    pub(super) index: u64,
    /// The nodes of its bottom row above such leaves.
    pub(super) mask: u64,
    /// Its nodes above spent leaves.
    pub(super) spent: RowMasks,
    /// Index of the first touched page below it, in the level below.
    pub(super) first_child: usize,
    slot: Option<Slot>,
    /// Its shape before the block, once it is in memory.
    pub(super) shape: Shape,
}

impl TouchedPage {
    fn new(index: u64, first_child: usize) -> Self {
        let (spent, shape) = (above(0), Shape::new(0));
        Self { index, mask: 0, spent, first_child, slot: None, shape }
    }

    /// Its slot in the cache. Panics before the page is loaded.
    pub(super) fn slot(&self) -> Slot {
        self.slot.expect("a level is loaded before it is used")
    }

    /// Records that it is in memory, with this shape.
    pub(super) fn set(&mut self, slot: Slot, shape: Shape) {
        (self.slot, self.shape) = (Some(slot), shape);
    }

    /// The first leaf that the block spends and that is not live. For pages of leaves.
    pub(super) fn first_not_live(&self) -> Option<u64> {
        let mask = self.spent[0] & !self.shape.live[0];
        let first = u64::from(mask.trailing_zeros());
        (mask != 0).then_some(self.index << ROWS | first)
    }

    fn has_spent(&self) -> bool {
        self.spent[ROWS as usize] != 0
    }
}

/// Number of levels of pages for `leaves` leaves: at least one. The highest level has one page.
pub(super) fn level_count(leaves: u64) -> usize {
    let rows = leaves.saturating_sub(1).checked_ilog2().map_or(1, |row| row + 1);
    rows.div_ceil(ROWS) as usize
}

/// Lists the pages above spent leaves, which ascend, and added leaves, which follow them; level by level from
/// the leaves up.
pub(super) fn touched_levels(spent: &[u64], added: Range<u64>) -> Vec<Vec<TouchedPage>> {
    let leaves = spent.iter().map(|leaf| (*leaf, true));
    let mut levels = vec![parents(leaves.chain(added.clone().map(|leaf| (leaf, false))))];
    for level in 1..level_count(added.end) {
        let pages = levels[level - 1].iter().map(|page| (page.index, page.has_spent()));
        levels.push(parents(pages));
    }
    levels
}

/// Lists the pages with these nodes in their bottom rows. The flag of each node is set if it is above spent
/// leaves.
fn parents(nodes: impl Iterator<Item = (u64, bool)>) -> Vec<TouchedPage> {
    let mut pages: Vec<TouchedPage> = Vec::new();
    for (at, (node, is_spent)) in nodes.enumerate() {
        let index = node >> ROWS;
        if pages.last().is_none_or(|page| page.index != index) {
            pages.push(TouchedPage::new(index, at));
        }
        if let Some(page) = pages.last_mut() {
            let bit = 1 << (node & ((1 << ROWS) - 1));
            page.mask |= bit;
            page.spent[0] |= if is_spent { bit } else { 0 };
        }
    }
    pages.iter_mut().for_each(|page| page.spent = above(page.spent[0]));
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_leaf_that_does_not_fit_adds_a_level() {
        for (leaves, levels) in [
            (0, 1),
            (1, 1),
            (64, 1),
            (65, 2),
            (4_096, 2),
            (4_097, 3),
            (1 << 60, 10),
            ((1 << 60) + 1, 11),
            (1 << 63, 11),
        ] {
            assert_eq!(level_count(leaves), levels, "{leaves}");
        }
    }

    #[test]
    fn each_level_lists_a_page_once() {
        let levels = touched_levels(&[3, 5, 64, 8_190], 8_191..8_194);
        let pages = |level: usize| levels[level].iter().map(|page| (page.index, page.mask));
        assert!(pages(0).eq([(0, 0b10_1000), (1, 1), (127, 0b11 << 62), (128, 0b11)]));
        assert!(pages(1).eq([(0, 0b11), (1, 1 << 63), (2, 1)]));
        assert!(pages(2).eq([(0, 0b111)]));
        assert_eq!(levels.len(), 3);
        let spent: Vec<u64> = levels.iter().flatten().map(|page| page.spent[0]).collect();
        assert_eq!(spent, [0b10_1000, 1, 1 << 62, 0, 0b11, 1 << 63, 0, 0b11]);
        let children: Vec<usize> = levels[1].iter().map(|page| page.first_child).collect();
        assert_eq!(children, [0, 2, 3]);
    }
}
