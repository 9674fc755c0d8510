//! [`LatencyStore`]: a store that answers late, to see what waiting costs.

use super::{CoinsStore, EachCoin, Flush, StoreError};
use crate::coin::CoinBytes;
use apus_chain::{BlockHash, KnownBlock, OutPoint};
use std::thread;
use std::time::Duration;

/// Another store, each of whose look-ups takes at least a given time. Look-ups of several threads
/// wait side by side, as they do for a disk with a deep queue or a server.
#[derive(Debug)]
pub struct LatencyStore<S> {
    store: S,
    get: Duration,
}

impl<S> LatencyStore<S> {
    /// Lets each [`get`](CoinsStore::get) of `store` take `get` longer.
    pub fn new(store: S, get: Duration) -> Self {
        Self { store, get }
    }

    /// The store within.
    pub fn inner(&self) -> &S {
        &self.store
    }
}

impl<S: CoinsStore> CoinsStore for LatencyStore<S> {
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError> {
        self.store.tip()
    }

    fn get(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        if !self.get.is_zero() {
            thread::sleep(self.get);
        }
        self.store.get(outpoint)
    }

    fn write(&self, flush: &Flush<'_>) -> Result<(), StoreError> {
        self.store.write(flush)
    }

    fn undo(&self, block: &BlockHash) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.undo(block)
    }

    fn for_each(&self, each: &mut EachCoin<'_>) -> Result<(), StoreError> {
        self.store.for_each(each)
    }
}
