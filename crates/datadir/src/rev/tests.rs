//! Reads undo data at the positions of the index, and finds it through a search.

use super::*;
use crate::tests::{KEY, MAGIC, fixtures};
use apus_chain::BlockUndo;
use apus_chain::{Header, Network};
use apus_testkit::rng::Rng;
use core::ops::ControlFlow;
use std::fs;
use std::time::Instant;

static GO_ON: AtomicBool = AtomicBool::new(false);

fn prev(of: u8) -> BlockHash {
    BlockHash([of; 32])
}

/// Makes a block's undo data, longer for a higher block.
fn record(of: u8) -> Vec<u8> {
    let undo = vec![of; usize::from(of)];
    let size = (undo.len() as u32).to_le_bytes();
    [&MAGIC[..], &size, &undo, &undo_checksum(&prev(of), &undo)].concat()
}

fn records(of: &[u8]) -> Vec<u8> {
    of.iter().flat_map(|&of| record(of)).collect()
}

/// Searches a file for the undo data of blocks 1 to `last`; returns the blocks found, in record order.
fn in_order(plain: &[u8], last: u8) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = plain.to_vec();
    Obfuscation::new(KEY).apply(&mut bytes, 0);
    fs::write(dir.path().join("rev00003.dat"), bytes).unwrap();
    fs::write(dir.path().join("xor.dat"), KEY).unwrap();
    let mut files = UndoFiles::open(dir.path(), MAGIC).unwrap();
    let prevs: Vec<BlockHash> = (1..=last).map(prev).collect();
    let found = files.find(3, &prevs, &GO_ON).unwrap();
    let mut blocks = Vec::new();
    for (at, place) in found {
        let of = at as u8 + 1;
        assert_eq!(files.read(3, place, &prev(of)).unwrap(), vec![of; usize::from(of)]);
        blocks.push(of);
    }
    blocks
}

/// The same blocks, in ascending order without duplicates.
fn found(plain: &[u8], last: u8) -> Vec<u8> {
    let mut blocks = in_order(plain, last);
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

#[test]
fn records_are_found_in_any_order() {
    let mut rng = Rng::new(5);
    let all: Vec<u8> = (1..=40).collect();
    let mut order = all.clone();
    for _ in 0..50 {
        assert_eq!(found(&records(&order), 40), all);
        assert_eq!(in_order(&records(&order), 40), order);
        let (one, other) = (rng.below(40) as usize, rng.below(40) as usize);
        order.swap(one, other);
    }
    order.reverse();
    assert_eq!(found(&records(&order), 40), all);
}

#[test]
fn records_of_other_blocks_are_skipped() {
    assert_eq!(found(&records(&[1, 90, 2, 3, 91, 92, 5]), 5), [1, 2, 3, 5]);
    // The same record twice, as a killed node leaves it.
    assert_eq!(in_order(&records(&[1, 2, 3, 2, 3, 4]), 4), [1, 2, 3, 2, 3, 4]);
    assert!(found(&[], 4).is_empty());
    assert!(found(&records(&[9, 8, 7]), 4).is_empty());
    let preallocated = [records(&[1, 2, 90]), vec![0; 3 * CHUNK], records(&[3])].concat();
    assert_eq!(found(&preallocated, 3), [1, 2, 3]);
}

/// One flipped bit costs only the record that contains it.
#[test]
fn damage_costs_no_other_record() {
    let good = records(&[1, 2, 3, 4]);
    let starts =
        [0, record(1).len(), records(&[1, 2]).len(), records(&[1, 2, 3]).len(), good.len()];
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let damaged = (1..=4).find(|&of| starts[of] > bit / 8).unwrap() as u8;
        let rest: Vec<u8> = (1..=4).filter(|&of| of != damaged).collect();
        assert_eq!(found(&bytes, 4), rest, "bit {bit}");
    }
    for length in 0..good.len() {
        let whole = (1..=4).filter(|&of| starts[of] <= length).count() as u8;
        assert_eq!(found(&good[..length], 4), (1..=whole).collect::<Vec<u8>>(), "{length} bytes");
    }
}

/// The magic may cross the end of a chunk.
#[test]
fn records_after_arbitrary_bytes_are_found() {
    for length in (CHUNK - 60..CHUNK + 8).chain(2 * CHUNK - 20..2 * CHUNK) {
        let bytes = [vec![0xee; length], records(&[1, 2, 3])].concat();
        assert_eq!(found(&bytes, 3), [1, 2, 3], "{length}");
    }
}

/// A file consists only of heads, each of which claims the whole rest of the file.
#[test]
fn hostile_files_take_bounded_work() {
    let mut bytes = Vec::new();
    while bytes.len() < 400_000 {
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&300_000u32.to_le_bytes());
    }
    let began = Instant::now();
    assert!(found(&bytes, 200).is_empty());
    // This hashes 25 MB; without the bound it would hash 20 GB and more.
    assert!(began.elapsed().as_secs() < 30);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rev00000.dat"), records(&[1, 2])).unwrap();
    let files = UndoFiles::open(dir.path(), MAGIC).unwrap();
    let halted = files.find(0, &[prev(1)], &AtomicBool::new(true)).unwrap();
    assert!(halted.is_empty());
    assert!(matches!(files.find(1, &[prev(1)], &GO_ON), Err(RevError::Open { .. })));
}

/// The search finds the undo data at the index's positions.
#[test]
fn a_nodes_undo_data_are_found_without_its_index() {
    let blocksdir = fixtures().join("regtest-315/regtest/blocks");
    let files = UndoFiles::open(&blocksdir, Network::Regtest.magic()).unwrap();
    let mut entries = Vec::new();
    crate::read_index(&blocksdir, &mut |entry| {
        entries.extend(
            entry.undo.map(|place| (entry.height, Header::parse(&entry.header).prev, place)),
        );
        ControlFlow::Continue(())
    })
    .unwrap();
    entries.sort_unstable_by_key(|(height, ..)| *height);
    assert!(entries.len() > 300 && entries.iter().all(|(.., (file, _))| *file == 0));
    let prevs: Vec<BlockHash> = entries.iter().map(|(_, prev, _)| *prev).collect();
    let stated: Vec<(usize, u64)> = entries.iter().map(|(.., (_, at))| *at).enumerate().collect();
    assert_eq!(files.find(0, &prevs, &GO_ON).unwrap(), stated);
}

const PREV: BlockHash = BlockHash([7; 32]);

/// A folder with one record in file 3; the data begin at byte 13.
fn folder(change: impl Fn(&mut Vec<u8>)) -> (tempfile::TempDir, UndoFiles) {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = vec![0xee; 5];
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&3u32.to_le_bytes());
    bytes.extend_from_slice(b"abc");
    bytes.extend_from_slice(&undo_checksum(&PREV, b"abc"));
    change(&mut bytes);
    Obfuscation::new(KEY).apply(&mut bytes, 0);
    fs::write(dir.path().join("rev00003.dat"), bytes).unwrap();
    fs::write(dir.path().join("xor.dat"), KEY).unwrap();
    let files = UndoFiles::open(dir.path(), MAGIC).unwrap();
    (dir, files)
}

#[test]
fn a_record_is_read_only_at_its_own_offset() {
    let (dir, mut files) = folder(|_| ());
    assert_eq!(files.read(3, 13, &PREV).unwrap(), b"abc");
    for offset in [0, 7, 8, 12, 14, 48, 49, u64::MAX] {
        let error = files.read(3, offset, &PREV).unwrap_err();
        assert!(matches!(error, RevError::Damaged { .. }), "{error}");
    }
    let error = files.read(3, 13, &BlockHash([8; 32])).unwrap_err();
    assert!(error.to_string().contains("rev00003.dat is damaged at byte 13"), "{error}");
    assert!(matches!(files.read(4, 13, &PREV), Err(RevError::Open { .. })));
    // A failed read of another file does not affect later reads.
    assert_eq!(files.read(3, 13, &PREV).unwrap(), b"abc");
    fs::write(dir.path().join("xor.dat"), b"short").unwrap();
    assert!(matches!(UndoFiles::open(dir.path(), MAGIC), Err(RevError::Key(_))));
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    for bit in 5 * 8..(13 + 3 + 32) * 8 {
        let (_dir, mut files) = folder(|bytes| bytes[bit / 8] ^= 1 << (bit % 8));
        let error = files.read(3, 13, &PREV).unwrap_err();
        assert!(matches!(error, RevError::Damaged { .. }), "{error}");
    }
    for length in 0..48 {
        let (_dir, mut files) = folder(|bytes| bytes.truncate(length));
        assert!(files.read(3, 13, &PREV).is_err());
    }
}

#[test]
fn a_nodes_undo_data_are_all_read() {
    let blocksdir = fixtures().join("regtest-315/regtest/blocks");
    let mut files = UndoFiles::open(&blocksdir, Network::Regtest.magic()).unwrap();
    let mut coins = 0;
    crate::read_index(&blocksdir, &mut |entry| {
        if let Some((file, offset)) = entry.undo {
            let prev = Header::parse(&entry.header).prev;
            let undo = files.read(file, offset, &prev).unwrap();
            let undo = BlockUndo::read(&undo).unwrap();
            assert_eq!(undo.tx_count(), entry.tx_count as usize);
            coins += undo.coins().len();
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(coins, 10, "what the chain spends");
}
