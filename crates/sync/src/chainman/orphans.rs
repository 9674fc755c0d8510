//! [`Orphans`]: blocks that arrived before their parents, within limits.
//!
//! If they exceed a limit, the oldest is dropped and never kept again. Otherwise, an attacker could fill the
//! disk with blocks, doing their proof of work only once. Different copies of a block are kept, because one may
//! be damaged, and only the parent shows which; the caller accepts at most two copies of a block.

use apus_chain::BlockHash;
use apus_hash::sha256;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Maximum number of blocks that wait for their parents; one more drops the oldest.
pub const ORPHANS_MAX: usize = 1 << 16;

/// Maximum total size of these blocks, in bytes.
pub const ORPHANS_BYTES_MAX: usize = 256 << 20;

/// A block without its parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Orphan {
    /// Its hash.
    pub(super) hash: BlockHash,
    /// The hash of its parent.
    pub(super) prev: BlockHash,
    /// Its bytes.
    pub(super) raw: Vec<u8>,
}

impl Orphan {
    /// Identifies this copy: the parent's hash and the SHA-256 of the bytes.
    pub(super) fn name(&self) -> [u8; 64] {
        let mut name = [0; 64];
        name[..32].copy_from_slice(self.prev.as_bytes());
        name[32..].copy_from_slice(&sha256(&self.raw));
        name
    }
}

/// The blocks that wait for their parents.
pub(super) struct Orphans {
    by_age: BTreeMap<u64, Orphan>,
    by_parent: HashMap<BlockHash, Vec<u64>>,
    /// SHA-256 of the dropped blocks.
    forgotten: HashSet<[u8; 32]>,
    next: u64,
    bytes: usize,
    count_max: usize,
    bytes_max: usize,
}

impl Orphans {
    /// Makes an empty set with these limits.
    pub(super) fn new(count_max: usize, bytes_max: usize) -> Self {
        let (by_age, by_parent) = (BTreeMap::new(), HashMap::new());
        let forgotten = HashSet::new();
        Self { by_age, by_parent, forgotten, next: 0, bytes: 0, count_max, bytes_max }
    }

    /// Returns whether this copy was dropped before its parent arrived.
    pub(super) fn is_forgotten(&self, orphan: &Orphan) -> bool {
        self.forgotten.contains(&sha256(&orphan.raw))
    }

    /// Returns whether this copy of a block is waiting.
    pub(super) fn contains(&self, orphan: &Orphan) -> bool {
        let ages = self.by_parent.get(&orphan.prev);
        ages.is_some_and(|ages| ages.iter().any(|age| self.by_age.get(age) == Some(orphan)))
    }

    /// Adds a waiting block.
    pub(super) fn add(&mut self, orphan: Orphan) {
        self.by_parent.entry(orphan.prev).or_default().push(self.next);
        self.bytes += orphan.raw.len();
        self.by_age.insert(self.next, orphan);
        self.next += 1;
        while self.by_age.len() > self.count_max || self.bytes > self.bytes_max {
            let Some((&oldest, _)) = self.by_age.first_key_value() else { break };
            let gone = self.remove(oldest);
            self.forgotten.extend(gone.map(|orphan| sha256(&orphan.raw)));
        }
    }

    fn remove(&mut self, age: u64) -> Option<Orphan> {
        let orphan = self.by_age.remove(&age)?;
        self.bytes -= orphan.raw.len();
        if let Some(ages) = self.by_parent.get_mut(&orphan.prev) {
            ages.retain(|&other| other != age);
            if ages.is_empty() {
                self.by_parent.remove(&orphan.prev);
            }
        }
        Some(orphan)
    }

    /// Removes and returns the children of a block, in order of arrival.
    pub(super) fn take_children(&mut self, parent: &BlockHash) -> Vec<Orphan> {
        let ages = self.by_parent.get(parent).cloned().unwrap_or_default();
        ages.into_iter().filter_map(|age| self.remove(age)).collect()
    }

    /// Removes a copy by its name, if it is waiting.
    pub(super) fn take(&mut self, name: &[u8; 64]) {
        let (prev, _) = name.split_first_chunk().expect("64 bytes hold 32");
        let ages = self.by_parent.get(&BlockHash(*prev)).cloned().unwrap_or_default();
        let is_it = |age: &u64| self.by_age.get(age).is_some_and(|orphan| orphan.name() == *name);
        if let Some(age) = ages.into_iter().find(is_it) {
            self.remove(age);
        }
    }

    /// Returns the missing parents, in no particular order.
    pub(super) fn parents(&self) -> impl Iterator<Item = &BlockHash> {
        self.by_parent.keys()
    }

    /// Returns the number of waiting blocks.
    pub(super) fn len(&self) -> usize {
        self.by_age.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orphan(hash: u8, prev: u8, bytes: &[u8]) -> Orphan {
        Orphan { hash: BlockHash([hash; 32]), prev: BlockHash([prev; 32]), raw: bytes.to_vec() }
    }

    fn taken(orphans: &mut Orphans, parent: u8) -> Vec<u8> {
        orphans.take_children(&BlockHash([parent; 32])).iter().map(|o| o.hash.0[0]).collect()
    }

    #[test]
    fn children_come_in_order_and_once() {
        let mut orphans = Orphans::new(10, 100);
        for (hash, prev) in [(3, 1), (2, 1), (4, 2)] {
            orphans.add(orphan(hash, prev, &[0]));
        }
        assert_eq!(taken(&mut orphans, 1), [3, 2]);
        assert!(taken(&mut orphans, 1).is_empty());
        assert_eq!(taken(&mut orphans, 2), [4]);
        assert_eq!((orphans.len(), orphans.bytes), (0, 0));
        assert_eq!(orphans.parents().count(), 0);
    }

    #[test]
    fn the_oldest_makes_room() {
        let mut orphans = Orphans::new(2, 100);
        (2..6).for_each(|hash| orphans.add(orphan(hash, 1, &[0])));
        assert_eq!(taken(&mut orphans, 1), [4, 5]);
        let mut orphans = Orphans::new(10, 5);
        orphans.add(orphan(2, 1, &[0; 3]));
        orphans.add(orphan(3, 1, &[0; 3]));
        assert_eq!(taken(&mut orphans, 1), [3]);
        orphans.add(orphan(4, 1, &[0; 6]));
        assert_eq!(orphans.len(), 0, "a block that never fits");
    }

    #[test]
    fn none_waits_twice() {
        let mut orphans = Orphans::new(2, 100);
        (2..6).for_each(|hash| orphans.add(orphan(hash, 1, &[hash])));
        let is_forgotten = |hash| orphans.is_forgotten(&orphan(hash, 1, &[hash]));
        assert_eq!([2, 3, 4, 5, 6].map(is_forgotten), [true, true, false, false, false]);
        assert!(!orphans.is_forgotten(&orphan(2, 1, &[9])), "another copy");
        orphans.take_children(&BlockHash([1; 32]));
        assert!(!orphans.is_forgotten(&orphan(4, 1, &[4])), "its parent arrived");
    }

    #[test]
    fn copies_that_differ_wait_side_by_side() {
        let mut orphans = Orphans::new(10, 100);
        for (hash, byte) in [(2, 0), (2, 1), (3, 0)] {
            assert!(!orphans.contains(&orphan(hash, 1, &[byte])));
            orphans.add(orphan(hash, 1, &[byte]));
            assert!(orphans.contains(&orphan(hash, 1, &[byte])));
        }
        orphans.take(&orphan(2, 1, &[1]).name());
        orphans.take(&orphan(2, 1, &[2]).name());
        assert_eq!(taken(&mut orphans, 1), [2, 3]);
    }
}
