//! The set from one node, from several nodes, and from nodes that are killed.

use crate::lived::Lived;
use crate::peers::connect;
use crate::sandbox::Sandbox;
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{ChainBuilder, Shape};
use serde_json::json;
use std::time::Duration;

pub(crate) const SYNC: &str = "sync --chain regtest --workdir w.work";

pub(crate) fn expect_set(lived: &Lived) {
    assert!(lived.sandbox.read("set.dat") == lived.sandbox.read("node.dat"), "another set");
}

/// Waits until a node has a block.
pub(crate) fn wait_for(node: &Bitcoind, height: u32) {
    for _ in 0..1200 {
        if node.height() == height {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("the node is at {} and not at {height}", node.height());
}

/// A node that downloads the blocks of another node.
pub(crate) fn twin(of: &Bitcoind) -> Bitcoind {
    let node = Bitcoind::start(&[]);
    node.call("addnode", &[json!(format!("127.0.0.1:{}", of.p2p_port())), json!("onetry")]);
    wait_for(&node, of.height());
    node
}

#[test]
fn a_node_in_plaintext_gives_the_set_with_hints() {
    let (lived, node) = Lived::running(1, &["-v2transport=0"]);
    let line = format!(
        "{SYNC} {} --hints msb.hints --out snapshot:set.dat --report report.json",
        connect(&node)
    );
    lived.sandbox.apus(&line).succeeds();
    expect_set(&lived);
    let report = lived.sandbox.json("report.json");
    let (peers, peer) = (&report["peers"], &report["peers"]["connected"][0]);
    assert_eq!(peers["taken_bytes"], report["bytes"]);
    assert_eq!(
        (&peer["bytes_given"], &peer["blocks_given"]),
        (&report["bytes"], &report["blocks"])
    );
    assert_eq!((&peers["damaged_copies"], &peers["dropped_peers"]), (&json!(0), &json!(0)));
    assert_eq!((&peer["encrypted"], &peer["inbound"]), (&json!(false), &json!(false)));
    let address = format!("127.0.0.1:{}", node.p2p_port());
    assert_eq!(peer["address"], address.as_str());
    assert!(peer["user_agent"].as_str().unwrap().starts_with("/Satoshi:"), "{peer}");
}

#[test]
fn an_encrypted_node_gives_the_set_with_hints() {
    let (lived, node) = Lived::running(2, &["-v2transport=1"]);
    let line = format!(
        "{SYNC} {} --hints msb.hints --out snapshot:set.dat --report report.json",
        connect(&node)
    );
    lived.sandbox.apus(&line).succeeds();
    expect_set(&lived);
    let report = lived.sandbox.json("report.json");
    assert_eq!(report["peers"]["connected"][0]["encrypted"], json!(true));
}

/// The node speaks only plaintext, but Apus tries the encrypted transport first.
#[test]
fn a_sync_falls_back_to_plaintext() {
    let (lived, node) = Lived::running(3, &["-v2transport=0"]);
    let line = format!("{SYNC} {} --hints msb.hints --out snapshot:set.dat", connect(&node));
    lived.sandbox.apus(&format!("{line} --v2transport 1")).succeeds();
    expect_set(&lived);
}

#[test]
fn every_rule_and_script_is_checked_in_order() {
    let (lived, node) = Lived::running(4, &[]);
    let line = format!("{SYNC} {} --assumevalid 0 --out snapshot:set.dat", connect(&node));
    lived.sandbox.apus(&line).succeeds();
    expect_set(&lived);
}

/// The hints end below the tip. Apus applies the blocks up to there in any order, and those above in order, to the tip.
#[test]
fn a_sync_continues_past_the_hints_to_the_tip() {
    let (mut lived, node) = Lived::running(5, &[]);
    let height = lived.chain.height() - 7;
    let set = lived.sandbox.read("node.dat");
    lived.write_results_at(height);
    lived.sandbox.write("node.dat", &set);
    let line = format!("{SYNC} {} --hints msb.hints --out snapshot:set.dat", connect(&node));
    lived.sandbox.apus(&line).succeeds();
    expect_set(&lived);
}

/// A node starts on the data directory and continues.
#[test]
fn a_sync_without_blocks_makes_a_data_directory() {
    let (lived, node) = Lived::running(6, &[]);
    let line = format!("{SYNC} {} --out datadir:copy", connect(&node));
    lived.sandbox.apus(&line).succeeds();
    let copy = Bitcoind::start_in(&lived.sandbox.path("copy"), "regtest", &[]).unwrap();
    assert_eq!(copy.best_block_hash(), node.best_block_hash());
    assert_eq!(copy.txoutset_info(), lived.set);
    copy.mine(1);
}

/// The sync uses hints, keeps all blocks, and creates the folder around the data directory.
#[test]
fn a_sync_with_hints_makes_a_data_directory() {
    let (lived, node) = Lived::running(9, &[]);
    let line = format!("{SYNC} {} --hints msb.hints --out datadir:new/copy", connect(&node));
    let mut run = lived.sandbox.start(&line);
    run.until(|| lived.sandbox.has("new/copy.incomplete/regtest/blocks/blk00000.dat"));
    run.signal(&["KILL"]);
    run.wait();
    // A node started on the folder would start from scratch, and overwrite the blocks.
    let whole = !lived.sandbox.has("new/copy.incomplete");
    assert_eq!(lived.sandbox.has("new/copy"), whole);
    if !whole {
        let ended = lived.sandbox.start(&line).wait().succeeds();
        ended.says(&["Next: start a node on it:", "new/copy", "-chain=regtest"]);
    }
    assert!(
        !lived.sandbox.has("new/copy.incomplete") && !lived.sandbox.has("new/copy/apus.incomplete")
    );
    let copy = Bitcoind::start_in(&lived.sandbox.path("new/copy"), "regtest", &[]).unwrap();
    assert_eq!(copy.best_block_hash(), node.best_block_hash());
    assert_eq!(copy.txoutset_info(), lived.set);
    assert_eq!(copy.block_at(1), node.block_at(1));
    copy.mine(1);
}

/// A pruned data directory, made with hints.
#[test]
fn a_sync_without_blocks_makes_a_pruned_data_directory() {
    let (lived, node) = Lived::running(7, &[]);
    let line = format!("{SYNC} {} --hints msb.hints --prune --out datadir:copy", connect(&node));
    lived.sandbox.apus(&line).succeeds();
    let copy = Bitcoind::start_in(&lived.sandbox.path("copy"), "regtest", &["-prune=550"]).unwrap();
    assert_eq!(copy.best_block_hash(), node.best_block_hash());
    assert_eq!(copy.txoutset_info(), lived.set);
    copy.mine(1);
}

/// The sync uses eight nodes; three are killed during the sync.
#[test]
fn a_sync_survives_the_loss_of_some_nodes() {
    let (lived, first) = Lived::running(8, &[]);
    let mut nodes = vec![first];
    while nodes.len() < 8 {
        let next = twin(&nodes[0]);
        nodes.push(next);
    }
    let all: Vec<String> = nodes.iter().map(connect).collect();
    let line = format!(
        "{SYNC} {} --hints msb.hints --segment-bytes 500000 --out snapshot:set.dat",
        all.join(" ")
    );
    let mut run = lived.sandbox.start(&line);
    run.until(|| lived.sandbox.has("w.work/plan"));
    for node in nodes.drain(..3) {
        drop(node.kill());
    }
    run.wait().succeeds();
    expect_set(&lived);
}

/// The sync is killed several times, at different moments.
#[test]
fn a_killed_sync_resumes() {
    let (lived, node) = Lived::running(9, &[]);
    let line = format!("{SYNC} {} --hints msb.hints --out snapshot:set.dat", connect(&node));
    for wait in [5, 30, 80] {
        let run = lived.sandbox.start(&line);
        std::thread::sleep(Duration::from_millis(wait));
        run.signal(&["KILL"]);
        run.wait();
    }
    if !lived.sandbox.has("set.dat") {
        lived.sandbox.start(&line).wait().succeeds();
    }
    expect_set(&lived);
}

#[test]
fn a_missing_peer_is_reported() {
    let sandbox = Sandbox::empty();
    let line = format!("{SYNC} --connect 127.0.0.1:1 --patience 1 --out snapshot:set.dat");
    sandbox.start(&line).wait().fails(3, &["no peer sent anything for", "127.0.0.1:1"]);
}

/// The node is on another chain.
#[test]
fn a_peer_on_another_network_is_refused() {
    let node = Bitcoind::start(&[]);
    let sandbox = Sandbox::empty();
    let line = format!("sync --chain signet {} --patience 1 --out null", connect(&node));
    sandbox.start(&line).wait().fails(3, &["no peer sent anything for"]);
}

/// The sync uses hints and keeps all blocks, so the result is a complete node.
#[test]
fn a_sync_without_blocks_makes_a_complete_node() {
    let (mut lived, node) = Lived::running(10, &[]);
    let height = lived.chain.height() - 9;
    lived.write_results_at(height);
    std::fs::create_dir_all(lived.sandbox.path("copy/regtest")).unwrap();
    let line = format!(
        "{SYNC} {} --hints msb.hints --blocks keep --out chainstate:copy/regtest/chainstate",
        connect(&node)
    );
    for wait in [20, 60] {
        let run = lived.sandbox.start(&line);
        std::thread::sleep(Duration::from_millis(wait));
        run.signal(&["KILL"]);
        run.wait();
    }
    if !lived.sandbox.has("copy/regtest/chainstate/CURRENT") || lived.sandbox.has("w.work/lock") {
        lived.sandbox.start(&line).wait();
    }
    let copy = lived.sandbox.path("copy");
    let copy = Bitcoind::start_in(&copy, "regtest", &[]).unwrap();
    assert_eq!(copy.best_block_hash(), node.best_block_hash());
    assert_eq!(copy.txoutset_info(), lived.set);
    for height in 0..=node.height() {
        assert_eq!(copy.block_at(height), node.block_at(height));
    }
    copy.invalidate_block(lived.below_tip(3));
    copy.reconsider_block(lived.below_tip(3));
    assert_eq!(copy.best_block_hash(), node.best_block_hash());
    copy.mine(1);
}

#[test]
fn kept_blocks_need_a_place() {
    let sandbox = Sandbox::empty();
    sandbox
        .start(&format!("{SYNC} --blocks keep --out snapshot:set.dat"))
        .wait()
        .fails(1, &["--blocks keep", "--out chainstate:DIR"]);
    // No node would look for the blocks in these places.
    for (chain, place, wanted) in [
        ("regtest", "node/chainstate", "DIR/regtest/chainstate"),
        ("signet", "node/regtest/chainstate", "DIR/signet/chainstate"),
        ("main", "node/coins", "DIR/chainstate"),
    ] {
        let line = format!(
            "sync --chain {chain} --connect 127.0.0.1:1 --blocks keep --out chainstate:{place}"
        );
        sandbox.start(&line).wait().fails(1, &["a node looks for its coins", wanted]);
        assert!(!sandbox.has("node"));
    }
}

/// The node sends no witnesses of blocks with assumed-valid scripts, unless the user wants them checked.
#[test]
fn assumed_blocks_are_requested_without_witnesses() {
    let (home, sandbox, mut chain) = (Sandbox::empty(), Sandbox::empty(), ChainBuilder::new(8));
    chain.empty_blocks(98);
    chain.random_blocks(22, Shape::default());
    let assumed = chain.tip();
    // Core assumes no block valid with less than two weeks of work above it.
    chain.empty_blocks(2_050);
    let blocks = chain.blocks();
    let mut files = BlockFiles::regtest();
    files.blocks(&blocks);
    files.write(&home.path("blocks"));
    let believing = format!("--chain regtest --assumevalid {assumed}");
    let sync = format!("sync {believing}");
    home.apus(&format!(
        "{sync} --blocksdir blocks --out datadir:node --out snapshot:node.dat \
         --report node.json"
    ))
    .succeeds();
    assert_eq!(home.json("node.json")["verified"]["witnesses"], json!(true), "a node needs them");
    let node = Bitcoind::start_in(&home.path("node"), "regtest", &[]).unwrap();
    let wait = |name: &str, options: &str| {
        let line = format!("{sync} {} {options} --report {name}.json", connect(&node));
        sandbox.apus(&format!("{line} --out snapshot:{name}.dat")).succeeds();
        assert!(sandbox.read(&format!("{name}.dat")) == home.read("node.dat"), "another set");
        sandbox.json(&format!("{name}.json"))
    };
    let (all, fewer) = (wait("all", "--witnesses check"), wait("fewer", ""));
    let witnesses = blocks[1..=120].iter().map(|block| {
        let stripped = (block.weight().to_wu() - block.total_size() as u64) / 3;
        block.total_size() as u64 - stripped
    });
    let saved = all["bytes"].as_u64().unwrap() - fewer["bytes"].as_u64().unwrap();
    assert_eq!((saved, saved > 1_000), (witnesses.sum::<u64>(), true));
    let claims = |report: &serde_json::Value| report["verified"]["witnesses"].as_bool();
    assert_eq!((claims(&all), claims(&fewer)), (Some(true), Some(false)));
    assert!(
        fewer["assumed"].to_string().contains("120 blocks with assumed-valid scripts"),
        "{fewer}"
    );
    assert_eq!(fewer["peers"]["damaged_copies"], json!(0));
}
