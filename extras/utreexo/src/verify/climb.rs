//! [`Climb`]: computes the roots from the targets of a proof, row by row.

use super::{ProofError, Target, number};
use crate::{NodeHash, Position, Roots};
use std::{iter, mem};

/// A target, a node above one, or a hash of the proof.
#[derive(Clone, Copy)]
struct Node {
    /// Index in its row.
    place: u64,
    /// Its hash, if the proof holds.
    old: NodeHash,
    /// Its hash once the targets are deleted.
    new: NodeHash,
}

/// The climb from the targets of a proof to the roots, one row at a time.
pub(super) struct Climb<'a> {
    roots: &'a Roots,
    /// Targets not reached yet, by ascending position.
    targets: &'a [Target],
    /// The hashes of the proof.
    hashes: &'a [NodeHash],
    /// Number of `hashes` used so far.
    used: usize,
    /// Whether to compute the hashes after the deletion.
    deletes: bool,
    /// The current row.
    row: u32,
    /// The nodes of that row, by ascending place, each once.
    nodes: Vec<Node>,
    /// Buffer for the nodes of the next row.
    next: Vec<Node>,
}

impl<'a> Climb<'a> {
    /// Takes `targets` from [`sorted`](super::sorted). Without `deletes`, all resulting roots are empty.
    pub(super) fn new(
        roots: &'a Roots,
        targets: &'a [Target],
        hashes: &'a [NodeHash],
        deletes: bool,
    ) -> Self {
        let (nodes, next) = (Vec::new(), Vec::new());
        Self { roots, targets, hashes, used: 0, deletes, row: 0, nodes, next }
    }

    /// Returns the roots after the deletion, if the proof leads to the current roots.
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

    /// Adds the targets of this row.
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

    /// Removes the root of this row, if present, checks it, and stores the new root.
    fn take_root(&mut self, after: &mut [NodeHash]) -> Result<(), ProofError> {
        let (row, leaves) = (self.row, self.roots.leaves);
        let is_root = |node: &mut Node| Position { row, place: node.place }.is_root(leaves);
        // The root is the last node of its row.
        let Some(found) = self.nodes.pop_if(is_root) else { return Ok(()) };
        // Roots are stored highest tree first, so every higher tree comes before it.
        let index = (leaves >> row).count_ones() as usize - 1;
        let expected = self.roots.hashes[index];
        if found.old != expected {
            return Err(ProofError::Root { row, expected, found: found.old });
        }
        after[index] = found.new;
        Ok(())
    }

    /// Replaces the nodes of this row with their parents.
    fn climb(&mut self) -> Result<(), ProofError> {
        let nodes = mem::take(&mut self.nodes);
        let pairs = || Vec::with_capacity(2 * nodes.len());
        let (mut old, mut new, mut of_new) = (pairs(), pairs(), Vec::new());
        let mut rest = &nodes[..];
        while let [node, behind @ ..] = rest {
            let sibling_place = node.place ^ 1;
            let (sibling, behind) = match behind {
                [next, behind @ ..] if next.place == sibling_place => (*next, behind),
                _ => (self.sibling(sibling_place)?, behind),
            };
            rest = behind;
            let (left, right) =
                if node.place < sibling_place { (node, &sibling) } else { (&sibling, node) };
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

    /// Takes the next hash of the proof as the node at this place of this row.
    fn sibling(&mut self, place: u64) -> Result<Node, ProofError> {
        let Some(&old) = self.hashes.get(self.used) else {
            let position = number(Position { row: self.row, place });
            return Err(ProofError::Missing { hashes: self.hashes.len(), position });
        };
        self.used += 1;
        // A sibling does not change. Without `deletes`, an empty hash saves hashing its parents.
        let new = if self.deletes { old } else { NodeHash::EMPTY };
        Ok(Node { place, old, new })
    }
}
