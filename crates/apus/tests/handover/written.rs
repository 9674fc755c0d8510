//! Folders that `apus sync` makes, under a real node.

use crate::desk::REGTEST;
use crate::handover::judge::{PRUNE, lives_on, lives_on_pruned, passes_all_checks, starts};
use crate::lived::{Lived, fixture};
use apus_testkit::bitcoind::TxOutSetInfo;
use std::path::Path;

/// Each way to a set: under hints of both kinds, and by every rule.
pub(crate) const WAYS: [&str; 3] =
    ["--hints snapshot:node.dat", "--hints msb.hints", "--assumevalid 0"];

/// Nodes that keep their files in both forms, in one file or in many.
const NODES: [&[&str]; 3] =
    [&["-blocksxor=0", "-fastprune"], &["-blocksxor=1", "-fastprune"], &["-blocksxor=1"]];

pub(crate) fn sync(way: &str, out: &str) -> String {
    format!("sync --chain regtest --blocksdir node/regtest/blocks {way} --out {out}")
}

#[test]
fn a_node_lives_on_with_our_chainstate() {
    for ((seed, args), way) in (1..).zip(NODES).zip(WAYS) {
        let mut lived = Lived::new(seed, args);
        lived.desk.remove("node/regtest/chainstate");
        lived.desk.apus(&sync(way, "chainstate:node/regtest/chainstate")).succeeds();
        let datadir = lived.desk.path("node");
        lives_on(&mut lived, &datadir);
    }
}

#[test]
fn a_node_lives_on_in_our_data_directory() {
    for ((seed, args), engine) in (4..).zip(&NODES[..2]).zip(["utxo", "mergesync"]) {
        let mut lived = Lived::new(seed, args);
        let way = format!("--assumevalid 0 --engine {engine} --par 3 --report new.json");
        let line = sync(&way, "datadir:new");
        let said = lived.desk.apus(&line).succeeds();
        let folder = lived.desk.json("new.json")["folders"][0].clone();
        let height = lived.set.height;
        assert_eq!(folder["blocks_read_back"], height + 1);
        assert_eq!(folder["undo_read_back"], height);
        assert_eq!(folder["undo_at_end"], height);
        assert!(folder["index_entries_read_back"].as_u64() > Some(u64::from(height) + 1));
        assert!(said.stdout.contains("all intact."), "{said}");
        assert!(said.stdout.contains("bitcoind -datadir=new -chain=regtest"), "{said}");
        lived.desk.remove("node");
        let datadir = lived.desk.path("new");
        lives_on(&mut lived, &datadir);
    }
}

#[test]
fn a_pruned_node_lives_on_in_our_data_directory() {
    for ((seed, args), way) in (6..).zip(NODES).zip(WAYS) {
        let mut lived = Lived::new(seed, args);
        let line = format!("{} --prune", sync(way, "datadir:new"));
        let said = lived.desk.apus(&line).succeeds();
        assert!(said.stdout.contains("-prune=550"), "{said}");
        let datadir = lived.desk.path("new");
        lives_on_pruned(&mut lived, &datadir);
    }
}

/// The node's own set of its own data, down to the transaction of 20,001 outputs, whose names
/// have up to three bytes.
#[test]
fn the_fixture_is_handed_over_every_way() {
    let (desk, set) = fixture(REGTEST);
    for (number, way) in WAYS.into_iter().enumerate() {
        let chainstate = format!("chainstate{number}");
        desk.apus(&sync(way, &format!("chainstate:{chainstate}"))).succeeds();
        desk.apus(&format!("{} --prune", sync(way, &format!("datadir:pruned{number}")))).succeeds();
        starts_and_mines(&desk.path(&format!("pruned{number}")), &[PRUNE], &set);
    }
    desk.apus(&sync(WAYS[2], "datadir:whole")).succeeds();
    passes_all_checks(&desk.path("whole"), &set).stop();
    starts_and_mines(&desk.path("whole"), &[], &set);
    for number in 0..WAYS.len() {
        desk.remove("node/regtest/chainstate");
        desk.copy(&desk.path(&format!("chainstate{number}")), "node/regtest/chainstate");
        passes_all_checks(&desk.path("node"), &set).stop();
    }
    starts_and_mines(&desk.path("node"), &[], &set);
}

fn starts_and_mines(datadir: &Path, args: &[&str], set: &TxOutSetInfo) {
    let mut node = starts(datadir, args, set);
    let mined = node.mine(2);
    node.restart(args);
    assert_eq!((node.height(), node.best_block_hash()), (set.height + 2, mined[1]));
    node.stop();
}

/// A set of an earlier height: the node connects the rest by itself.
#[test]
fn a_chainstate_below_the_tip_is_gone_on_from() {
    // By every rule; under hints of that height; under hints of a lower one.
    for (seed, hints, stop) in [(10, None, 90), (11, Some(100), 100), (12, Some(80), 105)] {
        let mut lived = Lived::new(seed, &[]);
        lived.desk.remove("node/regtest/chainstate");
        let mut way = format!("--stopatheight {stop}");
        if let Some(height) = hints {
            lived.write_results_at(height);
            way.push_str(" --hints snapshot:node.dat");
        }
        let way = way.as_str();
        lived.desk.apus(&sync(way, "chainstate:node/regtest/chainstate")).succeeds();
        let node = starts(&lived.desk.path("node"), &[], &lived.set);
        assert!(node.log().contains("Loaded best chain"), "{}", node.log());
        node.stop();
        passes_all_checks(&lived.desk.path("node"), &lived.set).stop();
    }
}
