//! [`LatencyStore`]: a store that answers late, to see what waiting costs.

use super::{CoinsStore, EachCoin, Flush, StoreError};
use crate::coin::CoinBytes;
use apus_chain::{BlockHash, KnownBlock, OutPoint};
use std::thread;
use std::time::{Duration, Instant};

/// Another store, each of whose look-ups takes a given time, of however many coins: what it does itself,
/// and then a pause. Look-ups of several threads wait side by side, as they do for a disk with a deep queue
/// or a server. The pause is a sleep, so how exact it is depends on the system's timers.
#[derive(Debug)]
pub struct LatencyStore<S> {
    store: S,
    get: Duration,
    at_once: usize,
}

impl<S> LatencyStore<S> {
    /// Lets each [`get`](CoinsStore::get) of `store` take `get`, if it takes less, as a disk does.
    pub fn new(store: S, get: Duration) -> Self {
        Self::remote(store, get, 1)
    }

    /// The same of a store that wants to be asked for so many coins at once, as one beyond a network.
    pub fn remote(store: S, get: Duration, at_once: usize) -> Self {
        Self { store, get, at_once }
    }

    /// Answers when it is time.
    fn answer<T>(&self, look_up: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let answer = look_up();
        let left = self.get.saturating_sub(started.elapsed());
        if !left.is_zero() {
            thread::sleep(left);
        }
        answer
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
        self.answer(|| self.store.get(outpoint))
    }

    fn get_many(&self, wanted: &[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        self.answer(|| self.store.get_many(wanted))
    }

    fn at_once(&self) -> usize {
        self.at_once
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
