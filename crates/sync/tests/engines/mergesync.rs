//! Blocks in any order without hints: what is refused, what lies in a data directory, how little memory is
//! enough.

use crate::harness::{Job, Place, World, hash_of, random_chain};
use crate::invalid::bad_blocks;
use apus_sync::{Engine, ErrorKind, SyncError, UsageError};
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind};
use apus_testkit::storage::CrashStorage;
use bitcoin::Block;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn merge(world: &World) -> Job {
    Job { engine: Engine::MergeSync, ..world.job() }
}

/// A block whose coinbase states another height, which can be seen without any coin.
fn wrong_height(builder: &mut ChainBuilder) -> Block {
    let height = builder.height() + 1;
    let output = builder.output(ChainBuilder::subsidy(height), ScriptKind::OpTrue);
    let coinbase = Some(builder.coinbase(height + 5, vec![output]));
    builder.add_plan(BlockPlan { coinbase, ..BlockPlan::default() })
}

/// Refused for this block, and each time anew.
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

/// Of several the lowest, whichever walk finds them.
#[test]
fn the_lowest_block_is_told() {
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

/// Scripts are run where they are not assumed.
#[cfg(feature = "kernel")]
#[test]
fn a_signature_that_is_wrong() {
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
    assert_eq!((outcome.scripts.run, outcome.scripts.assumed), (u64::from(world.truth.stop), 0));
}

/// Files of a folder with their contents, but those of databases.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let files = entries.filter(|entry| entry.path().is_file());
    files
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect()
}

#[test]
fn a_data_directory_is_the_one_of_the_engine_in_order() {
    let world = World::small(844);
    let [one, other] = [Engine::Utxo, Engine::MergeSync].map(|engine| {
        let desk = tempfile::tempdir().unwrap();
        let job = Job { engine, ..world.job() }.keeping(desk.path());
        let outcome = job.expect(&world.truth, &Place::new());
        let [folder] = &outcome.folders[..] else { panic!("{:?}", outcome.folders) };
        assert_eq!(folder.blocks_read_back.undo, u64::from(world.truth.stop));
        files(&desk.path().join("node/regtest/blocks"))
    });
    assert!(one.len() >= 3);
    assert!(one == other, "{:?}, {:?}", one.keys(), other.keys());
}

/// Runs are merged on the way, and what is not in memory is in files, which go with the progress.
#[test]
fn little_memory_is_enough() {
    let world = World::small(845);
    for memory_bytes in [0, 4 << 10, 16 << 20] {
        let place = Place::new();
        let job = Job { memory_bytes, ..merge(&world) };
        job.expect(&world.truth, &place);
        let spilled = |name: &&String| name.starts_with("spill-answers");
        let names = || apus_storage::Storage::names(&place.work).unwrap();
        // Some, each of which is worth a file.
        let files = names().iter().filter(spilled).count();
        assert_eq!(files > 0, memory_bytes < 16 << 20, "{memory_bytes}: {files}");
        assert!(files < 60, "{memory_bytes}: {files}");
        assert!(!names().iter().any(|name| name.starts_with("merge-")), "{:?}", names());
        apus_sync::discard_progress(&place.work).unwrap();
        assert!(names().is_empty(), "{:?}", names());
    }
}

/// A record that the disk has changed costs the segment that it is of, and no wrong verdict.
#[test]
fn damaged_records_are_made_anew() {
    let world = World::small(847);
    let place = Place::new();
    merge(&world).expect(&world.truth, &place);
    let whole = place.work.live_files();
    for ending in [".made", ".spent", ".answers"] {
        let largest = |(name, bytes): &(&String, &Vec<u8>)| (name.ends_with(ending), bytes.len());
        let (name, bytes) = whole.iter().max_by_key(largest).unwrap();
        assert!(name.ends_with(ending));
        for at in [3, bytes.len() / 3, bytes.len() / 2, bytes.len() - 2] {
            let mut files = whole.clone();
            files.get_mut(name).unwrap()[at] ^= 1;
            let place = Place { work: CrashStorage::holding(files), ..Place::new() };
            let error = merge(&world).refused(&place);
            assert_eq!(error.kind(), ErrorKind::Io, "{name} {at}: {error}");
            assert!(error.to_string().contains(name), "{name} {at}: {error}");
            merge(&world).expect(&world.truth, &place);
        }
    }
}

/// The work folder is this engine's.
#[test]
fn other_runs_are_told_apart() {
    let world = World::small(846);
    let hints = Some(world.hints(world.truth.stop));
    let ways = [
        merge(&world),
        world.job(),
        Job { hints, ..world.job() },
        Job { stop: apus_sync::Stop::At(world.truth.stop - 3), ..merge(&world) },
    ];
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
