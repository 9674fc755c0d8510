//! Ranges of blocks in any order, from the roots before them: a valid chain passes, with the roots of another
//! library, and no false roots, proofs or coins make an invalid chain pass.

/// Runs the tests of mergesync against this engine.
#[allow(clippy::duplicate_mod, reason = "it uses the harness next to it")]
#[path = "../../../../crates/sync/tests/laws/mergesync/blame.rs"]
mod blame;

mod bridge;
pub(crate) mod harness;
mod lies;
mod peer;
mod start;
mod valid;
