//! Tests that every engine computes the same set, and that connecting blocks in order survives every kind of
//! stop and fault.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

#[path = "../pipeline/harness.rs"]
#[allow(dead_code, reason = "the tests of the pipeline use all of it")]
mod world;

#[path = "../pipeline/undo_data.rs"]
mod undo_data;

mod anchored;
mod bad_blocks;
mod batches;
mod coins_changed;
mod copied;
mod crash_and_fault;
mod engine_conformance;
mod harness;
mod invalid;
mod joins;
mod mergesync;
#[cfg(feature = "kernel")]
mod put_aside;
mod read_back;
mod refusals;
mod reorg;
mod resume;
mod tail;
mod taken_up;
mod ways;
mod witnesses;
