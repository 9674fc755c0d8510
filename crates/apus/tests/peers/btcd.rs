//! Blocks from btcd, which speaks only plaintext and closes the connection on anything else.

use crate::lived::Lived;
use crate::peers::connect;
use crate::peers::nodes::{SYNC, expect_set};
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::btcd::Btcd;

/// The option that connects to a btcd.
fn connect_btcd(node: &Btcd) -> String {
    format!("--connect 127.0.0.1:{}", node.p2p_port())
}

/// A chain that ends with a block of today. Without one, btcd considers itself behind, and answers no requests for
/// headers.
fn of_today(seed: u64) -> (Lived, Bitcoind) {
    let (lived, node) = Lived::running(seed, &["-maxtipage=2000000000"]);
    node.mine(1);
    lived.sandbox.remove("node.dat");
    node.dump_txoutset(&lived.sandbox.path("node.dat"));
    (lived, node)
}

#[test]
fn btcd_alone_gives_the_set() {
    let (lived, node) = of_today(11);
    let btcd = Btcd::with_blocks_of(&node);
    drop(node);
    let line = format!("{SYNC} {} --hints msb.hints --out snapshot:set.dat", connect_btcd(&btcd));
    lived.sandbox.apus(&format!("{line} --v2transport 0")).succeeds();
    expect_set(&lived);
    // Apus tries the encrypted transport first.
    lived.sandbox.remove("set.dat");
    lived.sandbox.apus(&format!("{line} --v2transport 1")).succeeds();
    expect_set(&lived);
}

#[test]
fn btcd_and_bitcoind_together_give_the_set() {
    let (lived, node) = of_today(12);
    let btcd = Btcd::with_blocks_of(&node);
    let both = format!("{} {}", connect(&node), connect_btcd(&btcd));
    let line = format!("{SYNC} {both} --assumevalid 0 --out snapshot:set.dat");
    lived.sandbox.apus(&line).succeeds();
    expect_set(&lived);
    lived.sandbox.remove("set.dat");
    let line = format!("{SYNC} {both} --hints msb.hints --out snapshot:set.dat");
    lived.sandbox.apus(&line).succeeds();
    expect_set(&lived);
}
