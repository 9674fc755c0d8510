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

    pub(super) fn has_spent(&self) -> bool {
        self.spent[ROWS as usize] != 0
    }
}

/// How many levels of pages so many leaves have: at least one, and in the highest one page.
pub(super) fn level_count(leaves: u64) -> usize {
    let rows = leaves.saturating_sub(1).checked_ilog2().map_or(1, |row| row + 1);
    rows.div_ceil(ROWS) as usize
}

/// The index in a level of the page above a leaf.
pub(super) fn page_above(leaf: u64, level: usize) -> u64 {
    leaf.checked_shr(ROWS * (level as u32 + 1)).unwrap_or(0)
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
