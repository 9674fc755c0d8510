//! Tests of syncs that are stopped and started again.

use crate::harness::{Job, Warnings, World};
use apus_p2p::network::NetworkError;
use apus_storage::Storage;
use apus_sync::peers::BlocksFolderOptions;
use apus_sync::{
    ErrorKind, Event, IoError, Observer, Phase, SegmentState, SilentObserver, SyncError, UsageError,
};
use apus_testkit::peer::{Behaviour, FakePeer};
use apus_testkit::storage::CrashStorage;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interrupts the sync when this many blocks are done.
struct StopAt<'a> {
    blocks: u64,
    interrupt: &'a AtomicBool,
    resumed: Mutex<Option<(usize, usize)>>,
}

impl Observer for StopAt<'_> {
    fn event(&self, event: Event) {
        match event {
            Event::Progress(Phase::Blocks, progress) if progress.blocks >= self.blocks => {
                self.interrupt.store(true, Ordering::Relaxed);
            }
            Event::Resumed { segments, of } => {
                *self.resumed.lock().unwrap() = Some((segments, of));
            }
            _ => {}
        }
    }
}

/// Finished segments are not downloaded again.
#[test]
fn interrupted_and_resumed() {
    let world = World::small(21);
    let (work, out) = (CrashStorage::new(), CrashStorage::new());
    let job = world.job();
    interrupted(&job, &work, &out);
    let again = FakePeer::start(&world.chain, &[Behaviour::Honest]);
    let observer =
        StopAt { blocks: u64::MAX, interrupt: &job.interrupt, resumed: Mutex::new(None) };
    let outcome = job.run_in(&[&again], &work, &out, &observer).unwrap();
    world.truth.check(&outcome, &out);
    let (done, of) = observer.resumed.lock().unwrap().expect("it resumes");
    assert!(done > 0 && done < of, "{done} of {of}");
    let blocks = again.seen.heights.lock().unwrap().len();
    assert!(blocks < 120, "all blocks were downloaded again");
}

/// Headers survive a crash, and damage to them is noticed.
#[test]
fn headers_are_kept_and_checked() {
    let world = World::small(22);
    let peer = FakePeer::start(&world.chain, &[Behaviour::Honest]);
    let (work, out) = (CrashStorage::new(), CrashStorage::new());
    let job = world.job();
    job.run_in(&[&peer], &work, &out, &apus_sync::SilentObserver).unwrap();
    let names = work.names().unwrap();
    let file = names.iter().find(|name| name.starts_with("headers-")).expect("headers are kept");
    let mut files = work.live_files();
    let bytes = files.get_mut(file).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    let rotten = CrashStorage::holding(files);
    let out = CrashStorage::new();
    // The first sync's plan and progress exist, too: only headers are missing.
    let outcome = job.run_in(&[&peer], &rotten, &out, &apus_sync::SilentObserver).unwrap();
    world.truth.check(&outcome, &out);
}

/// Addresses survive a restart as well, but the next start does not trust them.
#[test]
fn addresses_are_kept() {
    let world = World::small(23);
    let peer = FakePeer::start(&world.chain, &[Behaviour::Honest]);
    let (named, found) = (world.job(), Job { finds_peers: true, ..world.job() });
    let (work, out) = (CrashStorage::new(), CrashStorage::new());
    named.run_in(&[&peer], &work, &out, &apus_sync::SilentObserver).unwrap();
    assert!(!work.live_files().contains_key("addresses"), "the user gave them");

    let file = format!(
        "apus-addresses 1 regtest\n127.0.0.1 {} 9 4000000000 0 0\nnonsense\n",
        peer.address().port()
    );
    let work = CrashStorage::holding([("addresses".to_owned(), file.into_bytes())].into());
    let out = CrashStorage::new();
    let outcome = found.run_in(&[&peer], &work, &out, &apus_sync::SilentObserver).unwrap();
    world.truth.check(&outcome, &out);
    let text = String::from_utf8(work.live_files()["addresses"].clone()).unwrap();
    let words: Vec<&str> = text.lines().nth(1).unwrap().split(' ').collect();
    assert_ne!(words[4], "0", "it answered: {text}");
    assert_eq!(text.lines().count(), 2);
}

#[test]
fn damaged_addresses_are_ignored() {
    let world = World::small(24);
    let peer = FakePeer::start(&world.chain, &[Behaviour::Honest]);
    let patience = Duration::from_secs(1);
    let job = Job { finds_peers: true, patience, ..world.job() };
    let file =
        format!("apus-addresses 1 main\n127.0.0.1 {} 9 4000000000 0 0\n", peer.address().port());
    let work = CrashStorage::holding([("addresses".to_owned(), file.into_bytes())].into());
    let error =
        job.run_in(&[&peer], &work, &CrashStorage::new(), &apus_sync::SilentObserver).unwrap_err();
    assert!(matches!(error, SyncError::Network(NetworkError::NoAddresses { .. })), "{error}");
}

/// Runs a start that is stopped when half of the blocks are done. The last ones never arrive, so it cannot
/// reach the end even if the interrupt is late.
fn interrupted(job: &Job<'_>, work: &CrashStorage, out: &CrashStorage) {
    let slow = Duration::from_millis(25);
    let peer = FakePeer::slow(&job.world.chain, &[Behaviour::NotFoundFrom(110)], slow);
    let observer = StopAt { blocks: 60, interrupt: &job.interrupt, resumed: Mutex::new(None) };
    let error = job.run_in(&[&peer], work, out, &observer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    job.interrupt.store(false, Ordering::Relaxed);
}

/// Blocks must be kept, for a node that wants to disconnect the last ones, and an earlier start processed
/// these with hints.
#[test]
fn blocks_processed_with_hints_cannot_be_kept_for_a_node() {
    let world = World::small(23);
    let (work, out, folder) =
        (CrashStorage::new(), CrashStorage::new(), tempfile::tempdir().unwrap());
    let mut job = world.job();
    interrupted(&job, &work, &out);
    let blocks = folder.path().join("blocks");
    job.keep = Some(BlocksFolderOptions {
        folder: blocks.clone(),
        log: folder.path().join("kept"),
        datadir: None,
    });
    let peer = FakePeer::start(&world.chain, &[Behaviour::Honest]);
    let error = job.run_in(&[&peer], &work, &out, &SilentObserver).unwrap_err();
    assert!(matches!(error, SyncError::Usage(UsageError::OtherRun { .. })), "{error}");
    assert!(error.to_string().contains("needs all blocks above 0 connected"), "{error}");
    assert!(!blocks.join("index").exists());
    // A sync in another work folder connects all blocks, so none of them needs hints.
    let warnings = Warnings::default();
    let bad = FakePeer::start(&world.chain, &[Behaviour::MutatedWitness]);
    let good = FakePeer::slow(&world.chain, &[Behaviour::Honest], Duration::from_millis(2));
    let fresh = CrashStorage::new();
    let outcome = job.run_in(&[&bad, &good], &fresh, &out, &warnings).unwrap();
    world.truth.check(&outcome, &out);
    assert_eq!(outcome.validation.connected_from, Some(1));
    assert_eq!(warnings.0.into_inner().unwrap(), [""; 0]);
    assert!(blocks.join("index").join("CURRENT").exists(), "the index is whole");
    assert!(good.seen.blocks.load(Ordering::Relaxed) >= 120, "all must be there");
}

/// Kept blocks are read back at the end; if they are damaged, no index lists them.
#[test]
fn kept_blocks_that_are_damaged_get_no_index() {
    struct Harm(PathBuf);
    impl Observer for Harm {
        fn event(&self, event: Event) {
            if event == Event::Started(Phase::CheckBlocks) {
                let path = self.0.join("blk00000.dat");
                let mut bytes = fs::read(&path).unwrap();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                fs::write(path, bytes).unwrap();
            }
        }
    }
    let world = World::small(26);
    let folder = tempfile::tempdir().unwrap();
    let blocks = folder.path().join("blocks");
    let mut job = world.job();
    job.keep = Some(BlocksFolderOptions {
        folder: blocks.clone(),
        log: folder.path().join("kept"),
        datadir: None,
    });
    let (work, out) = (CrashStorage::new(), CrashStorage::new());
    let peer = FakePeer::start(&world.chain, &[Behaviour::Honest]);
    let error = job.run_in(&[&peer], &work, &out, &Harm(blocks.clone())).unwrap_err();
    assert!(matches!(error, SyncError::Io(IoError::KeptReadBack { .. })), "{error}");
    assert!(error.to_string().contains("blk00000.dat was read back at byte"), "{error}");
    assert!(blocks.join("blk00000.dat").is_file() && !blocks.join("index").exists());
    // The error's advice works.
    fs::remove_dir_all(&blocks).unwrap();
    fs::remove_file(folder.path().join("kept")).unwrap();
    let (work, out) = (CrashStorage::new(), CrashStorage::new());
    let peer = FakePeer::start(&world.chain, &[Behaviour::Honest]);
    let outcome = job.run_in(&[&peer], &work, &out, &SilentObserver).unwrap();
    world.truth.check(&outcome, &out);
    assert!(blocks.join("index/CURRENT").exists());
}

/// A sync touches nothing in a folder that no sync made.
#[test]
fn foreign_folders_stay_untouched() {
    let world = World::small(25);
    let files = [("headers-00003".to_owned(), vec![1; 99]), ("diary".to_owned(), vec![2; 9])];
    let work = CrashStorage::holding(files.into());
    let peer = FakePeer::start(&world.chain, &[Behaviour::Honest]);
    let error =
        world.job().run_in(&[&peer], &work, &CrashStorage::new(), &SilentObserver).unwrap_err();
    assert!(matches!(error, SyncError::Usage(UsageError::NotAWorkFolder { .. })), "{error}");
    assert_eq!(work.names().unwrap(), ["diary", "headers-00003"]);
}

/// Records all events.
#[derive(Default)]
struct All(Mutex<Vec<Event>>);

impl Observer for All {
    fn event(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

/// Sizes of blocks from peers are estimated, so the work done is weighed by the estimate, and adds up to all of
/// it. Each segment's state is reported, beginning with the state in which an earlier start left it.
#[test]
fn progress_is_weighted_and_segment_states_are_reported() {
    let world = World::small(27);
    let (work, out) = (CrashStorage::new(), CrashStorage::new());
    let job = world.job();
    interrupted(&job, &work, &out);
    let (peer, observer) = (FakePeer::start(&world.chain, &[Behaviour::Honest]), All::default());
    job.run_in(&[&peer], &work, &out, &observer).unwrap();
    let events = observer.0.into_inner().unwrap();
    let weighed: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Progress(Phase::Blocks, progress) => Some(*progress),
            _ => None,
        })
        .collect();
    let (first, last) = (weighed[0], weighed[weighed.len() - 1]);
    assert!(first.weight > 0 && first.weight < first.weight_total, "{first:?}");
    assert_eq!((last.weight, last.bytes_total), (last.weight_total, 0), "{last:?}");
    assert!(weighed.is_sorted_by_key(|progress| progress.weight));

    let mut planned = Vec::new();
    for event in &events {
        match event {
            Event::Segments(segments) => planned.clone_from(segments),
            Event::Segment(range, to) => {
                let segment = planned.iter_mut().find(|it| it.range == *range).unwrap();
                let next = match segment.state {
                    SegmentState::Waiting => SegmentState::Begun,
                    SegmentState::Begun => SegmentState::Done,
                    SegmentState::Done => panic!("{range} was done"),
                };
                assert_eq!(*to, next, "{range}");
                segment.state = next;
            }
            _ => {}
        }
    }
    assert!(planned.iter().all(|it| it.state == SegmentState::Done), "{planned:?}");
    assert!(planned.windows(2).all(|two| two[0].range.end == two[1].range.start));
    assert_eq!((planned[0].range.start, planned.len() > 3), (1, true));
    let resumed = events.iter().find_map(|event| match event {
        Event::Segments(segments) => {
            Some(segments.iter().filter(|it| it.state == SegmentState::Done).count())
        }
        _ => None,
    });
    assert!(resumed > Some(0) && resumed < Some(planned.len()), "{resumed:?}");
}
