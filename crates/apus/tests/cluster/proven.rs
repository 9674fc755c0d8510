//! Ranges that machines validate by proofs: the roots are those of one machine, and what is wrong is told as there.

use crate::bridge::{Told, tell, tell_with};
use crate::cluster::joined::bad;
use crate::cluster::world::{Process, World, told};
use crate::desk::Desk;
use crate::proof_files::write_files;
use apus_chain::HeightRange;
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind, Shape};
use apus_testkit::effort::rounds;
use apus_testkit::rng::Rng;
use apus_testkit::utreexod::Utreexod;
use apus_utreexo::NodeHash;
use bitcoin::{Block, Network};
use std::thread::sleep;
use std::time::Duration;

fn grown(seed: u64) -> ChainBuilder {
    let mut chain = ChainBuilder::new(seed);
    chain.empty_blocks(98);
    chain.random_blocks(50, Shape::default());
    chain
}

/// Ranges of so many blocks.
fn ranges(blocks: &[Block], each: usize) -> Vec<HeightRange> {
    let end = blocks.len() as u32;
    let starts = (1..end).step_by(each);
    starts.map(|start| HeightRange::new(start, end.min(start + each as u32))).collect()
}

/// A chain with files of its proofs.
fn world_of(chain: &ChainBuilder, each: usize) -> World {
    let world = World::on(Desk::of(chain), "regtest");
    let blocks = chain.blocks();
    write_files(
        &world.desk,
        Network::Regtest,
        "proofs",
        &blocks,
        &tell(&blocks),
        &ranges(&blocks, each),
    );
    world
}

const RUN: &str = "--chain regtest --blocksdir blocks --proofs proofs --workdir progress.work \
                   --assumevalid 0";

const OUT: &str = "--out utreexo:roots --report report.json";

const WORK: &str = "--proofs proofs --par 1";

/// The roots are those that another engine computes of the blocks alone, and nothing else is left.
#[track_caller]
fn expect_roots(world: &World) {
    if !world.desk.has("expected") {
        let line =
            "sync --chain regtest --blocksdir blocks --engine mergesync --out utreexo:expected";
        world.desk.apus(line).succeeds();
    }
    assert!(world.desk.read("roots") == world.desk.read("expected"));
    assert!(!world.desk.has("progress.work"));
    assert_eq!(world.desk.names("objects"), [""; 0]);
    world.status("").succeeds().says(&["no run goes on"]);
}

#[test]
fn any_number_of_workers_comes_to_the_same_roots() {
    for (seed, count, each) in [(960, 1, 40), (961, 2, 5), (962, 5, 1)] {
        let chain = grown(seed);
        let world = world_of(&chain, each);
        let workers: Vec<_> = (0..count).map(|_| world.work(WORK)).collect();
        let ended = world.serve_run(&format!("{RUN} {OUT}")).wait().succeeds();
        assert!(ended.stdout.contains("no set was kept"), "{ended}");
        workers.into_iter().for_each(Process::leave);
        let report = world.desk.json("report.json");
        assert_eq!((&report["engine"], &report["validation"]), (&"utreexo".into(), &"full".into()));
        assert_eq!(report["script_blocks"], chain.height());
        let shares = report["cluster"]["workers"].as_array().unwrap();
        let blocks: u64 = shares.iter().map(|share| share["blocks"].as_u64().unwrap()).sum();
        assert_eq!(blocks, u64::from(chain.height()));
        let line = format!("sync {RUN} --out utreexo:alone --report alone.json");
        world.desk.apus(&line.replace("progress.work", "alone.work")).succeeds();
        let alone = world.desk.json("alone.json");
        for field in ["coins", "amount_sat", "bogosize", "utreexo", "stop_hash", "verified"] {
            assert_eq!(report[field], alone[field], "{field}");
        }
        expect_roots(&world);
    }
}

/// Nothing is written; jobs are done twice.
#[test]
fn ranges_that_are_done_twice_come_to_the_same() {
    let world = world_of(&grown(963), 4);
    let workers =
        ["first", "second"].map(|name| world.work(&format!("{WORK} --stay --name {name}")));
    world.serve_run(&format!("{RUN} --audit 100")).wait().succeeds();
    workers.into_iter().for_each(|worker| drop(worker.kill()));
    assert_eq!(world.desk.names("objects"), [""; 0]);
}

/// What a machine lacks is done by others; one that has no proofs at all says what it needs.
#[test]
fn a_machine_without_all_files_leaves_ranges_to_others() {
    let chain = grown(964);
    let world = world_of(&chain, 10);
    let blocks = chain.blocks();
    let some = &ranges(&blocks, 10)[..6];
    write_files(&world.desk, Network::Regtest, "some", &blocks, &tell(&blocks), some);
    let serve = world.serve_run(&format!("{RUN} {OUT} --progress plain"));
    world.work("--par 1").wait().fails(1, &["goes by proofs", "--proofs DIR"]);
    let poor = world.work("--proofs some --par 1 --name poor");
    poor.wait().fails(3, &["some/proofs-000000", "went to others"]);
    let rich = world.work(WORK);
    let ended = serve.wait().succeeds();
    assert!(ended.stderr.contains("warning: poor could not do blocks 61 to 70"), "{ended}");
    rich.wait().succeeds();
    expect_roots(&world);
}

/// Files of another forest, of which a machine says so before it goes by them.
#[test]
fn a_machine_with_other_roots_is_found_out() {
    let chain = grown(965);
    let world = world_of(&chain, 10);
    let blocks = chain.blocks();
    let mut other = tell(&blocks);
    let mut fragment = apus_utreexo::Fragment::new(0).unwrap();
    (0..other.roots[20].leaves()).for_each(|_| fragment.push(NodeHash([7; 32])).unwrap());
    other.roots[20] = fragment.roots().unwrap();
    write_files(&world.desk, Network::Regtest, "other", &blocks, &other, &ranges(&blocks, 10));
    let serve = world.serve_run(&format!("{RUN} {OUT} --progress plain"));
    // It does all but the two ranges that meet there.
    let poor = world.work("--proofs other --par 1 --name poor");
    poor.wait().fails(3, &["with other roots than those of the run"]);
    let rich = world.work(WORK);
    let ended = serve.wait().succeeds();
    assert!(ended.stderr.contains("warning: poor could not do blocks 11 to 20"), "{ended}");
    rich.wait().succeeds();
    expect_roots(&world);
}

/// A run fails with the same words on one machine and on several.
fn fails_alike(world: &World, code: i32, said: &[&str]) {
    // Of lies at one border the lower range tells by one thread; of two threads, who finds one first.
    let alone = format!("sync {RUN} {OUT} --par 1");
    let alone = world.desk.start_as_typed(&alone).wait().fails(code, said);
    world.desk.remove("progress.work");
    let workers = [world.work(WORK), world.work(&WORK.replace('1', "2"))];
    let shared = world.serve_run(&format!("{RUN} {OUT}")).wait().fails(code, said);
    assert_eq!(told(&alone), told(&shared));
    assert!(!world.desk.has("roots"));
    workers.into_iter().for_each(Process::leave);
    world.status("").succeeds().says(&["no run goes on"]);
    assert_eq!(world.desk.names("objects"), [""; 0]);
}

#[test]
fn each_rule_is_told_as_on_one_machine() {
    for (reason, make) in bad() {
        println!("{reason}");
        let mut chain = grown(966);
        let wrong = make(&mut chain);
        chain.empty_blocks(12);
        let world = world_of(&chain, 7);
        // Its proofs may be at fault, unless no proof is needed to see it.
        let code = if reason == "bad-cb-height" { 2 } else { 4 };
        fails_alike(&world, code, &[&wrong.block_hash().to_string()]);
    }
}

/// Of several the lowest, whichever range is done first.
#[test]
fn the_lowest_block_is_told() {
    let mut chain = grown(967);
    let mut wrong = || {
        let output =
            chain.output(ChainBuilder::subsidy(chain.height() + 1) + 1, ScriptKind::OpTrue);
        let coinbase_outputs = Some(vec![output]);
        let block = chain.add_plan(BlockPlan { coinbase_outputs, ..BlockPlan::default() });
        chain.empty_blocks(5);
        block.block_hash().to_string()
    };
    let (low, _) = (wrong(), wrong());
    let world = world_of(&chain, 3);
    fails_alike(&world, 4, &[&low, "the coinbase pays out"]);
}

/// Proofs and roots that are lies, which no reader of a file alone can see.
#[test]
fn lies_are_told_as_on_one_machine() {
    let chain = grown(968);
    let blocks = chain.blocks();
    let spends = |told: &Told, from: usize| {
        let mut entries = told.entries.iter().enumerate().skip(from);
        entries.find(|(_, entry)| !entry.proof.hashes.is_empty()).unwrap().0
    };
    type Lie = fn(&mut Told, usize);
    let lies: [(Lie, &str); 3] = [
        (|told, at| told.entries[at].proof.hashes[0].0[5] ^= 1, "are of no use"),
        (|told, at| told.entries[at].coins[0].1.amount += 1, "are of no use"),
        (
            // Two files agree about roots between them that were never there.
            |told, _| {
                let mut fragment = apus_utreexo::Fragment::new(0).unwrap();
                let leaves = told.roots[105].leaves();
                (0..leaves).for_each(|_| fragment.push(NodeHash([9; 32])).unwrap());
                told.roots[105] = fragment.roots().unwrap();
            },
            "they lead to other roots than they end with",
        ),
    ];
    for (lie, said) in lies {
        let world = World::on(Desk::of(&chain), "regtest");
        let mut told = tell(&blocks);
        let at = spends(&told, 110);
        lie(&mut told, at);
        write_files(&world.desk, Network::Regtest, "proofs", &blocks, &told, &ranges(&blocks, 15));
        fails_alike(&world, 4, &[said]);
    }
}

/// A coin that never was, in a forest about which all files agree but one.
#[test]
fn a_coin_that_never_was_is_found() {
    let chain = grown(969);
    let blocks = chain.blocks();
    let world = World::on(Desk::of(&chain), "regtest");
    let honest = tell(&blocks);
    let (_, coin) = honest.entries.iter().find_map(|entry| entry.coins.first()).unwrap().clone();
    let outpoint = bitcoin::OutPoint { txid: blocks[1].txdata[0].compute_txid(), vout: 7 };
    let told = tell_with(&blocks, Some((100, outpoint, coin)));
    write_files(&world.desk, Network::Regtest, "proofs", &blocks, &told, &ranges(&blocks, 9));
    fails_alike(&world, 4, &["of no use"]);
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Worker,
    Coordinator,
    Server,
}

/// Killed at any moment, it goes on, and comes to the same roots.
#[test]
fn killed_at_any_moment_the_roots_are_the_same() {
    for seed in 0..rounds(1, 34) {
        for fault in [Fault::Worker, Fault::Coordinator, Fault::Server] {
            println!("seed {seed}, {fault:?}");
            let mut rng = Rng::new(970 + seed);
            let mut world = world_of(&grown(970 + seed), 1);
            let work = |world: &World| world.work(&format!("{WORK} --stay"));
            let run = format!("{RUN} {OUT} --checkpoint-seconds 0");
            let mut workers = [work(&world), work(&world)];
            let mut serve = world.serve_run(&run);
            for _ in 0..3 {
                sleep(Duration::from_millis(rng.below(700)));
                match fault {
                    Fault::Worker => {
                        let place = rng.below(2) as usize;
                        std::mem::replace(&mut workers[place], work(&world)).kill();
                    }
                    Fault::Coordinator => {
                        serve.kill();
                        if world.desk.has("roots") && !world.desk.has("progress.work") {
                            ["roots", "report.json"]
                                .iter()
                                .for_each(|name| world.desk.remove(name));
                        }
                        serve = world.serve_run(&run);
                    }
                    Fault::Server => world.lose_server(&mut rng),
                }
            }
            serve.wait().succeeds();
            assert!(workers[0].until(|| world.desk.names("objects").is_empty()));
            workers.into_iter().for_each(|worker| drop(worker.kill()));
            expect_roots(&world);
        }
    }
}

/// Each worker asks a bridge node, as one machine would.
#[test]
fn proofs_of_a_bridge_node() {
    let mut chain = ChainBuilder::new(975);
    chain.random_blocks(130, Shape::default());
    let node = Bitcoind::start(&["-maxtipage=2000000000"]);
    let mut blocks = chain.blocks();
    blocks[1..].iter().for_each(|block| node.submit_block(block).unwrap());
    // Without a block of today a bridge answers nothing.
    node.mine(1);
    blocks.push(node.block_at(chain.height() + 1));
    let world = World::on(Desk::empty(), "regtest");
    let mut files = BlockFiles::regtest();
    files.blocks(&blocks);
    files.write(&world.desk.path("blocks"));
    let bridge = Utreexod::with_blocks_of(&node);
    let peer = format!("--proofs peer:127.0.0.1:{}", bridge.p2p_port());
    let run = format!("{} {OUT} --segment-bytes 3000", RUN.replace("--proofs proofs", &peer));
    let workers = [world.work(&format!("{peer} --par 1")), world.work(&format!("{peer} --par 1"))];
    world.serve_run(&run).wait().succeeds();
    workers.into_iter().for_each(Process::leave);
    expect_roots(&world);
    world.desk.remove("roots");
    world.desk.remove("report.json");
    // A node that is none.
    let serve = world.serve_run(&run);
    let other = format!("--proofs peer:127.0.0.1:{}", node.p2p_port());
    world.work(&other).wait().fails(1, &["is no bridge node"]);
    let worker = world.work(&peer);
    serve.wait().succeeds();
    worker.wait().succeeds();
    expect_roots(&world);
}
