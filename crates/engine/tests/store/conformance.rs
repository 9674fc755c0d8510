//! Runs the conformance tests of the trait on each store.

use super::laws::store_conformance;
use super::support::outpoint;
use apus_chain::Network;
use apus_engine::utxo::CoinsStore;
use apus_engine::utxo::store::{DiskOptions, DiskStore, LatencyStore, MemoryStore};
use std::time::Duration;

#[test]
fn the_store_in_memory_conforms() {
    store_conformance(&|_| Box::new(MemoryStore::new()));
}

#[test]
fn the_store_on_disk_conforms() {
    store_conformance(&|folder| {
        Box::new(DiskStore::open(folder, Network::Regtest, DiskOptions::default()).unwrap())
    });
}

#[test]
fn the_latency_store_conforms_and_delays_answers() {
    let wait = Duration::from_micros(10);
    store_conformance(&|_| Box::new(LatencyStore::new(MemoryStore::new(), wait)));
    let store = LatencyStore::new(MemoryStore::new(), Duration::from_millis(20));
    let started = std::time::Instant::now();
    store.get(&outpoint(0)).unwrap();
    // A sleep is never shorter than requested.
    assert!(started.elapsed() >= Duration::from_millis(20));
    let many = [0; 1_000].map(outpoint);
    assert_eq!(store.get_many(&many).unwrap(), vec![None; 1_000]);
    assert!(started.elapsed() < Duration::from_secs(10), "it waits once, not for each coin");
    assert_eq!((store.at_once(), LatencyStore::remote(store, wait, 9).at_once()), (1, 9));
    let store = LatencyStore::new(MemoryStore::new(), wait);
    assert_eq!(store.inner().tip().unwrap(), None);
}
