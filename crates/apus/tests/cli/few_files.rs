//! A run writes many more files than the system lets a process have open.

use crate::sandbox::{REGTEST, Sandbox};

#[test]
fn a_run_merges_more_files_than_it_may_have_open() {
    let sandbox = Sandbox::with(REGTEST);
    // One block per segment, each with its own files: 315 of each kind, on four threads.
    let line =
        "sync --chain regtest --blocksdir blocks --segment-bytes 1 --checkpoint-seconds 0 --par 4";
    for (engine, folder) in [
        ("--hints msb.hints", "hints"),
        ("--engine mergesync --out hints:mergesync.hints", "mergesync"),
        ("--engine mergesync --out utreexo:roots", "roots"),
    ] {
        let line = format!("{line} {engine} --out snapshot:{folder}.dat");
        sandbox.start_with_few_files(64, &line).wait().succeeds();
        assert!(sandbox.read(&format!("{folder}.dat")) == sandbox.read("node.dat"), "{engine}");
    }
    assert!(sandbox.read("mergesync.hints") == sandbox.read("msb.hints"));
}
