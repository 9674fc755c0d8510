//! Compares valid folders and manipulated ones with LevelDB itself.
//!
//! For any content of a folder: if this reader returns no error, LevelDB reads the same entries, both by
//! iterating over all keys and by looking up each, at once and after it has written and compacted. And this
//! reader never calls LevelDB's own output damaged.

use super::*;
use apus_testkit::effort::rounds;
use apus_testkit::leveldb::{
    AmongTables, InEdits, LevelDbFolder, Lie, Oracle, OracleAnswer, Write,
};
use apus_testkit::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn read(dir: &Path) -> Result<Model, IndexError> {
    let mut all = Model::new();
    Database::open(dir)?.with_filters().for_each(&mut |key, value| {
        all.insert(key.to_vec(), value.to_vec());
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(all)
}

/// Keys with common beginnings; short and long values, some longer than a block of a log.
fn writes(rng: &mut Rng) -> Vec<Write> {
    let most = 1 + rng.index(60);
    let keys = 1 + rng.below(30);
    let write = |_| {
        let number = rng.below(keys);
        let key = match rng.below(3) {
            0 => format!("k{number}"),
            1 => format!("key {number:05}"),
            _ => format!("key {number:05} and more"),
        };
        let length = match rng.below(60) {
            0 => 33_000,
            1..8 => 700,
            _ => rng.index(20),
        };
        let value = (!rng.one_in(4)).then(|| rng.bytes(length));
        (key.into_bytes(), value)
    };
    (0..most).map(write).collect()
}

#[derive(Debug, Default)]
struct Counts {
    sound: u64,
    lying_yet_sound: u64,
    damaged: u64,
    /// The number of damaged folders that LevelDB reads as if they were intact.
    damaged_to_us_alone: u64,
}

/// The content that LevelDB reports; `None` if its answers differ.
fn agreed(answer: &OracleAnswer) -> Option<&Model> {
    let keys: BTreeSet<_> = answer.iterated.keys().cloned().collect();
    let is_one =
        answer.faults.is_empty() && answer.iterated == answer.found && keys == answer.sought;
    is_one.then_some(&answer.iterated)
}

fn case(seed: u64, oracle: &mut Oracle, counts: &mut Counts) {
    let mut rng = Rng::new(seed);
    let writes = writes(&mut rng);
    let lies: Vec<Lie> = (0..rng.below(6).min(3).saturating_sub(1) + u64::from(!rng.one_in(6)))
        .map(|_| Lie::any(&mut rng))
        .collect();
    let folder = LevelDbFolder::new(&writes, &lies, &mut rng);
    let dir = tempfile::tempdir().unwrap();
    folder.write(dir.path());
    let context = || format!("seed {seed}, {lies:?}");
    let ours = read(dir.path());
    let answer = oracle.ask(dir.path(), folder.keys());
    match &ours {
        Ok(found) => {
            assert!(agreed(&answer) == Some(found), "{}: {found:?}, {answer:?}", context());
            if lies.is_empty() {
                assert_eq!(found, folder.contents(), "{}", context());
                counts.sound += 1;
            } else {
                counts.lying_yet_sound += 1;
            }
            // LevelDB has now rewritten the folder.
            let after = read(dir.path());
            assert!(after.as_ref().ok() == Some(found), "{}: {after:?}", context());
        }
        Err(error) => {
            assert!(!lies.is_empty(), "{}: {error}", context());
            counts.damaged += 1;
            let is_harmless = agreed(&answer) == Some(folder.contents());
            counts.damaged_to_us_alone += u64::from(is_harmless);
        }
    }
}

/// Checks that our reader accepts every folder that LevelDB made.
fn made(seed: u64, oracle: &mut Oracle) {
    let dir = tempfile::tempdir().unwrap();
    oracle.make(dir.path(), seed);
    let ours = read(dir.path()).unwrap_or_else(|error| panic!("made of seed {seed}: {error}"));
    assert!(agreed(&oracle.ask(dir.path(), &[])) == Some(&ours), "made of seed {seed}");
    assert!(read(dir.path()).unwrap() == ours, "made of seed {seed}");
}

fn cases(from: u64, count: u64) {
    let (mut oracle, mut counts) = (Oracle::start(), Counts::default());
    for seed in from..from + count {
        case(seed, &mut oracle, &mut counts);
        if seed % 100 == 0 {
            made(seed, &mut oracle);
        }
    }
    println!("LevelDB read {count} folders: {counts:?}");
    let all = [counts.sound, counts.lying_yet_sound, counts.damaged, counts.damaged_to_us_alone];
    assert!(count < 100 || !all.contains(&0), "{counts:?}");
}

#[test]
fn leveldb_agrees() {
    cases(1, rounds(200, 10_000));
}

/// `scripts/soak --kind leveldb` runs this test.
#[test]
#[ignore = "long: run by scripts/soak --kind leveldb"]
fn leveldb_reads_the_same_for_many_seeds() {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    let (from, count) = (number("SOAK_SEED").unwrap_or(1), number("SOAK_CASES").unwrap_or(10_000));
    cases(from, count);
}

/// One record adds and removes the same table: LevelDB removes first, regardless of the order.
#[test]
fn a_table_added_and_removed_by_one_record_is_damage() {
    let lie = Lie::Edits(InEdits::AddedAndRemoved);
    let mut oracle = Oracle::start();
    let mut hidden = 0;
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let writes = writes(&mut rng);
        let folder = LevelDbFolder::new(&writes, &[lie], &mut rng);
        let dir = tempfile::tempdir().unwrap();
        folder.write(dir.path());
        if let Err(IndexError::Corrupt { path, what, .. }) = read(dir.path()) {
            assert!(path.to_string_lossy().contains("MANIFEST"), "{}", path.display());
            assert!(what.contains("adds and removes"), "{what}");
            // LevelDB keeps the table.
            hidden += u32::from(agreed(&oracle.ask(dir.path(), &[])) == Some(folder.contents()));
        }
    }
    assert!(hidden > 10, "{hidden}");
}

/// Core's LevelDB merges only the table with the deletion, so the deleted entry reappears.
#[test]
fn a_deletion_in_a_different_table_from_its_entry_is_damage() {
    let lie = Lie::Tables(AmongTables::DeletionParted);
    let (mut oracle, mut found, mut back) = (Oracle::start(), 0, 0);
    for seed in 0..120 {
        let mut rng = Rng::new(seed);
        let folder = LevelDbFolder::new(&writes(&mut rng), &[lie], &mut rng);
        let dir = tempfile::tempdir().unwrap();
        folder.write(dir.path());
        if matches!(read(dir.path()), Err(error) if error.to_string().contains("may forget it")) {
            found += 1;
            let faults = oracle.ask(dir.path(), folder.keys()).faults;
            back += u32::from(faults.iter().any(|fault| fault.starts_with("changed")));
        }
    }
    assert!(found > 10 && back > 0, "{found}, {back}");
}

#[test]
fn missing_files_are_found_before_tables_are_read() {
    let (mut missed, mut rng) = (0, Rng::new(5));
    for seed in 0..30 {
        let folder = LevelDbFolder::new(&writes(&mut rng), &[], &mut Rng::new(seed));
        let dir = tempfile::tempdir().unwrap();
        folder.write(dir.path());
        check_files(dir.path()).unwrap();
        let files = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let is_table = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "ldb");
        // The table with the highest number may be a leftover.
        let Some(table) = files.filter(is_table).min() else { continue };
        let whole = fs::read(&table).unwrap();
        fs::write(&table, &whole[1..]).unwrap();
        assert!(
            matches!(check_files(dir.path()), Err(IndexError::Corrupt { path, .. }) if path == table)
        );
        fs::remove_file(&table).unwrap();
        assert!(matches!(check_files(dir.path()), Err(IndexError::Vanished { .. })));
        missed += 1;
        // LevelDB ignores the log the first time, but fails the second time.
        fs::write(&table, &whole).unwrap();
        fs::write(dir.path().join("000000.log"), b"").unwrap();
        assert!(matches!(check_files(dir.path()), Err(IndexError::Corrupt { .. })));
    }
    assert!(missed > 5, "{missed}");
}
