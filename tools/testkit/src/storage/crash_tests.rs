use super::*;
use apus_storage::{DirStorage, Storage, read_whole, write_atomically};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};

const SEEDS: u64 = 400;

fn put(storage: &CrashStorage, name: &str, bytes: &[u8], sync: bool) {
    let mut file = storage.create(name).unwrap();
    file.write_all(bytes).unwrap();
    if sync {
        file.sync().unwrap();
    }
}

/// Returns all possible contents of the disk, as far as the seeds reach.
fn images(storage: &CrashStorage) -> BTreeSet<BTreeMap<String, Vec<u8>>> {
    (0..SEEDS).map(|seed| storage.crash_image(seed).live_files()).collect()
}

fn contents(storage: &CrashStorage, name: &str) -> BTreeSet<Option<Vec<u8>>> {
    images(storage).iter().map(|image| image.get(name).cloned()).collect()
}

fn some(bytes: &[u8]) -> Option<Vec<u8>> {
    Some(bytes.to_vec())
}

#[test]
fn a_file_may_be_lost_until_both_its_bytes_and_its_name_are_synced() {
    let storage = CrashStorage::new();
    let mut file = storage.create("a").unwrap();
    file.write_all(b"xyz").unwrap();
    let found = contents(&storage, "a");
    for possible in [None, some(b""), some(b"x"), some(b"xyz"), some(b"\0\0\0"), some(b"\0")] {
        assert!(found.contains(&possible), "{possible:?} is possible");
    }
    file.sync().unwrap();
    assert_eq!(contents(&storage, "a"), BTreeSet::from([None, some(b"xyz")]));
    assert!(storage.durable_image().live_files().is_empty());
    storage.sync_names().unwrap();
    assert_eq!(contents(&storage, "a"), BTreeSet::from([some(b"xyz")]));
    assert_eq!(storage.durable_image().live_files(), storage.live_files());
    assert_eq!(storage.syncs(), 2);
}

#[test]
fn synced_names_do_not_make_bytes_durable() {
    let storage = CrashStorage::new();
    put(&storage, "a", b"xyz", false);
    storage.sync_names().unwrap();
    let found = contents(&storage, "a");
    assert!(!found.contains(&None));
    assert!(found.contains(&some(b"")) && found.contains(&some(b"xyz")));
    assert_eq!(storage.durable_image().live_files()["a"], b"");
}

#[test]
fn synced_bytes_stay_while_later_ones_may_be_torn() {
    let storage = CrashStorage::new();
    let mut file = storage.create("a").unwrap();
    file.write_all(&[1; 700]).unwrap();
    file.sync().unwrap();
    storage.sync_names().unwrap();
    file.write_all(&[2; 1_500]).unwrap();
    let found = contents(&storage, "a");
    let mut hole = false;
    for content in &found {
        let content = content.as_ref().unwrap();
        assert!(content.len() >= 700 && content[..700] == [1; 700]);
        assert!(content[700..].iter().all(|byte| *byte == 2 || *byte == 0));
        // A later sector was written and an earlier one was not.
        hole |= content.windows(2).any(|pair| pair == [0, 2]);
    }
    assert!(hole, "sectors reach a disk in any order");
    assert!(found.iter().flatten().any(|content| content.len() == 700));
    assert!(found.iter().flatten().any(|content| content.len() == 2_200));
}

#[test]
fn a_rename_shows_the_old_or_the_new_file_whole() {
    let storage = CrashStorage::new();
    put(&storage, "a", b"old", true);
    storage.sync_names().unwrap();
    put(&storage, "a.tmp", b"new", true);
    storage.rename("a.tmp", "a").unwrap();
    assert_eq!(contents(&storage, "a"), BTreeSet::from([some(b"old"), some(b"new")]));
    // The draft may or may not be there in either case.
    let drafts: BTreeSet<_> = images(&storage)
        .iter()
        .map(|image| (image["a"].clone(), image.contains_key("a.tmp")))
        .collect();
    assert_eq!(drafts.len(), 4);
    storage.sync_names().unwrap();
    assert_eq!(images(&storage).len(), 1);
}

#[test]
fn a_rename_before_the_bytes_are_synced_can_destroy_the_file() {
    // The mistake that write_atomically avoids must show here.
    let storage = CrashStorage::new();
    put(&storage, "a", b"old", true);
    storage.sync_names().unwrap();
    put(&storage, "a.tmp", b"new", false);
    storage.rename("a.tmp", "a").unwrap();
    let found = contents(&storage, "a");
    assert!(found.contains(&some(b"")) && found.contains(&some(b"\0\0\0")));
}

#[test]
fn emptying_a_file_in_place_puts_its_old_content_at_risk() {
    let storage = CrashStorage::new();
    put(&storage, "a", &[1; 1_024], true);
    storage.sync_names().unwrap();
    put(&storage, "a", &[2; 1_024], false);
    let found = contents(&storage, "a");
    assert!(found.contains(&some(&[1; 1_024])), "nothing has happened yet");
    assert!(found.contains(&some(&[2; 1_024])), "all of it has");
    assert!(found.contains(&some(b"")), "only the emptying has");
    assert!(found.contains(&some(&[[1; 512], [2; 512]].concat())), "some sectors have");
    assert_eq!(storage.durable_image().live_files()["a"], b"");
}

#[test]
fn a_removed_file_may_come_back_until_names_are_synced() {
    let storage = CrashStorage::new();
    put(&storage, "a", b"x", true);
    storage.sync_names().unwrap();
    storage.remove("a").unwrap();
    storage.remove("never there").unwrap();
    assert!(storage.names().unwrap().is_empty());
    assert_eq!(contents(&storage, "a"), BTreeSet::from([None, some(b"x")]));
    storage.sync_names().unwrap();
    assert_eq!(contents(&storage, "a"), BTreeSet::from([None]));
}

#[test]
fn each_change_of_a_name_survives_independently() {
    let storage = CrashStorage::new();
    put(&storage, "a", b"1", true);
    put(&storage, "b", b"2", true);
    let present =
        |image: &BTreeMap<String, Vec<u8>>| (image.contains_key("a"), image.contains_key("b"));
    let found: BTreeSet<_> = images(&storage).iter().map(present).collect();
    assert_eq!(found.len(), 4, "a folder need not keep the order of changes");
}

#[test]
fn the_crash_stops_everything_at_its_sync_point() {
    for after in [AfterCrash::Fail, AfterCrash::Unnoticed] {
        let storage = CrashStorage::new();
        storage.crash_at(2, after);
        put(&storage, "a", b"x", true);
        storage.sync_names().unwrap();
        assert!(!storage.crashed());
        let mut file = storage.create("b").unwrap();
        file.write_all(b"y").unwrap();
        let third = file.sync();
        assert!(storage.crashed());
        assert_eq!(third.is_err(), after == AfterCrash::Fail);
        if after == AfterCrash::Fail {
            assert!(file.write_all(b"z").is_err() && file.flush().is_err());
            assert!(storage.create("c").is_err() && storage.open("a", 0).is_err());
            assert!(storage.names().is_err() && storage.len("a").is_err());
            assert!(storage.rename("a", "c").is_err() && storage.remove("a").is_err());
            assert!(storage.sync_names().is_err());
        } else {
            // The program sees its own changes, the disk sees none of them.
            put(&storage, "late", b"z", true);
            storage.remove("a").unwrap();
            storage.sync_names().unwrap();
            assert_eq!(storage.names().unwrap(), ["b", "late"]);
        }
        assert_eq!(contents(&storage, "a"), BTreeSet::from([some(b"x")]));
        assert_eq!(contents(&storage, "late"), BTreeSet::from([None]));
        // The sync that did not happen leaves its file at risk.
        let b = contents(&storage, "b");
        assert!(b.contains(&None) && b.contains(&some(b"")) && b.contains(&some(b"y")));
        assert_eq!(storage.durable_image().names().unwrap(), ["a"]);
        // After the restart the disk works again.
        write_atomically(&storage.crash_image(1), "b", b"again").unwrap();
    }
}

#[test]
fn an_atomic_write_is_atomic_at_every_sync_point() {
    for crash_at in 0..5 {
        let storage = CrashStorage::new();
        write_atomically(&storage, "a", b"old").unwrap();
        assert_eq!(storage.syncs(), 2);
        storage.crash_at(2 + crash_at, AfterCrash::Fail);
        let done = write_atomically(&storage, "a", b"new").is_ok();
        assert_eq!(done, crash_at >= 2);
        for seed in 0..SEEDS {
            let found = read_whole(&storage.crash_image(seed), "a", 10).unwrap();
            assert!(found == b"new" || (found == b"old" && !done));
        }
    }
}

#[test]
fn a_rename_to_the_same_name_risks_nothing() {
    let storage = CrashStorage::new();
    put(&storage, "a", b"x", true);
    storage.sync_names().unwrap();
    storage.rename("a", "a").unwrap();
    assert_eq!(contents(&storage, "a"), BTreeSet::from([some(b"x")]));
}

#[test]
fn a_seed_determines_one_image() {
    let storage = CrashStorage::new();
    put(&storage, "a", &[3; 5_000], false);
    assert_eq!(storage.crash_image(7).live_files(), storage.crash_image(7).live_files());
}

#[test]
fn reads_start_at_the_requested_offset() {
    let storage = CrashStorage::new();
    put(&storage, "a", b"hello", false);
    let mut text = String::new();
    storage.open("a", 2).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "llo");
    assert_eq!(storage.open("a", 9).unwrap().read(&mut [0; 4]).unwrap(), 0);
    assert_eq!(storage.open("b", 0).err().unwrap().kind(), std::io::ErrorKind::NotFound);
    assert_eq!(storage.len("b").unwrap_err().kind(), std::io::ErrorKind::NotFound);
    assert_eq!(storage.rename("b", "c").unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

/// A step of a program.
#[derive(Debug, Clone)]
enum CrashTestStep {
    Put(u8, Vec<u8>, bool),
    Rename(u8, u8),
    Remove(u8),
    SyncNames,
}

fn step() -> impl Strategy<Value = CrashTestStep> {
    let name = || 0u8..4;
    prop_oneof![
        4 => (name(), prop::collection::vec(any::<u8>(), 0..1_200), any::<bool>())
            .prop_map(|(name, bytes, sync)| CrashTestStep::Put(name, bytes, sync)),
        2 => (name(), name()).prop_map(|(from, to)| CrashTestStep::Rename(from, to)),
        1 => name().prop_map(CrashTestStep::Remove),
        1 => Just(CrashTestStep::SyncNames),
    ]
}

fn run(storage: &dyn Storage, step: &CrashTestStep) {
    match step {
        CrashTestStep::Put(name, bytes, sync) => {
            let mut file = storage.create(&name.to_string()).unwrap();
            file.write_all(bytes).unwrap();
            if *sync {
                file.sync().unwrap();
            }
        }
        CrashTestStep::Rename(from, to) => {
            // Fails in both if there is no such file.
            let _ = storage.rename(&from.to_string(), &to.to_string());
        }
        CrashTestStep::Remove(name) => storage.remove(&name.to_string()).unwrap(),
        CrashTestStep::SyncNames => storage.sync_names().unwrap(),
    }
}

proptest! {
    /// Without a crash it is a normal folder.
    #[test]
    fn a_folder_without_a_crash_behaves_as_a_real_one(steps in prop::collection::vec(step(), 0..30)) {
        let folder = tempfile::tempdir().unwrap();
        let (real, model) = (DirStorage::new(folder.path()), CrashStorage::new());
        for step in &steps {
            run(&real, step);
            run(&model, step);
        }
        let names = real.names().unwrap();
        prop_assert_eq!(&names, &model.names().unwrap());
        for name in names {
            let limit = 1 << 20;
            prop_assert_eq!(real.len(&name).unwrap(), model.len(&name).unwrap());
            prop_assert_eq!(
                read_whole(&real, &name, limit).unwrap(),
                read_whole(&model, &name, limit).unwrap()
            );
        }
    }

    /// Once everything is synced, every image is what the program saw.
    #[test]
    fn synced_data_survives(steps in prop::collection::vec(step(), 0..30), seed: u64) {
        let storage = CrashStorage::new();
        for step in &steps {
            match step {
                CrashTestStep::Put(name, bytes, _) => run(&storage, &CrashTestStep::Put(*name, bytes.clone(), true)),
                other => run(&storage, other),
            }
        }
        storage.sync_names().unwrap();
        let seen = storage.live_files();
        // Steps after the last sync put only the files that they touch at risk: here, one file.
        put(&storage, "other", b"unsynced", false);
        let mut image = storage.crash_image(seed).live_files();
        image.remove("other");
        prop_assert_eq!(image, seen);
    }
}
