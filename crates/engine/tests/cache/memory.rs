//! The memory accounting of the cache, and its behaviour when memory runs out.
//!
//! Waiting undo data can have any size, so it is used to find the limit to the byte.

use crate::store::TestStore;
use crate::{block, coin, outpoint};
use apus_engine::utxo::cache::BYTES_MIN;
use apus_engine::utxo::store::UndoRecord;
use apus_engine::utxo::{CoinsCache, CoinsDelta, CoinsStore, CoinsView};
use std::sync::Arc;

/// The memory of most caches here: the minimum number of shards.
const BYTES_MAX: u64 = 16 << 20;

/// Sorting memory for one coin.
const SORT_BYTES: u64 = 16;

fn cache(bytes_max: u64) -> (Arc<TestStore>, CoinsCache) {
    let store = Arc::new(TestStore::default());
    let cache = CoinsCache::new(Arc::clone(&store) as Arc<dyn CoinsStore>, bytes_max);
    (store, cache)
}

/// Creates new coins, one for each of these transactions.
fn one_of_each(txs: std::ops::Range<u32>) -> CoinsDelta {
    let mut delta = CoinsDelta::new();
    txs.for_each(|tx| delta.create(outpoint(tx, 0), coin(tx), true));
    delta
}

/// Creates new coins of one transaction, and so in one shard.
fn all_of(tx: u32, count: u32) -> CoinsDelta {
    let mut delta = CoinsDelta::new();
    (0..count).for_each(|vout| delta.create(outpoint(tx, vout), coin(vout), true));
    delta
}

#[test]
fn a_large_cache_has_more_shards_up_to_a_limit() {
    let empty = |bytes_max| cache(bytes_max).1.stats().bytes;
    let least = empty(0);
    assert!(least > 0);
    for (mib, times) in [(1, 1), (128, 1), (129, 1), (130, 2), (256, 2), (300, 4), (1 << 10, 8)] {
        assert_eq!(empty(mib << 20), times * least, "{mib} MiB");
    }
    assert_eq!(empty(1 << 40), 8 * least);
}

#[test]
fn waiting_undo_data_count_until_a_flush_takes_them() {
    let (_, cache) = cache(BYTES_MAX);
    cache.apply(&all_of(1, 100)).unwrap();
    let coins = cache.stats();
    cache.set_undo_bytes(4321);
    let both = cache.stats();
    assert_eq!((both.undo_bytes, both.bytes), (4321, coins.bytes + 4321));
    assert_eq!(both.bytes_max, BYTES_MAX);
    cache.flush(block(1), Vec::new(), 0).unwrap();
    let flushed = cache.stats();
    assert_eq!((flushed.undo_bytes, flushed.bytes), (0, coins.bytes), "its coins are kept");
}

#[test]
fn a_flush_is_due_at_two_thirds_and_not_before() {
    let (_, cache) = cache(BYTES_MAX);
    let empty = cache.stats().bytes;
    let due_at = |young: u64, largest: u64| {
        let undo = BYTES_MAX / 3 * 2 - young - largest * SORT_BYTES;
        cache.set_undo_bytes(undo - 1);
        assert!(!cache.flush_due(), "{young} bytes with a part of {largest} coins");
        cache.set_undo_bytes(undo);
        assert!(cache.flush_due(), "{young} bytes with a part of {largest} coins");
        cache.set_undo_bytes(0);
    };
    due_at(0, 0);
    cache.apply(&all_of(1, 1000)).unwrap();
    due_at(cache.stats().bytes - empty, 1000);
    cache.apply(&all_of(2, 10)).unwrap();
    due_at(cache.stats().bytes - empty, 1000);
    cache.flush(block(1), Vec::new(), 0).unwrap();
    // Flushed coins are kept and do not cause another flush.
    due_at(0, 0);
    cache.apply(&all_of(3, 10)).unwrap();
    let old = cache.stats().old_entries;
    assert_eq!(old, 1010);
    assert!(!cache.flush_due());
}

/// An output takes at least 9 bytes of a block's 1,000,000.
const OUTPUTS_PER_BLOCK_MAX: u32 = 1_000_000 / 9;

/// The most outputs that a block can have, on top of the most that may exist before a flush is due.
#[test]
fn the_largest_block_fits_into_the_minimum_memory() {
    let (_, cache) = cache(BYTES_MIN);
    cache.set_undo_bytes(BYTES_MIN / 3 * 2 - 1);
    assert!(!cache.flush_due());
    cache.apply(&all_of(1, OUTPUTS_PER_BLOCK_MAX)).unwrap();
    let bytes = cache.stats().bytes;
    assert!(bytes <= BYTES_MIN, "{bytes} bytes");
    assert!(cache.flush_due());
}

/// A failed flush is reported to the block that needs its memory, and to no other.
#[test]
fn a_block_waits_only_if_it_has_no_room() {
    let (store, cache) = cache(BYTES_MAX);
    store.fail(1);
    cache.apply(&all_of(1, 1000)).unwrap();
    cache.apply(&all_of(2, 10)).unwrap();
    let undo =
        [1234, 4321].map(|bytes| UndoRecord { block: block(1), bytes: vec![0; bytes].into() });
    cache.begin_flush(block(1), undo.to_vec(), 0).unwrap();
    let flush = 1000 * SORT_BYTES + 1234 + 4321;
    let free = BYTES_MAX - cache.stats().bytes - flush;
    cache.set_undo_bytes(free);
    cache.apply(&CoinsDelta::new()).unwrap();
    cache.apply(&all_of(3, 1)).unwrap_err();
    assert_eq!(cache.coin(&outpoint(3, 0)).unwrap(), None, "nothing was changed");
    cache.set_undo_bytes(free + 1);
    cache.apply(&CoinsDelta::new()).unwrap_err();
    cache.set_undo_bytes(free - (1 << 20));
    cache.apply(&all_of(3, 1)).unwrap();
    cache.finish_flush().unwrap();
    // Once written, it needs no more memory, and its coins can be dropped.
    cache.set_undo_bytes(free + flush);
    cache.apply(&all_of(4, 1)).unwrap();
    assert!(cache.stats().bytes <= BYTES_MAX);
    assert_eq!(cache.coin(&outpoint(4, 0)).unwrap(), Some(coin(0)));
}

#[test]
fn written_coins_are_dropped_shard_by_shard() {
    let (_, cache) = cache(BYTES_MAX);
    let empty = cache.stats().bytes;
    cache.apply(&one_of_each(0..640)).unwrap();
    cache.flush(block(1), Vec::new(), 0).unwrap();
    let needs = |more: u64| {
        cache.set_undo_bytes(0);
        let undo = BYTES_MAX - cache.stats().bytes + more;
        cache.set_undo_bytes(undo);
        cache.apply(&CoinsDelta::new()).unwrap();
        assert!(cache.stats().bytes <= BYTES_MAX);
        cache.stats().old_entries
    };
    // About ten coins in each of 64 shards.
    let one_part = needs(1);
    assert!((610..640).contains(&one_part), "{one_part} are left");
    assert_eq!(needs(0), one_part, "just enough");
    let two_parts = needs(1);
    assert!((580..one_part).contains(&two_parts), "{two_parts} are left");
    // A block is applied even if nothing is left to drop.
    cache.set_undo_bytes(BYTES_MAX);
    cache.apply(&CoinsDelta::new()).unwrap();
    let stats = cache.stats();
    assert_eq!((stats.old_entries, stats.bytes), (0, empty + BYTES_MAX));
    for tx in 0..20 {
        assert_eq!(cache.coin(&outpoint(tx, 0)).unwrap(), Some(coin(tx)), "from the store");
    }
    assert_eq!((cache.stats().old_hits, cache.stats().misses), (0, 20));
}

#[test]
fn only_written_coins_make_room_for_others() {
    let (store, cache) = cache(BYTES_MAX);
    cache.apply(&one_of_each(0..640)).unwrap();
    cache.flush(block(1), Vec::new(), 0).unwrap();
    cache.apply(&one_of_each(640..650)).unwrap();
    let before = cache.stats();
    let free = BYTES_MAX - before.bytes;
    cache.make_room_beside(free / 2).unwrap();
    assert_eq!(cache.stats(), before);
    cache.make_room_beside(free + 1).unwrap();
    assert!((1..640).contains(&cache.stats().old_entries), "{:?}", cache.stats());
    // Request more than can ever be freed: unwritten coins stay.
    cache.make_room_beside(2 * BYTES_MAX).unwrap();
    let after = cache.stats();
    assert_eq!((after.old_entries, after.young_entries), (0, 10));
    // Coins that are being written must reach the store first.
    store.fail(1);
    cache.begin_flush(block(2), Vec::new(), 0).unwrap();
    cache.make_room_beside(2 * BYTES_MAX).unwrap_err();
    assert_eq!(cache.stats().old_entries, 10);
    cache.finish_flush().unwrap();
    cache.make_room_beside(2 * BYTES_MAX).unwrap();
    assert_eq!(cache.stats().old_entries, 0);
}
