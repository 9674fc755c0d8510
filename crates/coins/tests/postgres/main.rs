//! The store on PostgreSQL, on a real server: what every store must do, and what it survives.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod conformance;
mod kill;
#[path = "../../../engine/tests/store/laws.rs"]
mod laws;
mod refusals;
#[path = "../../../engine/tests/store/support.rs"]
mod support;
mod tls;

use apus_chain::Network;
use apus_coins::{PostgresOptions, PostgresPlace, PostgresStore};
use std::time::Duration;

/// Few parts, and a lease that a test can wait for.
fn options() -> PostgresOptions {
    PostgresOptions {
        lease: Duration::from_secs(20),
        patience: Duration::from_secs(120),
        partitions: 3,
        ..PostgresOptions::default()
    }
}

fn open(url: &str) -> PostgresStore {
    let place: PostgresPlace = url.parse().unwrap();
    PostgresStore::open(&place, Network::Regtest, &options()).unwrap()
}
