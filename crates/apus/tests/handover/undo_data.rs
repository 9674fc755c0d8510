//! Hints with a node's undo data: every rule is checked under hints, and nothing is assumed.

use crate::handover::node_checks::{lives_on, passes_all_checks};
use crate::handover::written::sync;
use crate::lived::Lived;
use apus_testkit::rng::Rng;
use std::fs;

const FULL: &str = "--hints msb.hints --assumevalid 0 --report full.json";

/// Options of nodes for both forms of files.
const NODES: [&[&str]; 2] = [&["-blocksxor=0", "-fastprune"], &["-blocksxor=1"]];

#[test]
fn every_rule_is_checked_under_hints() {
    for (seed, args) in (90..).zip(NODES) {
        let lived = Lived::new(seed, args);
        let height = u64::from(lived.set.height);
        let said =
            lived.sandbox.apus_as_typed(&sync(FULL, "snapshot:full.dat --muhash")).succeeds();
        assert!(!said.stdout.contains("Assumed: scripts"), "{said}");
        assert!(said.stdout.contains("swiftsync: hints and undo data"), "{said}");
        let report = lived.sandbox.json("full.json");
        for (field, value) in
            [("engine", "swiftsync"), ("validation", "full"), ("aggregate", "coins")]
        {
            assert_eq!(report[field], value, "{field}");
        }
        assert_eq!(report["muhash"], lived.set.muhash);
        assert_eq!(
            (report["connected_from"].as_u64(), report["script_blocks"].as_u64()),
            (Some(1), Some(height))
        );
        for rule in ["scripts", "amounts", "order", "aggregate", "supply", "bip30"] {
            assert_eq!(report["verified"][rule], true, "{rule}");
        }
        // The set is the same as from a run with every rule.
        lived.sandbox.apus(&sync("--assumevalid 0", "snapshot:every-rule.dat")).succeeds();
        assert!(lived.sandbox.read("full.dat") == lived.sandbox.read("every-rule.dat"));
    }
}

/// The last blocks for a node are connected, on top of a set that was proven with undo data.
#[test]
fn a_run_connects_blocks_above_a_set_proven_with_undo_data() {
    let (mut lived, node) = Lived::running(92, &[]);
    crate::lived::grow(&mut lived.chain, &node, 250);
    lived.sandbox.write_results(&lived.chain);
    drop(node.stop());
    let line = format!("{} --prune", sync(FULL, "datadir:new"));
    lived.sandbox.apus_as_typed(&line).succeeds();
    let report = lived.sandbox.json("full.json");
    let height = u64::from(lived.chain.height());
    assert_eq!((&report["validation"], &report["aggregate"]), (&"full".into(), &"coins".into()));
    assert_eq!(report["script_blocks"].as_u64(), Some(height));
    assert_eq!(report["connected_from"].as_u64(), Some(1));
}

/// With hints, a data directory gets the node's undo data, which this run has proven: the same files as without hints. A
/// node can disconnect all of its blocks.
#[test]
fn a_node_continues_in_a_data_directory_with_copied_undo_data() {
    for (seed, args) in (97..).zip(NODES) {
        let mut lived = Lived::new(seed, args);
        let height = lived.set.height;
        // Hints to the tip; below the tip, so that blocks above are connected; and without an index.
        for (name, way, below) in [
            ("tip", "--hints snapshot:node.dat --assumevalid 0 --report full.json", 0),
            ("below", "--hints msb.hints --par 3", 7),
            ("none", "--hints msb.hints", 0),
        ] {
            lived.write_results_at(height - below);
            if name == "none" {
                lived.sandbox.remove("node/regtest/blocks/index");
            }
            let line = sync(way, &format!("datadir:{name}"));
            let said = lived.sandbox.apus_as_typed(&line).succeeds();
            let all = format!("{} blocks and their undo data, all intact.", height + 1);
            assert!(said.stdout.contains(&all), "{said}");
        }
        let report = lived.sandbox.json("full.json");
        assert_eq!(report["folders"][0]["undo_at_end"], height);
        assert!(report["phases"].as_array().unwrap().iter().any(|it| it["phase"] == "copy"));
        lived.sandbox.apus(&sync("--engine utxo", "datadir:order")).succeeds();
        let files = |name: &str| {
            let folder = format!("{name}/regtest/blocks");
            let names = lived.sandbox.names(&folder).into_iter().filter(|name| name != "index");
            let read = |name| (lived.sandbox.read(&format!("{folder}/{name}")), name);
            names.map(read).collect::<Vec<_>>()
        };
        for name in ["tip", "below", "none"] {
            assert!(files(name) == files("order"), "{name}");
            let deep = lived.chain.blocks()[4].block_hash();
            let node = passes_all_checks(&lived.sandbox.path(name), &lived.set);
            node.invalidate_block(deep);
            assert_eq!(node.txoutset_info(), lived.set_at(3));
            node.reconsider_block(deep);
            assert_eq!(node.txoutset_info(), lived.set);
            node.stop();
        }
        lived.sandbox.remove("node");
        let datadir = lived.sandbox.path("tip");
        lives_on(&mut lived, &datadir);
    }
}

/// Where nothing proves the undo data, or it is not there, a run writes no data directory with all blocks.
#[test]
fn a_data_directory_without_proven_undo_data_is_refused() {
    let lived = Lived::new(99, &["-blocksxor=0"]);
    let run = |more: &str| {
        let line = format!("{} {more}", sync("--hints msb.hints", "datadir:new"));
        lived.sandbox.apus_as_typed(&line)
    };
    let unproven = ["nothing proves it: leave out that option", "or add --prune"];
    for option in ["--assumevalid hints", "--aggregate muhash"] {
        run(option).fails(1, &unproven);
    }
    let missing = ["does not have for all of them: leave out --hints, or add --prune"];
    lived.sandbox.remove("node/regtest/blocks/index");
    lived.sandbox.remove("node/regtest/blocks/rev00000.dat");
    run("").fails(1, &missing);
    run("--assumevalid 0").fails(1, &missing);
    assert!(!lived.sandbox.has("new") && !lived.sandbox.has("new.incomplete"));
    lived.sandbox.apus(&sync("--hints msb.hints --prune", "datadir:new")).succeeds();
}

/// A flipped byte anywhere in the undo data: the run produces the same set, since no block of the chain is affected, or
/// reports the block with invalid undo data, or that the sums differ. It never trusts the node's files.
#[test]
fn flipped_bytes_of_undo_data_are_found() {
    let lived = Lived::new(93, &["-blocksxor=0", "-fastprune"]);
    let folder = lived.sandbox.path("node/regtest/blocks");
    let mut rng = Rng::new(7);
    let mut found = 0;
    for round in 0..24 {
        let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = files
            .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("rev"))
            .collect();
        files.sort();
        let file = &files[rng.index(files.len())];
        let before = fs::read(file).unwrap();
        // The part of the file that has data.
        let end = before.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        let mut bytes = before.clone();
        bytes[rng.index(end)] ^= 1 << rng.below(8);
        fs::write(file, &bytes).unwrap();
        let said = lived.sandbox.apus_as_typed(&sync(FULL, "snapshot:flip.dat --muhash"));
        fs::write(file, &before).unwrap();
        if said.code == Some(0) {
            assert_eq!(lived.sandbox.json("full.json")["muhash"], lived.set.muhash, "{round}");
            lived.sandbox.remove("flip.dat");
            lived.sandbox.remove("full.json");
        } else {
            let said = said.fails(4, &["undo data", "--engine mergesync"]);
            assert!(said.stderr.contains("rev0") || said.stderr.contains("block "), "{said}");
            found += 1;
        }
        if lived.sandbox.has("flip.dat.work") {
            lived.sandbox.remove("flip.dat.work");
        }
    }
    assert!(
        found > 3,
        "{found} of 24 bytes: few others are of blocks that the chain has, and that spend"
    );
}

/// Without an index, Apus matches undo data to blocks by the checksums, which cover the block.
#[test]
fn undo_data_is_found_without_an_index() {
    for (seed, args) in (94..).zip(NODES) {
        let lived = Lived::new(seed, args);
        lived.sandbox.remove("node/regtest/blocks/index");
        let said =
            lived.sandbox.apus_as_typed(&sync(FULL, "snapshot:full.dat --muhash")).succeeds();
        assert!(said.stdout.contains("swiftsync: hints and undo data"), "{said}");
        let report = lived.sandbox.json("full.json");
        assert_eq!(
            (&report["muhash"], &report["aggregate"]),
            (&lived.set.muhash.into(), &"coins".into())
        );
        let phases = report["phases"].as_array().unwrap();
        assert!(phases.iter().any(|phase| phase["phase"] == "undo"), "{phases:?}");
    }
}

/// Without undo data, assumed-valid blocks must anchor the hints. The same holds if some undo data is damaged and
/// there is no index.
#[test]
fn without_undo_data_hints_need_an_anchor() {
    let lived = Lived::new(96, &["-blocksxor=0"]);
    let refused = ["the hints cover block", "blocks folder with undo data"];
    lived.sandbox.remove("node/regtest/blocks/index");
    let rev = lived.sandbox.path("node/regtest/blocks/rev00000.dat");
    let mut bytes = fs::read(&rev).unwrap();
    // Flip a bit in the first record, after magic and size.
    bytes[8] ^= 1;
    fs::write(&rev, &bytes).unwrap();
    let said = lived.sandbox.apus_as_typed(&sync(FULL, "null")).fails(1, &refused);
    assert!(said.stderr.contains("rev00000.dat has no undo data for block 1"), "{said}");
    fs::remove_file(&rev).unwrap();
    lived.sandbox.apus_as_typed(&sync(FULL, "null")).fails(1, &refused);
}
