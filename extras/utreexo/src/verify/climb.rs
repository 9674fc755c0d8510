//! [`Climb`]: from the targets of a proof up to the roots, height by height.

use super::{ProofError, Target, number};
use crate::{NodeHash, Position, Roots};
use std::{iter, mem};

/// A node above a target, or one itself, or a hash of the proof.
#[derive(Clone, Copy)]
struct Node {
    /// Which one of its height.
    place: u64,
    /// What it is, if the proof holds.
    old: NodeHash,
    /// What it is once the targets are deleted.
    new: NodeHash,
}

/// See the module.
pub(super) struct Climb<'a> {
    roots: &'a Roots,
    /// Those that were not reached yet, by ascending position.
    targets: &'a [Target],
    /// The hashes of the proof.
    hashes: &'a [NodeHash],
    /// How many of them were used.
    used: usize,
    /// Whether new hashes are of interest.
    deletes: bool,
    /// The height.
    row: u32,
    /// The nodes of that height, by ascending place, each once.
    nodes: Vec<Node>,
    /// Room for those that come of them.
    next: Vec<Node>,
}

impl<'a> Climb<'a> {
    /// `targets` are as [`sorted`](super::sorted) makes them. Without `deletes` all roots after it are empty.
    pub(super) fn new(
        roots: &'a Roots,
        targets: &'a [Target],
        hashes: &'a [NodeHash],
        deletes: bool,
    ) -> Self {
        let (nodes, next) = (Vec::new(), Vec::new());
        Self { roots, targets, hashes, used: 0, deletes, row: 0, nodes, next }
    }

    /// The roots after the deletion, if those before are what the proof makes of them.
    pub(super) fn up_to_roots(mut self) -> Result<Vec<NodeHash>, ProofError> {
        let mut after = self.roots.hashes.clone();
        while !(self.nodes.is_empty() && self.targets.is_empty()) {
            self.take_targets()?;
            self.take_root(&mut after)?;
            self.climb()?;
        }
        let (hashes, needed) = (self.hashes.len(), self.used);
        if needed < hashes { Err(ProofError::Surplus { hashes, needed }) } else { Ok(after) }
    }

    /// Adds the targets of this height.
    fn take_targets(&mut self) -> Result<(), ProofError> {
        let count = self.targets.partition_point(|(position, _)| position.row <= self.row);
        let (here, above) = self.targets.split_at(count);
        if here.is_empty() {
            return Ok(());
        }
        self.targets = above;
        let mut nodes = self.nodes.drain(..).peekable();
        for &(position, leaf) in here {
            let place = position.place;
            self.next.extend(iter::from_fn(|| nodes.next_if(|node| node.place < place)));
            if nodes.peek().is_some_and(|node| node.place == place) {
                return Err(ProofError::Nested { target: number(position) });
            }
            self.next.push(Node { place, old: leaf, new: NodeHash::EMPTY });
        }
        self.next.extend(nodes);
        mem::swap(&mut self.nodes, &mut self.next);
        Ok(())
    }

    /// Takes the root of this height out, if it is there, and says what it becomes.
    fn take_root(&mut self, after: &mut [NodeHash]) -> Result<(), ProofError> {
        let (row, leaves) = (self.row, self.roots.leaves);
        let is_root = |node: &mut Node| Position { row, place: node.place }.is_root(leaves);
        // No node of a height is behind its root.
        let Some(found) = self.nodes.pop_if(is_root) else { return Ok(()) };
        // Highest tree first: as many stand before it as there are higher ones.
        let index = (leaves >> row).count_ones() as usize - 1;
        let expected = self.roots.hashes[index];
        if found.old != expected {
            return Err(ProofError::Root { row, expected, found: found.old });
        }
        after[index] = found.new;
        Ok(())
    }

    /// Goes to the parents.
    fn climb(&mut self) -> Result<(), ProofError> {
        let nodes = mem::take(&mut self.nodes);
        let pairs = || Vec::with_capacity(2 * nodes.len());
        let (mut old, mut new, mut of_new) = (pairs(), pairs(), Vec::new());
        let mut rest = &nodes[..];
        while let [node, behind @ ..] = rest {
            let beside = node.place ^ 1;
            let (sibling, behind) = match behind {
                [next, behind @ ..] if next.place == beside => (*next, behind),
                _ => (self.sibling(beside)?, behind),
            };
            rest = behind;
            let (left, right) =
                if node.place < beside { (node, &sibling) } else { (&sibling, node) };
            old.extend([left.old.0, right.old.0]);
            let new_hash = match (left.new.is_empty(), right.new.is_empty()) {
                (true, _) => right.new,
                (_, true) => left.new,
                _ => {
                    new.extend([left.new.0, right.new.0]);
                    of_new.push(self.next.len());
                    NodeHash::EMPTY
                }
            };
            self.next.push(Node { place: node.place >> 1, old: NodeHash::EMPTY, new: new_hash });
        }
        for (node, hash) in self.next.iter_mut().zip(NodeHash::parents(&old)) {
            node.old = hash;
        }
        for (at, hash) in of_new.into_iter().zip(NodeHash::parents(&new)) {
            self.next[at].new = hash;
        }
        self.nodes = mem::replace(&mut self.next, nodes);
        self.next.clear();
        self.row += 1;
        Ok(())
    }

    /// The node at this place of this height, by the next hash of the proof.
    fn sibling(&mut self, place: u64) -> Result<Node, ProofError> {
        let Some(&old) = self.hashes.get(self.used) else {
            let position = number(Position { row: self.row, place });
            return Err(ProofError::Missing { hashes: self.hashes.len(), position });
        };
        self.used += 1;
        // It stays what it is. Where that is of no interest, there is nothing to be hashed.
        let new = if self.deletes { old } else { NodeHash::EMPTY };
        Ok(Node { place, old, new })
    }
}
