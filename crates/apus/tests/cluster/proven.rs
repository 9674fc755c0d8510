//! Block ranges that machines validate with proofs: the roots and the errors are the same as on one machine.

use crate::bridge::{ProofData, proofs_of, proofs_with_lie};
use crate::cluster::joined::bad;
use crate::cluster::world::{Process, World, final_message};
use crate::proof_files::write_files;
use crate::sandbox::Sandbox;
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

/// Divides the blocks into ranges of `each` blocks.
fn ranges(blocks: &[Block], each: usize) -> Vec<HeightRange> {
    let end = blocks.len() as u32;
    let starts = (1..end).step_by(each);
    starts.map(|start| HeightRange::new(start, end.min(start + each as u32))).collect()
}

/// A world with a chain and its proof files.
fn world_of(chain: &ChainBuilder, each: usize) -> World {
    let world = World::on(Sandbox::of(chain), "regtest");
    let blocks = chain.blocks();
    write_files(
        &world.sandbox,
        Network::Regtest,
        "proofs",
        &blocks,
        &proofs_of(&blocks),
        &ranges(&blocks, each),
    );
    world
}

const RUN: &str = "--chain regtest --blocksdir blocks --proofs proofs --workdir progress.work \
                   --assumevalid 0";

const OUT: &str = "--out utreexo:roots --report report.json";

const WORK: &str = "--proofs proofs --par 1";

/// Asserts that another engine computes the same roots from blocks only, and that the run left no other file.
#[track_caller]
fn expect_roots(world: &World) {
    if !world.sandbox.has("expected") {
        let line =
            "sync --chain regtest --blocksdir blocks --engine mergesync --out utreexo:expected";
        world.sandbox.apus(line).succeeds();
    }
    assert!(world.sandbox.read("roots") == world.sandbox.read("expected"));
    assert!(!world.sandbox.has("progress.work"));
    assert_eq!(world.sandbox.names("objects"), [""; 0]);
    world.status("").succeeds().says(&["no active runs"]);
}

#[test]
fn any_number_of_workers_gives_the_same_roots() {
    for (seed, count, each) in [(960, 1, 40), (961, 2, 5), (962, 5, 1)] {
        let chain = grown(seed);
        let world = world_of(&chain, each);
        let workers: Vec<_> = (0..count).map(|_| world.work(WORK)).collect();
        let ended = world.serve_run(&format!("{RUN} {OUT}")).wait().succeeds();
        assert!(ended.stdout.contains("no set was kept"), "{ended}");
        workers.into_iter().for_each(Process::leave);
        let report = world.sandbox.json("report.json");
        assert_eq!((&report["engine"], &report["validation"]), (&"utreexo".into(), &"full".into()));
        assert_eq!(report["script_blocks"], chain.height());
        let shares = report["cluster"]["workers"].as_array().unwrap();
        let blocks: u64 = shares.iter().map(|share| share["blocks"].as_u64().unwrap()).sum();
        assert_eq!(blocks, u64::from(chain.height()));
        let line = format!("sync {RUN} --out utreexo:alone --report alone.json");
        world.sandbox.apus(&line.replace("progress.work", "alone.work")).succeeds();
        let alone = world.sandbox.json("alone.json");
        for field in ["coins", "amount_sat", "bogosize", "utreexo", "stop_hash", "verified"] {
            assert_eq!(report[field], alone[field], "{field}");
        }
        expect_roots(&world);
    }
}

/// The run has no outputs, and two machines validate each range.
#[test]
fn ranges_on_two_machines_give_the_same_result() {
    let world = world_of(&grown(963), 4);
    let workers =
        ["first", "second"].map(|name| world.work(&format!("{WORK} --stay --name {name}")));
    world.serve_run(&format!("{RUN} --audit 100")).wait().succeeds();
    workers.into_iter().for_each(|worker| drop(worker.kill()));
    assert_eq!(world.sandbox.names("objects"), [""; 0]);
}

/// The ranges that a machine lacks go to other machines; a machine without any proofs says what it needs.
#[test]
fn a_machine_without_all_files_leaves_ranges_to_others() {
    let chain = grown(964);
    let world = world_of(&chain, 10);
    let blocks = chain.blocks();
    let some = &ranges(&blocks, 10)[..6];
    write_files(&world.sandbox, Network::Regtest, "some", &blocks, &proofs_of(&blocks), some);
    let serve = world.serve_run(&format!("{RUN} {OUT} --progress plain"));
    world.work("--par 1").wait().fails(1, &["validates with Utreexo proofs", "--proofs DIR"]);
    let poor = world.work("--proofs some --par 1 --name poor");
    poor.wait().fails(3, &["some/proofs-000000", "were requeued"]);
    let rich = world.work(WORK);
    let ended = serve.wait().succeeds();
    assert!(ended.stderr.contains("warning: poor could not process blocks 61 to 70"), "{ended}");
    rich.wait().succeeds();
    expect_roots(&world);
}

/// A machine with files of another forest notices that before it uses them.
#[test]
fn a_machine_with_other_roots_notices_it() {
    let chain = grown(965);
    let world = world_of(&chain, 10);
    let blocks = chain.blocks();
    let mut other = proofs_of(&blocks);
    let mut fragment = apus_utreexo::Fragment::new(0).unwrap();
    (0..other.roots[20].leaves()).for_each(|_| fragment.push(NodeHash([7; 32])).unwrap());
    other.roots[20] = fragment.roots().unwrap();
    write_files(&world.sandbox, Network::Regtest, "other", &blocks, &other, &ranges(&blocks, 10));
    let serve = world.serve_run(&format!("{RUN} {OUT} --progress plain"));
    // The machine can validate all ranges except the two that meet at the other roots.
    let poor = world.work("--proofs other --par 1 --name poor");
    poor.wait().fails(3, &["with other roots than the coordinator's"]);
    let rich = world.work(WORK);
    let ended = serve.wait().succeeds();
    assert!(ended.stderr.contains("warning: poor could not process blocks 11 to 20"), "{ended}");
    rich.wait().succeeds();
    expect_roots(&world);
}

/// Asserts that a run fails with the same error on one machine and on several.
fn fails_alike(world: &World, code: i32, said: &[&str]) {
    // With lies on both sides of a border, one thread reports the lower range; two threads, whichever is first.
    let alone = format!("sync {RUN} {OUT} --par 1");
    let alone = world.sandbox.start_as_typed(&alone).wait().fails(code, said);
    world.sandbox.remove("progress.work");
    let workers = [world.work(WORK), world.work(&WORK.replace('1', "2"))];
    let shared = world.serve_run(&format!("{RUN} {OUT}")).wait().fails(code, said);
    assert_eq!(final_message(&alone), final_message(&shared));
    assert!(!world.sandbox.has("roots"));
    workers.into_iter().for_each(Process::leave);
    world.status("").succeeds().says(&["no active runs"]);
    assert_eq!(world.sandbox.names("objects"), [""; 0]);
}

#[test]
fn each_rule_gives_the_same_error_as_on_one_machine() {
    for (reason, make) in bad() {
        println!("{reason}");
        let mut chain = grown(966);
        let wrong = make(&mut chain);
        chain.empty_blocks(12);
        let world = world_of(&chain, 7);
        // The proofs may be at fault, unless the error shows without a proof.
        let code = if reason == "bad-cb-height" { 2 } else { 4 };
        fails_alike(&world, code, &[&wrong.block_hash().to_string()]);
    }
}

/// Of several bad blocks the lowest is reported, in any order of ranges.
#[test]
fn the_lowest_bad_block_is_reported() {
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

/// Wrong proofs and roots, which do not show when a file is read.
#[test]
fn wrong_proofs_give_the_same_error_as_on_one_machine() {
    let chain = grown(968);
    let blocks = chain.blocks();
    let spends = |proofs: &ProofData, from: usize| {
        let mut entries = proofs.entries.iter().enumerate().skip(from);
        entries.find(|(_, entry)| !entry.proof.hashes.is_empty()).unwrap().0
    };
    type Lie = fn(&mut ProofData, usize);
    let lies: [(Lie, &str); 3] = [
        (|proofs, at| proofs.entries[at].proof.hashes[0].0[5] ^= 1, "are invalid"),
        (|proofs, at| proofs.entries[at].coins[0].1.amount += 1, "are invalid"),
        (
            // Two adjacent files agree on false roots.
            |proofs, _| {
                let mut fragment = apus_utreexo::Fragment::new(0).unwrap();
                let leaves = proofs.roots[105].leaves();
                (0..leaves).for_each(|_| fragment.push(NodeHash([9; 32])).unwrap());
                proofs.roots[105] = fragment.roots().unwrap();
            },
            "they do not lead to the roots that they end with",
        ),
    ];
    for (lie, said) in lies {
        let world = World::on(Sandbox::of(&chain), "regtest");
        let mut proofs = proofs_of(&blocks);
        let at = spends(&proofs, 110);
        lie(&mut proofs, at);
        write_files(
            &world.sandbox,
            Network::Regtest,
            "proofs",
            &blocks,
            &proofs,
            &ranges(&blocks, 15),
        );
        fails_alike(&world, 4, &[said]);
    }
}

/// The forest contains a coin that never existed, and all files but one agree on it.
#[test]
fn a_forged_coin_is_found() {
    let chain = grown(969);
    let blocks = chain.blocks();
    let world = World::on(Sandbox::of(&chain), "regtest");
    let honest = proofs_of(&blocks);
    let (_, coin) = honest.entries.iter().find_map(|entry| entry.coins.first()).unwrap().clone();
    let outpoint = bitcoin::OutPoint { txid: blocks[1].txdata[0].compute_txid(), vout: 7 };
    let proofs = proofs_with_lie(&blocks, Some((100, outpoint, coin)));
    write_files(&world.sandbox, Network::Regtest, "proofs", &blocks, &proofs, &ranges(&blocks, 9));
    fails_alike(&world, 4, &["are invalid"]);
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Worker,
    Coordinator,
    Server,
}

/// Killed at any moment, a run resumes and gives the same roots.
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
                        if world.sandbox.has("roots") && !world.sandbox.has("progress.work") {
                            ["roots", "report.json"]
                                .iter()
                                .for_each(|name| world.sandbox.remove(name));
                        }
                        serve = world.serve_run(&run);
                    }
                    Fault::Server => world.lose_server(&mut rng),
                }
            }
            serve.wait().succeeds();
            assert!(workers[0].until(|| world.sandbox.names("objects").is_empty()));
            workers.into_iter().for_each(|worker| drop(worker.kill()));
            expect_roots(&world);
        }
    }
}

/// Each worker gets proofs from a bridge node, as a single machine does.
#[test]
fn workers_can_get_proofs_from_a_bridge_node() {
    let mut chain = ChainBuilder::new(975);
    chain.random_blocks(130, Shape::default());
    let node = Bitcoind::start(&["-maxtipage=2000000000"]);
    let mut blocks = chain.blocks();
    blocks[1..].iter().for_each(|block| node.submit_block(block).unwrap());
    // A bridge answers nothing until its chain has a block of today.
    node.mine(1);
    blocks.push(node.block_at(chain.height() + 1));
    let world = World::on(Sandbox::empty(), "regtest");
    let mut files = BlockFiles::regtest();
    files.blocks(&blocks);
    files.write(&world.sandbox.path("blocks"));
    let bridge = Utreexod::with_blocks_of(&node);
    let peer = format!("--proofs peer:127.0.0.1:{}", bridge.p2p_port());
    let run = format!("{} {OUT} --segment-bytes 3000", RUN.replace("--proofs proofs", &peer));
    let workers = [world.work(&format!("{peer} --par 1")), world.work(&format!("{peer} --par 1"))];
    world.serve_run(&run).wait().succeeds();
    workers.into_iter().for_each(Process::leave);
    expect_roots(&world);
    world.sandbox.remove("roots");
    world.sandbox.remove("report.json");
    // This node is not a bridge.
    let serve = world.serve_run(&run);
    let other = format!("--proofs peer:127.0.0.1:{}", node.p2p_port());
    world.work(&other).wait().fails(1, &["is not a Utreexo bridge node"]);
    world.work("--proofs peers").wait().fails(1, &["leave out --blocksdir"]);
    // The node that gives the blocks is a bridge, too.
    let worker = world.start(&format!(
        "cluster work --nats {} --objects objects --connect 127.0.0.1:{} --proofs peers",
        world.url(),
        bridge.p2p_port()
    ));
    serve.wait().succeeds();
    worker.wait().succeeds();
    expect_roots(&world);
}
