//! Tests of mergesync over peers: blocks are kept as they arrive; all but the last ones are joined and
//! validated in their stored form; the last ones are then connected to the resulting set.

use crate::chains::{PATIENCE, Reported, Run, branch, chain, invalid_block};
use crate::kept::entries;
use crate::world::display;
use apus_chain::BlockHash;
use apus_engine::utxo::CoinsStore;
use apus_engine::utxo::store::MemoryStore;
use apus_sync::peers::{BlocksFolderOptions, Peers};
use apus_sync::{
    DatadirBlocks, Engine, ErrorKind, FolderKind, FolderOutput, IoError, Outcome, ScriptCounts,
    SyncError,
};
use apus_testkit::chain::{ChainBuilder, Shape, utxo_set};
use apus_testkit::oracle;
use apus_testkit::peer::{Behaviour, FakePeer};
use apus_testkit::storage::CrashStorage;
use bitcoin::Block;
use bitcoin::hashes::Hash;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Makes 440 blocks, with spends below the last 288 blocks and among them.
fn long_chain(seed: u64) -> ChainBuilder {
    let mut builder = chain(seed, 98);
    builder.random_blocks(32, Shape::default());
    builder.empty_blocks(290);
    builder.random_blocks(20, Shape::default());
    builder
}

/// Makes a sync with mergesync, and the folder of its blocks.
fn joining(follow: bool) -> (Run, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut run = Run::new(follow, PATIENCE);
    run.engine = Some(Engine::MergeSync);
    let log = folder.path().join("kept");
    run.keep =
        Some(BlocksFolderOptions { folder: folder.path().join("blocks"), log, datadir: None });
    (run, folder)
}

/// Interrupts a sync once the peer has sent this many blocks; the next start may go on.
fn stop_after(run: &Run, peer: &FakePeer, blocks: u64) {
    let error = std::thread::scope(|scope| {
        let running = scope.spawn(|| run.over(&[peer]));
        while peer.seen.blocks.load(Ordering::Relaxed) < blocks {
            std::thread::sleep(Duration::from_millis(10));
        }
        run.interrupt.store(true, Ordering::Relaxed);
        running.join().unwrap().unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    run.interrupt.store(false, Ordering::Relaxed);
}

/// Checks that all blocks are kept with undo data, and were validated by every rule.
fn check(run: &Run, folder: &tempfile::TempDir, outcome: Outcome, all: &[Block]) {
    let blocks = all.len() as u64 - 1;
    assert_eq!(
        (outcome.validation.engine, outcome.validation.connected_from),
        (Engine::MergeSync, Some(1))
    );
    assert_eq!(outcome.validation.scripts, ScriptCounts { run: blocks, assumed: 0 });
    assert_eq!(outcome.validation.hints.aggregate, None);
    run.check(Ok(outcome), all);
    assert_eq!(*run.reported.warnings.lock().unwrap(), [""; 0]);
    let entries = entries(&folder.path().join("blocks"));
    assert_eq!(entries.len(), all.len());
    assert!(entries[1..].iter().all(|entry| entry.data.is_some() && entry.undo.is_some()));
}

#[test]
fn blocks_of_peers_are_joined() {
    let all = long_chain(81).blocks();
    let (run, folder) = joining(false);
    let peers = [(); 2].map(|()| FakePeer::start(&all, &[Behaviour::Honest]));
    let outcome = run.over(&[&peers[0], &peers[1]]).unwrap_or_else(|error| panic!("{error}"));
    check(&run, &folder, outcome, &all);
    let asked = peers.each_ref().map(|peer| peer.seen.heights.lock().unwrap().len());
    assert!(
        asked.iter().sum::<usize>() < 2 * 440,
        "{asked:?}: some are asked for twice, if they are late"
    );
}

/// A sync resumes in any phase, even if the next start names no engine.
#[test]
fn a_joining_sync_resumes_where_it_was() {
    let all = long_chain(82).blocks();
    let (mut run, folder) = joining(false);
    // Some blocks never arrive.
    let peer = FakePeer::slow(&all, &[Behaviour::NotFoundFrom(300)], Duration::from_millis(1));
    let stop = |_: &Reported, _: &Peers<'_>| run.interrupt.store(true, Ordering::Relaxed);
    stop_after(&run, &peer, 250);
    assert!(run.work.live_files().contains_key("plan"), "it must have begun");
    // Stops the sync while it validates blocks, after that, and after it connected some.
    for connected in [60, 152, 200] {
        let peer = FakePeer::start(&all, &[Behaviour::Honest]);
        let error = run.held_at(&[&peer], Some((connected, &stop))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{connected}: {error}");
        run.interrupt.store(false, Ordering::Relaxed);
    }
    let tip = run.store.tip().unwrap().unwrap().height;
    assert!(tip > 152, "some are connected: {tip}");
    run.engine = None;
    let peer = FakePeer::start(&all, &[Behaviour::Honest]);
    let outcome = run.over(&[&peer]).unwrap_or_else(|error| panic!("{error}"));
    check(&run, &folder, outcome, &all);
    let asked = peer.seen.blocks.load(Ordering::Relaxed);
    assert!(asked < 300, "{asked} blocks are sent again");
}

/// A short chain has no joined blocks: peers may switch away from any of its blocks.
#[test]
fn a_short_chain_is_connected() {
    let mut builder = chain(83, 98);
    builder.random_blocks(22, Shape::default());
    let all = builder.blocks();
    let (run, _folder) = joining(false);
    let peer = FakePeer::start(&all, &[Behaviour::Honest]);
    let outcome = run.over(&[&peer]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(outcome.validation.engine, Engine::Utxo);
    run.check(Ok(outcome), &all);
}

#[test]
fn a_joined_sync_follows_the_tip() {
    let first = long_chain(84).blocks();
    // The second chain forks off the first one above the joined blocks.
    let all = branch(&first, 85, 430, 15).blocks();
    let (run, folder) = joining(true);
    let peer = FakePeer::start(&first, &[Behaviour::Honest]);
    let outcome = std::thread::scope(|scope| {
        let running = scope.spawn(|| run.over(&[&peer]));
        run.reported.wait_for(440);
        peer.set_chain(&all);
        run.reported.wait_for(445);
        run.interrupt.store(true, Ordering::Relaxed);
        running.join().unwrap()
    });
    check(&run, &folder, outcome.unwrap_or_else(|error| panic!("{error}")), &all);
}

/// A joined block spends a coin that does not exist, and the sync learns of no other chain.
#[test]
fn an_invalid_block_among_joined_blocks_is_reported() {
    let mut builder = chain(86, 100);
    let invalid = invalid_block(&mut builder);
    builder.add(invalid);
    builder.empty_blocks(340);
    let (run, folder) = joining(false);
    let peer = FakePeer::start(&builder.blocks(), &[Behaviour::Honest]);
    let error = run.over(&[&peer]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let text = error.to_string();
    assert!(text.contains("block 101") && text.contains("bad-cb-amount"), "{text}");
    assert!(!folder.path().join("blocks/index").exists());
}

/// An invalid block at the tip is left out, as in any sync.
#[test]
fn an_invalid_block_above_the_joined_ones_is_left_out() {
    let mut builder = long_chain(87);
    let valid = builder.blocks();
    let invalid = invalid_block(&mut builder);
    builder.add(invalid);
    let (run, _folder) = joining(false);
    let honest = FakePeer::start(&valid, &[Behaviour::Honest]);
    let evil = FakePeer::start(&builder.blocks(), &[Behaviour::Honest]);
    let outcome = run.over(&[&honest, &evil]);
    run.check(outcome, &valid);
}

/// Peers switch to a chain that forks off below the coins that the sync resumed from: there is no undo data,
/// so the sync starts over.
#[test]
fn a_fork_below_the_joined_blocks_starts_over() {
    let first = long_chain(88).blocks();
    let (run, _folder) = joining(false);
    let stop = |_: &Reported, _: &Peers<'_>| run.interrupt.store(true, Ordering::Relaxed);
    let peer = FakePeer::start(&first, &[Behaviour::Honest]);
    run.held_at(&[&peer], Some((200, &stop))).unwrap_err();
    run.interrupt.store(false, Ordering::Relaxed);
    let second = branch(&first, 89, 90, 360).blocks();
    let other = FakePeer::start(&second, &[Behaviour::Honest]);
    run.check(run.over(&[&other]), &second);
}

/// The coins below the last blocks are damaged: the start that needs them says so, and the next one makes them again.
#[test]
fn damaged_coins_below_the_last_blocks_are_made_again() {
    let all = long_chain(99).blocks();
    let (mut run, folder) = joining(false);
    let stop = |_: &Reported, _: &Peers<'_>| run.interrupt.store(true, Ordering::Relaxed);
    let peer = FakePeer::start(&all, &[Behaviour::Honest]);
    run.held_at(&[&peer], Some((200, &stop))).unwrap_err();
    run.interrupt.store(false, Ordering::Relaxed);
    let mut files = run.work.live_files();
    let of_base = files.iter_mut().filter(|(name, _)| name.starts_with("spill-base-"));
    let (name, bytes) = of_base.max_by_key(|(_, bytes)| bytes.len()).unwrap();
    let (name, middle) = (name.clone(), bytes.len() / 2);
    bytes[middle] ^= 1;
    run.work = CrashStorage::holding(files);
    // The store is lost, too, so the coins are needed again.
    run.store = Arc::new(MemoryStore::new());
    let error = run.over(&[&peer]).unwrap_err();
    assert!(error.kind() == ErrorKind::Io && error.to_string().contains(&name), "{error}");
    let outcome = run.over(&[&peer]).unwrap_or_else(|error| panic!("{error}"));
    check(&run, &folder, outcome, &all);
}

/// A liar's chain is better by one block, forks off the others' far below, and its last block is invalid:
/// this start and the next end on the others' chain.
#[test]
fn an_invalid_better_chain_from_far_below_is_abandoned() {
    let honest_chain = long_chain(93).blocks();
    let mut builder = branch(&honest_chain, 94, 120, 320);
    let invalid = invalid_block(&mut builder);
    builder.add(invalid);
    let honest = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let liar = FakePeer::start(&builder.blocks(), &[Behaviour::Honest]);
    let (run, _folder) = joining(false);
    run.check(run.over(&[&honest, &liar]), &honest_chain);
    let warnings = run.reported.warnings.lock().unwrap().join("\n");
    assert!(warnings.contains("bad-cb-amount") && warnings.contains("starts over"), "{warnings}");
    assert!(!warnings.contains("hints"), "{warnings}");
}

/// The results for the blocks that both chains have are kept if the fork happens before connecting begins.
#[test]
fn a_fork_during_the_download_is_followed() {
    let first = long_chain(90).blocks();
    let second = branch(&first, 91, 120, 340).blocks();
    let (run, folder) = joining(false);
    let peer = FakePeer::start(&first, &[Behaviour::NotFoundFrom(150)]);
    stop_after(&run, &peer, 149);
    let other = FakePeer::start(&second, &[Behaviour::Honest]);
    let outcome = run.over(&[&other]).unwrap_or_else(|error| panic!("{error}"));
    check(&run, &folder, outcome, &second);
}

#[test]
fn blocks_that_are_not_kept_are_joined_up_to_the_assumed_valid_one() {
    let mut builder = chain(92, 98);
    builder.random_blocks(32, Shape::default());
    let assumed = BlockHash(builder.tip().to_byte_array());
    // Core assumes scripts valid only below two weeks of work.
    builder.empty_blocks(2_100);
    builder.random_blocks(10, Shape::default());
    let all = builder.blocks();
    for batch_segments in [None, Some(1), Some(4)] {
        let mut run = Run::new(false, PATIENCE);
        (run.assume_valid, run.batch_segments) = (Some(assumed), batch_segments);
        run.goes_twice = false;
        run.engine = Some(Engine::MergeSync);
        let peer = FakePeer::start(&all, &[Behaviour::Honest]);
        let outcome = run.over(&[&peer]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(outcome.validation.engine, Engine::MergeSync);
        let run_scripts = all.len() as u64 - 1 - 130;
        assert_eq!(outcome.validation.scripts, ScriptCounts { run: run_scripts, assumed: 130 });
        assert_eq!(display(&outcome.set.muhash().unwrap()), oracle::muhash(&utxo_set(&all)));
        assert_eq!(outcome.counts.blocks, all.len() as u64 - 1);
        let asked = peer.seen.heights.lock().unwrap().len();
        assert!(asked < all.len() + 50, "{asked}: each block is asked for once");
    }
}

/// A segment that takes its share of the memory is cut. The parts count as finished at the next start, which may have
/// more memory. With the least memory, each piece that a worker fills is a segment.
#[test]
fn segments_are_cut_where_memory_ends() {
    let mut builder = chain(95, 98);
    builder.random_blocks(60, Shape::default());
    let assumed = BlockHash(builder.tip().to_byte_array());
    builder.empty_blocks(2_100);
    let all = builder.blocks();
    for memory_bytes in [0, 50_000, 200_000] {
        let mut run = Run::new(false, PATIENCE);
        (run.assume_valid, run.goes_twice) = (Some(assumed), false);
        run.memory_bytes = memory_bytes;
        let peer = FakePeer::slow(&all, &[Behaviour::NotFoundFrom(140)], Duration::from_millis(1));
        stop_after(&run, &peer, 139);
        let first = std::mem::take(&mut *run.reported.segments.lock().unwrap());
        assert!(first.len() > 3, "{first:?}: with more memory it would be one");
        run.memory_bytes = if memory_bytes > 0 { 16 << 20 } else { 0 };
        let peer = FakePeer::start(&all, &[Behaviour::Honest]);
        let outcome = run.over(&[&peer]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(outcome.validation.engine, Engine::MergeSync);
        assert_eq!(display(&outcome.set.muhash().unwrap()), oracle::muhash(&utxo_set(&all)));
        let (resumed, planned) = run.reported.resumed.lock().unwrap().unwrap();
        assert!(resumed < planned, "{resumed} of {planned}");
        let mut segments = run.reported.segments.lock().unwrap().clone();
        segments.extend(&first);
        segments.sort_unstable();
        assert!(segments.windows(2).all(|two| two[0].end == two[1].start), "{segments:?}");
        let joined = all.len() as u32 - 288;
        assert_eq!((segments[0].start, segments.last().unwrap().end), (1, joined), "each once");
    }
}

/// Runs a sync that writes a data directory with all blocks; returns its files of blocks and undo data.
fn datadir(run: &mut Run, folder: &Path, all: &[Block]) -> BTreeMap<OsString, Vec<u8>> {
    let path = folder.join("node");
    let kind = FolderKind::Datadir(DatadirBlocks::All);
    run.folders = vec![FolderOutput { kind, path: path.clone(), replace: false }];
    run.goes_twice = false;
    let peer = FakePeer::start(all, &[Behaviour::Honest]);
    let outcome = run.over(&[&peer]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(display(&outcome.set.muhash().unwrap()), oracle::muhash(&utxo_set(all)));
    let written = &outcome.written.folders[..];
    assert_eq!(written[0].blocks_read_back.blocks, all.len() as u64, "{written:?}");
    apus_sync::complete_folders(written).unwrap();
    let blocks = path.join("regtest/blocks");
    assert!(entries(&blocks)[1..].iter().all(|entry| entry.undo.is_some()));
    let files = std::fs::read_dir(blocks).unwrap().map(|entry| entry.unwrap());
    let files = files.filter(|file| file.path().extension().is_some_and(|it| it == "dat"));
    files.map(|file| (file.file_name(), std::fs::read(file.path()).unwrap())).collect()
}

/// Blocks wait in the work folder until they are validated, and are asked for once. The directory is that of the
/// in-order engine, however the chain is cut into batches.
#[test]
fn a_data_directory_of_joined_blocks_is_that_of_the_in_order_engine() {
    let all = long_chain(96).blocks();
    let folder = tempfile::tempdir().unwrap();
    let mut run = Run::new(false, PATIENCE);
    run.engine = Some(Engine::Utxo);
    let expected = datadir(&mut run, folder.path(), &all);
    assert!(expected.len() >= 3, "{:?}", expected.keys());
    for batch_segments in [None, Some(1), Some(3)] {
        let (mut run, folder) = (Run::new(false, PATIENCE), tempfile::tempdir().unwrap());
        run.batch_segments = batch_segments;
        assert!(datadir(&mut run, folder.path(), &all) == expected, "{batch_segments:?}");
    }
}

/// A pruned directory keeps the last blocks, which are connected in order.
#[test]
fn joined_blocks_are_asked_for_once_for_a_pruned_data_directory() {
    let all = long_chain(98).blocks();
    let (mut run, folder) = (Run::new(false, PATIENCE), tempfile::tempdir().unwrap());
    let (kind, path) = (FolderKind::Datadir(DatadirBlocks::Last), folder.path().join("node"));
    run.folders = vec![FolderOutput { kind, path: path.clone(), replace: false }];
    run.goes_twice = false;
    let peer = FakePeer::start(&all, &[Behaviour::Honest]);
    let outcome = run.over(&[&peer]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(outcome.validation.engine, Engine::MergeSync);
    assert_eq!(display(&outcome.set.muhash().unwrap()), oracle::muhash(&utxo_set(&all)));
    let asked = peer.seen.heights.lock().unwrap().len();
    assert!(asked < all.len() + 50, "{asked}");
    let last = all.len() as u32 - 288;
    for entry in entries(&path.join("regtest/blocks")) {
        assert_eq!(
            (entry.data.is_some(), entry.undo.is_some()),
            (entry.height >= last, entry.height >= last)
        );
    }
}

/// The store of the engine that connects the last blocks counts, too. With more space, the next start resumes.
#[test]
fn the_store_of_the_last_blocks_fits_into_the_scratch_space() {
    let all = long_chain(88).blocks();
    let (mut run, folder) = joining(false);
    let peer = FakePeer::start(&all, &[Behaviour::Honest]);
    let mut needed_with = |bytes| {
        run.scratch_bytes = bytes;
        match run.over(&[&peer]) {
            Err(SyncError::Io(IoError::LittleScratch { needed, .. })) => needed,
            other => panic!("{other:?}"),
        }
    };
    let needed = needed_with(1_000);
    assert_eq!(needed_with(needed - 1), needed);
    run.scratch_bytes = needed;
    let outcome = run.over(&[&peer]).unwrap_or_else(|error| panic!("{error}"));
    check(&run, &folder, outcome, &all);
}

/// A sync stopped in any phase does not ask again for the blocks of segments that it has stored.
#[test]
fn a_sync_to_a_data_directory_resumes() {
    let all = long_chain(97).blocks();
    let (mut run, folder) = (Run::new(false, PATIENCE), tempfile::tempdir().unwrap());
    run.batch_segments = Some(2);
    let kind = FolderKind::Datadir(DatadirBlocks::All);
    let path = folder.path().join("node");
    run.folders = vec![FolderOutput { kind, path, replace: false }];
    run.goes_twice = false;
    // Some blocks never arrive.
    let peer = FakePeer::slow(&all, &[Behaviour::NotFoundFrom(130)], Duration::from_millis(1));
    stop_after(&run, &peer, 129);
    let stop = |_: &Reported, _: &Peers<'_>| run.interrupt.store(true, Ordering::Relaxed);
    for connected in [20, 152, 200] {
        run.interrupt.store(false, Ordering::Relaxed);
        let peer = FakePeer::start(&all, &[Behaviour::Honest]);
        let error = run.held_at(&[&peer], Some((connected, &stop))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{connected}: {error}");
    }
    run.interrupt.store(false, Ordering::Relaxed);
    let again = datadir(&mut run, folder.path(), &all);
    let (mut run, folder) = (Run::new(false, PATIENCE), tempfile::tempdir().unwrap());
    assert!(again == datadir(&mut run, folder.path(), &all));
}
