//! End-to-end tests of the program, in a single test binary: each further one would link the whole product again, and
//! would wait for the others.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failure here is a failed test")]

#[cfg(feature = "utreexo")]
#[path = "../../../extras/proofs/tests/laws/utreexo/bridge.rs"]
#[allow(dead_code, reason = "the tests of the engine use all of it")]
mod bridge;
mod lived;
#[cfg(feature = "utreexo")]
mod proof_files;
#[allow(dead_code, reason = "the tests of apus-bench use all of it")]
mod sandbox;

mod cli;
#[cfg(feature = "cluster")]
mod cluster;
mod handover;
mod indexes;
#[cfg(feature = "web")]
mod page;
mod peers;
mod submit;
