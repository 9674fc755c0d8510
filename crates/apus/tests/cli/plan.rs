//! What a run would take, said before it begins.

use crate::cli::memory::make_chain;
use crate::desk::{Desk, MAIN, REGTEST, fixtures};
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{ChainBuilder, Shape};
use std::fs;
use std::os::unix::fs::FileExt;

#[test]
fn a_plan_says_what_a_run_takes_and_writes_nothing() {
    let desk = Desk::with(REGTEST);
    let before = desk.names("");
    let line = "plan --blocksdir blocks --out datadir:new/node --out snapshot:s --par 2";
    let ended = desk.apus(line).succeeds();
    let parts = [
        "regtest: ",
        "of blocks in 1 file\n",
        "2 threads; one checks",
        "way             disk        memory      time                   fits\n",
        "with hints      ",
        "without hints   ",
        "  yes  <- this run\nin order        ",
        "for progress, which goes again\n",
        "for the data directory\n",
        "for the snapshot",
        "There is enough of everything without hints.",
    ];
    let ended = ended.says(&parts);
    assert_eq!(ended.stderr, "");
    assert_eq!(desk.names(""), before);
    let hinted = desk.apus("plan --blocksdir blocks --hints snapshot:node.dat --out snapshot:s");
    hinted.succeeds().says(&["some 20,326: ", "There is enough of everything with hints."]);
    let ordered = desk.apus("plan --blocksdir blocks --engine utxo").succeeds();
    ordered.says(&["for progress, which goes again", "There is enough of everything in order."]);
}

/// What a node says of them is known.
#[test]
fn the_coins_of_few_blocks_are_counted() {
    for (fixture, coins) in [(MAIN, "some 4,348: "), (REGTEST, "some 20,326: ")] {
        let desk = Desk::with(fixture);
        desk.apus("plan --blocksdir blocks").succeeds().says(&[coins]);
        desk.apus("plan --blocksdir blocks --hints msb.hints").succeeds().says(&[coins]);
    }
}

/// Each block of it is signed, and no plan without a look at that.
#[cfg(feature = "kernel")]
#[test]
fn a_plan_of_signet_is_made_of_its_blocks() {
    let desk = Desk::with(crate::desk::SIGNET);
    let info: serde_json::Value = desk.json("gettxoutsetinfo.json");
    let coins = format!("some {}: ", info["txouts"]);
    desk.apus("plan --blocksdir blocks").succeeds().says(&["signet: ", &coins]);
}

#[test]
fn a_plan_says_which_files_are_missing() {
    let mut chain = ChainBuilder::new(40);
    chain.random_blocks(30, Shape::default());
    let desk = Desk::empty();
    let mut files = BlockFiles::regtest().file_bytes_max(5_000);
    let places = files.blocks(&chain.blocks());
    files.write(&desk.path("blocks"));
    desk.remove("blocks/blk00001.dat");
    let first_of = |file: usize| places.iter().position(|place| place.file == file).unwrap();
    let end = format!("warning: the chain ends at block {} (", first_of(1) - 1);
    let beyond = format!("{} further blocks descend", 31 - first_of(2));
    let said = |ended: &str, words: &[&str]| {
        assert!(words.iter().all(|words| ended.contains(words)), "{ended}");
    };
    let ended = desk.apus("plan --blocksdir blocks").succeeds();
    said(&ended.stderr, &[&end, &beyond, "blk00001.dat is not in the folder"]);
    // Too much to be looked at whole: names tell.
    let blocks = desk.read("blocks/blk00000.dat");
    let large = fs::File::options().write(true).open(desk.path("blocks/blk00000.dat")).unwrap();
    large.set_len(300 << 20).unwrap();
    large.write_all_at(&blocks, 290 << 20).unwrap();
    let ended = desk.start("plan --blocksdir blocks").wait().succeeds();
    said(&ended.stderr, &["warning: blk00001.dat is not in the folder"]);
}

/// Each way has a line, and the one that the options ask for is marked.
#[test]
fn a_plan_marks_the_way_that_the_options_ask_for() {
    let desk = Desk::with(MAIN);
    for (line, way) in [
        ("", "without hints "),
        ("--assumevalid 0", "without hints "),
        ("--engine utxo", "in order "),
        ("--hints msb.hints", "with hints "),
    ] {
        let plan = desk.apus(&format!("plan --blocksdir blocks {line}")).succeeds();
        let marked = plan.stdout.lines().filter(|line| line.ends_with("yes  <- this run"));
        let marked: Vec<&str> = marked.collect();
        assert!(marked.len() == 1 && marked[0].starts_with(way), "{}", plan.stdout);
        let mut table = plan.stdout.lines().skip_while(|line| !line.starts_with("way ")).take(4);
        assert!(table.all(|line| line.chars().count() < 80), "{}", plan.stdout);
    }
}

#[test]
fn a_plan_for_a_node_knows_its_old_coins() {
    let desk = Desk::empty();
    desk.copy(&fixtures().join("regtest-315/regtest"), "node/regtest");
    for datadir in ["node", "node/regtest"] {
        let ended = desk.apus(&format!("plan --datadir {datadir}")).succeeds();
        ended.says(&["regtest: ", "for the chainstate", "the old chainstate, ", "stays until"]);
    }
}

#[test]
fn what_is_too_little_is_named() {
    let desk = Desk::with(REGTEST);
    // More than any machine has.
    let line = "plan --blocksdir blocks --dbcache 1048576";
    desk.apus(line).fails(3, &["too little for any way: ", "for which --dbcache ", " would do"]);
    // Claims more coins than any disk takes; what a file of its length can hold at most counts.
    desk.edit("node.dat", |bytes| bytes[43..51].copy_from_slice(&u64::MAX.to_le_bytes()));
    fs::File::options().write(true).open(desk.path("node.dat")).unwrap().set_len(1 << 43).unwrap();
    let line = "plan --blocksdir blocks --hints snapshot:node.dat --out chainstate:cs";
    let words =
        ["too little for any way: ", "with hints: disk at ", " would do, and progress can be "];
    desk.start(line).wait().fails(3, &words);
}

/// Hints lead to no undo data, which a node with all blocks needs; the other ways fit.
#[test]
fn a_way_that_does_not_fit_says_what_would_do() {
    let desk = Desk::with(REGTEST);
    let plan = desk.apus("plan --blocksdir blocks --out datadir:node").succeeds();
    let words =
        ["Too little with hints: undo data", "There is enough of everything without hints."];
    plan.says(&words);
}

#[test]
fn a_plan_of_nothing_says_what_to_give() {
    let desk = Desk::with(REGTEST);
    desk.apus("plan").fails(1, &["--datadir DIR", "--blocksdir DIR"]);
    desk.apus("plan --blocksdir nowhere").fails(3, &["nowhere"]);
    desk.apus("plan --blocksdir blocks --chain signet").fails(1, &["use --chain regtest"]);
    desk.apus("plan --datadir blocks").fails(1, &["no data directory"]);
}

#[test]
fn a_plan_of_what_cannot_be_says_so() {
    let desk = Desk::with(REGTEST);
    let plan = |line: &str| desk.apus(&format!("plan --blocksdir blocks {line}"));
    plan("--engine utxo --hints msb.hints").fails(1, &["utxo has no use for hints"]);
    plan("--engine swiftsync").fails(1, &["swiftsync needs --hints"]);
    plan("--engine utreexo").fails(1, &["utreexo", "cannot be foreseen"]);
    plan("--hints msb.hints --out datadir:node").fails(1, &["undo data", "--prune"]);
}

/// How long servers take it is for them to say; how much goes there is known.
#[cfg(feature = "remote-coins")]
#[test]
fn coins_on_servers_take_no_disk_here() {
    let desk = Desk::with(REGTEST);
    let plan = |line: &str| {
        let coins = "--coins redis://127.0.0.1:1/planned";
        desk.apus(&format!("plan --blocksdir blocks {coins} {line}"))
    };
    let ended = plan("--out snapshot:s").succeeds();
    ended.says(&["servers ", "0 B for progress", "in order        ", "cannot be foreseen"]);
    plan("--engine mergesync").fails(1, &["leave out --engine, or --coins"]);
}

/// Bytes of all files of a folder now.
fn on_disk(folder: &std::path::Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let each = entries.flatten().map(|entry| match entry.metadata() {
        Ok(about) if about.is_dir() => on_disk(&entry.path()),
        Ok(about) => about.len(),
        // It went away meanwhile.
        Err(_) => 0,
    });
    each.sum()
}

/// A size as a plan tells it, in bytes.
fn size(plan: &str, line: &str) -> f64 {
    let rest = plan.lines().find_map(|it| it.strip_prefix(line)).unwrap().trim();
    let mut words = rest.split(' ');
    let number: f64 = words.next().unwrap().parse().unwrap();
    let units = [("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9)];
    let unit = words.next().unwrap();
    number * units.iter().find(|(name, _)| *name == unit).unwrap().1
}

/// On a chain that is shaped like today's: what coins take beside blocks differs much between chains.
#[test]
fn a_run_takes_what_was_planned() {
    let desk = Desk::empty();
    make_chain(&desk, 20, true);
    let manifest = desk.json("chain/manifest.json");
    let assumed = manifest["assumevalid_hash"].as_str().unwrap();
    for (number, (hints, out)) in [
        ("", "snapshot:o/s"),
        ("", "datadir:o/n"),
        ("--engine utxo", "snapshot:o/s"),
        ("--engine utxo", "datadir:o/n"),
        ("--hints chain/chain.hints", "snapshot:o/s"),
        ("--hints chain/chain.hints", "chainstate:o/c"),
    ]
    .into_iter()
    .enumerate()
    {
        let what =
            format!("--blocksdir chain/blocks {hints} --out {out} --dbcache 4 --workdir o/w");
        // Scripts take nearly all of the time, so they run once.
        let assumed = if number == 0 { "0" } else { assumed };
        let plan = desk.apus(&format!("plan {what}")).succeeds().stdout;
        let disk = size(&plan, "disk of this run");
        let memory = ((4 + 100) << 20) as f64;
        let report = format!("report-{number}.json");
        let mut run = desk.start(&format!("sync {what} --assumevalid {assumed} --report {report}"));
        let mut peak = 0;
        run.until(|| {
            peak = peak.max(on_disk(&desk.path("o")));
            false
        });
        run.wait().succeeds();
        let peak = peak.max(on_disk(&desk.path("o"))) as f64;
        let is_near = peak <= 1.5 * disk && disk <= 1.5 * peak;
        assert!(is_near, "{hints} {out}: {peak} of {disk} bytes of disk");
        let rss = desk.json(&report)["rss_peak_bytes"].as_f64().unwrap();
        assert!(rss <= memory, "{hints} {out}: {rss} of {memory} bytes of memory");
        fs::remove_dir_all(desk.path("o")).unwrap();
    }
}
