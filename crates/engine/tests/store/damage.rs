//! Damaged files: a store reports the damage, or still answers correctly.

use super::support::{block, coins_of, outpoint, random_step};
use apus_chain::Network;
use apus_engine::utxo::store::{DiskOptions, DiskStore, MemoryStore};
use apus_engine::utxo::{CoinsStore, StoreError};
use apus_testkit::rng::Rng;
use std::fs;
use std::path::{Path, PathBuf};

const HEIGHTS: u32 = 8;
const NAMES: u64 = 1500;

/// Creates a closed, small store with several tables, and a model of its contents.
fn filled(folder: &Path) -> MemoryStore {
    let (model, mut rng) = (MemoryStore::new(), Rng::new(11));
    let options = DiskOptions { table_bytes: 16 << 10, ..DiskOptions::default() };
    let store = DiskStore::open(folder, Network::Regtest, options).unwrap();
    for height in 0..HEIGHTS {
        let mut step = random_step(height, 300, NAMES, &mut rng);
        // Deleted data is never read, so its damage would not be noticed.
        step.undo_from = 0;
        step.write(&store).unwrap();
        step.write(&model).unwrap();
        if height == HEIGHTS / 2 {
            store.settle().unwrap();
        }
    }
    // The same holds for the output of an aborted merge.
    store.settle().unwrap();
    model
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path.strip_prefix(folder).unwrap().to_owned());
            }
        }
    }
    // Replaced lists of tables remain until the next start.
    let current = fs::read(folder.join("tree/current")).unwrap();
    let list = format!("tree/v{}", u64::from_le_bytes(*current.first_chunk().unwrap()));
    files.retain(|file| {
        let name = file.to_str().unwrap();
        name != "lock" && (!name.starts_with("tree/v") || name == list)
    });
    files.sort_unstable();
    files
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.join("tree/tables")).unwrap();
    for file in files(from) {
        fs::copy(from.join(&file), to.join(&file)).unwrap();
    }
}

/// Fails if the store gives a wrong answer. Returns true if it never returned an error.
fn answers_right(folder: &Path, model: &MemoryStore) -> bool {
    let options = DiskOptions { cache_bytes: 0, ..DiskOptions::default() };
    let store = match DiskStore::open(folder, Network::Regtest, options) {
        Ok(store) => store,
        Err(error) => return !is_about_damage(&error),
    };
    let mut right = true;
    right &= is_answered(store.tip(), model.tip());
    for name in (0..NAMES).step_by(7) {
        right &= is_answered(store.get(&outpoint(name)), model.get(&outpoint(name)));
    }
    for height in 0..HEIGHTS {
        let hash = block(height).hash;
        right &= is_answered(store.undo(&hash), model.undo(&hash));
    }
    right & is_answered(coins_of(&store), coins_of(model))
}

fn is_answered<T: PartialEq>(answer: Result<T, StoreError>, truth: Result<T, StoreError>) -> bool {
    match answer {
        Ok(answer) => {
            assert!(answer == truth.unwrap(), "a wrong answer");
            true
        }
        Err(error) => !is_about_damage(&error),
    }
}

/// Fails for errors that would mislead users.
fn is_about_damage(error: &StoreError) -> bool {
    let known = matches!(error, StoreError::Damaged { .. } | StoreError::Coin { .. });
    assert!(known, "{error}");
    true
}

/// Damages a copy of the store in every file, and counts the detected damages.
fn damage_each(changes: impl Fn(&Path, &[u8]) -> Vec<Option<Vec<u8>>>) -> (usize, usize) {
    let whole = tempfile::tempdir().unwrap();
    let model = filled(whole.path());
    assert!(answers_right_in_copy(whole.path(), &model, |_| ()));
    let (mut seen, mut tried) = (0, 0);
    for file in files(whole.path()) {
        let bytes = fs::read(whole.path().join(&file)).unwrap();
        for change in changes(&file, &bytes) {
            let right = answers_right_in_copy(whole.path(), &model, |folder| match &change {
                Some(bytes) => fs::write(folder.join(&file), bytes).unwrap(),
                None => fs::remove_file(folder.join(&file)).unwrap(),
            });
            tried += 1;
            seen += usize::from(!right);
        }
    }
    (seen, tried)
}

fn answers_right_in_copy(whole: &Path, model: &MemoryStore, change: impl Fn(&Path)) -> bool {
    let folder = tempfile::tempdir().unwrap();
    copy(whole, folder.path());
    change(folder.path());
    answers_right(folder.path(), model)
}

#[test]
fn a_flipped_bit_of_a_list_is_detected() {
    let (seen, tried) = damage_each(|file, bytes| match file.starts_with("tree/tables") {
        true => Vec::new(),
        false => flips(bytes, (0..bytes.len()).step_by(1 + bytes.len() / 60)),
    });
    assert!(tried > 100);
    assert_eq!(seen, tried);
}

#[test]
fn a_flipped_bit_of_a_table_gives_no_wrong_answer() {
    let (seen, tried) = damage_each(|file, bytes| match file.starts_with("tree/tables") {
        true => flips(bytes, (0..bytes.len()).rev().step_by(1 + bytes.len() / 30)),
        false => Vec::new(),
    });
    // Some bits do not matter: unused filters, and numbers that no read needs.
    assert!(tried > 100);
    assert!(seen * 10 > tried * 8, "{seen} of {tried}");
}

fn flips(bytes: &[u8], at: impl Iterator<Item = usize>) -> Vec<Option<Vec<u8>>> {
    let flip = |at: usize| {
        let mut bytes = bytes.to_vec();
        bytes[at] ^= 1 << (at % 8);
        Some(bytes)
    };
    at.map(flip).collect()
}

#[test]
fn a_truncated_or_lost_file_is_detected() {
    let (seen, tried) = damage_each(|_, bytes| {
        let half = bytes[..bytes.len() / 2].to_vec();
        vec![None, Some(Vec::new()), Some(half), Some(bytes[..bytes.len() - 1].to_vec())]
    });
    assert_eq!(seen, tried);
}

#[test]
fn a_swapped_table_is_detected() {
    let whole = tempfile::tempdir().unwrap();
    let model = filled(whole.path());
    let mut tables = files(whole.path());
    tables.retain(|file| file.starts_with("tree/tables"));
    assert!(tables.len() > 1, "{tables:?}");
    let right = answers_right_in_copy(whole.path(), &model, |folder| {
        fs::copy(folder.join(&tables[0]), folder.join(&tables[1])).unwrap();
    });
    assert!(!right);
}
