//! Roots of the Utreexo forest from a shared join: each machine makes the fragments for its segments' leaves.

use crate::cluster::read_once::buried;
use crate::cluster::world::{Process, World};
use crate::sandbox::{Fixture, MAIN, REGTEST, Sandbox};
use apus_testkit::effort::rounds;
use apus_testkit::rng::Rng;
use std::thread::sleep;
use std::time::Duration;

/// The result of one machine for the same blocks.
fn alone(world: &World, chain: &str, more: &str) -> Vec<u8> {
    let line = format!(
        "sync --chain {chain} --blocksdir blocks --engine mergesync --out utreexo:alone {more}"
    );
    world.sandbox.start_as_typed(&line).wait().succeeds();
    world.sandbox.read("alone")
}

fn run(world: &World, more: &str) -> String {
    world.join(&format!("--progress none --out utreexo:roots {more}"))
}

#[test]
fn the_roots_are_the_same_as_on_one_machine() {
    let cases: [(Fixture, usize, &str); 3] = [
        (MAIN, 1, "--segment-bytes 60000"),
        (MAIN, 2, "--segment-bytes 9000"),
        (REGTEST, 3, "--segment-bytes 3000 --audit 50"),
    ];
    for (fixture, count, more) in cases {
        let world = World::with(fixture);
        let workers: Vec<_> = (0..count).map(|_| world.work("--par 1 --stay")).collect();
        world.serve_run(&run(&world, more)).wait().succeeds();
        workers.into_iter().for_each(|worker| drop(worker.kill()));
        assert!(world.sandbox.read("roots") == alone(&world, fixture.chain, ""));
        let report = &world.sandbox.json("report.json")["utreexo"];
        assert!(report["leaves"].as_u64().unwrap() > 0);
        world.expect_done();
    }
}

/// Stripped coins lack the numbers that follow other coins.
#[test]
fn blocks_that_are_read_once_give_roots_as_well() {
    let (chain, assumed) = buried(980, |_| ());
    let world = World::on(Sandbox::of(&chain), "regtest");
    let workers = [world.work("--par 1"), world.work("--par 1")];
    let assumed = format!("--assumevalid {assumed} --segment-bytes 12000");
    world.serve_run(&run(&world, &assumed)).wait().succeeds();
    workers.into_iter().for_each(Process::leave);
    assert!(world.sandbox.read("roots") == alone(&world, "regtest", "--assumevalid 0"));
    world.expect_done();
}

/// Any machine may be killed at any time.
#[test]
fn killed_at_any_moment_the_roots_are_the_same() {
    for seed in 0..rounds(1, 34) {
        let mut rng = Rng::new(990 + seed);
        let world = World::with(MAIN);
        let work = || world.work("--par 1 --stay");
        let mut workers = [work(), work()];
        let run = run(&world, "--segment-bytes 12000 --checkpoint-seconds 0");
        let mut serve = world.serve_run(&run);
        for _ in 0..4 {
            sleep(Duration::from_millis(rng.below(900)));
            let place = rng.below(3) as usize;
            if let Some(worker) = workers.get_mut(place) {
                std::mem::replace(worker, work()).kill();
                continue;
            }
            serve.kill();
            if world.sandbox.has("utxo.dat") && !world.sandbox.has("progress.work") {
                // The killed coordinator had completed.
                for name in ["utxo.dat", "utxo.hints", "report.json", "roots"] {
                    world.sandbox.remove(name);
                }
            }
            serve = world.serve_run(&run);
        }
        serve.wait().succeeds();
        assert!(workers[0].until(|| world.sandbox.names("objects").is_empty()));
        workers.into_iter().for_each(|worker| drop(worker.kill()));
        assert!(world.sandbox.read("roots") == alone(&world, "main", ""));
        world.expect_done();
    }
}
