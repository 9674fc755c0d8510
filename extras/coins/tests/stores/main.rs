//! The stores on Redis Cluster and PostgreSQL, on real servers: what every store must do, and what it
//! survives. Tests that apply to both use [`Servers`](servers::Servers) of each kind.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod cluster;
mod kill;
#[path = "../../../../crates/engine/tests/store/laws.rs"]
mod laws;
mod postgres;
mod refusals;
mod servers;
mod stopped;
#[path = "../../../../crates/engine/tests/store/support.rs"]
mod support;
mod tls;
mod writing;

use apus_coins::{BatchedStore, BatcherOptions};
use apus_engine::utxo::CoinsStore;
use apus_engine::utxo::store::MemoryStore;
use laws::store_conformance;
use std::sync::Arc;
use support::outpoint;

#[test]
fn the_batched_store_conforms_and_wants_everything_at_once() {
    let options = BatcherOptions { size: 3, in_flight: 4, ..BatcherOptions::default() };
    let batched = || BatchedStore::new(Arc::new(MemoryStore::new()), options).unwrap();
    store_conformance(&|_| Box::new(batched()));
    let store = batched();
    assert_eq!(store.at_once(), 12);
    let many: Vec<_> = (0..50).map(outpoint).collect();
    assert_eq!(store.get_many(&many).unwrap(), vec![None; 50]);
    assert_eq!((store.stats().full, store.stats().answered), (16, 50));
}
