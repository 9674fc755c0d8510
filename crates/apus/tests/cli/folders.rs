//! Folders for Bitcoin Core: what is asked for and cannot be, what is there and stays. What a real
//! node makes of them is in the tests of the hand-over.

use crate::desk::{Desk, REGTEST, fixtures};
use std::fs;
use std::os::unix::fs::symlink;

const RUN: &str = "sync --chain regtest --blocksdir blocks --hints msb.hints";

/// Runs, and sees to it that nothing at all is left behind.
#[track_caller]
fn fails_at_once(desk: &Desk, line: &str, code: i32, said: &[&str]) {
    let before = desk.names("");
    let ended = desk.apus(line).fails(code, said);
    assert_eq!(desk.names(""), before, "{ended}");
}

#[test]
fn what_cannot_be_is_told_first() {
    let desk = Desk::with(REGTEST);
    desk.write("file", b"mine");
    fs::create_dir(desk.path("full")).unwrap();
    desk.write("full/mine", b"precious");
    symlink("full", desk.path("link")).unwrap();
    for (more, code, said) in [
        ("--out chainstate:file", 1, &["file is a file: name a folder"][..]),
        ("--out chainstate:full", 1, &["full exists already", "--replace", "full.old"]),
        ("--out chainstate:link --replace", 1, &["link is a link"]),
        ("--out chainstate:file/cs", 3, &["file: this is no folder, so file cannot be made"]),
        ("--out chainstate:file/such/cs", 3, &["file: this is no folder, so file/such cannot"]),
        ("--out chainstate:no/cs --out snapshot:file/such/s", 3, &["file: this is no folder"]),
        ("--out chainstate:..", 1, &["is no name for a folder"]),
        ("--out chainstate:", 1, &["chainstate:DIR"]),
        ("--out datadir:full --prune", 1, &["full exists already", "remove it"]),
        ("--out datadir:new", 1, &["undo data", "--prune"]),
        ("--out datadir:a --out datadir:b --prune", 1, &["one data directory at a time"]),
        ("--out chainstate:cs --prune", 1, &["--prune is about --out datadir:DIR"]),
        ("--out snapshot:s --replace", 1, &["--replace is about --out chainstate:DIR"]),
        ("--out datadir:new --prune --replace", 1, &["--replace is about --out chainstate:DIR"]),
        ("--out chainstate:a --out snapshot:a", 1, &["a is named twice"]),
        ("--out chainstate:a --out snapshot:a.incomplete", 1, &["a.incomplete is named twice"]),
        ("--out chainstate:blocks --replace", 1, &["blocks is named twice"]),
        ("--out chainstate:a --out snapshot:a/s", 1, &["a/s is in a, which is written whole"]),
        ("--out datadir:a --prune --workdir a/b/w", 1, &["a/b/w is in a"]),
        ("--out chainstate:a --aggregate none", 1, &["without an aggregate"]),
    ] {
        fails_at_once(&desk, &format!("{RUN} {more}"), code, said);
    }
}

/// The folder is a sound node's, and none of its blocks would be by the rules of the main chain.
#[test]
fn a_nodes_folder_of_another_chain_is_judged_by_no_rule() {
    let desk = Desk::empty();
    let node = fixtures().join("regtest-315/regtest");
    desk.copy(&node, "rt");
    desk.copy(&node, "node/regtest");
    let said = |folder: &str| format!("{folder} holds blocks of the chain regtest");
    let named = ["a folder of the name regtest", "rename it to DIR/regtest", "give --datadir DIR"];
    for command in ["verify", "plan", "reindex --replace"] {
        for chain in ["", "--chain regtest", "--chain main", "--chain signet"] {
            let line = format!("{command} --datadir rt {chain}");
            fails_at_once(&desk, &line, 1, &[&[&said("rt")[..]], &named[..]].concat());
        }
        let line = format!("{command} --datadir node/regtest --chain main");
        let give = "give --datadir node/regtest --chain regtest";
        fails_at_once(&desk, &line, 1, &[&said("node/regtest"), give]);
    }
}

/// Not a block of it is lost.
#[test]
fn a_nodes_folder_without_its_key_is_told_as_what_it_is() {
    let desk = Desk::empty();
    desk.copy(&fixtures().join("regtest-315/regtest"), "node/regtest");
    let blocks = "node/regtest/blocks";
    assert_ne!(desk.read(&format!("{blocks}/xor.dat")), [0; 8]);
    desk.remove(&format!("{blocks}/xor.dat"));
    for line in ["verify", "reindex --replace", "plan"] {
        let line = format!("{line} --chain regtest --datadir node");
        let said = ["no block was found in ", "copy xor.dat together with the files"];
        let ended = desk.apus(&line).fails(4, &said);
        assert!(!ended.stderr.contains("-reindex"), "{ended}");
    }
}

#[test]
fn a_draft_that_no_run_made_is_left_alone() {
    let desk = Desk::with(REGTEST);
    fs::create_dir(desk.path("cs.incomplete")).unwrap();
    desk.write("cs.incomplete/mine", b"precious");
    let line = format!("{RUN} --out chainstate:cs");
    desk.apus(&line).fails(1, &["cs.incomplete exists already and is something else"]);
    assert_eq!(desk.read("cs.incomplete/mine"), b"precious");
}

#[test]
fn a_chainstate_beside_other_outputs() {
    let desk = Desk::with(REGTEST);
    fs::create_dir(desk.path("cs")).unwrap();
    let outputs = "--out chainstate:cs --out snapshot:utxo.dat --report run.json";
    let ended = desk.apus(&format!("{RUN} {outputs}")).succeeds();
    let ended = ended.says(&["Written: cs (", "20,326 coins read back by another implementation"]);
    assert!(!ended.stdout.contains("Next:"), "{ended}");
    let report = desk.json("run.json");
    let folder = &report["folders"][0];
    assert_eq!((&folder["kind"], &folder["path"]), (&"chainstate".into(), &"cs".into()));
    assert_eq!(folder["coins_read_back"], report["coins"]);
    assert_eq!(folder["coins_looked_up"], report["coins"]);
    assert_eq!(folder["moved_to"], serde_json::Value::Null);
    let tables: u64 = desk
        .names("cs")
        .iter()
        .map(|name| fs::metadata(desk.path("cs").join(name)).unwrap().len())
        .sum();
    assert_eq!(folder["chainstate_bytes"], tables);
    let phases = report["phases"].as_array().unwrap();
    let names: Vec<&str> = phases.iter().map(|phase| phase["phase"].as_str().unwrap()).collect();
    assert_eq!(names, ["headers", "hints", "blocks", "coins", "check-coins"]);
    // Again, in its place.
    let line = format!("{RUN} --out chainstate:cs --replace");
    let ended = desk.start(&line).wait().succeeds();
    let ended = ended.says(&["What was there before is in cs.old."]);
    assert!(!ended.stderr.contains("earlier ones"), "{ended}");
    assert_eq!(desk.names("cs.old"), desk.names("cs"));
    // And again: now there are two, which only the user removes.
    let ended = desk.start(&line).wait().succeeds();
    let ended = ended.says(&["What was there before is in cs.old-2."]);
    let said = ["of cs, 2 earlier ones are still there", "\n  cs.old (", "\n  cs.old-2 ("];
    assert!(said.iter().all(|words| ended.stderr.contains(words)), "{ended}");
}

#[test]
fn a_folder_for_a_node_is_made_with_its_chainstate() {
    let desk = Desk::with(REGTEST);
    // Refused before anything came into it: it is not left there.
    let damaged = "sync --chain regtest --blocksdir gone --hints msb.hints";
    fails_at_once(&desk, &format!("{damaged} --out chainstate:node/chainstate"), 3, &["gone"]);
    desk.apus(&format!("{RUN} --out chainstate:node/chainstate")).succeeds();
    assert_eq!(desk.names("node"), ["chainstate"]);
}

#[test]
fn a_pruned_data_directory_says_how_to_start_on_it() {
    let desk = Desk::with(REGTEST);
    let ended =
        desk.apus(&format!("{RUN} --out datadir:node --prune --report run.json")).succeeds();
    ended.says(&[
        "So were all 319 entries of the block index, as the chain has them, and where they say, 288 blocks",
        "Next: start a node on it:",
        "bitcoind -datadir=node -chain=regtest -prune=550",
    ]);
    let report = desk.json("run.json");
    let phases = report["phases"].as_array().unwrap();
    let names: Vec<&str> = phases.iter().map(|phase| phase["phase"].as_str().unwrap()).collect();
    let expected = [
        "headers",
        "hints",
        "spends",
        "blocks",
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
    assert_eq!(desk.names("node"), ["regtest"]);
    assert_eq!(desk.names("node/regtest"), ["blocks", "chainstate"]);
    let blocks = ["blk00000.dat", "index", "rev00000.dat", "xor.dat"];
    assert_eq!(desk.names("node/regtest/blocks"), blocks);
}

/// Between the folder's name and its run's end lie the hints and the report.
#[test]
fn a_second_run_cannot_take_what_the_first_is_not_done_with() {
    let desk = Desk::with(REGTEST);
    let line = |more: &str| format!("{RUN} --out chainstate:cs --replace {more}");
    // It ends there, since the report cannot be written. Until then it holds this lock.
    fs::create_dir(desk.path("run.json.incomplete")).unwrap();
    let ended = desk.start(&line("--workdir one --report run.json")).wait();
    ended.fails(3, &["run.json: Is a directory"]);
    let mark = fs::File::options().write(true).open(desk.path("cs/apus.incomplete")).unwrap();
    mark.try_lock().unwrap();
    let said = ["another run is writing cs: wait until it has ended"];
    desk.start(&line("--workdir two")).wait().fails(1, &said);
    assert!(desk.has("cs/CURRENT") && !desk.has("cs.incomplete"));
    // What it made is the next run's to take.
    drop(mark);
    desk.start(&line("--workdir three")).wait().succeeds();
    assert!(desk.has("cs/CURRENT") && !desk.has("cs/apus.incomplete") && !desk.has("cs.old"));
}

/// A desk with a node's data directory, which has a chainstate.
fn node() -> Desk {
    let desk = Desk::empty();
    fs::create_dir(desk.path("node")).unwrap();
    desk.copy(&fixtures().join("regtest-315/regtest"), "node/regtest");
    desk.write("msb.hints", &fs::read(fixtures().join("regtest-315/utxo.bip456.hints")).unwrap());
    for folder in ["", "blocks/"] {
        desk.write(&format!("node/regtest/{folder}.lock"), b"");
    }
    desk
}

const REINDEX: &str = "reindex --chain regtest --datadir node";

#[test]
fn a_reindex_that_cannot_be_is_told_first() {
    let desk = node();
    fails_at_once(
        &desk,
        "reindex --datadir node --chain main",
        1,
        &["no data directory", "node/blocks", "use --chain regtest"],
    );
    let with = |more: &str| format!("{REINDEX} {more}");
    fails_at_once(&desk, &with("--hints msb.hints"), 1, &["chainstate exists", "--replace"]);
    let both = "--hints msb.hints --assumevalid 0,hints --replace";
    fails_at_once(&desk, &with(both), 1, &["leave out one of them"]);
    fs::create_dir(desk.path("node/regtest/chainstate_snapshot")).unwrap();
    fails_at_once(&desk, &with("--replace"), 1, &["going on from a snapshot"]);
    fs::remove_dir(desk.path("node/regtest/chainstate_snapshot")).unwrap();
    fs::rename(desk.path("node/regtest/blocks/index"), desk.path("index")).unwrap();
    fails_at_once(&desk, &with("--replace"), 4, &["there is no block index", "-reindex"]);
}

#[test]
fn a_pruned_node_cannot_be_reindexed() {
    let desk = Desk::with(REGTEST);
    desk.apus(&format!("{RUN} --out datadir:node --prune")).succeeds();
    // As a node that was started on it leaves them.
    for folder in ["", "blocks/"] {
        desk.write(&format!("node/regtest/{folder}.lock"), b"");
    }
    let said = ["the node has pruned its blocks", "from peers by `apus sync --out datadir:DIR`"];
    fails_at_once(&desk, &format!("{REINDEX} --replace"), 1, &said);
    // Its first file has numbers as any other; a node that prunes removes it at some time.
    let blocks = desk.path("node/regtest/blocks");
    fs::rename(blocks.join("blk00000.dat"), blocks.join("blk00007.dat")).unwrap();
    let line = "sync --blocksdir node/regtest/blocks --out datadir:new";
    fails_at_once(&desk, line, 1, &said);
}

#[test]
fn a_reindex_puts_the_new_coins_where_the_old_ones_were() {
    let desk = node();
    fs::rename(desk.path("node/regtest/chainstate"), desk.path("fast")).unwrap();
    let old = desk.names("fast");
    symlink(desk.path("fast"), desk.path("node/regtest/chainstate")).unwrap();
    // A chain's own folder is understood, and the chain is that of its blocks.
    let line = "reindex --datadir node/regtest --replace --hints msb.hints";
    let ended = desk.start(line).wait().succeeds();
    ended.says(&[
        "Next: start the node, which goes on from block 315:",
        "-datadir=node -chain=regtest",
    ]);
    assert!(desk.path("node/regtest/chainstate").is_symlink());
    assert_eq!(desk.names("fast.old"), old);
    assert_ne!(desk.names("fast"), old);
}

#[test]
fn a_node_without_one_of_its_files_cannot_be_reindexed() {
    let desk = node();
    fs::rename(desk.path("node/regtest/blocks/blk00000.dat"), desk.path("gone")).unwrap();
    fs::write(desk.path("node/regtest/blocks/blk00001.dat"), b"").unwrap();
    let said = ["has no blk00000.dat", "restore the file"];
    fails_at_once(&desk, &format!("{REINDEX} --replace --hints msb.hints"), 4, &said);
}
