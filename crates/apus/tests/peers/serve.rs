//! Nodes that download blocks from the program.

use crate::lived::{Lived, grow};
use crate::peers::connect;
use crate::peers::nodes::wait_for;
use apus_testkit::bitcoind::Bitcoind;
use serde_json::json;
use std::net::TcpListener;
use std::time::Duration;

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The program follows a node; another node and another program download the blocks from it.
#[test]
fn another_node_and_another_program_get_blocks() {
    let (mut lived, node) = Lived::running(1, &["-maxtipage=2000000000"]);
    std::fs::create_dir_all(lived.sandbox.path("out/regtest")).unwrap();
    let port = free_port();
    let line = format!(
        "sync --chain regtest --workdir w.work {} --follow --listen 127.0.0.1:{port} \
         --blocks keep --out chainstate:out/regtest/chainstate",
        connect(&node)
    );
    let run = lived.sandbox.start(&line);
    for transport in ["-v2transport=0", "-v2transport=1"] {
        let behind = Bitcoind::start(&[transport]);
        for _ in 0..100 {
            behind.call("addnode", &[json!(format!("127.0.0.1:{port}")), json!("onetry")]);
            std::thread::sleep(Duration::from_millis(300));
            if behind.height() > 0 {
                break;
            }
        }
        wait_for(&behind, node.height());
        assert_eq!(behind.best_block_hash(), node.best_block_hash());
        assert_eq!(behind.txoutset_info(), lived.set);
    }
    let again = format!(
        "sync --chain regtest --workdir x.work --connect 127.0.0.1:{port} --hints msb.hints \
         --out snapshot:set.dat"
    );
    lived.sandbox.start(&again).wait().succeeds();
    assert!(lived.sandbox.read("set.dat") == lived.sandbox.read("node.dat"), "another set");
    // Apus announces new blocks to its peers.
    let behind = Bitcoind::start(&["-maxtipage=2000000000"]);
    behind.call("addnode", &[json!(format!("127.0.0.1:{port}")), json!("onetry")]);
    wait_for(&behind, node.height());
    grow(&mut lived.chain, &node, 2);
    wait_for(&behind, node.height());
    run.signal(&["INT"]);
    run.wait().succeeds();
}
