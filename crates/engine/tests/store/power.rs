//! Power failures at any sync point of a flush or a merge.
//!
//! The library bypasses the `Storage` trait, but its operations are known: it writes new files,
//! each completely and synced under its own name; then replaces `current`; then deletes obsolete
//! files. These tests replay that through the trait, from the old folder to the new one, and every
//! disk that a crash may leave must be a store at the old block or at the new one.

use super::support::{assert_same, random_step};
use apus_chain::Network;
use apus_engine::utxo::CoinsStore;
use apus_engine::utxo::store::{DiskOptions, DiskStore, MemoryStore};
use apus_storage::Storage;
use apus_testkit::rng::Rng;
use apus_testkit::storage::{AfterCrash, CrashStorage};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

const CURRENT: &str = "tree|current";

/// Files by path, with a character that the trait allows in names in place of the slash.
type Files = BTreeMap<String, Vec<u8>>;

fn open(folder: &Path) -> DiskStore {
    let options = DiskOptions { cache_bytes: 1 << 20, table_bytes: 16 << 10 };
    DiskStore::open(folder, Network::Regtest, options).unwrap()
}

fn read(folder: &Path) -> Files {
    let mut files = Files::new();
    for inside in ["", "tree", "tree/tables"] {
        for entry in fs::read_dir(folder.join(inside)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().replace('/', "|");
                files.insert(name, fs::read(path).unwrap());
            }
        }
    }
    files
}

fn lay_down(files: &Files, folder: &Path) {
    fs::create_dir_all(folder.join("tree/tables")).unwrap();
    for (name, bytes) in files {
        fs::write(folder.join(name.replace('|', "/")), bytes).unwrap();
    }
}

/// Takes a disk from one folder to the other as the library does.
fn replay(disk: &CrashStorage, before: &Files, after: &Files) {
    let write = |name: &str, bytes: &[u8]| {
        let mut file = disk.create(name).unwrap();
        file.write_all(bytes).unwrap();
        file.sync().unwrap();
    };
    let new = |name: &String| !before.contains_key(name);
    let (tables, lists): (Vec<_>, Vec<_>) =
        after.iter().filter(|(name, _)| new(name)).partition(|(name, _)| name.contains("tables"));
    for (name, bytes) in tables.into_iter().chain(lists) {
        write(name, bytes);
        disk.sync_names().unwrap();
    }
    let draft = "tree|.tmpAbCdE";
    write(draft, &after[CURRENT]);
    disk.rename(draft, CURRENT).unwrap();
    disk.sync_names().unwrap();
    before.keys().filter(|name| !after.contains_key(*name)).for_each(|name| {
        disk.remove(name).unwrap();
    });
}

#[test]
fn every_disk_that_a_crash_leaves_is_a_store_at_a_block() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(51);
    let mut models = vec![MemoryStore::new()];
    let mut folders = vec![{
        drop(open(folder.path()));
        read(folder.path())
    }];
    for height in 0..10 {
        let (store, model) = (open(folder.path()), MemoryStore::new());
        for past in 0..=height {
            let mut rng = Rng::new(u64::from(past));
            let step = random_step(past, 150, 400, &mut rng);
            step.write(&model).unwrap();
            if past == height {
                step.write(&store).unwrap();
            }
        }
        store.settle().unwrap();
        drop(store);
        models.push(model);
        folders.push(read(folder.path()));
    }
    let (mut old, mut new) = (0, 0);
    for (place, pair) in folders.windows(2).enumerate() {
        let whole = CrashStorage::holding(pair[0].clone());
        replay(&whole, &pair[0], &pair[1]);
        assert!(whole.syncs() >= 6, "a table, a list and `current`, with their names");
        for at in 0..=whole.syncs() {
            let disk = CrashStorage::holding(pair[0].clone());
            disk.crash_at(at, AfterCrash::Unnoticed);
            replay(&disk, &pair[0], &pair[1]);
            for _ in 0..2 {
                let left = disk.crash_image(rng.next_u64()).live_files();
                let folder = tempfile::tempdir().unwrap();
                lay_down(&left, folder.path());
                let store = open(folder.path());
                let is_new = store.tip().unwrap() == models[place + 1].tip().unwrap();
                assert_same(&store, &models[place + usize::from(is_new)], place as u32 + 1);
                *(if is_new { &mut new } else { &mut old }) += 1;
                assert!(is_new || at < whole.syncs(), "durable data is lost");
            }
        }
    }
    assert!(old > 50 && new > 20, "{old} old, {new} new");
}
