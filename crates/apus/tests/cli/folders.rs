//! Folders for Bitcoin Core: impossible requests, and existing folders that must stay. The hand-over tests start a real
//! node on the results.

use crate::sandbox::{REGTEST, Sandbox, fixtures};
use std::fs;
use std::os::unix::fs::symlink;

const RUN: &str = "sync --chain regtest --blocksdir blocks --hints msb.hints";

/// Runs a command line that must fail, and checks that it leaves no file behind.
#[track_caller]
fn fails_at_once(sandbox: &Sandbox, line: &str, code: i32, said: &[&str]) {
    let before = sandbox.names("");
    let ended = sandbox.apus(line).fails(code, said);
    assert_eq!(sandbox.names(""), before, "{ended}");
}

#[test]
fn impossible_requests_are_refused_first() {
    let sandbox = Sandbox::with(REGTEST);
    sandbox.write("file", b"mine");
    fs::create_dir(sandbox.path("full")).unwrap();
    sandbox.write("full/mine", b"precious");
    symlink("full", sandbox.path("link")).unwrap();
    for (more, code, said) in [
        ("--out chainstate:file", 1, &["file is a file: give a folder"][..]),
        ("--out chainstate:full", 1, &["full exists already", "--replace", "full.old"]),
        ("--out chainstate:link --replace", 1, &["link is a link"]),
        ("--out chainstate:file/cs", 3, &["file: not a folder, so Apus cannot create file"]),
        (
            "--out chainstate:file/such/cs",
            3,
            &["file: not a folder, so Apus cannot create file/such"],
        ),
        ("--out chainstate:no/cs --out snapshot:file/such/s", 3, &["file: not a folder"]),
        ("--out chainstate:..", 1, &["is not a valid name for a folder"]),
        ("--out chainstate:", 1, &["chainstate:DIR"]),
        ("--out datadir:full --prune", 1, &["full exists already", "remove that folder"]),
        ("--out datadir:new", 1, &["nothing proves it", "--prune"]),
        ("--out datadir:a --out datadir:b --prune", 1, &["one data directory at a time"]),
        ("--out chainstate:cs --prune", 1, &["--prune needs --out datadir:DIR"]),
        ("--out snapshot:s --replace", 1, &["--replace needs --out chainstate:DIR"]),
        ("--out datadir:new --prune --replace", 1, &["--replace needs --out chainstate:DIR"]),
        ("--out chainstate:a --out snapshot:a", 1, &["a is given twice"]),
        ("--out chainstate:a --out snapshot:a.incomplete", 1, &["a.incomplete is given twice"]),
        ("--out chainstate:blocks --replace", 1, &["blocks is given twice"]),
        (
            "--out chainstate:a --out snapshot:a/s",
            1,
            &["a/s is in a, which Apus writes as a whole"],
        ),
        ("--out datadir:a --prune --workdir a/b/w", 1, &["a/b/w is in a"]),
        ("--out chainstate:a --aggregate none", 1, &["without an aggregate"]),
    ] {
        fails_at_once(&sandbox, &format!("{RUN} {more}"), code, said);
    }
}

/// The node's folder is sound, but all its blocks would be invalid under the main chain's rules.
#[test]
fn a_nodes_folder_of_another_chain_is_refused_unchecked() {
    let sandbox = Sandbox::empty();
    let node = fixtures().join("regtest-315/regtest");
    sandbox.copy(&node, "rt");
    sandbox.copy(&node, "node/regtest");
    let said = |folder: &str| format!("{folder} holds blocks of the chain regtest");
    let named = ["a folder named regtest", "rename it to DIR/regtest", "use --datadir DIR"];
    for command in ["verify", "plan", "reindex --replace"] {
        for chain in ["", "--chain regtest", "--chain main", "--chain signet"] {
            let line = format!("{command} --datadir rt {chain}");
            fails_at_once(&sandbox, &line, 1, &[&[&said("rt")[..]], &named[..]].concat());
        }
        let line = format!("{command} --datadir node/regtest --chain main");
        let give = "use --datadir node/regtest --chain regtest";
        fails_at_once(&sandbox, &line, 1, &[&said("node/regtest"), give]);
    }
}

/// The error blames the key: the blocks are all there.
#[test]
fn a_missing_key_is_reported_as_such() {
    let sandbox = Sandbox::empty();
    sandbox.copy(&fixtures().join("regtest-315/regtest"), "node/regtest");
    let blocks = "node/regtest/blocks";
    assert_ne!(sandbox.read(&format!("{blocks}/xor.dat")), [0; 8]);
    sandbox.remove(&format!("{blocks}/xor.dat"));
    for line in ["verify", "reindex --replace", "plan"] {
        let line = format!("{line} --chain regtest --datadir node");
        let said = ["no block was found in ", "Copy xor.dat together with the files"];
        let ended = sandbox.apus(&line).fails(4, &said);
        assert!(!ended.stderr.contains("-reindex"), "{ended}");
    }
}

#[test]
fn a_draft_that_apus_did_not_make_stays_untouched() {
    let sandbox = Sandbox::with(REGTEST);
    fs::create_dir(sandbox.path("cs.incomplete")).unwrap();
    sandbox.write("cs.incomplete/mine", b"precious");
    let line = format!("{RUN} --out chainstate:cs");
    sandbox
        .apus(&line)
        .fails(1, &["cs.incomplete exists already and was not written by this sync"]);
    assert_eq!(sandbox.read("cs.incomplete/mine"), b"precious");
}

#[test]
fn a_chainstate_can_be_written_with_other_outputs() {
    let sandbox = Sandbox::with(REGTEST);
    fs::create_dir(sandbox.path("cs")).unwrap();
    let outputs = "--out chainstate:cs --out snapshot:utxo.dat --report run.json";
    let ended = sandbox.apus(&format!("{RUN} {outputs}")).succeeds();
    let ended = ended.says(&["Written: cs (", "read back all 20,326 coins and got the same hash"]);
    assert!(!ended.stdout.contains("Next:"), "{ended}");
    let report = sandbox.json("run.json");
    let folder = &report["folders"][0];
    assert_eq!((&folder["kind"], &folder["path"]), (&"chainstate".into(), &"cs".into()));
    assert_eq!(folder["coins_read_back"], report["coins"]);
    assert_eq!(folder["coins_looked_up"], report["coins"]);
    assert_eq!(folder["moved_to"], serde_json::Value::Null);
    let tables: u64 = sandbox
        .names("cs")
        .iter()
        .map(|name| fs::metadata(sandbox.path("cs").join(name)).unwrap().len())
        .sum();
    assert_eq!(folder["chainstate_bytes"], tables);
    let phases = report["phases"].as_array().unwrap();
    let names: Vec<&str> = phases.iter().map(|phase| phase["phase"].as_str().unwrap()).collect();
    assert_eq!(names, ["headers", "hints", "blocks", "coins", "check-coins"]);
    // Replace the chainstate.
    let line = format!("{RUN} --out chainstate:cs --replace");
    let ended = sandbox.start(&line).wait().succeeds();
    let ended = ended.says(&["The old folder is now cs.old."]);
    assert!(!ended.stderr.contains("earlier copies"), "{ended}");
    assert_eq!(sandbox.names("cs.old"), sandbox.names("cs"));
    // Replace it again: now there are two old ones, which only the user removes.
    let ended = sandbox.start(&line).wait().succeeds();
    let ended = ended.says(&["The old folder is now cs.old-2."]);
    let said = ["cs: 2 earlier copies are still there", "\n  cs.old (", "\n  cs.old-2 ("];
    assert!(said.iter().all(|words| ended.stderr.contains(words)), "{ended}");
}

#[test]
fn a_folder_for_a_node_is_made_with_its_chainstate() {
    let sandbox = Sandbox::with(REGTEST);
    // Apus refuses this while the folder is still empty, and removes the folder.
    let damaged = "sync --chain regtest --blocksdir gone --hints msb.hints";
    fails_at_once(&sandbox, &format!("{damaged} --out chainstate:node/chainstate"), 3, &["gone"]);
    sandbox.apus(&format!("{RUN} --out chainstate:node/chainstate")).succeeds();
    assert_eq!(sandbox.names("node"), ["chainstate"]);
}

#[test]
fn a_pruned_data_directory_says_how_to_start_on_it() {
    let sandbox = Sandbox::with(REGTEST);
    let ended =
        sandbox.apus(&format!("{RUN} --out datadir:node --prune --report run.json")).succeeds();
    ended.says(&[
        "It read back all 319 entries of the block index, 288 blocks and their undo data, all intact.",
        "Next: start a node on it:",
        "bitcoind -datadir=node -chain=regtest -prune=550",
    ]);
    let report = sandbox.json("run.json");
    let phases = report["phases"].as_array().unwrap();
    let names: Vec<&str> = phases.iter().map(|phase| phase["phase"].as_str().unwrap()).collect();
    let expected = [
        "headers",
        "hints",
        "spends",
        "blocks",
        "fill",
        "connect",
        "coins",
        "index",
        "check-coins",
        "check-blocks",
    ];
    assert_eq!(names, expected);
    let folder = &report["folders"][0];
    assert_eq!(folder["index_entries_read_back"], 316 + 3, "blocks, a file, the last, a flag");
    assert_eq!(
        (&folder["blocks_read_back"], &folder["undo_read_back"]),
        (&288.into(), &288.into())
    );
    assert_eq!(sandbox.names("node"), ["regtest"]);
    assert_eq!(sandbox.names("node/regtest"), ["blocks", "chainstate"]);
    let blocks = ["blk00000.dat", "index", "rev00000.dat", "xor.dat"];
    assert_eq!(sandbox.names("node/regtest/blocks"), blocks);
}

/// After the folder has its name, the run still writes the hints and the report.
#[test]
fn a_second_run_cannot_take_a_folder_that_the_first_still_writes() {
    let sandbox = Sandbox::with(REGTEST);
    let line = |more: &str| format!("{RUN} --out chainstate:cs --replace {more}");
    // The run ends here, because it cannot write the report. Until then it holds this lock.
    fs::create_dir(sandbox.path("run.json.incomplete")).unwrap();
    let ended = sandbox.start(&line("--workdir one --report run.json")).wait();
    ended.fails(3, &["run.json: Is a directory"]);
    let mark = fs::File::options().write(true).open(sandbox.path("cs/apus.incomplete")).unwrap();
    mark.try_lock().unwrap();
    let said = ["cs: another sync is writing this folder: wait until it ends"];
    sandbox.start(&line("--workdir two")).wait().fails(1, &said);
    assert!(sandbox.has("cs/CURRENT") && !sandbox.has("cs.incomplete"));
    // Once the lock is free, the next run may take over the folder.
    drop(mark);
    sandbox.start(&line("--workdir three")).wait().succeeds();
    assert!(
        sandbox.has("cs/CURRENT") && !sandbox.has("cs/apus.incomplete") && !sandbox.has("cs.old")
    );
}

/// A sandbox with a node's data directory, which has a chainstate.
fn node() -> Sandbox {
    let sandbox = Sandbox::empty();
    fs::create_dir(sandbox.path("node")).unwrap();
    sandbox.copy(&fixtures().join("regtest-315/regtest"), "node/regtest");
    sandbox
        .write("msb.hints", &fs::read(fixtures().join("regtest-315/utxo.bip456.hints")).unwrap());
    for folder in ["", "blocks/"] {
        sandbox.write(&format!("node/regtest/{folder}.lock"), b"");
    }
    sandbox
}

const REINDEX: &str = "reindex --chain regtest --datadir node";

#[test]
fn an_impossible_reindex_is_refused_first() {
    let sandbox = node();
    fails_at_once(
        &sandbox,
        "reindex --datadir node --chain main",
        1,
        &["not the data directory", "node/blocks", "use --chain regtest"],
    );
    let with = |more: &str| format!("{REINDEX} {more}");
    fails_at_once(&sandbox, &with("--hints msb.hints"), 1, &["chainstate exists", "--replace"]);
    let both = "--hints msb.hints --assumevalid 0,hints --replace";
    fails_at_once(&sandbox, &with(both), 1, &["use only one of the two"]);
    fs::create_dir(sandbox.path("node/regtest/chainstate_snapshot")).unwrap();
    fails_at_once(&sandbox, &with("--replace"), 1, &["not finished validating a snapshot"]);
    fs::remove_dir(sandbox.path("node/regtest/chainstate_snapshot")).unwrap();
    fs::rename(sandbox.path("node/regtest/blocks/index"), sandbox.path("index")).unwrap();
    fails_at_once(&sandbox, &with("--replace"), 4, &["there is no block index", "-reindex"]);
}

#[test]
fn a_pruned_node_cannot_be_reindexed() {
    let sandbox = Sandbox::with(REGTEST);
    sandbox.apus(&format!("{RUN} --out datadir:node --prune")).succeeds();
    // A node that ran on the folder leaves these lock files.
    for folder in ["", "blocks/"] {
        sandbox.write(&format!("node/regtest/{folder}.lock"), b"");
    }
    let said = ["the node has pruned its blocks", "from peers with `apus sync --out datadir:DIR`"];
    fails_at_once(&sandbox, &format!("{REINDEX} --replace"), 1, &said);
    // The first block file may have any number: a pruning node eventually removes blk00000.dat.
    let blocks = sandbox.path("node/regtest/blocks");
    fs::rename(blocks.join("blk00000.dat"), blocks.join("blk00007.dat")).unwrap();
    let line = "sync --blocksdir node/regtest/blocks --out datadir:new";
    fails_at_once(&sandbox, line, 1, &said);
}

#[test]
fn a_reindex_puts_the_new_coins_where_the_old_ones_were() {
    let sandbox = node();
    fs::rename(sandbox.path("node/regtest/chainstate"), sandbox.path("fast")).unwrap();
    let old = sandbox.names("fast");
    symlink(sandbox.path("fast"), sandbox.path("node/regtest/chainstate")).unwrap();
    // Apus also accepts a chain's folder in the data directory, and detects the chain from its blocks.
    let line = "reindex --datadir node/regtest --replace --hints msb.hints";
    let ended = sandbox.start(line).wait().succeeds();
    ended.says(&[
        "Next: start the node; it continues from block 315:",
        "-datadir=node -chain=regtest",
    ]);
    assert!(sandbox.path("node/regtest/chainstate").is_symlink());
    assert_eq!(sandbox.names("fast.old"), old);
    assert_ne!(sandbox.names("fast"), old);
}

#[test]
fn a_node_without_one_of_its_files_cannot_be_reindexed() {
    let sandbox = node();
    fs::rename(sandbox.path("node/regtest/blocks/blk00000.dat"), sandbox.path("gone")).unwrap();
    fs::write(sandbox.path("node/regtest/blocks/blk00001.dat"), b"").unwrap();
    let said = ["no blk00000.dat that reaches", "Restore the file"];
    fails_at_once(&sandbox, &format!("{REINDEX} --replace --hints msb.hints"), 4, &said);
}
