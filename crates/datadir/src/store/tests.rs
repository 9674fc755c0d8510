//! Stores made by our own hand: what comes back, what a crash leaves, what damage does. What a
//! real node says of one is in `node`.

mod crash;
mod node;

use super::*;
use crate::files::BlockFiles;
use crate::rev::UndoFiles;
use crate::testing::{KEY, MAGIC, spends, synthetic_block};
use core::ops::ControlFlow;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// What is stored of a height.
#[derive(Debug, Clone)]
pub(super) struct Made {
    pub(super) block: Vec<u8>,
    pub(super) undo: Option<Vec<u8>>,
}

/// A chain's worth of blocks by their sizes in outputs and undo data in bytes.
pub(super) fn made(sizes: &[(usize, usize)]) -> Vec<Made> {
    (0..)
        .zip(sizes)
        .map(|(height, &(script, undo))| {
            let block = synthetic_block(height, 1 + script % 3, script);
            Made { block, undo: (height > 0).then(|| vec![height as u8; undo]) }
        })
        .collect()
}

pub(super) fn append(store: &mut BlockStore, made: &Made) {
    store.append(&made.block, tx_count(made), made.undo.as_deref().map(spends)).unwrap();
}

fn tx_count(made: &Made) -> u32 {
    u32::from(made.block[80])
}

/// Places of a store: the `blocks` folder and the positions.
pub(super) struct Home {
    pub(super) dir: tempfile::TempDir,
    pub(super) key: Obfuscation,
    pub(super) max: u64,
}

impl Home {
    pub(super) fn new(key: [u8; 8], max: u64) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), key: Obfuscation::new(key), max }
    }

    pub(super) fn blocks(&self) -> PathBuf {
        self.dir.path().join("new/blocks")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.dir.path().join("positions")
    }

    pub(super) fn open(&self, keep: u32) -> Result<BlockStore, BlockStoreError> {
        self.open_range(0..keep)
    }

    fn open_range(&self, keep: Range<u32>) -> Result<BlockStore, BlockStoreError> {
        BlockStore::open_with(&self.blocks(), &self.log(), MAGIC, self.key, keep, self.max)
    }

    /// Fails unless all files have the names and contents of `want`.
    pub(super) fn expect(&self, want: &BTreeMap<String, Vec<u8>>) {
        let state = self.state();
        assert!(state.keys().eq(want.keys()), "{:?}, not {:?}", state.keys(), want.keys());
        for (name, bytes) in &state {
            let differ = bytes.iter().zip(&want[name]).position(|(a, b)| a != b);
            let lengths = (bytes.len(), want[name].len());
            assert_eq!((differ, lengths.0), (None, lengths.1), "{name}");
        }
    }

    /// Names and contents of all files.
    pub(super) fn state(&self) -> BTreeMap<String, Vec<u8>> {
        let mut state = BTreeMap::from([("log".to_owned(), fs::read(self.log()).unwrap())]);
        for entry in fs::read_dir(self.blocks()).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().to_string_lossy().into_owned();
            state.insert(name, fs::read(entry.path()).unwrap());
        }
        state
    }
}

/// Every block from the height `first` on is found by the scan and at its position, with its undo data.
fn check(home: &Home, all: &[Made], first: u32) {
    let files = BlockFiles::open(&home.blocks(), MAGIC).unwrap();
    assert_eq!(files.obfuscation(), home.key);
    let mut scanned = Vec::new();
    let summary = files.scan(&mut |header, location| {
        scanned.push((*header, location));
        ControlFlow::Continue(())
    });
    let summary = summary.unwrap();
    assert_eq!((summary.torn_count, summary.resynced_count, summary.mended), (0, 0, 0));
    assert_eq!(scanned.len(), all.len() - first as usize);
    let positions = BlockPositions::open(&home.log()).unwrap();
    assert_eq!(positions.heights(), first..all.len() as u32);
    let mut undo_files = UndoFiles::open(&home.blocks(), MAGIC).unwrap();
    let mut reader = crate::BlockReader::new(&files, 1 << 16);
    positions
        .for_each(all.len() as u32, &mut |height, stored| {
            let made = &all[height as usize];
            assert_eq!(scanned[(height - first) as usize], (stored.header, stored.block));
            assert_eq!(positions.read(height).unwrap(), stored);
            assert_eq!((&stored.header[..], stored.tx_count), (&made.block[..80], tx_count(made)));
            let mut wanted = [(height, stored.block)];
            let read = reader.read(&mut wanted, &mut |_, _, bytes| {
                assert_eq!(bytes, made.block);
                ControlFlow::Continue(())
            });
            read.unwrap();
            let prev = prev(&stored.header);
            let undo = stored.undo.map(|undo| {
                let bytes = undo_files.read(stored.block.file, undo.offset, &prev).unwrap();
                assert_eq!(bytes.len(), undo.size as usize);
                bytes
            });
            assert_eq!(undo, made.undo);
            let spent = made.undo.as_deref().map_or(KeyedCoinSum::NONE, |it| spends(it).sum);
            assert_eq!(stored.spent, spent);
            Ok(())
        })
        .unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn what_is_stored_comes_back(
        sizes in proptest::collection::vec((0usize..600, 0usize..500), 1..40),
        key: [u8; 8],
        max in 600u64..6_000,
        starts in proptest::collection::vec(1usize..12, 1..6),
        first in prop_oneof![Just(0), 0u32..40],
    ) {
        let (home, all) = (Home::new(key, max), made(&sizes));
        let mut starts = starts.iter().cycle();
        let first = first.min(all.len() as u32 - 1);
        let mut store = home.open_range(first..first).unwrap();
        let mut left = *starts.next().unwrap();
        for made in &all[first as usize..] {
            if left == 0 {
                store.sync().unwrap();
                store = home.open_range(first..store.next_height()).unwrap();
                left = *starts.next().unwrap();
            }
            append(&mut store, made);
            left -= 1;
        }
        store.sync().unwrap();
        prop_assert_eq!(store.next_height() as usize, all.len());
        drop(store);
        check(&home, &all, first);
        // Files end where Core would end them.
        let mut length = 0;
        let positions = BlockPositions::open(&home.log()).unwrap();
        let mut file = 0;
        for height in positions.heights() {
            let block = positions.read(height).unwrap().block;
            let more = u64::from(block.size) + 8;
            if length + more >= max.max(more + 1) {
                (file, length) = (file + 1, 0);
            }
            prop_assert_eq!((block.file, block.offset), (file, length + 8));
            length += more;
        }
    }
}

#[test]
fn a_file_is_shorter_than_the_limit() {
    let block = synthetic_block(1, 1, 100);
    let two = 2 * (block.len() as u64 + 8);
    for (max, files) in [(two, 2), (two + 1, 1)] {
        let home = Home::new(KEY, max);
        let mut store = home.open(0).unwrap();
        store.append(&block, 1, None).unwrap();
        store.append(&block, 1, Some(spends(b"u"))).unwrap();
        store.sync().unwrap();
        assert_eq!(home.state().len(), 2 + 2 * files);
    }
}

#[test]
fn sizes_that_no_block_has_are_refused_and_change_nothing() {
    let home = Home::new(KEY, FILE_BYTES_MAX);
    let mut store = home.open(0).unwrap();
    for size in [0, 79, 4_000_001] {
        let error = store.append(&vec![0; size], 1, None).unwrap_err();
        assert!(matches!(error, BlockStoreError::Size { height: 0, .. }), "{error}");
    }
    assert_eq!(store.next_height(), 0);
    store.append(&synthetic_block(0, 1, 0), 1, None).unwrap();
    store.sync().unwrap();
    assert_eq!(home.state()["log"].len() as u64, positions::HEAD + positions::RECORD);
}

#[test]
fn what_is_not_synced_is_written_when_buffers_are_full() {
    let home = Home::new([0; 8], FILE_BYTES_MAX);
    let mut store = home.open(0).unwrap();
    let big = synthetic_block(0, 1, 3_900_000);
    store.append(&big, 1, None).unwrap();
    assert_eq!(home.state()["blk00000.dat"].len(), 0);
    store.append(&big, 1, Some(spends(&[]))).unwrap();
    let state = home.state();
    assert_eq!(state["blk00000.dat"].len(), big.len() + 8);
    assert_eq!(state["xor.dat"], [0; 8]);
    // The positions wait for the disk.
    assert_eq!(state["log"].len() as u64, positions::HEAD);
}

#[test]
fn positions_reach_the_disk_by_themselves_after_the_blocks() {
    let home = Home::new(KEY, FILE_BYTES_MAX);
    let mut store = home.open(0).unwrap();
    let small = synthetic_block(0, 1, 0);
    store.append(&small, 1, None).unwrap();
    while home.state()["log"].len() as u64 == positions::HEAD {
        for _ in 0..100 {
            store.append(&small, 1, Some(spends(&[0]))).unwrap();
        }
        assert!(store.next_height() < 20_000);
    }
    let told = BlockPositions::open(&home.log()).unwrap().heights().end;
    // As after a crash: whatever is told can be kept.
    drop(store);
    assert_eq!(home.open(told).unwrap().next_height(), told);
}
