//! Runs the conformance tests of the trait on each store.

use super::laws::store_conformance;
use apus_chain::Network;
use apus_engine::utxo::store::{DiskOptions, DiskStore, MemoryStore};

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
