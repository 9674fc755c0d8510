//! Tests every way to compute a set: with hints, without hints, and with hints for a part; with any number of
//! threads, memory and flush interval; in memory and on disk.

use crate::harness::{Job, Place, World, assuming, hash_of, random_chain};
use crate::world::{Files, Truth, display, files, hintsfile};
use apus_chain::{HeightRange, Network, Params};
use apus_engine::utxo::CoinsStore;
use apus_engine::utxo::store::{DiskOptions, DiskStore, MemoryStore};
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::{
    BlockReply, BlockSource, BlocksDir, ChainSource, Engine, ErrorKind, HintedValidity, HintsInput,
    SilentObserver, Stop, UseIndex,
};
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{ChainBuilder, Shape, utxo_set};
use apus_testkit::oracle;
use apus_testkit::rng::Rng;
use apus_testkit::storage::CrashStorage;
use bitcoin::Block;
use bitcoin::consensus::encode::deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Makes a place; some places have their coins in a folder.
fn place(at: usize, folder: &Path) -> Place {
    let store: Arc<dyn CoinsStore> = match at % 4 {
        1..=3 => Arc::new(MemoryStore::new()),
        _ => {
            let (folder, options) = (folder.join(at.to_string()), DiskOptions::default());
            Arc::new(DiskStore::open(&folder, Network::Regtest, options).unwrap())
        }
    };
    Place::with(store)
}

/// Returns combinations of threads, threads for coins, memory for coins and flush interval.
fn settings() -> Vec<(usize, usize, u64, Duration)> {
    let mut all = Vec::new();
    for threads in [1, 2, 4] {
        for prevout_threads in [0, 2, 8] {
            for (cache_bytes, seconds) in [(1, 0), (1 << 26, 0), (1, 3_600), (1 << 26, 3_600)] {
                let interval = Duration::from_secs(seconds);
                all.push((threads, prevout_threads, cache_bytes, interval));
            }
        }
    }
    all
}

/// Makes a chain whose files also contain stale forks, out of order.
fn muddled(seed: u64) -> World {
    let mut builder = random_chain(seed);
    let chain = builder.blocks();
    let mut stale = Vec::new();
    for height in [99, 110, 118] {
        builder.set_tip(chain[height].block_hash());
        stale.extend(builder.random_blocks(2, Shape::default()));
    }
    World::laid_out(&chain, |blocks| {
        let mut all: Vec<&Block> = blocks[1..].iter().chain(&stale).collect();
        Rng::new(seed).shuffle(&mut all);
        let mut files = BlockFiles::regtest().key([9, 8, 7, 0, 1, 2, 3, 4]).file_bytes_max(30_000);
        files.block(&blocks[0]);
        files.blocks(all);
        files
    })
}

#[test]
fn every_way_gives_the_same_set() {
    let worlds = [muddled(700), muddled(701), World::small(702)];
    let folder = tempfile::tempdir().unwrap();
    for (at, (threads, prevout_threads, cache_bytes, interval)) in
        settings().into_iter().enumerate()
    {
        // 36 settings; worlds, ways and stores cycle with other periods.
        let world = &worlds[at % worlds.len()];
        let stop = world.truth.stop;
        let (hints, engine) = match (at / 3 + at / 2) % 5 {
            0 => (Some(world.hints(stop)), Engine::Utxo),
            1 => (Some(world.hints(50 + at as u32)), Engine::Utxo),
            2 | 3 => (None, Engine::MergeSync),
            _ => (None, Engine::Utxo),
        };
        let job = Job {
            hints,
            engine,
            threads,
            prevout_threads,
            cache_bytes,
            checkpoint_interval: interval,
            ..world.job()
        };
        let place = place(at + at / 4, folder.path());
        let outcome = job.expect(&world.truth, &place);
        let counted = |count: fn(&Block) -> usize| -> u64 {
            world.chain[1..].iter().map(|block| count(block) as u64).sum()
        };
        let counts = outcome.counts;
        assert_eq!(counts.blocks, u64::from(stop));
        assert_eq!(counts.bytes, counted(Block::total_size));
        assert_eq!(counts.transactions, counted(|block| block.txdata.len()));
        let inputs = |block: &Block| block.txdata[1..].iter().map(|tx| tx.input.len()).sum();
        assert_eq!(counts.inputs, counted(inputs));
        let outputs = |block: &Block| block.txdata.iter().map(|tx| tx.output.len()).sum();
        assert_eq!(counts.outputs, counted(outputs));
        assert_eq!(outcome.validation.scripts.run, 0);
    }
}

/// All ways must report the same totals.
#[test]
fn totals_of_the_engines_agree() {
    let world = muddled(703);
    let utxo = Engine::Utxo;
    let ways = [
        (None, utxo),
        (Some(world.hints(world.truth.stop)), utxo),
        (Some(world.hints(101)), utxo),
        (None, Engine::MergeSync),
    ];
    let outcomes = ways.map(|(hints, engine)| {
        Job { hints, engine, ..world.job() }.expect(&world.truth, &Place::new())
    });
    for outcome in &outcomes[1..] {
        assert_eq!(outcome.set.totals, outcomes[0].set.totals);
        assert_eq!(outcome.counts, outcomes[0].counts);
    }
    assert_eq!(
        outcomes.map(|outcome| outcome.validation.connected_from),
        [Some(1), None, Some(102), Some(1)]
    );
}

/// Under Core's own rule for regtest, two weeks are 2,016 blocks.
#[test]
fn two_weeks_above_the_assumed_valid_block() {
    let mut builder = random_chain(704);
    let chain = builder.blocks();
    builder.empty_blocks(2_020);
    let all = builder.blocks();
    let world = crate::world::World::of(all);
    let truth = Truth::of(&chain);
    let job = Job {
        params: Params::of(Network::Regtest),
        blocksdir: world.blocksdir(),
        checkpoint_interval: Duration::from_secs(3_600),
        ..World::of(&chain).job()
    };
    job.expect(&truth, &Place::new());
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// Reads all blocks of a folder's most-work chain.
fn blocks_of(folder: &Path, params: &Params) -> Vec<Block> {
    let flag = AtomicBool::new(false);
    let now = crate::world::NOW;
    let dir =
        BlocksDir::open(folder, params, now, UseIndex::Never, &SilentObserver, &flag).unwrap();
    let mut blocks = BTreeMap::new();
    let range = HeightRange::new(1, dir.chain().tip_height() + 1);
    dir.fetcher(&AtomicBool::new(false))
        .fetch(range, &mut |height, raw| {
            blocks.insert(height, deserialize(raw).unwrap());
            BlockReply::Yes
        })
        .unwrap();
    let genesis = bitcoin::constants::genesis_block(match params.network {
        Network::Main => bitcoin::Network::Bitcoin,
        _ => bitcoin::Network::Regtest,
    });
    std::iter::once(genesis).chain(blocks.into_values()).collect()
}

/// Syncs a real chain up to a few blocks below its end: without hints, then with the hints that this produced.
fn check_fixture(blocks: PathBuf, network: Network) {
    let params = assuming(network);
    let all = blocks_of(&blocks, params);
    let chain = &all[..all.len() - crate::harness::ABOVE];
    let coins = utxo_set(chain);
    let stop = chain.len() as u32 - 1;
    let job = Job {
        params,
        blocksdir: blocks,
        hints: None,
        engine: Engine::Utxo,
        assume_valid: chain.last().map(hash_of),
        leave_witnesses: false,
        hinted_validity: HintedValidity::Anchored,
        stop: Stop::At(stop),
        threads: 2,
        prevout_threads: 2,
        cache_bytes: 1 << 22,
        memory_bytes: 16 << 20,
        checkpoint_interval: Duration::from_millis(5),
        folders: Vec::new(),
        with_placed: true,
        commitment: None,
        index: None,
        outside: None,
        spent: None,
        segment_bytes: 5_000,
        batch_segments: None,
        machines: None,
        beyond: None,
    };
    let first = Place::new();
    let connected = job.run(&first).unwrap();
    let tip = chain[chain.len() - 1].block_hash();
    let snapshot = oracle::snapshot(network.magic(), tip, &coins);
    let outputs: Files = files(&first.out);
    assert!(outputs[crate::world::SET] == snapshot, "the snapshot differs");
    assert_eq!(
        display(&connected.set.hash_serialized_3().unwrap()),
        oracle::hash_serialized_3(&coins)
    );
    assert_eq!(display(&connected.set.muhash().unwrap()), oracle::muhash(&coins));

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set.hints");
    std::fs::write(&path, &outputs[crate::world::HINTS]).unwrap();
    let hints: Option<HintsInput> = Some(hintsfile(&path));
    let second = Place::new();
    let proven = Job { hints, ..job }.run(&second).unwrap();
    assert!(files(&second.out) == outputs);
    assert_eq!((proven.set.totals, proven.counts), (connected.set.totals, connected.counts));
    assert_eq!(proven.set.muhash(), connected.set.muhash());
}

#[test]
fn the_first_blocks_of_the_main_chain() {
    check_fixture(fixture("main-4521/blocks"), Network::Main);
}

#[test]
fn regtest_as_a_node_left_it() {
    check_fixture(fixture("regtest-315/regtest/blocks"), Network::Regtest);
}

/// With hints and undo data, a start continues with an earlier one's segments, whether their scripts were run
/// or not. The outcome reports the scripts that were actually run, even if more are assumed valid now. Segments
/// with fewer scripts run than required are refused.
#[cfg(feature = "kernel")]
#[test]
fn the_record_remembers_which_scripts_were_run() {
    let (name, stop) = ("regtest-315", 315);
    let blocks = fixture(name).join("regtest/blocks");
    let params = assuming(Network::Regtest);
    let chain = blocks_of(&blocks, params);
    let hints = Some(hintsfile(&fixture(name).join("utxo.bip456.hints")));
    let job = |assumed: Option<usize>| Job {
        params,
        blocksdir: blocks.clone(),
        hints: hints.clone(),
        engine: Engine::Utxo,
        assume_valid: assumed.map(|height| hash_of(&chain[height])),
        leave_witnesses: false,
        hinted_validity: HintedValidity::Anchored,
        folders: Vec::new(),
        with_placed: true,
        commitment: None,
        index: None,
        outside: None,
        spent: None,
        segment_bytes: 5_000,
        batch_segments: None,
        machines: None,
        beyond: None,
        stop: Stop::At(stop),
        threads: 2,
        prevout_threads: 0,
        cache_bytes: 1 << 22,
        memory_bytes: 16 << 20,
        checkpoint_interval: Duration::ZERO,
    };
    let run = |place: &Place, assumed: Option<usize>| {
        let work = CrashStorage::holding(place.work.live_files());
        let place = Place { work, ..Place::new() };
        let outcome = job(assumed).run(&place);
        outcome.map(|outcome| (outcome.validation.scripts.run, outcome.validation.scripts.assumed))
    };
    let few = Place::new();
    let outcome = job(Some(200)).run(&few).unwrap();
    assert_eq!(outcome.validation.hints.aggregate, Some(AggregateKind::Coins));
    assert_eq!((outcome.validation.scripts.run, outcome.validation.scripts.assumed), (115, 200));
    assert_eq!(run(&few, Some(200)).unwrap(), (115, 200));
    // More blocks may be assumed valid now than at the first start.
    assert_eq!(run(&few, Some(250)).unwrap(), (115, 200));
    for fewer in [None, Some(150)] {
        let error = run(&few, fewer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        assert!(error.to_string().contains("assumed valid up to block 200"), "{error}");
    }
    let all = Place::new();
    job(None).run(&all).unwrap();
    assert_eq!(run(&all, Some(200)).unwrap(), (315, 0));
}

/// Runs every script up to the tip, if the fixtures have a node's results there.
#[cfg(feature = "kernel")]
#[test]
fn with_scripts_to_the_tip() {
    for (name, blocks, network, engine) in [
        ("main-4521", "blocks", Network::Main, Engine::Utxo),
        ("main-4521", "blocks", Network::Main, Engine::MergeSync),
        ("regtest-315", "regtest/blocks", Network::Regtest, Engine::Utxo),
        ("regtest-315", "regtest/blocks", Network::Regtest, Engine::MergeSync),
    ] {
        let job = Job {
            params: Params::of(network),
            blocksdir: fixture(name).join(blocks),
            hints: None,
            engine,
            assume_valid: None,
            leave_witnesses: false,
            hinted_validity: HintedValidity::Anchored,
            folders: Vec::new(),
            with_placed: true,
            commitment: None,
            index: None,
            outside: None,
            spent: None,
            segment_bytes: 5_000,
            batch_segments: None,
            machines: None,
            beyond: None,
            stop: Stop::AtTip,
            threads: 2,
            prevout_threads: 2,
            cache_bytes: 1 << 22,
            memory_bytes: 16 << 20,
            checkpoint_interval: Duration::from_millis(5),
        };
        let place = Place::new();
        let outcome = job.run(&place).unwrap();
        assert_eq!(outcome.validation.scripts.run, u64::from(outcome.chain.stop.height));
        let outputs = files(&place.out);
        let read = |file: &str| std::fs::read(fixture(name).join(file)).unwrap();
        assert!(outputs[crate::world::SET] == read("utxo.dat"), "{name}");
        assert!(outputs[crate::world::HINTS] == read("utxo.bip456.hints"), "{name}");
    }
}

/// Syncs a chain of only coinbases, and one of a single block.
#[test]
fn chains_without_spends() {
    for blocks in [1, 3] {
        let mut builder = ChainBuilder::new(705);
        builder.empty_blocks(blocks);
        let world = World::of(&builder.blocks());
        for hints in [None, Some(world.hints(1))] {
            Job { hints, ..world.job() }.expect(&world.truth, &Place::new());
        }
        let job = Job { engine: Engine::MergeSync, ..world.job() };
        job.expect(&world.truth, &Place::new());
    }
}
