//! The store on Redis Cluster, on real servers: what every store must do, and what it survives.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod conformance;
mod kill;
#[path = "../../../engine/tests/store/laws.rs"]
mod laws;
mod refusals;
#[path = "../../../engine/tests/store/support.rs"]
mod support;

use apus_chain::Network;
use apus_coins::{ClusterOptions, ClusterPlace, ClusterStore};
use std::time::Duration;

/// Few buckets, and a lease that a test can wait for.
fn options() -> ClusterOptions {
    ClusterOptions {
        bucket_bits: 6,
        lease: Duration::from_millis(1500),
        patience: Duration::from_secs(120),
        ..ClusterOptions::default()
    }
}

fn open(url: &str) -> ClusterStore {
    let place: ClusterPlace = url.parse().unwrap();
    ClusterStore::open(&place, Network::Regtest, &options()).unwrap()
}
