//! A real node opens a chainstate that we wrote, verifies it and continues from it.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use apus_chain::{Txid, write_compact_size};
use apus_datadir::Obfuscation;
use apus_datadir::chainstate::{ChainstateWriter, read_back};
use apus_datadir::snapshot::SnapshotReader;
use apus_storage::DirStorage;
use apus_testkit::bitcoind::Bitcoind;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/regtest-315")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Writes the fixture's snapshot as a chainstate.
fn write_chainstate(dir: &Path, key: Obfuscation) {
    let bytes = fs::read(fixture().join("utxo.dat")).unwrap();
    let mut reader = SnapshotReader::new(&bytes[..], None).unwrap();
    let mut groups: Vec<(Txid, u64, Vec<u8>)> = Vec::new();
    while let Some(next) = reader.next_coin().unwrap() {
        let txid = next.outpoint.txid;
        if groups.last().is_none_or(|(last, ..)| *last != txid) {
            groups.push((txid, 0, Vec::new()));
        }
        let (_, count, coins) = groups.last_mut().unwrap();
        *count += 1;
        write_compact_size(coins, u64::from(next.outpoint.vout));
        coins.extend_from_slice(next.bytes);
    }
    fs::create_dir(dir).unwrap();
    let folder = DirStorage::new(dir);
    let mut writer = ChainstateWriter::new(&folder, reader.header().base_hash, key).unwrap();
    for (txid, count, coins) in groups {
        let mut group = Vec::new();
        write_compact_size(&mut group, count);
        group.extend_from_slice(&coins);
        writer.put_group(&txid, &group).unwrap();
    }
    assert_eq!(writer.finish().unwrap().coins, reader.header().coins);
}

fn coins(chainstate: &Path) -> u64 {
    read_back(chainstate, &mut |_, _| ControlFlow::Continue(())).unwrap().coins
}

#[test]
fn a_node_continues_from_our_chainstate() {
    let text = fs::read_to_string(fixture().join("gettxoutsetinfo.json")).unwrap();
    let expected: serde_json::Value = serde_json::from_str(&text).unwrap();
    for key in
        [Obfuscation::new([0x68, 0x44, 0xbe, 0x81, 0x9b, 0x4e, 0xbc, 0xbf]), Obfuscation::NONE]
    {
        let datadir = tempfile::tempdir().unwrap();
        let chain = datadir.path().join("regtest");
        copy(&fixture().join("regtest/blocks"), &chain.join("blocks"));
        let chainstate = chain.join("chainstate");
        write_chainstate(&chainstate, key);
        let table = fs::read(chainstate.join("000003.ldb")).unwrap();

        // Level 4 makes the node disconnect every block and connect it again.
        let args = ["-checklevel=4", "-checkblocks=0"];
        let node = Bitcoind::start_in(datadir.path(), "regtest", &args).unwrap();
        let log = node.log();
        assert!(log.contains("No coin database inconsistencies in last 315 blocks"), "{log}");
        // The node uses the set unchanged: it connects no block again and merges no table.
        assert!(!log.contains("Rolling forward") && !log.contains("UpdateTip"), "{log}");
        assert!(fs::read(chainstate.join("000003.ldb")).unwrap() == table);
        let info = node.txoutset_info();
        assert_eq!(info.muhash, expected["muhash"]);
        assert_eq!(info.hash_serialized_3, expected["hash_serialized_3"]);
        assert_eq!(info.txouts, expected["txouts"]);
        assert_eq!(info.best_block.to_string(), expected["bestblock"]);

        node.mine(3);
        let after = node.txoutset_info();
        drop(node.stop());
        assert_eq!(coins(&chainstate), after.txouts);
        let node = Bitcoind::start_in(datadir.path(), "regtest", &args).unwrap();
        assert_eq!((node.height(), node.txoutset_info()), (318, after));
    }
}
