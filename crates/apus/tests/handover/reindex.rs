//! `apus reindex` on nodes in every state; afterwards the same node starts on the result.

use crate::handover::node_checks::{lives_on, passes_all_checks, starts};
use crate::handover::written::WAYS;
use crate::lived::{CHAIN, Lived, fixture, grow, submit};
use crate::sandbox::REGTEST;
use apus_testkit::bitcoind::{Bitcoind, find};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) const REINDEX: &str = "reindex --chain regtest --datadir node";

#[test]
fn a_stopped_node_continues() {
    let by = ["swiftsync: hints only", "swiftsync: hints only", "mergesync: blocks only"];
    let args = [&["-fastprune"][..], &["-blocksxor=0"], &[]];
    for (((seed, args), way), by) in (20..).zip(args).zip(WAYS).zip(by) {
        let mut lived = Lived::new(seed, args);
        let said = lived.sandbox.start(&format!("{REINDEX} --replace {way}")).wait().succeeds();
        assert!(said.stdout.contains("bitcoind -datadir=node -chain=regtest"), "{said}");
        assert!(said.stdout.contains(by), "{said}");
        assert!(said.stdout.contains(&format!("block {}", lived.set.height)), "{said}");
        assert!(lived.sandbox.has("node/regtest/chainstate.old/CURRENT"));
        let datadir = lived.sandbox.path("node");
        lives_on(&mut lived, &datadir);
    }
}

#[test]
fn the_fixtures_node_continues() {
    let (sandbox, set) = fixture(REGTEST);
    for way in WAYS {
        sandbox.start(&format!("{REINDEX} --replace {way}")).wait().succeeds();
        passes_all_checks(&sandbox.path("node"), &set).stop();
    }
    for name in ["chainstate.old", "chainstate.old-2", "chainstate.old-3"] {
        assert!(sandbox.has(&format!("node/regtest/{name}/CURRENT")), "{name}");
    }
}

#[test]
fn a_node_without_a_chainstate_gets_one() {
    for (seed, way) in [(23, WAYS[0]), (24, WAYS[2])] {
        let lived = Lived::new(seed, &[]);
        lived.sandbox.remove("node/regtest/chainstate");
        lived.sandbox.start(&format!("{REINDEX} {way}")).wait().succeeds();
        assert!(!lived.sandbox.has("node/regtest/chainstate.old"));
        passes_all_checks(&lived.sandbox.path("node"), &lived.set).stop();
    }
}

/// The node's index and coins are as old as its last write, but its files have more blocks.
#[test]
fn a_killed_node_continues() {
    for (seed, way) in [(25, ""), (26, WAYS[2])] {
        let (mut lived, node) = Lived::running(seed, &["-fastprune"]);
        // This writes everything to disk; later blocks stay in the node's memory.
        assert_eq!(node.txoutset_info(), lived.set);
        grow(&mut lived.chain, &node, 9);
        node.kill();
        let said =
            lived.sandbox.start(&format!("{REINDEX} --replace {way} --report report.json")).wait();
        said.succeeds();
        let reached = lived.sandbox.json("report.json")["stop_height"].as_u64().unwrap();
        assert!(reached >= u64::from(lived.set.height), "{reached}");
        let set = lived.set_at(u32::try_from(reached).unwrap());
        let node = starts(&lived.sandbox.path("node"), &[], &set);
        // Submit the blocks that the node lost.
        for block in &lived.chain.blocks()[set.height as usize + 1..] {
            submit(&node, block);
        }
        node.stop();
        let set = lived.set_at(lived.chain.height());
        passes_all_checks(&lived.sandbox.path("node"), &set).stop();
    }
}

/// A node that never wrote its index cannot be reindexed.
#[test]
fn a_node_killed_before_its_first_write_is_refused() {
    let (lived, node) = Lived::running(27, &[]);
    node.kill();
    // Its index has no block, and the files alone do not show which blocks it connected.
    lived.sandbox.start(&format!("{REINDEX} --replace")).wait().fails(4, &["no connected block"]);
    assert!(!lived.sandbox.has("node/regtest/chainstate.old"));
    // Without an index, the files are enough for a new data directory.
    let line = "sync --chain regtest --blocksdir node/regtest/blocks --out datadir:new";
    lived.sandbox.start(line).wait().succeeds();
    passes_all_checks(&lived.sandbox.path("new"), &lived.set).stop();
}

#[test]
fn a_node_with_an_invalidated_tip_continues() {
    for (seed, way) in [(28, ""), (29, "--assumevalid 0 --par 1")] {
        let (lived, node) = Lived::running(seed, &[]);
        let shunned = lived.below_tip(4);
        node.invalidate_block(shunned);
        let set = lived.set_at(lived.set.height - 5);
        assert_eq!(node.txoutset_info(), set);
        node.stop();
        lived.sandbox.start(&format!("{REINDEX} --replace {way}")).wait().succeeds();
        let node = starts(&lived.sandbox.path("node"), &[], &set);
        node.reconsider_block(shunned);
        assert_eq!(node.txoutset_info(), lived.set);
        node.stop();
        passes_all_checks(&lived.sandbox.path("node"), &lived.set).stop();
    }
}

/// Hints that end above the node's connected blocks are an error.
#[test]
fn hints_beyond_the_connected_blocks_are_refused() {
    let (lived, node) = Lived::running(30, &[]);
    node.invalidate_block(lived.below_tip(4));
    node.stop();
    for way in &WAYS[..2] {
        let ended = lived.sandbox.start(&format!("{REINDEX} --replace {way}")).wait();
        assert!([Some(1), Some(4)].contains(&ended.code), "{ended}");
    }
    assert!(!lived.sandbox.has("node/regtest/chainstate.old"));
    let set = lived.set_at(lived.set.height - 5);
    passes_all_checks(&lived.sandbox.path("node"), &set).stop();
}

/// A node was stopped while it reindexed its blocks, so it has blocks with more work than those it has connected.
#[test]
fn a_node_connects_better_blocks_by_itself() {
    for (seed, way) in [(31, ""), (32, "--assumevalid 0 --par 1")] {
        let lived = Lived::new(seed, &[]);
        let datadir = lived.sandbox.path("node");
        let mut process = Command::new(find())
            .arg(format!("-datadir={}", datadir.display()))
            .args(["-chain=regtest", "-reindex", "-stopatheight=70", "-connect=0", "-listen=0"])
            .args(["-server=0", "-printtoconsole=0", "-daemon=0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        assert!(process.wait().unwrap().success());
        let line = format!("{REINDEX} --replace {way} --report report.json");
        lived.sandbox.start(&line).wait().succeeds();
        let reached = lived.sandbox.json("report.json")["stop_height"].as_u64().unwrap();
        assert!((70..u64::from(lived.set.height)).contains(&reached), "{reached}");
        // The node connects the rest by itself.
        let node = starts(&datadir, &[], &lived.set);
        node.stop();
        passes_all_checks(&datadir, &lived.set).stop();
    }
}

/// The branch has as much work as the chain, but arrived later and was never connected.
#[test]
fn a_node_with_an_equal_branch_keeps_its_tip() {
    let (mut lived, node) = Lived::running(33, &[]);
    let tip = lived.chain.tip();
    lived.chain.set_tip(lived.below_tip(2));
    grow(&mut lived.chain, &node, 2);
    let rival = lived.chain.tip();
    assert_eq!(node.best_block_hash(), tip);
    node.stop();
    lived.chain.set_tip(tip);
    lived.sandbox.start(&format!("{REINDEX} --replace")).wait().succeeds();
    passes_all_checks(&lived.sandbox.path("node"), &lived.set).stop();
    let node = Bitcoind::start_in(&lived.sandbox.path("node"), CHAIN, &[]).unwrap();
    assert_eq!(node.best_block_hash(), tip);
    // Add a block to the other branch.
    lived.chain.set_tip(rival);
    grow(&mut lived.chain, &node, 1);
    assert_eq!(node.best_block_hash(), lived.chain.tip());
}

/// New coins have the owner and permissions of the old ones; a node of another user could not open them otherwise.
#[test]
fn the_new_coins_have_the_owner_of_the_old_ones() {
    const NODE: &str = "node/regtest/chainstate";
    let lived = Lived::new(28, &[]);
    let (sandbox, old) = (&lived.sandbox, lived.sandbox.path(NODE));
    let of = |path: &Path| {
        let there = fs::metadata(path).unwrap();
        (there.uid(), there.gid(), there.mode() & 0o777)
    };
    let files = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    fs::set_permissions(&old, Permissions::from_mode(0o750)).unwrap();
    for file in files(&old) {
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        // Only root can change owners; other users run this on their own files.
        let _ = chown(&file, Some(65_534), Some(65_534));
    }
    let _ = chown(&old, Some(65_534), Some(65_534));
    let (folder, file) = (of(&old), of(&old.join("CURRENT")));
    assert_eq!((folder.2, file.2), (0o750, 0o640));
    sandbox.start(&format!("{REINDEX} --replace {}", WAYS[1])).wait().succeeds();
    assert!(sandbox.has(&format!("{NODE}.old/CURRENT")));
    assert_eq!(of(&old), folder);
    for name in files(&old) {
        assert_eq!(of(&name), file, "{}", name.display());
    }
    passes_all_checks(&sandbox.path("node"), &lived.set).stop();
}
