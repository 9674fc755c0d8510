//! [`ForestStore`]: the Utreexo forest on a disk, for a bridge that makes proofs block by block.
//!
//! Like a coin store it is always *at a block*: it has the pages of the forest after that block, its roots,
//! and the number of leaves before each block up to it. A write moves it to another block atomically.

mod disk;

pub use disk::DiskForest;

use apus_chain::KnownBlock;
use apus_engine::utxo::StoreError;
use apus_sync::commitment::BlockPlaces;
use apus_utreexo::{PageId, Pages, Roots};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// The state of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForestState {
    /// The last block in the forest.
    pub block: KnownBlock,
    /// The roots after this block.
    pub roots: Roots,
    /// The places of the leaves of its blocks.
    pub places: BlockPlaces,
}

/// Receives changed pages one by one, by ascending key: with their bytes, or `None` if the page must be
/// deleted.
pub type EachPage<'a> = dyn FnMut(PageId, Option<&[u8]>) + 'a;

/// A write that moves a store to another block.
pub struct ForestWrite<'a> {
    /// The block that the store moves to.
    pub block: KnownBlock,
    /// The roots after this block.
    pub roots: &'a Roots,
    /// Number of leaves before each new block, the last of which is `block`.
    pub leaves: &'a [u64],
    /// Calls its argument for every changed page.
    pub changes: &'a dyn Fn(&mut EachPage<'_>),
}

/// A store of the Utreexo forest.
pub trait ForestStore: Pages<Error = StoreError> + Send + Sync {
    /// Returns its state; `None` if it is new.
    fn state(&self) -> Result<Option<ForestState>, StoreError>;

    /// Its name in messages.
    fn describe(&self) -> String;

    /// Moves the store to another block, durably and atomically.
    fn write(&self, write: &ForestWrite<'_>) -> Result<(), StoreError>;
}

// [`MemoryForest`]: a forest's pages in memory, for tests and for callers that keep nothing.

#[derive(Debug, Default)]
struct MemoryPages {
    pages: BTreeMap<PageId, Vec<u8>>,
    state: Option<ForestState>,
}

/// A forest's pages in memory.
#[derive(Debug, Default)]
pub struct MemoryForest(Mutex<MemoryPages>);

impl MemoryForest {
    /// Creates a store without blocks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Changes the bytes of every page, to simulate a faulty disk.
    pub fn damage(&self, change: impl Fn(&mut Vec<u8>)) {
        self.0.lock().pages.values_mut().for_each(change);
    }
}

impl Pages for MemoryForest {
    type Error = StoreError;

    fn read(&self, page: PageId, out: &mut Vec<u8>) -> Result<bool, StoreError> {
        let held = self.0.lock();
        let found = held.pages.get(&page);
        out.extend(found.into_iter().flatten());
        Ok(found.is_some())
    }
}

impl ForestStore for MemoryForest {
    fn state(&self) -> Result<Option<ForestState>, StoreError> {
        Ok(self.0.lock().state.clone())
    }

    fn describe(&self) -> String {
        "the forest".to_owned()
    }

    fn write(&self, write: &ForestWrite<'_>) -> Result<(), StoreError> {
        let mut held = self.0.lock();
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
