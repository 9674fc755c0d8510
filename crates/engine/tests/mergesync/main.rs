//! Blocks in any order against the engine that connects them one after the other: the same set, the same
//! undo data, and of invalid chains the same block for the same reason.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

#[path = "../swiftsync/harness.rs"]
#[allow(dead_code, reason = "the tests of SwiftSync use all of it")]
mod chain;

mod blame;
mod borders;
mod counted;
mod harness;
mod leaves;
mod repeats;
mod undo_data;
mod valid;
