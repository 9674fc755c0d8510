//! Tests of chains that mergesync processes in batches: the result is that of one batch and of the in-order engine,
//! however the batches divide the chain, and whatever happens between them.

use crate::bad_blocks::{bad_blocks, files, wrong_height};
use crate::harness::{ABOVE, Job, Place, World, assuming, hash_of, random_chain};
use crate::world::{Events, HINTS, Truth, display};
use apus_chain::{HeightRange, KnownBlock, Network, Params};
use apus_storage::Storage;
use apus_sync::{
    Engine, ErrorKind, Event, Observer, Phase, SegmentState, Stop, SyncError, UsageError, Warning,
};
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind, Shape, coins_of, utxo_set};
use apus_testkit::effort::rounds;
use apus_testkit::oracle;
use apus_testkit::rng::Rng;
use apus_testkit::storage::CrashStorage;
use bitcoin::Block;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn in_batches(world: &World, segments: usize) -> Job {
    Job { engine: Engine::MergeSync, batch_segments: Some(segments), ..world.job() }
}

/// Runs a start with empty outputs; returns its events.
#[track_caller]
fn again(job: &Job, truth: &Truth, place: &mut Place) -> Vec<Event> {
    place.out = CrashStorage::new();
    let events = Events::default();
    let outcome = job.run_watched(place, &events, &AtomicBool::new(false));
    truth.check(&outcome.unwrap_or_else(|error| panic!("{error}")), &place.out);
    events.all()
}

fn joins(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event, Event::Started(Phase::Join))).count()
}

fn is_started_over(event: &Event) -> bool {
    matches!(event, Event::Warning(Warning::BaseLeft { .. }))
}

/// The snapshot, the hints, the list of hashes, and the totals are right for batches of any length.
#[test]
fn any_division_gives_the_same_set() {
    for seed in 0..rounds(8, 400) {
        let mut rng = Rng::new(seed);
        let mut builder = random_chain(seed);
        builder.random_blocks(rng.index(40), Shape::default());
        let world = World::of(&builder.blocks());
        let segment_bytes = 1 + rng.below(20_000);
        let leave_witnesses = rng.one_in(2);
        let memory_bytes = if rng.one_in(2) { 0 } else { 16 << 20 };
        for segments in [1, 2 + rng.index(6), 40] {
            let job = Job {
                segment_bytes,
                leave_witnesses,
                memory_bytes,
                threads: 1 + rng.index(3),
                ..in_batches(&world, segments)
            };
            let (mut place, events) = (Place::new(), Events::default());
            let outcome = job.run_watched(&place, &events, &AtomicBool::new(false)).unwrap();
            world.truth.check(&outcome, &place.out);
            assert_eq!(outcome.counts.blocks, u64::from(world.truth.stop));
            let events = events.all();
            let count = joins(&events);
            for phase in [Phase::Blocks, Phase::Join, Phase::Connect] {
                let ends = events.iter().filter_map(|event| match event {
                    Event::Paused { phase: paused, .. } if *paused == phase => Some(false),
                    Event::Ended { phase: ended, .. } if *ended == phase => Some(true),
                    _ => None,
                });
                // A phase ends once, after the last batch.
                let ends: Vec<bool> = ends.collect();
                assert_eq!(ends.iter().filter(|ended| **ended).count(), 1, "{phase:?} {ends:?}");
                assert!(ends.last() == Some(&true) && ends.len() <= count, "{phase:?} {ends:?}");
            }
            assert!(segments > 1 || count > 4 || segment_bytes > 8_000, "{count}");
            // Another start finds all work done.
            assert!(joins(&again(&job, &world.truth, &mut place)) <= 1);
        }
    }
}

/// Segments above the end of a batch wait for the next one: an interrupted start keeps them, too.
#[test]
fn no_segment_is_processed_twice() {
    let world = World::small(913);
    let mut waited = 0;
    for _ in 0..40 {
        let job = Job {
            threads: 3,
            checkpoint_interval: Duration::from_secs(3600),
            ..in_batches(&world, 2)
        };
        let (mut place, interrupt) = (Place::new(), AtomicBool::new(false));
        let observer = SecondBatch { events: Events::default(), interrupt: &interrupt };
        job.run_watched(&place, &observer, &interrupt).unwrap_err();
        let first = ranges_done(&observer.events.all());
        let second = ranges_done(&again(&job, &world.truth, &mut place));
        let blocks = |all: &[HeightRange]| all.iter().map(|range| range.count()).sum::<u32>();
        assert_eq!(blocks(&first) + blocks(&second), world.truth.stop, "{first:?} {second:?}");
        waited += usize::from(first.len() > 2);
    }
    assert!(waited > 0);
}

fn ranges_done(events: &[Event]) -> Vec<HeightRange> {
    let done = |event: &Event| match event {
        Event::Segment(range, SegmentState::Done) => Some(*range),
        _ => None,
    };
    events.iter().filter_map(done).collect()
}

/// Interrupts a sync when it begins the second batch.
struct SecondBatch<'a> {
    events: Events,
    interrupt: &'a AtomicBool,
}

impl Observer for SecondBatch<'_> {
    fn event(&self, event: Event) {
        self.events.event(event);
        let begun = |event: &&Event| matches!(event, Event::Started(Phase::Blocks));
        let begun = self.events.all().iter().filter(begun).count();
        self.interrupt.store(begun == 2, Ordering::Relaxed);
    }
}

/// Blocks and undo data are those of the in-order engine, byte for byte.
#[test]
fn a_data_directory_is_that_of_the_in_order_engine() {
    let world = World::small(901);
    let kept = |job: Job| {
        let sandbox = tempfile::tempdir().unwrap();
        job.keeping(sandbox.path()).expect(&world.truth, &Place::new());
        files(&sandbox.path().join("node/regtest/blocks"))
    };
    let expected = kept(Job { engine: Engine::Utxo, ..world.job() });
    for segments in [1, 2, 5] {
        assert!(kept(in_batches(&world, segments)) == expected, "{segments}");
    }
    let everything_run = Job { assume_valid: None, ..in_batches(&world, 3) };
    #[cfg(feature = "kernel")]
    assert!(kept(everything_run) == expected);
    #[cfg(not(feature = "kernel"))]
    drop(everything_run);
}

/// The lowest invalid block is reported with Core's reason, whatever batch it is in and wherever the batch ends.
#[test]
fn an_invalid_block_is_reported_as_by_the_in_order_engine() {
    for (reason, make) in bad_blocks() {
        let mut builder = random_chain(902);
        let plan = make(&mut builder);
        let bad = builder.add_plan(plan);
        builder.empty_blocks(2);
        wrong_height(&mut builder);
        builder.empty_blocks(2);
        let world = World::of(&builder.blocks());
        for segments in [1, 2, 3] {
            let place = Place::new();
            for _ in 0..2 {
                let error = in_batches(&world, segments).refused(&place);
                assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
                assert!(error.to_string().contains(&hash_of(&bad).to_string()), "{error}");
                assert!(error.to_string().contains(&format!("[{reason}]")), "{error}");
            }
        }
    }
}

/// Makes a chain with a block that repeats a transaction and spends all its outputs, so that no segment records the
/// repeated ones. `left` of the first transaction's two outputs are unspent then: its own block spends one, and the
/// block below the repetition the other. A block above spends an output that was left.
fn with_a_repetition(left: usize, between: usize) -> Vec<Block> {
    let mut builder = random_chain(911);
    let (outpoint, _) = builder.mature_coin();
    let outputs = [9_000, 8_000].map(|satoshi| builder.output(satoshi, ScriptKind::OpTrue));
    let tx = builder.spend(&[outpoint], outputs.into());
    let coins = coins_of(&tx);
    let spend = |builder: &mut ChainBuilder, coins: &[_], satoshi| {
        let output = builder.output(satoshi, ScriptKind::OpTrue);
        builder.spend_coins(coins, vec![output])
    };
    let own = (left < 2).then(|| spend(&mut builder, &coins[..1], 5_000));
    builder.block_with([tx.clone()].into_iter().chain(own).collect());
    builder.empty_blocks(between);
    let other = (left < 1).then(|| spend(&mut builder, &coins[1..], 4_000));
    builder.block_with(other.into_iter().collect());
    let both = spend(&mut builder, &coins, 3_000);
    builder.block_with(vec![tx, both]);
    let above = (left > 0).then(|| spend(&mut builder, &coins[1..], 2_000));
    builder.block_with(above.into_iter().collect());
    builder.empty_blocks(2);
    builder.blocks()
}

/// Whether a repeated transaction's outputs exist decides the reason that Core gives (BIP-30), wherever they were made
/// and spent: in the same segment, in another one of the batch, or in a batch below.
#[test]
fn a_repeated_transaction_is_reported_as_by_the_in_order_engine() {
    for (left, between) in [(2, 0), (1, 0), (0, 0), (2, 12), (1, 12), (0, 12)] {
        let world = World::of(&with_a_repetition(left, between));
        let expected = world.job().refused(&Place::new()).to_string();
        let reason = if left > 0 { "bad-txns-BIP30" } else { "bad-txns-inputs-missingorspent" };
        assert!(expected.contains(&format!("[{reason}]")), "{left}: {expected}");
        for (segment_bytes, batch_segments) in
            [(1, Some(1)), (1, Some(3)), (1, None), (1_000, Some(2)), (1 << 20, None)]
        {
            let leave_witnesses = segment_bytes > 1;
            let job =
                Job { segment_bytes, leave_witnesses, batch_segments, ..in_batches(&world, 1) };
            let (place, events) = (Place::new(), Events::default());
            let error = job.run_watched(&place, &events, &AtomicBool::new(false)).unwrap_err();
            assert_eq!(error.to_string(), expected, "{segment_bytes} {batch_segments:?}");
            assert_eq!(job.refused(&place).to_string(), expected, "of a later start");
            let is_divided = joins(&events.all()) > 1;
            assert_eq!(is_divided, batch_segments.is_some(), "{segment_bytes}");
        }
    }
}

/// Two blocks overwrite coinbases that nobody spent, as on the main chain (BIP-30). Their coins are in no set, but the
/// list of hashes has them. The overwritten coins are in lower batches, and so may be the blocks that overwrite them.
#[test]
fn overwritten_coinbases_are_known_to_the_end() {
    let mut builder = ChainBuilder::new(903);
    builder.empty_blocks(100);
    let coinbase = |builder: &mut ChainBuilder, height: u32| {
        let output = builder.output(50 * 100_000_000, ScriptKind::OpTrue);
        builder.coinbase(height, vec![output])
    };
    let twice = [coinbase(&mut builder, 120), coinbase(&mut builder, 121)];
    let mut repeats = Vec::new();
    for turn in 0..2 {
        for coinbase in &twice {
            let plan = BlockPlan { coinbase: Some(coinbase.clone()), ..BlockPlan::default() };
            let block = builder.add_plan(plan);
            if turn > 0 {
                repeats.push(KnownBlock { height: builder.height(), hash: hash_of(&block) });
            }
        }
        builder.random_blocks(20, Shape::default());
    }
    // The coins of the second time can be spent.
    builder.empty_blocks(100);
    let output = builder.output(1_000, ScriptKind::OpTrue);
    let spend = builder.spend(&[coins_of(&twice[0])[0].0], vec![output]);
    builder.block_with(vec![spend]);
    builder.empty_blocks(3);
    let params: &'static Params = Box::leak(Box::new(Params {
        bip34_height: 1_000_000,
        bip34_hash: None,
        bip30_repeats: repeats.into(),
        ..assuming(Network::Regtest).clone()
    }));
    let world = World::of(&builder.blocks());
    let run = |job: Job| {
        let place = Place::new();
        let outcome = Job { params, segment_bytes: 2_000, ..job }.run(&place);
        let outcome = outcome.unwrap_or_else(|error| panic!("{error}"));
        (place.output_files(), display(&outcome.set.hash_serialized_3().unwrap()))
    };
    let one_batch = run(Job { batch_segments: None, ..in_batches(&world, 1) });
    assert_eq!(one_batch.1, oracle::hash_serialized_3(&utxo_set(&world.chain)));
    for segments in [1, 2, 3, 7] {
        assert!(run(in_batches(&world, segments)) == one_batch, "{segments}");
    }
}

/// Hints do not count the outputs of an overwritten coinbase, so those of its block begin after it.
#[test]
fn hints_leave_out_an_overwritten_coinbase() {
    let mut builder = ChainBuilder::new(910);
    let spent = builder.empty_blocks(101)[0].txdata[0].clone();
    let output = builder.output(50 * 100_000_000, ScriptKind::OpTrue);
    let coinbase = builder.coinbase(102, vec![output]);
    let outputs = vec![builder.output(1_000, ScriptKind::OpTrue)];
    let transactions = vec![builder.spend(&[coins_of(&spent)[0].0], outputs)];
    let plan = BlockPlan { coinbase: Some(coinbase.clone()), transactions, ..Default::default() };
    let first = builder.add_plan(plan);
    let of_first = KnownBlock { height: builder.height(), hash: hash_of(&first) };
    let again = builder.add_plan(BlockPlan { coinbase: Some(coinbase), ..Default::default() });
    let of_again = KnownBlock { height: builder.height(), hash: hash_of(&again) };
    builder.empty_blocks(3);
    let params: &'static Params = Box::leak(Box::new(Params {
        bip34_height: 1_000_000,
        bip34_hash: None,
        bip30_repeats: vec![of_again].into(),
        bip30_unspendable: vec![of_first].into(),
        ..assuming(Network::Regtest).clone()
    }));
    let world = World::of(&builder.blocks());
    let hints = [Engine::MergeSync, Engine::Utxo].map(|engine| {
        let place = Place::new();
        Job { params, engine, ..world.job() }.run(&place).unwrap();
        place.output_files()[HINTS].clone()
    });
    assert!(hints[0] == hints[1]);
}

/// A later start with a longer chain continues from the set between two batches.
#[test]
fn a_longer_chain_is_continued() {
    let world = World::small(904);
    let stop = world.truth.stop;
    let to = |end| Job { stop: Stop::At(end), ..in_batches(&world, 2) };
    let truth_at = |end: u32| Truth::of(&world.chain[..=end as usize]);
    let mut place = Place::new();
    for end in [stop - 12, stop - 5, stop - 1, stop] {
        let events = again(&to(end), &truth_at(end), &mut place);
        let first = events.iter().find_map(|event| match event {
            Event::Progress(Phase::Blocks, progress) => Some(progress.blocks),
            _ => None,
        });
        assert!(end == stop - 12 || first.unwrap() > 80, "{end}: {first:?}");
        assert!(!events.iter().any(is_started_over));
        // All blocks below were validated once, so a lower end is refused.
        let error = to(60).run(&place).unwrap_err();
        assert!(matches!(error, SyncError::Usage(UsageError::OtherRun { .. })), "{error}");
    }
}

/// Makes a longer chain that forks off another one `depth` blocks below its end.
fn branch_of(chain: &[Block], seed: u64, depth: usize) -> Vec<Block> {
    let mut builder = random_chain(seed);
    builder.set_tip(chain[chain.len() - 1 - depth].block_hash());
    builder.random_blocks(depth + 8, Shape::default());
    builder.blocks()
}

/// A later start that finds another chain continues if that contains the last batch's blocks, and otherwise starts
/// over, with a warning.
#[test]
fn another_chain_is_followed() {
    let seed = 905;
    let one = random_chain(seed).blocks();
    let first = World::of(&one);
    for (depth, is_above) in [(1, true), (60, false)] {
        let second = World::of(&branch_of(&one, seed, depth));
        let mut place = Place::new();
        // The options are the same: the block up to which scripts may be assumed valid is above both ends.
        let assume_valid = second.job().assume_valid;
        in_batches(&first, 3).expect(&first.truth, &place);
        let job = Job { assume_valid, ..in_batches(&second, 3) };
        let events = again(&job, &second.truth, &mut place);
        assert_eq!(!events.iter().any(is_started_over), is_above, "{depth}");
    }
}

/// What was not checked below the last batch cannot be checked by a later start.
#[test]
fn a_start_that_asks_for_more_is_refused() {
    let world = World::small(906);
    let first = Job { leave_witnesses: true, ..in_batches(&world, 4) };
    let sandbox = tempfile::tempdir().unwrap();
    let others = [
        Job { assume_valid: None, leave_witnesses: false, ..first.clone() },
        first.clone().keeping(sandbox.path()),
        Job { engine: Engine::Utxo, ..first.clone() },
    ];
    let mut place = Place::new();
    first.expect(&world.truth, &place);
    for other in others {
        let error = other.run(&place).unwrap_err();
        assert!(matches!(error, SyncError::Usage(UsageError::OtherRun { .. })), "{error}");
    }
    again(&first, &world.truth, &mut place);
}

/// One changed byte of the set between two batches costs the work below, and gives no wrong set.
#[test]
fn a_damaged_base_is_made_again() {
    let world = World::small(907);
    let (job, place) = (in_batches(&world, 5), Place::new());
    job.expect(&world.truth, &place);
    let whole = place.work.live_files();
    let is_base = |name: &&String| name.starts_with("spill-base-");
    let name = whole.keys().filter(is_base).max_by_key(|name| whole[*name].len()).unwrap();
    let length = whole[name].len();
    for at in [0, 33, length / 3, length / 2, length - 30, length - 2] {
        let mut files = whole.clone();
        files.get_mut(name).unwrap()[at] ^= 1;
        // The last join must be repeated to read it.
        files.remove("joined");
        let mut place = Place { work: CrashStorage::holding(files), ..Place::new() };
        let error = job.refused(&place);
        assert_eq!(error.kind(), ErrorKind::Io, "{at}: {error}");
        assert!(error.to_string().contains(&**name), "{at}: {error}");
        again(&job, &world.truth, &mut place);
    }
    for cut in ["base", name] {
        let mut files = whole.clone();
        let bytes = files.get_mut(cut).unwrap();
        bytes.truncate(bytes.len() - 1);
        files.remove("joined");
        let mut place = Place { work: CrashStorage::holding(files), ..Place::new() };
        again(&job, &world.truth, &mut place);
    }
}

/// Interrupts a sync before its first block.
struct AtBlocks<'a>(&'a AtomicBool);

impl Observer for AtBlocks<'_> {
    fn event(&self, event: Event) {
        if matches!(event, Event::Started(Phase::Blocks)) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// The segments that a start leaves, and those of them that the next one keeps if some files are lost.
fn kept_segments(batch: usize, is_lost: impl Fn(&str) -> bool) -> [BTreeSet<String>; 2] {
    let world = World::small(909);
    let (job, place) = (in_batches(&world, batch), Place::new());
    job.expect(&world.truth, &place);
    let names = |place: &Place| -> BTreeSet<String> {
        let names = place.work.live_files().into_keys();
        names.filter(|name| name.starts_with("segment-")).collect()
    };
    let before = names(&place);
    let mut files = place.work.live_files();
    files.retain(|name, _| name != "joined" && !is_lost(name));
    let place = Place { work: CrashStorage::holding(files), ..Place::new() };
    let interrupt = AtomicBool::new(false);
    job.run_watched(&place, &AtBlocks(&interrupt), &interrupt).unwrap_err();
    let kept = names(&place).intersection(&before).cloned().collect();
    [before, kept]
}

/// Segments above a lost base go: with all blocks below them, they would not fit into one batch.
#[test]
fn segments_above_a_lost_base_go() {
    let [before, kept] = kept_segments(5, |name| name.starts_with("spill-base-"));
    assert!(!before.is_empty() && kept.is_empty(), "{kept:?}");
}

/// A segment that is damaged, or was still in progress when the sync was killed, costs no other.
#[test]
fn segments_above_an_unfinished_one_stay() {
    let [mut before, kept] = kept_segments(1_000, |name| name.starts_with("segment-00000001-"));
    before.retain(|name| !name.starts_with("segment-00000001-"));
    assert!(!before.is_empty());
    assert_eq!(before, kept);
}

/// The files of a batch go when the next one begins, and those of the last one with the progress.
#[test]
fn no_file_of_a_lower_batch_stays() {
    let world = World::small(908);
    let place = Place::new();
    Job { checkpoint_interval: Duration::ZERO, ..in_batches(&world, 4) }
        .expect(&world.truth, &place);
    let names = place.work.names().unwrap();
    let lowest = |prefix: &str, end: &str| {
        let of = names.iter().filter_map(|name| name.strip_prefix(prefix)?.strip_suffix(end));
        of.map(|rest| rest[..rest.find('-').unwrap()].parse::<u32>().unwrap()).min().unwrap()
    };
    let base = lowest("spill-base-", ".run");
    assert_eq!(lowest("segment-", ".part"), base + 1, "{names:?}");
    assert!(base > 80 && base < world.truth.stop, "{base} {ABOVE}");
    apus_sync::discard_progress(&place.work).unwrap();
    assert!(place.work.names().unwrap().is_empty());
}
