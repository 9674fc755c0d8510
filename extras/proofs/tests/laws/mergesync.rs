//! The verdict of the in-order engine, from the laws of mergesync.

#[path = "../../../../crates/sync/tests/laws/mergesync/counted.rs"]
#[allow(dead_code, reason = "the laws of mergesync use all of it")]
pub(crate) mod counted;
#[path = "../../../../crates/sync/tests/laws/mergesync/harness.rs"]
#[allow(dead_code, reason = "the laws of mergesync use all of it")]
pub(crate) mod harness;
