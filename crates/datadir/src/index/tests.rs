//! Reads a real node's index, and checks that reading leaves no trace.

use super::*;
use crate::files::BlockFiles;
use crate::leveldb::{DatabaseWriter, WriterOptions};
use crate::tests::{fixtures, index_entries};
use apus_chain::{Header, Network, write_varint};
use apus_storage::DirStorage;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

fn blocksdir() -> PathBuf {
    fixtures().join("regtest-315/regtest/blocks")
}

#[test]
fn the_index_of_a_node_locates_every_block() {
    let mut entries = index_entries(&blocksdir());
    entries.sort_by_key(|entry| entry.height);
    assert_eq!(entries.len(), 316);
    let files = BlockFiles::open(blocksdir(), Network::Regtest.magic()).unwrap();
    let mut scanned = BTreeMap::new();
    files
        .scan(&mut |header, location| {
            scanned.insert(*header, location);
            ControlFlow::Continue(())
        })
        .unwrap();
    for (height, entry) in (0..).zip(&entries) {
        assert_eq!(entry.height, height);
        if height > 0 {
            let parent = &entries[height as usize - 1];
            assert_eq!(entry.header[4..36], parent.hash.0);
        }
        let (file, offset) = entry.data.unwrap();
        assert_eq!(files.locate(file, offset).unwrap(), Some(scanned[&entry.header]));
        assert!(entry.tx_count > 0 && entry.status & STATUS_FAILED == 0);
        // The genesis block has no undo data.
        assert_eq!(entry.undo.is_some(), height > 0);
    }
    let tip = "38bf44cc63d060418252a96a0d3f5385d143770db29209d49cceb483193e872f";
    assert_eq!(entries[315].hash.to_string(), tip);
}

/// Besides its blocks, a node's index describes the content of each file.
#[test]
fn file_records_are_read() {
    let mut of_entries = FileInfo::default();
    let rest = read_whole_index(&blocksdir(), &mut |entry| {
        of_entries.add(entry.height, Header::parse(&entry.header).time);
    })
    .unwrap();
    assert_eq!((rest.last_file, rest.flags), (Some(0), IndexFlags::default()));
    let [(0, Some(info))] = rest.files.into_iter().collect::<Vec<_>>()[..] else {
        panic!("a file")
    };
    assert_eq!(FileInfo { size: 0, undo_size: 0, ..info }, of_entries);
    assert_eq!((info.blocks, info.height_last), (316, 315));
    let files = BlockFiles::open(blocksdir(), Network::Regtest.magic()).unwrap();
    assert!((1..=files.bytes_total()).contains(&info.size), "{info:?}");
    // The index has a record that a node could not read.
    let mut rest = IndexRest::default();
    rest.take(b"f\x07\0\0\0", b"\x01");
    rest.take(b"f\xff\xff\xff\xff", b"\x01");
    rest.take(b"l", &[9, 0, 0, 0]);
    assert_eq!((rest.files.len(), rest.files[&7], rest.last_file), (1, None, Some(9)));
}

#[test]
fn the_visitor_can_stop() {
    let mut count = 0;
    read_index(&blocksdir(), &mut |_| {
        count += 1;
        if count == 10 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap();
    assert_eq!(count, 10);
}

/// The names, contents and times of a folder's files, and the folder's own time.
fn state(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    let changed = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let mut state = BTreeMap::from([(dir.to_owned(), (Vec::new(), changed(dir)))]);
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        state.insert(path.clone(), (fs::read(&path).unwrap(), changed(&path)));
    }
    state
}

#[test]
fn reading_changes_nothing_and_needs_no_lock_or_write_permission() {
    let dir = tempfile::tempdir().unwrap();
    let index = dir.path().join("index");
    fs::create_dir(&index).unwrap();
    for entry in fs::read_dir(blocksdir().join("index")).unwrap() {
        let entry = entry.unwrap();
        let to = index.join(entry.file_name());
        fs::write(&to, fs::read(entry.path()).unwrap()).unwrap();
        let mut rights = fs::metadata(&to).unwrap().permissions();
        rights.set_readonly(true);
        fs::set_permissions(&to, rights).unwrap();
    }
    // Hold the lock, like a running node.
    let lock = fs::File::open(index.join("LOCK")).unwrap();
    lock.lock().unwrap();
    let mut rights = fs::metadata(&index).unwrap().permissions();
    rights.set_readonly(true);
    fs::set_permissions(&index, rights.clone()).unwrap();
    let before = state(&index);
    assert_eq!(index_entries(dir.path()), index_entries(&blocksdir()));
    assert_eq!(state(&index), before);
    // Restore the permissions, so that the folder can be removed.
    std::os::unix::fs::PermissionsExt::set_mode(&mut rights, 0o700);
    fs::set_permissions(&index, rights).unwrap();
}

#[test]
fn a_missing_index_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let error = read_index(dir.path(), &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, IndexError::Missing { .. }), "{error}");
}

#[test]
fn an_entrys_status_determines_its_fields() {
    let encode = |numbers: &[u64], header: usize| {
        let mut out = Vec::new();
        numbers.iter().for_each(|number| write_varint(&mut out, *number));
        out.resize(out.len() + header, 7);
        out
    };
    let read = |numbers: &[u64]| parse(BlockHash::ZERO, &encode(numbers, 80));
    let headers_only = read(&[259_900, 5, 2, 0]).unwrap();
    assert_eq!((headers_only.data, headers_only.undo), (None, None));
    let data = read(&[259_900, 5, 3 | 8, 1, 4, 1_000]).unwrap();
    assert_eq!((data.data, data.undo), (Some((4, 1_000)), None));
    let undo = read(&[259_900, 5, 3 | 16, 1, 4, 2_000]).unwrap();
    assert_eq!((undo.data, undo.undo), (None, Some((4, 2_000))));
    let both = read(&[259_900, 5, 157, 1, 4, 1_000, 2_000]).unwrap();
    assert_eq!((both.data, both.undo), (Some((4, 1_000)), Some((4, 2_000))));
    assert!(read(&[259_900, 5, 157, 1, 4, 1_000, 2_000, 1]).is_err());
    assert!(read(&[259_900, 1 << 31, 2, 0]).is_err());
    for header in [0, 79, 81] {
        assert!(parse(BlockHash::ZERO, &encode(&[259_900, 5, 2, 0], header)).is_err());
    }
}

/// Bitcoin Knots has longer headers since its own proof of work, with bit 31 of the version set.
#[test]
fn longer_headers_are_recognized() {
    let entry = |last_of_version: u8, more: usize| {
        let mut out = Vec::new();
        [259_900, 5, 2, 0].iter().for_each(|number| write_varint(&mut out, *number));
        out.extend([0, 0, 0, last_of_version]);
        out.resize(out.len() + 76 + more, 7);
        parse(BlockHash([3; 32]), &out)
    };
    let long = entry(0xa0, 84).unwrap();
    assert_eq!((long.hash, long.height), (BlockHash([3; 32]), 5));
    assert!(Header::parse(&long.header).is_extended());
    assert!(entry(0xa0, 0).is_ok());
    for (last, more) in [(0x20, 84), (0xa0, 83), (0xa0, 85)] {
        entry(last, more).unwrap_err();
    }
}

#[test]
fn an_unfinished_reindex_is_detected() {
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
fn file_records_round_trip_and_grow() {
    let mut info = FileInfo { size: u64::from(u32::MAX), undo_size: 7, ..FileInfo::default() };
    for (height, time) in [(9, 50), (7, 60), (12, 40)] {
        info.add(height, time);
    }
    let edges = (info.height_first, info.height_last, info.time_first, info.time_last);
    assert_eq!((info.blocks, edges), (3, (7, 12, 40, 60)));
    let mut bytes = Vec::new();
    info.write(&mut bytes);
    assert_eq!(FileInfo::read(&bytes), Some(info));
    assert_eq!(FileInfo::read(&bytes[..bytes.len() - 1]), None);
    bytes.push(0);
    assert_eq!(FileInfo::read(&bytes), Some(info));
    let mut wide = Vec::new();
    [1, 1 << 32, 0, 0, 0, 0, 0].iter().for_each(|number| write_varint(&mut wide, *number));
    assert_eq!(FileInfo::read(&wide), None);
}
