//! `apus verify` and `apus reindex` on a node whose block index is wrong in ways that the node believes: about block
//! files, about how far blocks were validated, about which are invalid. Some tests also show what a node does on such
//! an index.

use crate::handover::database::entries;
use crate::handover::reindex::REINDEX;
use crate::handover::verify::{files, findings, verify};
use crate::lived::{CHAIN, Lived, grow};
use crate::sandbox::Sandbox;
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

/// An index entry: its numbers, and its header.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    height: u64,
    status: u64,
    tx_count: u64,
    /// The file, the position of the block and the position of its undo data; each only if the status says that it
    /// exists.
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

/// The index of a stopped node, for a test to change.
struct Index {
    folder: PathBuf,
    whole: BTreeMap<PathBuf, Vec<u8>>,
}

impl Index {
    fn of(sandbox: &Sandbox) -> Self {
        let folder = sandbox.path("node").join(CHAIN).join("blocks/index");
        let whole = files(&folder);
        Self { folder, whole }
    }

    /// Restores the original index.
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

/// Expects only a finding of this kind, with these words, and with `remedy` in its remedy.
fn expect(sandbox: &Sandbox, kind: &str, words: &str, remedy: &str) {
    let found = verify(sandbox, "--assumevalid default");
    assert_eq!(found.keys().collect::<Vec<_>>(), [kind], "{words}: {found:?}");
    let finding = &found[kind];
    assert!(finding["what"].as_str().unwrap().contains(words), "{words}: {finding}");
    assert!(finding["remedy"].as_str().unwrap().contains(remedy), "{words}: {finding}");
}

/// A node wrote these records, and relies on each number in them.
#[test]
fn lies_about_files_are_found() {
    let lived = Lived::new(120, &["-fastprune"]);
    let (sandbox, index) = (&lived.sandbox, Index::of(&lived.sandbox));
    assert!(verify(sandbox, "--assumevalid default").is_empty());
    let last = entries(&index.folder)[&b"l"[..]].clone();
    assert!(last[0] > 0, "several files");
    let kind = "file_record";
    let numbers: [(&str, ChangeNumbers); 8] = [
        ("but its blocks end at byte", |it| it[1] -= 1),
        ("but its undo data ends at byte", |it| it[2] -= 1),
        ("in use, but the file has", |it| it[1] += 1 << 20),
        ("in use, but the file has", |it| it[2] += 1 << 21),
        ("blocks, but the index has entries for", |it| it[0] -= 1),
        ("a node that prunes would delete", |it| it[3] += 1),
        ("a node that prunes would delete", |it| it[4] -= 1),
        ("but the index entries have times", |it| it[6] -= 1),
    ];
    for (words, change) in numbers {
        index.change_file(0, change);
        expect(sandbox, kind, words, "-reindex");
        index.restore();
    }
    // Without a record, a node considers a file empty.
    index.put(b"f\0\0\0\0", None);
    expect(sandbox, kind, "no record of this file", "-reindex");
    // New coins would not fix that, so `reindex` makes none.
    let said = sandbox.start(&format!("{REINDEX} --replace")).wait();
    said.fails(4, &["file_record", "no record of this file", "-reindex"]);
    assert!(!sandbox.has("node/regtest/chainstate.old"));
    index.restore();
    index.put(b"f\0\0\0\0", Some(b"\x01"));
    expect(sandbox, kind, "no record of this file", "-reindex");
    index.restore();
    // A node reads past a file number that is too low, and treats a missing one as 0.
    index.put(b"l", Some(&[0, 0, 0, 0]));
    assert!(verify(sandbox, "--assumevalid default").is_empty());
    index.restore();
    index.put(b"l", Some(&[last[0] + 9, 0, 0, 0]));
    expect(sandbox, kind, "has no record of it", "-reindex");
    index.restore();
    index.put(b"l", None);
    assert!(verify(sandbox, "--assumevalid default").is_empty());
    // But it does not read past a gap in the records.
    index.put(&[b'f', last[0] + 9, 0, 0, 0], Some(&[0; 7]));
    expect(sandbox, kind, "but the index has one of file", "-reindex");
    index.restore();
    // A node makes a list with a place for each number up to the last.
    index.put(b"l", Some(&2_000_000_000i32.to_le_bytes()));
    index.put(b"f\0\x94\x35\x77", Some(&[0; 7]));
    expect(sandbox, kind, "may not start", "-reindex");
    index.restore();
    index.put(b"l", Some(&(-2i32).to_le_bytes()));
    expect(sandbox, kind, "a negative number", "-reindex");
    index.restore();
    index.put(b"F\x10prunedblockfiles", Some(b"1"));
    expect(sandbox, "index_flag", "has deleted block files", "-prune");
    index.restore();
    assert!(verify(sandbox, "--assumevalid default").is_empty());
}

/// A node appends at the end of a file according to its record.
#[test]
fn a_node_writes_over_blocks_beyond_a_size_that_is_too_small() {
    let lived = Lived::new(121, &["-blocksxor=0"]);
    let index = Index::of(&lived.sandbox);
    index.change_file(0, |it| it[1] = 300);
    let node = Bitcoind::start_in(&lived.sandbox.path("node"), CHAIN, &["-checkblocks=1"]).unwrap();
    node.mine(3);
    node.stop();
    let found = verify(&lived.sandbox, "--assumevalid default");
    assert!(found.contains_key("block_damaged"), "{found:?}");
}

#[test]
fn lies_about_blocks_are_found() {
    let lived = Lived::new(122, &[]);
    let (sandbox, index) = (&lived.sandbox, Index::of(&lived.sandbox));
    let blocks = lived.chain.blocks();
    let hash = |height: usize| blocks[height].block_hash();
    let tip = lived.set.height as usize;
    let genesis = hash(0);
    let status = "index_status";
    index.change(hash(7), |entry| entry.status &= !128);
    expect(sandbox, "witness_mark", "no mark that its witnesses were stored", "-reindex");
    let refused = Bitcoind::start_in(&sandbox.path("node"), CHAIN, &[]).unwrap_err();
    assert!(refused.contains("requires validation"), "{refused}");
    index.restore();
    index.put(&key_of(genesis), None);
    expect(sandbox, status, "no entry for the genesis block", "-reindex");
    // The node creates an entry without transactions, and finds no chain.
    let refused = Bitcoind::start_in(&sandbox.path("node"), CHAIN, &[]).unwrap_err();
    assert!(refused.contains("setBlockIndexCandidates"), "{refused}");
    sandbox.start(&format!("{REINDEX} --replace")).wait().fails(4, &["genesis block", "-reindex"]);
    index.restore();
    // A node that starts reads all entries with this key, which no node writes there.
    let obfuscation = b"\x0e\0obfuscate_key";
    index.put(obfuscation, Some(&[8, 1, 2, 3, 4, 5, 6, 7, 8]));
    let found = verify(sandbox, "--assumevalid default");
    assert!(found.contains_key("index_damaged"), "{found:?}");
    assert!(Bitcoind::start_in(&sandbox.path("node"), CHAIN, &[]).is_err());
    index.restore();
    index.put(obfuscation, Some(&[8, 0, 0, 0, 0, 0, 0, 0, 0]));
    assert!(verify(sandbox, "--assumevalid default").is_empty());
    index.restore();
    let changes: [(&str, &str, BlockHash, ChangeEntry); 7] = [
        ("block_damaged", "this is not the genesis block", genesis, |it| it.places[1] += 1),
        (status, "no position for the genesis block", genesis, |it| {
            it.status &= !8;
            it.places.clear();
        }),
        (status, "a node sets level 3 and one", genesis, |it| it.tx_count = 0),
        ("index_entry", "its header says height 0", genesis, |it| it.height = 1),
        (status, "the index states validity level 6", hash(9), |it| it.status += 1),
        (status, "at least one transaction", hash(9), |it| it.tx_count = 0),
        ("index_entry", "does not mark this block as valid", hash(tip), |it| it.status -= 2),
    ];
    for (kind, words, hash, change) in changes {
        index.change(hash, change);
        let found = verify(sandbox, "--assumevalid default");
        let what = found.get(kind).and_then(|it| it["what"].as_str()).unwrap_or_default();
        assert!(what.contains(words), "{words}: {found:?}");
        index.restore();
    }
    // Wrong numbers of transactions with the right sum.
    index.change(hash(tip), |entry| entry.tx_count += 1);
    index.change(hash(tip - 1), |entry| entry.tx_count -= 1);
    if blocks[tip - 1].txdata.len() > 1 {
        expect(sandbox, "index_entry", "transactions, but the block has", "-reindex");
    }
    index.restore();
    // Two blocks have their positions swapped.
    let places = |height: usize| Entry::read(&entries(&index.folder)[&key_of(hash(height))]).places;
    let (one, other) = (places(20), places(21));
    index.change(hash(20), |entry| entry.places = vec![other[0], other[1], one[2]]);
    index.change(hash(21), |entry| entry.places = vec![one[0], one[1], other[2]]);
    let found = verify(sandbox, "--assumevalid default");
    assert!(found.contains_key("block_damaged"), "{found:?}");
    index.restore();
    assert!(verify(sandbox, "--assumevalid default").is_empty());
}

/// A node reads entries that are marked as invalid like all others when it starts.
#[test]
fn lies_about_invalid_headers_are_found() {
    let lived = Lived::new(125, &[]);
    let (sandbox, index) = (&lived.sandbox, Index::of(&lived.sandbox));
    let on_genesis = |parent: BlockHash, works: bool| {
        let mut header = lived.chain.blocks()[1].header;
        (header.prev_blockhash, header.time) = (parent, header.time + 1);
        let target = header.target();
        while header.validate_pow(target).is_ok() != works {
            header.nonce += 1;
        }
        header
    };
    let genesis = lived.chain.blocks()[0].block_hash();
    let unknown = BlockHash::from_byte_array([7; 32]);
    let lies = [
        ("lacks the proof of work", on_genesis(genesis, false), 1),
        ("its parent is missing", on_genesis(unknown, true), 1),
        ("its header says height 1", on_genesis(genesis, true), 2),
    ];
    for (words, header, height) in lies {
        let (status, tx_count, places) = (2 | 32, 0, Vec::new());
        let header_bytes = bitcoin::consensus::serialize(&header);
        let entry = Entry { height, status, tx_count, places, header: header_bytes };
        index.put(&key_of(header.block_hash()), Some(&entry.write()));
        expect(sandbox, "index_entry", words, "-reindex");
        if words == lies[0].0 {
            assert!(Bitcoind::start_in(&sandbox.path("node"), CHAIN, &[]).is_err());
        }
        index.restore();
    }
    assert!(verify(sandbox, "--assumevalid default").is_empty());
}

/// The index has wrong marks on branches that the node left.
#[test]
fn lies_about_blocks_on_other_branches_are_found() {
    let lived = Lived::new(123, &[]);
    let (sandbox, index) = (&lived.sandbox, Index::of(&lived.sandbox));
    let chain: Vec<Vec<u8>> =
        lived.chain.blocks().iter().map(|block| key_of(block.block_hash())).collect();
    let others: Vec<(BlockHash, Entry)> = entries(&index.folder)
        .iter()
        .filter(|(key, _)| key.starts_with(b"b") && !chain.contains(key))
        .map(|(key, value)| (BlockHash::from_slice(&key[1..]).unwrap(), Entry::read(value)))
        .collect();
    let connected = |entry: &Entry| entry.status & 16 > 0;
    let (left, _) = others.iter().find(|(_, entry)| connected(entry)).unwrap();
    let (never, _) = others.iter().find(|(_, entry)| !connected(entry)).unwrap();
    // This block was connected once, so its undo data has the coins that it spends.
    index.change(*left, |entry| entry.status |= 32);
    expect(sandbox, "marked_invalid", "if its undo data is right", &left.to_string());
    index.restore();
    // This block was never connected: the node's coins show that.
    let lowest = others.iter().filter(|(_, entry)| !connected(entry)).min_by_key(|it| it.1.height);
    index.change(lowest.unwrap().0, |entry| entry.status |= 32);
    expect(
        sandbox,
        "marked_invalid",
        "but the block obeys every rule",
        &lowest.unwrap().0.to_string(),
    );
    index.restore();
    index.change(*never, |entry| entry.status = entry.status & !7 | 5);
    expect(sandbox, "index_status", "connected", "-reindex");
    index.restore();
    index.change(*never, |entry| entry.status &= !128);
    expect(sandbox, "witness_mark", "no mark", "-reindex");
    index.restore();
    index.change(*left, |entry| {
        entry.status &= !8;
        entry.places.remove(1);
    });
    expect(
        sandbox,
        "index_status",
        "a position for the undo data, but no position for the block",
        "-reindex",
    );
    index.restore();
    assert!(verify(sandbox, "--assumevalid default").is_empty());
}

/// A node that goes back to a branch gets its coins from undo data without comparing them.
#[test]
fn undo_data_of_a_left_branch_has_the_coins_that_its_blocks_spent() {
    let lived = Lived::new(126, &["-blocksxor=0"]);
    let (sandbox, index) = (&lived.sandbox, Index::of(&lived.sandbox));
    let chain: Vec<Vec<u8>> =
        lived.chain.blocks().iter().map(|block| key_of(block.block_hash())).collect();
    let path = |file: u64| sandbox.path(&format!("node/{CHAIN}/blocks/rev{file:05}.dat"));
    let spends = entries(&index.folder)
        .iter()
        .filter(|(key, _)| key.starts_with(b"b") && !chain.contains(key))
        .map(|(_, value)| Entry::read(value))
        .filter(|entry| entry.status & 16 > 0)
        .find_map(|entry| {
            let (file, start) = (entry.places[0], entry.places[2] as usize);
            let bytes = fs::read(path(file)).unwrap();
            let size = u32::from_le_bytes(bytes[start - 4..start].try_into().unwrap()) as usize;
            // The numbers of transactions and of the first one's inputs, then a coin's height and coinbase flag.
            let coin = start + 2;
            let is_older =
                bytes[start] > 0 && read_varint(&mut &bytes[coin..]) >> 1 != entry.height;
            is_older.then_some((entry, file, bytes, start..start + size))
        });
    let (entry, file, mut bytes, undo) = spends.unwrap();
    let code = undo.start + 2;
    let last = code + bytes[code..].iter().position(|byte| byte & 0x80 == 0).unwrap();
    // Another height.
    bytes[last] ^= 2;
    let summed = [&entry.header[4..36], &bytes[undo.clone()]].concat();
    let sum = bitcoin::hashes::sha256d::Hash::hash(&summed);
    bytes[undo.end..undo.end + 32].copy_from_slice(&sum.to_byte_array());
    fs::write(path(file), bytes).unwrap();
    // With this height, the block may also break the rule of relative lock times.
    let found = verify(sandbox, "--assumevalid default");
    let what = found["undo_wrong"]["what"].as_str().unwrap();
    assert!(what.contains("other coins than the block spends"), "{found:?}");
}

/// A node refuses a valid chain, as may happen after its program changed. Apus reports the mark with the fix, with and
/// without undo data: a block that the node refused on arrival has none.
#[test]
fn an_invalid_mark_on_the_best_chain_is_reported_with_its_fix() {
    let (lived, node) = Lived::running(124, &[]);
    let shunned = lived.below_tip(3);
    node.invalidate_block(shunned);
    node.stop();
    let (sandbox, index) = (&lived.sandbox, Index::of(&lived.sandbox));
    let command = format!("reconsiderblock {shunned}");
    expect(sandbox, "marked_invalid", "but the block obeys every rule", &command);
    let said = sandbox.start(&format!("{REINDEX} --replace")).wait().succeeds();
    for words in ["marked_invalid", &shunned.to_string(), &command, "bitcoind -datadir=node"] {
        assert!(said.stdout.contains(words), "{words}: {said}");
    }
    // Only the refused block is stored; those above are known by their headers.
    for back in 0..4 {
        index.change(lived.below_tip(back), |entry| {
            let is_root = back == 3;
            entry.status = if is_root { 128 + 32 + 8 + 3 } else { 32 + 2 };
            entry.tx_count = if is_root { entry.tx_count } else { 0 };
            entry.places.truncate(if is_root { 2 } else { 0 });
        });
    }
    expect(
        sandbox,
        "marked_invalid",
        "the index marks the block as invalid, but the block obeys every rule",
        &command,
    );
    assert_eq!(findings(sandbox)["marked_invalid"]["hash"], shunned.to_string());
    let said = sandbox.start(&format!("{REINDEX} --replace")).wait().succeeds();
    assert!(said.stdout.contains(&command), "{said}");
    // The node follows the command, and has the whole chain again.
    index.restore();
    let node = Bitcoind::start_in(&sandbox.path("node"), CHAIN, &[]).unwrap();
    assert_eq!(node.height(), lived.set.height - 4);
    node.reconsider_block(shunned);
    assert_eq!(node.txoutset_info(), lived.set);
    node.stop();
    assert!(verify(sandbox, "--assumevalid default").is_empty());
}

/// A node that refused an invalid block is right, with and without blocks above it.
#[test]
fn a_correct_mark_is_not_a_finding() {
    let (mut lived, node) = Lived::running(125, &[]);
    let invalid = lived.chain.block_with_a_wrong_signature();
    let said = node.submit_block(&invalid).unwrap_err();
    assert!(said.contains("script-verify-flag-failed"), "{said}");
    node.stop();
    assert!(verify(&lived.sandbox, "").is_empty());
    let report = lived.sandbox.json("report.json");
    assert_eq!(report["proven"], true, "{report}");
    let said = lived.sandbox.start(&format!("{REINDEX} --replace")).wait().succeeds();
    assert!(said.stdout.contains("apus verify"), "{said}");
}

/// Apus finds no problem in a node's folder, whatever state the node left it in.
#[test]
fn nodes_in_every_state_are_sound() {
    let (mut lived, mut node) = Lived::running(126, &["-fastprune"]);
    grow(&mut lived.chain, &node, 5);
    // After a reindex, the blocks are in any order, and the node took their sizes from their positions.
    node.restart(&["-fastprune", "-reindex"]);
    while node.height() < lived.chain.height() {
        std::thread::yield_now();
    }
    node.stop();
    assert!(verify(&lived.sandbox, "").is_empty());
    assert_eq!(lived.sandbox.json("report.json")["proven"], true);
    // The disk has blocks that the index does not have yet.
    let node = Bitcoind::start_in(&lived.sandbox.path("node"), CHAIN, &["-fastprune"]).unwrap();
    grow(&mut lived.chain, &node, 9);
    node.kill();
    assert!(verify(&lived.sandbox, "").is_empty());
}
