//! The pipeline as a whole: real block files on one side, snapshots and hints on the other, and in
//! between every way in which a disk, a person or the data can get in its way.
//!
//! What is expected comes from the test machinery's own account of blocks and formats. One rule
//! stands above all tests: whatever happens, a file under its final name is complete and right.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(clippy::print_stdout, reason = "a failed test shows how far it came")]

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
