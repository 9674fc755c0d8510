//! What the engine says that takes one block after the other, as the laws of mergesync have it.

#[path = "../../../../crates/sync/tests/laws/mergesync/counted.rs"]
#[allow(dead_code, reason = "the laws of mergesync use all of it")]
pub(crate) mod counted;
#[path = "../../../../crates/sync/tests/laws/mergesync/harness.rs"]
#[allow(dead_code, reason = "the laws of mergesync use all of it")]
pub(crate) mod harness;
