//! Real chains, and a node's numbers for them: every way of running leads to the same bytes.

use crate::sandbox::{Fixture, MAIN, REGTEST, SIGNET, Sandbox, fixtures};
use apus_testkit::{blkfile, chain, oracle};
use bitcoin::Network;
use serde_json::{Value, json};
use std::fs;

/// The command line of a complete sync; callers append options.
pub(crate) fn sync(fixture: Fixture, hints: &str) -> String {
    format!("sync --chain {} --blocksdir blocks --hints {hints}", fixture.chain)
}

fn expect_the_nodes_set(sandbox: &Sandbox, snapshot: &str, hints: &str) {
    assert!(sandbox.read(snapshot) == sandbox.read("node.dat"), "{snapshot} differs");
    assert!(sandbox.read(hints) == sandbox.read("msb.hints"), "{hints} differs");
}

/// Compares a report with the node's numbers.
fn expect_the_nodes_numbers(sandbox: &Sandbox, report: &Value) {
    let node = sandbox.json("gettxoutsetinfo.json");
    for (ours, theirs) in [
        ("stop_height", "height"),
        ("stop_hash", "bestblock"),
        ("coins", "txouts"),
        ("coin_transactions", "transactions"),
        ("bogosize", "bogosize"),
        ("muhash", "muhash"),
        ("hash_serialized_3", "hash_serialized_3"),
    ] {
        assert_eq!(report[ours], node[theirs], "{ours}");
    }
    let satoshi = (node["total_amount"].as_f64().unwrap() * 1e8).round() as u64;
    assert_eq!(report["total_amount_sat"], satoshi);
}

#[test]
fn every_kind_of_hints_gives_the_nodes_set_and_numbers() {
    for fixture in [MAIN, REGTEST, SIGNET] {
        for hints in ["msb.hints", "lsb.hints", "snapshot:node.dat"] {
            let sandbox = Sandbox::with(fixture);
            let line = sync(fixture, hints)
                + " --muhash --out snapshot:utxo.dat --out hints:utxo.hints --report report.json";
            let node = sandbox.json("gettxoutsetinfo.json");
            let words = |name: &str| node[name].as_str().unwrap().to_owned();
            sandbox.apus(&line).succeeds().says(&[
                &words("bestblock"),
                &words("muhash"),
                &words("hash_serialized_3"),
                "Verified: ",
                "Assumed: scripts and signatures",
            ]);
            expect_the_nodes_set(&sandbox, "utxo.dat", "utxo.hints");
            expect_the_nodes_numbers(&sandbox, &sandbox.json("report.json"));
            assert_eq!(sandbox.names("").iter().filter(|name| name.contains("utxo")).count(), 2);
        }
    }
}

/// A sync without an aggregate proves nothing and is only for measurements: Apus says so and writes no file.
#[test]
fn without_an_aggregate_nothing_is_proven_or_written() {
    let sandbox = Sandbox::with(REGTEST);
    let line = "sync --chain regtest --blocksdir blocks --hints msb.hints --aggregate none";
    sandbox.apus(&format!("{line} --report report.json")).succeeds();
    let report = sandbox.json("report.json");
    assert_eq!(report["aggregate"], "none");
    for proven in ["aggregate", "supply", "bip30"] {
        assert_eq!(report["verified"][proven], false, "{proven}");
    }
    let assumed = report["assumed"].to_string();
    assert!(assumed.contains("the hints are right"), "{assumed}");

    let outputs = [
        "--out snapshot:utxo.dat",
        "--out hints:utxo.hints",
        #[cfg(feature = "utreexo")]
        "--out utreexo:utxo.roots",
    ];
    for out in outputs {
        sandbox.apus(&format!("{line} {out}")).fails(1, &["nothing proves the hints right"]);
    }
    let blocks = "--chain regtest --blocksdir blocks --aggregate none";
    for command in ["hints check msb.hints", "snapshot verify node.dat"] {
        sandbox
            .apus(&format!("{command} {blocks}"))
            .fails(1, &["--aggregate none proves nothing: leave it out"]);
    }
    assert!(!sandbox.names("").iter().any(|name| name.contains("utxo")));
}

#[test]
fn the_report_says_what_was_proven_and_what_was_not() {
    for (fixture, enough_work) in [(MAIN, false), (REGTEST, true), (SIGNET, false)] {
        let sandbox = Sandbox::with(fixture);
        sandbox.apus(&(sync(fixture, "msb.hints") + " --report report.json")).succeeds();
        let report = sandbox.json("report.json");
        let verified = json!({
            "blocks": true, "witnesses": true, "aggregate": true, "supply": true, "bip30": true,
            "scripts": false, "amounts": false, "order": false,
            "minimum_chain_work": enough_work,
        });
        assert_eq!(report["verified"], verified);
        assert_eq!(report["assumed"].as_array().unwrap().len(), if enough_work { 3 } else { 4 });
        assert_eq!(report["chain"], fixture.chain);
        assert_eq!(report["blocks"], report["stop_height"]);
        assert_eq!(report["hints"]["start_height"], 1);
        assert_eq!(report["segments_resumed"], 0);
        let phases = report["phases"].as_array().unwrap().iter().map(|phase| &phase["phase"]);
        assert_eq!(phases.collect::<Vec<_>>(), ["headers", "hints", "blocks", "coins"]);
        let [warning] = &report["warnings"].as_array().unwrap()[..] else { panic!("{report}") };
        let stop = report["stop_height"].as_u64().unwrap();
        let said = format!("--assumevalid hints: blocks 1 to {stop} are assumed valid");
        assert!(warning.as_str().unwrap().starts_with(&said), "{warning}");
    }
}

#[test]
fn threads_memory_segments_and_aggregate_change_nothing_in_the_outputs() {
    let sandbox = Sandbox::with(REGTEST);
    for (index, how) in [
        "--par 1",
        "--par 2 --segment-bytes 1",
        "--par 8 --segment-bytes 5000",
        "--par 3 --dbcache 4 --segment-bytes 2000",
        "--aggregate muhash",
        "--aggregate muhash --par 1 --segment-bytes 3000",
        "--hints-order msb",
        "--stopatheight 315 --workdir other.work",
    ]
    .into_iter()
    .enumerate()
    {
        let outputs = format!(" --out snapshot:{index}.dat --out hints:{index}.hints {how}");
        let report = format!(" --muhash --report {index}.json");
        sandbox.apus(&(sync(REGTEST, "msb.hints") + &outputs + &report)).succeeds();
        expect_the_nodes_set(&sandbox, &format!("{index}.dat"), &format!("{index}.hints"));
        expect_the_nodes_numbers(&sandbox, &sandbox.json(&format!("{index}.json")));
    }
    assert!(!sandbox.has("other.work"), "the work folder is removed at the end");
}

#[test]
fn several_outputs_are_written_at_once() {
    let sandbox = Sandbox::with(REGTEST);
    let outputs = " --out snapshot:a.dat --out null --out hints:b.hints --out snapshot:c.dat";
    sandbox.apus(&(sync(REGTEST, "snapshot:node.dat") + outputs)).succeeds();
    expect_the_nodes_set(&sandbox, "a.dat", "b.hints");
    expect_the_nodes_set(&sandbox, "c.dat", "b.hints");
    let outputs = " --out snapshot:./deep/er/utxo.dat";
    fs::create_dir_all(sandbox.path("deep/er")).unwrap();
    sandbox.apus(&(sync(REGTEST, "lsb.hints") + outputs)).succeeds();
    expect_the_nodes_set(&sandbox, "deep/er/utxo.dat", "b.hints");
}

#[test]
fn without_an_output_option_nothing_is_written() {
    let sandbox = Sandbox::with(REGTEST);
    let names = sandbox.names("");
    sandbox.apus(&sync(REGTEST, "msb.hints")).succeeds();
    sandbox.apus(&(sync(REGTEST, "msb.hints") + " --out null")).succeeds();
    assert_eq!(sandbox.names(""), names);
}

#[test]
fn every_progress_style_works() {
    let sandbox = Sandbox::with(MAIN);
    let run = |style: &str| {
        sandbox.apus(&(sync(MAIN, "msb.hints") + " --progress " + style)).succeeds().stderr
    };
    assert_eq!(run("none"), "");
    let plain = run("plain");
    assert!(plain.contains("chain of 4521 blocks in 1 file, found by their headers"), "{plain}");
    // Standard error is not a terminal here, so `auto` means `plain`.
    assert_eq!(run("auto").lines().next(), plain.lines().next());
    let json = run("json");
    let events: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let phases = |event: &str| -> Vec<&str> {
        let of_kind = events.iter().filter(|object| object["event"] == event);
        of_kind.map(|object| object["phase"].as_str().unwrap()).collect()
    };
    for event in ["started", "ended"] {
        assert_eq!(phases(event), ["headers", "hints", "blocks", "coins"]);
    }
    assert!(events.iter().any(|event| event["event"] == "chain" && event["height"] == 4521));
    let times: Vec<f64> = events.iter().map(|event| event["time"].as_f64().unwrap()).collect();
    assert!(times.is_sorted() && times[0] > 1e9, "{times:?}");
    let last = events.last().unwrap();
    assert_eq!((&last["event"], &last["code"]), (&json!("done"), &json!(0)));
    // A failed run ends with an event, too.
    let line = sync(MAIN, "msb.hints") + " --progress json --stopatheight 9";
    let failed = sandbox.apus(&line).fails(1, &[]).stderr.clone();
    let last: Value = serde_json::from_str(failed.lines().last().unwrap()).unwrap();
    assert_eq!((&last["event"], &last["code"]), (&json!("failed"), &json!(1)));
    assert!(last["text"].as_str().unwrap().contains("height 9"), "{last}");
}

#[test]
fn hints_that_stop_earlier_give_the_set_of_that_block() {
    let sandbox = Sandbox::with(MAIN);
    let hints = fixtures().join("floresta/bitcoin-175.hints");
    sandbox.write("175.hints", &fs::read(hints).unwrap());
    let line = sync(MAIN, "175.hints")
        + " --stopatheight 175 --out snapshot:175.dat --out hints:again.hints";
    sandbox.apus(&line).succeeds().says(&["stop height        175\n", "    00000000fd4afcc1"]);
    let genesis = bitcoin::constants::genesis_block(Network::Bitcoin).block_hash();
    let magic = Network::Bitcoin.magic().to_bytes();
    let blocks = blkfile::read_chain(&sandbox.path("blocks"), magic, genesis);
    let coins = chain::utxo_set(&blocks[..=175]);
    assert!(sandbox.read("175.dat") == oracle::snapshot(magic, blocks[175].block_hash(), &coins));
    assert_eq!(sandbox.read("again.hints"), sandbox.read("175.hints"));
    sandbox.apus(&(sync(MAIN, "snapshot:175.dat") + " --stopatheight 175")).succeeds();
}

/// Above the hints, Apus connects the blocks in order, with the same result as hints for all blocks.
#[test]
#[cfg(feature = "kernel")]
fn blocks_above_the_hints_are_connected_on_the_same_coins() {
    let sandbox = Sandbox::with(MAIN);
    let hints = fixtures().join("floresta/bitcoin-175.hints");
    sandbox.write("175.hints", &fs::read(hints).unwrap());
    let line =
        sync(MAIN, "175.hints") + " --out snapshot:on.dat --out hints:on.hints --report r.json";
    sandbox.apus(&line).succeeds().says(&[
        "stop height        4521\n",
        "Written: on.dat (",
        "Written: on.hints (",
    ]);
    assert!(sandbox.read("on.dat") == fs::read(fixtures().join("main-4521/utxo.dat")).unwrap());
    let whole = fs::read(fixtures().join("main-4521/utxo.bip456.hints")).unwrap();
    assert!(sandbox.read("on.hints") == whole);
    let report = sandbox.json("r.json");
    assert_eq!((&report["connected_from"], &report["script_blocks"]), (&176.into(), &4346.into()));
    assert_eq!(report["verified"]["scripts"], false);
}

/// Without hints, Apus checks every rule and every script, and writes the same files.
#[test]
#[cfg(feature = "kernel")]
fn full_validation_needs_no_hints() {
    for engine in ["utxo", "mergesync"] {
        let sandbox = Sandbox::with(MAIN);
        let line = format!(
            "sync --chain main --blocksdir blocks --assumevalid 0 --engine {engine} \
         --out snapshot:full.dat --out hints:full.hints --report r.json --progress none"
        );
        sandbox.apus(&line).succeeds().says(&["every script"]);
        assert!(
            sandbox.read("full.dat") == fs::read(fixtures().join("main-4521/utxo.dat")).unwrap()
        );
        let whole = fs::read(fixtures().join("main-4521/utxo.bip456.hints")).unwrap();
        assert!(sandbox.read("full.hints") == whole);
        let report = sandbox.json("r.json");
        for claim in ["blocks", "scripts", "amounts", "order", "supply", "bip30"] {
            assert_eq!(report["verified"][claim], true, "{claim}");
        }
        assert_eq!((&report["engine"], &report["validation"]), (&engine.into(), &"full".into()));
        assert!(!sandbox.path("full.dat.work").exists());
    }
}

#[test]
fn a_blocks_folder_may_be_a_link_and_its_files_read_only() {
    let sandbox = Sandbox::with(REGTEST);
    fs::rename(sandbox.path("blocks"), sandbox.path("disk")).unwrap();
    std::os::unix::fs::symlink("disk", sandbox.path("blocks")).unwrap();
    for name in sandbox.names("disk") {
        let path = sandbox.path("disk").join(name);
        let mut permissions = path.metadata().unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(path, permissions).unwrap();
    }
    sandbox.apus(&(sync(REGTEST, "msb.hints") + " --out snapshot:utxo.dat")).succeeds();
    assert!(sandbox.read("utxo.dat") == sandbox.read("node.dat"));
}

/// Apus computes the set's hash during the second pass if it writes no coins, at the end on one thread, and while it
/// writes coins to a file.
#[cfg(feature = "kernel")]
#[test]
fn the_hash_is_the_same_whenever_it_is_computed() {
    let sandbox = Sandbox::with(MAIN);
    let hash = |name: &str, options: &str| {
        let line =
            format!("sync --blocksdir blocks --assumevalid 0 --muhash --report {name} {options}");
        sandbox.apus(&line).succeeds();
        let report = sandbox.json(name);
        (report["hash_serialized_3"].clone(), report["muhash"].clone(), report["coins"].clone())
    };
    let written = hash("written", "--out snapshot:set.dat");
    assert_eq!(hash("beside", "--par 2"), written);
    assert_eq!(hash("at-the-end", "--par 1"), written);
    assert_eq!(hash("with-hints", "--par 2 --out hints:made.hints"), written);
}
