//! What an index says, read back. What a node says of one is in `store::tests::node`.

use super::*;
use crate::index::{IndexEntry, IndexFlags, read_index, read_index_flags};
use crate::leveldb::Database;
use crate::obfuscation::Obfuscation;
use crate::store::BlockStore;
use crate::testing::{KEY, MAGIC, spends, synthetic_block};
use apus_storage::DirStorage;
use core::ops::ControlFlow;
use std::fs;
use std::path::Path;

/// Blocks of rising size, each on the one before it.
fn chain(count: u32) -> Vec<Vec<u8>> {
    let mut prev = BlockHash::ZERO;
    let mut blocks = Vec::new();
    for height in 0..count {
        let mut block = synthetic_block(height, 1 + height as usize % 3, height as usize % 90);
        block[4..36].copy_from_slice(&prev.0);
        // Times go back and forth.
        block[68..72].copy_from_slice(&(1_000_000 + (height ^ 3) * 600).to_le_bytes());
        prev = Header::parse(header(&block)).hash();
        blocks.push(block);
    }
    blocks
}

fn header(block: &[u8]) -> &[u8; 80] {
    block.first_chunk().unwrap()
}

fn tx_count(block: &[u8]) -> u32 {
    u32::from(block[80])
}

fn store(dir: &Path, blocks: &[Vec<u8>], first: u32, max: u64) -> BlockPositions {
    let (blocksdir, log) = (dir.join("blocks"), dir.join("positions"));
    let key = Obfuscation::new(KEY);
    let mut store = BlockStore::open_with(&blocksdir, &log, MAGIC, key, first..first, max).unwrap();
    for (height, block) in blocks.iter().enumerate().skip(first as usize) {
        let undo = vec![9; height % 40];
        store.append(block, tx_count(block), (height > 0).then(|| spends(&undo))).unwrap();
    }
    store.sync().unwrap();
    fs::create_dir(blocksdir.join("index")).unwrap();
    BlockPositions::open(&log).unwrap()
}

fn read(blocksdir: &Path) -> Vec<IndexEntry> {
    let mut entries = Vec::new();
    let visit = read_index(blocksdir, &mut |entry| {
        entries.push(entry);
        ControlFlow::Continue(())
    });
    visit.unwrap();
    entries.sort_by_key(|entry| entry.height);
    entries
}

/// Keys that begin with none of `b`, and their values.
fn others(blocksdir: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut others = Vec::new();
    let visit = Database::open(&blocksdir.join("index")).unwrap().for_each(&mut |key, value| {
        if key[0] != KEY_BLOCK {
            others.push((key.to_vec(), value.to_vec()));
        }
        Ok(ControlFlow::Continue(()))
    });
    visit.unwrap();
    others
}

#[test]
fn all_blocks_stand_in_it_with_their_places() {
    let dir = tempfile::tempdir().unwrap();
    let blocksdir = dir.path().join("blocks");
    // So many files that the order of their keys is not that of their numbers.
    let blocks = chain(1_100);
    let positions = store(dir.path(), &blocks, 0, 1_300);
    let folder = DirStorage::new(blocksdir.join("index"));
    write_block_index(&folder, 1_100, IndexedBlocks::All(&positions)).unwrap();
    let entries = read(&blocksdir);
    assert_eq!(entries.len(), 1_100);
    let mut expected: Vec<[u64; 7]> = Vec::new();
    for ((height, block), entry) in (0..).zip(&blocks).zip(entries) {
        let stored = positions.read(height).unwrap();
        let place = |offset| (stored.block.file, offset);
        let want = IndexEntry {
            hash: stored.hash(),
            header: *header(block),
            height,
            status: if height == 0 { 139 } else { 157 },
            tx_count: tx_count(block),
            data: Some(place(stored.block.offset)),
            undo: stored.undo.map(|undo| place(undo.offset)),
        };
        assert_eq!(entry, want);
        let time = u64::from(Header::parse(header(block)).time);
        let at = u64::from(height);
        if stored.block.file as usize == expected.len() {
            expected.push([0, 0, 0, at, at, time, time]);
        }
        let [count, size, undo_size, _, last, least, most] = expected.last_mut().unwrap();
        *count += 1;
        *size += block.len() as u64 + 8;
        *undo_size += stored.undo.map_or(0, |undo| u64::from(undo.size) + 40);
        *last = at;
        (*least, *most) = (time.min(*least), time.max(*most));
    }
    assert!(expected.len() > 256, "{}", expected.len());
    let mut expected: Vec<_> = (0i32..)
        .zip(expected)
        .map(|(number, info)| {
            let mut value = Vec::new();
            info.iter().for_each(|number| write_varint(&mut value, *number));
            ([&[KEY_FILE], &number.to_le_bytes()[..]].concat(), value)
        })
        .collect();
    let last = expected.len() as i32 - 1;
    expected.sort();
    expected.push((vec![KEY_LAST_FILE], last.to_le_bytes().to_vec()));
    assert_eq!(others(&blocksdir), expected);
    assert_eq!(read_index_flags(&blocksdir).unwrap(), IndexFlags::default());
}

#[test]
fn a_node_in_the_middle_of_a_reindex_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let index = DirStorage::new(dir.path().join("index"));
    fs::create_dir(index.folder()).unwrap();
    let mut writer = DatabaseWriter::new(&index, WriterOptions::default()).unwrap();
    for key in [&b"F\x07txindex"[..], b"R", b"b-and-never-looked-at"] {
        writer.put(key, b"1").unwrap();
    }
    writer.finish().unwrap();
    let flags = read_index_flags(dir.path()).unwrap();
    assert_eq!(flags, IndexFlags { pruned: false, reindexing: true });
}

#[test]
fn with_the_last_blocks_it_says_that_others_were_pruned() {
    let dir = tempfile::tempdir().unwrap();
    let blocksdir = dir.path().join("blocks");
    let blocks = chain(300);
    let positions = store(dir.path(), &blocks, 260, 100_000);
    let mut header_at = |height: u32| {
        let block = &blocks[height as usize];
        (*header(block), tx_count(block))
    };
    let folder = DirStorage::new(blocksdir.join("index"));
    let kept = IndexedBlocks::Last { positions: &positions, header_at: &mut header_at };
    write_block_index(&folder, 300, kept).unwrap();
    let entries = read(&blocksdir);
    assert_eq!(entries.len(), 300);
    let mut sizes = [0, 0];
    for ((height, block), entry) in (0..).zip(&blocks).zip(entries) {
        let stored = (height >= 260).then(|| positions.read(height).unwrap());
        let status = match height {
            0 => 131,
            1..260 => 133,
            _ => 157,
        };
        assert_eq!((entry.height, entry.status, entry.tx_count), (height, status, tx_count(block)));
        let places = stored.map(|stored| (stored.block.offset, stored.undo.unwrap().offset));
        assert_eq!(entry.header, *header(block));
        assert_eq!(entry.data, places.map(|(data, _)| (0, data)));
        assert_eq!(entry.undo, places.map(|(_, undo)| (0, undo)));
        if let Some(stored) = stored {
            sizes[0] += block.len() as u64 + 8;
            sizes[1] += u64::from(stored.undo.unwrap().size) + 40;
        }
    }
    let times = blocks[260..].iter().map(|block| u64::from(Header::parse(header(block)).time));
    let (least, most) = (times.clone().min().unwrap(), times.max().unwrap());
    let mut file = Vec::new();
    for number in [40, sizes[0], sizes[1], 260, 299, least, most] {
        write_varint(&mut file, number);
    }
    let flag = [b"F\x10", PRUNED].concat();
    let want = [(flag, b"1".to_vec()), (b"f\0\0\0\0".to_vec(), file), (b"l".to_vec(), vec![0; 4])];
    assert_eq!(others(&blocksdir), want);
    let flags = read_index_flags(&blocksdir).unwrap();
    assert_eq!(flags, IndexFlags { pruned: true, reindexing: false });
}

#[test]
fn what_is_no_chain_is_refused() {
    let mut blocks = chain(20);
    let dir = tempfile::tempdir().unwrap();
    let last = tempfile::tempdir().unwrap();
    let positions = store(last.path(), &blocks, 15, 100_000);
    let write = |blocks: &[Vec<u8>]| {
        let mut header_at = |height: u32| {
            let block = &blocks[height as usize];
            (*header(block), tx_count(block))
        };
        let folder = DirStorage::new(dir.path());
        let kept = IndexedBlocks::Last { positions: &positions, header_at: &mut header_at };
        write_block_index(&folder, 20, kept).unwrap_err()
    };
    blocks[12][80] = 0;
    assert!(matches!(write(&blocks), IndexWriteError::Transactions { height: 12 }));
    blocks[7][4] ^= 1;
    assert!(matches!(write(&blocks), IndexWriteError::Chain { height: 7 }));
    blocks[0][4] = 1;
    assert!(matches!(write(&blocks), IndexWriteError::Chain { height: 0 }));
    // Stored blocks that do not follow the others.
    let mut other = chain(20);
    other[14][68] ^= 1;
    assert!(matches!(write(&other), IndexWriteError::Chain { height: 15 }));
    // Nothing that could be taken for a database.
    assert!(!dir.path().join("CURRENT").exists());
    // Stored blocks that are no chain, and more than are there.
    let dir = tempfile::tempdir().unwrap();
    let positions = store(dir.path(), &blocks, 0, 100_000);
    let folder = DirStorage::new(dir.path().join("blocks/index"));
    let write =
        |count| write_block_index(&folder, count, IndexedBlocks::All(&positions)).unwrap_err();
    assert!(matches!(write(20), IndexWriteError::Chain { height: 0 }));
    assert!(matches!(write(21), IndexWriteError::Positions(_)));
}
