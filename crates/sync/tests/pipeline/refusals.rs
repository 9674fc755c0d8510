//! Tests that a work folder of another sync or program is refused, by name, and not changed.

use crate::harness::{Files, Job, World, files, hintsfile, small_chain};
use apus_chain::{Network, Params};
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::{ErrorKind, HintsInput, InvalidError, IoError, SyncError, UsageError};
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{ChainBuilder, Shape};
use apus_testkit::storage::CrashStorage;
use bitcoin::hashes::Hash;

/// Runs a start on these files, which must be refused without a trace; returns the error.
fn refused(job: &Job, files_before: &Files) -> SyncError {
    let (work, out) = (CrashStorage::holding(files_before.clone()), CrashStorage::new());
    let error = job.run(&work, &out).unwrap_err();
    assert!(work.live_files() == *files_before, "{error}: but the folder was changed");
    assert!(work.durable_image().live_files() == *files_before);
    assert!(files(&out).is_empty());
    error
}

fn expect_other_run(error: &SyncError, names: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(matches!(error, SyncError::Usage(UsageError::OtherRun { .. })), "{error}");
    for name in names {
        assert!(error.to_string().contains(name), "{name} is not in: {error}");
    }
}

/// Adds leftovers of the sync in progress, which count as part of it.
fn with_scratch(mut work: Files) -> Files {
    for name in ["merge-3.run", "spill-0.run", "segment-00000099-00000101.part.tmp"] {
        work.insert(name.to_owned(), vec![5; 50]);
    }
    work
}

#[test]
fn another_run_is_not_mixed_in() {
    let world = World::small(50);
    let job = world.job();
    let work = with_scratch(job.stopped_after(2));

    let other = Job { aggregate: AggregateKind::MuHash, ..job.clone() };
    expect_other_run(&refused(&other, &work), &["--aggregate"]);

    for hints in [world.hints("lsb.hints"), world.snapshot_hints()] {
        let other = Job { hints, ..job.clone() };
        let error = {
            let disk = CrashStorage::holding(work.clone());
            other.run(&disk, &CrashStorage::new()).unwrap_err()
        };
        expect_other_run(&error, &["other hints"]);
    }

    // With other limits, it is still the same sync.
    let other = Job { threads: 3, segment_bytes: Some(1), memory_bytes: 0, ..job };
    let disk = CrashStorage::holding(work);
    let (done, of) = other.expect(&world.truth, &disk, &CrashStorage::new()).unwrap();
    assert!(done == 2 && of < 10, "{done} of {of}: the first start divided the work");
}

/// Refused hints leave the segments unchanged, and add no files.
#[test]
fn a_refused_snapshot_leaves_none_of_its_coins() {
    let world = World::small(51);
    let work = world.job().stopped_after(2);
    let other = Job { hints: world.snapshot_hints(), ..world.job() };
    refused(&other, &work);

    let job = Job { hints: world.snapshot_hints(), ..world.job() };
    let mut work = job.stopped_after(2);
    work.retain(|name, _| !name.starts_with("spill-"));
    refused(&world.job(), &work);
}

#[test]
fn another_chain() {
    let world = World::small(52);
    let work = world.job().stopped_after(1);
    let fixture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/main-4521");
    let other = Job {
        params: Params::of(Network::Main),
        blocksdir: fixture.join("blocks"),
        hints: hintsfile(&fixture.join("utxo.bip456.hints")),
        ..world.job()
    };
    expect_other_run(&refused(&other, &work), &["chain regtest, not main"]);
}

/// Between two starts, the node finds a chain with more work.
#[test]
fn a_reorganisation() {
    let mut builder = small_chain(53);
    let old = builder.blocks();
    builder.set_tip(old[old.len() - 3].block_hash());
    builder.random_blocks(5, Shape::default());
    let (old_world, new_world) = (World::of(old.clone()), World::of(builder.blocks()));
    let work = old_world.job().stopped_after(3);

    // The files now have both branches, and the same hints apply to the same height of the other one.
    let both = World::laid_out(old.clone(), |blocks| {
        let mut files = BlockFiles::regtest();
        files.blocks(blocks);
        files.blocks(&builder.blocks()[blocks.len() - 2..]);
        files
    });
    let job = Job { blocksdir: both.blocksdir(), ..old_world.job() };
    let height = old.len() as u32 - 1;
    let now = builder.blocks()[height as usize].block_hash().to_string();
    let then = old[height as usize].block_hash().to_string();
    expect_other_run(&refused(&job, &work), &[&height.to_string(), &then, &now]);

    // A snapshot names the block itself.
    let snapshot = Job { hints: old_world.snapshot_hints(), ..job };
    let error = refused(&snapshot, &work);
    assert!(matches!(error, SyncError::Invalid(InvalidError::BaseNotOnChain { .. })), "{error}");
    assert_eq!(error.kind(), ErrorKind::Wrong);
    assert!(error.to_string().contains(&then));

    // Hints for the new chain belong to another sync, too.
    let job = Job { blocksdir: both.blocksdir(), ..new_world.job() };
    expect_other_run(&refused(&job, &work), &[&new_world.truth.stop_hash, &then]);
    // With its own folder, the new sync works.
    job.expect(&new_world.truth, &CrashStorage::new(), &CrashStorage::new());
}

#[test]
fn a_folder_of_foreign_files() {
    let world = World::small(54);
    for names in [
        &["thesis.tex"][..],
        &["lock", "plans"],
        &["segment-00000001-00000002.run", "segment-notes.txt"],
        &["merge-0.run", "merge-me"],
        &["plan.bak"],
    ] {
        let work: Files = names.iter().map(|name| (String::from(*name), vec![1])).collect();
        let error = refused(&world.job(), &work);
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        let foreign = names.last().unwrap();
        assert!(error.to_string().contains(foreign), "{foreign} is not in: {error}");
    }
}

/// A sync never touches foreign files next to its own, not even at the end.
#[test]
fn foreign_files_next_to_a_run() {
    let world = World::small(55);
    let mut work = with_scratch(world.job().stopped_after(2));
    let foreign = Files::from([
        ("notes".to_owned(), vec![1]),
        ("segment-list.txt".to_owned(), vec![2]),
        ("lock".to_owned(), Vec::new()),
    ]);
    work.extend(foreign.clone());
    let disk = CrashStorage::holding(work);
    world.job().expect(&world.truth, &disk, &CrashStorage::new());
    apus_sync::discard_progress(&disk).unwrap();
    assert!(disk.live_files() == foreign);
}

#[test]
fn a_damaged_plan() {
    let world = World::small(56);
    let work = world.job().stopped_after(2);
    let plan = work["plan"].clone();
    let mut damaged: Vec<Vec<u8>> = (0..plan.len())
        .step_by(7)
        .map(|place| {
            let mut bytes = plan.clone();
            bytes[place] ^= 1 << (place % 8);
            bytes
        })
        .collect();
    damaged.extend([Vec::new(), plan[..plan.len() - 1].to_vec(), [&plan[..], &[0]].concat()]);
    for bytes in damaged {
        let mut work = work.clone();
        work.insert("plan".to_owned(), bytes);
        let error = refused(&world.job(), &work);
        assert!(matches!(error, SyncError::Io(IoError::WorkdirDamaged { .. })), "{error}");
        assert!(error.to_string().contains("plan"));
    }
}

/// Without its plan, a sync's files are worthless, and do not block the next sync.
#[test]
fn a_missing_plan() {
    let world = World::small(57);
    let mut work = with_scratch(world.job().stopped_after(3));
    work.remove("plan");
    let disk = CrashStorage::holding(work);
    assert_eq!(world.job().expect(&world.truth, &disk, &CrashStorage::new()), None);
}

/// Segments of one sync do not count for another, even with the same chain and hints.
#[test]
fn segments_of_an_earlier_plan() {
    let world = World::small(58);
    let earlier = world.job().stopped_before_outputs();
    let mut work = world.job().stopped_after(1);
    for (name, bytes) in earlier {
        if name != "plan" && !work.contains_key(&name) {
            work.insert(name, bytes);
        }
    }
    let disk = CrashStorage::holding(work);
    let (done, of) = world.job().expect(&world.truth, &disk, &CrashStorage::new()).unwrap();
    assert!(done == 1 && of > 3, "{done} of {of}");
}

#[test]
fn an_output_that_is_something_else() {
    let world = World::small(59);
    for name in ["set.dat", "set.hints"] {
        let mut other = match name {
            "set.dat" => world.truth.snapshot.clone(),
            _ => world.truth.hints.clone(),
        };
        *other.last_mut().unwrap() ^= 1;
        let out = CrashStorage::holding(Files::from([(name.to_owned(), other.clone())]));
        let work = CrashStorage::new();
        let error = world.job().run(&work, &out).unwrap_err();
        assert!(matches!(error, SyncError::Usage(UsageError::OutputExists { .. })), "{error}");
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert_eq!(files(&out)[name], other);
        // The other output, if it exists, is right.
        let mut rest = files(&out);
        rest.remove(name);
        world.truth.check_files(&rest);
    }
}

#[test]
fn hints_for_another_height() {
    let builder = small_chain(60);
    let world = World::of(builder.blocks());
    let stop = world.truth.stop;
    for hints in [world.hints("msb.hints"), world.snapshot_hints()] {
        let job = Job { hints, stop_height: Some(stop - 1), ..world.job() };
        let error = refused(&job, &Files::new());
        let SyncError::Usage(UsageError::StopHeight { wanted, hints }) = error else {
            panic!("{error}")
        };
        assert_eq!((wanted, hints), (stop - 1, stop));
    }
}

#[test]
fn a_snapshot_of_the_genesis_block() {
    let mut builder = ChainBuilder::new(61);
    builder.empty_blocks(3);
    let world = World::of(builder.blocks());
    let genesis = world.chain[0].block_hash().to_byte_array();
    let mut snapshot = world.truth.snapshot[..51].to_vec();
    snapshot[11..43].copy_from_slice(&genesis);
    snapshot[43..51].fill(0);
    let hints = HintsInput::Snapshot(world.file("genesis", &snapshot));
    let error = refused(&Job { hints, ..world.job() }, &Files::new());
    assert!(matches!(error, SyncError::Usage(UsageError::NothingToDo)), "{error}");
}
