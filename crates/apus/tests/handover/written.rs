//! Folders that `apus sync` writes, with a real node on them.

use crate::handover::node_checks::{PRUNE, lives_on, lives_on_pruned, passes_all_checks, starts};
use crate::lived::{Lived, fixture};
use crate::sandbox::REGTEST;
use apus_testkit::bitcoind::TxOutSetInfo;
use std::path::Path;

/// Options for each method: with hints of both kinds, and with every rule.
pub(crate) const WAYS: [&str; 3] =
    ["--hints snapshot:node.dat", "--hints msb.hints", "--assumevalid 0"];

/// Options of nodes for both forms of files, in one file or in many.
const NODES: [&[&str]; 3] =
    [&["-blocksxor=0", "-fastprune"], &["-blocksxor=1", "-fastprune"], &["-blocksxor=1"]];

pub(crate) fn sync(way: &str, out: &str) -> String {
    format!("sync --chain regtest --blocksdir node/regtest/blocks {way} --out {out}")
}

#[test]
fn a_node_continues_on_our_chainstate() {
    for ((seed, args), way) in (1..).zip(NODES).zip(WAYS) {
        let mut lived = Lived::new(seed, args);
        lived.sandbox.remove("node/regtest/chainstate");
        lived.sandbox.apus(&sync(way, "chainstate:node/regtest/chainstate")).succeeds();
        let datadir = lived.sandbox.path("node");
        lives_on(&mut lived, &datadir);
    }
}

#[test]
fn a_node_continues_in_our_data_directory() {
    for ((seed, args), engine) in (4..).zip(&NODES[..2]).zip(["utxo", "mergesync"]) {
        let mut lived = Lived::new(seed, args);
        let way = format!("--assumevalid 0 --engine {engine} --par 3 --report new.json");
        let line = sync(&way, "datadir:new");
        let said = lived.sandbox.apus(&line).succeeds();
        let folder = lived.sandbox.json("new.json")["folders"][0].clone();
        let height = lived.set.height;
        assert_eq!(folder["blocks_read_back"], height + 1);
        assert_eq!(folder["undo_read_back"], height);
        assert_eq!(folder["undo_at_end"], height);
        assert!(folder["index_entries_read_back"].as_u64() > Some(u64::from(height) + 1));
        assert!(said.stdout.contains("all intact."), "{said}");
        assert!(said.stdout.contains("bitcoind -datadir=new -chain=regtest"), "{said}");
        lived.sandbox.remove("node");
        let datadir = lived.sandbox.path("new");
        lives_on(&mut lived, &datadir);
    }
}

#[test]
fn a_pruned_node_continues_in_our_data_directory() {
    for ((seed, args), way) in (6..).zip(NODES).zip(WAYS) {
        let mut lived = Lived::new(seed, args);
        let line = format!("{} --prune", sync(way, "datadir:new"));
        let said = lived.sandbox.apus(&line).succeeds();
        assert!(said.stdout.contains("-prune=550"), "{said}");
        let datadir = lived.sandbox.path("new");
        lives_on_pruned(&mut lived, &datadir);
    }
}

/// The node's set from the node's data, including the transaction with 20,001 outputs, whose output numbers take up to
/// three bytes.
#[test]
fn the_fixture_is_handed_over_by_every_method() {
    let (sandbox, set) = fixture(REGTEST);
    for (number, way) in WAYS.into_iter().enumerate() {
        let chainstate = format!("chainstate{number}");
        sandbox.apus(&sync(way, &format!("chainstate:{chainstate}"))).succeeds();
        sandbox
            .apus(&format!("{} --prune", sync(way, &format!("datadir:pruned{number}"))))
            .succeeds();
        starts_and_mines(&sandbox.path(&format!("pruned{number}")), &[PRUNE], &set);
    }
    sandbox.apus(&sync(WAYS[2], "datadir:whole")).succeeds();
    passes_all_checks(&sandbox.path("whole"), &set).stop();
    starts_and_mines(&sandbox.path("whole"), &[], &set);
    for number in 0..WAYS.len() {
        sandbox.remove("node/regtest/chainstate");
        sandbox.copy(&sandbox.path(&format!("chainstate{number}")), "node/regtest/chainstate");
        passes_all_checks(&sandbox.path("node"), &set).stop();
    }
    starts_and_mines(&sandbox.path("node"), &[], &set);
}

fn starts_and_mines(datadir: &Path, args: &[&str], set: &TxOutSetInfo) {
    let mut node = starts(datadir, args, set);
    let mined = node.mine(2);
    node.restart(args);
    assert_eq!((node.height(), node.best_block_hash()), (set.height + 2, mined[1]));
    node.stop();
}

/// The set of an earlier height: the node connects the rest by itself.
#[test]
fn a_node_continues_from_a_chainstate_below_the_tip() {
    // With every rule; with hints for that height; with hints for a lower one.
    for (seed, hints, stop) in [(10, None, 90), (11, Some(100), 100), (12, Some(80), 105)] {
        let mut lived = Lived::new(seed, &[]);
        lived.sandbox.remove("node/regtest/chainstate");
        let mut way = format!("--stopatheight {stop}");
        if let Some(height) = hints {
            lived.write_results_at(height);
            way.push_str(" --hints snapshot:node.dat");
        }
        let way = way.as_str();
        lived.sandbox.apus(&sync(way, "chainstate:node/regtest/chainstate")).succeeds();
        let node = starts(&lived.sandbox.path("node"), &[], &lived.set);
        assert!(node.log().contains("Loaded best chain"), "{}", node.log());
        node.stop();
        passes_all_checks(&lived.sandbox.path("node"), &lived.set).stop();
    }
}
