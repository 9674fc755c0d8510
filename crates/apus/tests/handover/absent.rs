//! No folder that the program writes contains anything that would ruin a node. The tests check this entry by entry and
//! byte by byte, with their own readers and their own implementation of the formats.
//!
//! A node does not notice some of these faults when it starts, and then ruins its files or the chain in its index: a
//! missing best block, a coin too few or too many, an index without records of its files.

use crate::handover::database::{Entries, entries, expect_uncompressed};
use crate::handover::reindex::REINDEX;
use crate::handover::written::{WAYS, sync};
use crate::lived::{Lived, fixture};
use crate::sandbox::{REGTEST, REGTEST_MAGIC};
use apus_testkit::blkfile::read_chain;
use apus_testkit::chain::{ModelCoin, UtxoSet, apply_block, utxo_set};
use apus_testkit::oracle::{coin_bytes, varint};
use bitcoin::consensus::encode::VarInt;
use bitcoin::consensus::serialize;
use bitcoin::hashes::{Hash, sha256d};
use bitcoin::{Block, BlockHash, OutPoint};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The chainstate entry with the obfuscation key (Core `dbwrapper.cpp`).
const OBFUSCATION_KEY: &[u8] = b"\x0e\0obfuscate_key";

/// Core's `CDiskBlockIndex::DUMMY_VERSION`, at the beginning of each entry of the index.
const VERSION: u64 = 259_900;

/// XORs with a repeated key of eight bytes.
fn xor(bytes: &[u8], key: &[u8]) -> Vec<u8> {
    bytes.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key).collect()
}

/// Expects exactly these coins at this block, and nothing else: no mark of an unfinished write (`H`), no kind of entry
/// that a node does not know (`c` and higher), no compressed table.
fn expect_chainstate(folder: &Path, best: BlockHash, coins: &UtxoSet) {
    assert!(expect_uncompressed(folder) > 3);
    let mut found = entries(folder);
    let stored = found.remove(OBFUSCATION_KEY).unwrap();
    assert_eq!((stored.len(), stored[0]), (9, 8));
    let key = &stored[1..];
    let mut expected = Entries::new();
    expected.insert(b"B".to_vec(), xor(&best.to_byte_array(), key));
    for (outpoint, coin) in coins {
        expected.insert(coin_key(outpoint), xor(&coin_bytes(coin), key));
    }
    for (name, value) in &found {
        assert_eq!(expected.get(name), Some(value), "entry {name:02x?}");
    }
    assert_eq!(found.len(), expected.len(), "entries are missing");
}

fn coin_key(outpoint: &OutPoint) -> Vec<u8> {
    [b"C", &outpoint.txid.to_byte_array()[..], &varint(u64::from(outpoint.vout))].concat()
}

/// A block's undo data (Core `undo.h`, `CBlockUndo`): the coins that it spends, in the block's order.
fn undo_bytes(block: &Block, before: &UtxoSet, height: u32) -> Vec<u8> {
    let mut coins = before.clone();
    // The block may spend its own coins.
    apply_outputs(&mut coins, block, height);
    let transactions = &block.txdata[1..];
    let mut bytes = serialize(&VarInt(transactions.len() as u64));
    for tx in transactions {
        bytes.extend(serialize(&VarInt(tx.input.len() as u64)));
        for input in &tx.input {
            let coin = &coins[&input.previous_output];
            let stored = coin_bytes(coin);
            let code = varint(u64::from(coin.height) * 2 + u64::from(coin.coinbase));
            bytes.extend(&code);
            // This was a transaction's version once; Core still writes the byte, except for height 0.
            bytes.push(0);
            bytes.extend(&stored[code.len()..]);
        }
    }
    bytes
}

fn apply_outputs(coins: &mut UtxoSet, block: &Block, height: u32) {
    for (place, tx) in block.txdata.iter().enumerate() {
        let txid = tx.compute_txid();
        for (vout, output) in (0..).zip(&tx.output) {
            let coin = ModelCoin { output: output.clone(), height, coinbase: place == 0 };
            coins.insert(OutPoint { txid, vout }, coin);
        }
    }
}

/// The record of a block file in the index (Core `node/blockstorage.h`, `CBlockFileInfo`).
#[derive(Default, Debug, PartialEq, Eq)]
struct FileInfo {
    heights: Vec<u32>,
    times: Vec<u32>,
    size: u64,
    undo_size: u64,
}

impl FileInfo {
    fn to_bytes(&self) -> Vec<u8> {
        let edge = |numbers: &[u32]| {
            let least = numbers.iter().min().copied().unwrap_or(0);
            [least, numbers.iter().max().copied().unwrap_or(0)].map(u64::from)
        };
        let [first, last] = edge(&self.heights);
        let [earliest, latest] = edge(&self.times);
        let blocks = self.heights.len() as u64;
        [blocks, self.size, self.undo_size, first, last, earliest, latest].map(varint).concat()
    }
}

/// Expects blocks and undo data of the chain from the height `first` on, record after record without a byte between
/// or after them, and an index that has exactly these, all marked valid, with each file's record. For blocks below,
/// which a pruned node does not have, the index must have only headers and numbers of transactions.
fn expect_blocks(folder: &Path, chain: &[Block], first: u32) {
    let key = fs::read(folder.join("xor.dat")).unwrap();
    assert_eq!(key.len(), 8);
    let file = |name: &str, number: u32| {
        let path = folder.join(format!("{name}{number:05}.dat"));
        xor(&fs::read(path).unwrap(), &key)
    };
    let (mut blk, mut rev) = (file("blk", 0), file("rev", 0));
    let (mut number, mut info, mut infos) = (0u32, FileInfo::default(), BTreeMap::new());
    let (mut expected, mut coins) = (Entries::new(), UtxoSet::new());
    for (height, block) in (0u32..).zip(chain) {
        let validity = if height == 0 { 128 + 3 } else { 128 + 5 };
        if height < first {
            expected.insert(index_key(block), index_entry(block, height, validity, &[]));
            apply_block(&mut coins, height, block);
            continue;
        }
        if info.size == blk.len() as u64 {
            assert_eq!(info.undo_size, rev.len() as u64);
            infos.insert(number, std::mem::take(&mut info));
            number += 1;
            (blk, rev) = (file("blk", number), file("rev", number));
        }
        let at = info.size + 8;
        let bytes = serialize(block);
        let size = u32::try_from(bytes.len()).unwrap();
        let record = [&REGTEST_MAGIC[..], &size.to_le_bytes(), &bytes].concat();
        assert!(blk[at as usize - 8..].starts_with(&record), "block {height}");
        info.size += record.len() as u64;
        info.heights.push(height);
        info.times.push(block.header.time);
        let mut places = vec![u64::from(number), at];
        if height > 0 {
            let undo = undo_bytes(block, &coins, height);
            let parent = block.header.prev_blockhash.to_byte_array();
            let checksum = sha256d::Hash::hash(&[&parent[..], &undo].concat());
            let size = u32::try_from(undo.len()).unwrap().to_le_bytes();
            let record = [&REGTEST_MAGIC[..], &size, &undo, checksum.as_byte_array()].concat();
            let at = info.undo_size as usize;
            assert!(rev[at..].starts_with(&record), "undo data of block {height}");
            places.push(info.undo_size + 8);
            info.undo_size += record.len() as u64;
        }
        apply_block(&mut coins, height, block);
        let status = validity + if height == 0 { 8 } else { 16 + 8 };
        expected.insert(index_key(block), index_entry(block, height, status, &places));
    }
    assert_eq!((info.size, info.undo_size), (blk.len() as u64, rev.len() as u64));
    infos.insert(number, info);
    for (number, info) in &infos {
        expected.insert([b"f", &number.to_le_bytes()[..]].concat(), info.to_bytes());
    }
    expected.insert(b"l".to_vec(), number.to_le_bytes().to_vec());
    if first > 0 {
        expected.insert(b"F\x10prunedblockfiles".to_vec(), b"1".to_vec());
    }
    expect_index(folder, &expected);
    let files = fs::read_dir(folder).unwrap().count();
    assert_eq!(files, 2 * infos.len() + 2, "blocks, undo data, key, index");
}

fn index_key(block: &Block) -> Vec<u8> {
    [b"b", &block.block_hash().to_byte_array()[..]].concat()
}

fn index_entry(block: &Block, height: u32, status: u64, places: &[u64]) -> Vec<u8> {
    let numbers = [VERSION, u64::from(height), status, block.txdata.len() as u64];
    let mut bytes: Vec<u8> = numbers.iter().chain(places).flat_map(|n| varint(*n)).collect();
    bytes.extend(serialize(&block.header));
    bytes
}

fn expect_index(folder: &Path, expected: &Entries) {
    let index = folder.join("index");
    assert!(expect_uncompressed(&index) > 3);
    let found = entries(&index);
    for (name, value) in &found {
        assert_eq!(Some(value), expected.get(name), "entry {name:02x?}");
    }
    assert_eq!(found.len(), expected.len(), "entries are missing");
}

#[test]
fn folders_contain_nothing_but_the_chain_and_its_set() {
    for ((seed, args), way) in (50..).zip([&["-fastprune"][..], &["-blocksxor=0"], &[]]).zip(WAYS) {
        let lived = Lived::new(seed, args);
        let (tip, coins, blocks) = (lived.chain.tip(), lived.chain.utxo(), lived.chain.blocks());
        let sandbox = &lived.sandbox;
        sandbox.apus(&sync(way, "chainstate:coins")).succeeds();
        expect_chainstate(&sandbox.path("coins"), tip, coins);
        sandbox.apus(&format!("{} --prune", sync(way, "datadir:pruned"))).succeeds();
        expect_chainstate(&sandbox.path("pruned/regtest/chainstate"), tip, coins);
        expect_blocks(&sandbox.path("pruned/regtest/blocks"), &blocks, 1);
        if !way.contains("--hints") {
            sandbox.apus(&sync(way, "datadir:whole")).succeeds();
            expect_chainstate(&sandbox.path("whole/regtest/chainstate"), tip, coins);
            expect_blocks(&sandbox.path("whole/regtest/blocks"), &blocks, 0);
        }
        sandbox.start(&format!("{REINDEX} --replace {way}")).wait().succeeds();
        expect_chainstate(&sandbox.path("node/regtest/chainstate"), tip, coins);
    }
}

/// The fixture has a transaction with 20,001 outputs, whose keys sort differently from their numbers.
#[test]
fn folders_contain_nothing_but_the_fixtures_chain_and_set() {
    let (sandbox, set) = fixture(REGTEST);
    let genesis = bitcoin::constants::genesis_block(bitcoin::Network::Regtest).block_hash();
    let chain = read_chain(&sandbox.path("node/regtest/blocks"), REGTEST_MAGIC, genesis);
    let coins = utxo_set(&chain);
    assert_eq!(coins.len() as u64, set.txouts);
    sandbox.apus(&sync(WAYS[2], "datadir:whole")).succeeds();
    expect_chainstate(&sandbox.path("whole/regtest/chainstate"), set.best_block, &coins);
    expect_blocks(&sandbox.path("whole/regtest/blocks"), &chain, 0);
    // The chain is longer than the part that a pruned node keeps.
    let first = chain.len() as u32 - 288;
    for (number, way) in WAYS.iter().enumerate() {
        sandbox
            .apus(&format!("{} --prune", sync(way, &format!("datadir:pruned{number}"))))
            .succeeds();
        expect_blocks(&sandbox.path(&format!("pruned{number}/regtest/blocks")), &chain, first);
    }
    sandbox.apus(&sync(WAYS[1], "chainstate:coins")).succeeds();
    expect_chainstate(&sandbox.path("coins"), set.best_block, &coins);
}

/// The readers accept a node's files, and detect each kind of damage.
#[test]
fn the_readers_detect_damage() {
    let lived = Lived::new(53, &[]);
    let coins = lived.chain.utxo();
    let folder = lived.sandbox.path("node/regtest/chainstate");
    lived.sandbox.start(&format!("{REINDEX} --replace")).wait().succeeds();
    let tip = lived.chain.tip();
    expect_chainstate(&folder, tip, coins);
    let fails = |best: BlockHash, coins: UtxoSet| {
        let folder = folder.clone();
        std::thread::spawn(move || expect_chainstate(&folder, best, &coins)).join().is_err()
    };
    assert!(fails(lived.below_tip(1), coins.clone()));
    let mut other = coins.clone();
    let (name, mut coin) = other.pop_first().unwrap();
    assert!(fails(tip, other.clone()), "a coin too many");
    coin.height += 1;
    other.insert(name, coin);
    assert!(fails(tip, other.clone()), "another coin");
    let mut other = coins.clone();
    other.insert(OutPoint { vout: 70_000, ..name }, coins[&name].clone());
    assert!(fails(tip, other), "a coin too few");
}
