//! Blocks from real nodes: the program on one side, bitcoind or btcd on the other, used as a user would.

#[cfg(feature = "utreexo")]
mod bridges;
mod btcd;
mod follow;
#[cfg(feature = "utreexo")]
mod from_roots;
mod lines;
pub(crate) mod nodes;
#[cfg(feature = "utreexo")]
mod proofs;
mod relay;
mod serve;
#[cfg(feature = "utreexo")]
mod spent;

use apus_testkit::bitcoind::Bitcoind;

/// The option that connects to a node.
fn connect(node: &Bitcoind) -> String {
    format!("--connect 127.0.0.1:{}", node.p2p_port())
}
