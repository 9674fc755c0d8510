//! Tests of missing or damaged blocks in the files: the error says where, and an intact copy anywhere avoids
//! the error.

use crate::harness::{Job, Truth, World, files, hintsfile, small_chain};
use apus_chain::{Network, Params};
use apus_sync::{ErrorKind, InvalidError, SourceError, SyncError};
use apus_testkit::blkfile::{BlockFiles, RecordPlace};
use apus_testkit::chain::seal;
use apus_testkit::rng::Rng;
use apus_testkit::storage::CrashStorage;
use bitcoin::Block;
use bitcoin::consensus::encode::serialize;
use std::fs;

const KEY: [u8; 8] = [9, 0, 0xff, 3, 0x80, 1, 2, 4];

fn expect_no_output(job: &Job, truth: &Truth) -> SyncError {
    let out = CrashStorage::new();
    match job.run(&CrashStorage::new(), &out) {
        Ok(outcome) => {
            truth.check(&outcome, &out);
            panic!("the damage went unnoticed");
        }
        Err(error) => {
            assert!(files(&out).is_empty());
            error
        }
    }
}

fn expect_wrong(job: &Job, truth: &Truth, words: &[&str]) -> SyncError {
    let error = expect_no_output(job, truth);
    assert_eq!(error.kind(), ErrorKind::Wrong, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word} is not in: {error}");
    }
    error
}

/// Lays out all blocks in obfuscated files; returns the place of each.
fn laid_out(chain: &[Block]) -> (World, Vec<RecordPlace>) {
    let mut files = BlockFiles::regtest().key(KEY).file_bytes_max(15_000);
    let places = files.blocks(chain);
    (World::laid_out(chain.to_vec(), |_| files), places)
}

#[test]
fn blocks_that_are_missing() {
    let chain = small_chain(90).blocks();
    for missing in [1, 60, chain.len() - 1] {
        let world = World::laid_out(chain.clone(), |blocks| {
            let mut files = BlockFiles::regtest();
            files.blocks(&blocks[..missing]);
            files.blocks(&blocks[missing + 1..]);
            files
        });
        let stop = world.truth.stop.to_string();
        if missing == 1 {
            expect_wrong(&world.job(), &world.truth, &["no block after genesis found"]);
            continue;
        }
        let mut words = vec![stop, (missing - 1).to_string()];
        if missing < chain.len() - 1 {
            words.push(chain[missing].block_hash().to_string());
            words.push(format!("{} further blocks", chain.len() - 1 - missing));
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let error = expect_wrong(&world.job(), &world.truth, &words);
        assert!(matches!(error, SyncError::Invalid(InvalidError::ChainTooShort { .. })), "{error}");
        // A snapshot names the stop block only by its hash.
        let job = Job { hints: world.snapshot_hints(), ..world.job() };
        let error = expect_wrong(&job, &world.truth, &[&world.truth.stop_hash]);
        assert!(
            matches!(error, SyncError::Invalid(InvalidError::BaseNotOnChain { .. })),
            "{error}"
        );
    }
}

/// Flips a bit on disk; returns a closure that restores it.
fn flip(world: &World, file: usize, offset: usize, bit: u64) -> impl FnOnce() {
    let path = world.blocksdir().join(format!("blk{file:05}.dat"));
    let before = fs::read(&path).unwrap();
    let mut bytes = before.clone();
    bytes[offset] ^= 1 << bit;
    fs::write(&path, bytes).unwrap();
    move || fs::write(path, before).unwrap()
}

#[test]
fn a_flipped_bit_behind_the_header() {
    let chain = small_chain(91).blocks();
    let (world, places) = laid_out(&chain);
    let mut rng = Rng::new(91);
    for _ in 0..60 {
        // Later blocks have witnesses and many transactions.
        let height = rng.between(90, u64::from(world.truth.stop)) as usize;
        let place = places[height];
        let offset = place.offset + rng.between(80, chain[height].total_size() as u64 - 1) as usize;
        let restore = flip(&world, place.file, offset, rng.below(8));
        let hash = chain[height].block_hash().to_string();
        let path = world.blocksdir().join(format!("blk{:05}.dat", place.file));
        let path = format!("{} at byte {}", path.display(), place.offset);
        let words = [&hash[..], &format!("block {height} "), &path, "damaged"];
        let error = expect_wrong(&world.job(), &world.truth, &words);
        assert!(matches!(error, SyncError::Source(SourceError::Damaged { .. })), "{error}");
        restore();
    }
    world.job().expect(&world.truth, &CrashStorage::new(), &CrashStorage::new());
}

#[test]
fn a_flipped_bit_in_a_header() {
    let chain = small_chain(92).blocks();
    let (world, places) = laid_out(&chain);
    let mut rng = Rng::new(92);
    for _ in 0..30 {
        let height = rng.between(2, u64::from(world.truth.stop) - 1) as usize;
        let place = places[height];
        let offset = place.offset + rng.index(80);
        let restore = flip(&world, place.file, offset, rng.below(8));
        // A block is identified by its header: with another header, it is another block.
        let hash = chain[height].block_hash().to_string();
        let words = [&hash[..], &world.truth.stop.to_string(), "missing or damaged"];
        let error = expect_wrong(&world.job(), &world.truth, &words);
        assert!(matches!(error, SyncError::Invalid(InvalidError::ChainTooShort { .. })), "{error}");
        restore();
    }
}

/// Magic and size are not part of a block: the sync finds the block without them.
#[test]
fn a_flipped_bit_before_a_block() {
    let chain = small_chain(93).blocks();
    let (world, places) = laid_out(&chain);
    let mut rng = Rng::new(93);
    let mut found = 0;
    for _ in 0..24 {
        let height = rng.between(2, u64::from(world.truth.stop) - 1) as usize;
        let place = places[height];
        let restore = flip(&world, place.file, place.offset - 1 - rng.index(8), rng.below(8));
        let out = CrashStorage::new();
        match world.job().run(&CrashStorage::new(), &out) {
            Ok(outcome) => {
                world.truth.check(&outcome, &out);
                found += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Wrong, "{error}");
                assert!(error.to_string().contains(&chain[height].block_hash().to_string()));
            }
        }
        restore();
    }
    println!("{found} of 24 were found anyway");
}

#[test]
fn a_good_copy_in_another_place() {
    let chain = small_chain(94).blocks();
    let mut files = BlockFiles::regtest().key(KEY);
    let places = files.blocks(&chain);
    files.next_file();
    files.blocks(chain.iter().rev());
    let world = World::laid_out(chain.clone(), |_| files);
    let mut rng = Rng::new(94);
    // Flips one bit in every block of the first file.
    for (block, place) in chain.iter().zip(&places).skip(1) {
        // With another header the tip would be another block, and on regtest often a valid one.
        let first = if block == chain.last().unwrap() { 80 } else { 0 };
        let offset = place.offset + rng.between(first, block.total_size() as u64 - 1) as usize;
        let _ = flip(&world, place.file, offset, rng.below(8));
    }
    for threads in [1, 3] {
        let job = Job { threads, ..world.job() };
        job.expect(&world.truth, &CrashStorage::new(), &CrashStorage::new());
        let job = Job { hints: world.snapshot_hints(), ..job };
        job.expect(&world.truth, &CrashStorage::new(), &CrashStorage::new());
    }
}

/// With two damaged copies, the sync fails as with one.
#[test]
fn damaged_copies_alone_are_an_error() {
    let chain = small_chain(95).blocks();
    let mut files = BlockFiles::regtest();
    let first = files.blocks(&chain);
    let second = files.blocks(&chain);
    let world = World::laid_out(chain.clone(), |_| files);
    let height = chain.len() - 2;
    let last = chain[height].total_size() - 1;
    let _ = flip(&world, 0, first[height].offset + last, 0);
    let _ = flip(&world, 0, second[height].offset + 90, 3);
    let hash = chain[height].block_hash().to_string();
    expect_wrong(&world.job(), &world.truth, &[&hash, "blk00000.dat", "every copy"]);
}

/// If a block is invalid but has valid work, no other copy can help.
#[test]
fn a_block_that_breaks_a_rule() {
    let mut builder = small_chain(96);
    let mut block = builder.propose(apus_testkit::chain::BlockPlan::default());
    block.txdata[0].input[0].script_sig = bitcoin::ScriptBuf::from_bytes(vec![1, 2, 3]);
    seal(&mut block);
    builder.add(block.clone());
    let world = World::of(builder.blocks());
    let hash = block.block_hash().to_string();
    let height = world.truth.stop.to_string();
    let words = [&hash[..], &height, "bad-cb-height", "not a valid chain for these hints"];
    let error = expect_no_output(&world.job(), &world.truth);
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word} is not in: {error}");
    }
    assert!(matches!(error, SyncError::NoWayOn { .. }), "{error}");
}

#[test]
fn blocks_of_another_chain() {
    let world = World::small(97);
    let job = Job { params: Params::of(Network::Main), ..world.job() };
    let error = expect_no_output(&job, &world.truth);
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("regtest"), "{error}");
}

#[test]
fn folders_without_blocks() {
    let world = World::small(98);
    let folder = tempfile::tempdir().unwrap();
    let job = Job { blocksdir: folder.path().join("nowhere"), ..world.job() };
    let error = expect_no_output(&job, &world.truth);
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("nowhere"), "{error}");

    let job = Job { blocksdir: folder.path().to_owned(), ..world.job() };
    let error = expect_no_output(&job, &world.truth);
    assert!(error.to_string().contains("blk00000.dat"), "{error}");

    // This file has only zeros: it was preallocated and never written to.
    fs::write(folder.path().join("blk00000.dat"), vec![0; 5_000]).unwrap();
    expect_wrong(&job, &world.truth, &["no block"]);

    // Without its key, an obfuscated file is noise.
    fs::write(folder.path().join("blk00000.dat"), {
        fs::read(world.blocksdir().join("blk00000.dat")).unwrap()
    })
    .unwrap();
    expect_wrong(&job, &world.truth, &["xor.dat"]);

    // This folder has only the genesis block.
    let mut files = BlockFiles::regtest();
    files.block(&world.chain[0]);
    files.write(folder.path());
    expect_wrong(&job, &world.truth, &["genesis"]);
}

#[test]
fn hints_that_are_not_there() {
    let world = World::small(99);
    for hints in [
        hintsfile(&world.folder.path().join("none.hints")),
        apus_sync::HintsInput::Snapshot(world.folder.path().join("none.hints")),
    ] {
        let error = expect_no_output(&Job { hints, ..world.job() }, &world.truth);
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("none.hints"), "{error}");
    }
}

/// A block's bytes are compared with its header, wherever they come from.
#[test]
fn another_block_in_the_place_of_one() {
    let chain = small_chain(100).blocks();
    let (a, b) = (chain.len() - 3, chain.len() - 4);
    let world = World::laid_out(chain.clone(), |blocks| {
        let mut files = BlockFiles::regtest();
        files.blocks(&blocks[..a]);
        // Joins the header of one block and the transactions of the other.
        let mixed = [&serialize(&blocks[a])[..80], &serialize(&blocks[b])[80..]].concat();
        files.record(&mixed);
        files.blocks(&blocks[a + 1..]);
        files
    });
    expect_wrong(&world.job(), &world.truth, &[&chain[a].block_hash().to_string()]);
}
