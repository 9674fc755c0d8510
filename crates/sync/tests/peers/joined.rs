//! Runs by mergesync over peers: blocks are kept as they come, joined below the last ones, judged as they were
//! kept, and the last ones connected on the set that stands there.

use crate::chains::{PATIENCE, Run, Told, branch, chain, invalid_block};
use crate::kept::entries;
use apus_engine::utxo::CoinsStore;
use apus_sync::peers::{KeptFolder, Peers};
use apus_sync::{Engine, ErrorKind, Outcome, ScriptCounts};
use apus_testkit::chain::{ChainBuilder, Shape};
use apus_testkit::peer::{Behaviour, FakePeer};
use bitcoin::Block;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Blocks that spend lie below the last 288, and among them. They are 440.
fn long_chain(seed: u64) -> ChainBuilder {
    let mut builder = chain(seed, 98);
    builder.random_blocks(32, Shape::default());
    builder.empty_blocks(290);
    builder.random_blocks(20, Shape::default());
    builder
}

/// A run by mergesync, and the folder of its blocks.
fn joining(follow: bool) -> (Run, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut run = Run::new(follow, PATIENCE);
    run.engine = Some(Engine::MergeSync);
    let log = folder.path().join("kept");
    run.keep = Some(KeptFolder { folder: folder.path().join("blocks"), log, datadir: None });
    (run, folder)
}

/// All blocks are kept, with undo data, and were judged by every rule.
fn check(run: &Run, folder: &tempfile::TempDir, outcome: Outcome, all: &[Block]) {
    let blocks = all.len() as u64 - 1;
    assert_eq!(
        (outcome.validation.engine, outcome.validation.connected_from),
        (Engine::MergeSync, Some(1))
    );
    assert_eq!(outcome.validation.scripts, ScriptCounts { run: blocks, assumed: 0 });
    assert_eq!(outcome.validation.hints.aggregate, None);
    run.check(Ok(outcome), all);
    assert_eq!(*run.told.warnings.lock().unwrap(), [""; 0]);
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

/// Whatever it is doing, and though the next start is not told by which engine.
#[test]
fn a_run_that_joins_goes_on_where_it_was() {
    let all = long_chain(82).blocks();
    let (mut run, folder) = joining(false);
    // Some blocks never come.
    let peer = FakePeer::slow(&all, &[Behaviour::NotFoundFrom(300)], Duration::from_millis(1));
    let stop = |_: &Told, _: &Peers<'_>| run.interrupt.store(true, Ordering::Relaxed);
    let error = std::thread::scope(|scope| {
        let running = scope.spawn(|| run.over(&[&peer]));
        while peer.seen.blocks.load(Ordering::Relaxed) < 250 {
            std::thread::sleep(Duration::from_millis(10));
        }
        run.interrupt.store(true, Ordering::Relaxed);
        running.join().unwrap().unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    assert!(run.work.live_files().contains_key("plan"), "it had begun");
    run.interrupt.store(false, Ordering::Relaxed);
    // While blocks are judged, after that, and when some were connected.
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
    assert!(asked < 300, "{asked} blocks are sent that were there");
}

/// Whose blocks may all be left by the peers.
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
fn a_run_that_joined_follows_the_tip() {
    let first = long_chain(84).blocks();
    // It parts from the first one above the blocks that were joined.
    let all = branch(&first, 85, 430, 15).blocks();
    let (run, folder) = joining(true);
    let peer = FakePeer::start(&first, &[Behaviour::Honest]);
    let outcome = std::thread::scope(|scope| {
        let running = scope.spawn(|| run.over(&[&peer]));
        run.told.wait_for(440);
        peer.set_chain(&all);
        run.told.wait_for(445);
        run.interrupt.store(true, Ordering::Relaxed);
        running.join().unwrap()
    });
    check(&run, &folder, outcome.unwrap_or_else(|error| panic!("{error}")), &all);
}

/// A coin that does not exist, in a block that is joined; the run is told of no other chain.
#[test]
fn an_invalid_block_among_those_that_are_joined_is_told() {
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

/// One at the tip is left out, as it always is.
#[test]
fn an_invalid_block_above_those_that_are_joined_is_left_out() {
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

/// Peers go over to a chain that parts from the one whose coins were gone on from, below these: there is no way back, so the
/// run begins anew.
#[test]
fn a_chain_that_parts_below_what_was_joined_is_begun_anew() {
    let first = long_chain(88).blocks();
    let (run, _folder) = joining(false);
    let stop = |_: &Told, _: &Peers<'_>| run.interrupt.store(true, Ordering::Relaxed);
    let peer = FakePeer::start(&first, &[Behaviour::Honest]);
    run.held_at(&[&peer], Some((200, &stop))).unwrap_err();
    run.interrupt.store(false, Ordering::Relaxed);
    let second = branch(&first, 89, 90, 360).blocks();
    let other = FakePeer::start(&second, &[Behaviour::Honest]);
    run.check(run.over(&[&other]), &second);
}

/// A liar's chain is better by one block, parts from the others' far below, and its last block is invalid: this start and the
/// next end on the others' chain.
#[test]
fn a_better_chain_that_parts_far_below_and_is_invalid_is_left() {
    let honest_chain = long_chain(93).blocks();
    let mut builder = branch(&honest_chain, 94, 120, 320);
    let invalid = invalid_block(&mut builder);
    builder.add(invalid);
    let honest = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let liar = FakePeer::start(&builder.blocks(), &[Behaviour::Honest]);
    let (run, _folder) = joining(false);
    run.check(run.over(&[&honest, &liar]), &honest_chain);
    let told = run.told.warnings.lock().unwrap().join("\n");
    assert!(told.contains("bad-cb-amount") && told.contains("begins anew"), "{told}");
    assert!(!told.contains("hints"), "{told}");
}

/// Before it has gone on, what it did of the blocks that both chains have stays.
#[test]
fn a_chain_that_parts_while_blocks_come_is_gone_for() {
    let first = long_chain(90).blocks();
    let second = branch(&first, 91, 120, 340).blocks();
    let (run, folder) = joining(false);
    let peer = FakePeer::start(&first, &[Behaviour::NotFoundFrom(150)]);
    let stop = || run.interrupt.store(true, Ordering::Relaxed);
    let error = std::thread::scope(|scope| {
        let running = scope.spawn(|| run.over(&[&peer]));
        while peer.seen.blocks.load(Ordering::Relaxed) < 149 {
            std::thread::sleep(Duration::from_millis(10));
        }
        stop();
        running.join().unwrap().unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    run.interrupt.store(false, Ordering::Relaxed);
    let other = FakePeer::start(&second, &[Behaviour::Honest]);
    let outcome = run.over(&[&other]).unwrap_or_else(|error| panic!("{error}"));
    check(&run, &folder, outcome, &second);
}

#[test]
fn blocks_that_are_not_kept_are_not_joined() {
    let all = chain(92, 10).blocks();
    let (mut run, _folder) = joining(false);
    run.keep = None;
    let peer = FakePeer::start(&all, &[Behaviour::Honest]);
    let error = run.over(&[&peer]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    assert!(error.to_string().contains("twice"), "{error}");
}
