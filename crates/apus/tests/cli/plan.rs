//! `apus plan`: what a sync needs, estimated before it starts.

use crate::cli::memory::make_chain;
use crate::sandbox::{MAIN, REGTEST, Sandbox, fixtures};
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{ChainBuilder, Shape};
use std::fs;
use std::os::unix::fs::FileExt;

#[test]
fn a_plan_shows_what_a_sync_needs_and_writes_nothing() {
    let sandbox = Sandbox::with(REGTEST);
    let before = sandbox.names("");
    let line = "plan --blocksdir blocks --out datadir:new/node --out snapshot:s --par 2";
    let ended = sandbox.apus(line).succeeds();
    let parts = [
        "regtest: ",
        "of blocks in 1 file\n",
        "2 threads; a thread checks",
        "method          disk      memory    time                 fits\n",
        "with hints      ",
        "without hints   ",
        "  yes  (your settings)\nin order        ",
        "of temporary files, deleted at the end\n",
        "for the data directory\n",
        "for the snapshot",
        "This machine has enough disk and memory to sync without hints.",
    ];
    let ended = ended.says(&parts);
    assert_eq!(ended.stderr, "");
    assert_eq!(sandbox.names(""), before);
    let indexed = sandbox.apus("plan --blocksdir blocks --out datadir:new/node --index all");
    indexed.succeeds().says(&["for the data directory\n", "for the indexes\n"]);
    let pruned = sandbox.apus("plan --blocksdir blocks --out datadir:n --prune --index txindex");
    pruned.fails(1, &["--index txindex needs all blocks, and --prune keeps only the last ones"]);
    let hinted = sandbox.apus("plan --blocksdir blocks --hints snapshot:node.dat --out snapshot:s");
    let enough = "This machine has enough disk and memory to sync";
    hinted.succeeds().says(&["coins              20,326, ", &format!("{enough} with hints.")]);
    let ordered = sandbox.apus("plan --blocksdir blocks --engine utxo").succeeds();
    ordered.says(&["of temporary files, deleted at the end", &format!("{enough} in order.")]);
}

/// The expected numbers come from a node.
#[test]
fn the_coins_of_few_blocks_are_counted() {
    for (fixture, coins) in
        [(MAIN, "coins              4,348, "), (REGTEST, "coins              20,326, ")]
    {
        let sandbox = Sandbox::with(fixture);
        sandbox.apus("plan --blocksdir blocks").succeeds().says(&[coins]);
        sandbox.apus("plan --blocksdir blocks --hints msb.hints").succeeds().says(&[coins]);
    }
}

/// A plan of signet checks the signatures of its blocks.
#[cfg(feature = "kernel")]
#[test]
fn a_plan_for_signet_reads_its_blocks() {
    let sandbox = Sandbox::with(crate::sandbox::SIGNET);
    let info: serde_json::Value = sandbox.json("gettxoutsetinfo.json");
    let coins = format!("coins              {}, ", info["txouts"]);
    sandbox.apus("plan --blocksdir blocks").succeeds().says(&["signet: ", &coins]);
}

#[test]
fn a_plan_names_missing_files() {
    let mut chain = ChainBuilder::new(40);
    chain.random_blocks(30, Shape::default());
    let sandbox = Sandbox::empty();
    let mut files = BlockFiles::regtest().file_bytes_max(5_000);
    let places = files.blocks(&chain.blocks());
    files.write(&sandbox.path("blocks"));
    sandbox.remove("blocks/blk00001.dat");
    let first_of = |file: usize| places.iter().position(|place| place.file == file).unwrap();
    let end = format!("warning: the chain ends at block {} (", first_of(1) - 1);
    let beyond = format!("{} further blocks descend", 31 - first_of(2));
    let expect_all = |ended: &str, words: &[&str]| {
        assert!(words.iter().all(|words| ended.contains(words)), "{ended}");
    };
    let ended = sandbox.apus("plan --blocksdir blocks").succeeds();
    expect_all(&ended.stderr, &[&end, &beyond, "blk00001.dat is not in the folder"]);
    // The folder is too large to read whole, but the files' names show the gap.
    let blocks = sandbox.read("blocks/blk00000.dat");
    let large = fs::File::options().write(true).open(sandbox.path("blocks/blk00000.dat")).unwrap();
    large.set_len(300 << 20).unwrap();
    large.write_all_at(&blocks, 290 << 20).unwrap();
    let ended = sandbox.start("plan --blocksdir blocks").wait().succeeds();
    expect_all(&ended.stderr, &["warning: blk00001.dat is not in the folder"]);
    // Apus cannot count the coins, either.
    ended.says(&["(estimate), "]);
}

/// Each method has a line, and the one that the options select is marked.
#[test]
fn a_plan_marks_the_selected_method() {
    let sandbox = Sandbox::with(MAIN);
    for (line, way) in [
        ("", "without hints "),
        ("--assumevalid 0", "without hints "),
        ("--engine utxo", "in order "),
        ("--hints msb.hints", "with hints "),
    ] {
        let plan = sandbox.apus(&format!("plan --blocksdir blocks {line}")).succeeds();
        let marked = plan.stdout.lines().filter(|line| line.ends_with("yes  (your settings)"));
        let marked: Vec<&str> = marked.collect();
        assert!(marked.len() == 1 && marked[0].starts_with(way), "{}", plan.stdout);
        let mut table = plan.stdout.lines().skip_while(|line| !line.starts_with("method ")).take(4);
        assert!(table.all(|line| line.chars().count() < 80), "{}", plan.stdout);
    }
}

#[test]
fn a_plan_for_a_node_knows_its_old_coins() {
    let sandbox = Sandbox::empty();
    sandbox.copy(&fixtures().join("regtest-315/regtest"), "node/regtest");
    for datadir in ["node", "node/regtest"] {
        let ended = sandbox.apus(&format!("plan --datadir {datadir}")).succeeds();
        ended.says(&["regtest: ", "for the chainstate", "the old chainstate takes "]);
    }
}

#[test]
fn a_plan_names_what_does_not_fit() {
    let sandbox = Sandbox::with(REGTEST);
    // No machine has this much memory.
    let line = "plan --blocksdir blocks --dbcache 1048576";
    sandbox
        .apus(line)
        .fails(3, &["no method fits", "not enough memory: a sync needs ", "Use --dbcache "]);
    // The header claims more coins than any disk holds; the plan bounds them by the file's length.
    sandbox.edit("node.dat", |bytes| bytes[43..51].copy_from_slice(&u64::MAX.to_le_bytes()));
    fs::File::options()
        .write(true)
        .open(sandbox.path("node.dat"))
        .unwrap()
        .set_len(1 << 43)
        .unwrap();
    let line = "plan --blocksdir blocks --hints snapshot:node.dat --out chainstate:cs";
    let words =
        ["no method fits", "with hints: not enough disk: ", " and has ", "with --workdir DIR"];
    sandbox.start(line).wait().fails(3, &words);
}

/// With hints, a node with all blocks needs undo data next to the blocks; the other methods fit.
#[test]
fn a_method_that_does_not_fit_has_a_remedy() {
    let sandbox = Sandbox::with(REGTEST);
    let plan = |more: &str| {
        let line = format!("plan --blocksdir blocks --out datadir:node {more}");
        sandbox.apus_as_typed(&line).succeeds()
    };
    plan("--hints msb.hints")
        .says(&["This machine has enough disk and memory to sync with hints."]);
    let why = "Not possible with hints: a data directory with all blocks needs undo data, which";
    let without = "This machine has enough disk and memory to sync without hints";
    let unproven =
        format!("{why} --assumevalid hints leaves unproven: leave it out, or use --prune");
    plan("--hints msb.hints --assumevalid hints").says(&[&unproven, without]);
    sandbox.remove("blocks/rev00000.dat");
    plan("--hints msb.hints --prune").says(&["to sync with hints."]);
    let missing = format!("{why} the blocks folder does not have: use --prune");
    plan("--hints msb.hints").says(&[&missing, without]);
    plan("").says(&[&missing, without]);
}

#[test]
fn a_plan_without_blocks_says_which_options_to_add() {
    let sandbox = Sandbox::with(REGTEST);
    sandbox.apus("plan").fails(1, &["--datadir DIR", "--blocksdir DIR"]);
    sandbox.apus("plan --blocksdir nowhere").fails(3, &["nowhere"]);
    sandbox.apus("plan --blocksdir blocks --chain signet").fails(1, &["use --chain regtest"]);
    sandbox.apus("plan --datadir blocks").fails(1, &["not the data directory"]);
}

#[test]
fn a_plan_rejects_contradictory_options() {
    let sandbox = Sandbox::with(REGTEST);
    let plan = |line: &str| sandbox.apus(&format!("plan --blocksdir blocks {line}"));
    plan("--engine utxo --hints msb.hints").fails(1, &["utxo takes no hints"]);
    plan("--engine swiftsync").fails(1, &["swiftsync needs --hints"]);
    plan("--engine utreexo").fails(1, &["utreexo", "cannot estimate"]);
}

/// The time that servers take cannot be estimated, but the bytes sent to them can.
#[cfg(feature = "remote-coins")]
#[test]
fn coins_on_servers_take_no_local_disk() {
    let sandbox = Sandbox::with(REGTEST);
    let plan = |line: &str| {
        let coins = "--coins redis://127.0.0.1:1/planned";
        sandbox.apus(&format!("plan --blocksdir blocks {coins} {line}"))
    };
    let ended = plan("--out snapshot:s").succeeds();
    ended.says(&["servers ", "0 B of temporary files", "in order        ", "unknown"]);
    plan("--engine mergesync").fails(1, &["leave out --engine, or --coins"]);
}

/// The total size of all files in a folder, in bytes.
fn on_disk(folder: &std::path::Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let each = entries.flatten().map(|entry| match entry.metadata() {
        Ok(about) if about.is_dir() => on_disk(&entry.path()),
        Ok(about) => about.len(),
        // It was deleted in the meantime.
        Err(_) => 0,
    });
    each.sum()
}

/// Parses a size that a plan shows, in bytes.
fn size(plan: &str, line: &str) -> f64 {
    let rest = plan.lines().find_map(|it| it.strip_prefix(line)).unwrap().trim();
    let mut words = rest.split(' ');
    let number: f64 = words.next().unwrap().parse().unwrap();
    let units = [("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9)];
    let unit = words.next().unwrap();
    number * units.iter().find(|(name, _)| *name == unit).unwrap().1
}

/// The chain is shaped like today's, since the ratio of coins to blocks differs much between chains.
#[test]
fn a_sync_uses_the_planned_resources() {
    let sandbox = Sandbox::empty();
    make_chain(&sandbox, 20, true);
    let manifest = sandbox.json("chain/manifest.json");
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
        // Scripts take nearly all of the time, so only one sync runs them.
        let assumed = if number == 0 { "0" } else { assumed };
        let plan = sandbox.apus(&format!("plan {what}")).succeeds().stdout;
        let disk = size(&plan, "disk needed");
        let memory = ((4 + 100) << 20) as f64;
        let report = format!("report-{number}.json");
        let mut run =
            sandbox.start(&format!("sync {what} --assumevalid {assumed} --report {report}"));
        let mut peak = 0;
        run.until(|| {
            peak = peak.max(on_disk(&sandbox.path("o")));
            false
        });
        run.wait().succeeds();
        let peak = peak.max(on_disk(&sandbox.path("o"))) as f64;
        let is_near = peak <= 1.5 * disk && disk <= 1.5 * peak;
        assert!(is_near, "{hints} {out}: {peak} of {disk} bytes of disk");
        let rss = sandbox.json(&report)["rss_peak_bytes"].as_f64().unwrap();
        assert!(rss <= memory, "{hints} {out}: {rss} of {memory} bytes of memory");
        fs::remove_dir_all(sandbox.path("o")).unwrap();
    }
}
