//! Blocks that are kept for a node, by runs that connect them, where an earlier start did not keep all.

use crate::chains::{PATIENCE, Run, Told, chain};
use crate::world::display;
use apus_datadir::{IndexEntry, read_index};
use apus_engine::utxo::store::EachChange;
use apus_engine::utxo::{Changes, CoinsStore, Flush, StoreError};
use apus_sync::peers::{KeptFolder, Peers};
use apus_sync::{DatadirBlocks, ErrorKind, FolderKind, FolderOutput};
use apus_testkit::chain::utxo_set;
use apus_testkit::oracle;
use apus_testkit::peer::{Behaviour, FakePeer};
use apus_testkit::storage::CrashStorage;
use bitcoin::Block;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Stops a run that has connected some blocks and cannot get to the end; the height of its coins.
fn interrupted(run: &Run, all: &[Block]) -> u32 {
    // Progress is told while blocks come, and however late that is, the last ones never do.
    let slow = Duration::from_millis(25);
    let peer = FakePeer::slow(all, &[Behaviour::NotFoundFrom(105)], slow);
    let stop = |_: &Told, _: &Peers<'_>| run.interrupt.store(true, Ordering::Relaxed);
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

/// Undo data comes of connecting, so the run goes back for what it connected before it kept blocks.
#[test]
fn blocks_that_were_connected_before_they_were_kept_are_connected_once_more() {
    let all = chain(67, 120).blocks();
    let mut run = Run::new(false, PATIENCE);
    interrupted(&run, &all);
    let folder = tempfile::tempdir().unwrap();
    let (blocks, log) = (folder.path().join("blocks"), folder.path().join("kept"));
    run.keep = Some(KeptFolder { folder: blocks.clone(), log, datadir: None });
    let peer = FakePeer::start(&all, &[Behaviour::Honest]);
    run.check(run.over(&[&peer]), &all);
    assert_eq!(*run.told.warnings.lock().unwrap(), [""; 0]);
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

/// Where the way back is not there any more, the run says so before it does anything.
#[test]
fn blocks_that_cannot_be_gone_back_over_are_not_kept_without_undo_data() {
    let all = chain(68, 120).blocks();
    let mut run = Run::new(false, PATIENCE);
    let connected = interrupted(&run, &all);
    let tip = run.store.tip().unwrap().unwrap();
    let undo_from = tip.height + 1;
    run.store.write(&Flush { tip, changes: &NoChanges, undo: &[], undo_from }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (blocks, log) = (folder.path().join("blocks"), folder.path().join("kept"));
    run.keep = Some(KeptFolder { folder: blocks.clone(), log, datadir: None });
    let peer = FakePeer::start(&all, &[Behaviour::Honest]);
    let error = run.over(&[&peer]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    assert!(error.to_string().contains("connected blocks without keeping them"), "{error}");
    assert_eq!(run.store.tip().unwrap().unwrap().height, connected);
    assert!(!blocks.join("index").exists());
}

/// A pruned data directory has the last blocks, and says of the others how many transactions each had.
#[test]
fn no_block_is_downloaded_twice_for_a_pruned_data_directory() {
    let all = chain(69, 420).blocks();
    for forget in [false, true] {
        let mut run = Run::new(false, PATIENCE);
        let folder = tempfile::tempdir().unwrap();
        let (kind, path) = (FolderKind::Datadir(DatadirBlocks::Last), folder.path().join("node"));
        run.goes_twice = false;
        run.folders = vec![FolderOutput { kind, path: path.clone(), replace: false }];
        interrupted(&run, &all);
        if forget {
            let mut files = run.work.live_files();
            assert!(files.remove("counts").is_some(), "they are kept");
            run.work = CrashStorage::holding(files);
        }
        let peer = FakePeer::start(&all, &[Behaviour::Honest]);
        let outcome = run.over(&[&peer]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(display(&outcome.set.muhash().unwrap()), oracle::muhash(&utxo_set(&all)));
        let blocks = peer.seen.heights.lock().unwrap().len();
        // Where nothing is remembered, what was taken before is asked for again.
        assert!(if forget { blocks == 420 } else { blocks < 420 }, "{blocks} of 420 blocks");
        let entries = entries(&path.join("regtest/blocks"));
        for entry in &entries {
            let kept = entry.height >= 133;
            assert_eq!((entry.data.is_some(), entry.undo.is_some()), (kept, kept), "{entry:?}");
        }
        assert_eq!(entries.len(), 421);
    }
}

/// A node that started on it earlier would begin anew, over what was downloaded.
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
    run.folders = vec![output.clone()];
    run.keep = Some(KeptFolder { folder: blocks.clone(), log, datadir: Some(output) });
    interrupted(&run, &all);
    assert!(!path.exists() && blocks.join("blk00000.dat").is_file());
    let peer = FakePeer::start(&all, &[Behaviour::Honest]);
    let outcome = run.over(&[&peer]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(display(&outcome.set.muhash().unwrap()), oracle::muhash(&utxo_set(&all)));
    let taken = peer.seen.heights.lock().unwrap().len();
    assert!(taken < 420, "{taken} of 420 blocks: it goes on in the draft");
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
