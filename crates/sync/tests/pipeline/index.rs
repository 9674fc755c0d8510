//! Tests with a node's block index that is outdated, wrong about the files, or damaged. An index only says
//! where to look, so the result or error is the same as without it.

use crate::harness::{Events, Job, Truth, files, hintsfile};
use apus_chain::{Network, Params};
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::{ChainBy, ErrorKind, Event};
use apus_testkit::blkfile::{self, BlockFiles};
use apus_testkit::chain::{ChainBuilder, utxo_set};
use apus_testkit::oracle;
use apus_testkit::rng::Rng;
use apus_testkit::storage::CrashStorage;
use bitcoin::Block;
use bitcoin::consensus::encode::serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The blocks of a fixture that a node wrote, from the genesis block on.
static CHAIN: LazyLock<Vec<Block>> = LazyLock::new(|| {
    let genesis = bitcoin::constants::genesis_block(bitcoin::Network::Regtest);
    blkfile::read_chain(&node_blocks(), Network::Regtest.magic(), genesis.block_hash())
});

/// The expected results for these blocks.
static TRUTH: LazyLock<Truth> = LazyLock::new(|| Truth::of(&CHAIN));

fn node_blocks() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/regtest-315/regtest/blocks")
}

/// A copy of a node's folder, which tests change.
struct Node {
    folder: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("index")).unwrap();
        for part in ["", "index"] {
            for entry in fs::read_dir(node_blocks().join(part)).unwrap() {
                let path = entry.unwrap().path();
                if path.is_file() {
                    let name = path.file_name().unwrap();
                    fs::copy(&path, folder.path().join(part).join(name)).unwrap();
                }
            }
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the offset of a block in the only block file.
    fn offset(&self, block: &Block) -> usize {
        let key = fs::read(self.path("xor.dat")).unwrap();
        let mut bytes = fs::read(self.path("blk00000.dat")).unwrap();
        bytes.iter_mut().zip(key.iter().cycle()).for_each(|(byte, key)| *byte ^= key);
        let header = &serialize(block)[..80];
        bytes.windows(80).position(|window| window == header).unwrap()
    }

    /// Replaces block files of the node by ones with the node's key; the first one has the number `first`.
    fn replace(&self, first: usize, build: impl FnOnce(&mut BlockFiles)) {
        let key = fs::read(self.path("xor.dat")).unwrap().try_into().unwrap();
        let mut files = BlockFiles::regtest().key(key).preallocate(1 << 16);
        build(&mut files);
        for (number, content) in (first..).zip(files.contents()) {
            fs::write(self.path(&format!("blk{number:05}.dat")), content).unwrap();
        }
    }

    fn job(&self, truth: &Truth) -> Job {
        let hints = self.path("right.hints");
        fs::write(&hints, &truth.hints).unwrap();
        Job {
            params: Params::of(Network::Regtest),
            blocksdir: self.folder.path().to_owned(),
            hints: hintsfile(&hints),
            aggregate: AggregateKind::Sha256,
            stop_height: None,
            threads: 2,
            memory_bytes: 1 << 20,
            segment_bytes: Some(20_000),
            checkpoint_interval: Duration::ZERO,
        }
    }

    /// Runs a sync that must give the expected results; returns whether it could use the index.
    fn expect(&self, truth: &Truth) -> bool {
        let (work, out, events) = (CrashStorage::new(), CrashStorage::new(), Events::default());
        let never = AtomicBool::new(false);
        let outcome = self.job(truth).run_watched(&work, &out, &events, &never);
        truth.check(&outcome.unwrap_or_else(|error| panic!("{error}")), &out);
        let found = events.all().into_iter().rev().find_map(|event| match event {
            Event::ChainFound { by: ChainBy::Files { index, .. }, .. } => Some(index),
            _ => None,
        });
        found.unwrap()
    }

    fn flip(&self, name: &str, offset: usize, bit: u64) {
        let mut bytes = fs::read(self.path(name)).unwrap();
        bytes[offset] ^= 1 << bit;
        fs::write(self.path(name), bytes).unwrap();
    }
}

#[test]
fn a_damaged_block() {
    let height = 200;
    let block = &CHAIN[height];
    for at in [90, block.total_size() - 1] {
        let node = Node::new();
        let offset = node.offset(block);
        node.flip("blk00000.dat", offset + at, 5);
        let out = CrashStorage::new();
        let error = node.job(&TRUTH).run(&CrashStorage::new(), &out).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Wrong);
        assert!(files(&out).is_empty());
        let hash = block.block_hash().to_string();
        for word in [&hash[..], "block 200 ", &format!("blk00000.dat at byte {offset}")] {
            assert!(error.to_string().contains(word), "{word} is not in: {error}");
        }
        // The node downloads the block again, into another file.
        node.replace(1, |files| drop(files.blocks([block])));
        node.expect(&TRUTH);
    }
}

#[test]
fn a_file_that_the_index_does_not_know() {
    let mut builder = ChainBuilder::new(1);
    CHAIN[1..].iter().for_each(|block| builder.add(block.clone()));
    let more = builder.empty_blocks(4);
    let node = Node::new();
    node.replace(1, |files| drop(files.blocks(&more)));
    let truth = Truth::of(&builder.blocks());
    assert!(node.expect(&truth));
    // The previous hints are still right for the previous block.
    assert!(node.expect(&TRUTH));
}

/// The positions were right until the files were rewritten.
#[test]
fn wrong_index_positions_do_not_change_the_set() {
    let node = Node::new();
    let mut blocks = CHAIN.clone();
    Rng::new(2).shuffle(&mut blocks);
    node.replace(0, |files| drop(files.blocks(&blocks)));
    node.expect(&TRUTH);
    // The files are also shorter than the index says.
    node.replace(0, |files| {
        let (first, second) = blocks.split_at(40);
        files.blocks(first);
        files.next_file();
        files.blocks(second);
    });
    node.expect(&TRUTH);
}

#[test]
fn the_files_hold_another_chain_than_the_index() {
    let mut builder = ChainBuilder::new(3);
    CHAIN[1..300].iter().for_each(|block| builder.add(block.clone()));
    builder.empty_blocks(30);
    let node = Node::new();
    node.replace(0, |files| drop(files.blocks(&builder.blocks())));
    node.expect(&Truth::of(&builder.blocks()));
}

/// Blocks that only the index has are missing, no matter what it says about them.
#[test]
fn the_files_end_before_the_index() {
    let node = Node::new();
    node.replace(0, |files| drop(files.blocks(&CHAIN[..300])));
    let out = CrashStorage::new();
    let error = node.job(&TRUTH).run(&CrashStorage::new(), &out).unwrap_err();
    assert!(files(&out).is_empty());
    assert_eq!(error.kind(), ErrorKind::Wrong, "{error}");
    let shorter = Truth::of(&CHAIN[..300]);
    node.expect(&shorter);
}

#[test]
fn a_damaged_index() {
    // This part of the chain has few coins, but is long enough that the whole index is read.
    let truth = Truth::of(&CHAIN[..100]);
    let mut rng = Rng::new(4);
    let names: Vec<String> = fs::read_dir(node_blocks().join("index"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for name in names {
        let name = format!("index/{name}");
        let length = fs::metadata(Node::new().path(&name)).unwrap().len() as usize;
        for _ in 0..6 {
            if length > 0 {
                let node = Node::new();
                node.flip(&name, rng.index(length), rng.below(8));
                node.expect(&truth);
                let file = fs::OpenOptions::new().write(true).open(node.path(&name)).unwrap();
                file.set_len(rng.below(length as u64)).unwrap();
                node.expect(&truth);
            }
        }
        let node = Node::new();
        fs::remove_file(node.path(&name)).unwrap();
        node.expect(&truth);
    }
}

#[test]
fn the_fixture_has_the_assumed_properties() {
    let coins = utxo_set(&*CHAIN);
    assert_eq!(TRUTH.stop, 315);
    assert_eq!(TRUTH.hash_serialized_3, oracle::hash_serialized_3(&coins));
    assert!(Node::new().expect(&TRUTH), "the index must be used");
}
