//! `apus verify` and `apus reindex` on a node whose block index tells lies that the node believes: of block files, of
//! how far blocks came, of what is invalid. What a node does on some of them stands beside.

use crate::desk::Desk;
use crate::handover::database::entries;
use crate::handover::reindex::REINDEX;
use crate::handover::verify::{files, findings, verify};
use crate::lived::{CHAIN, Lived, grow};
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::oracle::varint;
use bitcoin::BlockHash;
use bitcoin::hashes::Hash;
use rusty_leveldb::{DB, Options};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

type ChangeNumbers = fn(&mut [u64]);
type ChangeEntry = fn(&mut Entry);

/// The numbers of an entry, and its header.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    height: u64,
    status: u64,
    tx_count: u64,
    /// File, place of the block, place of its undo data, as far as the status says that they are there.
    places: Vec<u64>,
    header: Vec<u8>,
}

fn read_varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    loop {
        let (first, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        number = number << 7 | u64::from(first & 0x7f);
        if first & 0x80 == 0 {
            return number;
        }
        number += 1;
    }
}

impl Entry {
    fn read(mut bytes: &[u8]) -> Self {
        let mut next = || read_varint(&mut bytes);
        let (_version, height, status, tx_count) = (next(), next(), next(), next());
        let places =
            u64::from(status & 24 > 0) + u64::from(status & 8 > 0) + u64::from(status & 16 > 0);
        let places = (0..places).map(|_| next()).collect();
        Self { height, status, tx_count, places, header: bytes.to_vec() }
    }

    fn write(&self) -> Vec<u8> {
        let numbers = [259_900, self.height, self.status, self.tx_count];
        let mut bytes: Vec<u8> =
            numbers.iter().chain(&self.places).flat_map(|number| varint(*number)).collect();
        bytes.extend(&self.header);
        bytes
    }
}

/// The index of a stopped node, whose entries a test changes.
struct Index {
    folder: PathBuf,
    whole: BTreeMap<PathBuf, Vec<u8>>,
}

impl Index {
    fn of(desk: &Desk) -> Self {
        let folder = desk.path("node").join(CHAIN).join("blocks/index");
        let whole = files(&folder);
        Self { folder, whole }
    }

    /// As it was at first.
    fn restore(&self) {
        for path in files(&self.folder).into_keys() {
            fs::remove_file(path).unwrap();
        }
        self.whole.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    }

    fn put(&self, key: &[u8], value: Option<&[u8]>) {
        let options = Options { create_if_missing: false, ..Options::default() };
        let mut database = DB::open(&self.folder, options).unwrap();
        match value {
            Some(value) => database.put(key, value).unwrap(),
            None => database.delete(key).unwrap(),
        }
        database.flush().unwrap();
        database.close().unwrap();
    }

    fn change(&self, hash: BlockHash, change: impl FnOnce(&mut Entry)) {
        let key = key_of(hash);
        let mut entry = Entry::read(&entries(&self.folder)[&key]);
        change(&mut entry);
        self.put(&key, Some(&entry.write()));
    }

    /// Changes the numbers of a file's record: blocks, bytes, bytes of undo data, heights, times.
    fn change_file(&self, number: u32, change: impl FnOnce(&mut [u64])) {
        let key = [b"f", &number.to_le_bytes()[..]].concat();
        let value = entries(&self.folder)[&key].clone();
        let mut bytes = &value[..];
        let mut numbers: Vec<u64> = (0..7).map(|_| read_varint(&mut bytes)).collect();
        change(&mut numbers);
        let bytes: Vec<u8> = numbers.into_iter().flat_map(varint).collect();
        self.put(&key, Some(&bytes));
    }
}

fn key_of(hash: BlockHash) -> Vec<u8> {
    [b"b", &hash.to_byte_array()[..]].concat()
}

/// Expects this kind alone, these words, and that the remedy has those.
fn expect(desk: &Desk, kind: &str, words: &str, remedy: &str) {
    let found = verify(desk, "--assumevalid default");
    assert_eq!(found.keys().collect::<Vec<_>>(), [kind], "{words}: {found:?}");
    let finding = &found[kind];
    assert!(finding["what"].as_str().unwrap().contains(words), "{words}: {finding}");
    assert!(finding["remedy"].as_str().unwrap().contains(remedy), "{words}: {finding}");
}

/// All of it is a node's own, and each number is one that it goes by.
#[test]
fn lies_about_files_are_found() {
    let lived = Lived::new(120, &["-fastprune"]);
    let (desk, index) = (&lived.desk, Index::of(&lived.desk));
    assert!(verify(desk, "--assumevalid default").is_empty());
    let last = entries(&index.folder)[&b"l"[..]].clone();
    assert!(last[0] > 0, "several files");
    let kind = "file_record";
    let numbers: [(&str, ChangeNumbers); 8] = [
        ("blocks lie in it up to byte", |it| it[1] -= 1),
        ("undo data lie in it up", |it| it[2] -= 1),
        ("in use, and it has", |it| it[1] += 1 << 20),
        ("in use, and it has", |it| it[2] += 1 << 21),
        ("blocks lie in it, and has", |it| it[0] -= 1),
        ("a node that prunes would remove", |it| it[3] += 1),
        ("a node that prunes would remove", |it| it[4] -= 1),
        ("has blocks of times", |it| it[6] -= 1),
    ];
    for (words, change) in numbers {
        index.change_file(0, change);
        expect(desk, kind, words, "-reindex");
        index.restore();
    }
    // Without a record a node takes a file for empty.
    index.put(b"f\0\0\0\0", None);
    expect(desk, kind, "no record of this file", "-reindex");
    // New coins would not mend that, and nothing is made.
    let said = desk.start(&format!("{REINDEX} --replace")).wait();
    said.fails(4, &["file_record", "no record of this file", "-reindex"]);
    assert!(!desk.has("node/regtest/chainstate.old"));
    index.restore();
    index.put(b"f\0\0\0\0", Some(b"\x01"));
    expect(desk, kind, "no record of this file", "-reindex");
    index.restore();
    // A node reads past a number that is too low, and past none at all as past 0.
    index.put(b"l", Some(&[0, 0, 0, 0]));
    assert!(verify(desk, "--assumevalid default").is_empty());
    index.restore();
    index.put(b"l", Some(&[last[0] + 9, 0, 0, 0]));
    expect(desk, kind, "has no record of it", "-reindex");
    index.restore();
    index.put(b"l", None);
    assert!(verify(desk, "--assumevalid default").is_empty());
    // But for a record beyond a gap.
    index.put(&[b'f', last[0] + 9, 0, 0, 0], Some(&[0; 7]));
    expect(desk, kind, "and the index has one of file", "-reindex");
    index.restore();
    index.put(b"F\x10prunedblockfiles", Some(b"1"));
    expect(desk, "index_flag", "has removed block files", "-prune");
    index.restore();
    assert!(verify(desk, "--assumevalid default").is_empty());
}

/// A node appends where the record of its file says that blocks end.
#[test]
fn a_node_writes_over_blocks_beyond_a_size_that_is_too_small() {
    let lived = Lived::new(121, &["-blocksxor=0"]);
    let index = Index::of(&lived.desk);
    index.change_file(0, |it| it[1] = 300);
    let node = Bitcoind::start_in(&lived.desk.path("node"), CHAIN, &["-checkblocks=1"]).unwrap();
    node.mine(3);
    node.stop();
    let found = verify(&lived.desk, "--assumevalid default");
    assert!(found.contains_key("block_damaged"), "{found:?}");
}

#[test]
fn lies_about_blocks_are_found() {
    let lived = Lived::new(122, &[]);
    let (desk, index) = (&lived.desk, Index::of(&lived.desk));
    let blocks = lived.chain.blocks();
    let hash = |height: usize| blocks[height].block_hash();
    let tip = lived.set.height as usize;
    let genesis = hash(0);
    let status = "index_status";
    index.change(hash(7), |entry| entry.status &= !128);
    expect(desk, "witness_mark", "no mark that its witnesses were stored", "-reindex");
    let refused = Bitcoind::start_in(&desk.path("node"), CHAIN, &[]).unwrap_err();
    assert!(refused.contains("requires validation"), "{refused}");
    index.restore();
    index.put(&key_of(genesis), None);
    expect(desk, status, "no entry of the genesis block", "-reindex");
    // It makes up an entry that has no transactions, and finds no chain.
    let refused = Bitcoind::start_in(&desk.path("node"), CHAIN, &[]).unwrap_err();
    assert!(refused.contains("setBlockIndexCandidates"), "{refused}");
    desk.start(&format!("{REINDEX} --replace")).wait().fails(4, &["genesis block", "-reindex"]);
    index.restore();
    let changes: [(&str, &str, BlockHash, ChangeEntry); 7] = [
        ("block_damaged", "the genesis block does not lie there", genesis, |it| it.places[1] += 1),
        (status, "no place of the genesis block", genesis, |it| {
            it.status &= !8;
            it.places.clear();
        }),
        (status, "a node sets level 3 and one", genesis, |it| it.tx_count = 0),
        ("index_entry", "its height is 0", genesis, |it| it.height = 1),
        (status, "it has validity level 6", hash(9), |it| it.status += 1),
        (status, "at least one transaction", hash(9), |it| it.tx_count = 0),
        ("index_entry", "is not marked as valid", hash(tip), |it| it.status -= 2),
    ];
    for (kind, words, hash, change) in changes {
        index.change(hash, change);
        let found = verify(desk, "--assumevalid default");
        let what = found.get(kind).and_then(|it| it["what"].as_str()).unwrap_or_default();
        assert!(what.contains(words), "{words}: {found:?}");
        index.restore();
    }
    // Wrong numbers of transactions whose sum is right.
    index.change(hash(tip), |entry| entry.tx_count += 1);
    index.change(hash(tip - 1), |entry| entry.tx_count -= 1);
    if blocks[tip - 1].txdata.len() > 1 {
        expect(desk, "index_entry", "transactions, and the block has", "-reindex");
    }
    index.restore();
    // Two blocks have each other's place.
    let places = |height: usize| Entry::read(&entries(&index.folder)[&key_of(hash(height))]).places;
    let (one, other) = (places(20), places(21));
    index.change(hash(20), |entry| entry.places = vec![other[0], other[1], one[2]]);
    index.change(hash(21), |entry| entry.places = vec![one[0], one[1], other[2]]);
    let found = verify(desk, "--assumevalid default");
    assert!(found.contains_key("block_damaged"), "{found:?}");
    index.restore();
    assert!(verify(desk, "--assumevalid default").is_empty());
}

/// Marks on branches that the node left.
#[test]
fn lies_about_blocks_beside_the_chain_are_found() {
    let lived = Lived::new(123, &[]);
    let (desk, index) = (&lived.desk, Index::of(&lived.desk));
    let chain: Vec<Vec<u8>> =
        lived.chain.blocks().iter().map(|block| key_of(block.block_hash())).collect();
    let beside: Vec<(BlockHash, Entry)> = entries(&index.folder)
        .iter()
        .filter(|(key, _)| key.starts_with(b"b") && !chain.contains(key))
        .map(|(key, value)| (BlockHash::from_slice(&key[1..]).unwrap(), Entry::read(value)))
        .collect();
    let connected = |entry: &Entry| entry.status & 16 > 0;
    let (left, _) = beside.iter().find(|(_, entry)| connected(entry)).unwrap();
    let (never, _) = beside.iter().find(|(_, entry)| !connected(entry)).unwrap();
    // It was connected once, so its undo data say what it spends.
    index.change(*left, |entry| entry.status |= 32);
    expect(desk, "marked_invalid", "if its undo data are right", &left.to_string());
    index.restore();
    // It was not: the node's coins say that.
    let lowest = beside.iter().filter(|(_, entry)| !connected(entry)).min_by_key(|it| it.1.height);
    index.change(lowest.unwrap().0, |entry| entry.status |= 32);
    expect(desk, "marked_invalid", "it obeys every rule", &lowest.unwrap().0.to_string());
    index.restore();
    index.change(*never, |entry| entry.status = entry.status & !7 | 5);
    expect(desk, "index_status", "connected", "-reindex");
    index.restore();
    index.change(*never, |entry| entry.status &= !128);
    expect(desk, "witness_mark", "no mark", "-reindex");
    index.restore();
    index.change(*left, |entry| {
        entry.status &= !8;
        entry.places.remove(1);
    });
    expect(desk, "index_status", "a place of undo data, and none of the block", "-reindex");
    index.restore();
    assert!(verify(desk, "--assumevalid default").is_empty());
}

/// A node shuns a valid chain, as after a change of its program. It says so, and how it is mended: with undo data and
/// without, as they are not there of a block that was refused when it came.
#[test]
fn a_mark_on_the_best_chain_is_named_with_its_cure() {
    let (lived, node) = Lived::running(124, &[]);
    let shunned = lived.below_tip(3);
    node.invalidate_block(shunned);
    node.stop();
    let (desk, index) = (&lived.desk, Index::of(&lived.desk));
    let command = format!("reconsiderblock {shunned}");
    expect(desk, "marked_invalid", "it obeys every rule", &command);
    let said = desk.start(&format!("{REINDEX} --replace")).wait().succeeds();
    for words in ["marked_invalid", &shunned.to_string(), &command, "bitcoind -datadir=node"] {
        assert!(said.stdout.contains(words), "{words}: {said}");
    }
    // The refused block alone is stored, and those above are known by their headers.
    for back in 0..4 {
        index.change(lived.below_tip(back), |entry| {
            let is_root = back == 3;
            entry.status = if is_root { 128 + 32 + 8 + 3 } else { 32 + 2 };
            entry.tx_count = if is_root { entry.tx_count } else { 0 };
            entry.places.truncate(if is_root { 2 } else { 0 });
        });
    }
    expect(
        desk,
        "marked_invalid",
        "the index marks it as invalid, and it obeys every rule",
        &command,
    );
    assert_eq!(findings(desk)["marked_invalid"]["hash"], shunned.to_string());
    let said = desk.start(&format!("{REINDEX} --replace")).wait().succeeds();
    assert!(said.stdout.contains(&command), "{said}");
    // It does what it is told, and has the whole chain again.
    index.restore();
    let node = Bitcoind::start_in(&desk.path("node"), CHAIN, &[]).unwrap();
    assert_eq!(node.height(), lived.set.height - 4);
    node.reconsider_block(shunned);
    assert_eq!(node.txoutset_info(), lived.set);
    node.stop();
    assert!(verify(desk, "--assumevalid default").is_empty());
}

/// A node that refused an invalid block is right: with blocks above it, and where it came alone.
#[test]
fn a_mark_that_is_right_is_no_finding() {
    let (mut lived, node) = Lived::running(125, &[]);
    let invalid = lived.chain.block_with_a_wrong_signature();
    let said = node.submit_block(&invalid).unwrap_err();
    assert!(said.contains("script-verify-flag-failed"), "{said}");
    node.stop();
    assert!(verify(&lived.desk, "").is_empty());
    let report = lived.desk.json("report.json");
    assert_eq!(report["proven"], true, "{report}");
    let said = lived.desk.start(&format!("{REINDEX} --replace")).wait().succeeds();
    assert!(said.stdout.contains("apus verify"), "{said}");
}

/// Folders that nodes leave in every state of their lives have no finding.
#[test]
fn nodes_of_every_fate_are_sound() {
    let (mut lived, mut node) = Lived::running(126, &["-fastprune"]);
    grow(&mut lived.chain, &node, 5);
    // Blocks in any order, and sizes by the places where they lie.
    node.restart(&["-fastprune", "-reindex"]);
    while node.height() < lived.chain.height() {
        std::thread::yield_now();
    }
    node.stop();
    assert!(verify(&lived.desk, "").is_empty());
    assert_eq!(lived.desk.json("report.json")["proven"], true);
    // Blocks beyond what the index has are on the disk.
    let node = Bitcoind::start_in(&lived.desk.path("node"), CHAIN, &["-fastprune"]).unwrap();
    grow(&mut lived.chain, &node, 9);
    node.kill();
    assert!(verify(&lived.desk, "").is_empty());
}
