//! Runs without hints: coins are joined with spends by machines, and the set is that of one machine, to the byte.

use crate::cluster::world::{Process, World, told};
use crate::desk::{Desk, MAIN, REGTEST};
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind, Shape};
use apus_testkit::effort::rounds;
use bitcoin::{Amount, Block, OutPoint, Transaction};
use std::collections::BTreeSet;

/// Some sixteen segments, and some parts of the join.
const LARGE: &str = "--segment-bytes 60000 --progress plain";

/// Many of both.
pub(crate) const SMALL: &str = "--segment-bytes 9000 --progress plain";

#[test]
fn any_number_of_workers_joins_to_the_same_set() {
    for (fixture, count, more) in [(MAIN, 1, LARGE), (MAIN, 2, SMALL), (REGTEST, 5, SMALL)] {
        let world = World::with(fixture);
        let workers: Vec<_> = (0..count).map(|_| world.work("--par 1 --scratch scratch")).collect();
        let ended = world.serve_run(&world.join(&format!("{more} --muhash"))).wait().succeeds();
        workers.into_iter().for_each(Process::leave);
        let report = world.desk.json("report.json");
        assert_eq!(report["muhash"], world.desk.json("gettxoutsetinfo.json")["muhash"], "{ended}");
        assert_eq!(report["engine"], "mergesync");
        assert_eq!(report["verified"]["scripts"], true);
        let shares = report["cluster"]["workers"].as_array().unwrap();
        let blocks: u64 = shares.iter().map(|share| share["blocks"].as_u64().unwrap()).sum();
        assert_eq!(blocks, report["blocks"].as_u64().unwrap());
        assert_eq!(world.desk.names("scratch"), [""; 0]);
        world.expect_done();
    }
}

/// Blocks that spend what any other made, cut in all ways.
#[test]
fn random_chains_join_to_the_set_of_the_oracle() {
    for seed in 0..rounds(2, 30) {
        let mut chain = ChainBuilder::new(900 + seed);
        chain.empty_blocks(98);
        chain.random_blocks(60, Shape::default());
        let world = World::on(Desk::of(&chain), "regtest");
        let worker = world.work("--par 2");
        let bytes = [700, 3_000, 11_000, 1_000_000][seed as usize % 4];
        let run = world.join(&format!("--segment-bytes {bytes} --progress none"));
        world.serve_run(&run).wait().succeeds();
        worker.leave();
        world.expect_done();
    }
}

/// A chainstate that a node can open comes of it as of any run, and so does a run that writes nothing.
#[test]
fn a_chainstate_and_nothing_at_all_come_of_it() {
    let world = World::with(REGTEST);
    let worker = world.work("--par 2 --stay");
    let run = world.join(SMALL);
    let files = "--out snapshot:utxo.dat --out hints:utxo.hints";
    world.serve_run(&run.replace(files, "--out chainstate:state")).wait().succeeds();
    assert!(!world.desk.names("state").is_empty());
    let set = world.desk.json("report.json");
    assert_eq!(
        set["hash_serialized_3"],
        world.desk.json("gettxoutsetinfo.json")["hash_serialized_3"]
    );
    world.desk.remove("report.json");
    world.serve_run(&run.replace(files, "--muhash")).wait().succeeds();
    let report = world.desk.json("report.json");
    let node = world.desk.json("gettxoutsetinfo.json");
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

/// Chains whose last good block is followed by one that breaks a rule, and the reason.
pub(crate) fn bad() -> [(&'static str, Make); 8] {
    [
        ("bad-txns-inputs-missingorspent", |builder| {
            let mut tx = spend(builder, 1_000);
            tx.input[0].previous_output.vout += 77;
            block(builder, vec![tx])
        }),
        // A coin that a block far below spent.
        ("bad-txns-inputs-missingorspent", |builder| {
            let (one, other) = (spend(builder, 1_000), spend(builder, 2_000));
            block(builder, vec![one]);
            builder.random_blocks(25, Shape::default());
            block(builder, vec![other])
        }),
        // A coin that a block far above makes.
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

/// A run to the tip fails with the same words on one machine and on several, and `bad` is what both blame.
fn fails_alike(chain: &ChainBuilder, bad: &Block, reason: &str) {
    fails_alike_under(chain, bad, reason, "--segment-bytes 2500");
}

/// The same with more options.
pub(crate) fn fails_alike_under(chain: &ChainBuilder, bad: &Block, reason: &str, more: &str) {
    let world = World::on(Desk::of(chain), "regtest");
    let run = world.join(&format!("--progress none --stopatheight {} {more}", chain.height()));
    let hash = bad.block_hash().to_string();
    let alone = world.desk.start_as_typed(&format!("sync {run}")).wait();
    let alone = alone.fails(2, &[&hash, &format!("[{reason}")]);
    world.desk.remove("progress.work");
    let workers = [world.work("--par 1"), world.work("--par 2")];
    let shared = world.serve_run(&run).wait().fails(2, &[&hash]);
    assert_eq!(told(&alone), told(&shared));
    assert!(!world.desk.has("utxo.dat"));
    workers.into_iter().for_each(Process::leave);
    world.status("").succeeds().says(&["no run goes on"]);
    assert_eq!(world.desk.names("objects"), [""; 0]);
}

#[test]
fn each_rule_is_kept_across_segments_and_told_as_on_one_machine() {
    for (reason, make) in bad() {
        println!("{reason}");
        let mut chain = grown(840);
        let bad = make(&mut chain);
        chain.empty_blocks(12);
        fails_alike(&chain, &bad, reason);
    }
}

/// Of several the lowest, whichever step finds them.
#[test]
fn the_lowest_block_is_told() {
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

/// Without a height to go to, the block is put aside as on one machine, and the run ends below it.
#[test]
fn a_bad_block_is_put_aside_as_on_one_machine() {
    let mut chain = grown(842);
    let good = chain.blocks().len() - 1;
    let (_, make) = bad()[1];
    make(&mut chain);
    chain.empty_blocks(3);
    let world = World::on(Desk::of(&chain), "regtest");
    let run = world.join("--segment-bytes 2500 --progress none");
    let worker = world.work("--par 2 --stay");
    world.serve_run(&run).wait().succeeds();
    worker.kill();
    let height = world.desk.json("report.json")["stop_height"].as_u64().unwrap();
    assert!(height > good as u64 && height < u64::from(chain.height()), "{height}");
    let set = world.desk.read("utxo.dat");
    for name in ["utxo.dat", "utxo.hints", "report.json"] {
        world.desk.remove(name);
    }
    world.desk.start_as_typed(&format!("sync {run}")).wait().succeeds();
    assert!(world.desk.read("utxo.dat") == set);
}

/// What machines leave for one another is lost or changed before they read it.
#[test]
fn an_object_that_is_lost_has_its_job_done_again() {
    let world = World::with(MAIN);
    let mut serve = world.serve_run(&world.join("--segment-bytes 60000 --progress plain"));
    assert!(serve.until(|| world.status("").stdout.contains("waiting")));
    serve.signal("STOP");
    let mut worker = world.work("--par 1 --scratch scratch");
    let is_idle = || world.status("").stdout.contains(" 0 jobs under way, 0 waiting");
    assert!(worker.until(is_idle));
    let objects = || {
        let run = &world.desk.names("objects")[0];
        let names = world.desk.names(&format!("objects/{run}")).into_iter();
        names.map(|name| format!("objects/{run}/{name}")).collect::<BTreeSet<_>>()
    };
    // Records begin with an id, headers with a version of 1, and what a segment keeps for itself with a length.
    let is_records = |path: &String| {
        let bytes = world.desk.read(path);
        let number = bytes.first_chunk().map_or(0, |it| u64::from_le_bytes(*it));
        let is_head = number as u32 == 1;
        !bytes.starts_with(b"APUS") && !is_head && number > 1 << 40 && bytes.len() > 2000
    };
    let mut records = objects().into_iter().filter(is_records);
    let (gone, changed) = (records.next().unwrap(), records.next().unwrap());
    world.desk.remove(&gone);
    world.desk.edit(&changed, |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    });
    serve.signal("CONT");
    let ended = serve.wait().succeeds();
    // A join that is retried before the job is done again says it again.
    let lost =
        ended.stderr.lines().filter_map(|it| it.split_once(" is lost, and that is done again"));
    let lost = lost.map(|(segment, _)| segment).collect::<BTreeSet<_>>();
    assert_eq!(lost.len(), 2, "{ended}");
    worker.wait().succeeds();
    world.expect_done();
}
