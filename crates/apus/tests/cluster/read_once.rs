//! Blocks whose scripts are taken for valid are read by the first walk alone: the second goes by what they claim.

use crate::cluster::joined::{bad, fails_alike_under};
use crate::cluster::world::{Process, World};
use crate::desk::Desk;
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{ChainBuilder, Shape};

/// Blocks above the assumed-valid one that make it old enough: two weeks of them, and some.
const TWO_WEEKS: usize = 2016 + 5;

/// A chain with coins that go from block to block, and which of its blocks is taken for valid.
pub(crate) fn buried(seed: u64, grow: impl FnOnce(&mut ChainBuilder)) -> (ChainBuilder, String) {
    let mut chain = ChainBuilder::new(seed);
    chain.empty_blocks(98);
    chain.random_blocks(60, Shape::default());
    grow(&mut chain);
    let assumed = chain.tip().to_string();
    chain.empty_blocks(TWO_WEEKS);
    (chain, assumed)
}

/// The first walk is done by a machine with all blocks, the rest by one that has those above the assumed-valid block.
fn second_walk_without_blocks(chain: &ChainBuilder, assumed: &str) -> (World, Process, Process) {
    let world = World::on(Desk::of(chain), "regtest");
    let mut files = BlockFiles::regtest();
    let blocks = chain.blocks();
    files.blocks(&blocks[blocks.len() - TWO_WEEKS..]);
    files.write(&world.desk.path("some"));
    let run =
        world.join(&format!("--segment-bytes 12000 --progress plain --assumevalid {assumed}"));
    let mut serve = world.serve_run(&run);
    assert!(serve.until(|| world.status("").stdout.contains("waiting")));
    serve.signal("STOP");
    let mut rich = world.work("--par 2 --name rich");
    let is_idle = || world.status("").stdout.contains(" 0 jobs under way, 0 waiting");
    assert!(rich.until(is_idle));
    rich.kill();
    let poor = world.work_on("some", "--par 2 --name poor --scratch scratch");
    serve.signal("CONT");
    (world, serve, poor)
}

#[test]
fn the_second_walk_needs_no_blocks_whose_scripts_are_taken_for_valid() {
    let (chain, assumed) = buried(950, |_| ());
    let (world, serve, poor) = second_walk_without_blocks(&chain, &assumed);
    serve.wait().succeeds();
    poor.wait().succeeds();
    let report = world.desk.json("report.json");
    assert_eq!(report["script_blocks"], TWO_WEEKS as u64);
    world.expect_done();
}

/// Where scripts are run the same machine is of no use.
#[test]
fn blocks_whose_scripts_are_run_are_read_again() {
    let (chain, _) = buried(951, |_| ());
    let (world, serve, poor) = second_walk_without_blocks(&chain, "0");
    poor.wait().fails(3, &["some has no block "]);
    let rich = world.work("--par 2");
    serve.wait().succeeds();
    rich.wait().succeeds();
    world.expect_done();
}

/// What breaks a rule is read again, and blamed with the words of a run on one machine.
#[test]
fn claims_let_no_wrong_block_pass() {
    for (reason, make) in bad() {
        if reason == "block-script-verify-flag-failed" {
            continue;
        }
        println!("{reason}");
        let mut wrong = None;
        let (chain, assumed) = buried(952, |chain| {
            wrong = Some(make(chain));
            chain.empty_blocks(3);
        });
        let more = format!("--segment-bytes 12000 --assumevalid {assumed}");
        fails_alike_under(&chain, &wrong.unwrap(), reason, &more);
    }
}
