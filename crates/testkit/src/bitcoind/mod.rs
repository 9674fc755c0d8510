//! [`Bitcoind`]: a real node, for the tests that compare with one.
//!
//! A test that needs a node fails where none can be found: it never passes by skipping. Each node
//! listens on ports of its own and lives in a folder of its own; it is told to stop or, when
//! dropped, killed. Nothing here decides what is right: it only asks.

mod calls;
mod find;
mod node;
pub(crate) mod rpc;

pub use calls::{OP_TRUE_DESCRIPTOR, TxOutSetInfo};
pub use find::find;
pub(crate) use find::find_program;
pub use node::{Bitcoind, NodeFolder};
pub(crate) use node::{PATIENCE, POLL_EVERY, free_ports};
pub use rpc::RpcError;

#[cfg(test)]
mod tests;
