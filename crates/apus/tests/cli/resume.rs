//! Killed, interrupted, started twice: the result is the same to the byte, or a clear refusal.

use crate::desk::{Desk, Ended, REGTEST, Running};
use apus_testkit::rng::Rng;
use serde_json::Value;
use std::thread::sleep;
use std::time::Duration;

/// One block a segment: hundreds of moments at which the world may end.
const SYNC: &str = "sync --chain regtest --blocksdir blocks --hints msb.hints --segment-bytes 1 \
                    --muhash --checkpoint-seconds 0 --out snapshot:utxo.dat --out hints:utxo.hints --report report.json";

const WORK: &str = "utxo.dat.work";

/// Segments that are done.
fn segments(desk: &Desk) -> usize {
    desk.names(WORK).iter().filter(|name| name.ends_with(".part")).count()
}

fn kill(run: Running) -> Ended {
    run.signal(&["KILL"]);
    run.wait()
}

/// A run that stands still in the middle of its work.
fn halted(line: &str, mut reached: impl FnMut(&Desk) -> bool) -> (Desk, Running) {
    // One that was too fast to be caught says nothing.
    for _ in 0..20 {
        let desk = Desk::with(REGTEST);
        let mut run = desk.start(line);
        let caught = run.until(|| reached(&desk));
        run.signal(&["STOP"]);
        if caught && !run.has_ended() {
            return (desk, run);
        }
    }
    panic!("never caught: {line}");
}

/// Whatever is there under an output's name is whole.
fn expect_nothing_half_done(desk: &Desk) {
    assert!(!desk.has("utxo.dat") || desk.read("utxo.dat") == desk.read("node.dat"));
    assert!(!desk.has("utxo.hints") || desk.read("utxo.hints") == desk.read("msb.hints"));
    assert!(!desk.has("report.json") || desk.json("report.json").is_object());
}

fn expect_done(desk: &Desk) {
    assert!(desk.read("utxo.dat") == desk.read("node.dat"));
    assert!(desk.read("utxo.hints") == desk.read("msb.hints"));
    assert!(!desk.has(WORK) && !desk.has("utxo.dat.incomplete"));
    let (report, node) = (desk.json("report.json"), desk.json("gettxoutsetinfo.json"));
    assert_eq!(report["hash_serialized_3"], node["hash_serialized_3"]);
    assert_eq!(report["muhash"], node["muhash"]);
}

/// A run that was interrupted after some segments.
fn interrupted() -> Desk {
    let (desk, run) = halted(SYNC, |desk| segments(desk) >= 3);
    run.signal(&["INT", "CONT"]);
    run.wait().fails(130, &[]);
    desk
}

#[test]
fn killed_after_any_number_of_segments_it_arrives_all_the_same() {
    for seed in 0..3 {
        let mut rng = Rng::new(seed);
        let desk = Desk::with(REGTEST);
        let mut kills = 0;
        loop {
            let mut run = desk.start(&format!("{SYNC} --par {}", rng.between(1, 4)));
            let goal = segments(&desk) + rng.between(1, 120) as usize;
            run.until(|| segments(&desk) >= goal);
            if kill(run).code == Some(0) {
                break;
            }
            expect_nothing_half_done(&desk);
            kills += 1;
        }
        assert!(kills > 0, "seed {seed}");
        expect_done(&desk);
        assert!(desk.json("report.json")["segments_resumed"].as_u64() > Some(0), "seed {seed}");
    }
}

#[test]
fn killed_after_any_time_it_arrives_all_the_same() {
    for seed in 0..3 {
        let mut rng = Rng::new(seed);
        let desk = Desk::with(REGTEST);
        for _ in 0..8 {
            let run = desk.start(&SYNC.replace("msb.hints", "snapshot:node.dat"));
            sleep(Duration::from_micros(rng.below(60_000)));
            kill(run);
            expect_nothing_half_done(&desk);
        }
        if !desk.has("report.json") || desk.has(WORK) {
            let line = SYNC.replace("msb.hints", "snapshot:node.dat");
            desk.start(&line).wait().succeeds();
        }
        expect_done(&desk);
    }
}

#[test]
fn killed_while_it_finishes_it_arrives_all_the_same() {
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
        let desk = Desk::with(REGTEST);
        let line = SYNC.replace("--segment-bytes 1", "--segment-bytes 9000");
        let mut run = desk.start(&line);
        run.until(|| desk.has(moment));
        let killed = kill(run);
        expect_nothing_half_done(&desk);
        let unfinished = desk.has("utxo.dat.work/plan") || !desk.has("report.json");
        if killed.code == Some(0) {
            expect_done(&desk);
            continue;
        }
        let again = desk.start(&line).wait();
        if unfinished {
            again.succeeds();
        } else {
            // All was done but for the empty folder, and was not said yet.
            again.fails(1, &["utxo.dat exists already"]);
            if desk.has(WORK) {
                desk.remove(WORK);
            }
        }
        expect_done(&desk);
    }
}

#[test]
fn a_polite_signal_keeps_progress_and_says_so() {
    for signal in ["INT", "TERM"] {
        let (desk, run) = halted(SYNC, |desk| segments(desk) >= 3);
        run.signal(&[signal, "CONT"]);
        let said = ["interrupted", "progress is kept in utxo.dat.work", "same command goes on"];
        run.wait().fails(130, &said);
        assert!(!desk.has("utxo.dat"));
        assert_eq!(desk.json("report.json")["failure"]["class"], "interrupted");
        let kept = segments(&desk);
        let again = desk.apus(SYNC).succeeds();
        assert!(again.stderr.contains(&format!("going on: {kept} of 315 segments are done")));
        expect_done(&desk);
        assert_eq!(desk.json("report.json")["segments_resumed"], kept);
    }
}

#[test]
fn a_signal_before_there_is_progress_says_so() {
    let (desk, run) = halted(SYNC, |desk| desk.has("utxo.dat.work/lock"));
    run.signal(&["INT", "CONT"]);
    let ended = run.wait();
    match segments(&desk) {
        1.. => ended.fails(130, &["progress is kept"]),
        0 => ended.fails(130, &["before there was progress to keep", "starts anew"]),
    };
    desk.apus(SYNC).succeeds();
    expect_done(&desk);
}

#[test]
fn a_conversion_that_is_interrupted_leaves_nothing() {
    let line = "hints convert msb.hints --to bitmap --out new --chain regtest --blocksdir blocks";
    let (desk, run) = halted(line, |desk| desk.has("new.incomplete"));
    run.signal(&["INT", "CONT"]);
    let ended = run.wait();
    if ended.code == Some(130) {
        ended.fails(130, &["interrupted; nothing was written"]);
        assert!(!desk.has("new"));
    } else {
        // All blocks were done when the signal came.
        ended.succeeds();
        desk.apus("hints info new --from bitmap").succeeds();
    }
    assert!(!desk.has("new.incomplete"));
}

#[test]
fn a_second_run_on_the_same_folder_is_refused() {
    let (desk, first) = halted(SYNC, |desk| segments(desk) >= 1);
    let said = ["utxo.dat.work is in use by another run", "--workdir"];
    desk.apus(SYNC).fails(1, &said);
    desk.apus(&SYNC.replace("utxo.hints", "other.hints")).fails(1, &said);
    first.signal(&["CONT"]);
    first.wait().succeeds();
    expect_done(&desk);
}

#[test]
fn progress_of_another_run_is_neither_used_nor_lost() {
    let desk = interrupted();
    let kept = segments(&desk);
    let remedies = ["finish that one", "name another --workdir", "remove the folder"];
    for (line, what) in [
        (SYNC.replace("msb.hints", "lsb.hints"), "other hints"),
        (SYNC.replace("msb.hints", "snapshot:node.dat"), "other hints"),
        (format!("{SYNC} --aggregate muhash"), "another --aggregate"),
    ] {
        let ended = desk.apus(&line).fails(1, &["utxo.dat.work", "progress of another run", what]);
        for remedy in remedies {
            assert!(ended.stderr.contains(remedy), "{ended}");
        }
        assert_eq!(segments(&desk), kept);
    }
    desk.apus(&format!("{SYNC} --stopatheight 300")).fails(1, &["height 300"]);
    desk.write("broken.hints", &desk.read("msb.hints")[..5000]);
    desk.apus(&SYNC.replace("msb.hints", "broken.hints")).fails(4, &["broken.hints"]);
    assert_eq!(segments(&desk), kept, "hints that were never used cost no progress");
    // Budgets, the number of threads and what is shown are no part of what a run is.
    let other = " --dbcache 4 --par 3 --progress json";
    desk.apus(&(SYNC.replace("--segment-bytes 1", "--segment-bytes 7777") + other)).succeeds();
    expect_done(&desk);
}

/// Which proof hints have is no question where there were none.
#[test]
fn progress_without_hints_is_not_that_of_a_run_with_them() {
    let with = SYNC.replace(" --muhash", "");
    let without = with.replace(" --hints msb.hints", "");
    for (first, then, what) in [
        (&without, &with, "(without hints)"),
        (&with, &without, "(with hints, or by another engine)"),
    ] {
        let (desk, run) = halted(first, |desk| segments(desk) >= 3);
        run.signal(&["INT", "CONT"]);
        run.wait().fails(130, &[]);
        for more in ["", " --stopatheight 315"] {
            let ended = desk.apus(&format!("{then}{more}")).fails(1, &["another run", what]);
            assert!(!ended.stderr.contains("--aggregate"), "{ended}");
        }
        desk.apus(first).succeeds();
    }
}

/// What was not computed of the segments that are done cannot be told of the whole. What was, may be left.
#[test]
fn a_hash_that_was_not_wanted_cannot_be_had_later() {
    let without = SYNC.replace(" --muhash", "");
    let (desk, run) = halted(&without, |desk| segments(desk) >= 3);
    run.signal(&["INT", "CONT"]);
    run.wait().fails(130, &[]);
    desk.apus(SYNC).fails(1, &["progress of another run", "without the set's MuHash (--muhash)"]);
    desk.apus(&without).succeeds().says(&["not computed: give --muhash"]);
    assert_eq!(desk.json("report.json")["muhash"], Value::Null);
    assert!(desk.read("utxo.dat") == desk.read("node.dat"));

    let desk = interrupted();
    desk.apus(&without).succeeds();
    expect_done(&desk);
}

#[test]
fn other_runs_go_on_beside() {
    let desk = interrupted();
    let other = SYNC.replace("utxo.", "other.").replace("report.json", "other.json");
    desk.apus(&other).succeeds();
    desk.apus("hints check lsb.hints --chain regtest --blocksdir blocks").succeeds();
    desk.apus(SYNC).succeeds();
    expect_done(&desk);
}
