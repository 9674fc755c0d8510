//! The Utreexo forest as a map of all its nodes, and proofs from it, as in BIP-181 (draft), without regard
//! to speed.

use bitcoin::hashes::{Hash, sha512_256};
use std::collections::{BTreeMap, BTreeSet};

pub type Node = [u8; 32];

/// A deleted leaf.
pub const EMPTY: Node = [0; 32];

/// The row, and the place in it.
type Position = (u32, u64);

/// A forest with all non-empty nodes, by position.
#[derive(Default)]
pub struct ForestModel {
    nodes: BTreeMap<Position, Node>,
    leaves: BTreeMap<Node, Position>,
    tops: BTreeSet<Position>,
    /// Highest tree first.
    pub roots: Vec<Node>,
}

impl ForestModel {
    /// Makes a forest; live leaves differ from each other.
    pub fn new(leaves: &[Node]) -> Self {
        let (mut model, mut first) = (Self::default(), 0);
        for row in (0..usize::BITS).rev().filter(|row| leaves.len() >> row & 1 == 1) {
            let end = first + (1 << row);
            let top = (row, (first >> row) as u64);
            model.tops.insert(top);
            let root = model.stand(&leaves[first..end], top);
            model.roots.push(root);
            first = end;
        }
        model
    }

    /// Builds the tree of these leaves at a position: if one half is empty, the other half takes its place.
    fn stand(&mut self, leaves: &[Node], (row, place): Position) -> Node {
        let is_empty = |leaves: &[Node]| leaves.iter().all(|leaf| *leaf == EMPTY);
        let (left, right) = leaves.split_at(leaves.len() / 2);
        let node = match leaves {
            leaves if is_empty(leaves) => return EMPTY,
            [leaf] => {
                self.leaves.insert(*leaf, (row, place));
                *leaf
            }
            _ if is_empty(left) => return self.stand(right, (row, place)),
            _ if is_empty(right) => return self.stand(left, (row, place)),
            _ => {
                let left = self.stand(left, (row - 1, 2 * place));
                let right = self.stand(right, (row - 1, 2 * place + 1));
                sha512_256::Hash::hash(&[left, right].concat()).to_byte_array()
            }
        };
        self.nodes.insert((row, place), node);
        node
    }

    /// Returns the proof of these leaves, if they all exist and differ: targets, and hashes.
    pub fn proof(&self, of: &[Node]) -> Option<(Vec<u64>, Vec<Node>)> {
        let targets: Vec<Position> =
            of.iter().map(|leaf| self.leaves.get(leaf).copied()).collect::<Option<_>>()?;
        if targets.iter().collect::<BTreeSet<_>>().len() < targets.len() {
            return None;
        }
        let (mut computed, mut siblings) = (BTreeSet::new(), BTreeSet::new());
        for (mut row, mut place) in targets.iter().copied() {
            computed.insert((row, place));
            while !self.tops.contains(&(row, place)) {
                siblings.insert((row, place ^ 1));
                (row, place) = (row + 1, place / 2);
                computed.insert((row, place));
            }
        }
        let hashes = siblings.difference(&computed).map(|at| self.nodes[at]).collect();
        Some((targets.into_iter().map(number).collect(), hashes))
    }
}

/// Returns a position's number, counted after all rows below, in a forest of 63 rows above its leaves.
fn number((row, place): Position) -> u64 {
    let below: u128 = (0..row).map(|row| 1 << (63 - row)).sum();
    u64::try_from(below + u128::from(place)).expect("no forest is larger")
}
