//! Runs that are killed at any moment: the same command again ends in a folder that a node takes,
//! with the same set, and meanwhile nothing is lost.

use crate::desk::Desk;
use crate::handover::judge::{PRUNE, passes_all_checks, starts};
use crate::handover::refusals::{Files, tree};
use crate::handover::reindex::REINDEX;
use crate::handover::written::sync;
use crate::lived::Lived;
use apus_testkit::rng::Rng;
use std::thread::sleep;
use std::time::{Duration, Instant};

const CHAINSTATE: &str = "node/regtest/chainstate";

/// Kills between two runs that are left to their end.
const KILLS_IN_A_ROW: u32 = 8;

/// How long an undisturbed run takes.
fn duration(desk: &Desk, line: &str) -> Duration {
    let start = Instant::now();
    desk.start(line).wait().succeeds();
    start.elapsed()
}

/// Starts a run and kills it after some time below `most`; whether it was killed and not done before.
fn kill_after(desk: &Desk, line: &str, rng: &mut Rng, most: &mut Duration) -> bool {
    let (run, started) = (desk.start(line), Instant::now());
    sleep(Duration::from_micros(rng.below(most.as_micros() as u64)));
    run.signal(&["KILL"]);
    let ended = run.wait();
    let killed = ended.code.is_none();
    if !killed {
        ended.succeeds();
        // The machine may have had more to do when this was measured: few would be killed then.
        *most = (*most).min(started.elapsed());
    }
    killed
}

/// The folder that the run makes is there only if it is whole, but for a mark of the run's.
fn expect_whole_or_nothing(desk: &Desk, name: &str) {
    if desk.has(name) {
        for part in ["blocks/index/CURRENT", "chainstate/CURRENT"] {
            assert!(desk.has(&format!("{name}/regtest/{part}")), "{part}");
        }
    }
}

/// Whether the folder has its name and nothing is left to do about it.
fn is_done(desk: &Desk, name: &str) -> bool {
    desk.has(name) && !desk.has(&format!("{name}/apus.incomplete"))
}

/// Ends what was killed. A run that had only to clean up finds what it wrote, and says so at once.
fn finish(desk: &Desk, line: &str, name: &str) {
    let done = is_done(desk, name);
    let ended = desk.start(line).wait();
    match done {
        true => drop(ended.fails(1, &[name, "exists already"])),
        false => drop(ended.succeeds()),
    }
    assert!(is_done(desk, name) && !desk.has(&format!("{name}.incomplete")));
}

/// Removes all that a run leaves or makes.
fn clear(desk: &Desk) {
    for name in ["new", "new.work", "report.json"] {
        if desk.has(name) {
            desk.remove(name);
        }
    }
}

#[test]
fn a_data_directory_that_was_killed_on_its_way() {
    let lived = Lived::new(60, &["-fastprune"]);
    let desk = &lived.desk;
    let line = format!("{} --checkpoint-seconds 0", sync("--assumevalid 0", "datadir:new"));
    // Starts go on from one another, so that kills come at its end all the same.
    let mut most = duration(desk, &line) / 3;
    desk.remove("new");
    let (mut rng, mut kills) = (Rng::new(60), 0);
    while kills < 16 {
        if !kill_after(desk, &line, &mut rng, &mut most) {
            desk.remove("new");
            continue;
        }
        kills += 1;
        expect_whole_or_nothing(desk, "new");
        if kills % KILLS_IN_A_ROW == 0 || is_done(desk, "new") {
            finish(desk, &line, "new");
            passes_all_checks(&desk.path("new"), &lived.set).stop();
            clear(desk);
        }
    }
}

/// Each moment at which something gets its name.
#[test]
fn a_data_directory_that_was_killed_at_its_end() {
    let lived = Lived::new(61, &[]);
    let desk = &lived.desk;
    for (moment, pruned) in [
        ("new.incomplete", false),
        ("new.incomplete/regtest/blocks/rev00000.dat", false),
        ("new.incomplete/regtest/blocks/index", false),
        ("new.incomplete/regtest/chainstate", false),
        ("new.incomplete/regtest/chainstate/CURRENT", false),
        ("new.incomplete/regtest/blocks/index/CURRENT", true),
        ("new", false),
        ("new", true),
        ("report.json", false),
    ] {
        let way = if pruned { "--prune" } else { "--assumevalid 0" };
        let line = format!("{} --report report.json", sync(way, "datadir:new"));
        let mut run = desk.start(&line);
        run.until(|| desk.has(moment));
        run.signal(&["KILL"]);
        run.wait();
        expect_whole_or_nothing(desk, "new");
        // With its report there the run only has to end, and says that this exists.
        if !(is_done(desk, "new") && desk.has("report.json")) {
            finish(desk, &line, "new");
        }
        match pruned {
            true => starts(&desk.path("new"), &[PRUNE], &lived.set).stop(),
            false => passes_all_checks(&desk.path("new"), &lived.set).stop(),
        };
        clear(desk);
    }
}

/// The node's own coins are in their place, or aside, until new ones are in it.
#[test]
fn a_reindex_that_was_killed_on_its_way() {
    for (seed, most_kills, way) in
        [(62, 8, "--assumevalid 0"), (63, 16, "--hints snapshot:node.dat --segment-bytes 1")]
    {
        let lived = Lived::new(seed, &["-blocksxor=0"]);
        let desk = &lived.desk;
        let line = format!("{REINDEX} --replace --checkpoint-seconds 0 {way}");
        let mut most = duration(desk, &line);
        let (mut rng, mut kills) = (Rng::new(seed), 0);
        let mut before = Files::new();
        while kills < most_kills {
            // A chainstate with the mark is the killed run's, and the next one takes it back.
            if !desk.has(&format!("{CHAINSTATE}/apus.incomplete")) {
                before = tree(&desk.path(CHAINSTATE));
            }
            let killed = kill_after(desk, &line, &mut rng, &mut most);
            kills += u32::from(killed);
            expect_kept(desk, &before);
            if killed && kills % KILLS_IN_A_ROW == 0 || !desk.has(CHAINSTATE) {
                desk.start(&line).wait().succeeds();
                expect_kept(desk, &before);
                passes_all_checks(&desk.path("node"), &lived.set).stop();
            }
        }
    }
}

/// These files are the chainstate, or one that was moved aside.
fn expect_kept(desk: &Desk, before: &Files) {
    let names = desk.names("node/regtest");
    let here =
        names.iter().filter(|name| *name == "chainstate" || name.starts_with("chainstate.old"));
    let same = here.map(|name| tree(&desk.path(&format!("node/regtest/{name}"))));
    assert!(same.into_iter().any(|files| files == *before), "the old coins are gone: {names:?}");
}
