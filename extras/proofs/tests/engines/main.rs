//! Jobs that validate with proofs and that make proof files, and their stored progress under crashes and
//! failures.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

#[path = "../../../../crates/sync/tests/pipeline/harness.rs"]
#[allow(dead_code, reason = "the tests of the pipeline use all of it")]
mod world;

#[path = "../../../../crates/sync/tests/engines/harness.rs"]
#[allow(dead_code, reason = "the tests of engines use all of it")]
mod harness;

#[path = "../../../../crates/sync/tests/engines/bad_blocks.rs"]
#[allow(dead_code, reason = "the tests of engines use all of it")]
mod bad_blocks;

#[path = "../laws/utreexo/bridge.rs"]
#[allow(dead_code, reason = "the tests of the engine use all of it")]
mod bridge;

#[path = "../../../../crates/sync/tests/engines/crash_and_fault.rs"]
mod crash_and_fault;

mod bridges;
mod caches;
mod from_roots;
mod leaf_change;
mod overwritten;
mod proofs;
mod roots;
mod sets;
mod utreexo;
mod ways;
