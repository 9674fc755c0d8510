//! Ranges of blocks in any order from the roots before them: the chain is valid, to the roots of another library; and
//! nothing that is told of roots, proofs and coins makes a chain pass that should not.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

#[path = "../swiftsync/harness.rs"]
#[allow(dead_code, reason = "the tests of SwiftSync use all of it")]
mod chain;

#[path = "../mergesync/harness.rs"]
#[allow(dead_code, reason = "the tests of mergesync use all of it")]
mod others;

#[path = "../mergesync/counted.rs"]
#[allow(dead_code, reason = "the tests of mergesync use all of it")]
mod counted;

/// What the tests of mergesync ask of a chain is asked of this engine.
#[path = "../mergesync/blame.rs"]
mod blame;

mod bridge;
mod harness;
mod lies;
mod peer;
mod valid;
