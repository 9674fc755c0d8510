//! Crashes while a table gets its name: the old table or the new one is there, whole, and never with the facts of the
//! other. The next run completes the table.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![cfg(all(feature = "parquet", feature = "sqlite"))]

use apus_chain::{CoinRef, HashSerialized3, Network, OutPoint, Txid};
use apus_sync::{ErrorKind, SyncError};
use apus_tables::{Table, TableColumns, TableFacts, TableFormat, TablePlace};
use apus_testkit::storage::{AfterCrash, MirrorStorage};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const NAME: &str = "utxos";
const FACTS: &str = "utxos.json";

type Files = BTreeMap<String, Vec<u8>>;

/// Writes a table of some coins.
fn write(place: &TablePlace, coins: u64) -> Result<(), SyncError> {
    let mut table = Table::create(place, Network::Main)?;
    for number in 0..coins {
        let outpoint = OutPoint { txid: Txid([number as u8; 32]), vout: 0 };
        table.put(&outpoint, CoinRef { height: 1, coinbase: false, amount: 7, script: &[0x51] })?;
    }
    let facts = TableFacts {
        network: Network::Main,
        block: Default::default(),
        height: 1,
        coins,
        total: 7 * coins,
        hash_serialized_3: HashSerialized3::new().finish(),
    };
    table.finish(&facts, &AtomicBool::new(false))?;
    table.publish()
}

fn place(folder: &Path, format: TableFormat, replace: bool) -> TablePlace {
    let place = TablePlace::new(&folder.join(NAME), format, TableColumns::default()).unwrap();
    place.replacing(replace)
}

fn put(folder: &Path, files: &Files) {
    files.iter().for_each(|(name, bytes)| fs::write(folder.join(name), bytes).unwrap());
}

fn read(folder: &Path) -> Files {
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (name(&path), fs::read(&path).unwrap())).collect()
}

/// The files of a table of some coins.
fn table(format: TableFormat, coins: u64) -> Files {
    let folder = tempfile::tempdir().unwrap();
    write(&place(folder.path(), format, false), coins).unwrap();
    read(folder.path())
}

/// Expects the table and facts of one of two sets, or no table.
fn expect_whole(image: &Files, old: &Files, new: &Files) {
    let (found, facts) = (image.get(NAME), image.get(FACTS));
    assert!(found == new.get(NAME) || found == old.get(NAME));
    match facts {
        // Facts without a table are new, if there was no old one.
        Some(_) if found.is_none() => assert!(old.is_empty() && facts == new.get(FACTS)),
        Some(_) if found == new.get(NAME) => assert!(facts == new.get(FACTS)),
        Some(_) => assert!(facts == old.get(FACTS)),
        None => {}
    }
}

#[test]
fn a_table_survives_a_crash_at_each_sync_point() {
    for (format, replace) in TableFormat::ALL.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let (new, grown) = (table(format, 5), table(format, 6));
        let old = if replace { table(format, 3) } else { Files::new() };
        let mut points = 0;
        for after in [AfterCrash::Fail, AfterCrash::Unnoticed] {
            for point in 0.. {
                let folder = tempfile::tempdir().unwrap();
                put(folder.path(), &old);
                let storage = Arc::new(MirrorStorage::new(folder.path()));
                storage.disk().crash_at(point, after);
                let place = place(folder.path(), format, replace);
                let written = write(&place.in_storage(storage.clone()), 5);
                assert!(written.is_ok() || storage.disk().crashed());
                if !storage.disk().crashed() {
                    assert!(storage.disk().durable_image().live_files() == new);
                    break;
                }
                points += 1;
                for seed in 0..6 {
                    let image = storage.disk().crash_image(seed).live_files();
                    expect_whole(&image, &old, &new);
                    next_run(&image, format, replace, [&new, &grown]);
                }
            }
        }
        assert!(points >= 4, "{format}: {points}");
    }
}

/// The next run ends right, also with a set that has grown.
fn next_run(image: &Files, format: TableFormat, replace: bool, sets: [&Files; 2]) {
    let has_table = image.contains_key(NAME);
    for (coins, expected) in (5..).zip(sets) {
        // Without `replace`, a whole table stays.
        if coins == 6 && has_table && !replace {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        put(folder.path(), image);
        let place = place(folder.path(), format, replace);
        assert_eq!(place.left_facts().is_some(), !has_table && image.contains_key(FACTS));
        write(&place, coins).unwrap();
        assert!(read(folder.path()) == *expected, "{format}");
    }
}

/// Facts that another program or user wrote stay, also beside a table that is to be replaced.
#[test]
fn facts_of_others_stay() {
    for (old, replace) in [(0, false), (0, true), (2, true)] {
        let folder = tempfile::tempdir().unwrap();
        let place = place(folder.path(), TableFormat::Csv, replace);
        let mut files = if old == 0 { Files::new() } else { table(TableFormat::Csv, old) };
        for other in ["another", "{}", "{\"program\": \"apus 1\"}", "[1]"] {
            files.insert(FACTS.to_owned(), other.into());
            put(folder.path(), &files);
            assert!(place.left_facts().is_none(), "{other}");
            let error = write(&place, 3).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
            assert!(error.to_string().contains(FACTS), "{error}");
            assert!(read(folder.path()) == files, "{other}");
        }
    }
}
