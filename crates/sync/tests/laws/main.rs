//! The engines without files and threads: the same set for any order and division, and for an
//! invalid chain the same block for the same reason.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

#[path = "../pipeline/placed.rs"]
#[allow(dead_code, reason = "the tests of the pipeline use all of it")]
mod placed;

mod chainstate;
mod mergesync;
mod swiftsync;
