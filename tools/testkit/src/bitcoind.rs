//! [`Bitcoind`]: a real node, for tests that compare with one.
//!
//! A test that needs a node fails if none can be found: it never passes by skipping. Each node has its own
//! ports and its own folder; a test stops it, or dropping it kills it. This module never decides whether a
//! block is valid: it only asks the node.

mod calls;
mod node;

pub use crate::rpc::RpcError;
pub use calls::{OP_TRUE_DESCRIPTOR, TxOutSetInfo};
pub use node::{Bitcoind, NodeFolder};

use crate::programs::find_program;
use crate::rpc::Rpc;
use std::path::PathBuf;
use std::time::Duration;

/// Returns the bitcoind to run.
///
/// # Panics
/// If there is none; the message says how to get one.
pub fn find() -> PathBuf {
    find_program("bitcoind")
}

/// Returns the connection to a node on this machine. It waits longer than any call of a test should take on a
/// slow and busy machine, and accepts answers many times the size of a whole block in hex.
pub(crate) fn rpc(port: u16, cookie: String) -> Rpc {
    Rpc { port, cookie, answer_wait: Duration::from_secs(300), answer_bytes_max: 256 << 20 }
}

#[cfg(test)]
mod tests;
