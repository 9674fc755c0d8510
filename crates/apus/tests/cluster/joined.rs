//! Runs without hints: machines join coins with spends, and the set is identical to that of one machine.

use crate::cluster::world::{Process, World, final_message};
use crate::sandbox::{MAIN, REGTEST, Sandbox};
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind, Shape};
use apus_testkit::effort::rounds;
use bitcoin::{Amount, Block, OutPoint, Transaction};
use std::collections::BTreeSet;

/// About sixteen segments, and a few parts of the join.
const LARGE: &str = "--segment-bytes 60000 --progress plain";

/// Many segments and many parts.
pub(crate) const SMALL: &str = "--segment-bytes 9000 --progress plain";

#[test]
fn any_number_of_workers_joins_to_the_same_set() {
    for (fixture, count, more) in [(MAIN, 1, LARGE), (MAIN, 2, SMALL), (REGTEST, 5, SMALL)] {
        let world = World::with(fixture);
        let workers: Vec<_> =
            (0..count).map(|_| world.work("--par 1 --scratchdir scratch")).collect();
        let ended = world.serve_run(&world.join(&format!("{more} --muhash"))).wait().succeeds();
        workers.into_iter().for_each(Process::leave);
        let report = world.sandbox.json("report.json");
        assert_eq!(
            report["muhash"],
            world.sandbox.json("gettxoutsetinfo.json")["muhash"],
            "{ended}"
        );
        assert_eq!(report["engine"], "mergesync");
        assert_eq!(report["verified"]["scripts"], true);
        let shares = report["cluster"]["workers"].as_array().unwrap();
        let blocks: u64 = shares.iter().map(|share| share["blocks"].as_u64().unwrap()).sum();
        assert_eq!(blocks, report["blocks"].as_u64().unwrap());
        assert_eq!(world.sandbox.names("scratch"), [""; 0]);
        world.expect_done();
    }
}

/// Blocks that spend outputs of any other block, with segments of various sizes.
#[test]
fn random_chains_join_to_the_set_of_the_oracle() {
    for seed in 0..rounds(2, 30) {
        let mut chain = ChainBuilder::new(900 + seed);
        chain.empty_blocks(98);
        chain.random_blocks(60, Shape::default());
        let world = World::on(Sandbox::of(&chain), "regtest");
        let worker = world.work("--par 2");
        let bytes = [700, 3_000, 11_000, 1_000_000][seed as usize % 4];
        let run = world.join(&format!("--segment-bytes {bytes} --progress none"));
        world.serve_run(&run).wait().succeeds();
        worker.leave();
        world.expect_done();
    }
}

/// A shared run, too, can write a chainstate that a node can open, or no output at all.
#[test]
fn a_shared_run_can_write_a_chainstate_or_nothing() {
    let world = World::with(REGTEST);
    let worker = world.work("--par 2 --stay");
    let run = world.join(SMALL);
    let files = "--out snapshot:utxo.dat --out hints:utxo.hints";
    world.serve_run(&run.replace(files, "--out chainstate:state")).wait().succeeds();
    assert!(!world.sandbox.names("state").is_empty());
    let set = world.sandbox.json("report.json");
    assert_eq!(
        set["hash_serialized_3"],
        world.sandbox.json("gettxoutsetinfo.json")["hash_serialized_3"]
    );
    world.sandbox.remove("report.json");
    world.serve_run(&run.replace(files, "--muhash")).wait().succeeds();
    let report = world.sandbox.json("report.json");
    let node = world.sandbox.json("gettxoutsetinfo.json");
    assert_eq!(report["muhash"], node["muhash"]);
    worker.kill();
}

pub(crate) type Make = fn(&mut ChainBuilder) -> Block;

fn spend(builder: &mut ChainBuilder, satoshi: u64) -> Transaction {
    let (outpoint, _) = builder.mature_coin();
    let output = builder.output(satoshi, ScriptKind::OpTrue);
    builder.spend(&[outpoint], vec![output])
}

fn block(builder: &mut ChainBuilder, transactions: Vec<Transaction>) -> Block {
    builder.add_plan(BlockPlan { transactions, ..BlockPlan::default() })
}

/// Chains that end with an invalid block, each with the reason.
pub(crate) fn bad() -> [(&'static str, Make); 8] {
    [
        ("bad-txns-inputs-missingorspent", |builder| {
            let mut tx = spend(builder, 1_000);
            tx.input[0].previous_output.vout += 77;
            block(builder, vec![tx])
        }),
        // Spends a coin that a block far below has spent already.
        ("bad-txns-inputs-missingorspent", |builder| {
            let (one, other) = (spend(builder, 1_000), spend(builder, 2_000));
            block(builder, vec![one]);
            builder.random_blocks(25, Shape::default());
            block(builder, vec![other])
        }),
        // Spends a coin that a block far above creates.
        ("bad-txns-inputs-missingorspent", |builder| {
            let made = spend(builder, 5_000);
            let outpoint = OutPoint { txid: made.compute_txid(), vout: 0 };
            let output = builder.output(1_000, ScriptKind::OpTrue);
            let coin = (outpoint, made.output[0].clone());
            let early = builder.spend_coins(&[coin], vec![output]);
            let bad = block(builder, vec![early]);
            builder.empty_blocks(25);
            block(builder, vec![made]);
            bad
        }),
        ("bad-txns-in-belowout", |builder| {
            let more = builder.mature_coin().1.value.to_sat() + 1;
            let tx = spend(builder, more);
            block(builder, vec![tx])
        }),
        ("bad-cb-amount", |builder| {
            let height = builder.height() + 1;
            let mut output = builder.output(0, ScriptKind::OpTrue);
            output.value = Amount::from_sat(ChainBuilder::subsidy(height) + 1);
            let coinbase_outputs = Some(vec![output]);
            builder.add_plan(BlockPlan { coinbase_outputs, ..BlockPlan::default() })
        }),
        ("bad-txns-premature-spend-of-coinbase", |builder| {
            let last = builder.block(builder.tip()).txdata[0].compute_txid();
            let output = builder.output(1_000, ScriptKind::OpTrue);
            let tx = builder.spend(&[OutPoint { txid: last, vout: 0 }], vec![output]);
            block(builder, vec![tx])
        }),
        ("block-script-verify-flag-failed", ChainBuilder::block_with_a_wrong_signature),
        ("bad-cb-height", |builder| {
            let height = builder.height() + 1;
            let output = builder.output(ChainBuilder::subsidy(height), ScriptKind::OpTrue);
            let coinbase = Some(builder.coinbase(height + 5, vec![output]));
            builder.add_plan(BlockPlan { coinbase, ..BlockPlan::default() })
        }),
    ]
}

fn grown(seed: u64) -> ChainBuilder {
    let mut chain = ChainBuilder::new(seed);
    chain.empty_blocks(98);
    chain.random_blocks(40, Shape::default());
    chain
}

/// Asserts that a run to the tip fails with the same error on one machine and on several, and that both blame `bad`.
fn fails_alike(chain: &ChainBuilder, bad: &Block, reason: &str) {
    fails_alike_under(chain, bad, reason, "--segment-bytes 2500");
}

/// Asserts the same with more options.
pub(crate) fn fails_alike_under(chain: &ChainBuilder, bad: &Block, reason: &str, more: &str) {
    let world = World::on(Sandbox::of(chain), "regtest");
    let run = world.join(&format!("--progress none --stopatheight {} {more}", chain.height()));
    let hash = bad.block_hash().to_string();
    let alone = world.sandbox.start_as_typed(&format!("sync {run}")).wait();
    let alone = alone.fails(2, &[&hash, &format!("[{reason}")]);
    world.sandbox.remove("progress.work");
    let workers = [world.work("--par 1"), world.work("--par 2")];
    let shared = world.serve_run(&run).wait().fails(2, &[&hash]);
    assert_eq!(final_message(&alone), final_message(&shared));
    assert!(!world.sandbox.has("utxo.dat"));
    workers.into_iter().for_each(Process::leave);
    world.status("").succeeds().says(&["no active runs"]);
    assert_eq!(world.sandbox.names("objects"), [""; 0]);
}

#[test]
fn each_rule_is_checked_across_segments_with_the_same_error_as_on_one_machine() {
    for (reason, make) in bad() {
        println!("{reason}");
        let mut chain = grown(840);
        let bad = make(&mut chain);
        chain.empty_blocks(12);
        fails_alike(&chain, &bad, reason);
    }
}

/// Of several bad blocks the lowest is reported, no matter which step finds it.
#[test]
fn the_lowest_bad_block_is_reported() {
    let [(by_coins, make), .., (by_itself, without)] = bad();
    for (low, high) in [(true, false), (false, true), (false, false)] {
        let mut chain = grown(841);
        let mut add =
            |with_coins: bool| if with_coins { make(&mut chain) } else { without(&mut chain) };
        let first = add(low);
        add(high);
        chain.empty_blocks(2);
        fails_alike(&chain, &first, if low { by_coins } else { by_itself });
    }
}

/// Without a stop height, the block is marked as failed as on one machine, and the run ends below it.
#[test]
fn a_bad_block_is_marked_as_failed_as_on_one_machine() {
    let mut chain = grown(842);
    let good = chain.blocks().len() - 1;
    let (_, make) = bad()[1];
    make(&mut chain);
    chain.empty_blocks(3);
    let world = World::on(Sandbox::of(&chain), "regtest");
    let run = world.join("--segment-bytes 2500 --progress none");
    let worker = world.work("--par 2 --stay");
    world.serve_run(&run).wait().succeeds();
    worker.kill();
    let height = world.sandbox.json("report.json")["stop_height"].as_u64().unwrap();
    assert!(height > good as u64 && height < u64::from(chain.height()), "{height}");
    let set = world.sandbox.read("utxo.dat");
    for name in ["utxo.dat", "utxo.hints", "report.json"] {
        world.sandbox.remove(name);
    }
    world.sandbox.start_as_typed(&format!("sync {run}")).wait().succeeds();
    assert!(world.sandbox.read("utxo.dat") == set);
}

/// The test removes or changes objects before other machines read them.
#[test]
fn the_job_of_a_lost_object_is_repeated() {
    let world = World::with(MAIN);
    let mut serve = world.serve_run(&world.join("--segment-bytes 60000 --progress plain"));
    assert!(serve.until(|| world.status("").stdout.contains("waiting")));
    serve.signal("STOP");
    let mut worker = world.work("--par 1 --scratchdir scratch");
    let is_idle = || world.status("").stdout.contains(" 0 jobs under way, 0 waiting");
    assert!(worker.until(is_idle));
    let objects = || {
        let run = &world.sandbox.names("objects")[0];
        let names = world.sandbox.names(&format!("objects/{run}")).into_iter();
        names.map(|name| format!("objects/{run}/{name}")).collect::<BTreeSet<_>>()
    };
    // Records begin with an id, headers with a version of 1, and the segment's own objects with a length.
    let is_records = |path: &String| {
        let bytes = world.sandbox.read(path);
        let number = bytes.first_chunk().map_or(0, |it| u64::from_le_bytes(*it));
        let is_head = number as u32 == 1;
        !bytes.starts_with(b"APUS") && !is_head && number > 1 << 40 && bytes.len() > 2000
    };
    let mut records = objects().into_iter().filter(is_records);
    let (gone, changed) = (records.next().unwrap(), records.next().unwrap());
    world.sandbox.remove(&gone);
    world.sandbox.edit(&changed, |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    });
    serve.signal("CONT");
    let ended = serve.wait().succeeds();
    // A join that is retried before the job is done again reports it again.
    let lost =
        ended.stderr.lines().filter_map(|it| it.split_once(" is lost, and the job is requeued"));
    let lost = lost.map(|(segment, _)| segment).collect::<BTreeSet<_>>();
    assert_eq!(lost.len(), 2, "{ended}");
    worker.wait().succeeds();
    world.expect_done();
}
