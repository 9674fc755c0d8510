//! [`Held`]: the leaves that one verifier remembers, and by which rule.

use super::outline::Branch;
use super::track::NEVER;
use apus_chain::Height;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Which leaves are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePolicy {
    /// Those that are spent next (Belady's rule): an added leaf takes the place of the one that is spent last, if it
    /// is spent before that. Leaves that are never spent are not taken.
    Clairvoyant,
    /// Those that are spent within so many blocks after they are added, by ascending number as far as there is
    /// room. Each is remembered until then.
    LookAhead(u32),
}

/// A rule, and for how many leaves there is room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheRule {
    /// Which leaves are remembered.
    pub policy: CachePolicy,
    /// The most leaves at a time.
    pub leaves: usize,
}

/// See the module.
pub(super) struct Held {
    rule: CacheRule,
    leaves: BTreeSet<u64>,
    /// The same by the height at which they are spent, each height's by ascending number.
    by_height: BTreeMap<Height, Vec<u64>>,
}

impl Held {
    pub(super) fn new(rule: CacheRule) -> Self {
        Self { rule, leaves: BTreeSet::new(), by_height: BTreeMap::new() }
    }

    pub(super) fn rule(&self) -> CacheRule {
        self.rule
    }

    pub(super) fn count(&self) -> usize {
        self.leaves.len()
    }

    pub(super) fn has(&self, leaf: u64) -> bool {
        self.leaves.contains(&leaf)
    }

    fn has_any(&self, leaves: Range<u64>) -> bool {
        self.leaves.range(leaves).next().is_some()
    }

    /// Forgets those that a block spends, which are all that are held until its height.
    pub(super) fn spend(&mut self, height: Height) {
        for leaf in self.by_height.remove(&height).into_iter().flatten() {
            self.leaves.remove(&leaf);
        }
    }

    /// Takes of the leaves that a block adds those that are to be remembered.
    pub(super) fn add(&mut self, height: Height, first: u64, spent_at: &[Height]) {
        let leaves = (first..).zip(spent_at).filter(|(_, spent_at)| **spent_at != NEVER);
        for (leaf, &spent_at) in leaves {
            let is_wanted = match self.rule.policy {
                CachePolicy::LookAhead(blocks) => {
                    self.has_room() && spent_at.saturating_sub(height) <= blocks
                }
                CachePolicy::Clairvoyant => self.has_room() || self.forget_one_after(spent_at),
            };
            if is_wanted {
                self.leaves.insert(leaf);
                self.by_height.entry(spent_at).or_default().push(leaf);
            }
        }
    }

    fn has_room(&self) -> bool {
        self.leaves.len() < self.rule.leaves
    }

    /// Forgets the leaf that is spent last, if that is after this height.
    fn forget_one_after(&mut self, height: Height) -> bool {
        let Some(mut last) = self.by_height.last_entry().filter(|last| *last.key() > height) else {
            return false;
        };
        let leaf = last.get_mut().pop();
        if last.get().is_empty() {
            last.remove();
        }
        leaf.is_some_and(|leaf| self.leaves.remove(&leaf))
    }

    /// Hashes that the verifier needs where, of a block's spent leaves before each place, so many are not
    /// remembered.
    pub(super) fn hashes(&self, branches: &[Branch], asked: &[u32]) -> u64 {
        let (mut hashes, mut nothing_to) = (0, 0);
        for branch in branches {
            let [first, middle, end] =
                [branch.first, branch.middle, branch.end].map(|at| asked[at as usize]);
            if (first == middle) == (middle == end) {
                continue;
            }
            // Branches come from above and from the left: below one with nothing remembered are all that end there.
            let leaves = branch.leaves();
            if leaves.end > nothing_to {
                if self.has_any(leaves.clone()) {
                    continue;
                }
                nothing_to = leaves.end;
            }
            hashes += 1;
        }
        hashes
    }
}
