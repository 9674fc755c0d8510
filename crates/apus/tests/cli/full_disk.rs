//! A disk that fills up at any moment: exit code 3, nothing half done, and the next start resumes.

use crate::sandbox::{REGTEST, Sandbox};

#[test]
fn a_run_survives_a_disk_that_fills_up_at_any_moment() {
    for hints in ["msb.hints", "snapshot:node.dat"] {
        let sandbox = Sandbox::with(REGTEST);
        let line = format!(
            "sync --chain regtest --blocksdir blocks --hints {hints} --segment-bytes 20000 \
             --out snapshot:utxo.dat --out hints:utxo.hints --report report.json"
        );
        // Limit files to 0, 512, 1024 ... bytes; the largest file is the set, with 191,468 bytes.
        for blocks in (0..10).chain((10..370).step_by(40)) {
            let ended = sandbox.start_with_small_files(blocks, &line).wait();
            let ended = ended.fails(3, &["File too large"]);
            assert!(!sandbox.has("utxo.dat"), "{ended}");
            if sandbox.has("report.json") {
                let failure = &sandbox.json("report.json")["failure"];
                assert!(failure["text"].as_str().unwrap().contains("File too large"), "{ended}");
            }
        }
        sandbox.start(&line).wait().succeeds();
        assert!(sandbox.read("utxo.dat") == sandbox.read("node.dat"));
        assert!(sandbox.read("utxo.hints") == sandbox.read("msb.hints"));
        assert!(
            !sandbox.names("").iter().any(|name| name.ends_with("work")),
            "the work folder is removed"
        );
    }
}

#[test]
fn a_conversion_leaves_nothing_half_done() {
    let sandbox = Sandbox::with(REGTEST);
    let before = sandbox.names("").len();
    for blocks in [0, 1, 5, 11] {
        let line = "hints convert msb.hints --to btcd --out new.hints";
        let ended = sandbox.start_with_small_files(blocks, line).wait();
        ended.fails(3, &["new.hints", "File too large"]);
        assert_eq!(sandbox.names("").len(), before);
    }
}

#[test]
fn a_report_that_cannot_be_written_costs_no_progress() {
    let sandbox = Sandbox::with(REGTEST);
    let line = "sync --chain regtest --blocksdir blocks --hints msb.hints --report report.json \
                --checkpoint-seconds 0 --workdir progress.work";
    std::fs::create_dir(sandbox.path("report.json.incomplete")).unwrap();
    sandbox.apus(line).fails(3, &["report.json: Is a directory", "progress is kept in"]);
    assert!(sandbox.has("progress.work/plan"));
    sandbox.remove("report.json.incomplete");
    sandbox.apus(line).succeeds();
    assert_eq!(sandbox.json("report.json")["stop_height"], 315);
}
