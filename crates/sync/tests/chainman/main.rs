//! The chain manager with the engine behind it: recorded streams, and a real node beside it.
//!
//! Scripts are judged by the interpreter where this build has one. Without it, blocks that a
//! stream states to fail by a script are failed by name, so that everything else is tested anyway.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod desk;
mod durable;
mod node;
mod streams;
