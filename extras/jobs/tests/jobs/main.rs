//! Runs shared between machines, through a queue in memory.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

#[path = "../../../../crates/sync/tests/pipeline/harness.rs"]
#[allow(dead_code, reason = "the tests of the pipeline use all of it")]
mod world;

#[path = "../../../../crates/sync/tests/engines/harness.rs"]
#[allow(dead_code, reason = "the tests of engines use all of it")]
mod harness;

#[path = "../../../../crates/sync/tests/engines/bad_blocks.rs"]
mod bad_blocks;

#[path = "../../../proofs/tests/engines/roots.rs"]
#[allow(dead_code, reason = "the tests of proofs use all of it")]
mod roots;

mod memory_queue;
mod shared;
