//! Runs that machines share, from outside: a real NATS server, a coordinator and workers as processes on this machine.
//!
//! Whatever is killed and started again, a run comes to the very set of a node, or says what is wrong as a run on one
//! machine does.

#![cfg(feature = "cluster")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failure here is a failed test")]

mod altered;
mod audits;
#[path = "../../../sync/tests/laws/utreexo/bridge.rs"]
#[allow(dead_code, reason = "the tests of the engine use all of it")]
mod bridge;
mod chaos;
mod closing;
#[allow(dead_code, reason = "other tests of the program use the rest")]
#[path = "../cli/desk.rs"]
mod desk;
mod faults;
mod full;
mod joined;
mod kept;
mod leader;
mod lines;
mod lost;
mod nodes;
mod outsiders;
#[path = "../cli/proof_files.rs"]
mod proof_files;
mod proven;
mod read_once;
mod refusals;
mod roots;
#[cfg(feature = "s3")]
mod s3;
mod same_set;
mod world;
