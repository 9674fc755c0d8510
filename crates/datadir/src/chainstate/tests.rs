//! Chainstates written by a node, by us, and damaged ones that no program should write.

mod look_ups;
mod node;

use super::*;
use crate::files::Obfuscation;
use crate::independent::IndependentReadError;
use crate::leveldb::{Database, DatabaseWriter, WriterOptions};
use crate::snapshot::SnapshotReader;
use crate::tests::{KEY, fixtures};
use apus_chain::{BlockHash, CoinRef, OutPoint, Txid, write_coin, write_compact_size};
use apus_storage::DirStorage;
use apus_testkit::storage::{CrashStorage, FaultStorage, Operation};
use core::ops::ControlFlow;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const BEST: BlockHash = BlockHash([9; 32]);
const SMALL: WriterOptions = WriterOptions { table_bytes: 2000, block_bytes: 200, filters: true };

type Coins = Vec<(OutPoint, Vec<u8>)>;

fn node_chainstate() -> PathBuf {
    fixtures().join("regtest-315/regtest/chainstate")
}

/// The coins of the fixture's snapshot, and their block.
fn snapshot() -> (BlockHash, Coins) {
    let bytes = fs::read(fixtures().join("regtest-315/utxo.dat")).unwrap();
    let mut reader = SnapshotReader::new(&bytes[..], None).unwrap();
    let mut coins = Coins::new();
    while let Some(next) = reader.next_coin().unwrap() {
        coins.push((next.outpoint, next.bytes.to_vec()));
    }
    (reader.header().base_hash, coins)
}

fn groups(coins: &[(OutPoint, Vec<u8>)]) -> Vec<(Txid, Vec<u8>)> {
    let same = coins.chunk_by(|(a, _), (b, _)| a.txid == b.txid);
    same.map(|coins| {
        let mut group = Vec::new();
        write_compact_size(&mut group, coins.len() as u64);
        for (outpoint, bytes) in coins {
            write_compact_size(&mut group, u64::from(outpoint.vout));
            group.extend_from_slice(bytes);
        }
        (coins[0].0.txid, group)
    })
    .collect()
}

fn write(
    dir: &Path,
    best: BlockHash,
    key: Obfuscation,
    options: WriterOptions,
    coins: &[(OutPoint, Vec<u8>)],
) -> ChainstateSize {
    let folder = DirStorage::new(dir);
    let mut writer = ChainstateWriter::with_options(&folder, best, key, options).unwrap();
    for (txid, group) in groups(coins) {
        writer.put_group(&txid, &group).unwrap();
    }
    writer.finish().unwrap()
}

fn read_all(dir: &Path) -> Result<(ChainstateSummary, Coins), ChainstateDbError> {
    let mut coins = Coins::new();
    let read = read_back(dir, &mut |outpoint, bytes| {
        coins.push((outpoint, bytes.to_vec()));
        ControlFlow::Continue(())
    })?;
    assert_eq!(read.coins, coins.len() as u64);
    Ok((read, coins))
}

fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

#[test]
fn a_snapshot_becomes_a_chainstate() {
    let (best, coins) = snapshot();
    for key in [Obfuscation::new(KEY), Obfuscation::NONE] {
        for options in [WriterOptions::default(), SMALL] {
            let dir = tempfile::tempdir().unwrap();
            let written = write(dir.path(), best, key, options, &coins);
            let before = files(dir.path());
            assert_eq!(written.coins, coins.len() as u64);
            assert_eq!(written.bytes, before.values().map(|bytes| bytes.len() as u64).sum::<u64>());
            assert_eq!(written.tables > 1, options.table_bytes == SMALL.table_bytes);
            let (read, found) = read_all(dir.path()).unwrap();
            assert_eq!(read, ChainstateSummary { best, key, coins: written.coins });
            assert!(found == coins);
            assert!(files(dir.path()) == before, "reading back changed the folder");
        }
    }
}

/// Reads a node's chainstate of the same blocks with both readers.
#[test]
fn a_node_has_the_same_entries() {
    let (best, coins) = snapshot();
    let before = files(&node_chainstate());
    let (read, found) = read_all(&node_chainstate()).unwrap();
    assert!(found == coins);
    assert_eq!(read.best, best);
    assert!(!read.key.is_none());
    assert!(files(&node_chainstate()) == before);

    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), best, read.key, SMALL, &coins);
    let entries = |dir: &Path| {
        let mut all = Vec::new();
        let visit = &mut |key: &[u8], value: &[u8]| {
            all.push((key.to_vec(), value.to_vec()));
            Ok(ControlFlow::Continue(()))
        };
        Database::open(dir).unwrap().for_each(visit).unwrap();
        all
    };
    assert!(entries(dir.path()) == entries(&node_chainstate()));
}

#[test]
fn an_empty_set_names_its_block_too() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), BEST, Obfuscation::new(KEY), SMALL, &[]);
    let (read, coins) = read_all(dir.path()).unwrap();
    assert_eq!((read.best, coins.len()), (BEST, 0));
}

#[test]
fn reading_can_be_cancelled() {
    let mut seen = 0;
    let read = read_back(&node_chainstate(), &mut |_, _| {
        seen += 1;
        if seen == 10 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!((read.unwrap().coins, seen), (10, 10));
}

fn coin_bytes(script: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_coin(&mut bytes, CoinRef { height: 1, coinbase: false, amount: 5, script });
    bytes
}

/// A group with these outputs, all with the same coin.
fn group(count: u64, vouts: &[u64], coin: &[u8]) -> Vec<u8> {
    let mut group = Vec::new();
    write_compact_size(&mut group, count);
    for vout in vouts {
        write_compact_size(&mut group, *vout);
        group.extend_from_slice(coin);
    }
    group
}

#[test]
fn invalid_groups_are_refused_and_leave_no_chainstate() {
    let coin = coin_bytes(&[0x51]);
    let good = group(2, &[0, 1], &coin);
    let trailing = [&good[..], &[0]].concat();
    let cases: [(u8, Vec<u8>, &str); 10] = [
        (5, good.clone(), "the coins of transaction "),
        (4, good.clone(), "the coins of transaction "),
        (6, group(2, &[1, 0], &coin), "must not follow that of output "),
        (6, group(2, &[1, 1], &coin), "must not follow that of output "),
        (6, group(2, &[256, 16_512], &coin), "must not follow that of output "),
        (6, group(0, &[], &coin), "has no coins"),
        (6, group(3, &[0, 1], &coin), "bad coins of transaction "),
        (6, group(1, &[1 << 32], &coin), "bad coins of transaction "),
        (6, group(u64::MAX, &[0], &coin[..2]), "bad coins of transaction "),
        (6, trailing, "bad coins of transaction "),
    ];
    for (txid, bad, says) in cases {
        let dir = tempfile::tempdir().unwrap();
        let folder = DirStorage::new(dir.path());
        let mut writer = ChainstateWriter::new(&folder, BEST, Obfuscation::NONE).unwrap();
        writer.put_group(&Txid([5; 32]), &group(2, &[16_512, 256], &coin)).unwrap();
        let error = writer.put_group(&Txid([txid; 32]), &bad).unwrap_err();
        assert!(error.is_invalid() && error.to_string().contains(says), "{error}");
        assert!(writer.put_group(&Txid([7; 32]), &good).is_err());
        assert!(writer.finish().is_err());
        assert!(!dir.path().join("CURRENT").exists());
    }
}

/// The entries of a chainstate: keys and values.
type KeysAndValues<'a> = &'a [(&'a [u8], &'a [u8])];

fn with_entries(entries: KeysAndValues<'_>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let folder = DirStorage::new(dir.path());
    let mut writer = DatabaseWriter::new(&folder, SMALL).unwrap();
    for (key, value) in entries {
        writer.put(key, value).unwrap();
    }
    writer.finish().unwrap();
    dir
}

#[test]
fn entries_that_a_node_cannot_handle_are_refused() {
    let coin = coin_bytes(&[0x51]);
    let name = [&[b'C'][..], &[1; 32], &[0]].concat();
    let best = (KEY_BEST_BLOCK, &[9; 32][..]);
    let cases: [(KeysAndValues<'_>, &str); 13] = [
        (&[], "does not name its block"),
        (&[(&name, &coin)], "does not name its block"),
        (&[(KEY_HEAD_BLOCKS, &[2])], "is between two blocks"),
        (&[best, (KEY_HEAD_BLOCKS, &[2])], "is between two blocks"),
        (&[(KEY_BEST_BLOCK, &[9; 31])], "is not what Bitcoin Core writes"),
        (&[(KEY_OBFUSCATION, &[7; 9]), best], "is not what Bitcoin Core writes"),
        (&[(KEY_OBFUSCATION, &[8; 8]), best], "is not what Bitcoin Core writes"),
        (&[(b"A", b""), best], "that Bitcoin Core does not write"),
        (&[best, (b"c", b"")], "that Bitcoin Core does not write"),
        (&[best, (&name[..33], &coin)], "that Bitcoin Core does not write"),
        (&[best, (&[&name[..], &[0]].concat(), &coin)], "that Bitcoin Core does not write"),
        (&[best, (&name, &coin[..coin.len() - 1])], "cannot be read: "),
        (&[best, (&name, &[&coin[..], &[0]].concat())], "cannot be read: "),
    ];
    for (entries, says) in cases {
        let error = read_all(with_entries(entries).path()).unwrap_err();
        assert!(error.is_invalid() && error.to_string().contains(says), "{entries:02x?} {error}");
    }
    // An unobfuscated chainstate without an entry for the key.
    let (read, coins) = read_all(with_entries(&[best, (&name, &coin)]).path()).unwrap();
    assert_eq!((read.best, read.key, coins.len()), (BEST, Obfuscation::NONE, 1));
}

#[test]
fn a_folder_without_a_database_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = read_all(dir.path()).unwrap_err();
    assert!(
        matches!(error, ChainstateDbError::Independent(IndependentReadError::Open { .. })),
        "{error}"
    );
    assert!(read_all(&dir.path().join("none")).is_err());
    assert!(files(dir.path()).is_empty());
}

fn damaged(change: impl FnOnce(&mut BTreeMap<PathBuf, Vec<u8>>)) -> tempfile::TempDir {
    let coins: Coins = snapshot().1.into_iter().step_by(100).collect();
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), BEST, Obfuscation::new(KEY), SMALL, &coins);
    let mut all = files(dir.path());
    change(&mut all);
    for path in files(dir.path()).into_keys() {
        fs::remove_file(path).unwrap();
    }
    all.into_iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    dir
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Damage never yields wrong coins, an uncaught panic or a change to the disk.
    #[test]
    fn damage_is_refused(
        file in any::<proptest::sample::Index>(),
        at in any::<proptest::sample::Index>(),
        with: u8,
        cut in proptest::option::weighted(0.2, Just(())),
    ) {
        let coins: Coins = snapshot().1.into_iter().step_by(100).collect();
        let mut same = false;
        let dir = damaged(|files| {
            let count = files.len();
            let bytes = files.values_mut().nth(file.index(count)).unwrap();
            let at = at.index(bytes.len());
            same = cut.is_none() && bytes[at] == with;
            match cut {
                Some(()) => bytes.truncate(at),
                None => bytes[at] = with,
            }
        });
        let before = files(dir.path());
        match read_all(dir.path()) {
            // This reader uses neither the filters nor the padding of the footer.
            Ok((_, found)) => prop_assert!(found == coins),
            Err(error) => prop_assert!(!same, "{error}"),
        }
        prop_assert!(files(dir.path()) == before);
    }
}

#[test]
fn a_damaged_block_and_a_missing_table_are_named() {
    let dir = damaged(|files| {
        let (_, bytes) = files.iter_mut().find(|(path, _)| path.ends_with("000004.ldb")).unwrap();
        bytes[30] ^= 1;
    });
    let error = read_all(dir.path()).unwrap_err();
    assert!(
        matches!(&error, ChainstateDbError::Independent(IndependentReadError::File { path, .. }) if path.ends_with("000004.ldb")),
        "{error}"
    );
    assert!(error.to_string().contains("checksum"), "{error}");
    for length in [0, 1, 47, 48, 400] {
        let dir = damaged(|files| {
            let (_, bytes) =
                files.iter_mut().find(|(path, _)| path.ends_with("000004.ldb")).unwrap();
            bytes.truncate(length);
        });
        let error = read_all(dir.path()).unwrap_err().to_string();
        assert!(error.contains("000004.ldb"), "{length}: {error}");
    }
    let dir = damaged(|files| files.retain(|path, _| !path.ends_with("000004.ldb")));
    let error = read_all(dir.path()).unwrap_err();
    assert!(
        matches!(error, ChainstateDbError::Independent(IndependentReadError::Open { .. })),
        "{error}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn the_bound_holds(
        scripts in proptest::collection::vec(
            (any::<[u8; 32]>(), prop_oneof![0u32..3, 100_000u32..111_111], 0usize..10_000),
            0..80,
        ),
    ) {
        let mut coins: Coins = Vec::new();
        for (txid, vout, length) in scripts {
            let outpoint = OutPoint { txid: Txid(txid), vout };
            coins.push((outpoint, coin_bytes(&vec![0x51; length])));
        }
        coins.sort();
        coins.dedup_by_key(|(outpoint, _)| outpoint.txid);
        let dir = tempfile::tempdir().unwrap();
        let written =
            write(dir.path(), BEST, Obfuscation::NONE, WriterOptions::default(), &coins);
        let coin_bytes = coins.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        prop_assert!(written.bytes <= size_bound(written.coins, coin_bytes));
    }
}

/// Typical coins: one per transaction, with scripts of about twenty bytes.
#[test]
fn the_size_bound_is_tight() {
    let coin = coin_bytes(&[&[0x00, 0x14][..], &[3; 20]].concat());
    let mut coins = Coins::new();
    for number in 0u32..100_000 {
        let mut txid = [0x5a; 32];
        txid[..4].copy_from_slice(&number.wrapping_mul(0x9e37_79b9).to_be_bytes());
        coins.push((OutPoint { txid: Txid(txid), vout: 1 }, coin.clone()));
    }
    coins.sort();
    let dir = tempfile::tempdir().unwrap();
    let written = write(dir.path(), BEST, Obfuscation::NONE, WriterOptions::default(), &coins);
    let bound = size_bound(written.coins, 100_000 * coin.len() as u64);
    assert!(written.bytes <= bound, "{} {bound}", written.bytes);
    assert!(bound * 10 <= written.bytes * 12, "{} {bound}", written.bytes);
    assert_eq!(size_bound(u64::MAX, u64::MAX), u64::MAX);
}

/// The caller provides the storage; here, one that fails.
#[test]
fn a_storage_error_is_reported() {
    let folder = FaultStorage::new(CrashStorage::new());
    folder.fail_from(Operation::Any, 0, std::io::ErrorKind::StorageFull);
    let error = ChainstateWriter::new(&folder, BEST, Obfuscation::NONE).err().unwrap();
    assert!(matches!(error, ChainstateDbError::Database(_)), "{error}");
    assert!(!error.is_invalid());
}
