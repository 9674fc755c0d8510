use super::*;
use apus_storage::{Storage, read_whole, write_atomically};
use std::io::{self, ErrorKind, Read, Write};

fn storage() -> FaultStorage {
    FaultStorage::new(CrashStorage::new())
}

#[test]
fn without_faults_it_is_the_storage_within() {
    let storage = storage();
    write_atomically(&storage, "a", b"hello").unwrap();
    assert_eq!(read_whole(&storage, "a", 10).unwrap(), b"hello");
    assert_eq!(storage.names().unwrap(), ["a"]);
    assert_eq!(storage.describe("a"), "a");
    assert_eq!(storage.failed(), 0);
    // create, write, sync, rename, sync_names; len, open, two reads or more; names.
    assert!(storage.calls() >= 10);
}

#[test]
fn every_operation_can_be_made_to_fail_once() {
    let use_all = |storage: &FaultStorage| -> io::Result<()> {
        write_atomically(storage, "a", b"x")?;
        read_whole(storage, "a", 10)?;
        storage.names()?;
        storage.remove("a")
    };
    let each = [
        Operation::Create,
        Operation::Open,
        Operation::Read,
        Operation::Write,
        Operation::Sync,
        Operation::Rename,
        Operation::Remove,
        Operation::SyncNames,
        Operation::Names,
        Operation::Len,
    ];
    for operation in each {
        let storage = storage();
        storage.fail_nth(operation, 0, ErrorKind::PermissionDenied);
        let error = use_all(&storage).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.to_string().contains(&format!("{operation:?}")));
        assert_eq!(storage.failed(), 1);
        use_all(&storage).unwrap();
    }
    // The operations in order, regardless of their kind.
    let clean = storage();
    use_all(&clean).unwrap();
    for n in 0..clean.calls() {
        let storage = storage();
        storage.fail_nth(Operation::Any, n, ErrorKind::StorageFull);
        assert_eq!(use_all(&storage).unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(storage.calls(), n + 1);
    }
}

#[test]
fn a_full_disk_stays_full_until_it_is_healed() {
    let storage = storage();
    storage.fail_from(Operation::Write, 1, ErrorKind::StorageFull);
    let mut file = storage.create("a").unwrap();
    file.write_all(b"1").unwrap();
    for _ in 0..3 {
        assert_eq!(file.write_all(b"2").unwrap_err().kind(), ErrorKind::StorageFull);
    }
    assert_eq!(storage.len("a").unwrap(), 1, "failed writes leave nothing");
    storage.heal();
    file.write_all(b"3").unwrap();
    assert_eq!(read_whole(&storage, "a", 10).unwrap(), b"13");
}

#[test]
fn interrupted_and_short_transfers_lose_nothing() {
    let storage = storage();
    storage.fail_every(Operation::Write, 3, ErrorKind::Interrupted).short_transfers(2);
    storage.fail_every(Operation::Read, 2, ErrorKind::Interrupted);
    let bytes: Vec<u8> = (0..100).collect();
    write_atomically(&storage, "a", &bytes).unwrap();
    let mut back = Vec::new();
    storage.open("a", 0).unwrap().read_to_end(&mut back).unwrap();
    assert_eq!(back, bytes);
    // 50 writes that worked, and one in three that did not.
    assert!(storage.failed() > 24 + 40);
}

#[test]
fn a_failed_sync_makes_nothing_durable() {
    let disk = CrashStorage::new();
    let storage = FaultStorage::new(disk.clone());
    storage.fail_nth(Operation::SyncNames, 0, ErrorKind::Other);
    assert!(write_atomically(&storage, "a", b"x").is_err());
    assert!(disk.durable_image().live_files().is_empty());
    assert_eq!(disk.syncs(), 1);
}
