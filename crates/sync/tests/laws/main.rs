//! The engines without files and threads: the same set whatever the order and the cut, and the same block for the
//! same reason where a chain is invalid.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

#[path = "../pipeline/placed.rs"]
#[allow(dead_code, reason = "the tests of the pipeline use all of it")]
mod placed;

mod chainstate;
mod mergesync;
mod swiftsync;
