//! Compares the chain manager and its engine with recorded streams and a real node.
//!
//! The interpreter runs scripts if this build has one. Otherwise blocks that should fail by a script, according
//! to their stream, fail by a list of hashes, so that everything else is still tested.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod durable;
mod node;
mod sandbox;
mod streams;
