//! Tests of a data directory with all blocks from hints: it gets the undo data next to the blocks, if this sync has
//! proven it, and nothing else.

use crate::harness::{Job, Place, World, hash_of};
use crate::undo_data::change_a_coin;
use apus_datadir::{BlockStore, IndexEntry, Obfuscation, SpentCoins, read_index};
use apus_sync::engines::swiftsync::{ByUndoError, UndoSource};
use apus_sync::source::ChainSource;
use apus_sync::{
    ErrorKind, Event, FolderKind, FolderOutput, HintedValidity, HintsInput, Observer, Outcome,
    Phase, Request, SpentSource, Stop, SyncError, UsageError, Warning,
};
use apus_testkit::storage::CrashStorage;
use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Blocks with undo data, and the data directory that the in-order engine writes from them.
struct Copies {
    world: World,
    sandbox: tempfile::TempDir,
}

impl Copies {
    /// The blocks have an index only if `indexed`.
    fn new(seed: u64, indexed: bool) -> Self {
        let (world, sandbox) = (World::small(seed), tempfile::tempdir().unwrap());
        let copies = Self { world, sandbox };
        let source = copies.folder("source");
        Job { stop: Stop::AtTip, ..copies.world.job() }
            .keeping(&source)
            .run(&Place::new())
            .unwrap();
        if !indexed {
            fs::remove_dir_all(copies.blocksdir().join("index")).unwrap();
        }
        let job = Job { blocksdir: copies.blocksdir(), ..copies.world.job() };
        job.keeping(&copies.folder("in-order")).expect(&copies.world.truth, &Place::new());
        copies
    }

    fn folder(&self, name: &str) -> PathBuf {
        let folder = self.sandbox.path().join(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn blocksdir(&self) -> PathBuf {
        self.sandbox.path().join("source/node/regtest/blocks")
    }

    fn job(&self, hints: HintsInput, name: &str) -> Job {
        let job = self.world.job();
        Job { blocksdir: self.blocksdir(), hints: Some(hints), ..job }.keeping(&self.folder(name))
    }

    fn hints(&self) -> HintsInput {
        self.world.hints(self.world.truth.stop)
    }

    /// Checks that a job wrote the same directory as the in-order engine: block and undo files byte for byte.
    #[track_caller]
    fn expect_same(&self, name: &str) {
        let blocks = |name: &str| self.folder(name).join("node/regtest/blocks");
        let [found, expected] = [name, "in-order"].map(|name| files(&blocks(name)));
        assert!(expected.keys().any(|name| name.starts_with("rev")), "{:?}", expected.keys());
        assert!(found == expected, "{:?} {:?}", found.keys(), expected.keys());
        let [found, expected] = [name, "in-order"].map(|name| entries(&blocks(name)));
        assert_eq!(found, expected);
    }
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let file = |path: PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, fs::read(path).unwrap())
    };
    paths.filter(|path| path.is_file()).map(file).collect()
}

fn entries(blocks: &Path) -> Vec<String> {
    let mut entries: Vec<IndexEntry> = Vec::new();
    let read = read_index(blocks, &mut |entry| {
        entries.push(entry);
        ControlFlow::Continue(())
    });
    read.unwrap();
    entries.sort_unstable_by_key(|entry| entry.height);
    entries.iter().map(|entry| format!("{entry:?}")).collect()
}

#[test]
fn the_directory_equals_the_one_that_connecting_writes() {
    for (seed, indexed) in [(821, true), (822, false)] {
        let copies = Copies::new(seed, indexed);
        let stop = copies.world.truth.stop;
        // Hints to the end; below the end, so that blocks are connected above; in one segment.
        for (case, (hinted, threads, segment_bytes)) in
            [(stop, 1, 5_000), (stop, 3, 1), (stop - 10, 2, 5_000), (stop, 2, 1 << 30)]
                .into_iter()
                .enumerate()
        {
            let name = format!("copy-{case}");
            let job = copies.job(copies.world.hints(hinted), &name);
            let outcome =
                Job { threads, segment_bytes, ..job }.expect(&copies.world.truth, &Place::new());
            copies.expect_same(&name);
            let read = outcome.written.folders[0].blocks_read_back;
            let all = u64::from(stop);
            assert_eq!((read.blocks, read.undo, read.undo_at_end), (all + 1, all, all));
            assert_eq!(outcome.validation.connected_from, Some(1), "every rule was checked");
        }
    }
}

/// Stops or changes a sync when a phase begins, and notes how many bytes were copied, and warnings.
#[derive(Default)]
struct AtPhase<'a> {
    harm: Option<(Phase, &'a (dyn Fn() + Sync))>,
    copied: Mutex<Option<u64>>,
    few: AtomicBool,
}

impl Observer for AtPhase<'_> {
    fn event(&self, event: Event) {
        match event {
            Event::Started(phase) => {
                if let Some((_, harm)) = self.harm.filter(|(at, _)| *at == phase) {
                    harm();
                }
            }
            Event::Ended { phase: Phase::Copy, bytes } => {
                *self.copied.lock().unwrap() = Some(bytes)
            }
            Event::Warning(Warning::FewWithUndo { .. }) => self.few.store(true, Ordering::SeqCst),
            _ => {}
        }
    }
}

/// Runs a start that `harm` disturbs at the beginning of a phase.
fn disturbed(
    job: &Job,
    place: &Place,
    phase: Phase,
    harm: &(dyn Fn() + Sync),
    flag: &AtomicBool,
) -> Result<Outcome, SyncError> {
    let observer = AtPhase { harm: Some((phase, harm)), ..AtPhase::default() };
    job.run_watched(place, &observer, flag)
}

#[track_caller]
fn expect_nothing(copies: &Copies, name: &str, place: &Place) {
    assert!(!copies.folder(name).join("node").exists());
    expect_drafts(place);
}

#[track_caller]
fn expect_drafts(place: &Place) {
    let mut names = place.output_files().into_keys();
    assert!(names.all(|name| name.ends_with(".incomplete")), "{:?}", place.output_files().keys());
}

#[test]
fn forged_undo_data_are_refused_before_anything_is_written() {
    let copies = Copies::new(823, true);
    change_a_coin(&copies.blocksdir(), &copies.world.chain);
    for hinted in [copies.world.truth.stop, copies.world.truth.stop - 10] {
        let (job, place) = (copies.job(copies.world.hints(hinted), "copy"), Place::new());
        let error = job.run(&place).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Wrong, "{error}");
        assert!(error.to_string().contains("--engine mergesync"), "{error}");
        expect_nothing(&copies, "copy", &place);
        assert!(!copies.folder("copy").join("node.incomplete").exists());
    }
}

/// The pass proves the undo data, and the files change before they are copied.
#[test]
fn undo_data_that_change_after_the_proof_are_not_handed_over() {
    for (seed, hinted) in [(824, 120), (825, 110)] {
        let copies = Copies::new(seed, true);
        let rev = copies.blocksdir().join("rev00000.dat");
        let right = fs::read(&rev).unwrap();
        let (job, place) = (copies.job(copies.world.hints(hinted), "copy"), Place::new());
        let forge = || change_a_coin(&copies.blocksdir(), &copies.world.chain);
        let never = AtomicBool::new(false);
        let error = disturbed(&job, &place, Phase::Copy, &forge, &never).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Wrong, "{error}");
        let changed = "changed since this sync proved them. Rerun without --hints";
        assert!(error.to_string().contains(changed), "{error}");
        assert!(error.downcast::<ByUndoError>().is_some());
        expect_nothing(&copies, "copy", &place);
        // The key is used only once, so nothing of this start is left.
        assert_eq!(place.work.live_files().len(), 0, "{:?}", place.work.live_files().keys());
        // The next start trusts nothing in the draft, even if the log of its blocks survived.
        let error = job.run(&place).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Wrong, "{error}");
        fs::write(&rev, right).unwrap();
        job.expect(&copies.world.truth, &place);
        copies.expect_same("copy");
    }
}

/// A broken record is an error, even for a block whose segment's sum is not compared yet.
#[test]
fn undo_data_that_vanish_after_the_proof_end_the_sync() {
    let copies = Copies::new(826, true);
    let rev = copies.blocksdir().join("rev00000.dat");
    let right = fs::read(&rev).unwrap();
    let (job, place) = (copies.job(copies.hints(), "copy"), Place::new());
    let cut = || fs::write(&rev, &right[..right.len() / 2]).unwrap();
    let never = AtomicBool::new(false);
    let error = disturbed(&job, &place, Phase::Copy, &cut, &never).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Wrong, "{error}");
    expect_nothing(&copies, "copy", &place);
    fs::write(&rev, &right).unwrap();
    job.expect(&copies.world.truth, &place);
    copies.expect_same("copy");
}

/// Runs a start that is interrupted when a phase begins, cuts the draft to `kept` blocks, adds a forged record if
/// wanted, and returns how many bytes the next start copied. If it starts `anew`, only the log of the blocks is left.
fn copied_after(hinted: u32, phase: Phase, kept: Option<(u32, bool)>, anew: bool) -> u64 {
    let copies = Copies::new(827, true);
    let (chain, stop) = (&copies.world.chain, copies.world.truth.stop);
    let (mut job, mut place) = (copies.job(copies.world.hints(hinted), "copy"), Place::new());
    let flag = AtomicBool::new(false);
    let stopped = disturbed(&job, &place, phase, &|| flag.store(true, Ordering::SeqCst), &flag);
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Interrupted);
    expect_nothing(&copies, "copy", &place);
    if let Some((kept, forged)) = kept {
        let blocks = copies.folder("copy").join("node.incomplete/regtest/blocks");
        let (log, magic) = (place.hints_folder.path().join("positions"), [0xfa, 0xbf, 0xb5, 0xda]);
        let [last, next] = [kept, kept + 1].map(|height| hash_of(&chain[height as usize]));
        let _ = fs::remove_dir_all(blocks.join("index"));
        let store = BlockStore::open_up_to(&blocks, &log, magic, Obfuscation::NONE, &last).unwrap();
        if forged {
            let sum = store.stored(&last).unwrap().spent;
            let raw = bitcoin::consensus::serialize(&chain[kept as usize + 1]);
            store.put(&next, &raw).unwrap();
            store.put_undo(&next, &last, SpentCoins { undo: &[0], sum }).unwrap();
        }
        store.sync().unwrap();
    }
    if anew {
        (place.work, job.segment_bytes) = (CrashStorage::new(), 1);
    }
    let observer = AtPhase::default();
    let outcome = job.run_watched(&place, &observer, &AtomicBool::new(false)).unwrap();
    copies.world.truth.check(&outcome, &place.out);
    copies.expect_same("copy");
    assert!(!observer.few.into_inner(), "all blocks have undo data");
    assert!(stop >= hinted);
    observer.copied.into_inner().unwrap().unwrap_or_default()
}

#[test]
fn an_interrupted_copy_continues_after_its_last_proven_segment() {
    let all = copied_after(120, Phase::Copy, None, false);
    assert!(all > 0);
    assert_eq!(copied_after(120, Phase::Coins, None, false), 0, "the copy was complete");
    // Each forged block is in the middle of a segment.
    for kept in [(1, true), (60, true), (103, true), (104, false), (119, false)] {
        let rest = copied_after(120, Phase::Coins, Some(kept), false);
        assert!(0 < rest && (rest < all || kept.0 == 1), "{kept:?}: {rest} of {all}");
    }
    // A block that ends a segment now did not end one then.
    assert_eq!(copied_after(120, Phase::Coins, Some((103, true)), true), all);
}

/// Blocks that were connected above the copied ones stay.
#[test]
fn connecting_continues_above_copied_blocks() {
    for phase in [Phase::Connect, Phase::Coins] {
        assert_eq!(copied_after(110, phase, None, false), 0);
    }
}

#[track_caller]
fn refused(job: &Job, place: &Place, is: fn(&UsageError) -> bool) {
    let error = job.run(place).unwrap_err();
    assert!(matches!(&error, SyncError::Usage(usage) if is(usage)), "{error}");
    expect_drafts(place);
}

#[test]
fn without_a_proof_of_the_undo_data_there_is_no_directory() {
    let copies = Copies::new(828, true);
    let assumed = |job| Job { hinted_validity: HintedValidity::Assumed, ..job };
    let job = copies.job(copies.hints(), "copy");
    refused(&assumed(job.clone()), &Place::new(), |it| matches!(it, UsageError::UndoUnproven));
    // The generator's block files have no undo data.
    let bare = Job { blocksdir: copies.world.blocksdir(), ..job.clone() };
    refused(&bare, &Place::new(), |it| matches!(it, UsageError::NoUndo));
    // Some undo data is not enough.
    let rev = copies.blocksdir().join("rev00000.dat");
    let right = fs::read(&rev).unwrap();
    fs::remove_dir_all(copies.blocksdir().join("index")).unwrap();
    fs::write(&rev, &right[..right.len() / 2]).unwrap();
    refused(&job, &Place::new(), |it| matches!(it, UsageError::NoUndo));
    fs::write(&rev, &right).unwrap();
    // An earlier start that did not read undo data cannot be continued.
    let (place, flag) = (Place::new(), AtomicBool::new(false));
    let other = Job { folders: Vec::new(), ..assumed(job.clone()) };
    let stop = || flag.store(true, Ordering::SeqCst);
    disturbed(&other, &place, Phase::Coins, &stop, &flag).unwrap_err();
    refused(&job, &place, |it| matches!(it, UsageError::OtherRun { .. }));
    assert!(!copies.folder("copy").join("node.incomplete").exists());
    // Coins alone need no undo data.
    let path = copies.folder("copy").join("coins");
    let coins = FolderOutput { kind: FolderKind::Chainstate, path, replace: false };
    Job { folders: vec![coins], ..bare }.expect(&copies.world.truth, &Place::new());
}

/// Spent coins that no sync may ask for.
struct NeverAsked;

impl SpentSource for NeverAsked {
    fn open<'a>(
        &'a self,
        _: &'a Request<'_>,
        _: Arc<dyn ChainSource + 'a>,
    ) -> Result<Box<dyn UndoSource + 'a>, SyncError> {
        panic!("the sync is refused before it opens them");
    }
}

/// Copying blocks from files would ask bridges for the coins of blocks in any order.
#[test]
fn coins_from_elsewhere_are_refused_for_a_directory_copied_from_files() {
    let copies = Copies::new(826, true);
    let job = Job { spent: Some(Arc::new(NeverAsked)), ..copies.job(copies.hints(), "copy") };
    let error = job.run(&Place::new()).unwrap_err();
    assert!(matches!(error, SyncError::Usage(UsageError::SpentNotKept)), "{error}");
    assert!(error.to_string().contains("take the blocks from peers"), "{error}");
}
