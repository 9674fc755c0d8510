//! Blocks with assumed-valid scripts are read only in the first pass: the second pass uses the notes of the first.

use crate::cluster::joined::{bad, fails_alike_under};
use crate::cluster::world::{Process, World};
use crate::sandbox::Sandbox;
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{ChainBuilder, Shape};

/// Blocks above the assumed-valid one that make it old enough: two weeks of them, and a few more.
const TWO_WEEKS: usize = 2016 + 5;

/// A chain with coins that move from block to block, and its assumed-valid block.
pub(crate) fn buried(seed: u64, grow: impl FnOnce(&mut ChainBuilder)) -> (ChainBuilder, String) {
    let mut chain = ChainBuilder::new(seed);
    chain.empty_blocks(98);
    chain.random_blocks(60, Shape::default());
    grow(&mut chain);
    let assumed = chain.tip().to_string();
    chain.empty_blocks(TWO_WEEKS);
    (chain, assumed)
}

/// A machine with all blocks runs the first pass; one with only the blocks above the assumed-valid block runs the rest.
fn second_pass_without_blocks(chain: &ChainBuilder, assumed: &str) -> (World, Process, Process) {
    let world = World::on(Sandbox::of(chain), "regtest");
    let mut files = BlockFiles::regtest();
    let blocks = chain.blocks();
    files.blocks(&blocks[blocks.len() - TWO_WEEKS..]);
    files.write(&world.sandbox.path("some"));
    let run =
        world.join(&format!("--segment-bytes 12000 --progress plain --assumevalid {assumed}"));
    let mut serve = world.serve_run(&run);
    assert!(serve.until(|| world.status("").stdout.contains("waiting")));
    serve.signal("STOP");
    let mut rich = world.work("--par 2 --name rich");
    let is_idle = || world.status("").stdout.contains(" 0 jobs under way, 0 waiting");
    assert!(rich.until(is_idle));
    rich.kill();
    let poor = world.work_on("some", "--par 2 --name poor --scratchdir scratch");
    serve.signal("CONT");
    (world, serve, poor)
}

#[test]
fn the_second_pass_needs_no_blocks_with_assumed_valid_scripts() {
    let (chain, assumed) = buried(950, |_| ());
    let (world, serve, poor) = second_pass_without_blocks(&chain, &assumed);
    serve.wait().succeeds();
    poor.wait().succeeds();
    let report = world.sandbox.json("report.json");
    assert_eq!(report["script_blocks"], TWO_WEEKS as u64);
    world.expect_done();
}

/// If scripts are run, the same machine cannot do the second pass.
#[test]
fn blocks_whose_scripts_are_run_are_read_again() {
    let (chain, _) = buried(951, |_| ());
    let (world, serve, poor) = second_pass_without_blocks(&chain, "0");
    poor.wait().fails(3, &["some: block "]);
    let rich = world.work("--par 2");
    serve.wait().succeeds();
    rich.wait().succeeds();
    world.expect_done();
}

/// A block that breaks a rule is read again, and gives the same error as on one machine.
#[test]
fn the_notes_let_no_invalid_block_pass() {
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
