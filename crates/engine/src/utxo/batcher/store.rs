//! [`BatchedStore`]: a store that is asked for much at once through a batcher.

use super::{Batcher, BatcherOptions, BatcherStats};
use crate::coin::CoinBytes;
use crate::utxo::store::{CoinsStore, EachCoin, Flush, StoreError};
use apus_chain::{BlockHash, KnownBlock, OutPoint};
use std::io;
use std::sync::Arc;

/// Another store, which lies beyond a network. All coins that a caller wants with one call are cut into
/// batches that are under way side by side, together with those of other callers; so the caller waits
/// for one way there and back, whatever it wants, and should ask for all that it knows of.
pub struct BatchedStore {
    batcher: Batcher,
    store: Arc<dyn CoinsStore>,
}

impl BatchedStore {
    /// Starts the batcher's threads.
    pub fn new(store: Arc<dyn CoinsStore>, options: BatcherOptions) -> io::Result<Self> {
        Ok(Self { batcher: Batcher::new(Arc::clone(&store), options)?, store })
    }

    /// What the batcher did so far.
    pub fn stats(&self) -> BatcherStats {
        self.batcher.stats()
    }
}

impl CoinsStore for BatchedStore {
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError> {
        self.store.tip()
    }

    /// One alone has nothing to wait for.
    fn get(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        self.store.get(outpoint)
    }

    fn get_many(&self, wanted: &[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        self.batcher.producer().coins(wanted)
    }

    fn at_once(&self) -> usize {
        let BatcherOptions { size, in_flight, .. } = *self.batcher.options();
        size.saturating_mul(in_flight)
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
