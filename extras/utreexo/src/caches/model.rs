//! A slow model verifier that has nothing but the hashes it knows.

use crate::NodeHash;
use crate::position::Position;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// A leaf, or a node with two live children.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) hash: NodeHash,
    /// The leaf's number, if it is a leaf.
    leaf: Option<u64>,
    children: Vec<Node>,
}

impl Node {
    fn leaves(&self) -> Vec<u64> {
        let below = self.children.iter().flat_map(Self::leaves);
        self.leaf.into_iter().chain(below).collect()
    }

    fn has_any(&self, leaves: &BTreeSet<u64>) -> bool {
        self.leaves().iter().any(|leaf| leaves.contains(leaf))
    }
}

/// A forest that rebuilds its trees from the leaves at every query.
#[derive(Clone, Default)]
pub(super) struct ModelForest {
    /// Spent leaves are empty.
    pub(super) leaves: Vec<NodeHash>,
}

impl ModelForest {
    fn tree(&self, row: u32, place: u64) -> Option<Node> {
        if row == 0 {
            let hash = self.leaves[place as usize];
            return (!hash.is_empty()).then_some(Node {
                hash,
                leaf: Some(place),
                children: vec![],
            });
        }
        match (self.tree(row - 1, 2 * place), self.tree(row - 1, 2 * place + 1)) {
            (Some(left), Some(right)) => {
                let hash = NodeHash::parent(&left.hash, &right.hash);
                Some(Node { hash, leaf: None, children: vec![left, right] })
            }
            (left, right) => left.or(right),
        }
    }

    /// Each tree that is not empty, with the position of its root.
    pub(super) fn trees(&self) -> Vec<(Position, Node)> {
        let (mut trees, mut first) = (Vec::new(), 0);
        for row in (0..63u32).rev().filter(|row| self.leaves.len() >> row & 1 == 1) {
            let place = first >> row;
            trees.extend(self.tree(row, place).map(|node| (Position { row, place }, node)));
            first += 1 << row;
        }
        trees
    }

    /// The target of every leaf.
    pub(super) fn targets(&self) -> BTreeMap<u64, u64> {
        let (mut targets, mut to_do) = (BTreeMap::new(), self.trees());
        while let Some((at, node)) = to_do.pop() {
            if let Some(leaf) = node.leaf {
                targets.insert(leaf, at.number(63).unwrap());
            }
            for (place, child) in (2 * at.place..).zip(node.children) {
                to_do.push((Position { row: at.row - 1, place }, child));
            }
        }
        targets
    }

    /// The hashes of the siblings along the paths from the roots to these leaves.
    fn siblings(&self, leaves: &BTreeSet<u64>) -> Vec<NodeHash> {
        let (mut siblings, mut to_do) = (Vec::new(), self.trees());
        while let Some((_, node)) = to_do.pop() {
            for child in node.children.iter().filter(|_| node.has_any(leaves)) {
                if !child.has_any(leaves) {
                    siblings.push(child.hash);
                }
                to_do.push((Position { row: 0, place: 0 }, child.clone()));
            }
        }
        siblings
    }
}

/// A verifier that remembers some leaves and counts what it needs.
#[derive(Default)]
pub(super) struct ModelVerifier {
    known: HashSet<NodeHash>,
    pub(super) remembered: BTreeSet<u64>,
}

impl ModelVerifier {
    /// Proves the leaves that a block spends with as few hashes as possible, then moves to the forest after
    /// the block and remembers the leaves `remembered`. Returns the hashes that it was given and the leaves
    /// that it did not remember.
    pub(super) fn block(
        &mut self,
        before: &ModelForest,
        spent: &[u64],
        after: &ModelForest,
        remembered: BTreeSet<u64>,
    ) -> (Vec<NodeHash>, BTreeSet<u64>) {
        let spent: BTreeSet<u64> = spent.iter().copied().collect();
        let asked: BTreeSet<u64> = &spent - &self.remembered;
        let mut given = before.siblings(&asked);
        given.retain(|hash| !self.known.contains(hash));
        let mut has = self.known.clone();
        has.extend(asked.iter().map(|leaf| before.leaves[*leaf as usize]));
        let without = has.clone();
        has.extend(&given);
        assert!(self.proves(before, &asked, &has));
        for left_out in &given {
            let mut less = without.clone();
            less.extend(given.iter().filter(|hash| *hash != left_out));
            assert!(!self.proves(before, &asked, &less), "a hash was not needed");
        }
        for (_, tree) in before.trees() {
            computes(&tree, &mut has);
        }
        has.extend(&after.leaves[before.leaves.len()..]);
        self.know(after, remembered, has);
        (given, asked)
    }

    /// Whether the hashes alone prove each of these leaves below a known node.
    fn proves(
        &self,
        forest: &ModelForest,
        leaves: &BTreeSet<u64>,
        has: &HashSet<NodeHash>,
    ) -> bool {
        let (mut proven, mut has) = (BTreeSet::new(), has.clone());
        let trees = forest.trees();
        assert!(trees.iter().all(|(_, tree)| self.known.contains(&tree.hash)));
        let mut to_do: Vec<&Node> = trees.iter().map(|(_, tree)| tree).collect();
        while let Some(node) = to_do.pop() {
            proven.extend(node.leaf);
            let are_there = node.children.iter().all(|child| computes(child, &mut has));
            let is_there = |child: &&Node| are_there || self.known.contains(&child.hash);
            to_do.extend(node.children.iter().filter(is_there));
        }
        leaves.is_subset(&proven)
    }

    /// Keeps only the roots, and the paths to the remembered leaves with their siblings.
    fn know(
        &mut self,
        forest: &ModelForest,
        remembered: BTreeSet<u64>,
        mut has: HashSet<NodeHash>,
    ) {
        self.known.clear();
        let trees = forest.trees();
        let mut keep: Vec<&Node> = trees.iter().map(|(_, tree)| tree).collect();
        while let Some(node) = keep.pop() {
            assert!(computes(node, &mut has), "a needed node is unknown");
            self.known.insert(node.hash);
            keep.extend(node.children.iter().filter(|_| node.has_any(&remembered)));
        }
        self.remembered = remembered;
    }
}

/// Whether a node's hash can be computed from `has`. Adds all computed hashes to it.
fn computes(node: &Node, has: &mut HashSet<NodeHash>) -> bool {
    let [left, right] = &node.children[..] else { return has.contains(&node.hash) };
    let both = computes(left, has) & computes(right, has);
    if both {
        has.insert(node.hash);
    }
    has.contains(&node.hash)
}
