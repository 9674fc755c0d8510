//! Tests of syncs whose blocks come from arbitrarily behaving peers. One rule holds in all tests: a sync ends,
//! with the right set or with an error that says why not.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

#[path = "../pipeline/harness.rs"]
#[allow(dead_code, reason = "the tests of the pipeline use all of it")]
mod world;

#[cfg(feature = "kernel")]
#[path = "../pipeline/undo_data.rs"]
mod undo_data;

mod anchored;
#[cfg(feature = "kernel")]
mod chains;
mod clock;
mod harness;
mod honest;
mod hostile;
#[cfg(feature = "kernel")]
mod joined;
#[cfg(feature = "kernel")]
mod kept;
mod resume;
mod schedules;
