//! Coins on servers, for `apus-bench prevouts --store URL`.

use super::coins::StoredCoins;
use crate::error::BenchError;
use crate::terminal;
use apus_coins::{Access, BatchedStore, BatcherOptions, Password, StoreUrl};
use apus_engine::utxo::StoreError;
use std::env;
use std::sync::Arc;
use std::time::Duration;

/// Memory for answers, in bytes: what a run has for them by default.
const ANSWERS_BYTES: u64 = 56 << 20;

/// Coins of a batch and batches under way, as a run has them with so much memory.
const SIZE: usize = 500;
const IN_FLIGHT: usize = 16;

/// For how long servers may be silent.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a password is looked for.
const PASSWORD: &str = "APUS_COINS_PASSWORD";

/// The coins at a place, of which those are put there that it lacks.
pub(super) fn stored(store: &str, coins: u32) -> Result<StoredCoins, BenchError> {
    // The text is not repeated: it may have a password in it.
    let wrong = |error| BenchError::usage(format!("the value of --store: {error}"));
    let place: StoreUrl = store.parse().map_err(wrong)?;
    let password = env::var(PASSWORD).ok().filter(|password| !password.is_empty());
    let password = password.map(Password::new);
    if let Some(password) = &password {
        let exposed = |error| BenchError::usage(format!("{place}: {error}"));
        place.may_have(password).map_err(exposed)?;
    }
    terminal::aside(format_args!("{place} gets the coins that it lacks"));
    let access = Access { password, patience: PATIENCE };
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
