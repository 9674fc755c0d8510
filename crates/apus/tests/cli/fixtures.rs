//! Real chains, and what a node says about them: every way of running leads to the same bytes.

use crate::desk::{Desk, Fixture, MAIN, REGTEST, SIGNET, fixtures};
use apus_testkit::{blkfile, chain, oracle};
use bitcoin::Network;
use serde_json::{Value, json};
use std::fs;

/// A whole run's line; more may follow.
pub(crate) fn sync(fixture: Fixture, hints: &str) -> String {
    format!("sync --chain {} --blocksdir blocks --hints {hints}", fixture.chain)
}

fn expect_the_nodes_set(desk: &Desk, snapshot: &str, hints: &str) {
    assert!(desk.read(snapshot) == desk.read("node.dat"), "{snapshot} differs");
    assert!(desk.read(hints) == desk.read("msb.hints"), "{hints} differs");
}

/// Compares a report with the node's words.
fn expect_the_nodes_numbers(desk: &Desk, report: &Value) {
    let node = desk.json("gettxoutsetinfo.json");
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
            let desk = Desk::with(fixture);
            let line = sync(fixture, hints)
                + " --muhash --out snapshot:utxo.dat --out hints:utxo.hints --report report.json";
            let node = desk.json("gettxoutsetinfo.json");
            let words = |name: &str| node[name].as_str().unwrap().to_owned();
            desk.apus(&line).succeeds().says(&[
                &words("bestblock"),
                &words("muhash"),
                &words("hash_serialized_3"),
                "Verified: ",
                "Assumed: scripts and signatures",
            ]);
            expect_the_nodes_set(&desk, "utxo.dat", "utxo.hints");
            expect_the_nodes_numbers(&desk, &desk.json("report.json"));
            assert_eq!(desk.names("").iter().filter(|name| name.contains("utxo")).count(), 2);
        }
    }
}

/// Without an aggregate a run is only good for measuring: it says so, and leaves no file.
#[test]
fn without_an_aggregate_nothing_is_proven_or_written() {
    let desk = Desk::with(REGTEST);
    let line = "sync --chain regtest --blocksdir blocks --hints msb.hints --aggregate none";
    desk.apus(&format!("{line} --report report.json")).succeeds();
    let report = desk.json("report.json");
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
        desk.apus(&format!("{line} {out}")).fails(1, &["nothing proves the hints right"]);
    }
    let blocks = "--chain regtest --blocksdir blocks --aggregate none";
    for command in ["hints check msb.hints", "snapshot verify node.dat"] {
        desk.apus(&format!("{command} {blocks}")).fails(1, &["--aggregate none proves nothing"]);
    }
    assert!(!desk.names("").iter().any(|name| name.contains("utxo")));
}

#[test]
fn the_report_says_what_was_proven_and_what_was_not() {
    for (fixture, enough_work) in [(MAIN, false), (REGTEST, true), (SIGNET, false)] {
        let desk = Desk::with(fixture);
        desk.apus(&(sync(fixture, "msb.hints") + " --report report.json")).succeeds();
        let report = desk.json("report.json");
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
        let said = format!("--assumevalid hints: blocks 1 to {stop} are taken for valid");
        assert!(warning.as_str().unwrap().starts_with(&said), "{warning}");
    }
}

#[test]
fn threads_memory_segments_and_aggregate_change_nothing_in_the_outputs() {
    let desk = Desk::with(REGTEST);
    for (index, how) in [
        "--par 1",
        "--par 2 --segment-bytes 1",
        "--par 8 --segment-bytes 5000",
        "--par 3 --dbcache 4 --segment-bytes 2000",
        "--aggregate muhash",
        "--aggregate muhash --par 1 --segment-bytes 3000",
        "--hints-order msb",
        "--stopatheight 315 --workdir elsewhere",
    ]
    .into_iter()
    .enumerate()
    {
        let outputs = format!(" --out snapshot:{index}.dat --out hints:{index}.hints {how}");
        let report = format!(" --muhash --report {index}.json");
        desk.apus(&(sync(REGTEST, "msb.hints") + &outputs + &report)).succeeds();
        expect_the_nodes_set(&desk, &format!("{index}.dat"), &format!("{index}.hints"));
        expect_the_nodes_numbers(&desk, &desk.json(&format!("{index}.json")));
    }
    assert!(!desk.has("elsewhere"), "the work folder goes when all is done");
}

#[test]
fn several_outputs_are_written_at_once() {
    let desk = Desk::with(REGTEST);
    let outputs = " --out snapshot:a.dat --out null --out hints:b.hints --out snapshot:c.dat";
    desk.apus(&(sync(REGTEST, "snapshot:node.dat") + outputs)).succeeds();
    expect_the_nodes_set(&desk, "a.dat", "b.hints");
    expect_the_nodes_set(&desk, "c.dat", "b.hints");
    let outputs = " --out snapshot:./deep/er/utxo.dat";
    fs::create_dir_all(desk.path("deep/er")).unwrap();
    desk.apus(&(sync(REGTEST, "lsb.hints") + outputs)).succeeds();
    expect_the_nodes_set(&desk, "deep/er/utxo.dat", "b.hints");
}

#[test]
fn no_output_is_asked_for_and_none_is_made() {
    let desk = Desk::with(REGTEST);
    let names = desk.names("");
    desk.apus(&sync(REGTEST, "msb.hints")).succeeds();
    desk.apus(&(sync(REGTEST, "msb.hints") + " --out null")).succeeds();
    assert_eq!(desk.names(""), names);
}

#[test]
fn progress_comes_in_every_style() {
    let desk = Desk::with(MAIN);
    let run = |style: &str| {
        desk.apus(&(sync(MAIN, "msb.hints") + " --progress " + style)).succeeds().stderr
    };
    assert_eq!(run("none"), "");
    let plain = run("plain");
    assert!(plain.contains("chain of 4521 blocks in 1 file, found by their headers"), "{plain}");
    // There is no terminal here.
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
    // And so ends a run that fails.
    let line = sync(MAIN, "msb.hints") + " --progress json --stopatheight 9";
    let failed = desk.apus(&line).fails(1, &[]).stderr.clone();
    let last: Value = serde_json::from_str(failed.lines().last().unwrap()).unwrap();
    assert_eq!((&last["event"], &last["code"]), (&json!("failed"), &json!(1)));
    assert!(last["text"].as_str().unwrap().contains("height 9"), "{last}");
}

#[test]
fn hints_that_stop_earlier_give_the_set_of_that_block() {
    let desk = Desk::with(MAIN);
    let hints = fixtures().join("floresta/bitcoin-175.hints");
    desk.write("175.hints", &fs::read(hints).unwrap());
    let line = sync(MAIN, "175.hints")
        + " --stopatheight 175 --out snapshot:175.dat --out hints:again.hints";
    desk.apus(&line).succeeds().says(&["stop height        175\n", "    00000000fd4afcc1"]);
    let genesis = bitcoin::constants::genesis_block(Network::Bitcoin).block_hash();
    let magic = Network::Bitcoin.magic().to_bytes();
    let blocks = blkfile::read_chain(&desk.path("blocks"), magic, genesis);
    let coins = chain::utxo_set(&blocks[..=175]);
    assert!(desk.read("175.dat") == oracle::snapshot(magic, blocks[175].block_hash(), &coins));
    assert_eq!(desk.read("again.hints"), desk.read("175.hints"));
    desk.apus(&(sync(MAIN, "snapshot:175.dat") + " --stopatheight 175")).succeeds();
}

/// Above the hints the blocks are connected in order, and the result is that of hints for all.
#[test]
#[cfg(feature = "kernel")]
fn blocks_above_the_hints_are_connected_on_the_same_coins() {
    let desk = Desk::with(MAIN);
    let hints = fixtures().join("floresta/bitcoin-175.hints");
    desk.write("175.hints", &fs::read(hints).unwrap());
    let line =
        sync(MAIN, "175.hints") + " --out snapshot:on.dat --out hints:on.hints --report r.json";
    desk.apus(&line).succeeds().says(&[
        "stop height        4521\n",
        "Written: on.dat (",
        "Written: on.hints (",
    ]);
    assert!(desk.read("on.dat") == fs::read(fixtures().join("main-4521/utxo.dat")).unwrap());
    let whole = fs::read(fixtures().join("main-4521/utxo.bip456.hints")).unwrap();
    assert!(desk.read("on.hints") == whole);
    let report = desk.json("r.json");
    assert_eq!((&report["connected_from"], &report["script_blocks"]), (&176.into(), &4346.into()));
    assert_eq!(report["verified"]["scripts"], false);
}

/// Without any hints: every rule, every script, the same files.
#[test]
#[cfg(feature = "kernel")]
fn full_validation_needs_no_hints() {
    for engine in ["utxo", "mergesync"] {
        let desk = Desk::with(MAIN);
        let line = format!(
            "sync --chain main --blocksdir blocks --assumevalid 0 --engine {engine} \
         --out snapshot:full.dat --out hints:full.hints --report r.json --progress none"
        );
        desk.apus(&line).succeeds().says(&["every script"]);
        assert!(desk.read("full.dat") == fs::read(fixtures().join("main-4521/utxo.dat")).unwrap());
        let whole = fs::read(fixtures().join("main-4521/utxo.bip456.hints")).unwrap();
        assert!(desk.read("full.hints") == whole);
        let report = desk.json("r.json");
        for claim in ["blocks", "scripts", "amounts", "order", "supply", "bip30"] {
            assert_eq!(report["verified"][claim], true, "{claim}");
        }
        assert_eq!((&report["engine"], &report["validation"]), (&engine.into(), &"full".into()));
        assert!(!desk.path("full.dat.work").exists());
    }
}

#[test]
fn a_blocks_folder_may_be_a_link_and_its_files_read_only() {
    let desk = Desk::with(REGTEST);
    fs::rename(desk.path("blocks"), desk.path("disk")).unwrap();
    std::os::unix::fs::symlink("disk", desk.path("blocks")).unwrap();
    for name in desk.names("disk") {
        let path = desk.path("disk").join(name);
        let mut permissions = path.metadata().unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(path, permissions).unwrap();
    }
    desk.apus(&(sync(REGTEST, "msb.hints") + " --out snapshot:utxo.dat")).succeeds();
    assert!(desk.read("utxo.dat") == desk.read("node.dat"));
}

/// The set's hash is computed beside the second walk where coins are written nowhere, at the end on one thread, and
/// on the coins' way into a file.
#[cfg(feature = "kernel")]
#[test]
fn the_hash_is_the_same_whenever_it_is_computed() {
    let desk = Desk::with(MAIN);
    let hash = |name: &str, options: &str| {
        let line =
            format!("sync --blocksdir blocks --assumevalid 0 --muhash --report {name} {options}");
        desk.apus(&line).succeeds();
        let report = desk.json(name);
        (report["hash_serialized_3"].clone(), report["muhash"].clone(), report["coins"].clone())
    };
    let written = hash("written", "--out snapshot:set.dat");
    assert_eq!(hash("beside", "--par 2"), written);
    assert_eq!(hash("at-the-end", "--par 1"), written);
    assert_eq!(hash("with-hints", "--par 2 --out hints:made.hints"), written);
}
