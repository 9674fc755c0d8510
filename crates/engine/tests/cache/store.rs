//! A store whose writes can be delayed, made to fail, and inspected.

use apus_chain::{BlockHash, KnownBlock, OutPoint};
use apus_engine::utxo::store::{EachChange, EachCoin, MemoryStore, UndoRecord};
use apus_engine::utxo::{Changes, CoinBytes, CoinsStore, Flush, StoreError};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex};

/// One received write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) tip: KnownBlock,
    pub(crate) changes: Vec<(OutPoint, Option<CoinBytes>)>,
    pub(crate) undo: Vec<UndoRecord>,
}

#[derive(Default)]
pub(crate) struct TestStore {
    inner: MemoryStore,
    state: Mutex<State>,
    opened: Condvar,
}

#[derive(Default)]
struct State {
    shut: bool,
    failures: u32,
    panics: u32,
    written: Vec<Written>,
}

impl TestStore {
    /// Makes writes wait.
    pub(crate) fn shut(&self) {
        self.state.lock().unwrap().shut = true;
    }

    pub(crate) fn open(&self) {
        self.state.lock().unwrap().shut = false;
        self.opened.notify_all();
    }

    /// Makes this many writes fail.
    pub(crate) fn fail(&self, writes: u32) {
        self.state.lock().unwrap().failures = writes;
    }

    /// Makes this many writes panic.
    pub(crate) fn panic(&self, writes: u32) {
        self.state.lock().unwrap().panics = writes;
    }

    /// Returns the successful writes.
    pub(crate) fn written(&self) -> Vec<Written> {
        self.state.lock().unwrap().written.clone()
    }

    pub(crate) fn coins(&self) -> BTreeMap<OutPoint, CoinBytes> {
        let mut coins = BTreeMap::new();
        let mut each = |outpoint: &OutPoint, coin: &CoinBytes| {
            coins.insert(*outpoint, coin.clone());
            Ok(())
        };
        self.inner.for_each(&mut each).unwrap();
        coins
    }
}

impl CoinsStore for TestStore {
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError> {
        self.inner.tip()
    }

    fn get(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        self.inner.get(outpoint)
    }

    fn write(&self, flush: &Flush<'_>) -> Result<(), StoreError> {
        let mut changes: Vec<(OutPoint, Option<CoinBytes>)> = Vec::new();
        flush.changes.for_each(&mut |outpoint, coin| {
            if let Some((last, _)) = changes.last() {
                assert!(last < outpoint, "{last} is not before {outpoint}");
            }
            changes.push((*outpoint, coin.cloned()));
            Ok(())
        })?;
        let state = self.state.lock().unwrap();
        let mut state = self.opened.wait_while(state, |state| state.shut).unwrap();
        if state.failures > 0 {
            state.failures -= 1;
            return Err(StoreError::Io { place: "test".into(), error: "no space left".into() });
        }
        if state.panics > 0 {
            state.panics -= 1;
            drop(state);
            panic!("as the test wants");
        }
        let undo = flush.undo.to_vec();
        state.written.push(Written { tip: flush.tip, changes, undo });
        drop(state);
        self.inner.write(flush)
    }

    fn undo(&self, block: &BlockHash) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.undo(block)
    }

    fn for_each(&self, each: &mut EachCoin<'_>) -> Result<(), StoreError> {
        self.inner.for_each(each)
    }
}

/// A list of changes for filling a store.
pub(crate) struct List(pub(crate) Vec<(OutPoint, Option<CoinBytes>)>);

impl Changes for List {
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        self.0.iter().try_for_each(|(outpoint, coin)| each(outpoint, coin.as_ref()))
    }
}
