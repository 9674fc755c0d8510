//! Ranges of blocks in any order from the roots before them: the chain is valid, to the roots of another library; and
//! nothing that is told of roots, proofs and coins makes a chain pass that should not.

/// What the tests of mergesync ask of a chain is asked of this engine.
#[allow(clippy::duplicate_mod, reason = "it asks the harness beside it")]
#[path = "../../../../crates/sync/tests/laws/mergesync/blame.rs"]
mod blame;

mod bridge;
pub(crate) mod harness;
mod lies;
mod peer;
mod valid;
