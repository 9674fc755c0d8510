//! Tests the whole pipeline, from real block files to snapshots and hints, with every way in which a disk, a
//! person or the data can cause a fault.
//!
//! The expected results come from the test kit's own model of blocks and formats. One rule holds in all tests:
//! whatever happens, a file under its final name is complete and right.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(clippy::print_stdout, reason = "a failed test shows how far it got")]

mod bad_blocks;
mod bad_hints;
mod crash;
mod damage;
mod fault;
mod fixtures;
mod harness;
mod index;
mod interrupt;
mod layouts;
mod refusals;
mod results;
mod secret;
