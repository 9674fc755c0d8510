//! Tests of the program from outside: floors of chains, and runs against a real node. They check numbers,
//! never times.
//!
//! A sandbox's program is `apus-bench` here; `apus` must be next to it, as in a build of the workspace.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failure here is a failed test")]

#[path = "../../../../crates/apus/tests/sandbox.rs"]
#[allow(dead_code, reason = "the tests of the program `apus` use all of it")]
mod sandbox;

use apus_testkit::bitcoind;
use sandbox::{MAIN, REGTEST, Sandbox};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs `apus` on a sandbox with the arguments in a line, and returns its output.
fn apus(sandbox: &Sandbox, line: &str) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_apus-bench")).with_file_name("apus");
    assert!(program.is_file(), "there is no {}: cargo build -p apus", program.display());
    let mut command = Command::new(program);
    let ended =
        command.current_dir(sandbox.path("")).args(line.split_whitespace()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    assert!(ended.status.success(), "{line}: {}", text(&ended.stderr));
    text(&ended.stdout)
}

const COMMANDS: [&str; 8] =
    ["chain make", "chain serve", "chainstate", "decorate", "floor", "peers", "prevouts", "run"];

#[test]
fn commands_that_measure_show_examples() {
    let sandbox = Sandbox::empty();
    for command in COMMANDS {
        let example = format!("apus-bench {command}");
        let help = sandbox.apus(&format!("{command} --help")).succeeds();
        let help = help.says(&["Usage: apus-bench", "Examples:\n", &example]).stdout;
        let after = help.split("Examples:\n").nth(1).unwrap();
        let long: Vec<_> = after.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "{command}: {long:#?}");
    }
}

#[test]
fn errors_do_not_repeat_the_url() {
    let sandbox = Sandbox::empty();
    let ended = sandbox.apus("prevouts --store redis://a/x?pwd=hidden").fails(1, &["--store"]);
    assert!(!ended.stderr.contains("hidden"), "{ended}");
}

#[test]
fn a_small_chain_gives_the_same_set_everywhere() {
    let sandbox = Sandbox::empty();
    let line = format!(
        "run --profile quick --against bitcoind --bitcoind {} --json all.json --markdown \
         all.md --svg all.svg --record record",
        bitcoind::find().display()
    );
    // Without an interpreter the engines that connect blocks are left out, with a note.
    let with_scripts = apus(&sandbox, "--version").contains("kernel");
    let connected = if with_scripts { 4 } else { 0 };
    let runs = format!("the same result in {} runs", 13 + connected);
    let ended = sandbox.apus(&line).succeeds();
    let ended = ended.says(&[&runs, "has the same set", "BIP-30"]);
    if connected == 0 {
        ended.says(&["left out apus utxo assumevalid", "no script interpreter"]);
    }
    let record = sandbox.json("record/run.json");
    assert_eq!(record, sandbox.json("all.json"));
    assert_eq!(sandbox.read("record/run.md"), sandbox.read("all.md"));
    assert_eq!(sandbox.read("record/run.svg"), sandbox.read("all.svg"));

    let chain = &record["chains"][0];
    assert_eq!(chain["set"], chain["bitcoind_set"]);
    assert_eq!(chain["set"]["coins"], chain["manifest"]["coins"]);
    assert_eq!(chain["counts"]["bytes"], chain["manifest"]["bytes"]);
    assert_eq!(chain["manifest"]["signed"], true);
    let measured = chain["measured"].as_array().unwrap();
    assert_eq!(measured.len(), 13 + connected);
    let of = |engine: &str| measured.iter().filter(|it| it["subject"]["engine"] == engine).count();
    assert_eq!((of("utxo"), of("mergesync")), (connected / 2, connected / 2));
    for measured in measured {
        assert!(measured["wall_seconds"]["min"].as_f64().unwrap() > 0.0, "{measured}");
        assert!(measured["rss_peak_bytes"].as_u64().unwrap() > 1_000_000, "{measured}");
    }
    // Little work: no ratios are reported.
    assert_eq!(record["timed"], false);
    let here = sandbox.path("").display().to_string();
    assert!(!record.to_string().contains(here.trim_end_matches('/')), "{record}");

    // The reports and the node's log are next to the record, and can be plotted.
    let papers = sandbox.names("record");
    assert_eq!(papers.iter().filter(|name| name.ends_with(".report.json")).count(), 12 + connected);
    assert_eq!(papers.iter().filter(|name| name.ends_with(".debug.log")).count(), 1);
    let drawn: Vec<String> = papers
        .iter()
        .filter(|name| name.ends_with(".report.json") || name.ends_with(".debug.log"))
        .map(|name| format!("record/{name}"))
        .collect();
    apus(&sandbox, &format!("plot {} --out drawn.svg", drawn.join(" ")));

    sandbox.apus("run --record record").fails(1, &["record is not empty"]);
}

#[test]
fn a_floor_and_a_run_count_the_same_work() {
    for fixture in [MAIN, REGTEST] {
        let sandbox = Sandbox::with(fixture);
        let chain = format!("--chain {} --blocksdir blocks", fixture.chain);
        let sync = format!("sync {chain} --hints msb.hints --assumevalid hints");
        apus(&sandbox, &format!("{sync} --report report.json"));
        let line = format!("floor {chain} --hints msb.hints --span-ms 1 --json floor.json");
        sandbox.apus(&line).succeeds().says(&["SHA-256 compressions", "merkle trees", "summed up"]);
        let (report, floor) = (sandbox.json("report.json"), sandbox.json("floor.json"));
        let work = &floor["chain"]["work"];
        for field in ["blocks", "bytes", "transactions", "inputs", "outputs", "coins"] {
            assert_eq!(work[field], report[field], "{field}");
        }
        let of = |proof: &str| -> f64 {
            let floors = floor["chain"]["floors"].as_array().unwrap();
            let found = floors.iter().find(|floor| floor["aggregate"] == proof).unwrap();
            found["run"]["one_thread_ms"].as_f64().unwrap()
        };
        assert!(of("none") > 0.0 && of("none") < of("sha256") && of("none") < of("muhash"));
    }
}

#[test]
fn a_machine_has_limits_without_a_chain() {
    let sandbox = Sandbox::empty();
    let ended = sandbox.apus("floor --par 3 --span-ms 1 --json floor.json").succeeds();
    for words in ["measuring SHA-256 with the kernel portable", "measuring reading files"] {
        assert!(ended.stderr.contains(words), "{ended}");
    }
    let floor = sandbox.json("floor.json");
    assert_eq!((&floor["chain"], &floor["limits"]["threads"]), (&Value::Null, &3.into()));
    let kernels = floor["limits"]["kernels"].as_array().unwrap();
    assert!(kernels.iter().any(|kernel| kernel["kernel"] == "portable"), "{kernels:?}");
}

#[test]
fn fetching_is_measured_with_and_without_threads() {
    let sandbox = Sandbox::empty();
    let line = "prevouts --latency 0,100us --threads 2 --inputs 30 --coins 100 --rounds 1 \
                --json prevouts.json";
    let ended = sandbox.apus(line).succeeds();
    let ended = ended.says(&["a plain loop", "off", "100 us", "times faster"]);
    assert!(ended.stderr.contains("latency 100 us: round 1 of 1"), "{ended}");
    let latencies = &sandbox.json("prevouts.json")["latencies"];
    let threads = |at: usize| -> Vec<Value> {
        let measured = latencies[at]["measured"].as_array().unwrap();
        measured.iter().map(|with| with["threads"].clone()).collect()
    };
    assert_eq!(threads(0), [Value::Null, 0.into(), 2.into()]);
    assert_eq!(threads(1), [Value::from(0), 2.into()]);
}

#[cfg(feature = "remote-coins")]
#[test]
fn a_block_is_looked_up_by_many_callers_and_by_one() {
    let sandbox = Sandbox::empty();
    let line = "decorate --tx 40 --latency 100us --concurrency 1,4 --batch 30 \
                --deadline 10s --rounds 2 --json decorate.json";
    let ended = sandbox.apus(line).succeeds();
    let ended = ended.says(&["40 transactions of 3 inputs", "no batcher", "whole block ms"]);
    assert!(ended.stderr.contains("round 2 of 2"), "{ended}");
    let found = sandbox.json("decorate.json");
    for (at, callers) in [(0, 1), (1, 4)] {
        let with = &found["measured"][at];
        assert_eq!(with["callers"], callers);
        assert!(with["block"]["batches"].as_u64().unwrap() <= 4 + callers, "{with}");
    }
    // A single caller: its block in four batches, or transaction by transaction.
    assert_eq!(found["measured"][0]["block"]["batches"], 4);
    assert_eq!(found["measured"][0]["each"]["batches"], 40);
}

#[test]
fn a_chainstate_is_written_and_copied() {
    let sandbox = Sandbox::empty();
    let line = "chainstate --coins 5000 --rounds 2 --dir scratch --json chainstate.json";
    let ended = sandbox.apus(line).succeeds();
    let ended = ended.says(&["5,000 coins", "copy, durable", "read back, hash"]);
    for words in ["generating a set of coins", "round 1 of 2: write: ", "round 2 of 2: copy: "] {
        assert!(ended.stderr.contains(words), "{ended}");
    }
    let found = sandbox.json("chainstate.json");
    assert_eq!((&found["coins"], &found["rounds"]), (&5000.into(), &2.into()));
    let parts = found["parts"].as_array().unwrap();
    let names: Vec<_> = parts.iter().map(|part| part["part"].as_str().unwrap()).collect();
    assert_eq!(names, ["write", "copy", "check"]);
    for part in parts {
        assert!(part["wall_seconds"]["min"].as_f64().unwrap() > 0.0, "{part}");
    }
    assert!(!sandbox.has("scratch"), "{:?}", sandbox.names("scratch"));
    // The command keeps a folder that existed before.
    fs::create_dir(sandbox.path("mine")).unwrap();
    let line = "chainstate --coins 500 --rounds 1 --dir mine/new/scratch";
    sandbox.start(line).wait().succeeds();
    assert!(sandbox.has("mine") && !sandbox.has("mine/new"));
}

#[test]
fn a_full_disk_is_reported() {
    let sandbox = Sandbox::empty();
    let line = "chainstate --coins 5000 --rounds 1 --dir scratch";
    let ended = sandbox.start_with_small_files(0, line).wait();
    ended.fails(3, &["ended with exit status: 3: ", "set.records", "File too large"]);
    assert!(!sandbox.has("scratch"));
}

/// Like a terminal: signals each process in the group.
#[test]
fn an_interruption_ends_the_measurement_of_a_floor() {
    let sandbox = Sandbox::empty();
    fs::create_dir(sandbox.path("tmp")).unwrap();
    sandbox.write("errors", b"");
    // The shell waits for the program, even if it gets a signal itself.
    let script =
        "trap : INT; TMPDIR=tmp \"$0\" \"$@\" 2>errors; code=$?; cat errors >&2; exit $code";
    // Without optimisations one measurement takes seconds, and all together take a minute.
    let mut measuring = sandbox.start_in_group(script, "floor --par 1 --span-ms 500");
    let errors = || String::from_utf8(sandbox.read("errors")).unwrap();
    assert!(measuring.until(|| errors().contains("measuring SHA-256")), "{}", errors());
    assert!(!sandbox.names("tmp").is_empty());
    measuring.interrupt_group();
    measuring.wait().fails(130, &["apus-bench: interrupted\n"]);
    assert!(sandbox.names("tmp").is_empty(), "scratch files were left behind");
}

#[test]
fn blocks_from_nodes_make_the_same_set_for_each_program() {
    let sandbox = Sandbox::empty();
    let make = "chain make --blocks 12 --block-weight 400000 --unsigned --out chain";
    sandbox.start(make).wait().succeeds();
    let bitcoind = bitcoind::find();
    let (here, bitcoind) = (sandbox.path("").display().to_string(), bitcoind.display());
    for (transport, others, who) in [
        (0, "--against bitcoind", &["reader", "apus", "bitcoind"][..]),
        (1, "--line 400mbit,1ms", &["reader", "apus"]),
    ] {
        let line = format!(
            "peers --chain-dir chain --peers 2 --rounds 1 --v2transport {transport} {others} \
             --bitcoind {bitcoind} --dir scratch --json peers.json"
        );
        let ended = sandbox.start(&line).wait().succeeds();
        ended.says(&["MB/s", "reader", "over apus"]);
        let (found, chain) = (sandbox.json("peers.json"), sandbox.json("chain/manifest.json"));
        for (field, wanted) in [
            ("peers", Value::from(2)),
            ("v2transport", (transport == 1).into()),
            ("blocks", chain["height"].clone()),
            ("bytes", chain["bytes"].clone()),
        ] {
            assert_eq!(found[field], wanted, "{field}");
        }
        assert_eq!(found["set"]["coins"], chain["coins"]);
        assert_eq!(found["set"]["stop_hash"], chain["tip_hash"]);
        assert_eq!(found["line"].is_string(), transport == 1);
        let measured = found["measured"].as_array().unwrap();
        let names: Vec<_> = measured.iter().map(|it| it["who"].as_str().unwrap()).collect();
        assert_eq!(names, who);
        for it in measured {
            assert!(it["wall_seconds"]["min"].as_f64().unwrap() > 0.0, "{it}");
            assert_eq!(it["over"].as_object().unwrap().len(), who.len() - 1, "{it}");
            assert_eq!(it["line_share"].is_number(), transport == 1);
        }
        assert!(!found.to_string().contains(here.trim_end_matches('/')), "{found}");
    }
}

#[test]
fn mistakes_are_reported_before_any_file_is_made() {
    let sandbox = Sandbox::empty();
    sandbox.write("file", b"");
    for chain in ["a/same", "b/same"] {
        fs::create_dir_all(sandbox.path(chain).join("blocks")).unwrap();
        sandbox.write(&format!("{chain}/chain.hints"), b"");
    }
    for (line, errors) in [
        ("run --bitcoind file", &["--against"][..]),
        ("run --against bitcoind --bitcoind gone", &["--bitcoind: gone is not a file"]),
        ("run --against bitcoind --bitcoind file", &["file"]),
        ("run --chain-dir a/same --chain-dir b/same", &["two chains are called same"]),
        ("run --chain-dir gone", &["gone: no generated chain"]),
        ("run --profile slow", &["quick, full, connect, rules"]),
        ("run --aggregate xor", &["none, sha256, muhash"]),
        ("run --par 1,x", &["--par"]),
        ("run --apus gone", &["--apus: gone is not a file"]),
        ("prevouts --latency 5", &["us, ms or s"]),
        ("prevouts --latency 11s", &["up to 10s"]),
        ("prevouts --threads 1025", &["--threads"]),
        #[cfg(feature = "remote-coins")]
        ("decorate --concurrency 0", &["--concurrency"]),
        #[cfg(feature = "remote-coins")]
        ("decorate --tx 100000 --inputs 1000", &["100000000 inputs"]),
        #[cfg(not(feature = "remote-coins"))]
        ("decorate", &["built without support for remote coins"]),
        ("chainstate --coins 0", &["--coins"]),
        ("chainstate --part write", &["--dir"]),
        ("peers", &["--chain-dir"]),
        ("peers --chain-dir gone", &["gone: no generated chain"]),
        ("peers --chain-dir a/same --bitcoind gone", &["--bitcoind: gone is not a file"]),
        ("peers --chain-dir a/same --peers 0", &["--peers"]),
        ("peers --chain-dir a/same --line 5", &["a rate (20mbit)"]),
        ("peers --read 127.0.0.1:1 --counts counts", &["127.0.0.1:1"]),
        ("floor --blocksdir .", &["--hints"]),
        ("floor --chain-dir gone", &["gone: no generated chain"]),
        ("floor --chain-dir . --blocksdir . --hints file", &["--chain-dir"]),
    ] {
        let ended = sandbox.start(line).wait();
        assert_ne!(ended.code, Some(0), "{ended}");
        for words in errors {
            assert!(ended.stderr.contains(words), "{words:?} is missing: {ended}");
        }
    }
}
