//! [`LatencyStore`]: a store that answers with a delay, to measure the cost of waiting.

use apus_chain::{BlockHash, KnownBlock, OutPoint};
use apus_engine::utxo::store::{EachBatch, EachCoin};
use apus_engine::utxo::{CoinBytes, CoinsStore, Flush, StoreError};
use std::thread;
use std::time::{Duration, Instant};

/// A wrapper around another store in which each look-up, of any number of coins, takes a given
/// time: the store's own time, and then a pause. Look-ups of several threads wait in parallel, as
/// with a disk with a deep queue or a server; so do batches requested together, like requests that
/// a server receives before it answers the first. The pause is a sleep, so its accuracy depends on
/// the system's timers.
#[derive(Debug)]
pub(super) struct LatencyStore<S> {
    store: S,
    get: Duration,
    at_once: usize,
}

impl<S> LatencyStore<S> {
    /// Makes each look-up take at least `get`. The store prefers batches of `at_once` coins: 1 for a disk, more
    /// for a server.
    pub(super) fn new(store: S, get: Duration, at_once: usize) -> Self {
        Self { store, get, at_once }
    }

    /// Runs a look-up and waits until its time has passed.
    fn answer<T>(&self, look_up: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let answer = look_up();
        let left = self.get.saturating_sub(started.elapsed());
        if !left.is_zero() {
            thread::sleep(left);
        }
        answer
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

    fn get_batches(&self, batches: &[&[OutPoint]], each: &mut EachBatch<'_>) {
        let mut answers = Vec::with_capacity(batches.len());
        self.answer(|| {
            let mut keep = |number, answer| answers.push((number, answer));
            self.store.get_batches(batches, &mut keep);
        });
        answers.into_iter().for_each(|(number, answer)| each(number, answer));
    }

    fn batches_at_once(&self) -> usize {
        usize::MAX
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

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::Txid;
    use apus_engine::utxo::store::MemoryStore;

    #[test]
    fn answers_come_late_but_together() {
        let wait = Duration::from_millis(20);
        let store = LatencyStore::new(MemoryStore::new(), wait, 9);
        let (outpoint, started) = (OutPoint { txid: Txid([7; 32]), vout: 0 }, Instant::now());
        assert_eq!(store.get(&outpoint).unwrap(), None);
        // A sleep is never shorter than requested.
        assert!(started.elapsed() >= wait);
        assert_eq!(store.get_many(&[outpoint; 1_000]).unwrap(), vec![None; 1_000]);
        assert!(started.elapsed() < Duration::from_secs(10), "it waits once, not for each coin");
        assert_eq!(store.at_once(), 9);
    }
}
