//! Data directories with blocks and undo data, written from the machines' results: the files are the same as those of
//! one machine, and a node starts on them.

use crate::cluster::joined::{bad, fails_alike_under};
use crate::cluster::world::{Process, World};
use crate::sandbox::{MAIN, REGTEST, Sandbox};
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::chain::{ChainBuilder, Shape};
use apus_testkit::effort::rounds;
use apus_testkit::rng::Rng;
use std::thread::sleep;
use std::time::Duration;

/// A run with a data directory instead of other outputs.
fn run(world: &World, more: &str) -> String {
    let files = "--out snapshot:utxo.dat --out hints:utxo.hints";
    world.join(&format!("--progress none {more}")).replace(files, "--out datadir:node")
}

/// Asserts that the files of blocks and undo data are the same as on one machine.
#[track_caller]
pub(crate) fn expect_files_of_one_machine(world: &World, chain: &str, more: &str) {
    let line = format!(
        "sync --chain {chain} --blocksdir blocks --engine mergesync --out datadir:alone {more}"
    );
    world.sandbox.start_as_typed(&line).wait().succeeds();
    let folder = |name: &str| match chain {
        "main" => format!("{name}/blocks"),
        _ => format!("{name}/{chain}/blocks"),
    };
    let (shared, alone) = (folder("node"), folder("alone"));
    let names = world.sandbox.names(&alone);
    assert_eq!(world.sandbox.names(&shared), names);
    let files: Vec<_> = names.iter().filter(|name| name.ends_with(".dat")).collect();
    assert!(files.iter().any(|name| name.starts_with("rev")), "{files:?}");
    for name in files {
        let read = |folder: &str| world.sandbox.read(&format!("{folder}/{name}"));
        assert!(read(&shared) == read(&alone), "{name}");
    }
    assert!(!world.sandbox.has("progress.work"));
    assert_eq!(world.sandbox.names("objects"), [""; 0]);
    world.status("").succeeds().says(&["no active runs"]);
}

#[test]
fn a_node_starts_on_the_result_of_machines() {
    let mut chain = ChainBuilder::new(1000);
    chain.empty_blocks(98);
    chain.random_blocks(60, Shape::default());
    let world = World::on(Sandbox::of(&chain), "regtest");
    let workers = [world.work("--par 1"), world.work("--par 1")];
    world.serve_run(&run(&world, "--segment-bytes 5000 --out utreexo:roots")).wait().succeeds();
    workers.into_iter().for_each(Process::leave);
    expect_files_of_one_machine(&world, "regtest", "--out utreexo:expected");
    assert!(world.sandbox.read("roots") == world.sandbox.read("expected"));
    let report = world.sandbox.json("report.json");
    // The node reads each block and its undo data, disconnects all blocks and connects them again.
    let checks = ["-checklevel=4", "-checkblocks=0", "-maxtipage=2000000000"];
    let node = Bitcoind::start_in(&world.sandbox.path("node"), "regtest", &checks).unwrap();
    let set = node.txoutset_info();
    assert_eq!(report["stop_hash"], set.best_block.to_string());
    assert_eq!(report["coins"], set.txouts);
    let all = format!("No coin database inconsistencies in last {} blocks", chain.height());
    assert!(node.log().contains(&all), "{}", node.log());
    node.stop();
}

/// The cases are more segments than are validated at a time, only the last blocks, and jobs on two machines.
#[test]
fn segment_sizes_do_not_change_the_files() {
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
        let report = world.sandbox.json("report.json");
        assert_eq!(report["muhash"], world.sandbox.json("gettxoutsetinfo.json")["muhash"]);
    }
}

#[test]
fn each_rule_is_checked_if_blocks_are_kept() {
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

/// After a kill, the coordinator rewrites the directory from the answers.
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
            if world.sandbox.has("node") && !world.sandbox.has("progress.work") {
                // The killed coordinator had completed.
                ["node", "report.json"].iter().for_each(|name| world.sandbox.remove(name));
            }
            serve = world.serve_run(&run);
        }
        serve.wait().succeeds();
        assert!(workers[0].until(|| world.sandbox.names("objects").is_empty()));
        workers.into_iter().for_each(|worker| drop(worker.kill()));
        expect_files_of_one_machine(&world, "main", "");
    }
}
