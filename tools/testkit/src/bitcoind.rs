//! [`Bitcoind`]: a real node, for the tests that compare with one.
//!
//! A test that needs a node fails where none can be found: it never passes by skipping. Each node
//! listens on ports of its own and lives in a folder of its own; it is told to stop or, when
//! dropped, killed. Nothing here decides what is right: it only asks.

mod calls;
mod node;

pub use crate::rpc::RpcError;
pub use calls::{OP_TRUE_DESCRIPTOR, TxOutSetInfo};
pub use node::{Bitcoind, NodeFolder};

use crate::programs::find_program;
use crate::rpc::Rpc;
use std::path::PathBuf;
use std::time::Duration;

/// The bitcoind to run.
///
/// # Panics
/// When there is none, saying how to get one.
pub fn find() -> PathBuf {
    find_program("bitcoind")
}

/// How to reach a node on this machine. It is waited for longer than any call that a test makes should
/// take, on a slow and busy machine, and may answer many times as much as a whole block in hex.
pub(crate) fn rpc(port: u16, cookie: String) -> Rpc {
    Rpc { port, cookie, answer_wait: Duration::from_secs(300), answer_bytes_max: 256 << 20 }
}

#[cfg(test)]
mod tests;
