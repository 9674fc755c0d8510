//! `apus snapshot export`, and tables as outputs of a sync.

use crate::sandbox::{MAIN, REGTEST, SIGNET, Sandbox, fixtures};
use serde_json::Value;

/// Copies a fixture's node, with its chainstate.
fn node(sandbox: &Sandbox, folder: &str) {
    sandbox.copy(&fixtures().join(folder), "node");
}

#[test]
fn an_export_has_the_nodes_set() {
    for fixture in [MAIN, REGTEST, SIGNET] {
        let sandbox = Sandbox::with(fixture);
        let node = sandbox.json("gettxoutsetinfo.json");
        let hash = node["hash_serialized_3"].as_str().unwrap();
        let line = "snapshot export node.dat --to csv:new/utxos.csv --type --address";
        sandbox.apus(line).succeeds().says(&[hash, "new/utxos.csv"]);
        let facts = sandbox.json("new/utxos.csv.json");
        assert_eq!(facts["chain"], fixture.chain);
        assert_eq!(facts["hash_serialized_3"], hash);
        for key in [("block_hash", "bestblock"), ("height", "height"), ("coins", "txouts")] {
            assert_eq!(facts[key.0], node[key.1]);
        }
        let csv = String::from_utf8(sandbox.read("new/utxos.csv")).unwrap();
        assert_eq!(csv.lines().count() as u64, 1 + node["txouts"].as_u64().unwrap());
        sandbox.apus(line).fails(1, &["new/utxos.csv exists already", "--replace"]);
        let piped = sandbox.apus("snapshot export node.dat --to - --type --address").succeeds();
        assert!(piped.stdout == csv && piped.stderr.contains(hash), "{}", piped.stderr);
    }
}

#[test]
fn a_chainstate_gives_the_same_table_as_its_snapshot() {
    let sandbox = Sandbox::with(REGTEST);
    node(&sandbox, "regtest-315");
    sandbox.apus("snapshot export node.dat --to csv:of-snapshot.csv").succeeds();
    for (number, place) in
        ["node", "node/regtest", "node/regtest/chainstate"].into_iter().enumerate()
    {
        let line = format!("snapshot export {place} --to csv:{number}.csv");
        sandbox.apus(&line).succeeds().says(&["regtest", "315 "]);
        assert!(sandbox.read(&format!("{number}.csv")) == sandbox.read("of-snapshot.csv"));
        let facts = format!("{number}.csv.json");
        assert!(sandbox.read(&facts) == sandbox.read("of-snapshot.csv.json"));
    }
    sandbox.copy(&fixtures().join("regtest-315/regtest/chainstate"), "away/chainstate");
    let line = "snapshot export away/chainstate --to csv:4.csv";
    sandbox.apus(line).fails(1, &["add --chain"]);
    sandbox.apus(&format!("{line} --chain regtest")).succeeds();
}

/// Coins do not name their chain, but the blocks beside them do.
#[test]
fn coins_are_not_taken_for_those_of_another_chain() {
    let sandbox = Sandbox::empty();
    node(&sandbox, "regtest-315");
    let other = "are of regtest, not of main: use --chain regtest";
    for place in ["node/regtest/chainstate", "node/regtest"] {
        let line = format!("snapshot export {place} --to csv:x --chain main");
        sandbox.apus(&line).fails(1, &[other]);
        assert!(!sandbox.has("x"));
    }
    // A data directory without a folder of the chain that is asked for, then one whose blocks are elsewhere.
    sandbox.copy(&fixtures().join("regtest-315/regtest"), "whole");
    sandbox.copy(&fixtures().join("regtest-315/regtest/chainstate"), "alone/chainstate");
    sandbox.copy(&fixtures().join("regtest-315/regtest/chainstate"), "named/regtest/chainstate");
    for (line, said) in [
        ("whole --chain testnet4", "are of regtest, not of testnet4"),
        ("alone --chain testnet4", "alone has no coins of testnet4"),
        ("named/regtest --chain main", "no coins of main"),
    ] {
        sandbox.apus(&format!("snapshot find {line} 51")).fails(1, &[said]);
    }
    for line in
        ["whole", "whole --chain regtest", "named --chain regtest", "named/regtest --chain regtest"]
    {
        sandbox.apus(&format!("snapshot find {line} 51")).succeeds();
    }
}

#[test]
fn a_sync_writes_the_tables_that_an_export_writes() {
    for how in ["--engine mergesync", "--engine utxo --par 1", "--hints msb.hints"] {
        let sandbox = Sandbox::with(SIGNET);
        let out = "--out csv:set.csv --out sqlite:set.sqlite --out parquet:set.parquet";
        let line =
            format!("sync --chain signet --blocksdir blocks {how} {out} --report report.json");
        let ended = sandbox.apus(&line).succeeds();
        for (kind, what) in [
            ("csv", "a CSV table"),
            ("sqlite", "an SQLite database"),
            ("parquet", "a Parquet table"),
        ] {
            assert!(ended.stdout.contains(what), "{}", ended.stdout);
            let (ours, exported) = (format!("set.{kind}"), format!("exported.{kind}"));
            sandbox.apus(&format!("snapshot export node.dat --to {kind}:{exported}")).succeeds();
            assert!(sandbox.read(&ours) == sandbox.read(&exported), "{how}: {ours}");
        }
        assert!(sandbox.read("set.csv.json") == sandbox.read("exported.csv.json"));
        let files: Vec<Value> = sandbox.json("report.json")["files"].as_array().cloned().unwrap();
        assert_eq!(files.len(), 3, "{files:?}");
    }
}

#[test]
fn outputs_that_exist_are_refused_before_a_sync() {
    let sandbox = Sandbox::with(SIGNET);
    sandbox.write("set.csv.json", b"mine");
    let sync = "sync --chain signet --blocksdir blocks --engine mergesync";
    sandbox.apus(&format!("{sync} --out csv:set.csv")).fails(1, &["set.csv.json exists already"]);
    sandbox
        .apus(&format!("{sync} --out csv:a.csv --out snapshot:a.csv.json"))
        .fails(1, &["given twice"]);
    sandbox.apus(&format!("{sync} --out sqlite:")).fails(1, &["sqlite:FILE"]);
    sandbox.apus(&format!("{sync} --out csv:-")).fails(1, &["apus snapshot export FILE --to -"]);
    assert!(!sandbox.has("-") && !sandbox.has("-.json"));
}

#[test]
fn a_table_is_replaced_on_request() {
    let sandbox = Sandbox::with(SIGNET);
    sandbox.apus("snapshot export node.dat --to csv:new.csv").succeeds();
    // Facts without a table are those of a killed run; a table without facts may be another program's.
    let facts = sandbox.read("new.csv.json");
    sandbox.write("left.csv.json", &facts);
    let replacing = |line: &str| sandbox.start(line).wait().succeeds();
    replacing("snapshot export node.dat --to csv:left.csv");
    let sync = "sync --chain signet --blocksdir blocks --out";
    for (line, name) in [
        ("snapshot export node.dat --to", "old.csv"),
        ("snapshot export node.dat --to", "alone.csv"),
        (sync, "synced.csv"),
    ] {
        sandbox.write(name, b"old");
        if name != "alone.csv" {
            sandbox.write(&format!("{name}.json"), &facts);
        }
        sandbox.apus(&format!("{line} csv:{name}")).fails(1, &["exists already", "--replace"]);
        assert_eq!(sandbox.read(name), b"old");
        replacing(&format!("{line} csv:{name} --replace"));
        assert!(sandbox.read(name) == sandbox.read("new.csv"), "{name}");
        assert_eq!(
            sandbox.json(&format!("{name}.json"))["coins"],
            sandbox.json("new.csv.json")["coins"]
        );
    }
    // A file that is none of ours stays.
    sandbox.write("mine.csv.json", b"mine");
    for line in ["snapshot export node.dat --to", sync] {
        let line = format!("{line} csv:mine.csv --replace");
        sandbox.apus(&line).fails(1, &["mine.csv.json is no file of a table"]);
        assert_eq!(sandbox.read("mine.csv.json"), b"mine");
        assert!(!sandbox.has("mine.csv"));
    }
    // A run that fails changes nothing.
    let whole = sandbox.read("node.dat");
    sandbox.write("short.dat", &whole[..whole.len() - 1]);
    sandbox.write("kept.csv", b"old");
    sandbox.apus("snapshot export short.dat --to csv:kept.csv --replace").fails(4, &["truncated"]);
    assert_eq!(sandbox.read("kept.csv"), b"old");
    sandbox.apus("snapshot export node.dat --to - --replace").fails(1, &["--replace"]);
}

#[test]
fn damaged_and_wrong_sets_leave_no_table() {
    let sandbox = Sandbox::with(SIGNET);
    let whole = sandbox.read("node.dat");
    sandbox.write("short.dat", &whole[..whole.len() - 1]);
    for (line, code, said) in [
        ("short.dat --to sqlite:x", 4, "truncated"),
        ("short.dat --to parquet:x", 4, "truncated"),
        ("short.dat --to -", 4, "truncated"),
        ("missing.dat --to csv:x", 3, "missing.dat"),
        ("msb.hints --to csv:x", 1, "is a hintsfile"),
        ("blocks --to csv:x", 1, "the file CURRENT"),
        ("node.dat --to csv:x --raw", 1, "raw bytes"),
        ("node.dat --to - --raw", 1, "raw bytes"),
        ("node.dat --to xlsx:x", 1, "parquet:FILE"),
        ("node.dat --to parquet:-", 1, "parquet:FILE"),
        ("node.dat --to csv:x --chain main", 1, "--chain signet"),
        ("node.dat --to csv:blocks", 1, "is a folder"),
    ] {
        sandbox.apus(&format!("snapshot export {line}")).fails(code, &[said]);
        assert!(!sandbox.has("x") && !sandbox.has("x.incomplete"), "{line}");
    }
}

/// The SQL of `docs/tables.md` runs.
#[test]
fn the_documented_query_runs() {
    let sandbox = Sandbox::with(MAIN);
    sandbox.apus("snapshot export node.dat --to sqlite:utxos.sqlite --type --address").succeeds();
    let page = std::fs::read_to_string(fixtures().join("../docs/tables.md")).unwrap();
    let sql = page.split("```sql\n").nth(1).unwrap().split("```").next().unwrap();
    let database = rusqlite::Connection::open(sandbox.path("utxos.sqlite")).unwrap();
    let mut statement = database.prepare(sql).unwrap();
    let rows: Vec<(String, i64, i64)> = statement
        .query_map((), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let node = sandbox.json("gettxoutsetinfo.json");
    assert_eq!(
        rows.iter().map(|(_, coins, _)| coins).sum::<i64>(),
        node["txouts"].as_i64().unwrap()
    );
    assert!(rows.iter().any(|(kind, ..)| kind == "pubkey"), "{rows:?}");
}
