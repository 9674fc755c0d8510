//! Validation with proof files: ranges in any order, stored results, and unusable files.

use crate::harness::{Job, NewEngine, Place, World, hash_of, random_chain};
use crate::roots::{ROOTS, roots, truth, with_roots};
use crate::world::Events;
use apus_chain::{BlockHash, Height, HeightRange, Network};
use apus_proofs::engine::ByProofsError;
use apus_proofs::{ByProofs, ENGINE, ProofsError, ProofsInput, TrustedRoots};
use apus_storage::Storage;
use apus_sync::{ChainEngine, Engine, ErrorKind, Event, Observer, Stop, SyncError, UsageError};
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::storage::AfterCrash;
use apus_utreexo::{RangeBlock, RangeFile, RangeHead, RangeWriter, Roots, range_file_name};
use bitcoin::{Block, Witness};
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn file(folder: &Path, start: u32, end: u32) -> PathBuf {
    folder.join(range_file_name(HeightRange::new(start, end)))
}

pub(crate) fn folder(world: &World) -> PathBuf {
    world.folder.path().join("proofs")
}

/// A job with proof files whose ranges begin at these heights.
pub(crate) fn by_proofs(world: &World, starts: &[u32]) -> Job {
    write_proofs(&world.chain, starts, &folder(world));
    let outside = Some(engine(world, None));
    with_roots(Job { engine: Engine::Outside(ENGINE), outside, ..world.job() })
}

/// The engine with a world's proof files, and these roots to begin with.
pub(crate) fn engine(world: &World, trusted: Option<TrustedRoots>) -> Arc<NewEngine> {
    let folder = folder(world);
    Arc::new(move |assume_valid: Option<BlockHash>| -> Box<dyn ChainEngine> {
        let engine = ByProofs::new(ProofsInput::Folder(folder.clone()), assume_valid);
        Box::new(engine.starting_with(trusted.clone()))
    })
}

/// Writes proof files of a chain, with ranges that begin at these heights.
fn write_proofs(chain: &[Block], starts: &[u32], folder: &Path) {
    let data = crate::bridge::proofs_of(chain);
    std::fs::create_dir_all(folder).unwrap();
    for (at, start) in starts.iter().enumerate() {
        let end = starts.get(at + 1).map_or(chain.len() as u32, |next| *next);
        let head = RangeHead {
            network: Network::Regtest.magic(),
            first: *start,
            before: hash_of(&chain[*start as usize - 1]),
            roots: data.roots[*start as usize - 1].clone(),
        };
        let mut writer = RangeWriter::new(Vec::new(), &head).unwrap();
        let range = *start as usize..end as usize;
        for at in range {
            let (entry, leaves_after) = (data.entries[at].bytes(), data.roots[at].leaves());
            writer.put(&hash_of(&chain[at]), leaves_after, &entry).unwrap();
        }
        let bytes = writer.finish(&data.roots[end as usize - 1]).unwrap();
        let name = range_file_name(HeightRange::new(*start, end));
        std::fs::write(folder.join(name), bytes).unwrap();
    }
}

#[test]
fn any_ranges_on_any_number_of_threads_lead_to_the_roots() {
    let world = World::small(900);
    let each: Vec<u32> = (1..=world.truth.stop).collect();
    for starts in [&[1][..], &[1, 2, 60, 119, 120], &each] {
        for threads in [1, 2, 7] {
            let job = Job { threads, ..by_proofs(&world, starts) };
            let outcome = job.expect(&truth(&world), &Place::new());
            assert_eq!(
                (outcome.validation.engine, outcome.validation.connected_from),
                (Engine::Outside(ENGINE), Some(1))
            );
            assert_eq!(outcome.set.totals.coins, world.truth.coins);
            assert_eq!(outcome.set.totals.amount, u128::from(world.truth.amount));
            assert_eq!(outcome.validation.scripts.assumed, u64::from(world.truth.stop));
            fs::remove_dir_all(folder(&world)).unwrap();
        }
    }
}

/// Block files have blocks in any order; a range receives them in chain order.
#[test]
fn block_files_may_have_blocks_in_any_order() {
    let world = World::laid_out(&random_chain(911).blocks(), |blocks| {
        let mut files = BlockFiles::regtest();
        files.blocks(blocks.iter().rev());
        files
    });
    by_proofs(&world, &[1, 40, 111]).expect(&truth(&world), &Place::new());
}

/// Witnesses reveal the scripts of coins, so all of them are checked.
#[test]
fn witnesses_are_checked() {
    let chain = random_chain(762).blocks();
    let bad = World::laid_out(&chain, |blocks| {
        let mut blocks = blocks.to_vec();
        for input in blocks.iter_mut().flat_map(|block| block.txdata.iter_mut().skip(1)) {
            input.input.iter_mut().for_each(|input| input.witness = Witness::from_slice(&[[0xac]]));
        }
        let mut files = BlockFiles::regtest();
        files.blocks(&blocks);
        files
    });
    let job = |world: &World| Job { leave_witnesses: true, ..by_proofs(world, &[1, 70, 112]) };
    let outcome = job(&World::of(&chain)).run(&Place::new()).unwrap();
    assert_eq!(outcome.validation.unseen_witnesses, 0);
    assert_eq!(job(&bad).refused(&Place::new()).kind(), ErrorKind::Wrong);
}

/// A job that would write a set does not begin.
#[test]
fn a_set_cannot_be_written() {
    let world = World::small(912);
    let (folder, place) = (tempfile::tempdir().unwrap(), Place::new());
    let error = by_proofs(&world, &[1]).keeping(folder.path()).refused(&place);
    assert!(matches!(error.downcast(), Some(ProofsError::NoSetKept)), "{error}");
    assert!(place.work.names().unwrap().is_empty(), "no job began");
}

/// Wrong roots may agree on both sides of a cut. A job with the right files does not use their partial
/// results.
#[test]
fn progress_with_wrong_roots_is_not_resumed() {
    let world = World::small(913);
    let job = by_proofs(&world, &[1, 40]);
    let paths = [file(&folder(&world), 1, 40), file(&folder(&world), 40, 121)];
    let right = paths.each_ref().map(|path| fs::read(path).unwrap());
    let mut opened = right.each_ref().map(|bytes| RangeFile::open(Cursor::new(bytes)).unwrap());
    let wrong = others(opened[0].after());
    let changed = |file: &mut RangeFile<Cursor<&Vec<u8>>>, before: bool| {
        let (mut head, mut after) = (file.head().clone(), file.after().clone());
        *(if before { &mut head.roots } else { &mut after }) = wrong.clone();
        let (mut writer, mut entry) = (RangeWriter::new(Vec::new(), &head).unwrap(), Vec::new());
        for at in file.heights().heights() {
            file.entry(at, &mut entry).unwrap();
            put(&mut writer, file, at, &entry);
        }
        writer.finish(&after).unwrap()
    };
    fs::write(&paths[0], changed(&mut opened[0], false)).unwrap();
    fs::write(&paths[1], changed(&mut opened[1], true)).unwrap();
    let place = Place::new();
    let error = job.refused(&place);
    assert!(error.downcast::<ByProofsError>().is_some(), "{error}");
    paths.iter().zip(&right).for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    let error = job.refused(&place);
    assert!(matches!(error, SyncError::Usage(UsageError::OtherRun { .. })), "{error}");
    assert!(error.to_string().contains("other proof ranges"), "{error}");
    job.expect(&truth(&world), &Place::new());
}

/// Scripts are run if no block is assumed valid, and a failing one is reported.
#[cfg(feature = "kernel")]
#[test]
fn scripts_are_run() {
    let world = World::small(909);
    let job = Job { assume_valid: None, ..by_proofs(&world, &[1, 70, 112]) };
    let outcome = job.expect(&truth(&world), &Place::new());
    assert_eq!((outcome.validation.scripts.run, outcome.validation.scripts.assumed), (120, 0));
    let below = Some(hash_of(&world.chain[119]));
    let one = Job { assume_valid: below, ..job }.expect(&truth(&world), &Place::new());
    assert_eq!((one.validation.scripts.run, one.validation.scripts.assumed), (1, 119));
    let mut builder = random_chain(910);
    builder.block_with_a_wrong_signature();
    let height = builder.height();
    builder.empty_blocks(2);
    let world = World::of(&builder.blocks());
    let right = by_proofs(&world, &[1, 70, 112]);
    right.expect(&truth(&world), &Place::new());
    let error = Job { assume_valid: None, ..right }.refused(&Place::new());
    assert!(error.downcast::<ByProofsError>().is_some(), "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("block {height} ")) && text.contains("script"), "{text}");
}

/// The stop height may be below the end of the files if a range ends there.
#[test]
fn a_job_stops_only_where_a_range_ends() {
    let world = World::small(901);
    let job = by_proofs(&world, &[1, 60, 110]);
    for stop in [59, 109] {
        let (job, place) = (Job { stop: Stop::At(stop), ..job.clone() }, Place::new());
        let outcome = job.run(&place).unwrap();
        assert_eq!((outcome.chain.stop.height, outcome.counts.blocks), (stop, u64::from(stop)));
        assert_eq!(place.output_files()[ROOTS], roots(&world.chain[..=stop as usize]));
    }
    let within = Job { stop: Stop::At(80), ..job.clone() }.refused(&Place::new());
    let asked = matches!(
        within.downcast(),
        Some(ProofsError::StopWithin { stop: 80, below: Some(59), above: 109 })
    );
    assert!(asked, "{within}");
    assert_eq!(within.kind(), ErrorKind::Usage);
    // The chain continues above the files.
    let above = Job { stop: Stop::AtTip, ..job }.refused(&Place::new());
    let asked = matches!(above.downcast(), Some(ProofsError::Missing { below: Some(120), .. }));
    assert!(asked, "{above}");
}

/// Stops the job after a number of events.
struct StopAfter<'a>(&'a AtomicBool, Events, usize);

impl Observer for StopAfter<'_> {
    fn event(&self, event: Event) {
        self.1.event(event);
        if self.1.all().len() > self.2 {
            self.0.store(true, Ordering::SeqCst);
        }
    }
}

#[test]
fn finished_ranges_are_not_repeated() {
    let world = World::small(902);
    let starts: Vec<u32> = (0..24).map(|n| 1 + 5 * n).collect();
    let job = Job { threads: 1, ..by_proofs(&world, &starts) };
    let mut resumed = 0;
    for events in [4, 9, 20, 30] {
        let (place, interrupt) = (Place::new(), AtomicBool::new(false));
        let observer = StopAfter(&interrupt, Events::default(), events);
        let ended = job.run_watched(&place, &observer, &interrupt);
        let is_interrupted = matches!(ended, Err(SyncError::Interrupted)) || ended.is_ok();
        assert!(is_interrupted, "{ended:?}");
        let again = Events::default();
        let outcome = job.run_watched(&place, &again, &AtomicBool::new(false)).unwrap();
        truth(&world).check(&outcome, &place.out);
        let of = |event: &Event| matches!(event, Event::Resumed { segments: 1.., of: 24 });
        resumed += again.all().iter().filter(|event| of(event)).count();
    }
    assert!(resumed > 0, "no start resumed");
}

/// The finished ranges of a killed job stay, but are valid only for its files.
#[test]
fn progress_of_other_files_is_not_resumed() {
    let world = World::small(903);
    let job = by_proofs(&world, &[1, 60, 100]);
    let place = Place::new();
    place.work.crash_at(4, AfterCrash::Fail);
    job.run(&place).unwrap_err();
    let place = Place { work: place.work.durable_image(), ..Place::new() };
    assert!(!place.work.names().unwrap().is_empty());
    fs::remove_dir_all(folder(&world)).unwrap();
    let other = by_proofs(&world, &[1, 70]);
    let error = other.refused(&place);
    assert!(matches!(error, SyncError::Usage(UsageError::OtherRun { .. })), "{error}");
    let error = world.job().refused(&place);
    assert!(matches!(error, SyncError::Usage(UsageError::OtherRun { .. })), "{error}");
    fs::remove_dir_all(folder(&world)).unwrap();
    by_proofs(&world, &[1, 60, 100]).expect(&truth(&world), &place);
}

#[test]
fn files_that_do_not_cover_the_chain_are_refused_by_name() {
    let world = World::small(904);
    let job = by_proofs(&world, &[1, 60, 100]);
    let hidden = file(&folder(&world), 60, 100);
    let bytes = fs::read(&hidden).unwrap();
    fs::remove_file(&hidden).unwrap();
    let error = job.refused(&Place::new());
    assert!(error.to_string().contains("no proof file for blocks 60 to 99"), "{error}");
    // A renamed file does not cover the blocks that its name says.
    fs::write(file(&folder(&world), 60, 101), &bytes).unwrap();
    let error = job.refused(&Place::new());
    assert!(matches!(error.downcast(), Some(ProofsError::Overlap { .. })), "{error}");
    fs::remove_file(file(&folder(&world), 60, 101)).unwrap();
    fs::rename(file(&folder(&world), 100, 121), folder(&world).join("aside")).unwrap();
    fs::write(file(&folder(&world), 60, 121), &bytes).unwrap();
    let error = job.refused(&Place::new());
    assert!(matches!(error.downcast(), Some(ProofsError::Name { .. })), "{error}");
    fs::remove_dir_all(folder(&world)).unwrap();
    let error = job.refused(&Place::new());
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
}

/// Other roots with the same number of leaves.
fn others(roots: &Roots) -> Roots {
    let mut bytes = Vec::new();
    roots.write(&mut bytes);
    *bytes.last_mut().unwrap() ^= 1;
    Roots::read(&bytes).unwrap()
}

/// Replaces the entry of a block in a file.
fn put(
    writer: &mut RangeWriter<Vec<u8>>,
    opened: &RangeFile<Cursor<&Vec<u8>>>,
    height: Height,
    entry: &[u8],
) {
    let RangeBlock { hash, leaves_after, .. } = opened.block(height).unwrap();
    writer.put(hash, *leaves_after, entry).unwrap();
}

#[test]
fn files_of_another_network_or_chain_are_refused() {
    let world = World::small(905);
    let job = by_proofs(&world, &[1, 60]);
    let path = file(&folder(&world), 1, 60);
    let right = fs::read(&path).unwrap();
    let mut opened = RangeFile::open(Cursor::new(&right)).unwrap();
    let mut head = opened.head().clone();
    head.network = Network::Main.magic();
    let mut writer = RangeWriter::new(Vec::new(), &head).unwrap();
    let mut entry = Vec::new();
    for height in opened.heights().heights() {
        opened.entry(height, &mut entry).unwrap();
        put(&mut writer, &opened, height, &entry);
    }
    fs::write(&path, writer.finish(opened.after()).unwrap()).unwrap();
    let error = job.refused(&Place::new());
    assert!(matches!(error.downcast(), Some(ProofsError::OtherNetwork { .. })), "{error}");
    assert_eq!(error.kind(), ErrorKind::Usage);
    // A chain of the same length with the same beginning.
    write_proofs(&random_chain(99).blocks(), &[1, 60], &folder(&world));
    let error = job.refused(&Place::new());
    let other = matches!(error.downcast(), Some(ProofsError::OtherChain { height: 99, .. }));
    assert!(other, "{error}");
}

/// A file that was changed at any place never leads to an output, and is reported.
#[test]
fn damaged_files_are_refused() {
    let world = World::small(906);
    let job = by_proofs(&world, &[1, 60, 110]);
    let path = file(&folder(&world), 60, 110);
    let right = fs::read(&path).unwrap();
    for at in (0..right.len()).step_by(right.len() / 23) {
        let mut wrong = right.clone();
        wrong[at] ^= 4;
        fs::write(&path, &wrong).unwrap();
        let error = job.refused(&Place::new());
        assert!(error.to_string().contains("proofs-00000060-00000110.dat"), "{at}: {error}");
        let kind = error.kind();
        assert!(matches!(kind, ErrorKind::Wrong | ErrorKind::Io), "{at}: {error}");
    }
    // A bad entry is found when its block is validated; with the original file the job resumes.
    let mut wrong = right.clone();
    let at = RangeFile::open(Cursor::new(&right)).unwrap().block(109).unwrap().offset as usize;
    wrong[at] ^= 1;
    fs::write(&path, &wrong).unwrap();
    let place = Place::new();
    let error = job.refused(&place);
    assert!(matches!(error.downcast(), Some(ProofsError::NotThere { .. })), "{error}");
    fs::write(&path, &right).unwrap();
    job.expect(&truth(&world), &place);
}

/// The files have valid checksums, but prove the coins of another chain.
#[test]
fn errors_of_invalid_proofs_name_their_block() {
    let world = World::small(907);
    let job = by_proofs(&world, &[1, 60]);
    let path = file(&folder(&world), 60, 121);
    let right = fs::read(&path).unwrap();
    let mut opened = RangeFile::open(Cursor::new(&right)).unwrap();
    let spends = opened.blocks().iter().rposition(|block| block.length > 2).unwrap();
    let height = 60 + spends as u32;
    let mut writer = RangeWriter::new(Vec::new(), opened.head()).unwrap();
    let mut entry = Vec::new();
    for at in opened.heights().heights() {
        opened.entry(at, &mut entry).unwrap();
        if at == height {
            // Changes the amount of the last coin, or its script.
            *entry.last_mut().unwrap() ^= 1;
        }
        put(&mut writer, &opened, at, &entry);
    }
    fs::write(&path, writer.finish(opened.after()).unwrap()).unwrap();
    let error = job.refused(&Place::new());
    assert!(error.downcast::<ByProofsError>().is_some(), "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("the proofs of block {height} ")), "{text}");
    assert!(text.contains("--engine mergesync"), "{text}");
}

/// Roots that do not fit the file below are found before any block is processed.
#[test]
fn files_that_do_not_fit_each_other_are_refused_at_once() {
    let world = World::small(908);
    let job = by_proofs(&world, &[1, 60]);
    let path = file(&folder(&world), 60, 121);
    let right = fs::read(&path).unwrap();
    let mut opened = RangeFile::open(Cursor::new(&right)).unwrap();
    let mut head = opened.head().clone();
    head.roots = others(&head.roots);
    let mut writer = RangeWriter::new(Vec::new(), &head).unwrap();
    let mut entry = Vec::new();
    for at in opened.heights().heights() {
        opened.entry(at, &mut entry).unwrap();
        put(&mut writer, &opened, at, &entry);
    }
    fs::write(&path, writer.finish(opened.after()).unwrap()).unwrap();
    let place = Place::new();
    let error = job.refused(&place);
    let is_it = matches!(error.downcast(), Some(ProofsError::Roots { height: 60, .. }));
    assert!(is_it, "{error}");
    assert!(place.work.names().unwrap().is_empty(), "no job began");
}
