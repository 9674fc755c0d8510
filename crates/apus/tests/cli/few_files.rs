//! A system that lets a process have few files open, where a run leaves many more than that.

use crate::desk::{Desk, REGTEST};

#[test]
fn a_run_merges_more_files_than_it_may_have_open() {
    let desk = Desk::with(REGTEST);
    // One block a segment, each in files: 315 of each kind, on four threads.
    let line =
        "sync --chain regtest --blocksdir blocks --segment-bytes 1 --checkpoint-seconds 0 --par 4";
    for (engine, folder) in [
        ("--hints msb.hints", "hints"),
        ("--engine mergesync --out hints:mergesync.hints", "mergesync"),
        ("--engine mergesync --out utreexo:roots", "roots"),
    ] {
        let line = format!("{line} {engine} --out snapshot:{folder}.dat");
        desk.start_with_few_files(64, &line).wait().succeeds();
        assert!(desk.read(&format!("{folder}.dat")) == desk.read("node.dat"), "{engine}");
    }
    assert!(desk.read("mergesync.hints") == desk.read("msb.hints"));
}
