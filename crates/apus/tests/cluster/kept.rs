//! Data directories with blocks and undo data, of what machines left: the files are those of one machine, and a node
//! starts on them.

use crate::cluster::joined::{bad, fails_alike_under};
use crate::cluster::world::{Process, World};
use crate::desk::{Desk, MAIN, REGTEST};
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::chain::{ChainBuilder, Shape};
use apus_testkit::effort::rounds;
use apus_testkit::rng::Rng;
use std::thread::sleep;
use std::time::Duration;

/// A run with a data directory in place of other outputs.
fn run(world: &World, more: &str) -> String {
    let files = "--out snapshot:utxo.dat --out hints:utxo.hints";
    world.join(&format!("--progress none {more}")).replace(files, "--out datadir:node")
}

/// Blocks and undo data are those that one machine writes, file by file.
#[track_caller]
pub(crate) fn expect_files_of_one_machine(world: &World, chain: &str, more: &str) {
    let line = format!(
        "sync --chain {chain} --blocksdir blocks --engine mergesync --out datadir:alone {more}"
    );
    world.desk.start_as_typed(&line).wait().succeeds();
    let folder = |name: &str| match chain {
        "main" => format!("{name}/blocks"),
        _ => format!("{name}/{chain}/blocks"),
    };
    let (shared, alone) = (folder("node"), folder("alone"));
    let names = world.desk.names(&alone);
    assert_eq!(world.desk.names(&shared), names);
    let files: Vec<_> = names.iter().filter(|name| name.ends_with(".dat")).collect();
    assert!(files.iter().any(|name| name.starts_with("rev")), "{files:?}");
    for name in files {
        let read = |folder: &str| world.desk.read(&format!("{folder}/{name}"));
        assert!(read(&shared) == read(&alone), "{name}");
    }
    assert!(!world.desk.has("progress.work"));
    assert_eq!(world.desk.names("objects"), [""; 0]);
    world.status("").succeeds().says(&["no run goes on"]);
}

#[test]
fn a_node_starts_on_what_machines_left() {
    let mut chain = ChainBuilder::new(1000);
    chain.empty_blocks(98);
    chain.random_blocks(60, Shape::default());
    let world = World::on(Desk::of(&chain), "regtest");
    let workers = [world.work("--par 1"), world.work("--par 1")];
    world.serve_run(&run(&world, "--segment-bytes 5000 --out utreexo:roots")).wait().succeeds();
    workers.into_iter().for_each(Process::leave);
    expect_files_of_one_machine(&world, "regtest", "--out utreexo:expected");
    assert!(world.desk.read("roots") == world.desk.read("expected"));
    let report = world.desk.json("report.json");
    // Each block and its undo data are read, all blocks disconnected and connected again.
    let checks = ["-checklevel=4", "-checkblocks=0", "-maxtipage=2000000000"];
    let node = Bitcoind::start_in(&world.desk.path("node"), "regtest", &checks).unwrap();
    let set = node.txoutset_info();
    assert_eq!(report["stop_hash"], set.best_block.to_string());
    assert_eq!(report["coins"], set.txouts);
    let all = format!("No coin database inconsistencies in last {} blocks", chain.height());
    assert!(node.log().contains(&all), "{}", node.log());
    node.stop();
}

/// More segments than are judged at a time; of the last blocks alone; jobs that are done twice.
#[test]
fn however_segments_are_cut_the_files_are_the_same() {
    for (fixture, more, audit) in [
        (MAIN, "--segment-bytes 1200", ""),
        (REGTEST, "--segment-bytes 9000 --prune", ""),
        (REGTEST, "--segment-bytes 4000", "--audit 50"),
    ] {
        let world = World::with(fixture);
        let workers = [world.work("--par 1 --stay"), world.work("--par 1 --stay")];
        world.serve_run(&run(&world, &format!("{more} --muhash {audit}"))).wait().succeeds();
        workers.into_iter().for_each(|worker| drop(worker.kill()));
        expect_files_of_one_machine(&world, fixture.chain, more);
        let report = world.desk.json("report.json");
        assert_eq!(report["muhash"], world.desk.json("gettxoutsetinfo.json")["muhash"]);
    }
}

#[test]
fn each_rule_is_kept_where_blocks_are() {
    for (reason, make) in bad().into_iter().step_by(3) {
        println!("{reason}");
        let mut chain = ChainBuilder::new(1001);
        chain.empty_blocks(98);
        chain.random_blocks(40, Shape::default());
        let wrong = make(&mut chain);
        chain.empty_blocks(12);
        fails_alike_under(&chain, &wrong, reason, "--segment-bytes 2500 --out datadir:node");
    }
}

/// A coordinator that is killed writes the directory anew, of what was answered.
#[test]
fn killed_at_any_moment_the_files_are_the_same() {
    for seed in 0..rounds(1, 34) {
        let mut rng = Rng::new(1010 + seed);
        let world = World::with(MAIN);
        let work = || world.work("--par 1 --stay");
        let mut workers = [work(), work()];
        let run = run(&world, "--segment-bytes 12000 --checkpoint-seconds 0");
        let mut serve = world.serve_run(&run);
        for _ in 0..5 {
            sleep(Duration::from_millis(rng.below(900)));
            let place = rng.below(4) as usize;
            if let Some(worker) = workers.get_mut(place) {
                std::mem::replace(worker, work()).kill();
                continue;
            }
            serve.kill();
            if world.desk.has("node") && !world.desk.has("progress.work") {
                // It was through.
                ["node", "report.json"].iter().for_each(|name| world.desk.remove(name));
            }
            serve = world.serve_run(&run);
        }
        serve.wait().succeeds();
        assert!(workers[0].until(|| world.desk.names("objects").is_empty()));
        workers.into_iter().for_each(|worker| drop(worker.kill()));
        expect_files_of_one_machine(&world, "main", "");
    }
}
