//! Signature hints: `--out sighints:FILE` and `--sighints FILE`.

use crate::sandbox::{Fixture, MAIN, REGTEST, Sandbox};
use serde_json::Value;
use std::fs;

/// A run of all scripts. `shadow` works on every processor.
fn run(fixture: Fixture, options: &str) -> String {
    let chain = fixture.chain;
    let line = format!("sync --chain {chain} --blocksdir blocks --assumevalid 0 --progress none");
    format!("{line} --signatures shadow {options}")
}

fn signatures(sandbox: &Sandbox, report: &str) -> Value {
    sandbox.json(report)["signatures"].clone()
}

#[test]
fn a_sync_writes_hints_that_the_next_one_uses() {
    for engine in ["mergesync", "utxo"] {
        let sandbox = Sandbox::with(MAIN);
        let learn = format!("--engine {engine} --out sighints:main.sighints --report one.json");
        sandbox.apus(&run(MAIN, &learn)).succeeds().says(&["main.sighints", "signature hints"]);
        let learned = signatures(&sandbox, "one.json");
        assert!(learned["ecdsa"].as_u64().unwrap() > 100, "{learned}");
        let file = &sandbox.json("one.json")["files"][0];
        assert_eq!(
            (&file["kind"], file["bytes"].as_u64().unwrap() > 0),
            (&"sighints".into(), true)
        );

        let using = "--sighints main.sighints --report two.json --out snapshot:two.dat";
        sandbox.apus(&run(MAIN, using)).succeeds().says(&["with hints"]);
        let used = signatures(&sandbox, "two.json");
        assert_eq!((&used["hinted"], &used["wrong_hints"]), (&learned["ecdsa"], &0.into()));
        assert_eq!(used["hints_ignored"], false);
        // A block's table is damaged. The set is the same.
        let mut bytes = sandbox.read("main.sighints");
        for byte in &mut bytes[32..34] {
            *byte ^= 0x55;
        }
        fs::write(sandbox.path("bad.sighints"), bytes).unwrap();
        let using = "--sighints bad.sighints --report bad.json --out snapshot:bad.dat";
        sandbox.apus(&run(MAIN, using)).succeeds().says(&["the hints of 1 block are damaged"]);
        assert!(signatures(&sandbox, "bad.json")["hinted"].as_u64() < used["hinted"].as_u64());
        assert!(sandbox.read("bad.dat") == sandbox.read("two.dat"));
    }
}

#[test]
fn unusable_files_are_refused() {
    let sandbox = Sandbox::with(REGTEST);
    let refused = |options: &str, words: &[&str]| {
        let ended = sandbox.apus(&run(REGTEST, options));
        ended.fails(1, words);
    };
    fs::write(sandbox.path("text"), b"not hints, but long enough for a head").unwrap();
    refused("--sighints text", &["text is not a file of signature hints", "name another file"]);
    let made = "--out sighints:made.sighints";
    sandbox.apus(&run(REGTEST, made)).succeeds();
    refused(made, &["made.sighints exists already"]);
    refused("--sighints made.sighints --out sighints:made.sighints", &["made.sighints"]);
    let sandbox_of_main = Sandbox::with(MAIN);
    fs::copy(sandbox.path("made.sighints"), sandbox_of_main.path("made.sighints")).unwrap();
    let other = sandbox_of_main.apus(&run(MAIN, "--sighints made.sighints"));
    other.fails(1, &["made.sighints", "regtest"]);
    let line = "sync --chain regtest --blocksdir blocks --signatures libsecp256k1";
    for useless in ["--sighints made.sighints", "--out sighints:new.sighints"] {
        sandbox.apus(&format!("{line} {useless}")).fails(1, &["useless"]);
    }
    // Nothing below the assumed-valid block is run.
    let none = "sync --chain main --blocksdir blocks --hints msb.hints --assumevalid hints \
                --signatures shadow --out sighints:none.sighints";
    let ended = sandbox_of_main.apus(none).succeeds();
    assert!(ended.stderr.contains("is empty") && ended.stderr.contains("--assumevalid 0"));
}
