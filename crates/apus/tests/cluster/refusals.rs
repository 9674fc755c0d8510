//! Errors are the same as on one machine, and blame the same block or hints; results that do not fit are refused by
//! name.

use crate::cluster::altered::{link, machine, named, newest, with_altered};
use crate::cluster::audits::Lies;
use crate::cluster::world::{Process, World, final_message};
use crate::sandbox::{MAIN, REGTEST, Sandbox};
use apus_chain::HeightRange;
use apus_cluster::{Coordinator, Worker};
use apus_jobs::{JobKey, JobLease, JobOffer, JobQueue, Jobs, ObjectRef, RunId, WIRE_VERSION};
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{BlockPlan, ChainBuilder, Shape};
use bitcoin::{Amount, ScriptBuf, TxOut};
use std::sync::Arc;
use std::time::Duration;

/// The message version of a newer program.
const NEWER: u32 = WIRE_VERSION + 1;

/// Asserts that a run fails with the same error, and leaves the same files, on one machine and on several.
fn fails_alike(sandbox: Sandbox, code: i32, said: &str) {
    let world = World::on(sandbox, "regtest");
    let run = world.run("--segment-bytes 3000 --progress none");
    let alone = world.sandbox.start_as_typed(&format!("sync {run}")).wait().fails(code, &[said]);
    let left = (world.sandbox.has("progress.work"), world.sandbox.has("utxo.dat"));
    let workers = [world.work("--par 1"), world.work("--par 2")];
    let shared = world.serve_run(&run).wait().fails(code, &[said]);
    assert_eq!(final_message(&alone), final_message(&shared));
    assert_eq!((world.sandbox.has("progress.work"), world.sandbox.has("utxo.dat")), left);
    // The run has ended for all machines.
    workers.into_iter().for_each(Process::leave);
    world.status("").succeeds().says(&["no active runs"]);
    assert_eq!(world.sandbox.names("objects"), [""; 0]);
}

fn grown(seed: u64) -> ChainBuilder {
    let mut chain = ChainBuilder::new(seed);
    chain.random_blocks(120, Shape { outputs_max: 3, ..Shape::default() });
    chain
}

fn output(satoshi: u64) -> TxOut {
    TxOut { value: Amount::from_sat(satoshi), script_pubkey: ScriptBuf::from_bytes(vec![0x51]) }
}

#[test]
fn hints_of_another_chain_do_not_balance() {
    let sandbox = Sandbox::of(&grown(21));
    let other = Sandbox::of(&grown(22));
    sandbox.write("msb.hints", &other.read("msb.hints"));
    let (code, said) = (4, "the hints");
    fails_alike(sandbox, code, said);
}

#[test]
fn hints_that_name_too_much_are_reported_with_the_lowest_block() {
    let mut chain = ChainBuilder::new(20);
    chain.empty_blocks(20);
    let sandbox = Sandbox::of(&chain);
    // Each block has one coin, in an element of three bytes; change those of two blocks to name a second one.
    sandbox.edit("msb.hints", |hints| {
        for height in [15, 6] {
            let at = 9 + 3 * (height - 1);
            hints.splice(at..at + 3, [1, 1, 0x80, 0x80]);
        }
    });
    fails_alike(sandbox, 4, "the hints for block 6 ");
}

#[test]
fn a_block_that_breaks_a_rule_is_blamed() {
    let mut chain = grown(36);
    let coinbase = chain.coinbase(77, vec![output(1)]);
    chain.add_plan(BlockPlan { coinbase: Some(coinbase), ..BlockPlan::default() });
    chain.empty_blocks(3);
    fails_alike(Sandbox::of(&chain), 2, "block 121");
}

#[test]
fn a_worker_without_all_blocks_leaves_them_to_others() {
    let chain = grown(37);
    let world = World::on(Sandbox::of(&chain), "regtest");
    let mut files = BlockFiles::regtest();
    files.blocks(&chain.blocks()[..60]);
    files.write(&world.sandbox.path("some"));
    let serve = world.serve("--segment-bytes 3000 --progress plain");
    let poor = world.work_on("some", "--par 1 --name poor");
    let block = chain.blocks()[70].block_hash();
    let ended = poor.wait().fails(3, &["some: block ", "were requeued"]);
    assert!(!ended.stderr.contains(&block.to_string()), "it looks for lower ones first");
    let rich = world.work("--par 1 --name rich");
    let ended = serve.wait().succeeds();
    assert!(ended.stderr.contains("warning: poor could not process blocks "), "{ended}");
    rich.wait().succeeds();
    world.expect_done();
}

/// If several machines in turn lack the same block, the user must act.
#[test]
fn a_block_that_three_machines_lack_ends_the_run_until_one_has_it() {
    let chain = grown(38);
    let world = World::on(Sandbox::of(&chain), "regtest");
    let blocks = chain.blocks();
    let (last, others) = blocks.split_last().unwrap();
    let mut files = BlockFiles::regtest();
    files.blocks(others);
    files.write(&world.sandbox.path("some"));
    let serve = world.serve("--segment-bytes 3000 --progress none");
    let poor = ["a", "b", "c"].map(|name| world.work_on("some", &format!("--par 1 --name {name}")));
    let hash = last.block_hash().to_string();
    serve.wait().fails(
        3,
        &["3 machines could not process blocks ", "some: block ", &hash, "progress is kept"],
    );
    poor.into_iter().for_each(|poor| drop(poor.kill()));
    let rich = world.work("--par 1");
    world.serve("--segment-bytes 3000").wait().succeeds();
    rich.wait().succeeds();
    world.expect_done();
}

/// Takes a job of the run and answers it with `answer` of the job's message.
fn answer_by(worker: &Worker, answer: impl Fn(&dyn JobLease) -> Vec<u8>) -> JobKey {
    let joined = worker.join(&newest(worker)).unwrap().unwrap();
    loop {
        if let JobOffer::Job(lease) = joined.take(Duration::from_secs(1)).unwrap() {
            let number =
                |at: usize| u32::from_le_bytes(*lease.message()[at..].first_chunk().unwrap());
            let key = JobKey::blocks(HeightRange::new(number(45), number(49)));
            lease.answer(key, &answer(&*lease)).unwrap();
            return key;
        }
    }
}

/// Encodes an answer that the job is done, with an object as its result (`extras/jobs/src/queue`).
fn done(job: &[u8], object: &[u8]) -> Vec<u8> {
    let mut answer = [b"APUSANSW", &job[8..93]].concat();
    answer.extend(4_u32.to_le_bytes());
    answer.extend(b"liar");
    answer.push(0);
    answer.extend(object);
    answer.extend([0; 4 * 8]);
    answer
}

#[test]
fn results_that_do_not_fit_are_refused_by_name_and_recomputed() {
    type Lie = fn(&dyn JobLease) -> Vec<u8>;
    let newer =
        format!("the answer has version {NEWER}, but this program speaks version {WIRE_VERSION}");
    let lies: [(Lie, &str); 5] = [
        (|_| b"hello".to_vec(), "the answer is damaged, or comes from another program"),
        (
            |lease| {
                let mut answer = done(lease.message(), &[0; 40]);
                answer[8] = NEWER as u8;
                answer
            },
            &newer,
        ),
        (
            |lease| {
                let mut answer = done(lease.message(), &[0; 40]);
                answer[12] ^= 1;
                answer
            },
            "the answer is for run ",
        ),
        (|lease| done(lease.message(), &[0; 40]), "not found"),
        (
            |lease| {
                let result = b"no result at all";
                lease.put_object(&ObjectRef::of(result), &Arc::new(result.to_vec())).unwrap();
                done(lease.message(), &named(&ObjectRef::of(result)))
            },
            "the result is damaged, or comes from another program",
        ),
    ];
    for (lie, said) in lies {
        let world = World::with(REGTEST);
        let serve = world.serve("--segment-bytes 9000 --progress plain");
        let key = answer_by(&machine(&world, "liar"), lie);
        let worker = world.work("--par 1");
        let ended = serve.wait().succeeds();
        assert!(ended.stderr.contains(said), "{said}: {ended}");
        let refused = format!("for {key} was refused");
        assert!(ended.stderr.contains(&refused), "{refused}: {ended}");
        worker.wait().succeeds();
        world.expect_done();
    }
}

/// If a machine reports an invalid block, the coordinator checks that itself.
#[test]
fn a_block_that_passes_at_the_coordinator_is_not_refused() {
    let chain = grown(39);
    let world = World::on(Sandbox::of(&chain), "regtest");
    let serve = world.serve("--segment-bytes 3000 --progress plain");
    let key = answer_by(&machine(&world, "liar"), |lease| {
        let mut answer = [b"APUSANSW", &lease.message()[8..93]].concat();
        let text = |text: &str| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
        let first = *lease.message()[45..].first_chunk().unwrap();
        let block = &chain.blocks()[u32::from_le_bytes(first) as usize];
        answer.extend(text("liar"));
        answer.extend([1, 0]);
        answer.extend(first);
        answer.extend(AsRef::<[u8]>::as_ref(&block.block_hash()));
        answer.extend([text("bad-blk-forged"), text("this block is invalid")].concat());
        answer
    });
    let worker = world.work("--par 1");
    let ended = serve.wait().succeeds();
    let said = format!("the result of liar for {key} was refused");
    assert!(
        ended.stderr.contains(&said) && ended.stderr.contains("the job succeeds here"),
        "{ended}"
    );
    worker.wait().succeeds();
    world.expect_done();
}

/// The test damages or changes objects of results before the coordinator reads them.
#[test]
fn a_damaged_result_is_reported_and_recomputed() {
    let world = World::with(REGTEST);
    let mut serve = world.serve("--segment-bytes 9000 --progress plain");
    assert!(serve.until(|| world.status("").stdout.contains("waiting")));
    serve.signal("STOP");
    let mut worker = world.work("--par 1");
    assert!(worker.until(|| world.status("").stdout.contains(" 0 jobs under way, 0 waiting")));
    let run = &world.sandbox.names("objects")[0];
    let mut damaged = 0;
    for name in world.sandbox.names(&format!("objects/{run}")) {
        let path = format!("objects/{run}/{name}");
        if world.sandbox.read(&path).starts_with(b"APUSDONE") && damaged < 3 {
            damaged += 1;
            world.sandbox.edit(&path, |bytes| *bytes.last_mut().unwrap() ^= 1);
        }
    }
    assert_eq!(damaged, 3);
    serve.signal("CONT");
    let ended = serve.wait().succeeds();
    let times = ended.stderr.matches("its bytes have changed").count();
    assert_eq!(times, 3, "{ended}");
    worker.wait().succeeds();
    world.expect_done();
}

/// The object is intact, so only the proof exposes the lie.
#[test]
fn a_lie_about_sums_never_leads_to_a_set() {
    let world = World::with(REGTEST);
    let serve = world.serve("--segment-bytes 9000 --progress none");
    let ((), worked) = with_altered(&world, "liar", &Lies::default(), || {
        serve.wait().fails(4, &["does not balance"]);
    });
    assert!(worked.unwrap().segments > 1);
    assert!(!world.sandbox.has("utxo.dat") && !world.sandbox.has("progress.work"));
}

/// The run belongs to another version of the program, or does not match its headers.
#[test]
fn a_worker_refuses_a_run_that_it_cannot_do() {
    let world = World::with(REGTEST);
    let newer = [b"APUSSPEC", &NEWER.to_le_bytes()[..]].concat();
    let of = format!(
        "the description of the run has version {NEWER}, but this program speaks version {WIRE_VERSION}"
    );
    for (spec, said) in [
        (newer, &of[..]),
        (b"something else".to_vec(), "is damaged, or comes from another program"),
    ] {
        let coordinator = Coordinator::connect(&link(&world), Duration::from_secs(30)).unwrap();
        coordinator.open(&RunId::of(&spec), &spec).unwrap();
        world.work("--par 1").wait().fails(1, &[said]);
        coordinator.close().unwrap();
    }
}

#[test]
fn runs_that_cannot_be_shared_are_refused_by_name() {
    let world = World::with(MAIN);
    let run = "--blocksdir blocks --workdir progress.work --progress none";
    for (run, said) in [
        (
            format!("{run} --engine utxo"),
            "a sync with the engine utxo, which connects blocks in order, cannot be shared",
        ),
        (
            format!("{run} --hints msb.hints --assumevalid hints --prune --out datadir:node"),
            "a folder with the last blocks, which hints do not cover, cannot be shared among machines yet",
        ),
        (
            format!("{run} --hints msb.hints --assumevalid 0 --out datadir:node"),
            "a data directory with all blocks, which copies undo data under hints, cannot be shared",
        ),
        ("--hints msb.hints --out snapshot:utxo.dat".to_owned(), "--blocksdir DIR"),
    ] {
        world.serve_run(&run).wait().fails(1, &[said]);
    }
    let line = "cluster status --nats nats://user:secret@127.0.0.1";
    let ended = world.start(line).wait().fails(1, &["--nats-creds FILE"]);
    assert!(!ended.stderr.contains("secret@"), "{ended}");
    let line = "cluster status --nats nats://127.0.0.1:1";
    world.start(line).wait().fails(3, &["check that the NATS server is running there"]);
}
