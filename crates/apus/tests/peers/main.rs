//! Blocks from real nodes: the program on one side, bitcoind or btcd on the other, and what a user
//! does in between.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failure here is a failed test")]

mod btcd;
#[allow(dead_code, reason = "other tests of the program use the rest")]
#[path = "../cli/desk.rs"]
mod desk;
mod follow;
mod lines;
#[allow(dead_code, reason = "other tests of the program use the rest")]
#[path = "../handover/lived.rs"]
mod lived;
mod nodes;
mod proofs;
mod serve;

use apus_testkit::bitcoind::Bitcoind;

/// The words that connect to a node.
fn connect(node: &Bitcoind) -> String {
    format!("--connect 127.0.0.1:{}", node.p2p_port())
}
