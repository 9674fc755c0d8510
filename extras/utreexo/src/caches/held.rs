//! [`HeldLeaves`]: the leaves that one verifier remembers, chosen by its rule.

use super::outline::Branch;
use super::track::NEVER;
use apus_chain::Height;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// How the leaves to remember are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePolicy {
    /// Remembers the leaves that are spent soonest (Belady's rule): an added leaf replaces the remembered
    /// leaf that is spent last, if it is spent before that one. Leaves that are never spent are not
    /// remembered.
    Clairvoyant,
    /// Remembers the leaves that are spent within this number of blocks after they are added, by ascending
    /// number as far as there is room. Each is remembered until it is spent.
    LookAhead(u32),
}

/// A policy and the size of its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheRule {
    /// How leaves are chosen.
    pub policy: CachePolicy,
    /// The most leaves remembered at a time.
    pub leaves: usize,
}

/// The leaves that one verifier remembers.
pub(super) struct HeldLeaves {
    rule: CacheRule,
    leaves: BTreeSet<u64>,
    /// The same leaves by the height at which they are spent, by ascending number within each height.
    by_height: BTreeMap<Height, Vec<u64>>,
}

impl HeldLeaves {
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

    /// Forgets the leaves that a block spends: all leaves held until its height.
    pub(super) fn spend(&mut self, height: Height) {
        for leaf in self.by_height.remove(&height).into_iter().flatten() {
            self.leaves.remove(&leaf);
        }
    }

    /// Remembers some of the leaves that a block adds, as the rule says.
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

    /// Forgets the leaf that is spent last, if it is spent after this height. Returns whether it did.
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

    /// Counts the hashes that the verifier needs. `asked[n]` is how many of the block's first `n` spent
    /// leaves it does not remember.
    pub(super) fn hashes(&self, branches: &[Branch], asked: &[u32]) -> u64 {
        let (mut hashes, mut nothing_to) = (0, 0);
        for branch in branches {
            let [first, middle, end] =
                [branch.first, branch.middle, branch.end].map(|at| asked[at as usize]);
            if (first == middle) == (middle == end) {
                continue;
            }
            // Branches come from top to bottom and from left to right, so all branches below one without
            // remembered leaves end at or before its end.
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
