//! Blocks from a node of another make, which speaks in plaintext alone and hangs up on anything else.

use crate::lived::Lived;
use crate::peers::connect;
use crate::peers::nodes::{SYNC, expect_set};
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::btcd::Btcd;

/// The words that connect to a btcd.
fn connect_btcd(node: &Btcd) -> String {
    format!("--connect 127.0.0.1:{}", node.p2p_port())
}

/// A chain with a block of today at its end: without one btcd takes itself for a node that
/// is still behind, and answers no request for headers.
fn of_today(seed: u64) -> (Lived, Bitcoind) {
    let (lived, node) = Lived::running(seed, &["-maxtipage=2000000000"]);
    node.mine(1);
    lived.desk.remove("node.dat");
    node.dump_txoutset(&lived.desk.path("node.dat"));
    (lived, node)
}

#[test]
fn from_btcd_alone() {
    let (lived, node) = of_today(11);
    let btcd = Btcd::with_blocks_of(&node);
    drop(node);
    let line = format!("{SYNC} {} --hints msb.hints --out snapshot:set.dat", connect_btcd(&btcd));
    lived.desk.apus(&format!("{line} --v2transport 0")).succeeds();
    expect_set(&lived);
    // The encrypted transport is tried first.
    lived.desk.remove("set.dat");
    lived.desk.apus(&format!("{line} --v2transport 1")).succeeds();
    expect_set(&lived);
}

#[test]
fn from_btcd_and_bitcoind_together() {
    let (lived, node) = of_today(12);
    let btcd = Btcd::with_blocks_of(&node);
    let both = format!("{} {}", connect(&node), connect_btcd(&btcd));
    let line = format!("{SYNC} {both} --assumevalid 0 --out snapshot:set.dat");
    lived.desk.apus(&line).succeeds();
    expect_set(&lived);
    lived.desk.remove("set.dat");
    let line = format!("{SYNC} {both} --hints msb.hints --out snapshot:set.dat");
    lived.desk.apus(&line).succeeds();
    expect_set(&lived);
}
