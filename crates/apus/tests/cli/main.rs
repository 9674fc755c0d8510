//! The program from outside, as people run it: command lines in, files, words and exit codes out.
//!
//! Every run through [`desk::Desk::apus`] is held to what the program promises whatever happens:
//! no file of the user's changes, a failure leaves nothing under an output's name, success leaves
//! nothing but outputs, and there is never a panic.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failure here is a failed test")]

#[path = "../../../sync/tests/laws/utreexo/bridge.rs"]
#[allow(dead_code, reason = "the tests of the engine use all of it")]
mod bridge;

mod anchored;
mod bad_blocks;
mod bad_hints;
mod bad_usage;
mod bitcoind;
mod caches;
#[cfg(feature = "remote-coins")]
mod coins;
mod convert;
#[allow(dead_code, reason = "other tests use the rest")]
mod desk;
mod few_files;
mod fixtures;
mod folders;
mod full_disk;
mod help;
mod memory;
mod pipes;
mod plan;
mod plot;
mod proof_files;
mod proofs;
mod resume;
mod shared;
mod short;
mod snapshot;
mod utreexo;
mod workdir;
