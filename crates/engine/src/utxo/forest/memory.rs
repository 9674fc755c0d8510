//! [`MemoryForest`]: a forest's pages in memory. For tests, and for callers that want nothing kept.

use super::{ForestState, ForestStore, ForestWrite};
use crate::utxo::StoreError;
use apus_utreexo::{PageId, Pages};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

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
        state.places = super::Places::from_leaves(before).unwrap_or_default();
        (state.block, state.roots) = (write.block, write.roots.clone());
        state.places.set_end(state.roots.leaves());
        held.state = Some(state);
        Ok(())
    }
}
