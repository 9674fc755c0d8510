//! Tests of blocks in any order without hints: refusals, data directories, and little memory.

use crate::bad_blocks::{bad_blocks, files, wrong_height};
use crate::harness::{Job, Place, World, assuming, hash_of, random_chain};
use crate::world::{Events, Truth};
use apus_chain::{Network, Params};
use apus_storage::Storage;
use apus_sync::{
    DatadirBlocks, Engine, ErrorKind, Event, FolderKind, FolderOutput, Observer, Phase,
    SegmentState, Stop, SyncError, UsageError,
};
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind, UtxoSet, coins_of, utxo_set};
use apus_testkit::effort::rounds;
use apus_testkit::storage::{AfterCrash, CrashStorage};
use bitcoin::script::PushBytes;
use bitcoin::{Amount, Block, OutPoint, ScriptBuf, Transaction, TxOut};
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const OP_CHECKMULTISIG: u8 = 0xae;

fn merge(world: &World) -> Job {
    Job { engine: Engine::MergeSync, ..world.job() }
}

/// Expects every start to refuse this block for this reason.
#[track_caller]
fn refused(job: &Job, bad: &Block, reason: &str) {
    let place = Place::new();
    for _ in 0..2 {
        let error = job.refused(&place);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(&hash_of(bad).to_string()), "{error}");
        assert!(error.to_string().contains(&format!("[{reason}]")), "{error}");
    }
}

#[test]
fn a_block_that_breaks_a_rule_about_coins() {
    for (reason, make) in bad_blocks() {
        let mut builder = random_chain(840);
        builder.empty_blocks(1);
        let plan = make(&mut builder);
        let bad = builder.add_plan(plan);
        builder.empty_blocks(3);
        let world = World::of(&builder.blocks());
        for threads in [1, 3] {
            refused(&Job { threads, ..merge(&world) }, &bad, reason);
        }
    }
}

/// Makes a block whose transaction has two inputs, which push more signature operations than a block may have,
/// for coins of a kind.
fn pushes_sigops(builder: &mut ChainBuilder, kind: ScriptKind) -> Block {
    let (outpoint, coin) = builder.mature_coin();
    let half = coin.value.to_sat() / 2;
    let outputs = vec![builder.output(half, kind), builder.output(half, kind)];
    let first = builder.spend(&[outpoint], outputs);
    let coins = coins_of(&first);
    let output = builder.output(half, ScriptKind::OpTrue);
    let mut second = builder.spend_coins(&coins, vec![output]);
    for input in &mut second.input {
        let redeem = <&PushBytes>::try_from(&[OP_CHECKMULTISIG; 520][..]).unwrap();
        input.script_sig = ScriptBuf::builder().push_slice(redeem).into_script();
    }
    builder.add_plan(BlockPlan { transactions: vec![first, second], ..BlockPlan::default() })
}

/// The coins alone show the cost of signature operations: if it might be too much, the block is read again. A
/// pushed script only runs if the coin has its hash.
#[test]
fn pushed_signature_operations_count_if_they_are_run() {
    for (kind, reason) in [(ScriptKind::OpTrue, None), (ScriptKind::Sh, Some("bad-blk-sigops"))] {
        let mut builder = random_chain(842);
        builder.empty_blocks(1);
        let block = pushes_sigops(&mut builder, kind);
        builder.empty_blocks(3);
        let world = World::of(&builder.blocks());
        for leave_witnesses in [true, false] {
            let job = Job { leave_witnesses, ..merge(&world) };
            match reason {
                Some(reason) => refused(&job, &block, reason),
                None => drop(job.expect(&world.truth, &Place::new())),
            }
        }
    }
}

/// Returns rules under which blocks need not state their height.
fn without_heights() -> &'static Params {
    let assumed = assuming(Network::Regtest).clone();
    Box::leak(Box::new(Params { bip34_height: 1_000_000, bip34_hash: None, ..assumed }))
}

/// A coinbase that exists already, on a chain where blocks need not state their height (BIP-30): the join
/// finds it, although no coin that its block spends shows it.
#[test]
fn an_existing_coinbase_is_refused() {
    let params = without_heights();
    let mut builder = random_chain(846);
    builder.empty_blocks(1);
    let coinbase = builder.block(builder.tip()).txdata[0].clone();
    builder.empty_blocks(1);
    let bad = builder.add_plan(BlockPlan { coinbase: Some(coinbase), ..BlockPlan::default() });
    builder.empty_blocks(3);
    let world = World::of(&builder.blocks());
    for engine in [Engine::Utxo, Engine::MergeSync] {
        refused(&Job { params, engine, ..world.job() }, &bad, "bad-txns-BIP30");
    }
}

/// Returns whether a set has any output of a transaction.
fn is_left(set: &UtxoSet, tx: &Transaction) -> bool {
    let txid = tx.compute_txid();
    (0..tx.output.len() as u32).any(|vout| set.contains_key(&OutPoint { txid, vout }))
}

/// A transaction that exists already, on a chain where no valid block can repeat one, so that the join does
/// not look for it. Whether its outputs still exist decides whether its spent inputs are the reported reason.
#[test]
fn a_transaction_that_exists_already() {
    for is_there in [true, false] {
        let mut builder = random_chain(846);
        let set = utxo_set(&builder.blocks());
        let made = builder.blocks().into_iter().filter_map(|block| block.txdata.get(1).cloned());
        let mut made = made.filter(|tx| is_left(&set, tx) == is_there);
        let again = made.next_back().unwrap();
        let bad = builder.add_plan(BlockPlan { transactions: vec![again], ..BlockPlan::default() });
        builder.empty_blocks(3);
        let world = World::of(&builder.blocks());
        let expected_reason =
            if is_there { "bad-txns-BIP30" } else { "bad-txns-inputs-missingorspent" };
        // Puts both blocks into one segment, and into two.
        for segment_bytes in [5_000, 1 << 20] {
            for engine in [Engine::Utxo, Engine::MergeSync] {
                refused(&Job { engine, segment_bytes, ..world.job() }, &bad, expected_reason);
            }
        }
    }
}

/// BIP-30 is checked before all other rules, so its violation is reported first, unless the repeated outputs
/// were spent before.
#[test]
fn existing_outputs_are_reported_before_other_rules() {
    let params = without_heights();
    for (reason, make) in bad_blocks() {
        for is_there in [true, false] {
            let mut builder = random_chain(846);
            builder.empty_blocks(1);
            let set = utxo_set(&builder.blocks());
            let blocks = builder.blocks().into_iter().skip(1);
            let coinbases = blocks.map(|block| block.txdata[0].clone());
            let mut coinbases = coinbases.filter(|it| is_left(&set, it) == is_there);
            let coinbase = coinbases.next_back().unwrap();
            let plan = make(&mut builder);
            // A repeated coinbase keeps its original amounts.
            if plan.coinbase_outputs.is_some() {
                continue;
            }
            let bad = builder.add_plan(BlockPlan { coinbase: Some(coinbase), ..plan });
            builder.empty_blocks(3);
            let world = World::of(&builder.blocks());
            let expected_reason = if is_there { "bad-txns-BIP30" } else { reason };
            for engine in [Engine::Utxo, Engine::MergeSync] {
                refused(&Job { params, engine, ..world.job() }, &bad, expected_reason);
            }
        }
    }
}

/// Of several invalid blocks, the lowest is reported, whichever walk finds it.
#[test]
fn the_lowest_block_is_reported() {
    let (reason, make) = bad_blocks()[0];
    for (low, high) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut builder = random_chain(841);
        let mut bad = |by_coins: bool| match by_coins {
            true => {
                let plan = make(&mut builder);
                builder.add_plan(plan)
            }
            false => wrong_height(&mut builder),
        };
        let first = bad(low);
        bad(high);
        builder.empty_blocks(2);
        let world = World::of(&builder.blocks());
        refused(&merge(&world), &first, if low { reason } else { "bad-cb-height" });
    }
}

/// Scripts are run unless they are assumed valid.
#[cfg(feature = "kernel")]
#[test]
fn a_wrong_signature_is_refused() {
    let mut builder = random_chain(842);
    let bad = builder.block_with_a_wrong_signature();
    builder.empty_blocks(2);
    let world = World::of(&builder.blocks());
    let job = Job { assume_valid: None, ..merge(&world) };
    let error = job.refused(&Place::new());
    assert!(error.to_string().contains(&hash_of(&bad).to_string()), "{error}");
    assert!(error.to_string().contains("script"), "{error}");
    let world = World::small(843);
    let job = Job { assume_valid: None, ..merge(&world) };
    let outcome = job.expect(&world.truth, &Place::new());
    assert_eq!(
        (outcome.validation.scripts.run, outcome.validation.scripts.assumed),
        (u64::from(world.truth.stop), 0)
    );
}

/// Makes a job that runs all scripts, and waits for them only when it records its progress.
#[cfg(feature = "kernel")]
fn unhurried(world: &World) -> Job {
    Job { assume_valid: None, checkpoint_interval: Duration::from_secs(3_600), ..merge(world) }
}

/// The scripts of a block may still be running when a block above it is refused.
#[cfg(feature = "kernel")]
#[test]
fn a_wrong_signature_is_reported_before_a_fault_above_it() {
    for (_, make) in bad_blocks() {
        let mut builder = random_chain(853);
        let bad = builder.block_with_a_wrong_signature();
        let plan = make(&mut builder);
        builder.add_plan(plan);
        builder.empty_blocks(2);
        let world = World::of(&builder.blocks());
        for engine in [Engine::MergeSync, Engine::Utxo] {
            let job = Job { engine, ..unhurried(&world) };
            let error = job.refused(&Place::new()).to_string();
            let said = [hash_of(&bad).to_string(), "script".to_owned()];
            assert!(said.iter().all(|said| error.contains(said)), "{engine:?}: {error}");
        }
    }
}

/// The wrong signature is also reported if a block above it cannot be read again.
#[cfg(feature = "kernel")]
#[test]
fn a_wrong_signature_is_reported_before_a_damaged_block_above_it() {
    for is_signed in [true, false] {
        let mut builder = random_chain(854);
        let bad = match is_signed {
            true => builder.block_with(Vec::new()),
            false => builder.block_with_a_wrong_signature(),
        };
        builder.empty_blocks(5);
        let above = builder.height() as usize - 4;
        let mut places = Vec::new();
        let world = World::laid_out(&builder.blocks(), |blocks| {
            let mut files = BlockFiles::regtest();
            places = files.blocks(blocks);
            files
        });
        let file = world.blocksdir().join("blk00000.dat");
        // This is the version of its first transaction.
        let changes = Changes(&file, places[above].offset + 81);
        let job = unhurried(&world);
        let ran = job.run_watched(&Place::new(), &changes, &AtomicBool::new(false));
        let error = ran.unwrap_err();
        assert_eq!(error.kind() == ErrorKind::Invalid, !is_signed, "{error}");
        assert_eq!(error.to_string().contains(&hash_of(&bad).to_string()), !is_signed, "{error}");
    }
}

#[test]
fn a_data_directory_equals_the_in_order_engines() {
    let world = World::small(844);
    let [one, other] = [Engine::Utxo, Engine::MergeSync].map(|engine| {
        let sandbox = tempfile::tempdir().unwrap();
        let job = Job { engine, ..world.job() }.keeping(sandbox.path());
        let outcome = job.expect(&world.truth, &Place::new());
        let [folder] = &outcome.written.folders[..] else {
            panic!("{:?}", outcome.written.folders)
        };
        assert_eq!(folder.blocks_read_back.undo, u64::from(world.truth.stop));
        files(&sandbox.path().join("node/regtest/blocks"))
    });
    assert!(one.len() >= 3);
    assert!(one == other, "{:?}, {:?}", one.keys(), other.keys());
}

/// An earlier start needed only spend summaries; a start that keeps the blocks must read them.
#[test]
fn a_later_start_reads_the_blocks_it_keeps() {
    let world = World::small(844);
    let [at_once, later] = [false, true].map(|later| {
        let (mut place, sandbox) = (Place::new(), tempfile::tempdir().unwrap());
        let job = Job { checkpoint_interval: Duration::ZERO, ..merge(&world) };
        if later {
            job.expect(&world.truth, &place);
            place.out = CrashStorage::new();
        }
        job.keeping(sandbox.path()).expect(&world.truth, &place);
        files(&sandbox.path().join("node/regtest/blocks"))
    });
    assert!(at_once == later, "{:?}, {:?}", at_once.keys(), later.keys());
}

/// With little memory, runs are merged early, and the rest goes to files, which are deleted with the progress.
#[test]
fn little_memory_is_enough() {
    let world = World::small(845);
    for memory_bytes in [0, 4 << 10, 16 << 20] {
        let place = Place::new();
        let job = Job { memory_bytes, ..merge(&world) };
        job.expect(&world.truth, &place);
        let spilled = |name: &&String| name.starts_with("spill-answers");
        let names = || apus_storage::Storage::names(&place.work).unwrap();
        // There are few files, so none is tiny.
        let files = names().iter().filter(spilled).count();
        assert_eq!(files > 1, memory_bytes < 16 << 20, "{memory_bytes}: {files}");
        assert!(files < 60, "{memory_bytes}: {files}");
        assert!(!names().iter().any(|name| name.starts_with("merge-")), "{:?}", names());
        apus_sync::discard_progress(&place.work).unwrap();
        assert!(names().is_empty(), "{:?}", names());
    }
}

/// How much memory a segment takes depends on what its blocks contain: one that would take too much ends early.
#[test]
fn segments_are_shorter_where_blocks_leave_many_coins() {
    const BLOCKS: usize = 32;
    let mut builder = ChainBuilder::new(858);
    for _ in 0..BLOCKS {
        let script = ScriptBuf::from_bytes(vec![0x51]);
        let worthless = TxOut { value: Amount::ZERO, script_pubkey: script };
        let coinbase_outputs = Some(vec![worthless; 40_000]);
        builder.add_plan(BlockPlan { coinbase_outputs, ..BlockPlan::default() });
    }
    let (world, blocks) = (World::small(859), builder.blocks());
    let mut files = BlockFiles::regtest();
    files.blocks(&blocks);
    files.write(&world.folder.path().join("many"));
    let job = Job {
        blocksdir: world.folder.path().join("many"),
        assume_valid: blocks.last().map(hash_of),
        stop: Stop::AtTip,
        threads: 1,
        // 16 blocks each.
        segment_bytes: 6 << 20,
        with_placed: false,
        ..merge(&world)
    };
    let (place, events) = (Place::new(), Events::default());
    job.run_watched(&place, &events, &AtomicBool::new(false)).unwrap();
    let mut lengths: Vec<u32> = events.all().into_iter().filter_map(ended).collect();
    assert_eq!(lengths.iter().sum::<u32>() as usize, BLOCKS);
    // A segment may take 12 MiB, and each of these blocks takes 1 MB in it.
    let later = lengths.split_off(1);
    assert!(lengths[0] > 12, "{lengths:?}");
    assert!(later.iter().all(|blocks| *blocks <= 12), "{later:?}");
    let in_order = Place::new();
    Job { engine: Engine::Utxo, ..job }.run(&in_order).unwrap();
    assert!(place.output_files() == in_order.output_files());
}

/// A join gives coins only to inputs for which their own segment had none. So a later start must not use the join of an
/// earlier one if it had to process some segments again and these have other ends.
#[test]
fn a_join_counts_only_for_the_segments_that_it_joined() {
    let mut builder = ChainBuilder::new(860);
    builder.empty_blocks(101);
    let (from, _) = builder.mature_coin();
    let output = builder.output(9_000, ScriptKind::OpTrue);
    let first = builder.spend(&[from], vec![output]);
    builder.block_with(vec![first.clone()]);
    for _ in 0..8 {
        // Nothing to spend, but many bytes.
        let script_pubkey = ScriptBuf::from_bytes(vec![0x6a; 300_000]);
        let coinbase_outputs = Some(vec![TxOut { value: Amount::ZERO, script_pubkey }]);
        builder.add_plan(BlockPlan { coinbase_outputs, ..BlockPlan::default() });
    }
    let output = builder.output(8_000, ScriptKind::OpTrue);
    let second = builder.spend_coins(&coins_of(&first), vec![output]);
    builder.block_with(vec![second]);
    builder.empty_blocks(1);
    let world = World::laid_out(&builder.blocks(), |blocks| {
        let mut files = BlockFiles::regtest();
        files.blocks(blocks);
        files
    });
    // All blocks are in one segment, unless there is little memory for many of them.
    let job = Job { segment_bytes: 8 << 20, memory_bytes: 1 << 30, ..merge(&world) };
    let syncs = {
        let whole = Place::new();
        job.expect(&world.truth, &whole);
        whole.work.syncs()
    };
    let mut kept = 0;
    for n in (0..syncs).step_by(rounds(9, 1) as usize) {
        let image = {
            let place = Place::new();
            place.work.crash_at(n, AfterCrash::Fail);
            job.run(&place).unwrap_err();
            place.work.crash_image(n)
        };
        let names = image.names().unwrap();
        if !names.iter().any(|name| name == "joined") {
            continue;
        }
        kept += 1;
        let segments: Vec<&String> = names.iter().filter(|it| it.ends_with(".part")).collect();
        segments.iter().for_each(|name| image.remove(name).unwrap());
        let mut place = Place { work: image, ..Place::new() };
        let little = Job { threads: 16, memory_bytes: 0, ..job.clone() };
        let events = again(&little, &world.truth, &mut place);
        let lengths: Vec<u32> = events.all().into_iter().filter_map(ended).collect();
        assert!(lengths.len() > 1, "{lengths:?}");
    }
    assert!(kept > 0);
}

/// The number of blocks in a segment that has just ended.
fn ended(event: Event) -> Option<u32> {
    match event {
        Event::Segment(range, SegmentState::Done) => Some(range.count()),
        _ => None,
    }
}

/// If the disk changes a record, only its segment is repeated, and no verdict is wrong.
#[test]
fn damaged_records_are_made_again() {
    let world = World::small(847);
    let place = Place::new();
    merge(&world).expect(&world.truth, &place);
    let mut whole = place.work.live_files();
    assert!(whole.remove("joined").is_some());
    for ending in [".made", ".spent", ".answers", ".prints", ".added", ".claims"] {
        let largest = |(name, bytes): &(&String, &Vec<u8>)| (name.ends_with(ending), bytes.len());
        let (name, bytes) = whole.iter().max_by_key(largest).unwrap();
        assert!(name.ends_with(ending));
        for at in [3, bytes.len() / 3, bytes.len() / 2, bytes.len() - 2] {
            for batch_segments in [None, Some(2)] {
                let mut files = whole.clone();
                files.get_mut(name).unwrap()[at] ^= 1;
                let place = Place { work: CrashStorage::holding(files), ..Place::new() };
                let job = Job { batch_segments, ..merge(&world) };
                let error = job.refused(&place);
                assert_eq!(error.kind(), ErrorKind::Io, "{name} {at}: {error}");
                assert!(error.to_string().contains(name), "{name} {at}: {error}");
                job.expect(&world.truth, &place);
            }
        }
    }
}

/// A damaged join result is detected, and the join is repeated.
#[test]
fn a_damaged_join_is_made_again() {
    let world = World::small(851);
    let place = Place::new();
    merge(&world).expect(&world.truth, &place);
    let whole = place.work.live_files();
    for kind in ["spill-leaves-", "spill-set-", "spill-places-"] {
        let largest = |(name, bytes): &(&String, &Vec<u8>)| (name.starts_with(kind), bytes.len());
        let (name, bytes) = whole.iter().max_by_key(largest).unwrap();
        assert!(name.starts_with(kind));
        for at in [3, bytes.len() / 2, bytes.len() - 2] {
            let mut files = whole.clone();
            files.get_mut(name).unwrap()[at] ^= 1;
            let place = Place { work: CrashStorage::holding(files), ..Place::new() };
            let error = merge(&world).run(&place).unwrap_err();
            world.truth.check_files(&place.output_files());
            assert_eq!(error.kind(), ErrorKind::Io, "{name} {at}: {error}");
            assert!(error.to_string().contains(name), "{name} {at}: {error}");
            merge(&world).expect(&world.truth, &place);
        }
    }
}

/// A start that validates blocks again, to keep them, reads the coins that the join found for their inputs.
#[test]
fn damaged_join_results_are_made_again() {
    let world = World::small(852);
    let place = Place::new();
    merge(&world).expect(&world.truth, &place);
    let whole = place.work.live_files();
    let is_answers = |(name, _): &(&String, &Vec<u8>)| name.starts_with("spill-answers-");
    let (name, bytes) = whole.iter().filter(is_answers).max_by_key(|(_, it)| it.len()).unwrap();
    for at in [0, 3, 7, bytes.len() / 3, bytes.len() / 2, bytes.len() - 2] {
        let mut files = whole.clone();
        files.get_mut(name).unwrap()[at] ^= 1;
        let place = Place { work: CrashStorage::holding(files), ..Place::new() };
        let sandbox = tempfile::tempdir().unwrap();
        let job = merge(&world).keeping(sandbox.path());
        let error = job.refused(&place);
        assert_eq!(error.kind(), ErrorKind::Io, "{name} {at}: {error}");
        assert!(error.to_string().contains(name), "{name} {at}: {error}");
        job.expect(&world.truth, &place);
    }
}

/// The work folder belongs to this engine.
#[test]
fn other_syncs_are_distinguished() {
    let world = World::small(846);
    let hints = Some(world.hints(world.truth.stop));
    let ways = [merge(&world), world.job(), Job { hints, ..world.job() }];
    for (at, first) in ways.iter().enumerate() {
        let place = Place::new();
        first.run(&place).unwrap();
        for (_, second) in ways.iter().enumerate().filter(|(other, _)| *other != at) {
            let error = second.run(&place).unwrap_err();
            assert!(
                matches!(error, SyncError::Usage(UsageError::OtherRun { .. })),
                "{at}: {error}"
            );
        }
    }
}

/// Returns, for each start, the number of segments or blocks that an earlier one had done.
fn resumed(events: &Events) -> Vec<usize> {
    let done = |event| match event {
        Event::Resumed { segments, .. } => Some(segments),
        _ => None,
    };
    events.all().into_iter().filter_map(done).collect()
}

fn joined(events: &Events) -> bool {
    events.all().iter().any(|event| matches!(event, Event::Started(Phase::Join)))
}

/// Runs the job again with empty outputs; returns the events.
#[track_caller]
fn again(job: &Job, truth: &Truth, place: &mut Place) -> Events {
    place.out = CrashStorage::new();
    let events = Events::default();
    let outcome = job.run_watched(place, &events, &AtomicBool::new(false));
    truth.check(&outcome.unwrap_or_else(|error| panic!("{error}")), &place.out);
    events
}

/// If the chain grew or the stop height is lower, the segments of the same blocks are reused.
#[cfg(feature = "kernel")]
#[test]
fn another_stop_height_reuses_finished_work() {
    let world = World::small(848);
    let stop = world.truth.stop;
    let mut place = Place::new();
    let to = |end| Job {
        stop: Stop::At(end),
        checkpoint_interval: Duration::ZERO,
        assume_valid: None,
        ..merge(&world)
    };
    let truth_at = |end: u32| Truth::of(&world.chain[..=end as usize]);
    to(stop - 20).expect(&truth_at(stop - 20), &place);
    for end in [stop, stop - 40, stop - 1] {
        let events = again(&to(end), &truth_at(end), &mut place);
        let resumed = resumed(&events);
        assert!(resumed.first().is_some_and(|segments| *segments > 1), "{end}: {resumed:?}");
        assert!(joined(&events), "{end}");
    }
}

/// After a kill at any moment, a start resumes from durable results, including a join, and above validated
/// blocks.
#[test]
fn every_phase_is_resumed() {
    let world = World::small(849);
    let sandbox = || tempfile::tempdir().unwrap();
    for keeps in [false, true] {
        let job = |sandbox: &Path| {
            let checkpoint_interval = Duration::ZERO;
            let job = Job { checkpoint_interval, ..merge(&world) };
            if keeps { job.keeping(sandbox) } else { job }
        };
        let whole = Place::new();
        job(sandbox().path()).expect(&world.truth, &whole);
        let (mut without_join, mut above) = (0, Vec::new());
        for n in (0..whole.work.syncs()).step_by(rounds(9, 1) as usize) {
            let (place, sandbox) = (Place::new(), sandbox());
            place.work.crash_at(n, AfterCrash::Fail);
            job(sandbox.path()).run(&place).unwrap_err();
            let mut place = Place { work: place.work.crash_image(n), ..place };
            let events = again(&job(sandbox.path()), &world.truth, &mut place);
            if !joined(&events) {
                without_join += 1;
                above.extend(resumed(&events).last().copied());
            }
        }
        above.dedup();
        assert!(without_join > 20 && above.len() > 15, "{without_join}: {above:?}");
    }
}

/// If scripts are run, the join is kept, however early it was done, and so are its segments.
#[cfg(feature = "kernel")]
#[test]
fn an_early_join_is_kept_for_scripts() {
    let world = World::small(879);
    let checkpoint_interval = Duration::from_secs(3600);
    let job = Job { checkpoint_interval, assume_valid: None, ..merge(&world) };
    let whole = Place::new();
    job.expect(&world.truth, &whole);
    let mut without_join = 0;
    for n in 0..whole.work.syncs() {
        let place = Place::new();
        place.work.crash_at(n, AfterCrash::Fail);
        job.run(&place).unwrap_err();
        let mut place = Place { work: place.work.crash_image(n), ..place };
        let is_kept = place.work.names().unwrap().iter().any(|name| name == "joined");
        let events = again(&job, &world.truth, &mut place);
        assert!(!is_kept || !events.all().into_iter().any(|event| ended(event).is_some()));
        without_join += usize::from(!joined(&events));
    }
    assert!(without_join > 0);
    // Without scripts, nothing takes longer than syncing the disk.
    let place = Place::new();
    Job { checkpoint_interval, ..merge(&world) }.expect(&world.truth, &place);
    assert!(place.work.syncs() < whole.work.syncs());
}

/// Each block is validated with its own spend summary, even if a start resumes within a segment. The summaries
/// of earlier blocks would pass, because they have as many inputs and no such coinbase.
#[test]
fn a_resumed_start_uses_the_spend_summary_of_each_block() {
    let mut builder = ChainBuilder::new(877);
    builder.empty_blocks(40);
    let height = builder.height() + 1;
    let too_much = builder.output(ChainBuilder::subsidy(height) + 1, ScriptKind::OpTrue);
    let coinbase = Some(builder.coinbase(height, vec![too_much]));
    let bad = builder.add_plan(BlockPlan { coinbase, ..BlockPlan::default() });
    builder.empty_blocks(3);
    let world = World::of(&builder.blocks());
    let job = Job { checkpoint_interval: Duration::ZERO, ..merge(&world) };
    let whole = Place::new();
    job.run(&whole).unwrap_err();
    let mut above = Vec::new();
    for n in 0..whole.work.syncs() {
        let place = Place::new();
        place.work.crash_at(n, AfterCrash::Fail);
        job.run(&place).unwrap_err();
        let place = Place { work: place.work.crash_image(n), ..place };
        let events = Events::default();
        let error = job.run_watched(&place, &events, &AtomicBool::new(false)).unwrap_err();
        assert!(error.to_string().contains(&hash_of(&bad).to_string()), "{error}");
        assert!(error.to_string().contains("[bad-cb-amount]"), "{error}");
        above.extend(resumed(&events));
    }
    // There are a few segments; larger numbers are validated blocks.
    assert!(above.iter().any(|validated| *validated > 20), "{above:?}");
}

/// Blocks validated under other rules, or without keeping them, do not count.
#[test]
fn blocks_are_validated_again_for_another_purpose() {
    let world = World::small(850);
    let mut place = Place::new();
    let checkpoint_interval = Duration::ZERO;
    let first = Job { checkpoint_interval, ..merge(&world) };
    first.expect(&world.truth, &place);
    let events = again(&first, &world.truth, &mut place);
    assert_eq!(resumed(&events).last().copied(), Some(world.truth.stop as usize));
    let sandbox = tempfile::tempdir().unwrap();
    let events = again(&first.clone().keeping(sandbox.path()), &world.truth, &mut place);
    assert!(!joined(&events));
    let [one, other] = [Engine::Utxo, Engine::MergeSync].map(|engine| {
        let sandbox = tempfile::tempdir().unwrap();
        let job = Job { engine, checkpoint_interval, ..world.job() }.keeping(sandbox.path());
        job.expect(&world.truth, &Place::new());
        files(&sandbox.path().join("node/regtest/blocks"))
    });
    assert!(one == other);
    assert!(files(&sandbox.path().join("node/regtest/blocks")) == one);
}

/// A start must keep the last blocks although they were validated before.
#[test]
fn the_last_blocks_are_kept_even_if_validated_before() {
    let world = World::small(853);
    let mut place = Place::new();
    merge(&world).expect(&world.truth, &place);
    let sandbox = tempfile::tempdir().unwrap();
    let kind = FolderKind::Datadir(DatadirBlocks::Last);
    let output = FolderOutput { kind, path: sandbox.path().join("node"), replace: false };
    let job = Job { folders: vec![output], ..merge(&world) };
    let events = again(&job, &world.truth, &mut place);
    assert!(!joined(&events));
    let undo = files(&sandbox.path().join("node/regtest/blocks"));
    assert!(undo.keys().any(|name| name.starts_with("rev")), "{:?}", undo.keys());
}

/// Scripts that an earlier start assumed valid are run if this start requires it.
#[cfg(feature = "kernel")]
#[test]
fn scripts_that_were_assumed_are_run() {
    let mut builder = random_chain(851);
    let bad = builder.block_with_a_wrong_signature();
    builder.empty_blocks(2);
    let world = World::of(&builder.blocks());
    let mut place = Place::new();
    let assumed = Job { checkpoint_interval: Duration::ZERO, ..merge(&world) };
    assumed.expect(&world.truth, &place);
    place.out = CrashStorage::new();
    let error = Job { assume_valid: None, ..assumed }.refused(&place);
    assert!(error.to_string().contains(&hash_of(&bad).to_string()), "{error}");
}

/// Flips a bit of a file at an offset when the join begins.
struct Changes<'a>(&'a Path, usize);

impl<'a> Changes<'a> {
    fn in_the_middle(file: &'a Path) -> Self {
        Self(file, fs::metadata(file).unwrap().len() as usize / 2)
    }
}

impl Observer for Changes<'_> {
    fn event(&self, event: Event) {
        if matches!(event, Event::Started(Phase::Join)) {
            let mut bytes = fs::read(self.0).unwrap();
            bytes[self.1] ^= 1;
            fs::write(self.0, bytes).unwrap();
        }
    }
}

/// Blocks are checked once. The second walk reads the same bytes, or they are checked again.
#[test]
fn a_file_that_changes_between_the_walks_is_noticed() {
    let world = World::small(852);
    let place = Place::new();
    let file = world.blocksdir().join("blk00000.dat");
    let folder = tempfile::tempdir().unwrap();
    let keeping = merge(&world).keeping(folder.path());
    let changes = Changes::in_the_middle(&file);
    let changed = keeping.run_watched(&place, &changes, &AtomicBool::new(false));
    let error = changed.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Wrong, "{error}");
    assert!(apus_storage::Storage::names(&place.out).unwrap().is_empty());
    // After undoing the change, the sync resumes.
    changes.event(Event::Started(Phase::Join));
    keeping.expect(&world.truth, &place);
}

/// A block whose summary cannot validate it is read again. It has no fingerprint, so it is checked from
/// scratch.
#[test]
fn a_block_with_claims_that_changes_between_the_walks_is_noticed() {
    let mut builder = random_chain(855);
    builder.empty_blocks(1);
    let block = pushes_sigops(&mut builder, ScriptKind::OpTrue);
    builder.empty_blocks(3);
    // Lays out all blocks in one file, in order.
    let world = World::laid_out(&builder.blocks(), |blocks| {
        let mut files = BlockFiles::regtest();
        files.blocks(blocks);
        files
    });
    let file = world.blocksdir().join("blk00000.dat");
    let raw = bitcoin::consensus::serialize(&block);
    let bytes = fs::read(&file).unwrap();
    let start = bytes.windows(raw.len()).position(|window| window == raw).unwrap();
    for leave_witnesses in [true, false] {
        // The offset is in data that an input pushes.
        let changes = Changes(&file, start + raw.len() - 300);
        let job = Job { leave_witnesses, ..merge(&world) };
        let changed = job.run_watched(&Place::new(), &changes, &AtomicBool::new(false));
        let error = changed.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Wrong, "{error}");
        fs::write(&file, &bytes).unwrap();
    }
}

/// Blocks that are not kept, and whose scripts are assumed valid, are read once: the joined coins suffice to
/// validate their spend summaries.
#[test]
fn blocks_that_are_not_kept_are_read_once() {
    let world = World::small(852);
    for leave_witnesses in [true, false] {
        let place = Place::new();
        let job = Job { leave_witnesses, ..merge(&world) };
        let wanted = job.expect(&world.truth, &Place::new());
        let file = world.blocksdir().join("blk00000.dat");
        let bytes = fs::read(&file).unwrap();
        let changes = Changes::in_the_middle(&file);
        let ran = job.run_watched(&place, &changes, &AtomicBool::new(false));
        assert_eq!(ran.unwrap().set.muhash(), wanted.set.muhash());
        fs::write(&file, bytes).unwrap();
    }
}
