//! Folders that must not be opened, each with its reason, and folders whose creation a crash
//! interrupted, which must be opened.

use super::support::{Step, block, coin, outpoint, random_step};
use apus_chain::Network;
use apus_engine::utxo::store::{DiskOptions, DiskStore};
use apus_engine::utxo::{CoinsStore, StoreError};
use apus_testkit::rng::Rng;
use std::fs;
use std::path::Path;

fn open(folder: &Path) -> Result<DiskStore, StoreError> {
    DiskStore::open(folder, Network::Regtest, DiskOptions::default())
}

fn filled(folder: &Path) {
    let mut rng = Rng::new(1);
    let store = open(folder).unwrap();
    for height in 0..3 {
        random_step(height, 50, 100, &mut rng).write(&store).unwrap();
    }
}

/// Opens and reads; returns the error, which must name the folder.
fn refusal(folder: &Path) -> StoreError {
    let refused = open(folder).and_then(|store| {
        store.tip()?;
        store.for_each(&mut |_, _| Ok(()))
    });
    let error = refused.expect_err("the fault is detected");
    let place = folder.display().to_string();
    assert!(error.to_string().contains(&place), "{error}");
    error
}

/// Returns the file `store` as this program would write it for a format and a magic.
fn header(format: u32, magic: [u8; 4], more: &[u8]) -> Vec<u8> {
    let mut bytes = b"APUSCOIN".to_vec();
    bytes.extend_from_slice(&format.to_le_bytes());
    bytes.extend_from_slice(&magic);
    bytes.extend_from_slice(more);
    bytes.extend_from_slice(&apus_hash::sha256(&bytes));
    bytes
}

#[test]
fn a_store_of_another_network_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path());
    for wanted in [Network::Main, Network::Testnet3, Network::Testnet4, Network::Signet] {
        let error = DiskStore::open(folder.path(), wanted, DiskOptions::default()).unwrap_err();
        let StoreError::OtherNetwork { found, wanted: named, .. } = error else {
            panic!("{error}")
        };
        assert_eq!((found, named), (Network::Regtest, wanted));
    }
    assert_eq!(open(folder.path()).unwrap().tip().unwrap(), Some(block(2)));
}

#[test]
fn a_newer_store_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path());
    let file = folder.path().join("store");
    assert_eq!(fs::read(&file).unwrap(), header(1, Network::Regtest.magic(), &[]));
    for more in [&[][..], &[1, 2, 3]] {
        fs::write(&file, header(2, Network::Regtest.magic(), more)).unwrap();
        let error = refusal(folder.path());
        assert!(matches!(error, StoreError::Newer { found: 2, known: 1, .. }), "{error}");
    }
}

#[test]
fn an_unknown_header_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path());
    let magic = Network::Regtest.magic();
    let mut other = header(1, magic, &[]);
    other[0] ^= 1;
    let long = vec![0; 5000];
    for bytes in [header(1, [1, 2, 3, 4], &[]), header(1, magic, &[0]), other, vec![], long] {
        fs::write(folder.path().join("store"), bytes).unwrap();
        assert!(matches!(refusal(folder.path()), StoreError::Damaged { .. }));
    }
}

#[test]
fn a_store_in_use_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path());
    let store = open(folder.path()).unwrap();
    let error = open(folder.path()).unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    drop(store);
    open(folder.path()).unwrap();
}

#[test]
fn a_folder_with_other_files_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("thesis.txt"), "all of it").unwrap();
    let error = open(folder.path()).unwrap_err();
    assert!(matches!(&error, StoreError::Foreign { name, .. } if name == "thesis.txt"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    // A file is not accepted as a folder either.
    let error = open(&folder.path().join("thesis.txt")).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }), "{error}");
}

#[test]
fn a_store_without_one_of_its_files_is_refused() {
    let parts = ["store", "tree", "tree/current", "tree/tables"];
    for lost in parts {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path());
        let path = folder.path().join(lost);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
        let error = refusal(folder.path());
        assert!(matches!(error, StoreError::Damaged { .. }), "{lost}: {error}");
    }
}

#[test]
fn creating_a_store_may_be_interrupted_anywhere() {
    let whole = tempfile::tempdir().unwrap();
    drop(open(whole.path()).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let new = || {
        let path = folder.path().join("new");
        let _ = fs::remove_dir_all(&path);
        path
    };
    let cuts: [fn(&Path); 5] = [
        |path| fs::create_dir_all(path).unwrap(),
        |path| fs::create_dir_all(path.join("tree")).unwrap(),
        |path| fs::create_dir_all(path.join("tree/tables")).unwrap(),
        |path| {
            fs::create_dir_all(path.join("tree/tables")).unwrap();
            fs::write(path.join("tree/v0"), "par").unwrap();
            fs::write(path.join("tree/.tmpAb3"), "").unwrap();
        },
        |path| {
            drop(open(path).unwrap());
            fs::rename(path.join("store"), path.join("store.tmp")).unwrap();
        },
    ];
    for cut in cuts {
        let path = new();
        cut(&path);
        filled(&path);
        assert_eq!(open(&path).unwrap().tip().unwrap(), Some(block(2)));
        let drafts =
            fs::read_dir(path.join("tree")).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(!drafts.into_iter().any(|name| name.to_string_lossy().starts_with(".tmp")));
    }
}

/// An unreadable file is not treated as lost: a retry or a repair may bring it back.
#[test]
fn unreadable_files_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path());
    let current = fs::read(folder.path().join("tree/current")).unwrap();
    let list = format!("tree/v{}", u64::from_le_bytes(*current.first_chunk().unwrap()));
    // A folder in place of a file can be opened but not read.
    fs::remove_file(folder.path().join(&list)).unwrap();
    fs::create_dir(folder.path().join(&list)).unwrap();
    let error = refusal(folder.path());
    assert!(matches!(error, StoreError::Io { .. }), "{error}");

    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("tree")).unwrap();
    fs::write(folder.path().join("tree/tables"), "no folder").unwrap();
    let error = refusal(folder.path());
    assert!(error.to_string().contains("Not a directory"), "{error}");
    assert_eq!(fs::read(folder.path().join("tree/tables")).unwrap(), b"no folder");
}

#[test]
fn invalid_coins_are_reported_with_their_outpoint() {
    // The library's own checksums cover this, so only a program that wrote garbage could cause it.
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path());
    let at = outpoint(500);
    let mut key = vec![1];
    key.extend_from_slice(&at.txid.0);
    key.extend_from_slice(&at.vout.to_be_bytes());
    let counter = lsm_tree::SequenceNumberCounter::new(1000);
    let tree = folder.path().join("tree");
    let tree = lsm_tree::Config::new(tree, counter.clone(), counter).open().unwrap();
    let mut batch = tree.ingestion().unwrap();
    batch.write(key, [0x80; 12]).unwrap();
    batch.finish().unwrap();
    drop(tree);
    let store = open(folder.path()).unwrap();
    let error = store.get(&at).unwrap_err();
    assert!(matches!(error, StoreError::Coin { outpoint, .. } if outpoint == at), "{error}");
    assert!(matches!(refusal_of(&store), StoreError::Coin { .. }));
}

fn refusal_of(store: &DiskStore) -> StoreError {
    store.for_each(&mut |_, _| Ok(())).unwrap_err()
}

#[test]
fn changes_out_of_order_are_not_written() {
    use apus_engine::utxo::store::EachChange;
    use apus_engine::utxo::{Changes, Flush};
    struct Backwards(Step);
    impl Changes for Backwards {
        fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
            self.0.changes.0.iter().rev().try_for_each(|(at, coin)| each(at, coin.as_ref()))
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    let mut rng = Rng::new(1);
    let step = Step::new(0)
        .with(outpoint(0), Some(coin(&mut rng)))
        .with(outpoint(1), Some(coin(&mut rng)));
    let flush = Flush { tip: step.tip, changes: &Backwards(step.clone()), undo: &[], undo_from: 0 };
    let error = store.write(&flush).unwrap_err();
    assert!(matches!(error, StoreError::Unordered { .. }), "{error}");
    assert_eq!(store.tip().unwrap(), None);
    step.write(&store).unwrap();
    assert_eq!(store.tip().unwrap(), Some(block(0)));
}
