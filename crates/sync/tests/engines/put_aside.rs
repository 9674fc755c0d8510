//! Tests of invalid blocks with valid work in the files: they and their descendants are marked as failed, and
//! the sync ends on the best remaining chain.

use crate::harness::{
    Call, Hooked, Job, Place, World, assuming, hash_of, random_chain, store_error,
};
use crate::world::{Events, Truth};
use apus_chain::Network;
use apus_engine::script::ScriptPool;
use apus_engine::utxo::store::MemoryStore;
use apus_sync::chainman::{ChainManager, ValidatedCoins};
use apus_sync::engines::in_order::{Chainstate, ChainstateOptions};
use apus_sync::{
    BlockUnavailable, Engine, ErrorKind, Event, HintedValidity, InvalidError, Observer, Outcome,
    SilentObserver, Stop, SyncError,
};
use apus_testkit::blkfile::{BlockFiles, read_chain};
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind, Shape, seal};
use apus_testkit::effort::rounds;
use apus_testkit::rng::Rng;
use apus_testkit::storage::{AfterCrash, CrashStorage};
use bitcoin::consensus::serialize;
use bitcoin::{Block, BlockHash, OutPoint};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Adds an invalid block on top of the tip.
type Make = fn(&mut ChainBuilder) -> Block;

/// One block for each kind of rule, with Core's reason.
const BAD: [(&str, Make); 6] = [
    ("bad-cb-height", wrong_height),
    ("bad-txns-vout-empty", no_outputs),
    ("bad-txns-inputs-missingorspent", missing_coin),
    ("bad-cb-amount", greedy),
    ("bad-txns-premature-spend-of-coinbase", premature),
    ("block-script-verify-flag-failed", unsigned),
];

/// Makes a block that fails before any coin is looked up (Core `ContextualCheckBlock`).
fn wrong_height(builder: &mut ChainBuilder) -> Block {
    let height = builder.height();
    let output = builder.output(1, ScriptKind::OpTrue);
    let coinbase = builder.coinbase(height + 300, vec![output]);
    builder.add_plan(BlockPlan { coinbase: Some(coinbase), ..BlockPlan::default() })
}

/// Makes a block that fails without context (Core `CheckBlock`).
fn no_outputs(builder: &mut ChainBuilder) -> Block {
    let coinbase = builder.coinbase(builder.height() + 1, Vec::new());
    builder.add_plan(BlockPlan { coinbase: Some(coinbase), ..BlockPlan::default() })
}

fn missing_coin(builder: &mut ChainBuilder) -> Block {
    let nowhere =
        OutPoint { txid: builder.block(builder.tip()).txdata[0].compute_txid(), vout: 77 };
    let output = builder.output(1, ScriptKind::OpTrue);
    let tx = builder.spend(&[nowhere], vec![output]);
    sealed(builder, BlockPlan { transactions: vec![tx], ..BlockPlan::default() })
}

fn greedy(builder: &mut ChainBuilder) -> Block {
    let value = ChainBuilder::subsidy(builder.height() + 1) + 1;
    let output = builder.output(value, ScriptKind::OpTrue);
    builder.add_plan(BlockPlan { coinbase_outputs: Some(vec![output]), ..BlockPlan::default() })
}

fn premature(builder: &mut ChainBuilder) -> Block {
    let young = OutPoint { txid: builder.block(builder.tip()).txdata[0].compute_txid(), vout: 0 };
    let output = builder.output(1, ScriptKind::OpTrue);
    let tx = builder.spend(&[young], vec![output]);
    sealed(builder, BlockPlan { transactions: vec![tx], ..BlockPlan::default() })
}

fn unsigned(builder: &mut ChainBuilder) -> Block {
    builder.block_with_a_wrong_signature()
}

fn sealed(builder: &mut ChainBuilder, plan: BlockPlan) -> Block {
    let mut block = builder.propose(plan);
    seal(&mut block);
    builder.add(block.clone());
    block
}

/// Makes files with these blocks; the sync should end on `good`.
fn world(good: Vec<Block>, blocks: &[Block]) -> World {
    let folder = tempfile::tempdir().unwrap();
    let mut files = BlockFiles::regtest().key([3, 1, 4, 1, 5, 9, 2, 6]).file_bytes_max(40_000);
    files.block(&good[0]);
    files.blocks(blocks.iter().filter(|block| **block != good[0]));
    files.write(&folder.path().join("blocks"));
    World { folder, truth: Truth::of(&good), chain: good }
}

/// Makes a job to the tip, with all scripts run above the hints, which the user vouches for.
fn to_tip(world: &World) -> Job {
    let hinted_validity = HintedValidity::Assumed;
    Job { assume_valid: None, hinted_validity, stop: Stop::AtTip, ..world.job() }
}

/// Makes such a job for each engine that needs no hints.
fn ways(world: &World) -> [Job; 3] {
    let ways = [(Engine::Utxo, None), (Engine::MergeSync, None), (Engine::MergeSync, Some(4))];
    ways.map(|(engine, batch_segments)| Job { engine, batch_segments, ..to_tip(world) })
}

/// Makes each of these jobs with progress made durable from time to time, and always.
fn ways_and_checkpoints(world: &World) -> Vec<Job> {
    let with = |job: Job| {
        [3_600, 0].map(|seconds| {
            let checkpoint_interval = Duration::from_secs(seconds);
            Job { checkpoint_interval, ..job.clone() }
        })
    };
    ways(world).into_iter().flat_map(with).collect()
}

fn warnings(events: &Events) -> Vec<String> {
    let warning = |event| match event {
        Event::Warning(warning) => Some(warning.to_string()),
        _ => None,
    };
    events.all().into_iter().filter_map(warning).collect()
}

/// Runs a sync that must give the right result; also returns its warnings.
#[track_caller]
fn warned(job: &Job, truth: &Truth, place: &Place) -> (Outcome, Vec<String>) {
    let events = Events::default();
    let outcome = job.run_watched(place, &events, &AtomicBool::new(false));
    let outcome = outcome.unwrap_or_else(|error| panic!("{error}"));
    truth.check(&outcome, &place.out);
    assert_eq!(outcome.chain.tip_height, truth.stop);
    // In batches, a fork may be below blocks that were validated.
    let mut warnings = warnings(&events);
    warnings.retain(|warning| !(job.batch_segments.is_some() && warning.contains("starting over")));
    (outcome, warnings)
}

/// Returns the blocks of `builder` above a block.
fn above(builder: &ChainBuilder, below: BlockHash) -> Vec<Block> {
    let blocks = builder.blocks();
    let fork = blocks.iter().position(|block| block.block_hash() == below).unwrap();
    blocks[fork + 1..].to_vec()
}

#[test]
fn the_chain_ends_below_an_invalid_block() {
    for (seed, (reason, make)) in (740..).zip(BAD) {
        for descendants in [0, 4] {
            let mut builder = random_chain(seed);
            let good = builder.blocks();
            let bad = make(&mut builder);
            builder.empty_blocks(descendants);
            let world = world(good, &builder.blocks());
            for (job, threads) in ways_and_checkpoints(&world).into_iter().zip([1, 3, 3, 1, 1, 3]) {
                let job = Job { threads, ..job };
                let (_, warnings) = warned(&job, &world.truth, &Place::new());
                let [warning] = &warnings[..] else { panic!("{warnings:?}") };
                let height = format!("block {} (", world.truth.stop + 1);
                let end = format!("continues to block {} (", world.truth.stop);
                for word in [&height, &bad.block_hash().to_string(), reason, &end] {
                    assert!(warning.contains(word), "{word}: {warning}");
                }
                assert_eq!(warning.matches(reason).count(), 1, "{warning}");
                let aside = warning.contains(&format!("the {descendants} blocks above are"));
                assert_eq!(aside, descendants > 0, "{warning}");
            }
        }
    }
}

/// A trunk, a branch of it with an invalid block and `descendants` above that, and a valid branch that is
/// `length` blocks long.
struct Fork {
    world: World,
    bad: Block,
}

impl Fork {
    fn new(seed: u64, make: Make, before: usize, descendants: usize, length: usize) -> Self {
        let mut builder = random_chain(seed);
        let trunk = builder.tip();
        builder.random_blocks(before, Shape::default());
        let prefix = builder.blocks();
        let bad = make(&mut builder);
        builder.empty_blocks(descendants);
        let heavy = builder.blocks();
        builder.set_tip(trunk);
        builder.random_blocks(length, Shape::default());
        let branch = above(&builder, trunk);
        let good = if length > before { builder.blocks() } else { prefix };
        assert!(heavy.len() > good.len(), "the sync must begin with the invalid chain");
        Self { world: world(good, &[&heavy[..], &branch].concat()), bad }
    }
}

#[test]
fn the_sync_follows_the_best_remaining_branch() {
    for (seed, (reason, make)) in (750..).zip(BAD) {
        for (before, descendants, length) in [(0, 3, 2), (5, 9, 8), (6, 5, 3), (2, 0, 2)] {
            let Fork { world, bad } = Fork::new(seed, make, before, descendants, length);
            for job in ways_and_checkpoints(&world) {
                let (outcome, warnings) = warned(&job, &world.truth, &Place::new());
                let [warning] = &warnings[..] else { panic!("{warnings:?}") };
                assert!(warning.contains(&bad.block_hash().to_string()), "{warning}");
                assert!(warning.contains(reason), "{warning}");
                assert!(warning.contains(&outcome.chain.stop.hash.to_string()), "{warning}");
                assert_eq!(outcome.counts.blocks, u64::from(world.truth.stop));
            }
        }
    }
}

/// The data directory must have only the blocks of the final chain.
#[test]
fn a_data_directory_has_no_blocks_of_the_abandoned_chain() {
    for (before, descendants, length) in [(5, 9, 8), (4, 9, 2), (0, 2, 0)] {
        let Fork { world, .. } = Fork::new(760, unsigned, before, descendants, length);
        for job in ways_and_checkpoints(&world) {
            let (place, sandbox) = (Place::new(), tempfile::tempdir().unwrap());
            warned(&job.keeping(sandbox.path()), &world.truth, &place);
            expect_kept(sandbox.path(), &world.chain);
        }
    }
}

fn expect_kept(sandbox: &std::path::Path, chain: &[Block]) {
    let folders = std::fs::read_dir(sandbox).unwrap().map(|entry| entry.unwrap().path());
    let blocks: Vec<_> = folders.map(|folder| folder.join("regtest/blocks")).collect();
    let [blocks] = &blocks[..] else { panic!("{blocks:?}") };
    let kept = read_chain(blocks, Network::Regtest.magic(), chain[0].block_hash());
    assert_eq!(kept.len(), chain.len());
    assert!(kept == chain);
    let bytes: usize = chain.iter().map(|block| block.total_size() + 8).sum();
    let files = std::fs::read_dir(blocks).unwrap().map(|entry| entry.unwrap());
    let files = files.filter(|entry| entry.file_name().to_string_lossy().starts_with("blk"));
    assert_eq!(files.map(|entry| entry.metadata().unwrap().len()).sum::<u64>(), bytes as u64);
}

#[test]
fn several_invalid_blocks_are_excluded_in_turn() {
    let mut builder = random_chain(770);
    let trunk = builder.tip();
    let (mut all, mut bad, mut good) = (builder.blocks(), Vec::new(), builder.blocks());
    // Every branch has a fault. The more work a branch has, the later its fault is found.
    for (length, (_, make)) in (1..).zip(BAD) {
        builder.set_tip(trunk);
        builder.random_blocks(length, Shape::default());
        good = builder.blocks();
        bad.push(make(&mut builder).block_hash().to_string());
        builder.empty_blocks(20);
        all.extend(above(&builder, trunk));
    }
    let world = world(good, &all);
    for job in ways(&world) {
        let (_, warnings) = warned(&job, &world.truth, &Place::new());
        assert_eq!(warnings.len(), bad.len(), "{warnings:?}");
        for hash in &bad {
            let about = warnings.iter().filter(|text| text.contains(hash));
            assert_eq!(about.count(), 1, "{warnings:?}");
        }
    }
}

/// The branches fork at a greater depth than undo data is kept for every chain.
#[test]
fn a_deep_fork_below_an_invalid_end_is_reached() {
    let mut builder = random_chain(771);
    let trunk = builder.tip();
    builder.random_blocks(12, Shape::default());
    let bad = wrong_height(&mut builder);
    builder.empty_blocks(1_100);
    let heavy = builder.blocks();
    builder.set_tip(trunk);
    builder.random_blocks(20, Shape::default());
    let world = world(builder.blocks(), &[&heavy[..], &above(&builder, trunk)].concat());
    for seconds in [3_600, 0] {
        let job = Job { checkpoint_interval: Duration::from_secs(seconds), ..to_tip(&world) };
        let (_, warnings) = warned(&job, &world.truth, &Place::new());
        assert!(warnings[0].contains(&bad.block_hash().to_string()), "{warnings:?}");
    }
}

#[test]
fn no_remaining_chain_is_an_error() {
    let mut builder = ChainBuilder::new(772);
    let genesis = builder.blocks();
    let bad = wrong_height(&mut builder);
    builder.empty_blocks(3);
    let world = World {
        folder: tempfile::tempdir().unwrap(),
        truth: Truth::of(&builder.blocks()),
        chain: genesis,
    };
    let mut files = BlockFiles::regtest();
    files.blocks(&builder.blocks());
    files.write(&world.blocksdir());
    let places = ways(&world).map(|job| (job, Place::new()));
    for (job, place) in places.iter().flat_map(|it| [it, it]) {
        let error = job.refused(place);
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(
            matches!(error, SyncError::NoWayOn { why: BlockUnavailable::Nothing, .. }),
            "{error}"
        );
        assert!(error.to_string().contains(&bad.block_hash().to_string()), "{error}");
    }
}

#[test]
fn a_height_above_the_remaining_chain_is_refused_with_the_reason() {
    let Fork { world, bad } = Fork::new(773, greedy, 5, 9, 8);
    let stop = world.truth.stop + 1;
    for job in ways(&world) {
        let place = Place::new();
        // The second start refuses it at once.
        for _ in 0..2 {
            let error = Job { stop: Stop::At(stop), ..job.clone() }.refused(&place);
            let above = matches!(error, SyncError::Invalid(InvalidError::StopAboveTip { .. }));
            assert!(above, "{error}");
            let (text, last) = (error.to_string(), world.truth.stop.to_string());
            for word in [&bad.block_hash().to_string(), "bad-cb-amount", &last] {
                assert!(text.contains(word), "{word}: {text}");
            }
            assert!(!text.contains("no valid set"), "{text}");
        }
        // A height on the remaining chain is accepted.
        let job = Job { stop: Stop::At(world.truth.stop), ..job };
        warned(&job, &world.truth, &place);
    }
}

#[test]
fn a_height_below_an_invalid_block_needs_no_other_chain() {
    let mut builder = random_chain(774);
    let good = builder.blocks();
    unsigned(&mut builder);
    let world = world(good, &builder.blocks());
    for job in ways(&world) {
        let job = Job { stop: Stop::At(world.truth.stop), ..job };
        let outcome = job.expect(&world.truth, &Place::new());
        assert_eq!(outcome.chain.tip_height, world.truth.stop + 1);
    }
}

#[test]
fn an_invalid_block_above_hints_is_excluded() {
    let Fork { world, bad } = Fork::new(775, unsigned, 5, 9, 8);
    let job = Job { hints: Some(world.hints(110)), ..to_tip(&world) };
    for seconds in [3_600, 0] {
        let job = Job { checkpoint_interval: Duration::from_secs(seconds), ..job.clone() };
        let (_, warnings) = warned(&job, &world.truth, &Place::new());
        let about: Vec<_> =
            warnings.iter().filter(|text| text.contains(&bad.block_hash().to_string())).collect();
        assert_eq!(about.len(), 1, "{warnings:?}");
    }
}

#[test]
fn an_invalid_block_under_hints_is_an_error() {
    let mut builder = random_chain(776);
    builder.random_blocks(3, Shape::default());
    let bad = wrong_height(&mut builder);
    builder.empty_blocks(3);
    let world = world(builder.blocks(), &builder.blocks());
    let job = Job { hints: Some(world.hints(world.truth.stop - 1)), ..to_tip(&world) };
    let place = Place::new();
    for _ in 0..2 {
        let error = job.refused(&place);
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(matches!(
            error,
            SyncError::NoWayOn { why: BlockUnavailable::UnderHints { .. }, .. }
        ));
        let text = error.to_string();
        for word in
            [&bad.block_hash().to_string(), "bad-cb-height", "not a valid chain for these hints"]
        {
            assert!(text.contains(word), "{word}: {text}");
        }
    }
}

/// The best remaining chain does not contain the hints' block.
#[test]
fn a_best_chain_that_leaves_the_hints_is_an_error() {
    let Fork { world, bad } = Fork::new(777, unsigned, 5, 9, 8);
    // The hints end at the third block of the branch that proves invalid later.
    let chain =
        read_chain(&world.blocksdir(), Network::Regtest.magic(), world.chain[0].block_hash());
    let hinted = World { folder: tempfile::tempdir().unwrap(), truth: Truth::of(&chain), chain };
    let job = Job { hints: Some(hinted.hints(123)), ..to_tip(&world) };
    let place = Place::new();
    for _ in 0..2 {
        let error = job.refused(&place);
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let why = matches!(
            error,
            SyncError::NoWayOn { why: BlockUnavailable::BelowHints { stop: 123 }, .. }
        );
        assert!(why, "{error}");
        assert!(error.to_string().contains(&bad.block_hash().to_string()), "{error}");
    }
}

/// Interrupts the sync at the warning that it continues on another chain.
struct StopAtWarning<'a>(&'a AtomicBool);

impl Observer for StopAtWarning<'_> {
    fn event(&self, event: Event) {
        if matches!(event, Event::Warning(_)) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
}

/// Every later start reports the block again, because each start has its own report.
#[test]
fn a_stop_between_two_chains_is_resumed() {
    let Fork { world, bad } = Fork::new(778, unsigned, 5, 9, 8);
    let each = ways(&world).into_iter().flat_map(|job| [false, true].map(|it| (it, job.clone())));
    for (keeps, job) in each {
        let sandbox = tempfile::tempdir().unwrap();
        let job = if keeps { job.keeping(sandbox.path()) } else { job };
        let (place, flag) = (Place::new(), AtomicBool::new(false));
        let error = job.run_watched(&place, &StopAtWarning(&flag), &flag).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
        if job.engine == Engine::Utxo {
            assert_eq!(place.height(), Some(120), "back at the fork, and not further");
        }
        let (_, warnings) = warned(&job, &world.truth, &place);
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(warning.contains(&bad.block_hash().to_string()), "{warning}");
        assert!(warning.contains("An earlier start marked this block"), "{warning}");
        if keeps {
            expect_kept(sandbox.path(), &world.chain);
        }
    }
}

#[test]
fn a_kill_at_any_moment_gives_the_same_result() {
    let Fork { world, .. } = Fork::new(779, unsigned, 4, 6, 6);
    let keeping = |sandbox: &tempfile::TempDir| to_tip(&world).keeping(sandbox.path());
    // Kills the sync at every flush around the height where the chain changes.
    for n in 122..=130 {
        for call in [Call::Write, Call::Written] {
            let (place, sandbox) = (Place::new(), tempfile::tempdir().unwrap());
            let (work, out) = (place.work.clone(), place.out.clone());
            let store = Hooked::over(&place.store, move |at, before| {
                let dies = at == call && before >= n;
                if dies && !work.crashed() {
                    work.crash_at(work.syncs(), AfterCrash::Fail);
                    out.crash_at(out.syncs(), AfterCrash::Fail);
                }
                if dies { Err(store_error()) } else { Ok(()) }
            });
            let (open, flag) = (|| Ok(Arc::clone(&store)), AtomicBool::new(false));
            let folder = place.hints_folder.path();
            let ended = keeping(&sandbox).run_in(
                &place.work,
                &place.out,
                &open,
                folder,
                &SilentObserver,
                &flag,
            );
            if ended.is_ok() {
                continue;
            }
            drop(store);
            let image = |storage: &CrashStorage| storage.durable_image();
            let place = Place { work: image(&place.work), out: image(&place.out), ..place };
            warned(&keeping(&sandbox), &world.truth, &place);
            expect_kept(sandbox.path(), &world.chain);
        }
    }
    // Kills the sync at sync points of the work folder, with few flushes.
    for (job, seconds) in ways(&world).into_iter().zip([3_600, 0, 0]) {
        let whole = Place::new();
        let job = Job { checkpoint_interval: Duration::from_secs(seconds), ..job };
        job.expect(&world.truth, &whole);
        for n in (0..whole.work.syncs()).step_by(rounds(3, 1) as usize) {
            let place = Place::new();
            place.work.crash_at(n, AfterCrash::Fail);
            job.run(&place).unwrap_err();
            let work = place.work.crash_image(n);
            let place = Place { work, out: CrashStorage::new(), ..place };
            warned(&job, &world.truth, &place);
        }
    }
}

/// A tree of blocks on random parents, some of them invalid.
struct Tree {
    chain: ChainBuilder,
    rng: Rng,
    /// The blocks in order of creation, each with whether it and all its ancestors are valid.
    blocks: Vec<(Block, bool)>,
}

impl Tree {
    fn new(seed: u64, count: usize) -> Self {
        let chain = random_chain(seed);
        let blocks = chain.blocks().into_iter().map(|block| (block, true)).collect();
        let mut tree = Self { chain, rng: Rng::new(seed), blocks };
        (0..count).for_each(|_| tree.grow());
        tree
    }

    fn grow(&mut self) {
        let back = self.rng.below(9.min(self.blocks.len() as u64 - 115)) as usize;
        let (parent, good) = &self.blocks[self.blocks.len() - 1 - back];
        let good = *good;
        self.chain.set_tip(parent.block_hash());
        let (block, good) = match self.rng.below(4) {
            0 => {
                let (_, make) = BAD[self.rng.below(BAD.len() as u64) as usize];
                (make(&mut self.chain), false)
            }
            1 => (self.chain.block_with(Vec::new()), good),
            _ => (self.chain.random_block(Shape::default()), good),
        };
        self.blocks.push((block, good));
    }

    /// Returns the tips at which a sync may end.
    fn ends(&mut self) -> Vec<BlockHash> {
        let good =
            self.blocks.iter().filter(|(_, good)| *good).map(|(block, _)| block.block_hash());
        let heights: Vec<(usize, BlockHash)> =
            good.map(|hash| (self.chain.blocks_to(hash).len(), hash)).collect();
        let highest = heights.iter().map(|(height, _)| *height).max().unwrap();
        let best = heights.into_iter().filter(|(height, _)| *height == highest);
        best.map(|(_, hash)| hash).collect()
    }

    fn shuffled(&mut self) -> Vec<Block> {
        let mut blocks: Vec<Block> =
            self.blocks[1..].iter().map(|(block, _)| block.clone()).collect();
        for at in (1..blocks.len()).rev() {
            let other = self.rng.below(at as u64 + 1) as usize;
            blocks.swap(at, other);
        }
        blocks
    }
}

/// Returns the tip of `apus submit` after the same blocks.
fn managers_tip(blocks: &[Block]) -> apus_chain::BlockHash {
    let params = assuming(Network::Regtest);
    let scripts = Some(ScriptPool::new(2).unwrap());
    let options = ChainstateOptions { cache_bytes: 1 << 20, prevout_threads: 0, scripts };
    let state = Chainstate::open(params, Arc::new(MemoryStore::new()), options).unwrap();
    let coins = Box::new(ValidatedCoins::new(state, true));
    let mut manager = ChainManager::in_memory(params, coins, None);
    for block in blocks {
        manager.submit(serialize(block)).unwrap();
    }
    manager.tip().hash
}

fn random_tree(seed: u64) {
    let mut tree = Tree::new(seed, 40);
    let ends = tree.ends();
    let blocks = tree.shuffled();
    let by_hash: HashMap<String, BlockHash> =
        ends.iter().map(|hash| (hash.to_string(), *hash)).collect();
    let managers = managers_tip(&blocks);
    assert!(by_hash.contains_key(&managers.to_string()), "seed {seed}");
    let genesis = tree.blocks[0].0.clone();
    let world = world(vec![genesis], &blocks);
    for job in ways(&world) {
        let place = Place::new();
        let outcome = job.run(&place).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        // If several tips have equal work, the order in which they became complete decides.
        let end = by_hash.get(&outcome.chain.stop.hash.to_string());
        let end = end.unwrap_or_else(|| panic!("seed {seed}: {}", outcome.chain.stop.hash));
        let truth = Truth::of(&tree.chain.blocks_to(*end));
        truth.check(&outcome, &place.out);
        if let [only] = &ends[..] {
            assert_eq!(hash_of(tree.chain.block(*only)), managers);
        }
    }
}

#[test]
fn random_trees_end_where_the_chain_manager_does() {
    (0..rounds(6, 2_000)).for_each(|seed| random_tree(0x9a_51de + seed));
}
