//! Compares our reader with another implementation of LevelDB, and damages databases.

use super::*;
use proptest::prelude::*;
use rusty_leveldb::{DB, Options};
use std::collections::BTreeMap;
use std::fs;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn read(dir: &Path) -> Result<Model, IndexError> {
    let (mut all, mut last) = (Model::new(), None::<Vec<u8>>);
    Database::open(dir)?.for_each(&mut |key, value| {
        assert!(last.as_deref().is_none_or(|last| last < key), "keys come once and in order");
        last = Some(key.to_vec());
        all.insert(key.to_vec(), value.to_vec());
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(all)
}

/// Small buffers, so that few writes make many tables on several levels.
fn options() -> Options {
    Options {
        compressor: 0,
        write_buffer_size: 4_000,
        max_file_size: 4_000,
        block_size: 300,
        ..Options::default()
    }
}

/// A list of puts and deletions (`None`), in order.
fn write(dir: &Path, writes: &[(u16, Option<usize>)], model: &mut Model) {
    let mut db = DB::open(dir, options()).unwrap();
    for (number, (key, length)) in writes.iter().enumerate() {
        let key = format!("b{key:05}").into_bytes();
        match length {
            Some(length) => {
                let value = vec![number as u8; *length];
                db.put(&key, &value).unwrap();
                model.insert(key, value);
            }
            None => {
                db.delete(&key).unwrap();
                model.remove(&key);
            }
        }
    }
    db.close().unwrap();
}

fn writes() -> impl Strategy<Value = Vec<(u16, Option<usize>)>> {
    let length = proptest::option::weighted(0.8, 0usize..200);
    proptest::collection::vec((0u16..150, length), 0..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn written_entries_are_read(rounds in proptest::collection::vec(writes(), 1..4)) {
        let dir = tempfile::tempdir().unwrap();
        let mut model = Model::new();
        for writes in &rounds {
            write(dir.path(), writes, &mut model);
            prop_assert_eq!(&read(dir.path()).unwrap(), &model);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damage_gives_an_error_or_nothing_new(
        file in any::<proptest::sample::Index>(),
        at in any::<proptest::sample::Index>(),
        with: u8,
        cut in any::<bool>(),
    ) {
        let from = crate::tests::fixtures().join("regtest-315/regtest/blocks/index");
        let good = read(&from).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut names = Vec::new();
        for entry in fs::read_dir(&from).unwrap() {
            let entry = entry.unwrap();
            fs::write(dir.path().join(entry.file_name()), fs::read(entry.path()).unwrap()).unwrap();
            names.push(entry.file_name());
        }
        names.sort();
        let path = dir.path().join(file.get(&names));
        let mut bytes = fs::read(&path).unwrap();
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            if cut { bytes.truncate(at) } else { bytes[at] = with }
        }
        fs::write(&path, bytes).unwrap();
        // A log or manifest that was cut off may lack entries or have old ones, as after a crash. A damaged
        // table never gives a wrong answer.
        if let Ok(found) = read(dir.path()) {
            let is_table = path.extension().is_some_and(|ending| ending == "ldb");
            prop_assert!(found == good || !is_table);
            prop_assert!(found.keys().all(|key| good.contains_key(key)));
        }
    }

    #[test]
    fn random_files_are_survived(
        manifest in proptest::collection::vec(any::<u8>(), 0..200),
        log in proptest::collection::vec(0u8..6, 0..200),
    ) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("CURRENT"), "MANIFEST-000001\n").unwrap();
        fs::write(dir.path().join("000001.log"), log).unwrap();
        fs::write(dir.path().join("MANIFEST-000001"), manifest).unwrap();
        prop_assert!(read(dir.path()).is_err());
    }
}

#[test]
fn numbers_have_at_most_64_bits() {
    let read = |bytes: &[u8]| varint(&mut Reader::new(bytes));
    assert_eq!(read(&[0x7f]), Some(127));
    assert_eq!(read(&[0xac, 0x02]), Some(300));
    let mut greatest = [0xff; 10];
    greatest[9] = 1;
    assert_eq!(read(&greatest), Some(u64::MAX));
    greatest[9] = 2;
    assert_eq!(read(&greatest), None);
    assert_eq!(read(&[0x80; 11]), None);
    assert_eq!(read(&[0x80]), None);
}

#[test]
fn a_missing_file_is_named() {
    let from = crate::tests::fixtures().join("regtest-315/regtest/blocks/index");
    let dir = tempfile::tempdir().unwrap();
    let copy = |without: &str| {
        for entry in fs::read_dir(&from).unwrap() {
            let entry = entry.unwrap();
            let to = dir.path().join(entry.file_name());
            fs::write(&to, fs::read(entry.path()).unwrap()).unwrap();
            if entry.file_name() == without {
                fs::remove_file(to).unwrap();
            }
        }
        read(dir.path())
    };
    assert!(matches!(copy("CURRENT"), Err(IndexError::Missing { .. })));
    for name in ["MANIFEST-000010", "000005.ldb"] {
        let error = copy(name).unwrap_err();
        assert!(matches!(&error, IndexError::Vanished { path } if path.ends_with(name)), "{error}");
    }
    fs::write(dir.path().join("CURRENT"), "../MANIFEST-000010\n").unwrap();
    assert!(matches!(read(dir.path()), Err(IndexError::Corrupt { .. })));
}

#[test]
fn the_error_names_compressed_tables() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { compressor: 1, ..options() };
    let mut db = DB::open(dir.path(), options).unwrap();
    for key in 0..400u32 {
        db.put(&key.to_be_bytes(), &[7; 100]).unwrap();
    }
    db.close().unwrap();
    drop(db);
    let error = read(dir.path()).unwrap_err();
    assert!(error.to_string().contains("compressed"), "{error}");
}

#[test]
fn checksums_match_known_values() {
    // The mask is a bijection: undo it to compare with the plain checksums.
    let crc = |bytes: &[u8]| masked_crc32c(bytes, b"").wrapping_sub(0xa282_ead8).rotate_left(15);
    // RFC 3720, appendix B.4.
    assert_eq!(crc(&[0; 32]), 0x8a91_36aa);
    assert_eq!(crc(&[0xff; 32]), 0x62a8_ab43);
    assert_eq!(crc(b"123456789"), 0xe306_9283);
    assert_eq!(masked_crc32c(b"12345", b"6789"), masked_crc32c(b"123456789", b""));
}
