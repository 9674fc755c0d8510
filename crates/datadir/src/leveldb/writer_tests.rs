//! Our own reader and another implementation read the databases back; also tests crashes and errors.

use super::block_writer::NumberedKey;
use super::writer::{DatabaseSize, DatabaseWriter, WriterOptions, level_of};
use super::{Database, DatabaseError};
use crate::files::Obfuscation;
use apus_storage::{DirStorage, Storage};
use apus_testkit::storage::{CrashStorage, FaultStorage, Operation};
use core::ops::ControlFlow;
use proptest::prelude::*;
use rusty_leveldb::{DB, LdbIterator, Options};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Makes many blocks and tables from few entries.
const SMALL: WriterOptions = WriterOptions { table_bytes: 2000, block_bytes: 200, filters: true };

fn write(
    folder: &dyn Storage,
    options: WriterOptions,
    model: &Model,
) -> Result<DatabaseSize, DatabaseError> {
    let mut writer = DatabaseWriter::new(folder, options)?;
    for (key, value) in model {
        writer.put(key, value)?;
    }
    writer.finish()
}

fn read(dir: &Path) -> Model {
    let mut all = Model::new();
    let visit = &mut |key: &[u8], value: &[u8]| {
        all.insert(key.to_vec(), value.to_vec());
        Ok(ControlFlow::Continue(()))
    };
    Database::open(dir).unwrap().for_each(visit).unwrap();
    all
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect()
}

fn other(dir: &Path) -> DB {
    DB::open(dir, Options { create_if_missing: false, ..Options::default() }).unwrap()
}

fn read_by_other(db: &mut DB) -> Model {
    let (mut all, mut iterator) = (Model::new(), db.new_iter().unwrap());
    while iterator.advance() {
        let (key, value) = iterator.current().unwrap();
        all.insert(key.to_vec(), value.to_vec());
    }
    all
}

/// Writes a database, reads it in all ways, and returns the size.
fn round_trip(options: WriterOptions, model: &Model) -> DatabaseSize {
    let dir = tempfile::tempdir().unwrap();
    let size = write(&DirStorage::new(dir.path()), options, model).unwrap();
    let found = files(dir.path());
    assert_eq!(size.bytes, found.values().map(|bytes| bytes.len() as u64).sum::<u64>());
    assert_eq!(size.tables as usize + 2, found.len());
    assert!(&read(dir.path()) == model);

    let mut db = other(dir.path());
    // If there were anything to merge, opening it would have written other tables.
    let tables = |files: BTreeMap<String, Vec<u8>>| {
        files.into_iter().filter(|(name, _)| name.ends_with(".ldb")).collect::<BTreeMap<_, _>>()
    };
    assert!(tables(files(dir.path())) == tables(found));
    assert!(&read_by_other(&mut db) == model);
    for (key, value) in model {
        assert_eq!(db.get(key).as_deref(), Some(&value[..]), "{key:02x?}");
        for absent in [[&key[..], &[0]].concat(), [&key[..], &[0xff, 7]].concat()] {
            assert_eq!(db.get(&absent).as_deref(), model.get(&absent).map(|value| &value[..]));
        }
        let mut before = key.clone();
        if before.pop().is_some() {
            assert_eq!(db.get(&before).as_deref(), model.get(&before).map(|value| &value[..]));
        }
    }
    size
}

fn byte_strings(length: usize) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(0u8), Just(1), Just(0x7f), Just(0xfe), Just(0xff), any::<u8>()];
    proptest::collection::vec(byte, 0..length)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn written_entries_are_read(
        model in proptest::collection::btree_map(byte_strings(9), byte_strings(90), 0..200),
    ) {
        round_trip(SMALL, &model);
    }

    #[test]
    fn options_do_not_matter(
        model in proptest::collection::btree_map(byte_strings(40), byte_strings(500), 0..60),
        table_bytes in 1u64..5000,
        block_bytes in 1usize..6000,
        filters: bool,
    ) {
        round_trip(WriterOptions { table_bytes, block_bytes, filters }, &model);
    }
}

fn model(entries: &[(&[u8], usize)]) -> Model {
    entries.iter().map(|(key, length)| (key.to_vec(), vec![7; *length])).collect()
}

#[test]
fn sizes_at_the_limits_round_trip() {
    assert_eq!(round_trip(SMALL, &model(&[])).tables, 0);
    assert_eq!(round_trip(SMALL, &model(&[(b"", 0)])).tables, 1);
    assert_eq!(round_trip(WriterOptions::default(), &model(&[(b"k", 3_000_000)])).tables, 1);
    // Value lengths of one, two and three bytes; a value larger than a table.
    round_trip(SMALL, &model(&[(b"a", 127), (b"b", 128), (b"c", 16_383), (b"d", 16_384)]));
    // The block that fills a table ends with its last entry, so no block remains.
    let full = model(&[(b"a", 2000), (b"b", 2000), (b"c", 1)]);
    assert_eq!(round_trip(SMALL, &full).tables, 3);
    assert_eq!(round_trip(SMALL, &model(&[(b"a", 2000), (b"b", 2000)])).tables, 2);
    // Keys of 0xff have no short successor.
    round_trip(SMALL, &model(&[(&[0xff], 300), (&[0xff; 2], 300), (&[0xff; 30], 3000)]));
}

/// Writes more bytes than a piece of the pipe and than its backlog, in more than one table.
#[test]
fn many_pieces_arrive_in_order() {
    let many: Model =
        (0u32..60_000).map(|n| (n.to_be_bytes().to_vec(), vec![n as u8; 200])).collect();
    let dir = tempfile::tempdir().unwrap();
    let options = WriterOptions { table_bytes: 5 << 20, ..WriterOptions::default() };
    let size = write(&DirStorage::new(dir.path()), options, &many).unwrap();
    assert_eq!(size.tables, 3);
    assert!(read(dir.path()) == many && read_by_other(&mut other(dir.path())) == many);
}

#[test]
fn the_level_has_room_for_all_tables() {
    const MIB: u64 = 1 << 20;
    for (bytes, level) in [
        (0, 1),
        (10 * MIB - 1, 1),
        (10 * MIB, 2),
        (100 * MIB, 3),
        (12_000 * MIB, 5),
        (100_000 * MIB, 6),
        (u64::MAX, 6),
    ] {
        assert_eq!(level_of(bytes), level, "{bytes}");
    }
}

#[test]
fn keys_must_ascend() {
    for (first, second) in [(&b"b"[..], &b"b"[..]), (b"b", b"a"), (b"bb", b"b"), (b"", b"")] {
        let dir = tempfile::tempdir().unwrap();
        let folder = DirStorage::new(dir.path());
        let mut writer = DatabaseWriter::new(&folder, SMALL).unwrap();
        writer.put(first, b"").unwrap();
        let error = writer.put(second, b"").unwrap_err();
        assert!(matches!(error, DatabaseError::Entry { .. }), "{error}");
        // If a writer accepted more entries after a refused one, they would hide the gap.
        assert!(matches!(writer.put(b"z", b"").unwrap_err(), DatabaseError::Failed { .. }));
        assert!(matches!(writer.finish().unwrap_err(), DatabaseError::Failed { .. }));
        assert!(!dir.path().join("CURRENT").exists());
    }
}

#[test]
fn impossible_entries_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let folder = DirStorage::new(dir.path());
    round_trip(SMALL, &model(&[(&[7; 63], 3), (&[7; 64], 3), (&[8; 64], 300)]));
    let mut writer = DatabaseWriter::new(&folder, SMALL).unwrap();
    let error = writer.put(&[7; 65], b"").unwrap_err();
    assert!(error.to_string().contains("far larger"), "{error}");
    assert!(matches!(writer.finish().unwrap_err(), DatabaseError::Failed { .. }));
}

/// Numbered keys: hashes with common beginnings, numbers of one byte or more, values of any length.
fn numbered() -> impl Strategy<Value = BTreeMap<Vec<u8>, ([u8; 32], u32, Vec<u8>)>> {
    let beginning = proptest::collection::vec(0u8..2, 10);
    let hash = (beginning, 0usize..=10, any::<[u8; 32]>()).prop_map(|(few, count, mut hash)| {
        hash[..count].copy_from_slice(&few[..count]);
        hash
    });
    let number = prop_oneof![0u32..4, 0x7e..0x82u32, 0x407f..0x4082u32, any::<u32>()];
    let numbers = proptest::collection::vec((number, byte_strings(70)), 1..6);
    proptest::collection::vec((hash, numbers), 0..60).prop_map(|all| {
        let each = |(hash, numbers): ([u8; 32], Vec<(u32, Vec<u8>)>)| {
            numbers.into_iter().map(move |(number, value)| {
                let mut key = [&[b'C'][..], &hash].concat();
                apus_chain::write_varint(&mut key, number.into());
                (key, (hash, number, value))
            })
        };
        all.into_iter().flat_map(each).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn numbered_entries_equal_entries_with_keys(all in numbered(), mask: [u8; 8], large: bool) {
        let mask = Obfuscation::new(mask);
        let options = if large { WriterOptions::default() } else { SMALL };
        let (numbered, plain) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = DirStorage::new(numbered.path());
        let mut writer = DatabaseWriter::new(&folder, options).unwrap();
        for (hash, number, value) in all.values() {
            let key = NumberedKey { kind: b'C', hash, number: *number };
            writer.put_numbered(key, value, mask).unwrap();
        }
        writer.finish().unwrap();
        let folder = DirStorage::new(plain.path());
        let mut writer = DatabaseWriter::new(&folder, options).unwrap();
        for (key, (.., value)) in &all {
            writer.put_obfuscated(key, value, mask).unwrap();
        }
        writer.finish().unwrap();
        prop_assert!(files(numbered.path()) == files(plain.path()));
        let hidden = all.into_iter().map(|(key, (.., mut value))| {
            mask.apply(&mut value, 0);
            (key, value)
        });
        prop_assert!(read(numbered.path()) == hidden.collect::<Model>());
    }

    #[test]
    fn numbered_keys_must_ascend(all in numbered(), again in any::<proptest::sample::Index>()) {
        prop_assume!(!all.is_empty());
        let all: Vec<_> = all.into_values().collect();
        let dir = tempfile::tempdir().unwrap();
        let folder = DirStorage::new(dir.path());
        let mut writer = DatabaseWriter::new(&folder, SMALL).unwrap();
        let mut put = |(hash, number, value): &([u8; 32], u32, Vec<u8>)| {
            let key = NumberedKey { kind: b'C', hash, number: *number };
            writer.put_numbered(key, value, Obfuscation::NONE)
        };
        all.iter().try_for_each(&mut put).unwrap();
        let error = put(&all[again.index(all.len())]).unwrap_err();
        prop_assert!(error.to_string().contains("keys must ascend"), "{error}");
        let failed = |error| matches!(error, DatabaseError::Failed { .. });
        prop_assert!(failed(put(&all[0]).unwrap_err()));
        prop_assert!(failed(writer.finish().unwrap_err()));
        prop_assert!(!dir.path().join("CURRENT").exists());
    }
}

fn thirty() -> Model {
    (0u8..30).map(|n| (vec![n], vec![n; 300])).collect()
}

/// Counts the storage calls for writing [`thirty`].
fn calls() -> u64 {
    let whole = FaultStorage::new(CrashStorage::new());
    write(&whole, SMALL, &thirty()).unwrap();
    whole.calls()
}

/// A disk, and a storage for it that fails every call from the nth on.
fn full_from(n: u64) -> (CrashStorage, FaultStorage) {
    let disk = CrashStorage::new();
    let folder = FaultStorage::new(disk.clone());
    folder.fail_from(Operation::Any, n, std::io::ErrorKind::StorageFull);
    (disk, folder)
}

#[test]
fn a_crash_leaves_the_whole_database_or_none() {
    let calls = calls();
    let mut complete = 0;
    for n in 0..=calls {
        let (disk, folder) = full_from(n);
        let written = write(&folder, SMALL, &thirty());
        assert_eq!(written.is_ok(), n == calls);
        for seed in 0..20 {
            let dir = tempfile::tempdir().unwrap();
            for (name, bytes) in disk.crash_image(seed).live_files() {
                std::fs::write(dir.path().join(name), bytes).unwrap();
            }
            if dir.path().join("CURRENT").exists() {
                assert!(read(dir.path()) == thirty(), "{n} {seed}");
                complete += 1;
            } else {
                assert!(written.is_err(), "{n} {seed}");
            }
        }
    }
    // The database is always complete if all calls succeeded, and sometimes if one after the rename failed.
    assert!(complete > 20, "{complete}");
}

#[test]
fn an_error_names_its_file() {
    for n in 0..calls() {
        let error = write(&full_from(n).1, SMALL, &thirty()).unwrap_err().to_string();
        // The message names the operation, the file and the reason.
        let (what, why) = error.split_once(": ").unwrap();
        assert!(what.starts_with("cannot ") && why.contains(" made to fail"), "{error}");
        let calls = [
            ("cannot create ", "Create"),
            ("cannot write ", "Write"),
            ("cannot rename ", "Rename"),
            ("cannot sync ", "Sync"),
        ];
        let known = calls.iter().any(|(said, call)| what.starts_with(said) && why.contains(call));
        assert!(known, "{error}");
    }
}

#[test]
fn a_writer_that_is_dropped_leaves_no_database() {
    let dir = tempfile::tempdir().unwrap();
    let folder = DirStorage::new(dir.path());
    let mut writer = DatabaseWriter::new(&folder, SMALL).unwrap();
    for (key, value) in thirty() {
        writer.put(&key, &value).unwrap();
    }
    drop(writer);
    assert!(!dir.path().join("CURRENT").exists());
    // Its leftovers do not affect the next writer.
    write(&folder, SMALL, &model(&[(b"k", 9)])).unwrap();
    assert!(read(dir.path()) == model(&[(b"k", 9)]));
    assert!(read_by_other(&mut other(dir.path())) == model(&[(b"k", 9)]));
}
