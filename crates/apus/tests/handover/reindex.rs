//! `apus reindex` on nodes of every fate, under the same node afterwards.

use crate::desk::REGTEST;
use crate::handover::judge::{lives_on, passes_all_checks, starts};
use crate::handover::written::WAYS;
use crate::lived::{CHAIN, Lived, fixture, grow, submit};
use apus_testkit::bitcoind::{Bitcoind, find};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) const REINDEX: &str = "reindex --chain regtest --datadir node";

#[test]
fn a_stopped_node_lives_on() {
    let by = ["swiftsync: hints alone", "swiftsync: hints alone", "mergesync: blocks alone"];
    let args = [&["-fastprune"][..], &["-blocksxor=0"], &[]];
    for (((seed, args), way), by) in (20..).zip(args).zip(WAYS).zip(by) {
        let mut lived = Lived::new(seed, args);
        let said = lived.desk.start(&format!("{REINDEX} --replace {way}")).wait().succeeds();
        assert!(said.stdout.contains("bitcoind -datadir=node -chain=regtest"), "{said}");
        assert!(said.stdout.contains(by), "{said}");
        assert!(said.stdout.contains(&format!("block {}", lived.set.height)), "{said}");
        assert!(lived.desk.has("node/regtest/chainstate.old/CURRENT"));
        let datadir = lived.desk.path("node");
        lives_on(&mut lived, &datadir);
    }
}

#[test]
fn the_fixtures_node_lives_on() {
    let (desk, set) = fixture(REGTEST);
    for way in WAYS {
        desk.start(&format!("{REINDEX} --replace {way}")).wait().succeeds();
        passes_all_checks(&desk.path("node"), &set).stop();
    }
    for name in ["chainstate.old", "chainstate.old-2", "chainstate.old-3"] {
        assert!(desk.has(&format!("node/regtest/{name}/CURRENT")), "{name}");
    }
}

#[test]
fn a_node_without_a_chainstate() {
    for (seed, way) in [(23, WAYS[0]), (24, WAYS[2])] {
        let lived = Lived::new(seed, &[]);
        lived.desk.remove("node/regtest/chainstate");
        lived.desk.start(&format!("{REINDEX} {way}")).wait().succeeds();
        assert!(!lived.desk.has("node/regtest/chainstate.old"));
        passes_all_checks(&lived.desk.path("node"), &lived.set).stop();
    }
}

/// Its index and coins are as of the last time that it wrote them, and its files have more blocks.
#[test]
fn a_node_that_was_killed() {
    for (seed, way) in [(25, ""), (26, WAYS[2])] {
        let (mut lived, node) = Lived::running(seed, &["-fastprune"]);
        // This writes everything; what comes after stays in its memory.
        assert_eq!(node.txoutset_info(), lived.set);
        grow(&mut lived.chain, &node, 9);
        node.kill();
        let said =
            lived.desk.start(&format!("{REINDEX} --replace {way} --report report.json")).wait();
        said.succeeds();
        let reached = lived.desk.json("report.json")["stop_height"].as_u64().unwrap();
        assert!(reached >= u64::from(lived.set.height), "{reached}");
        let set = lived.set_at(u32::try_from(reached).unwrap());
        let node = starts(&lived.desk.path("node"), &[], &set);
        // What it lost comes again.
        for block in &lived.chain.blocks()[set.height as usize + 1..] {
            submit(&node, block);
        }
        node.stop();
        let set = lived.set_at(lived.chain.height());
        passes_all_checks(&lived.desk.path("node"), &set).stop();
    }
}

/// A node that never wrote its index has nothing to be reindexed by.
#[test]
fn a_node_that_was_killed_before_it_wrote_anything() {
    let (lived, node) = Lived::running(27, &[]);
    node.kill();
    // Its index knows no block, and the files alone don't say which blocks it connected.
    lived.desk.start(&format!("{REINDEX} --replace")).wait().fails(4, &["no block"]);
    assert!(!lived.desk.has("node/regtest/chainstate.old"));
    // Without an index, the files are enough for a data directory anew.
    let line = "sync --chain regtest --blocksdir node/regtest/blocks --out datadir:new";
    lived.desk.start(line).wait().succeeds();
    passes_all_checks(&lived.desk.path("new"), &lived.set).stop();
}

#[test]
fn a_node_that_shuns_its_tip() {
    for (seed, way) in [(28, ""), (29, "--assumevalid 0 --par 1")] {
        let (lived, node) = Lived::running(seed, &[]);
        let shunned = lived.below_tip(4);
        node.invalidate_block(shunned);
        let set = lived.set_at(lived.set.height - 5);
        assert_eq!(node.txoutset_info(), set);
        node.stop();
        lived.desk.start(&format!("{REINDEX} --replace {way}")).wait().succeeds();
        let node = starts(&lived.desk.path("node"), &[], &set);
        node.reconsider_block(shunned);
        assert_eq!(node.txoutset_info(), lived.set);
        node.stop();
        passes_all_checks(&lived.desk.path("node"), &lived.set).stop();
    }
}

/// Hints that end above what the node has connected are of no use, and that is said.
#[test]
fn hints_beyond_the_connected_blocks() {
    let (lived, node) = Lived::running(30, &[]);
    node.invalidate_block(lived.below_tip(4));
    node.stop();
    for way in &WAYS[..2] {
        let ended = lived.desk.start(&format!("{REINDEX} --replace {way}")).wait();
        assert!([Some(1), Some(4)].contains(&ended.code), "{ended}");
    }
    assert!(!lived.desk.has("node/regtest/chainstate.old"));
    let set = lived.set_at(lived.set.height - 5);
    passes_all_checks(&lived.desk.path("node"), &set).stop();
}

/// A node was told to index its blocks anew and to stop on the way: it has blocks of more work than
/// it has connected.
#[test]
fn a_node_with_better_blocks_that_it_has_not_connected() {
    for (seed, way) in [(31, ""), (32, "--assumevalid 0 --par 1")] {
        let lived = Lived::new(seed, &[]);
        let datadir = lived.desk.path("node");
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
        lived.desk.start(&line).wait().succeeds();
        let reached = lived.desk.json("report.json")["stop_height"].as_u64().unwrap();
        assert!((70..u64::from(lived.set.height)).contains(&reached), "{reached}");
        // It goes on by itself.
        let node = starts(&datadir, &[], &lived.set);
        node.stop();
        passes_all_checks(&datadir, &lived.set).stop();
    }
}

/// A branch of as much work as the chain, which came later: it was never connected.
#[test]
fn a_node_with_an_equal_branch() {
    let (mut lived, node) = Lived::running(33, &[]);
    let tip = lived.chain.tip();
    lived.chain.set_tip(lived.below_tip(2));
    grow(&mut lived.chain, &node, 2);
    let rival = lived.chain.tip();
    assert_eq!(node.best_block_hash(), tip);
    node.stop();
    lived.chain.set_tip(tip);
    lived.desk.start(&format!("{REINDEX} --replace")).wait().succeeds();
    passes_all_checks(&lived.desk.path("node"), &lived.set).stop();
    let node = Bitcoind::start_in(&lived.desk.path("node"), CHAIN, &[]).unwrap();
    assert_eq!(node.best_block_hash(), tip);
    // The rival gets a block on top.
    lived.chain.set_tip(rival);
    grow(&mut lived.chain, &node, 1);
    assert_eq!(node.best_block_hash(), lived.chain.tip());
}

/// What is put in the place of a node's coins has their owner and rights: a node that another user runs
/// could not open it otherwise.
#[test]
fn the_new_coins_are_whose_the_old_ones_were() {
    const NODE: &str = "node/regtest/chainstate";
    let lived = Lived::new(28, &[]);
    let (desk, old) = (&lived.desk, lived.desk.path(NODE));
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
        // Only the superuser gives files away; other users run this on files of their own.
        let _ = chown(&file, Some(65_534), Some(65_534));
    }
    let _ = chown(&old, Some(65_534), Some(65_534));
    let (folder, file) = (of(&old), of(&old.join("CURRENT")));
    assert_eq!((folder.2, file.2), (0o750, 0o640));
    desk.start(&format!("{REINDEX} --replace {}", WAYS[1])).wait().succeeds();
    assert!(desk.has(&format!("{NODE}.old/CURRENT")));
    assert_eq!(of(&old), folder);
    for name in files(&old) {
        assert_eq!(of(&name), file, "{}", name.display());
    }
    passes_all_checks(&desk.path("node"), &lived.set).stop();
}
