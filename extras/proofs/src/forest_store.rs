//! [`ForestStore`]: the Utreexo forest on a disk, for a bridge that makes proofs block by block.
//!
//! Like a store of coins it is always *at a block*: it has the pages of the forest after it, its roots, and how many
//! leaves there are before each block up to it. A write moves it to another block as a whole.

mod disk;

pub use disk::DiskForest;

use apus_chain::KnownBlock;
use apus_engine::utxo::StoreError;
use apus_sync::commitment::BlockPlaces;
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
    pub places: BlockPlaces,
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
        state.places = BlockPlaces::from_counts(before).unwrap_or_default();
        (state.block, state.roots) = (write.block, write.roots.clone());
        state.places.set_end(state.roots.leaves());
        held.state = Some(state);
        Ok(())
    }
}
