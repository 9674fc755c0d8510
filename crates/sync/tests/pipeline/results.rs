//! Tests that right input gives the right set, for any division of the sync and any source of hints.

use crate::harness::{Events, HINTS, Job, SET, Truth, World, display, files, small_chain};
use apus_chain::{AssumeUtxo, HeightRange, Network, Params};
use apus_storage::DirStorage;
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::{
    BlocksDir, ErrorKind, Event, InvalidError, Phase, SilentObserver, SyncError, UseIndex,
    walk_outputs,
};
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind, Shape, coins_of, is_unspendable};
use apus_testkit::rng::Rng;
use apus_testkit::storage::CrashStorage;
use proptest::prelude::*;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Runs a new sync, and expects the right results and an empty work folder afterwards.
fn check(job: &Job, truth: &Truth) {
    let (work, out) = (CrashStorage::new(), CrashStorage::new());
    assert_eq!(job.expect(truth, &work, &out), None);
    apus_sync::discard_progress(&work).unwrap();
    assert!(files(&work).is_empty());
}

#[test]
fn every_division_of_the_work_gives_the_same() {
    let world = World::small(1);
    let some = world.job().segment_bytes;
    for threads in 1..=4 {
        for segment_bytes in [Some(1), some, Some(u64::MAX), None] {
            // Aggregates and hints alternate, so that all combinations occur.
            for turn in 0..3 {
                let hints = match turn {
                    0 => world.hints("msb.hints"),
                    1 => world.hints("lsb.hints"),
                    _ => world.snapshot_hints(),
                };
                let aggregate = match (turn + threads) % 2 {
                    0 => AggregateKind::Sha256,
                    _ => AggregateKind::MuHash,
                };
                // With so little memory that merging takes several rounds.
                let memory_bytes = if threads % 2 == 0 { 0 } else { 64 << 20 };
                // Segments are made durable one by one, or never, because memory holds all of them.
                let checkpoint_interval =
                    Duration::from_secs(if turn == threads % 3 { 0 } else { 3600 });
                let base =
                    Job { hints, aggregate, memory_bytes, checkpoint_interval, ..world.job() };
                check(&Job { threads, segment_bytes, ..base }, &world.truth);
            }
        }
    }
}

#[test]
fn segments_shrink_to_one_block_if_no_more_fits() {
    let world = World::small(2);
    let job = Job { segment_bytes: Some(1), ..world.job() };
    let work = CrashStorage::new();
    job.expect(&world.truth, &work, &CrashStorage::new());
    let runs = files(&work).keys().filter(|name| name.ends_with(".run")).count();
    assert_eq!(runs, world.truth.stop as usize);
}

#[test]
fn the_outcome_reports_the_circumstances() {
    let world = World::small(3);
    let job = Job { stop_height: Some(world.truth.stop), ..world.job() };
    let events = Events::default();
    let outcome = job
        .run_watched(&CrashStorage::new(), &CrashStorage::new(), &events, &AtomicBool::new(false))
        .unwrap();
    assert_eq!(outcome.chain.tip_height, world.truth.stop);
    assert!(outcome.chain.enough_work, "regtest asks for none");
    assert!(!outcome.set.in_assumeutxo_table);
    assert_eq!(outcome.validation.hints.info.unwrap().coins, world.truth.coins);
    assert_eq!(outcome.counts.blocks, u64::from(world.truth.stop));
    let transactions: usize = world.chain[1..].iter().map(|block| block.txdata.len()).sum();
    assert_eq!(outcome.counts.transactions, transactions as u64);

    let phases = [Phase::Headers, Phase::Hints, Phase::Blocks, Phase::Coins];
    let started = events.all().into_iter().filter_map(|event| match event {
        Event::Started(phase) => Some(phase),
        _ => None,
    });
    assert_eq!(started.collect::<Vec<_>>(), phases);
    let last = events.all().into_iter().rev().find_map(|event| match event {
        Event::Progress(Phase::Blocks, progress) => Some(progress),
        _ => None,
    });
    let last = last.unwrap();
    assert_eq!((last.blocks, last.bytes), (last.blocks_total, last.bytes_total));
    assert_eq!(last.coins, world.truth.coins);
}

/// The set's hash is compared with Core's own table of snapshots.
#[test]
fn a_set_that_is_in_cores_table() {
    let world = World::small(9);
    let right = world.job().run_afresh().unwrap();
    let job = |hash_serialized| {
        let known = AssumeUtxo {
            height: right.chain.stop.height,
            block_hash: right.chain.stop.hash,
            hash_serialized,
            chain_tx_count: 1,
        };
        let mut params = Params::of(Network::Regtest).clone();
        params.assumeutxo = vec![known].into();
        Job { params: Box::leak(Box::new(params)), ..world.job() }
    };
    assert!(
        job(right.set.hash_serialized_3().unwrap()).run_afresh().unwrap().set.in_assumeutxo_table
    );
    let mut wrong = right.set.hash_serialized_3().unwrap();
    wrong[31] ^= 1;
    let out = CrashStorage::new();
    let error = job(wrong).run(&CrashStorage::new(), &out).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Wrong);
    assert!(matches!(error, SyncError::Invalid(InvalidError::AssumeUtxo { .. })), "{error}");
    for hash in [&right.set.hash_serialized_3().unwrap(), &wrong] {
        assert!(error.to_string().contains(&display(hash)), "{error}");
    }
    assert!(files(&out).keys().all(|name| name.ends_with(".incomplete")));
}

#[test]
fn blocks_above_the_stop_height_are_not_read() {
    let mut builder = small_chain(4);
    let chain = builder.blocks();
    builder.random_blocks(5, Shape::default());
    let longer = builder.blocks();
    let world = World::laid_out(chain, |_| {
        let mut files = apus_testkit::blkfile::BlockFiles::regtest();
        files.blocks(&longer);
        files
    });
    check(&world.job(), &world.truth);
    let outcome = world.job().run_afresh().unwrap();
    assert_eq!(outcome.chain.tip_height, world.truth.stop + 5);
}

/// A coinbase has 20,001 outputs. Some are spent on either side of each place where the database's order of
/// output numbers differs from the numeric order.
#[test]
fn twenty_thousand_outputs_in_one_transaction() {
    let mut builder = ChainBuilder::new(5);
    let outputs = (0..20_001).map(|n| builder.output(n % 7, ScriptKind::OpTrue)).collect();
    let plan = BlockPlan { coinbase_outputs: Some(outputs), ..BlockPlan::default() };
    let coins = coins_of(&builder.add_plan(plan).txdata[0]);
    builder.empty_blocks(100);
    let spent: Vec<_> =
        [0, 1, 127, 128, 252, 253, 255, 256, 16_511, 16_512, 16_639, 16_640, 20_000]
            .map(|vout: usize| coins[vout].clone())
            .into();
    let output = builder.output(20, ScriptKind::Wpkh);
    let tx = builder.spend_coins(&spent, vec![output]);
    builder.block_with(vec![tx]);
    let world = World::of(builder.blocks());
    assert!(world.truth.coins > 20_000);
    for hints in [world.hints("msb.hints"), world.snapshot_hints()] {
        // With so little memory that the snapshot's coins are spilled many times.
        check(&Job { hints, memory_bytes: 0, threads: 2, ..world.job() }, &world.truth);
    }
}

#[test]
fn a_chain_whose_coins_are_all_spent_or_unspendable() {
    let mut builder = ChainBuilder::new(6);
    for _ in 0..3 {
        let output = builder.output(50, ScriptKind::OpReturn);
        let coinbase_outputs = Some(vec![output]);
        builder.add_plan(BlockPlan { coinbase_outputs, ..BlockPlan::default() });
    }
    let world = World::of(builder.blocks());
    assert_eq!(world.truth.coins, 0);
    for hints in [world.hints("msb.hints"), world.snapshot_hints()] {
        check(&Job { hints, ..world.job() }, &world.truth);
    }
}

#[test]
fn real_folders_hold_progress_and_outputs() {
    let world = World::small(7);
    let folder = tempfile::tempdir().unwrap();
    for name in ["work", "out"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    let work = DirStorage::new(folder.path().join("work"));
    let out = std::sync::Arc::new(DirStorage::new(folder.path().join("out")));
    let out = crate::harness::Named::new("out", Shared(out));
    let job = Job { threads: 2, ..world.job() };
    world.truth.check(&job.run(&work, &out).unwrap(), &out);
    // The second start repeats everything after the existing segments, over the same outputs.
    world.truth.check(&job.run(&work, &out).unwrap(), &out);
    apus_sync::discard_progress(&work).unwrap();
    assert!(files(&work).is_empty());
    assert_eq!(files(&out)[SET], world.truth.snapshot);
    assert_eq!(files(&out)[HINTS], world.truth.hints);
}

/// A [`DirStorage`] that several owners share.
struct Shared(std::sync::Arc<DirStorage>);

impl apus_storage::Storage for Shared {
    fn create(&self, name: &str) -> std::io::Result<Box<dyn apus_storage::StorageFile>> {
        self.0.create(name)
    }
    fn sync(&self, name: &str) -> std::io::Result<()> {
        self.0.sync(name)
    }
    fn open(&self, name: &str, offset: u64) -> std::io::Result<Box<dyn std::io::Read + Send>> {
        self.0.open(name, offset)
    }
    fn rename(&self, from: &str, to: &str) -> std::io::Result<()> {
        self.0.rename(from, to)
    }
    fn remove(&self, name: &str) -> std::io::Result<()> {
        self.0.remove(name)
    }
    fn sync_names(&self) -> std::io::Result<()> {
        self.0.sync_names()
    }
    fn names(&self) -> std::io::Result<Vec<String>> {
        self.0.names()
    }
    fn len(&self, name: &str) -> std::io::Result<u64> {
        self.0.len(name)
    }
}

#[test]
fn outputs_are_walked_in_the_order_of_heights() {
    let world = World::small(8);
    let params = Params::of(Network::Regtest);
    let never = AtomicBool::new(false);
    let now = crate::harness::NOW;
    let dir =
        BlocksDir::open(world.blocksdir(), params, now, UseIndex::Never, &SilentObserver, &never)
            .unwrap();
    let heights = HeightRange::new(1, world.truth.stop + 1);
    let mut next = 1;
    walk_outputs(params, &dir, None, heights, &mut |outputs| {
        assert_eq!(outputs.height, next);
        let expected: Vec<bool> = world.chain[next as usize]
            .txdata
            .iter()
            .flat_map(|tx| &tx.output)
            .map(|output| !is_unspendable(&output.script_pubkey))
            .collect();
        assert_eq!(outputs.spendable, expected);
        assert!(!outputs.coinbase_overwritten);
        next += 1;
        Ok(())
    })
    .unwrap();
    assert_eq!(next, heights.end);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn random_chains(seed: u64) {
        let mut rng = Rng::new(seed);
        let mut builder = ChainBuilder::new(seed);
        builder.random_blocks(103, Shape { outputs_max: 3, ..Shape::default() });
        let shape = Shape {
            transactions_max: rng.between(1, 12) as usize,
            inputs_max: rng.between(1, 8) as usize,
            outputs_max: rng.between(1, 10) as usize,
        };
        builder.random_blocks(rng.between(0, 25) as usize, shape);
        let world = World::of(builder.blocks());
        let hints = if rng.one_in(2) { world.hints("msb.hints") } else { world.snapshot_hints() };
        let job = Job {
            hints,
            threads: rng.between(1, 4) as usize,
            segment_bytes: Some(rng.between(1, 30_000)),
            memory_bytes: rng.below(1 << 24),
            ..world.job()
        };
        check(&job, &world.truth);
    }
}
