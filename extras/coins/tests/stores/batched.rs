//! A store of which much is asked at once is one like any other.

use super::laws::store_conformance;
use super::support::outpoint;
use apus_coins::{BatchedStore, BatcherOptions};
use apus_engine::utxo::CoinsStore;
use apus_engine::utxo::store::MemoryStore;
use std::sync::Arc;

#[test]
fn the_batched_store_conforms_and_wants_all_at_once() {
    let options = BatcherOptions { size: 3, in_flight: 4, ..BatcherOptions::default() };
    let batched = || BatchedStore::new(Arc::new(MemoryStore::new()), options).unwrap();
    store_conformance(&|_| Box::new(batched()));
    let store = batched();
    assert_eq!(store.at_once(), 12);
    let many: Vec<_> = (0..50).map(outpoint).collect();
    assert_eq!(store.get_many(&many).unwrap(), vec![None; 50]);
    assert_eq!((store.stats().full, store.stats().answered), (16, 50));
}
