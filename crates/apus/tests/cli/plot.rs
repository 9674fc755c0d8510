//! `apus plot` draws our syncs from their reports, and a real node's sync from its log.

use crate::sandbox::{MAIN, Sandbox};
use apus_testkit::bitcoind::Bitcoind;
use std::fs;
use std::time::{Duration, Instant};

const SYNC: &str = "sync --blocksdir blocks --hints msb.hints --report ";

/// Label, seconds and height of each point of a CSV file.
fn points(csv: &[u8]) -> Vec<(String, f64, u64)> {
    let text = String::from_utf8(csv.to_vec()).unwrap();
    let mut lines = text.lines();
    let measures = ["height", "bytes", "transactions"].map(|name| format!("label,seconds,{name}"));
    assert!(lines.next().is_some_and(|line| measures.iter().any(|known| known == line)), "{text}");
    let point = |line: &str| {
        let parts: Vec<&str> = line.split(',').collect();
        (parts[0].to_owned(), parts[1].parse().unwrap(), parts[2].parse().unwrap())
    };
    lines.map(point).collect()
}

#[test]
fn a_node_and_a_run_on_its_blocks_are_plotted() {
    let mut node = Bitcoind::start(&["-logtimemicros=1"]);
    node.mine(150);
    node.restart(&["-reindex-chainstate", "-logtimemicros=0", "-logthreadnames=1"]);
    let deadline = Instant::now() + Duration::from_secs(60);
    while node.height() < 150 {
        assert!(Instant::now() < deadline, "the node makes no progress");
    }
    let sandbox = Sandbox::empty();
    node.dump_txoutset(&sandbox.path("node.dat"));
    let blocks = node.blocks_dir();
    sandbox
        .apus(&format!(
            "sync --chain regtest --blocksdir {} --hints snapshot:node.dat --report ours.json",
            blocks.display()
        ))
        .succeeds();
    fs::write(sandbox.path("debug.log"), node.log()).unwrap();

    let line =
        "plot ours.json debug.log --labels ours,core --baseline core --out a.svg --csv a.csv";
    let ended = sandbox.apus(line).succeeds();
    let ended = ended.says(&["start 2 of 2", "scripts assumed valid", "every script run"]);
    // A node on regtest validates all signatures, and our run used hints.
    let ended = ended.says(&["unlike", "not compared with core", "did not do the same work"]);
    sandbox.apus("plot ours.json debug.log --by bytes --out b.svg").fails(1, &["--blocksdir"]);
    let bytes_line =
        format!("plot ours.json debug.log --by bytes --blocksdir {} --csv b.csv", blocks.display());
    sandbox.apus(&bytes_line).succeeds();
    let bytes = points(&sandbox.read("b.csv"));
    let last = |label: &str| bytes.iter().rfind(|point| point.0 == label).unwrap().2;
    assert_eq!(last("ours"), last("debug"), "{bytes:?}");
    assert!(last("ours") > 150 * 200);
    sandbox.apus("plot ours.json --by transactions --out t.svg").fails(1, &["--blocksdir"]);
    // The mined blocks have one transaction each; the log shows that without the blocks.
    for (line, of) in [
        ("plot debug.log --by transactions --csv log.csv".to_owned(), "log.csv"),
        (bytes_line.replace("--by bytes", "--by transactions").replace("b.csv", "t.csv"), "t.csv"),
    ] {
        sandbox.apus(&line).succeeds().says(&["transactions"]);
        let csv = sandbox.read(of);
        assert!(csv.starts_with(b"label,seconds,transactions\n"));
        for label in ["ours", "debug"].iter().filter(|label| of == "t.csv" || **label == "debug") {
            let all = points(&csv);
            assert_eq!(all.iter().rfind(|point| point.0 == *label).unwrap().2, 150, "{all:?}");
        }
    }
    let ended = ended.says(&["Written: a.svg", "Written: a.csv"]);
    let row = |label: &str| ended.stdout.lines().find(|row| row.starts_with(label)).unwrap();
    for (label, program) in [("ours", "Apus swiftsync sha256, "), ("core", "Bitcoin ")] {
        assert!(row(label).contains(program) && row(label).contains(" 150 "), "{ended}");
        let svg = String::from_utf8(sandbox.read("a.svg")).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains(&format!(">\n{label}\n<")), "{svg}");
    }
    let csv = points(&sandbox.read("a.csv"));
    for label in ["ours", "core"] {
        let last = csv.iter().rfind(|point| point.0 == label).unwrap();
        assert_eq!(last.2, 150, "{csv:?}");
    }

    // The log of the first start has microseconds, so each block has its own time.
    sandbox.apus("plot debug.log --start 1 --csv first.csv").succeeds();
    let first = points(&sandbox.read("first.csv"));
    assert!(first.len() > 140, "{first:?}");
    assert!(first.windows(2).all(|pair| pair[0].1 < pair[1].1 && pair[0].2 <= pair[1].2));
    let no_start = "debug.log: the log has 2 starts of a node, but not start 3";
    sandbox.apus("plot debug.log --start 3").fails(1, &[no_start]);
    sandbox.apus("plot debug.log --start 1 --stopatheight 99 --csv cut.csv").succeeds();
    assert_eq!(points(&sandbox.read("cut.csv")).last().unwrap().2, 99);
}

#[test]
fn reports_are_drawn_and_nothing_is_overwritten() {
    let sandbox = Sandbox::with(MAIN);
    sandbox.apus(&format!("{SYNC} first.json")).succeeds();
    sandbox.apus(&format!("{SYNC} second.json --aggregate muhash")).succeeds();
    let ended = sandbox.apus("plot first.json second.json").succeeds();
    ended.says(&["Apus swiftsync muhash", "baseline", "4,521", "Written: plot.svg"]);
    for (line, said) in [
        ("plot first.json", "plot.svg exists already"),
        ("plot first.json --out first.json", "use a name that ends with .svg"),
        ("plot first.json --out x.PNG", "rsvg-convert"),
        ("plot first.json --out x.svg --csv x.svg", "x.svg is given twice"),
        ("plot first.json --labels a,b --out x.svg", "--labels: labels given: 2, runs: 1"),
        (
            "plot first.json --baseline b --out x.svg",
            "no run has the label \"b\": use one of \"first\"",
        ),
        ("plot", "<RUN>..."),
        ("plot first.json --scale square", "auto, linear, log"),
        ("plot first.json --start 0 --out x.svg", "--start"),
    ] {
        sandbox.apus(line).fails(1, &[said]);
    }
    let many = " first.json".repeat(22);
    sandbox.apus(&format!("plot{many} --out x.svg")).fails(1, &["22 runs", "21"]);
    sandbox.apus("plot first.json --out first.json/x.svg").fails(3, &["first.json: not a folder"]);
    sandbox.apus("plot first.json --out new/x.svg").succeeds();
    assert!(sandbox.has("new/x.svg"));
}

#[test]
fn errors_name_the_file_and_the_line() {
    let sandbox = Sandbox::with(MAIN);
    sandbox.apus(&format!("{SYNC} run.json")).succeeds();
    let text = String::from_utf8(sandbox.read("run.json")).unwrap();
    let bad = |from: &str, to: &str| {
        assert!(text.contains(from));
        sandbox.write("bad.json", text.replace(from, to).as_bytes());
        sandbox.apus("plot bad.json run.json --out x.svg")
    };
    bad("\"version\": 1", "\"version\": 2").fails(1, &["bad.json: this report has version 2"]);
    bad("\"threads\": ", "\"threads\": -").fails(1, &["bad.json:", "not a report of `apus sync"]);
    bad("\"series\"", "\"serious\"").fails(1, &["bad.json:", "missing field `series`"]);
    bad("\"wall_seconds\": ", "\"wall_seconds\": -")
        .fails(1, &["bad.json: ", "which is not a valid time"]);
    sandbox
        .write("cut.log", b"2026-11-22T00:00:00Z a\n2026-11-22T00:00:01Z UpdateTip: new best=00\n");
    sandbox
        .apus("plot cut.log --out x.svg")
        .fails(1, &["cut.log:2: the line of a block lacks a hash"]);
    sandbox.apus("plot node.dat --out x.svg").fails(1, &["node.dat: no line shows"]);
    sandbox.apus("plot none.json --out x.svg").fails(3, &["none.json: "]);
    sandbox.apus("plot blocks --out x.svg").fails(3, &["blocks: "]);
    sandbox.apus("plot run.json --stopatheight 9 --out x.svg").fails(1, &["ended at height 4521"]);
}
