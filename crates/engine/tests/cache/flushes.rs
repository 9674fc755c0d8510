//! Tests that flushes run in the background, in order, and are never lost.

use crate::store::TestStore;
use crate::{block, coin, outpoint};
use apus_engine::utxo::store::UndoRecord;
use apus_engine::utxo::{CoinsCache, CoinsDelta, CoinsStore, CoinsView};
use std::sync::Arc;

fn cache(bytes_max: u64) -> (Arc<TestStore>, CoinsCache) {
    let store = Arc::new(TestStore::default());
    let cache = CoinsCache::new(Arc::clone(&store) as Arc<dyn CoinsStore>, bytes_max);
    (store, cache)
}

/// New coins of one transaction.
fn coins(tx: u32, count: u32) -> CoinsDelta {
    let mut delta = CoinsDelta::new();
    for vout in 0..count {
        delta.create(outpoint(tx, vout), coin(vout), true);
    }
    delta
}

fn undo(height: u32) -> UndoRecord {
    UndoRecord { block: block(height), bytes: height.to_le_bytes().to_vec().into() }
}

#[test]
fn blocks_are_applied_during_a_flush() {
    let (store, cache) = cache(16 << 20);
    store.shut();
    cache.apply(&coins(1, 10)).unwrap();
    cache.begin_flush(block(1), vec![undo(1)], 0).unwrap();
    cache.apply(&coins(2, 10)).unwrap();
    assert_eq!(cache.coin(&outpoint(1, 3)).unwrap(), Some(coin(3)), "from the old generation");
    assert_eq!(cache.coin(&outpoint(2, 3)).unwrap(), Some(coin(3)), "from the young one");
    assert!(store.coins().is_empty());
    store.open();
    cache.finish_flush().unwrap();
    assert_eq!(store.tip().unwrap(), Some(block(1)));
    assert_eq!(store.coins().len(), 10);
    assert_eq!(store.undo(&block(1).hash).unwrap(), Some(undo(1).bytes.into()));
    assert_eq!(cache.coin(&outpoint(1, 3)).unwrap(), Some(coin(3)));
    let stats = cache.stats();
    assert_eq!((stats.young_hits, stats.old_hits, stats.misses), (1, 2, 0), "kept for reading");
    assert_eq!((stats.young_entries, stats.old_entries, stats.flushes), (10, 10, 1));
}

#[test]
fn a_failure_is_reported_once_and_the_next_call_writes_the_coins() {
    let (store, cache) = cache(16 << 20);
    store.fail(1);
    cache.apply(&coins(1, 10)).unwrap();
    let error = cache.flush(block(1), vec![undo(1)], 0).unwrap_err();
    assert_eq!(error.to_string(), "test: no space left");
    assert_eq!(cache.coin(&outpoint(1, 3)).unwrap(), Some(coin(3)));
    cache.apply(&coins(2, 10)).unwrap();
    assert_eq!(cache.coin(&outpoint(2, 3)).unwrap(), Some(coin(3)));
    cache.finish_flush().unwrap();
    assert_eq!(store.tip().unwrap(), Some(block(1)));
    assert_eq!(store.coins().len(), 10);
    cache.flush(block(2), vec![undo(2)], 2).unwrap();
    assert_eq!(store.coins().len(), 20);
    assert_eq!(store.undo(&block(1).hash).unwrap(), None);
}

#[test]
fn nothing_newer_is_written_before_the_failed_flush() {
    let (store, cache) = cache(16 << 20);
    store.fail(2);
    cache.apply(&coins(1, 10)).unwrap();
    cache.begin_flush(block(1), vec![undo(1)], 0).unwrap();
    cache.apply(&coins(2, 10)).unwrap();
    cache.begin_flush(block(2), vec![undo(2)], 0).unwrap_err();
    assert_eq!(store.tip().unwrap(), None);
    assert_eq!(cache.stats().flushes, 0);
    cache.finish_flush().unwrap_err();
    cache.finish_flush().unwrap();
    assert_eq!(store.tip().unwrap(), Some(block(1)));
    assert_eq!(store.coins().len(), 10);
    // The undo data of the failed flush is written with the next.
    cache.flush(block(3), vec![undo(3)], 0).unwrap();
    let written = store.written();
    assert_eq!(written[0].undo, [undo(1)]);
    assert_eq!(written[1].undo, [undo(2), undo(3)]);
    assert_eq!(store.coins().len(), 20);
    assert_eq!(cache.stats().flushes, 2, "flushes that reached the store");
}

#[test]
fn a_panic_of_the_store_is_reported_as_an_error() {
    let (store, cache) = cache(16 << 20);
    store.panic(1);
    cache.apply(&coins(1, 10)).unwrap();
    let error = cache.flush(block(1), Vec::new(), 0).unwrap_err();
    assert!(error.to_string().contains("in the middle of a write"), "{error}");
    assert_eq!(cache.coin(&outpoint(1, 3)).unwrap(), Some(coin(3)));
}

/// The tip of a store moves although no coin changed.
#[test]
fn a_flush_without_changes_is_written() {
    let (store, cache) = cache(16 << 20);
    cache.finish_flush().unwrap();
    cache.flush(block(5), Vec::new(), 0).unwrap();
    assert_eq!(store.tip().unwrap(), Some(block(5)));
}

#[test]
fn a_dropped_cache_no_longer_writes_to_the_store() {
    let (store, cache) = cache(16 << 20);
    cache.apply(&coins(1, 1000)).unwrap();
    cache.begin_flush(block(1), Vec::new(), 0).unwrap();
    drop(cache);
    assert_eq!(store.coins().len(), 1000);
    assert_eq!(Arc::strong_count(&store), 1);
}
