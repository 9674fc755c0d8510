//! A disk that stops working while a store is open.

use super::support::{assert_same, block, coins_of, outpoint, random_step};
use apus_chain::Network;
use apus_engine::utxo::store::{DiskOptions, DiskStore, MemoryStore};
use apus_engine::utxo::{CoinsStore, StoreError};
use apus_testkit::rng::Rng;
use std::fs;
use std::path::Path;

fn open(folder: &Path) -> DiskStore {
    DiskStore::open(folder, Network::Regtest, DiskOptions::default()).unwrap()
}

#[test]
fn a_write_that_cannot_be_committed_halts_the_store_at_the_old_block() {
    let folder = tempfile::tempdir().unwrap();
    let (model, mut rng) = (MemoryStore::new(), Rng::new(41));
    let steps: Vec<_> = (0..3).map(|height| random_step(height, 500, 800, &mut rng)).collect();
    let store = open(folder.path());
    steps[0].write(&store).unwrap();
    steps[0].write(&model).unwrap();
    store.settle().unwrap();

    // A folder with contents cannot be replaced by a file.
    let (current, aside) = (folder.path().join("tree/current"), folder.path().join("tree/aside"));
    fs::rename(&current, &aside).unwrap();
    fs::create_dir_all(current.join("in the way")).unwrap();
    let failed = steps[1].write(&store).unwrap_err();
    assert!(matches!(failed, StoreError::Io { .. }), "{failed}");
    assert!(failed.to_string().contains(&folder.path().display().to_string()), "{failed}");
    // It still answers, but accepts no more writes.
    assert_same(&store, &model, 2);
    let halted = steps[1].write(&store).unwrap_err();
    assert!(matches!(halted, StoreError::Halted { .. }), "{halted}");
    drop(store);

    fs::remove_dir_all(&current).unwrap();
    fs::rename(&aside, &current).unwrap();
    let store = open(folder.path());
    assert_same(&store, &model, 2);
    for step in &steps[1..] {
        step.write(&store).unwrap();
        step.write(&model).unwrap();
    }
    assert_same(&store, &model, 3);
}

#[test]
fn tables_of_a_failed_write_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let tables = || fs::read_dir(folder.path().join("tree/tables")).unwrap().count();
    let mut rng = Rng::new(42);
    let store = open(folder.path());
    random_step(0, 100, 800, &mut rng).write(&store).unwrap();
    store.settle().unwrap();
    let before = tables();
    let step = random_step(1, 100, 800, &mut rng);
    let current = folder.path().join("tree/current");
    let bytes = fs::read(&current).unwrap();
    fs::remove_file(&current).unwrap();
    fs::create_dir_all(current.join("in the way")).unwrap();
    step.write(&store).unwrap_err();
    assert!(tables() > before);
    drop(store);
    fs::remove_dir_all(&current).unwrap();
    fs::write(&current, bytes).unwrap();
    let store = open(folder.path());
    assert_eq!(tables(), before);
    assert_eq!(store.tip().unwrap(), Some(block(0)));
}

#[test]
fn a_failed_merge_is_reported_to_the_next_writer() {
    let folder = tempfile::tempdir().unwrap();
    let (model, mut rng) = (MemoryStore::new(), Rng::new(43));
    let store = open(folder.path());
    let first = random_step(0, 2000, 4000, &mut rng);
    first.write(&store).unwrap();
    first.write(&model).unwrap();
    store.settle().unwrap();
    let table = fs::read_dir(folder.path().join("tree/tables")).unwrap().next().unwrap().unwrap();
    let mut bytes = fs::read(table.path()).unwrap();
    let half = bytes.len() / 2;
    bytes[half..half + 64].fill(0);
    fs::write(table.path(), bytes).unwrap();
    // Merges follow some writes; it is not fixed which ones.
    let failed = (1..100).find_map(|height| {
        let step = random_step(height, 50, 4000, &mut rng);
        step.write(&model).unwrap();
        step.write(&store).and_then(|()| store.settle()).err()
    });
    let failed = failed.expect("a merge reads the damaged table");
    assert!(matches!(failed, StoreError::Damaged { .. }), "{failed}");
    // The table was restored, so no look-up is wrong.
    assert_eq!(store.tip().unwrap(), model.tip().unwrap());
    for number in 0..4000 {
        let at = outpoint(number);
        if let Ok(found) = store.get(&at) {
            assert_eq!(found, model.get(&at).unwrap());
        }
    }
    assert!(coins_of(&store).is_err());
}
