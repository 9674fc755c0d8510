//! Tests of syncs that keep blocks for a node and connect them, if an earlier start did not keep all blocks.

use crate::chains::{PATIENCE, Reported, Run, chain};
use crate::world::display;
use apus_datadir::{IndexEntry, read_index};
use apus_engine::utxo::store::EachChange;
use apus_engine::utxo::{Changes, CoinsStore, Flush, StoreError};
use apus_sync::peers::{BlocksFolderOptions, Peers};
use apus_sync::{DatadirBlocks, Engine, ErrorKind, FolderKind, FolderOutput};
use apus_testkit::chain::utxo_set;
use apus_testkit::oracle;
use apus_testkit::peer::{Behaviour, FakePeer};
use apus_testkit::storage::CrashStorage;
use bitcoin::Block;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Runs a sync that cannot reach the end, and stops it after some blocks; returns the height of its coins.
fn interrupted(run: &Run, all: &[Block]) -> u32 {
    // The sync reports progress while blocks arrive. However late it does, the last blocks never arrive.
    let slow = Duration::from_millis(25);
    let peer = FakePeer::slow(all, &[Behaviour::NotFoundFrom(105)], slow);
    let stop = |_: &Reported, _: &Peers<'_>| run.interrupt.store(true, Ordering::Relaxed);
    let error = run.held_at(&[&peer], Some((20, &stop))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    run.interrupt.store(false, Ordering::Relaxed);
    let connected = run.store.tip().unwrap().unwrap().height;
    assert!((20..105).contains(&connected), "{connected}");
    connected
}

pub(crate) fn entries(blocksdir: &Path) -> Vec<IndexEntry> {
    let mut entries = Vec::new();
    let read = read_index(blocksdir, &mut |entry| {
        entries.push(entry);
        ControlFlow::Continue(())
    });
    read.unwrap();
    entries.sort_unstable_by_key(|entry| entry.height);
    entries
}

/// Connecting a block produces its undo data, so the sync disconnects the blocks that it connected before
/// it kept blocks, and connects them again.
#[test]
fn blocks_that_were_connected_before_they_were_kept_are_connected_once_more() {
    let all = chain(67, 120).blocks();
    let mut run = Run::new(false, PATIENCE);
    interrupted(&run, &all);
    let folder = tempfile::tempdir().unwrap();
    let (blocks, log) = (folder.path().join("blocks"), folder.path().join("kept"));
    run.keep = Some(BlocksFolderOptions { folder: blocks.clone(), log, datadir: None });
    let peer = FakePeer::start(&all, &[Behaviour::Honest]);
    run.check(run.over(&[&peer]), &all);
    assert_eq!(*run.reported.warnings.lock().unwrap(), [""; 0]);
    let entries = entries(&blocks);
    assert_eq!(entries.len(), 121);
    assert!(entries[1..].iter().all(|entry| entry.data.is_some() && entry.undo.is_some()));
}

struct NoChanges;

impl Changes for NoChanges {
    fn for_each(&self, _: &mut EachChange<'_>) -> Result<(), StoreError> {
        Ok(())
    }
}

/// If the undo data for disconnecting them is gone, the sync says so before it does anything.
#[test]
fn blocks_without_undo_data_for_disconnecting_are_not_kept() {
    let all = chain(68, 120).blocks();
    let mut run = Run::new(false, PATIENCE);
    let connected = interrupted(&run, &all);
    let tip = run.store.tip().unwrap().unwrap();
    let undo_from = tip.height + 1;
    run.store.write(&Flush { tip, changes: &NoChanges, undo: &[], undo_from }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (blocks, log) = (folder.path().join("blocks"), folder.path().join("kept"));
    run.keep = Some(BlocksFolderOptions { folder: blocks.clone(), log, datadir: None });
    let peer = FakePeer::start(&all, &[Behaviour::Honest]);
    let error = run.over(&[&peer]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    assert!(error.to_string().contains("connected blocks without keeping them"), "{error}");
    assert_eq!(run.store.tip().unwrap().unwrap().height, connected);
    assert!(!blocks.join("index").exists());
}

/// A pruned data directory has the last blocks, and the number of transactions of each other block.
#[test]
fn no_block_is_downloaded_twice_for_a_pruned_data_directory() {
    let all = chain(69, 420).blocks();
    for forget in [false, true] {
        let mut run = Run::new(false, PATIENCE);
        let folder = tempfile::tempdir().unwrap();
        let (kind, path) = (FolderKind::Datadir(DatadirBlocks::Last), folder.path().join("node"));
        run.goes_twice = false;
        run.engine = Some(Engine::Utxo);
        run.folders = vec![FolderOutput { kind, path: path.clone(), replace: false }];
        interrupted(&run, &all);
        if forget {
            let mut files = run.work.live_files();
            let counts = ["counts", "counts-new"].map(|name| files.remove(name));
            assert!(counts.iter().any(Option::is_some), "they are kept");
            run.work = CrashStorage::holding(files);
        }
        let peer = FakePeer::start(&all, &[Behaviour::Honest]);
        let outcome = run.over(&[&peer]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(display(&outcome.set.muhash().unwrap()), oracle::muhash(&utxo_set(&all)));
        let blocks = peer.seen.heights.lock().unwrap().len();
        // If the numbers are forgotten, earlier blocks are requested again.
        assert!(if forget { blocks == 420 } else { blocks < 420 }, "{blocks} of 420 blocks");
        let entries = entries(&path.join("regtest/blocks"));
        for entry in &entries {
            let kept = entry.height >= 133;
            assert_eq!((entry.data.is_some(), entry.undo.is_some()), (kept, kept), "{entry:?}");
        }
        assert_eq!(entries.len(), 421);
    }
}

/// A node started on an incomplete folder would start over, and overwrite the downloaded blocks.
#[test]
fn a_data_directory_has_its_name_when_it_is_whole() {
    let all = chain(70, 420).blocks();
    let mut run = Run::new(false, PATIENCE);
    let folder = tempfile::tempdir().unwrap();
    let (path, log) = (folder.path().join("node"), folder.path().join("kept"));
    let output = FolderOutput { kind: FolderKind::KeptDatadir, path: path.clone(), replace: false };
    let draft = folder.path().join("node.incomplete");
    let blocks = draft.join("regtest/blocks");
    run.goes_twice = false;
    run.engine = Some(Engine::Utxo);
    run.folders = vec![output.clone()];
    run.keep = Some(BlocksFolderOptions { folder: blocks.clone(), log, datadir: Some(output) });
    interrupted(&run, &all);
    assert!(!path.exists() && blocks.join("blk00000.dat").is_file());
    let peer = FakePeer::start(&all, &[Behaviour::Honest]);
    let outcome = run.over(&[&peer]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(display(&outcome.set.muhash().unwrap()), oracle::muhash(&utxo_set(&all)));
    let taken = peer.seen.heights.lock().unwrap().len();
    assert!(taken < 420, "{taken} of 420 blocks: it must resume in the draft");
    assert!(!draft.exists());
    let written = &outcome.written.folders[..];
    assert!(written.len() == 1 && written[0].blocks_read_back.blocks == 421, "{written:?}");
    apus_sync::complete_folders(written).unwrap();
    let mut names: Vec<_> = std::fs::read_dir(path.join("regtest"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["blocks", "chainstate"]);
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1);
    let entries = entries(&path.join("regtest/blocks"));
    assert!(entries.len() == 421 && entries[1..].iter().all(|entry| entry.undo.is_some()));
}
