//! [`Touched`]: the pages of a level that a block has to do with.

use super::cache::Slot;
use super::id::ROWS;
use super::page::{RowMasks, Shape, above};
use std::ops::Range;

/// A page that has leaves below it which a block spends or adds.
pub(super) struct Touched {
    pub(super) index: u64,
    /// The nodes of its bottom row above such leaves.
    pub(super) mask: u64,
    /// Its nodes above leaves that are spent.
    pub(super) spent: RowMasks,
    /// Where those of the level below begin that are below it.
    pub(super) first_child: usize,
    slot: Option<Slot>,
    /// What it is like before the block, once it is in memory.
    pub(super) shape: Shape,
}

impl Touched {
    fn new(index: u64, first_child: usize) -> Self {
        let (spent, shape) = (above(0), Shape::new(0));
        Self { index, mask: 0, spent, first_child, slot: None, shape }
    }

    /// Where it is in memory, once it is.
    pub(super) fn slot(&self) -> Slot {
        self.slot.expect("a level is loaded before it is used")
    }

    /// It is in memory, and like this.
    pub(super) fn set(&mut self, slot: Slot, shape: Shape) {
        (self.slot, self.shape) = (Some(slot), shape);
    }

    /// The first leaf that is spent and not live, of a page of leaves.
    pub(super) fn first_not_live(&self) -> Option<u64> {
        self.first(self.spent[0] & !self.shape.live[0])
    }

    /// The first leaf that is spent and live, of a page of leaves.
    pub(super) fn first_live(&self) -> Option<u64> {
        self.first(self.spent[0] & self.shape.live[0])
    }

    fn first(&self, mask: u64) -> Option<u64> {
        let first = u64::from(mask.trailing_zeros());
        (mask != 0).then_some(self.index << ROWS | first)
    }

    fn has_spent(&self) -> bool {
        self.spent[ROWS as usize] != 0
    }
}

/// How many levels of pages so many leaves have: at least one, and in the highest one page.
pub(super) fn level_count(leaves: u64) -> usize {
    let rows = leaves.saturating_sub(1).checked_ilog2().map_or(1, |row| row + 1);
    rows.div_ceil(ROWS) as usize
}

/// The pages above leaves that are spent, which ascend, and those that are added, which follow; level by level from
/// the leaves up.
pub(super) fn touched_levels(spent: &[u64], added: Range<u64>) -> Vec<Vec<Touched>> {
    let leaves = spent.iter().map(|leaf| (*leaf, true));
    let mut levels = vec![parents(leaves.chain(added.clone().map(|leaf| (leaf, false))))];
    for level in 1..level_count(added.end) {
        let pages = levels[level - 1].iter().map(|page| (page.index, page.has_spent()));
        levels.push(parents(pages));
    }
    levels
}

/// The pages with these nodes in their bottom rows, of which each is spent in part or not at all.
fn parents(nodes: impl Iterator<Item = (u64, bool)>) -> Vec<Touched> {
    let mut pages: Vec<Touched> = Vec::new();
    for (at, (node, is_spent)) in nodes.enumerate() {
        let index = node >> ROWS;
        if pages.last().is_none_or(|page| page.index != index) {
            pages.push(Touched::new(index, at));
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
    fn a_level_more_from_one_leaf_on_that_does_not_fit() {
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
    fn pages_are_named_once_for_each_level() {
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
