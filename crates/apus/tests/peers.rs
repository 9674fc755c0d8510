//! Blocks from real nodes: the program on one side, bitcoind or btcd on the other, and what a user
//! does in between.

mod btcd;
mod follow;
mod lines;
pub(crate) mod nodes;
#[cfg(feature = "utreexo")]
mod proofs;
mod relay;
mod serve;

use apus_testkit::bitcoind::Bitcoind;

/// The words that connect to a node.
fn connect(node: &Bitcoind) -> String {
    format!("--connect 127.0.0.1:{}", node.p2p_port())
}
