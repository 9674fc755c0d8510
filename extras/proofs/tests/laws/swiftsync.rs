//! Chains from the laws of the engines in `apus-sync`.

#[path = "../../../../crates/sync/tests/laws/swiftsync/harness.rs"]
#[allow(dead_code, reason = "the laws of swiftsync use all of it")]
pub(crate) mod harness;
