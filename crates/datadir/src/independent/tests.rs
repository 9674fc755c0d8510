//! Reads folders that LevelDB wrote, and valid ones of every shape, in both ways, and compares with LevelDB.

use super::*;
use apus_testkit::effort::rounds;
use apus_testkit::leveldb::{LevelDbFolder, Oracle, Write};
use apus_testkit::rng::Rng;
use std::collections::BTreeMap;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn all(dir: &Path) -> Model {
    let (mut entries, mut all) = (DatabaseEntries::open(dir).unwrap(), Model::new());
    while let Some((key, value)) = entries.next().unwrap() {
        let before = all.insert(key.to_vec(), value.to_vec());
        assert!(before.is_none() && all.last_key_value().unwrap().0 == key, "{key:02x?}");
    }
    all
}

/// The existing keys and their values.
fn looked_up<'k>(dir: &Path, keys: impl Iterator<Item = &'k Vec<u8>>) -> Model {
    let mut database = DatabaseLookUps::open(dir).unwrap();
    let found = keys.filter_map(|key| Some((key.clone(), database.get(key).unwrap()?)));
    found.collect()
}

fn writes(rng: &mut Rng) -> Vec<Write> {
    let (count, keys) = (1 + rng.index(60), 1 + rng.below(30));
    let write = |_| {
        let key = format!("key {:05}", rng.below(keys));
        let length = if rng.one_in(60) { 33_000 } else { rng.index(700) };
        (key.into_bytes(), (!rng.one_in(4)).then(|| rng.bytes(length)))
    };
    (0..count).map(write).collect()
}

/// Also with logs that a crash cut off.
#[test]
fn valid_folders_are_read_correctly() {
    for seed in 0..rounds(200, 10_000) {
        let mut rng = Rng::new(seed);
        let writes = writes(&mut rng);
        let folder = LevelDbFolder::new(&writes, &[], &mut rng);
        let dir = tempfile::tempdir().unwrap();
        folder.write(dir.path());
        assert!(all(dir.path()) == *folder.contents(), "seed {seed}");
        let keys = writes.iter().map(|(key, _)| key);
        assert!(looked_up(dir.path(), keys) == *folder.contents(), "seed {seed}");
    }
}

#[test]
fn folders_of_leveldb_are_read_as_leveldb_reads_them() {
    let mut oracle = Oracle::start();
    for seed in 0..rounds(5, 200) {
        let dir = tempfile::tempdir().unwrap();
        oracle.make(dir.path(), seed);
        // Read the folder before and after LevelDB opens it again, which moves its logs into tables.
        let found = all(dir.path());
        assert!(!found.is_empty(), "seed {seed}");
        assert!(looked_up(dir.path(), found.keys()) == found, "seed {seed}");
        assert!(oracle.ask(dir.path(), &[]).iterated == found, "seed {seed}");
        assert!(all(dir.path()) == found, "seed {seed}");
        assert!(looked_up(dir.path(), found.keys()) == found, "seed {seed}");
        let absent = found.keys().map(|key| [&key[..], b"!"].concat()).collect::<Vec<_>>();
        let absent: Vec<_> = absent.into_iter().filter(|key| !found.contains_key(key)).collect();
        assert_eq!(looked_up(dir.path(), absent.iter()).len(), 0, "seed {seed}");
    }
}

#[test]
fn varints_end_where_they_should() {
    let number = |bytes: &[u8]| {
        let mut bytes = ByteCursor(bytes);
        bytes.varint().map(|number| (number, bytes.0.len()))
    };
    assert_eq!(number(&[0x7f, 9]), Some((127, 1)));
    assert_eq!(number(&[0x80, 0x01]), Some((128, 0)));
    assert_eq!(
        number(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
        Some((u64::MAX, 0))
    );
    assert_eq!(number(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]), None);
    assert_eq!(number(&[0x80; 11]), None);
    assert_eq!(number(&[0x80]), None);
    assert_eq!(ByteCursor(&[3, 1, 2]).string(), None);
    assert_eq!(ByteCursor(&[1, 2, 3, 4]).four(), Some(0x0403_0201));
}

/// RFC 3720, B.4: the CRC of 32 bytes of zeros is 0x8a9136aa.
#[test]
fn the_checksum_is_masked() {
    assert_eq!(stored_sum([&[0; 30], &[0; 2]]), 0x6d55_1522_u32.wrapping_add(0xa282_ead8));
}
