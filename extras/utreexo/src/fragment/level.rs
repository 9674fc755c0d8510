//! [`Level`]: the nodes of one row above a range of leaves; most may be empty.

use crate::{LiveLeaf, NodeHash};
use core::ops::Range;

/// The nodes of one row above a range of leaves.
pub(super) struct Level {
    row: u32,
    /// The nodes whose leaves all lie in the range.
    nodes: Range<u64>,
    /// The non-empty nodes, by ascending place.
    live: Vec<LiveLeaf>,
}

impl Level {
    /// The row of `count` leaves from `first` on. Places of `live` count from `first`.
    pub(super) fn of_leaves(first: u64, count: u64, live: &[LiveLeaf]) -> Self {
        let live = live.iter().map(|leaf| LiveLeaf { place: first + leaf.place, ..*leaf });
        Self { row: 0, nodes: first..first + count, live: live.collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Removes the first node, and returns it with its row, if its left sibling is not in the range.
    pub(super) fn take_left(&mut self) -> Option<(u32, NodeHash)> {
        let place = self.nodes.start;
        if self.nodes.is_empty() || place & 1 == 0 {
            return None;
        }
        self.nodes.start += 1;
        let is_live = self.live.first().is_some_and(|node| node.place == place);
        Some((self.row, if is_live { self.live.remove(0).hash } else { NodeHash::EMPTY }))
    }

    /// Removes the last node, and returns it with its row, if its right sibling is not in the range.
    pub(super) fn take_right(&mut self) -> Option<(u32, NodeHash)> {
        if self.nodes.is_empty() || self.nodes.end & 1 == 0 {
            return None;
        }
        self.nodes.end -= 1;
        let node = self.live.pop_if(|node| node.place == self.nodes.end);
        Some((self.row, node.map_or(NodeHash::EMPTY, |node| node.hash)))
    }

    /// The row above. Every node must have its sibling here.
    pub(super) fn parents(self) -> Self {
        let mut live: Vec<LiveLeaf> = Vec::with_capacity(self.live.len());
        let count = self.live.len();
        let (mut pairs, mut of_pairs) = (Vec::with_capacity(count), Vec::with_capacity(count / 2));
        for node in self.live {
            let place = node.place >> 1;
            match live.last_mut().filter(|left| left.place == place) {
                // A node moves up unchanged, unless its sibling follows.
                None => live.push(LiveLeaf { place, ..node }),
                Some(left) => {
                    pairs.extend([left.hash.0, node.hash.0]);
                    of_pairs.push(live.len() - 1);
                }
            }
        }
        for (at, hash) in of_pairs.into_iter().zip(NodeHash::parents(&pairs)) {
            live[at].hash = hash;
        }
        Self { row: self.row + 1, nodes: self.nodes.start >> 1..self.nodes.end >> 1, live }
    }
}
