//! Killed, interrupted or started twice: the result is the same to the byte, or Apus refuses clearly.

use crate::sandbox::{Ended, REGTEST, Running, Sandbox};
use apus_testkit::rng::Rng;
use serde_json::Value;
use std::thread::sleep;
use std::time::Duration;

/// One block per segment: hundreds of moments at which the run may be killed.
const SYNC: &str = "sync --chain regtest --blocksdir blocks --hints msb.hints --segment-bytes 1 \
                    --muhash --checkpoint-seconds 0 --out snapshot:utxo.dat --out hints:utxo.hints --report report.json";

const WORK: &str = "utxo.dat.work";

/// Number of finished segments.
fn segments(sandbox: &Sandbox) -> usize {
    sandbox.names(WORK).iter().filter(|name| name.ends_with(".part")).count()
}

fn kill(run: Running) -> Ended {
    run.signal(&["KILL"]);
    run.wait()
}

/// Starts a run and stops it in the middle of its work.
fn halted(line: &str, mut reached: impl FnMut(&Sandbox) -> bool) -> (Sandbox, Running) {
    // A run that ends before it can be stopped proves nothing.
    for _ in 0..20 {
        let sandbox = Sandbox::with(REGTEST);
        let mut run = sandbox.start(line);
        let caught = run.until(|| reached(&sandbox));
        run.signal(&["STOP"]);
        if caught && !run.has_ended() {
            return (sandbox, run);
        }
    }
    panic!("never caught: {line}");
}

/// Checks that everything under an output's name is complete.
fn expect_nothing_half_done(sandbox: &Sandbox) {
    assert!(!sandbox.has("utxo.dat") || sandbox.read("utxo.dat") == sandbox.read("node.dat"));
    assert!(!sandbox.has("utxo.hints") || sandbox.read("utxo.hints") == sandbox.read("msb.hints"));
    assert!(!sandbox.has("report.json") || sandbox.json("report.json").is_object());
}

fn expect_done(sandbox: &Sandbox) {
    assert!(sandbox.read("utxo.dat") == sandbox.read("node.dat"));
    assert!(sandbox.read("utxo.hints") == sandbox.read("msb.hints"));
    assert!(!sandbox.has(WORK) && !sandbox.has("utxo.dat.incomplete"));
    let (report, node) = (sandbox.json("report.json"), sandbox.json("gettxoutsetinfo.json"));
    assert_eq!(report["hash_serialized_3"], node["hash_serialized_3"]);
    assert_eq!(report["muhash"], node["muhash"]);
}

/// A run that was interrupted after some segments.
fn interrupted() -> Sandbox {
    let (sandbox, run) = halted(SYNC, |sandbox| segments(sandbox) >= 3);
    run.signal(&["INT", "CONT"]);
    run.wait().fails(130, &[]);
    sandbox
}

#[test]
fn a_run_killed_after_any_number_of_segments_still_completes() {
    for seed in 0..3 {
        let mut rng = Rng::new(seed);
        let sandbox = Sandbox::with(REGTEST);
        let mut kills = 0;
        loop {
            let mut run = sandbox.start(&format!("{SYNC} --par {}", rng.between(1, 4)));
            let goal = segments(&sandbox) + rng.between(1, 120) as usize;
            run.until(|| segments(&sandbox) >= goal);
            if kill(run).code == Some(0) {
                break;
            }
            expect_nothing_half_done(&sandbox);
            kills += 1;
        }
        assert!(kills > 0, "seed {seed}");
        expect_done(&sandbox);
        assert!(sandbox.json("report.json")["segments_resumed"].as_u64() > Some(0), "seed {seed}");
    }
}

#[test]
fn a_run_killed_at_any_time_still_completes() {
    for seed in 0..3 {
        let mut rng = Rng::new(seed);
        let sandbox = Sandbox::with(REGTEST);
        for _ in 0..8 {
            let run = sandbox.start(&SYNC.replace("msb.hints", "snapshot:node.dat"));
            sleep(Duration::from_micros(rng.below(60_000)));
            kill(run);
            expect_nothing_half_done(&sandbox);
        }
        if !sandbox.has("report.json") || sandbox.has(WORK) {
            let line = SYNC.replace("msb.hints", "snapshot:node.dat");
            sandbox.start(&line).wait().succeeds();
        }
        expect_done(&sandbox);
    }
}

#[test]
fn a_run_killed_while_it_finishes_still_completes() {
    for moment in [
        "utxo.dat.work/lock",
        "utxo.dat.work/plan",
        "utxo.dat.incomplete",
        "utxo.hints.incomplete",
        "utxo.dat",
        "utxo.hints",
        "report.json.incomplete",
        "report.json",
    ] {
        let sandbox = Sandbox::with(REGTEST);
        let line = SYNC.replace("--segment-bytes 1", "--segment-bytes 9000");
        let mut run = sandbox.start(&line);
        run.until(|| sandbox.has(moment));
        let killed = kill(run);
        expect_nothing_half_done(&sandbox);
        let unfinished = sandbox.has("utxo.dat.work/plan") || !sandbox.has("report.json");
        if killed.code == Some(0) {
            expect_done(&sandbox);
            continue;
        }
        let again = sandbox.start(&line).wait();
        if unfinished {
            again.succeeds();
        } else {
            // The killed run had done everything except removing the empty folder and reporting.
            again.fails(1, &["utxo.dat exists already"]);
            if sandbox.has(WORK) {
                sandbox.remove(WORK);
            }
        }
        expect_done(&sandbox);
    }
}

#[test]
fn a_polite_signal_keeps_progress_and_says_so() {
    for signal in ["INT", "TERM"] {
        let (sandbox, run) = halted(SYNC, |sandbox| segments(sandbox) >= 3);
        run.signal(&[signal, "CONT"]);
        let said =
            ["interrupted", "progress is kept in utxo.dat.work", "Rerun the command to resume"];
        run.wait().fails(130, &said);
        assert!(!sandbox.has("utxo.dat"));
        assert_eq!(sandbox.json("report.json")["failure"]["class"], "interrupted");
        let kept = segments(&sandbox);
        let again = sandbox.apus(SYNC).succeeds();
        assert!(again.stderr.contains(&format!("resuming: {kept} of 315 segments done already")));
        expect_done(&sandbox);
        assert_eq!(sandbox.json("report.json")["segments_resumed"], kept);
    }
}

#[test]
fn a_signal_before_there_is_progress_says_so() {
    let (sandbox, run) = halted(SYNC, |sandbox| sandbox.has("utxo.dat.work/lock"));
    run.signal(&["INT", "CONT"]);
    let ended = run.wait();
    match segments(&sandbox) {
        1.. => ended.fails(130, &["progress is kept"]),
        0 => ended
            .fails(130, &["before there was progress to keep", "Rerun the command to start again"]),
    };
    sandbox.apus(SYNC).succeeds();
    expect_done(&sandbox);
}

#[test]
fn a_conversion_that_is_interrupted_leaves_nothing() {
    let line = "hints convert msb.hints --to bitmap --out new --chain regtest --blocksdir blocks";
    let (sandbox, run) = halted(line, |sandbox| sandbox.has("new.incomplete"));
    run.signal(&["INT", "CONT"]);
    let ended = run.wait();
    if ended.code == Some(130) {
        ended.fails(130, &["interrupted: nothing was written"]);
        assert!(!sandbox.has("new"));
    } else {
        // All blocks were done when the signal came.
        ended.succeeds();
        sandbox.apus("hints info new --from bitmap").succeeds();
    }
    assert!(!sandbox.has("new.incomplete"));
}

#[test]
fn a_second_run_on_the_same_folder_is_refused() {
    let (sandbox, first) = halted(SYNC, |sandbox| segments(sandbox) >= 1);
    let said = ["utxo.dat.work is in use by another sync", "--workdir"];
    sandbox.apus(SYNC).fails(1, &said);
    sandbox.apus(&SYNC.replace("utxo.hints", "other.hints")).fails(1, &said);
    first.signal(&["CONT"]);
    first.wait().succeeds();
    expect_done(&sandbox);
}

#[test]
fn progress_of_another_run_is_neither_used_nor_lost() {
    let sandbox = interrupted();
    let kept = segments(&sandbox);
    let remedies = ["finish that sync", "use another --workdir", "remove the folder"];
    for (line, what) in [
        (SYNC.replace("msb.hints", "lsb.hints"), "other hints"),
        (SYNC.replace("msb.hints", "snapshot:node.dat"), "other hints"),
        (format!("{SYNC} --aggregate muhash"), "another --aggregate"),
    ] {
        let ended =
            sandbox.apus(&line).fails(1, &["utxo.dat.work", "progress of another sync", what]);
        for remedy in remedies {
            assert!(ended.stderr.contains(remedy), "{ended}");
        }
        assert_eq!(segments(&sandbox), kept);
    }
    sandbox.apus(&format!("{SYNC} --stopatheight 300")).fails(1, &["height 300"]);
    sandbox.write("broken.hints", &sandbox.read("msb.hints")[..5000]);
    sandbox.apus(&SYNC.replace("msb.hints", "broken.hints")).fails(4, &["broken.hints"]);
    assert_eq!(segments(&sandbox), kept, "hints that were never used cost no progress");
    // Memory, threads and the progress display are not part of a run's identity.
    let other = " --dbcache 4 --par 3 --progress json";
    sandbox.apus(&(SYNC.replace("--segment-bytes 1", "--segment-bytes 7777") + other)).succeeds();
    expect_done(&sandbox);
}

/// The error does not blame `--aggregate`, which does not matter without hints.
#[test]
fn progress_with_and_without_hints_does_not_mix() {
    let with = SYNC.replace(" --muhash", "");
    let without = with.replace(" --hints msb.hints", "");
    for (first, then, what) in [
        (&without, &with, "(without hints)"),
        (&with, &without, "(with hints, or by another engine)"),
    ] {
        let (sandbox, run) = halted(first, |sandbox| segments(sandbox) >= 3);
        run.signal(&["INT", "CONT"]);
        run.wait().fails(130, &[]);
        for more in ["", " --stopatheight 315"] {
            let ended = sandbox.apus(&format!("{then}{more}")).fails(1, &["another sync", what]);
            assert!(!ended.stderr.contains("--aggregate"), "{ended}");
        }
        sandbox.apus(first).succeeds();
    }
}

/// If the finished segments lack a hash, a run cannot compute it for the whole set. It may drop a hash that they have.
#[test]
fn a_hash_cannot_be_added_to_a_run_later() {
    let without = SYNC.replace(" --muhash", "");
    let (sandbox, run) = halted(&without, |sandbox| segments(sandbox) >= 3);
    run.signal(&["INT", "CONT"]);
    run.wait().fails(130, &[]);
    sandbox
        .apus(SYNC)
        .fails(1, &["progress of another sync", "without the set's MuHash (--muhash)"]);
    sandbox.apus(&without).succeeds().says(&["not computed: add --muhash"]);
    assert_eq!(sandbox.json("report.json")["muhash"], Value::Null);
    assert!(sandbox.read("utxo.dat") == sandbox.read("node.dat"));

    let sandbox = interrupted();
    sandbox.apus(&without).succeeds();
    expect_done(&sandbox);
}

#[test]
fn other_runs_can_work_at_the_same_time() {
    let sandbox = interrupted();
    let other = SYNC.replace("utxo.", "other.").replace("report.json", "other.json");
    sandbox.apus(&other).succeeds();
    sandbox.apus("hints check lsb.hints --chain regtest --blocksdir blocks").succeeds();
    sandbox.apus(SYNC).succeeds();
    expect_done(&sandbox);
}
