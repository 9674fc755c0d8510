//! A disk that fills up at any moment: exit code 3, nothing half done, and the next start goes on.

use crate::desk::{Desk, REGTEST};

#[test]
fn a_run_survives_a_disk_that_fills_up_at_any_moment() {
    for hints in ["msb.hints", "snapshot:node.dat"] {
        let desk = Desk::with(REGTEST);
        let line = format!(
            "sync --chain regtest --blocksdir blocks --hints {hints} --segment-bytes 20000 \
             --out snapshot:utxo.dat --out hints:utxo.hints --report report.json"
        );
        // Files of 0, 512, 1024 ... bytes at most; the set is the longest, at 191,468 bytes.
        for blocks in (0..10).chain((10..370).step_by(40)) {
            let ended = desk.start_with_small_files(blocks, &line).wait();
            let ended = ended.fails(3, &["File too large"]);
            assert!(!desk.has("utxo.dat"), "{ended}");
            if desk.has("report.json") {
                let failure = &desk.json("report.json")["failure"];
                assert!(failure["text"].as_str().unwrap().contains("File too large"), "{ended}");
            }
        }
        desk.start(&line).wait().succeeds();
        assert!(desk.read("utxo.dat") == desk.read("node.dat"));
        assert!(desk.read("utxo.hints") == desk.read("msb.hints"));
        assert!(!desk.names("").iter().any(|name| name.ends_with("work")), "all is tidied up");
    }
}

#[test]
fn a_conversion_leaves_nothing_half_done() {
    let desk = Desk::with(REGTEST);
    let before = desk.names("").len();
    for blocks in [0, 1, 5, 11] {
        let line = "hints convert msb.hints --to btcd --out new.hints";
        let ended = desk.start_with_small_files(blocks, line).wait();
        ended.fails(3, &["new.hints", "File too large"]);
        assert_eq!(desk.names("").len(), before);
    }
}

#[test]
fn a_report_that_cannot_be_written_costs_no_progress() {
    let desk = Desk::with(REGTEST);
    let line = "sync --chain regtest --blocksdir blocks --hints msb.hints --report report.json \
                --checkpoint-seconds 0 --workdir progress.work";
    std::fs::create_dir(desk.path("report.json.incomplete")).unwrap();
    desk.apus(line).fails(3, &["report.json: Is a directory", "progress is kept in"]);
    assert!(desk.has("progress.work/plan"));
    desk.remove("report.json.incomplete");
    desk.apus(line).succeeds();
    assert_eq!(desk.json("report.json")["stop_height"], 315);
}
