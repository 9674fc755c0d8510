//! [`Level`]: the nodes of one height above a range of leaves, of which most may be empty.

use crate::{LiveLeaf, NodeHash};
use core::ops::Range;

/// See the module.
pub(super) struct Level {
    row: u32,
    /// The nodes all of whose leaves lie in the range.
    nodes: Range<u64>,
    /// Those of them that are not empty, by ascending place.
    live: Vec<LiveLeaf>,
}

impl Level {
    /// So many leaves from `first` on. Places of live ones are counted from there.
    pub(super) fn of_leaves(first: u64, count: u64, live: &[LiveLeaf]) -> Self {
        let live = live.iter().map(|leaf| LiveLeaf { place: first + leaf.place, ..*leaf });
        Self { row: 0, nodes: first..first + count, live: live.collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Takes the first node, with its height, if the one before it, which has the same parent, is not there.
    pub(super) fn take_left(&mut self) -> Option<(u32, NodeHash)> {
        let place = self.nodes.start;
        if self.nodes.is_empty() || place & 1 == 0 {
            return None;
        }
        self.nodes.start += 1;
        let is_live = self.live.first().is_some_and(|node| node.place == place);
        Some((self.row, if is_live { self.live.remove(0).hash } else { NodeHash::EMPTY }))
    }

    /// Takes the last node, if the one behind it, which has the same parent, is not there.
    pub(super) fn take_right(&mut self) -> Option<(u32, NodeHash)> {
        if self.nodes.is_empty() || self.nodes.end & 1 == 0 {
            return None;
        }
        self.nodes.end -= 1;
        let node = self.live.pop_if(|node| node.place == self.nodes.end);
        Some((self.row, node.map_or(NodeHash::EMPTY, |node| node.hash)))
    }

    /// The nodes above, when each has both its children here.
    pub(super) fn parents(self) -> Self {
        let mut live: Vec<LiveLeaf> = Vec::with_capacity(self.live.len());
        let count = self.live.len();
        let (mut pairs, mut of_pairs) = (Vec::with_capacity(count), Vec::with_capacity(count / 2));
        for node in self.live {
            let place = node.place >> 1;
            match live.last_mut().filter(|left| left.place == place) {
                // What is next to nothing goes up as it is, until its sibling comes.
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
