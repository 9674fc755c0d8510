//! Following the tip.

use crate::lived::{Lived, grow};
use crate::peers::connect;
use crate::sandbox::Running;
use apus_testkit::bitcoind::Bitcoind;
use std::time::Duration;

/// Waits until the sync reports that it waits at the node's tip.
fn settle(run: &mut Running, lived: &Lived, node: &Bitcoind) {
    let tip = node.best_block_hash().to_string();
    // The shell creates the file some time after its start.
    let log = || std::fs::read_to_string(lived.sandbox.path("log")).unwrap_or_default();
    let is_there = |line: &str| line.contains(r#""event":"waiting""#) && line.contains(&tip);
    for _ in 0..2400 {
        if log().lines().any(is_there) {
            return;
        }
        assert!(!run.has_ended(), "it ended: {}", log());
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("it never reached {tip}: {}", log());
}

/// After new blocks, a reorganisation and a clean end, the set is the node's.
#[test]
fn the_set_follows_new_blocks_and_reorganisations() {
    let (mut lived, node) = Lived::running(1, &["-maxtipage=2000000000"]);
    let line = format!(
        "sync --chain regtest --workdir w.work {} --follow --patience 10 --progress json --out snapshot:set.dat",
        connect(&node)
    );
    let mut run = lived.sandbox.start_in_shell("exec \"$0\" \"$@\" 2> log", &line);
    settle(&mut run, &lived, &node);
    for _ in 0..3 {
        grow(&mut lived.chain, &node, 1);
        settle(&mut run, &lived, &node);
    }
    // The sync does not give up if there are no new blocks.
    std::thread::sleep(Duration::from_secs(12));
    // Reorganise: replace the last three blocks by five others.
    let fork = lived.below_tip(3);
    lived.chain.set_tip(fork);
    grow(&mut lived.chain, &node, 5);
    assert_eq!(node.best_block_hash(), lived.chain.tip());
    settle(&mut run, &lived, &node);
    run.signal(&["INT"]);
    run.wait().succeeds();
    lived.sandbox.write_results(&lived.chain);
    assert!(lived.sandbox.read("set.dat") == lived.sandbox.read("node.dat"), "another set");
    let log = lived.sandbox.read("log");
    let log = String::from_utf8_lossy(&log);
    assert!(log.contains("progress is kept in w.work"), "{log}");

    // The same command resumes, and writes the set of the height where it ends.
    lived.sandbox.apus(&line).fails(1, &["set.dat exists already"]);
    lived.sandbox.remove("set.dat");
    grow(&mut lived.chain, &node, 2);
    let mut run = lived.sandbox.start_in_shell("exec \"$0\" \"$@\" 2> log", &line);
    settle(&mut run, &lived, &node);
    run.signal(&["INT"]);
    run.wait().succeeds();
    let log = lived.sandbox.read("log");
    let log = String::from_utf8_lossy(&log);
    assert!(log.contains(r#""event":"resumed""#), "{log}");
    lived.sandbox.write_results(&lived.chain);
    assert!(lived.sandbox.read("set.dat") == lived.sandbox.read("node.dat"), "another set");
}
