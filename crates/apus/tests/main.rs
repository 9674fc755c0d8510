//! The program from outside. One test program: each links all of the product, and has its waits to itself.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failure here is a failed test")]

#[cfg(feature = "utreexo")]
#[path = "../../../extras/proofs/tests/laws/utreexo/bridge.rs"]
#[allow(dead_code, reason = "the tests of the engine use all of it")]
mod bridge;
#[allow(dead_code, reason = "the tests of apus-bench use all of it")]
mod desk;
mod lived;
#[cfg(feature = "utreexo")]
mod proof_files;

mod cli;
#[cfg(feature = "cluster")]
mod cluster;
mod handover;
#[cfg(feature = "web")]
mod page;
mod peers;
mod submit;
