//! Tests that a data directory is read back before it gets its final name: any damage since writing is found,
//! and the folder stays a draft.

use crate::harness::{Call, Hooked, Job, Place, World, store_error};
use crate::undo_data::change_a_coin;
use apus_sync::{
    BlocksRead, DatadirBlocks, ErrorKind, Event, FolderKind, FolderOutput, IoError, Observer,
    Phase, Progress, SyncError,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Changes a folder when it is complete, just before it is read back.
struct AtCheck<'a> {
    blocks: PathBuf,
    harm: &'a (dyn Fn(&Path) + Sync),
    done: AtomicBool,
}

impl Observer for AtCheck<'_> {
    fn event(&self, event: Event) {
        if event == Event::Started(Phase::CheckCoins) {
            (self.harm)(&self.blocks);
            self.done.store(true, Ordering::SeqCst);
        }
    }
}

/// Finds the only file in `folder` whose name has this ending.
fn file(folder: &Path, end: &str) -> PathBuf {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found = paths.filter(|path| path.to_str().unwrap().ends_with(end));
    found.next().unwrap()
}

/// Flips a bit in the middle of a file.
fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn cut(path: &Path) {
    let bytes = fs::read(path).unwrap();
    fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
}

/// Runs a sync whose files `harm` damages once they are written. The sync must fail, and leave nothing under
/// its final names.
fn harmed(job: &Job, place: &Place, sandbox: &Path, harm: &(dyn Fn(&Path) + Sync)) -> SyncError {
    let (blocks, done) = (sandbox.join("node.incomplete/regtest/blocks"), AtomicBool::new(false));
    let observer = AtCheck { blocks, harm, done };
    let error = job.run_watched(place, &observer, &AtomicBool::new(false)).unwrap_err();
    assert!(observer.done.into_inner(), "{error}");
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(!sandbox.join("node").exists(), "named despite: {error}");
    let mut outputs = place.output_files().into_keys();
    assert!(outputs.all(|name| name.ends_with(".incomplete")), "output despite: {error}");
    error
}

#[test]
fn damaged_blocks_and_undo_data_are_found_and_named() {
    type Harm = fn(&Path);
    let cases: [(Harm, &str); 7] = [
        (|blocks| flip(&blocks.join("blk00000.dat")), "blk00000.dat was read back at byte"),
        (|blocks| flip(&blocks.join("rev00000.dat")), "rev00000.dat was read back at byte"),
        (|blocks| flip(&blocks.join("xor.dat")), "blk00000.dat was read back at byte 8,"),
        (|blocks| cut(&blocks.join("blk00000.dat")), "blk00000.dat was checked after writing"),
        (|blocks| cut(&blocks.join("rev00000.dat")), "rev00000.dat was checked after writing"),
        (|blocks| fs::remove_file(blocks.join("rev00000.dat")).unwrap(), "it is missing"),
        (|blocks| fs::write(blocks.join("blk00001.dat"), "").unwrap(), "it does not belong there"),
    ];
    for (threads, (harm, expected)) in [1, 4].into_iter().cycle().zip(cases) {
        let (world, sandbox) = (World::small(731), tempfile::tempdir().unwrap());
        let (job, place) = (Job { threads, ..world.job() }.keeping(sandbox.path()), Place::new());
        let error = harmed(&job, &place, sandbox.path(), &harm);
        assert!(matches!(error, SyncError::Io(IoError::BlocksReadBack { .. })), "{error}");
        let text = error.to_string();
        assert!(text.contains(expected) && text.contains("then remove"), "{text}");
        // The error's advice works: once the progress is removed, the sync starts over.
        job.expect(&world.truth, &Place::new());
    }
}

#[test]
fn a_damaged_index_is_found_and_rewritten() {
    type Harm = fn(&Path);
    let cases: [Harm; 3] = [
        |blocks| flip(&file(&blocks.join("index"), ".ldb")),
        |blocks| cut(&file(&blocks.join("index"), ".ldb")),
        |blocks| fs::remove_dir_all(blocks.join("index")).unwrap(),
    ];
    for harm in cases {
        for kept in [DatadirBlocks::All, DatadirBlocks::Last] {
            let (world, sandbox) = (World::small(732), tempfile::tempdir().unwrap());
            let mut job = world.job().keeping(sandbox.path());
            job.folders[0].kind = FolderKind::Datadir(kept);
            let place = Place::new();
            let error = harmed(&job, &place, sandbox.path(), &harm);
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            assert!(error.to_string().contains("then rerun the same command"), "{error}");
            job.expect(&world.truth, &place);
            assert!(sandbox.path().join("node/regtest/blocks/index/CURRENT").is_file());
        }
    }
}

#[test]
fn a_stop_while_reading_back_is_resumed() {
    struct StopAtBlocks<'a>(&'a AtomicBool);
    impl Observer for StopAtBlocks<'_> {
        fn event(&self, event: Event) {
            if let Event::Progress(Phase::CheckBlocks, progress) = event {
                let Progress { blocks, blocks_total, bytes, bytes_total, .. } = progress;
                assert!(blocks <= blocks_total && (blocks == 0 || bytes <= bytes_total));
                if blocks > 0 {
                    self.0.store(true, Ordering::SeqCst);
                }
            }
        }
    }
    let (world, sandbox) = (World::small(734), tempfile::tempdir().unwrap());
    let (job, place, flag) =
        (world.job().keeping(sandbox.path()), Place::new(), AtomicBool::new(false));
    let error = job.run_watched(&place, &StopAtBlocks(&flag), &flag).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    assert!(!sandbox.path().join("node").exists());
    job.expect(&world.truth, &place);
    assert!(sandbox.path().join("node").is_dir());
}

#[test]
fn the_report_counts_blocks_read_back() {
    for (threads, kept) in
        [(1, DatadirBlocks::All), (3, DatadirBlocks::All), (2, DatadirBlocks::Last)]
    {
        let (world, sandbox) = (World::small(733), tempfile::tempdir().unwrap());
        let mut job = Job { threads, ..world.job() }.keeping(sandbox.path());
        let output = |kind, name| {
            let path = sandbox.path().join(name);
            FolderOutput { kind, path, replace: false }
        };
        job.folders[0].kind = FolderKind::Datadir(kept);
        job.folders.push(output(FolderKind::Chainstate, "coins"));
        let outcome = job.expect(&world.truth, &Place::new());
        let undo = u64::from(world.truth.stop);
        let (blocks, index_entries) = match kept {
            DatadirBlocks::All => (undo + 1, undo + 1 + 2),
            // This counts the mark that blocks were pruned, but not the genesis block.
            DatadirBlocks::Last => (undo, undo + 1 + 3),
        };
        let bytes = |name: &str| {
            fs::metadata(sandbox.path().join("node/regtest/blocks").join(name)).unwrap().len()
        };
        let bytes = bytes("blk00000.dat") + bytes("rev00000.dat");
        let [datadir, coins] = &outcome.written.folders[..] else { unreachable!() };
        let read = BlocksRead { index_entries, blocks, undo, undo_at_end: undo, bytes };
        assert_eq!(datadir.blocks_read_back, read);
        assert_eq!(coins.blocks_read_back, BlocksRead::default());
    }
}

/// A single record shows no fault, so only the sync that connected the block can detect this, even if a later
/// start resumes it.
#[test]
fn undo_data_of_another_coin_are_found() {
    for stopped_at in [None, Some(115)] {
        let (world, sandbox) = (World::small(735), tempfile::tempdir().unwrap());
        let (job, mut place) = (world.job().keeping(sandbox.path()), Place::new());
        if let Some(writes) = stopped_at {
            let whole = Arc::clone(&place.store);
            place.store = Hooked::over(&whole, move |at, before| match at {
                Call::Write if before >= writes => Err(store_error()),
                _ => Ok(()),
            });
            job.run(&place).unwrap_err();
            place.store = whole;
        }
        let harm = |blocks: &Path| change_a_coin(blocks, &world.chain);
        let error = harmed(&job, &place, sandbox.path(), &harm);
        assert!(matches!(error, SyncError::Io(IoError::BlocksReadBack { .. })), "{error}");
        let text = error.to_string();
        assert!(text.contains("match the coins that the block spent"), "{text}");
    }
}
