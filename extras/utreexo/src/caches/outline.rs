//! [`Outline`]: one bit for each node of a forest that says whether it has a live leaf below.
//!
//! Nodes are where they would be if no leaf had ever been deleted: node `k` of row `r` has the leaves from
//! `k·2^r` on below it. Utreexo's places follow from that: a node whose sibling is empty has moved up.

use crate::{PROOF_ROWS, Position};
use std::ops::Range;

/// A bit vector; bits after its end read as 0.
#[derive(Default, Debug)]
struct Bits {
    words: Vec<u64>,
}

impl Bits {
    fn get(&self, at: u64) -> bool {
        let word = usize::try_from(at / 64).ok().and_then(|index| self.words.get(index));
        word.is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    /// Sets a range of bits, which may lie after the end.
    fn set(&mut self, range: Range<u64>) {
        let words = usize::try_from(range.end.div_ceil(64)).unwrap_or(usize::MAX);
        self.words.resize(words.max(self.words.len()), 0);
        let mut at = range.start;
        while at < range.end {
            let (index, first) = (at / 64, at % 64);
            let count = (64 - first).min(range.end - at);
            self.words[index as usize] |= u64::MAX >> (64 - count) << first;
            at += count;
        }
    }

    fn clear(&mut self, at: u64) {
        if let Some(word) = self.words.get_mut((at / 64) as usize) {
            *word &= !(1 << (at % 64));
        }
    }
}

/// A node with two live children, above spent leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Branch {
    /// The spent leaves below it, as indexes into all spent leaves: `first..middle` are below its left child,
    /// `middle..end` below its right child.
    pub(super) first: u32,
    pub(super) middle: u32,
    pub(super) end: u32,
    row: u32,
    place: u64,
}

impl Branch {
    /// All leaves ever added below it.
    pub(super) fn leaves(&self) -> Range<u64> {
        self.place << self.row..(self.place + 1) << self.row
    }
}

/// A bit for each node of a forest: whether it has a live leaf below.
#[derive(Default, Debug)]
pub(super) struct Outline {
    leaves: u64,
    /// From the leaves up, as many rows as the smallest perfect tree with room for all leaves has.
    rows: Vec<Bits>,
}

impl Outline {
    /// Leaves ever added.
    pub(super) fn leaves(&self) -> u64 {
        self.leaves
    }

    /// Adds leaves, all of them live.
    pub(super) fn add(&mut self, count: u64) {
        let Some(more) = count.checked_sub(1) else { return };
        let (first, last) = (self.leaves, self.leaves + more);
        let rows = crate::forest_rows(last + 1) as usize + 1;
        self.rows.resize_with(rows, Bits::default);
        for (row, bits) in self.rows.iter_mut().enumerate() {
            bits.set(first >> row..(last >> row) + 1);
        }
        self.leaves = last + 1;
    }

    /// Deletes a leaf.
    pub(super) fn delete(&mut self, leaf: u64) {
        let mut place = leaf;
        for bits in &mut self.rows {
            bits.clear(place);
            if bits.get(place ^ 1) {
                return;
            }
            place >>= 1;
        }
    }

    pub(super) fn is_live(&self, row: u32, place: u64) -> bool {
        self.rows[row as usize].get(place)
    }

    /// Whether the left and the right child of a node are live.
    fn children(&self, row: u32, place: u64) -> (bool, bool) {
        (self.is_live(row - 1, place << 1), self.is_live(row - 1, place << 1 | 1))
    }

    /// The live leaf at a target's place.
    pub(super) fn leaf(&self, target: u64) -> Option<u64> {
        let at = Position::of_number(target, PROOF_ROWS).filter(|at| at.is_in(self.leaves))?;
        let above = |row: u32| Position { row, place: at.place >> (row - at.row) };
        let root = (at.row..=PROOF_ROWS).map(above).find(|node| node.is_root(self.leaves))?;
        if !self.is_live(root.row, root.place) {
            return None;
        }
        // The number of branches left between the root and the target.
        let (mut branches, mut place) = (root.row - at.row, root.place);
        for row in (1..=root.row).rev() {
            let is_right = match self.children(row, place) {
                (true, true) => {
                    branches = branches.checked_sub(1)?;
                    at.place >> branches & 1 == 1
                }
                (left, _) => !left,
            };
            place = place << 1 | u64::from(is_right);
        }
        (branches == 0).then_some(place)
    }

    /// Lists the branches above `spent`, which are live leaves by ascending number. Each branch comes before
    /// the branches below it, and left ones come before right ones.
    pub(super) fn branches(&self, spent: &[u64], out: &mut Vec<Branch>) {
        out.clear();
        let mut first = 0;
        for row in (0..u64::BITS).rev().filter(|row| self.leaves >> row & 1 == 1) {
            let place = (self.leaves >> row) - 1;
            let end = first + spent[first..].partition_point(|leaf| leaf >> row <= place);
            self.go_down(row, place, first..end, spent, out);
            first = end;
        }
    }

    fn go_down(
        &self,
        mut row: u32,
        mut place: u64,
        range: Range<usize>,
        spent: &[u64],
        out: &mut Vec<Branch>,
    ) {
        while row > 0 && !range.is_empty() {
            let (left, right) = (place << 1, place << 1 | 1);
            match self.children(row, place) {
                (true, true) => {
                    let below = &spent[range.clone()];
                    let middle =
                        range.start + below.partition_point(|leaf| leaf >> (row - 1) <= left);
                    let [first, end] = [range.start, range.end].map(|at| at as u32);
                    out.push(Branch { first, middle: middle as u32, end, row, place });
                    self.go_down(row - 1, left, range.start..middle, spent, out);
                    self.go_down(row - 1, right, middle..range.end, spent, out);
                    return;
                }
                (true, false) => place = left,
                _ => place = right,
            }
            row -= 1;
        }
    }
}
