//! Stored blocks can be read again, in any order and after any restart. The modules below test crashes,
//! refusals, the index, and a real node.

mod crash;
mod in_order;
mod index;
mod node;
mod refusals;

use super::*;
use crate::files::BlockFiles;
use crate::rev::UndoFiles;
use crate::tests::{KEY, MAGIC, spends, synthetic_block};
use apus_testkit::rng::Rng;
use core::ops::ControlFlow;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// A block with plausible undo data.
#[derive(Debug, Clone)]
pub(super) struct Made {
    pub(super) hash: BlockHash,
    pub(super) prev: BlockHash,
    pub(super) block: Vec<u8>,
    pub(super) undo: Vec<u8>,
}

impl Made {
    pub(super) fn new(block: Vec<u8>, undo: usize) -> Self {
        let header = Header::parse(block.first_chunk().unwrap());
        Self { hash: header.hash(), prev: header.prev, undo: vec![block[0]; undo], block }
    }
}

/// Makes a chain of blocks with these numbers of outputs and lengths of undo data.
pub(super) fn made(sizes: &[(usize, usize)]) -> Vec<Made> {
    let mut prev = BlockHash::ZERO;
    let mut all = Vec::new();
    for (height, &(script, undo)) in (0..).zip(sizes) {
        let mut block = synthetic_block(height, 1 + script % 3, script);
        block[4..36].copy_from_slice(&prev.0);
        // Let times go back and forth.
        block[68..72].copy_from_slice(&(1_000_000 + (height ^ 3) * 600).to_le_bytes());
        let made = Made::new(block, undo);
        prev = made.hash;
        all.push(made);
    }
    all
}

/// The paths of a `blocks` folder and its log.
pub(super) struct Home {
    pub(super) dir: tempfile::TempDir,
    pub(super) key: Obfuscation,
    pub(super) max: u64,
    pub(super) genesis: Vec<u8>,
}

impl Home {
    pub(super) fn new(key: [u8; 8], max: u64, all: &[Made]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir, key: Obfuscation::new(key), max, genesis: all[0].block.clone() }
    }

    pub(super) fn blocks(&self) -> PathBuf {
        self.dir.path().join("new/blocks")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.dir.path().join("kept")
    }

    pub(super) fn open(&self) -> Result<BlockStore, BlockStoreError> {
        let (blocks, log) = (self.blocks(), self.log());
        BlockStore::open_with(&blocks, &log, MAGIC, self.key, Some(&self.genesis), self.max)
    }

    /// Reads the names and contents of all files.
    pub(super) fn state(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut state = BTreeMap::new();
        let mut take = |path: PathBuf| {
            if let Ok(bytes) = fs::read(&path) {
                state.insert(path, bytes);
            }
        };
        take(self.log());
        for entry in fs::read_dir(self.blocks()).into_iter().flatten() {
            take(entry.unwrap().path());
        }
        state
    }
}

/// Reads the undo data of a block from the files, at the position in the log.
pub(super) fn undo_of(home: &Home, kept: &BlockStore, made: &Made) -> Option<Vec<u8>> {
    kept.sync().unwrap();
    if !kept.has(&made.hash) {
        return None;
    }
    let stored = kept.stored(&made.hash).unwrap();
    assert_eq!(&stored.header[..], &made.block[..80]);
    assert_eq!(stored.tx_count, u32::from(made.block[80]));
    let undo = stored.undo?;
    let mut files = UndoFiles::open(&home.blocks(), MAGIC).unwrap();
    let bytes = files.read(stored.block.file, undo.offset, &made.prev).unwrap();
    assert_eq!(bytes.len(), undo.size as usize);
    Some(bytes)
}

/// Checks that the folder holds exactly these blocks in this order, in files that end where Core would end
/// them.
pub(super) fn check_scan(home: &Home, order: &[&Made]) {
    let files = BlockFiles::open(home.blocks(), MAGIC).unwrap();
    let mut found = Vec::new();
    let summary = files.scan(&mut |header, place| {
        found.push((Header::parse(header).hash(), place));
        ControlFlow::Continue(())
    });
    let summary = summary.unwrap();
    assert_eq!((summary.torn_count, summary.resynced_count, summary.corrected), (0, 0, 0));
    let (mut file, mut length, mut expected) = (0, 0, Vec::new());
    for made in order {
        let size = made.block.len() as u32;
        if length > 0 && length + 8 + u64::from(size) >= home.max {
            (file, length) = (file + 1, 0);
        }
        expected.push((made.hash, BlockLocation { file, offset: length + 8, size }));
        length += 8 + u64::from(size);
    }
    assert_eq!(found, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn stored_blocks_can_be_read(
        sizes in proptest::collection::vec((0usize..600, 0usize..500), 1..40),
        key: [u8; 8],
        max in 600u64..6_000,
        seed: u64,
    ) {
        let (all, mut rng) = (made(&sizes), Rng::new(seed));
        let home = Home::new(key, max, &all);
        let mut kept = home.open().unwrap();
        let (mut order, mut undo) = (vec![&all[0]], BTreeSet::new());
        for _ in 0..5 * all.len() {
            let at = rng.index(all.len());
            let made = &all[at];
            match rng.below(8) {
                0 => kept.sync().unwrap(),
                1 => {
                    kept.sync().unwrap();
                    drop(kept);
                    kept = home.open().unwrap();
                }
                2 | 3 => {
                    let there = order.iter().any(|known| known.hash == made.hash);
                    let put = kept.put_undo(&made.hash, &made.prev, spends(&made.undo));
                    // The second time nothing changes.
                    prop_assert_eq!(put.is_ok(), there && at > 0);
                    if put.is_ok() && undo.insert(at) {
                        kept.put_undo(&made.hash, &made.prev, spends(b"other")).unwrap();
                    }
                }
                _ => {
                    kept.put(&made.hash, &made.block).unwrap();
                    if order.iter().all(|known| known.hash != made.hash) {
                        order.push(made);
                    }
                }
            }
            let asked = &all[rng.index(all.len())];
            let there = order.iter().any(|known| known.hash == asked.hash);
            prop_assert_eq!(kept.has(&asked.hash), there);
            prop_assert_eq!(kept.read(&asked.hash).unwrap(), there.then(|| asked.block.clone()));
        }
        for (at, made) in all.iter().enumerate() {
            let want = undo.contains(&at).then(|| made.undo.clone());
            prop_assert_eq!(undo_of(&home, &kept, made), want);
        }
        check_scan(&home, &order);
    }
}

#[test]
fn files_stay_below_the_length_limit() {
    let all = made(&[(100, 0), (100, 0)]);
    let two: u64 = all.iter().map(|made| made.block.len() as u64 + 8).sum();
    for (max, files) in [(two, 2), (two + 1, 1)] {
        let home = Home::new(KEY, max, &all);
        let kept = home.open().unwrap();
        kept.put(&all[1].hash, &all[1].block).unwrap();
        kept.sync().unwrap();
        // Plus the log and the key file.
        assert_eq!(home.state().len(), 2 + files);
        check_scan(&home, &[&all[0], &all[1]]);
    }
}

/// Threads that read, store and sync do not disturb each other.
#[test]
fn threads_share_a_store() {
    let sizes: Vec<_> = (0..400).map(|n| (n % 700, n % 90)).collect();
    let all = made(&sizes);
    let home = Home::new(KEY, 9_000, &all);
    let kept = home.open().unwrap();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (all, kept) = (&all, &kept);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                let mut order: Vec<_> = all[1..].iter().collect();
                rng.shuffle(&mut order);
                for made in order {
                    kept.put(&made.hash, &made.block).unwrap();
                    kept.put_undo(&made.hash, &made.prev, spends(&made.undo)).unwrap();
                    let other = &all[rng.index(all.len())];
                    if let Some(bytes) = kept.read(&other.hash).unwrap() {
                        assert_eq!(bytes, other.block);
                    }
                    if rng.one_in(20) {
                        kept.sync().unwrap();
                    }
                }
            });
        }
    });
    kept.sync().unwrap();
    drop(kept);
    let kept = home.open().unwrap();
    assert_eq!(kept.block_count(), all.len());
    for made in &all[1..] {
        assert_eq!(kept.read(&made.hash).unwrap().as_ref(), Some(&made.block));
        assert_eq!(undo_of(&home, &kept, made).as_ref(), Some(&made.undo));
    }
    assert_eq!(kept.stored(&all[0].hash).unwrap().spent, KeyedCoinSum::NONE);
    for made in &all[1..] {
        assert_eq!(kept.stored(&made.hash).unwrap().spent, spends(&made.undo).sum);
    }
    let unknown = BlockHash([7; 32]);
    assert!(kept.stored(&unknown).unwrap_err().to_string().contains("is not stored in"));
}

/// A read returns while a sync waits for the disk.
#[test]
fn reads_do_not_wait_for_a_sync() {
    let all = made(&[(10, 0), (20, 0)]);
    let home = Home::new(KEY, FILE_BYTES_MAX, &all);
    let kept = home.open().unwrap();
    kept.put(&all[1].hash, &all[1].block).unwrap();
    // Simulates a sync that waits for the disk.
    let mut log = kept.log.lock().unwrap();
    let unsynced = kept.state().unwrap().take_unsynced().unwrap();
    assert_eq!(kept.read(&all[1].hash).unwrap().as_ref(), Some(&all[1].block));
    assert!(kept.has(&all[0].hash));
    assert!(!kept.has_undo(&all[1].hash));
    kept.put_undo(&all[1].hash, &all[1].prev, spends(b"undo")).unwrap();
    assert!(kept.has_undo(&all[1].hash) && !kept.has_undo(&all[0].hash));
    unsynced.sync(&mut log).unwrap();
    drop(log);
    assert_eq!(undo_of(&home, &kept, &all[1]).unwrap(), b"undo");
}

/// The store syncs by itself before the records take much memory.
#[test]
fn a_large_backlog_is_synced() {
    let all = made(&vec![(0, 0); 12_000]);
    let home = Home::new(KEY, FILE_BYTES_MAX, &all);
    let kept = home.open().unwrap();
    for made in &all {
        kept.put(&made.hash, &made.block).unwrap();
    }
    let log_length = fs::metadata(home.log()).unwrap().len();
    assert!(log_length > log::PIECE_BYTES as u64, "{log_length}");
    drop(kept);
    let kept = home.open().unwrap();
    let count = kept.block_count();
    assert!((9_000..12_000).contains(&count), "{count}");
    // Many open undo files cause a sync, too.
    let home = Home::new(KEY, 300, &all);
    let kept = home.open().unwrap();
    for made in &all[..200] {
        kept.put(&made.hash, &made.block).unwrap();
    }
    kept.sync().unwrap();
    let log_length = || fs::metadata(home.log()).unwrap().len();
    let before = log_length();
    for made in &all[1..150] {
        kept.put_undo(&made.hash, &made.prev, spends(b"undo")).unwrap();
    }
    assert!(log_length() > before);
    // So do whole block files that wait for the disk.
    let home = Home::new(KEY, 600, &all);
    let kept = home.open().unwrap();
    let files =
        || home.state().keys().filter(|path| path.to_str().unwrap().contains("blk")).count();
    let mut at = 1;
    while fs::metadata(home.log()).unwrap().len() == log::HEAD + 105 {
        kept.put(&all[at].hash, &all[at].block).unwrap();
        at += 1;
        assert!(files() <= 3);
    }
    assert_eq!(files(), 3);
}
