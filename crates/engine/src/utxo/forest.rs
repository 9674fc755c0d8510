//! [`ForestStore`]: the Utreexo forest on a disk, for a bridge that makes proofs block by block.
//!
//! Like a store of coins it is always *at a block*: it has the pages of the forest after it, its roots, and how many
//! leaves there are before each block up to it. A write moves it to another block as a whole.

use crate::utxo::StoreError;
pub use crate::utxo::store::DiskForest;
use apus_chain::{Height, KnownBlock};
use apus_utreexo::{PageId, Pages, Roots};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where a store is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForestState {
    /// The last block that is in the forest.
    pub block: KnownBlock,
    /// The roots after it.
    pub roots: Roots,
    /// Where leaves of its blocks are.
    pub places: Places,
}

/// Takes changed pages one by one, by ascending key: the bytes of one, or none where there is to be none.
pub type EachPage<'a> = dyn FnMut(PageId, Option<&[u8]>) + 'a;

/// One step of a store to another block.
pub struct ForestWrite<'a> {
    /// The block.
    pub block: KnownBlock,
    /// The roots after it.
    pub roots: &'a Roots,
    /// How many leaves there are before each of the blocks that came, the last one `block`.
    pub leaves: &'a [u64],
    /// Gives all pages that changed.
    pub changes: &'a dyn Fn(&mut EachPage<'_>),
}

/// See the module.
pub trait ForestStore: Pages<Error = StoreError> + Send + Sync {
    /// Where it is; none where it is new.
    fn state(&self) -> Result<Option<ForestState>, StoreError>;

    /// What to call it in a message to people.
    fn describe(&self) -> String;

    /// Moves the store to another block, durably and as a whole.
    fn write(&self, write: &ForestWrite<'_>) -> Result<(), StoreError>;
}

// [`MemoryForest`]: a forest's pages in memory. For tests, and for callers that want nothing kept.

#[derive(Debug, Default)]
struct MemoryPages {
    pages: BTreeMap<PageId, Vec<u8>>,
    state: Option<ForestState>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct MemoryForest(Mutex<MemoryPages>);

impl MemoryForest {
    /// One without a block.
    pub fn new() -> Self {
        Self::default()
    }

    fn held(&self) -> MutexGuard<'_, MemoryPages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the bytes of every page, as a disk would that gives others.
    pub fn damage(&self, change: impl Fn(&mut Vec<u8>)) {
        self.held().pages.values_mut().for_each(change);
    }
}

impl Pages for MemoryForest {
    type Error = StoreError;

    fn read(&self, page: PageId, out: &mut Vec<u8>) -> Result<bool, StoreError> {
        let held = self.held();
        let found = held.pages.get(&page);
        out.extend(found.into_iter().flatten());
        Ok(found.is_some())
    }
}

impl ForestStore for MemoryForest {
    fn state(&self) -> Result<Option<ForestState>, StoreError> {
        Ok(self.held().state.clone())
    }

    fn describe(&self) -> String {
        "the forest".to_owned()
    }

    fn write(&self, write: &ForestWrite<'_>) -> Result<(), StoreError> {
        let mut held = self.held();
        (write.changes)(&mut |page, bytes| match bytes {
            Some(bytes) => drop(held.pages.insert(page, bytes.to_vec())),
            None => drop(held.pages.remove(&page)),
        });
        let mut state = held.state.take().unwrap_or_default();
        let before: Vec<u64> = state.places.above(0).iter().chain(write.leaves).copied().collect();
        state.places = Places::from_leaves(before).unwrap_or_default();
        (state.block, state.roots) = (write.block, write.roots.clone());
        state.places.set_end(state.roots.leaves());
        held.state = Some(state);
        Ok(())
    }
}

// [`Places`]: which leaves of the forest are those of a block.

/// How many leaves there are before each block from height 1 on: 8 bytes for each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    before: Vec<u64>,
    /// Leaves of all blocks, if it is known of the last one how many it has.
    end: Option<u64>,
}

impl Places {
    /// Those of blocks with so many leaves before each; none where the numbers do not ascend from 0.
    pub fn from_leaves(before: Vec<u64>) -> Option<Self> {
        let is_first = before.first().is_none_or(|first| *first == 0);
        (is_first && before.is_sorted()).then_some(Self { before, end: None })
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> Height {
        self.before.len() as Height
    }

    /// Says how many leaves there are in all.
    pub fn set_end(&mut self, leaves: u64) {
        self.end = Some(leaves);
    }

    /// Adds a block with so many leaves.
    pub fn push(&mut self, leaves: u64) {
        let first = self.end.unwrap_or_default();
        self.before.push(first);
        self.end = Some(first + leaves);
    }

    /// How many leaves there are before each of the blocks above a height.
    pub fn above(&self, height: Height) -> &[u64] {
        self.before.get(height as usize..).unwrap_or_default()
    }

    /// Which leaf of all is number `number` of a block's; none where the block has no such leaf, or is not there.
    pub fn leaf(&self, height: Height, number: u32) -> Option<u64> {
        let at = height.checked_sub(1)? as usize;
        let first = *self.before.get(at)?;
        let end = self.before.get(at + 1).copied().or(self.end)?;
        Some(first + u64::from(number)).filter(|leaf| *leaf < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_are_found_by_block_and_number() {
        let mut places = Places::default();
        [3, 0, 2].into_iter().for_each(|leaves| places.push(leaves));
        assert_eq!(places.blocks(), 3);
        let of = |height| (0..4).filter_map(|number| places.leaf(height, number)).collect();
        let all: [Vec<u64>; 5] = [0, 1, 2, 3, 4].map(of);
        assert_eq!(all, [vec![], vec![0, 1, 2], vec![], vec![3, 4], vec![]]);
        assert_eq!(places.above(1), [3, 3]);
        assert!(places.above(9).is_empty());
        let mut read = Places::from_leaves(vec![0, 3, 3]).unwrap();
        assert_eq!((read.leaf(1, 2), read.leaf(3, 0)), (Some(2), None));
        read.set_end(5);
        assert_eq!(read, places);
        assert!(Places::from_leaves(vec![1]).is_none());
        assert!(Places::from_leaves(vec![0, 4, 3]).is_none());
    }
}
