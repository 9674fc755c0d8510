//! A store that does not outlast the program: for chains that fit into memory, and as the reference
//! model for other stores.

use crate::coin::CoinBytes;
use crate::utxo::store::{CoinsStore, EachBatch, EachCoin, Flush, StoreError};
use apus_chain::{BlockHash, KnownBlock, OutPoint};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

/// Coins in a map.
#[derive(Debug, Default)]
pub struct MemoryStore(RwLock<MemoryState>);

#[derive(Debug, Default)]
struct MemoryState {
    tip: Option<KnownBlock>,
    coins: HashMap<OutPoint, CoinBytes>,
    undo: HashMap<BlockHash, (KnownBlock, Vec<u8>)>,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn read<T>(&self, answer: impl FnOnce(&MemoryState) -> T) -> T {
        answer(&self.0.read())
    }
}

impl CoinsStore for MemoryStore {
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError> {
        Ok(self.read(|state| state.tip))
    }

    fn get(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        Ok(self.read(|state| state.coins.get(outpoint).cloned()))
    }

    /// All coins are from one block.
    fn get_many(&self, wanted: &[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        Ok(self.read(|state| wanted.iter().map(|it| state.coins.get(it).cloned()).collect()))
    }

    fn write(&self, flush: &Flush<'_>) -> Result<(), StoreError> {
        // Collect all changes before applying any: the iteration may end in an error.
        let mut changes = Vec::new();
        flush.changes.for_each(&mut |outpoint, coin| {
            changes.push((*outpoint, coin.cloned()));
            Ok(())
        })?;
        let mut state = self.0.write();
        for (outpoint, coin) in changes {
            match coin {
                Some(coin) => state.coins.insert(outpoint, coin),
                None => state.coins.remove(&outpoint),
            };
        }
        for record in flush.undo {
            state.undo.insert(record.block.hash, (record.block, record.bytes.whole().into_owned()));
        }
        state.undo.retain(|_, (block, _)| block.height >= flush.undo_from);
        state.tip = Some(flush.tip);
        Ok(())
    }

    fn undo(&self, block: &BlockHash) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.read(|state| state.undo.get(block).map(|(_, bytes)| bytes.clone())))
    }

    fn for_each(&self, each: &mut EachCoin<'_>) -> Result<(), StoreError> {
        self.read(|state| {
            let mut coins: Vec<_> = state.coins.iter().collect();
            coins.sort_unstable_by_key(|(outpoint, _)| *outpoint);
            coins.into_iter().try_for_each(|(outpoint, coin)| each(outpoint, coin))
        })
    }
}

// [`LatencyStore`]: a store that answers with a delay, to measure the cost of waiting.

/// A wrapper around another store in which each look-up, of any number of coins, takes a given
/// time: the store's own time, and then a pause. Look-ups of several threads wait in parallel, as
/// with a disk with a deep queue or a server; so do batches requested together, like requests that
/// a server receives before it answers the first. The pause is a sleep, so its accuracy depends on
/// the system's timers.
#[derive(Debug)]
pub struct LatencyStore<S> {
    store: S,
    get: Duration,
    at_once: usize,
}

impl<S> LatencyStore<S> {
    /// Makes each [`get`](CoinsStore::get) of `store` take at least `get`, like a disk.
    pub fn new(store: S, get: Duration) -> Self {
        Self::remote(store, get, 1)
    }

    /// Like [`new`](Self::new), for a store that prefers batches of `at_once` coins, like one
    /// behind a network.
    pub fn remote(store: S, get: Duration, at_once: usize) -> Self {
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

    /// Returns the wrapped store.
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
