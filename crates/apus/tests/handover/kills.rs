//! Runs that are killed at any moment: rerunning the command produces a folder that a node accepts, with the same
//! set, and never loses a node's coins.

use crate::handover::node_checks::{PRUNE, passes_all_checks, starts};
use crate::handover::refusals::{Files, tree};
use crate::handover::reindex::REINDEX;
use crate::handover::written::sync;
use crate::lived::Lived;
use crate::sandbox::Sandbox;
use apus_testkit::rng::Rng;
use std::thread::sleep;
use std::time::{Duration, Instant};

const CHAINSTATE: &str = "node/regtest/chainstate";

/// Number of kills before a run may finish.
const KILLS_IN_A_ROW: u32 = 8;

/// Measures how long an undisturbed run takes.
fn duration(sandbox: &Sandbox, line: &str) -> Duration {
    let start = Instant::now();
    sandbox.start(line).wait().succeeds();
    start.elapsed()
}

/// Starts a run and kills it after a random time below `most`; returns whether the kill came before the end.
fn kill_after(sandbox: &Sandbox, line: &str, rng: &mut Rng, most: &mut Duration) -> bool {
    let (run, started) = (sandbox.start(line), Instant::now());
    sleep(Duration::from_micros(rng.below(most.as_micros() as u64)));
    run.signal(&["KILL"]);
    let ended = run.wait();
    let killed = ended.code.is_none();
    if !killed {
        ended.succeeds();
        // The machine may have been busier when this was measured; then few runs would be killed.
        *most = (*most).min(started.elapsed());
    }
    killed
}

/// Asserts that the run's folder exists only if it is complete, except for a mark of the run.
fn expect_whole_or_nothing(sandbox: &Sandbox, name: &str) {
    if sandbox.has(name) {
        for part in ["blocks/index/CURRENT", "chainstate/CURRENT"] {
            assert!(sandbox.has(&format!("{name}/regtest/{part}")), "{part}");
        }
    }
}

/// Whether the folder has its name and nothing is left to do.
fn is_done(sandbox: &Sandbox, name: &str) -> bool {
    sandbox.has(name) && !sandbox.has(&format!("{name}/apus.incomplete"))
}

/// Finishes a killed run. A run that only had to clean up finds its output, and says so at once.
fn finish(sandbox: &Sandbox, line: &str, name: &str) {
    let done = is_done(sandbox, name);
    let ended = sandbox.start(line).wait();
    match done {
        true => drop(ended.fails(1, &[name, "exists already"])),
        false => drop(ended.succeeds()),
    }
    assert!(is_done(sandbox, name) && !sandbox.has(&format!("{name}.incomplete")));
}

/// Removes everything that a run writes.
fn clear(sandbox: &Sandbox) {
    for name in ["new", "new.work", "report.json"] {
        if sandbox.has(name) {
            sandbox.remove(name);
        }
    }
}

#[test]
fn a_data_directory_survives_kills_while_it_is_made() {
    let lived = Lived::new(60, &["-fastprune"]);
    let sandbox = &lived.sandbox;
    let line = format!("{} --checkpoint-seconds 0", sync("--assumevalid 0", "datadir:new"));
    // Each start resumes the previous one, so some kills still happen at the end.
    let mut most = duration(sandbox, &line) / 3;
    sandbox.remove("new");
    let (mut rng, mut kills) = (Rng::new(60), 0);
    while kills < 16 {
        if !kill_after(sandbox, &line, &mut rng, &mut most) {
            sandbox.remove("new");
            continue;
        }
        kills += 1;
        expect_whole_or_nothing(sandbox, "new");
        if kills % KILLS_IN_A_ROW == 0 || is_done(sandbox, "new") {
            finish(sandbox, &line, "new");
            passes_all_checks(&sandbox.path("new"), &lived.set).stop();
            clear(sandbox);
        }
    }
}

/// Kills the run whenever a file or folder gets its final name.
#[test]
fn a_data_directory_survives_kills_at_the_end() {
    let lived = Lived::new(61, &[]);
    let sandbox = &lived.sandbox;
    let (full, hinted, prune) = ("--assumevalid 0", "--hints msb.hints --assumevalid 0", "--prune");
    for (moment, way) in [
        ("new.incomplete", full),
        ("new.incomplete/regtest/blocks/rev00000.dat", full),
        ("new.incomplete/regtest/blocks/rev00000.dat", hinted),
        ("new.incomplete/regtest/blocks/index", full),
        ("new.incomplete/regtest/blocks/index", hinted),
        ("new.incomplete/regtest/chainstate", full),
        ("new.incomplete/regtest/chainstate/CURRENT", full),
        ("new.incomplete/regtest/chainstate/CURRENT", hinted),
        ("new.incomplete/regtest/blocks/index/CURRENT", prune),
        ("new", full),
        ("new", hinted),
        ("new", prune),
        ("report.json", full),
    ] {
        let line = format!("{} --report report.json", sync(way, "datadir:new"));
        let mut run = sandbox.start(&line);
        run.until(|| sandbox.has(moment));
        run.signal(&["KILL"]);
        run.wait();
        expect_whole_or_nothing(sandbox, "new");
        // Once the report exists, nothing is left to finish: a new run would only say that the folder exists.
        if !(is_done(sandbox, "new") && sandbox.has("report.json")) {
            finish(sandbox, &line, "new");
        }
        match way == prune {
            true => starts(&sandbox.path("new"), &[PRUNE], &lived.set).stop(),
            false => passes_all_checks(&sandbox.path("new"), &lived.set).stop(),
        };
        clear(sandbox);
    }
}

/// The node's old coins are in place, or moved aside, until the new ones are in place.
#[test]
fn a_reindex_survives_kills() {
    for (seed, most_kills, way) in
        [(62, 8, "--assumevalid 0"), (63, 16, "--hints snapshot:node.dat --segment-bytes 1")]
    {
        let lived = Lived::new(seed, &["-blocksxor=0"]);
        let sandbox = &lived.sandbox;
        let line = format!("{REINDEX} --replace --checkpoint-seconds 0 {way}");
        let mut most = duration(sandbox, &line);
        let (mut rng, mut kills) = (Rng::new(seed), 0);
        let mut before = Files::new();
        while kills < most_kills {
            // A chainstate with the mark belongs to the killed run, and the next run takes it back.
            if !sandbox.has(&format!("{CHAINSTATE}/apus.incomplete")) {
                before = tree(&sandbox.path(CHAINSTATE));
            }
            let killed = kill_after(sandbox, &line, &mut rng, &mut most);
            kills += u32::from(killed);
            expect_kept(sandbox, &before);
            if killed && kills % KILLS_IN_A_ROW == 0 || !sandbox.has(CHAINSTATE) {
                sandbox.start(&line).wait().succeeds();
                expect_kept(sandbox, &before);
                passes_all_checks(&sandbox.path("node"), &lived.set).stop();
            }
        }
    }
}

/// Asserts that these files are the chainstate, or one that was moved aside.
fn expect_kept(sandbox: &Sandbox, before: &Files) {
    let names = sandbox.names("node/regtest");
    let here =
        names.iter().filter(|name| *name == "chainstate" || name.starts_with("chainstate.old"));
    let same = here.map(|name| tree(&sandbox.path(&format!("node/regtest/{name}"))));
    assert!(same.into_iter().any(|files| files == *before), "the old coins are gone: {names:?}");
}
