//! Coins on servers, for `apus-bench prevouts --store URL`.

use super::coins::StoredCoins;
use crate::error::BenchError;
use crate::terminal;
use apus_coins::{Access, BatchedStore, BatcherOptions, Password, StoreUrl};
use apus_engine::utxo::StoreError;
use std::env;
use std::sync::Arc;
use std::time::Duration;

/// Memory for answers, in bytes: a sync's default.
const ANSWERS_BYTES: u64 = 56 << 20;

/// Coins per batch and batches in flight: a sync's values with this memory.
const SIZE: usize = 500;
const IN_FLIGHT: usize = 16;

/// Maximum time without an answer from a server.
const PATIENCE: Duration = Duration::from_secs(60);

/// Environment variable with a password.
const PASSWORD: &str = "APUS_COINS_PASSWORD";

/// Opens the store at a URL and adds the missing coins.
pub(super) fn stored(store: &str, coins: u32) -> Result<StoredCoins, BenchError> {
    // Do not repeat the URL in the error: it may contain a password.
    let wrong = |error| BenchError::usage(format!("the value of --store: {error}"));
    let place: StoreUrl = store.parse().map_err(wrong)?;
    let password = env::var(PASSWORD).ok().filter(|password| !password.is_empty());
    let password = password.map(Password::new);
    if let Some(password) = &password {
        let exposed = |error| BenchError::usage(format!("{place}: {error}"));
        place.may_have(password).map_err(exposed)?;
    }
    terminal::aside(format_args!("{place}: adding missing coins"));
    let access = Access { password, patience: PATIENCE, ..Access::default() };
    let opened = apus_coins::open(&place, StoredCoins::NETWORK, &access);
    let options = BatcherOptions {
        size: SIZE,
        in_flight: IN_FLIGHT,
        bytes_max: ANSWERS_BYTES,
        ..BatcherOptions::default()
    };
    let batched = opened.and_then(|store| {
        BatchedStore::new(store, options).map_err(|error| StoreError::Io {
            place: place.to_string(),
            error: format!("cannot start threads: {error}"),
        })
    });
    let batched = batched?;
    StoredCoins::within(Arc::new(batched), &place.to_string(), coins)
}
