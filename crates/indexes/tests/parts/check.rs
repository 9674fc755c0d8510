//! The check of a node's indexes: it accepts those of a real node and ours, and finds each kind of damage.

use crate::support::{fixture, new_folder, rows_of};
use apus_chain::{Network, Params};
use apus_datadir::chainstate::node_best_block;
use apus_datadir::{BlocksFolder, DatabaseWriter, WriterOptions};
use apus_hash::sha256d;
use apus_indexes::{
    INDEX_TABLES, IndexFault, IndexForm, IndexesChecked, IndexesRequest, check_indexes, forms_in,
    index_folder, make_indexes,
};
use apus_storage::DirStorage;
use apus_sync::{ErrorKind, Event, Observer, Phase, SilentObserver};
use apus_testkit::bitcoind::Bitcoind;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// A node's folder of regtest, with indexes.
pub(crate) struct Node {
    pub(crate) folder: tempfile::TempDir,
}

impl Node {
    /// A node with blocks, undo data and coins.
    pub(crate) fn without_indexes() -> Self {
        let folder = new_folder();
        copy(&fixture("regtest-315/regtest"), &folder.path().join("regtest"));
        Self { folder }
    }

    fn new(forms: &[IndexForm]) -> Self {
        let node = Self::without_indexes();
        node.run(forms, |request| make_indexes(request).unwrap());
        node
    }

    fn netdir(&self) -> PathBuf {
        self.folder.path().join("regtest")
    }

    fn run<T>(&self, forms: &[IndexForm], run: impl FnOnce(&IndexesRequest<'_>) -> T) -> T {
        let (netdir, scratch) = (self.netdir(), new_folder());
        let blocks = netdir.join("blocks");
        run(&IndexesRequest {
            params: Params::of(Network::Regtest),
            folder: &netdir,
            blocks: BlocksFolder { files: blocks.clone(), home: blocks },
            tip: node_best_block(&netdir.join("chainstate")).unwrap().unwrap(),
            coins: None,
            forms,
            numbers: None,
            replace: false,
            scratch: &DirStorage::new(scratch.path()),
            threads: 2,
            memory_bytes: 64 << 20,
            now: 2_000_000_000,
            observer: &SilentObserver,
            interrupt: &AtomicBool::new(false),
        })
    }

    fn check(&self) -> IndexesChecked {
        let forms = forms_in(&self.netdir());
        self.run(&forms, |request| check_indexes(request, None).unwrap())
    }

    fn database(&self, form: IndexForm) -> PathBuf {
        index_folder(&self.netdir(), form).join(form.database())
    }

    /// Changes the entries of a database; returns what the check finds, and changes them back.
    fn altered(&self, form: IndexForm, alter: impl FnOnce(&mut Rows)) -> IndexesChecked {
        let folder = self.database(form);
        let before = rows_of(&folder);
        let mut rows = before.clone();
        alter(&mut rows);
        assert_ne!(rows, before, "nothing was altered");
        write(&folder, &rows);
        let checked = self.check();
        write(&folder, &before);
        checked
    }

    /// The only fault that the check finds after a change.
    fn fault(&self, form: IndexForm, alter: impl FnOnce(&mut Rows)) -> IndexFault {
        let checked = self.altered(form, alter);
        let [fault] = &checked.faults[..] else { panic!("{checked:?}") };
        fault.clone()
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (from, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        match from.is_dir() {
            true => copy(&from, &to),
            false => drop(fs::copy(from, to).unwrap()),
        }
    }
}

fn write(folder: &Path, rows: &Rows) {
    fs::remove_dir_all(folder).unwrap();
    fs::create_dir(folder).unwrap();
    let storage = DirStorage::new(folder);
    let mut database = DatabaseWriter::new(&storage, WriterOptions::default()).unwrap();
    rows.iter().for_each(|(key, value)| database.put(key, value).unwrap());
    database.finish().unwrap();
}

/// The key of one row of many.
fn some_row(rows: &Rows, of: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let all: Vec<_> = rows.keys().filter(|key| of(key)).collect();
    all[all.len() / 2].clone()
}

fn of_height(height: u32) -> Vec<u8> {
    [&b"t"[..], &height.to_be_bytes()].concat()
}

const ALL: [IndexForm; 5] = [
    IndexForm::TxIndex,
    IndexForm::BlockFilter,
    IndexForm::CoinStats,
    IndexForm::CoinStatsOld,
    IndexForm::TxoSpender,
];

#[test]
fn indexes_made_here_are_right_in_each_form() {
    let checked = Node::new(&ALL).check();
    assert_eq!((&checked.faults[..], &checked.unchecked[..]), (&[][..], &[][..]));
    assert_eq!(checked.indexes.len(), 5);
    assert!(checked.indexes.iter().all(|(form, best)| ALL.contains(form) && *best == 315));
    let checked = Node::new(&[IndexForm::TxIndexV2]).check();
    assert_eq!((&checked.faults[..], &checked.unchecked[..]), (&[][..], &[][..]));
    assert_eq!(checked.indexes, [(IndexForm::TxIndexV2, 315)]);
}

/// Also after a reorganisation, whose blocks the indexes keep, and with the node's own numbering of files.
#[test]
fn indexes_of_a_real_node_are_right() {
    let node = Node::without_indexes();
    let args = ["-txindex", "-blockfilterindex", "-coinstatsindex", "-connect=0"];
    let bitcoind = Bitcoind::start_in(node.folder.path(), "regtest", &args).unwrap();
    let synced = |height: u32| {
        crate::node::wait(|| {
            let info = bitcoind.call("getindexinfo", &[]);
            let info = info.as_object().unwrap();
            info.len() == 3 && info.values().all(|it| it["best_block_height"] == height)
        });
    };
    synced(315);
    bitcoind.mine(5);
    synced(320);
    let left = bitcoind.block_at(319).block_hash();
    bitcoind.invalidate_block(left);
    // Otherwise the same block may come again.
    let now = bitcoind.call("getblockheader", &[bitcoind.call("getbestblockhash", &[])]);
    let later = now["time"].as_u64().unwrap() + 600;
    bitcoind.call("setmocktime", &[serde_json::json!(later)]);
    bitcoind.mine(4);
    synced(322);
    bitcoind.stop();
    let checked = node.check();
    assert_eq!((&checked.faults[..], &checked.unchecked[..]), (&[][..], &[][..]));
    assert_eq!(checked.indexes.len(), 3);
    assert!(checked.indexes.iter().all(|(_, best)| *best == 322), "{checked:?}");
}

#[test]
fn wrong_rows_of_transactions_are_found() {
    let node = Node::new(&[IndexForm::TxIndex]);
    let of_tx = |key: &[u8]| key[0] == b't';
    let missing = node.fault(IndexForm::TxIndex, |rows| {
        let key = some_row(rows, of_tx);
        rows.remove(&key);
    });
    assert!(missing.block.is_some() && missing.what.contains("missing"), "{missing:?}");
    let moved = node.fault(IndexForm::TxIndex, |rows| {
        let key = some_row(rows, of_tx);
        *rows.get_mut(&key).unwrap().last_mut().unwrap() ^= 1;
    });
    assert!(moved.block.is_some(), "{moved:?}");
    let swapped = node.fault(IndexForm::TxIndex, |rows| {
        let (first, second) = (some_row(rows, of_tx), rows.last_key_value().unwrap().0.clone());
        let value = rows.insert(first.clone(), rows[&second].clone()).unwrap();
        rows.insert(second, value);
    });
    assert!((1..=2).contains(&swapped.count), "{swapped:?}");
    let unknown = node.fault(IndexForm::TxIndex, |rows| {
        rows.insert(b"T".to_vec(), Vec::new());
    });
    assert!(unknown.what.contains("the entry 54 is not one"), "{unknown:?}");
    let without_best = node.fault(IndexForm::TxIndex, |rows| {
        rows.remove(&b"B"[..]);
    });
    assert!(without_best.what.contains("no best block"), "{without_best:?}");
    // A node takes a cut best block for none, and does not start on one that it does not know.
    let cut = node.fault(IndexForm::TxIndex, |rows| rows.get_mut(&b"B"[..]).unwrap().truncate(40));
    assert!(cut.what.contains("best block is unreadable"), "{cut:?}");
    let unknown = node.fault(IndexForm::TxIndex, |rows| rows.get_mut(&b"B"[..]).unwrap()[6] ^= 1);
    assert!(unknown.what.contains("the node would not start with -txindex"), "{unknown:?}");
}

#[test]
fn wrong_rows_of_the_newer_txindex_are_found() {
    const FORM: IndexForm = IndexForm::TxIndexV2;
    let node = Node::new(&[FORM]);
    let missing = node.fault(FORM, |rows| {
        let key = some_row(rows, |key| key[0] == b'x');
        rows.remove(&key);
    });
    assert!(missing.block.is_some() && missing.what.contains("missing"), "{missing:?}");
    let salt = node.fault(FORM, |rows| rows.get_mut(&b"\x0etxid_hash_salt"[..]).unwrap()[3] ^= 1);
    assert_eq!((salt.form, salt.count), (FORM, 315));
    let salt = node.fault(FORM, |rows| drop(rows.remove(&b"\x0etxid_hash_salt"[..])));
    assert!(salt.what.contains("salt"), "{salt:?}");
    let next = node.fault(FORM, |rows| rows.get_mut(&b"\x0enext_block_seq"[..]).unwrap()[1] = 0);
    assert!(next.what.contains("number of the next block"), "{next:?}");
    let number = node.fault(FORM, |rows| {
        let key = some_row(rows, |key| key[0] == b'h');
        rows.get_mut(&key).unwrap()[0] ^= 1;
    });
    assert!(number.count >= 1, "{number:?}");
    let block = node.fault(FORM, |rows| {
        let key = some_row(rows, |key| key[0] == b'h');
        let number = u32::from_le_bytes(rows.remove(&key).unwrap().try_into().unwrap());
        let mut of_number = vec![b's'];
        apus_chain::write_varint(&mut of_number, number.into());
        rows.remove(&of_number);
    });
    assert!(block.count >= 1, "{block:?}");
}

/// A node that went over to the newer form left the block at which the older one ended.
#[test]
fn an_older_txindex_may_end_off_the_chain() {
    let node = Node::new(&[IndexForm::TxIndex]);
    let newer = rows_of(&Node::new(&[IndexForm::TxIndexV2]).database(IndexForm::TxIndexV2));
    let is_above = |number: u64| number > 307;
    let upper = newer.into_iter().filter(|(key, value)| match key[0] {
        b'h' => is_above(u32::from_le_bytes(value[..].try_into().unwrap()).into()),
        b's' => is_above(apus_chain::Reader::new(&key[1..]).varint().unwrap()),
        b'x' => is_above(apus_chain::Reader::new(&key[6..]).varint().unwrap()),
        _ => true,
    });
    // The locator has the last blocks one by one, but one that begins higher may skip the fork.
    let upper: Vec<_> = upper.collect();
    for (below, end) in [(5, 310), (9, 308)] {
        let checked = node.altered(IndexForm::TxIndex, |rows| {
            let named = rows[&b"B"[..]][5 + below * 32..][..32].to_vec();
            let best = [&70_016_i32.to_le_bytes()[..], &[2], &[7; 32], &named].concat();
            rows.insert(b"B".to_vec(), best);
            rows.extend(upper.clone());
        });
        assert_eq!((&checked.faults[..], &checked.unchecked[..]), (&[][..], &[][..]));
        assert_eq!(checked.indexes, [(IndexForm::TxIndex, end), (IndexForm::TxIndexV2, 315)]);
    }
}

#[test]
fn wrong_rows_of_inputs_are_found() {
    const FORM: IndexForm = IndexForm::TxoSpender;
    let node = Node::new(&[FORM]);
    let of_input = |key: &[u8]| key[0] == b's' && key != b"siphash_key\0";
    let missing = node.fault(FORM, |rows| {
        let key = some_row(rows, of_input);
        rows.remove(&key);
    });
    assert!(missing.block.is_some() && missing.count == 1, "{missing:?}");
    let more = node.fault(FORM, |rows| {
        let mut key = some_row(rows, of_input);
        key[3] ^= 1;
        rows.insert(key, Vec::new());
    });
    assert_eq!((more.block, more.count), (missing.block, 1));
    let salt = node.fault(FORM, |rows| drop(rows.remove(&b"siphash_key\0"[..])));
    assert!(salt.what.contains("salt"), "{salt:?}");
    // Version 31 takes the first row of a coin, wherever it leads.
    let row_at = |rows: &mut Rows, offset| {
        let mut key = some_row(rows, of_input)[..9].to_vec();
        [0, offset, 81].into_iter().for_each(|number| apus_chain::write_varint(&mut key, number));
        rows.insert(key, Vec::new());
    };
    let astray = node.fault(FORM, |rows| row_at(rows, 99_999_999));
    assert!(astray.block.is_none() && astray.count == 1, "{astray:?}");
    assert!(astray.what.contains("where the node has no block"), "{astray:?}");
    add_to_block_index(&node, 99_999_999);
    let stale = node.altered(FORM, |rows| row_at(rows, 99_999_999));
    assert!(stale.faults.is_empty() && stale.unchecked.is_empty(), "{stale:?}");
    // Version 31 wrote a zero.
    let of_31 = node.altered(FORM, |rows| {
        let key = some_row(rows, of_input);
        rows.insert(key, vec![0]);
    });
    assert!(of_31.faults.is_empty(), "{of_31:?}");
}

/// Adds another block of the last height to a node's block index, at an offset in the first file.
fn add_to_block_index(node: &Node, offset: u64) {
    let folder = node.netdir().join("blocks/index");
    let tip = node_best_block(&node.netdir().join("chainstate")).unwrap().unwrap();
    let mut entries = rows_of(&folder);
    let entry = entries[&[&b"b"[..], tip.as_bytes()].concat()].clone();
    let mut reader = apus_chain::Reader::new(&entry);
    let mut numbers = [0; 7].map(|_: u64| reader.varint().unwrap());
    let mut header: [u8; 80] = *reader.array().unwrap();
    // Behind version, height, status, number of transactions and file.
    numbers[5] = offset;
    let mut value = Vec::new();
    numbers.into_iter().for_each(|number| apus_chain::write_varint(&mut value, number));
    let hash = loop {
        header[76] = header[76].wrapping_add(1);
        let hash = sha256d(&header);
        if hash[31] < 0x7f {
            break hash;
        }
    };
    value.extend(header);
    entries.insert([&b"b"[..], &hash].concat(), value);
    write(&folder, &entries);
}

#[test]
fn wrong_filters_are_found() {
    const FORM: IndexForm = IndexForm::BlockFilter;
    let node = Node::new(&[FORM]);
    let at = |fault: &IndexFault| fault.block.map(|block| block.height);
    let hash = node.fault(FORM, |rows| rows.get_mut(&of_height(100)).unwrap()[40] ^= 1);
    assert_eq!(at(&hash), Some(100));
    let block = node.fault(FORM, |rows| rows.get_mut(&of_height(100)).unwrap()[0] ^= 1);
    assert!(at(&block) == Some(100) && block.what.contains("another block"), "{block:?}");
    let header = node.fault(FORM, |rows| rows.get_mut(&of_height(100)).unwrap()[64] ^= 1);
    assert!(at(&header) == Some(100) && header.what.contains("header"), "{header:?}");
    let missing = node.fault(FORM, |rows| drop(rows.remove(&of_height(100))));
    assert!(at(&missing) == Some(100) && missing.what.contains("missing"), "{missing:?}");
    let last = node.fault(FORM, |rows| drop(rows.remove(&of_height(315))));
    assert!(at(&last) == Some(315) && last.what.contains("missing"), "{last:?}");
    let next = node.fault(FORM, |rows| drop(rows.insert(b"P".to_vec(), vec![0, 5])));
    assert!(next.what.contains("over filters that are there"), "{next:?}");

    let far = node.fault(FORM, |rows| {
        let mut place = vec![rows[&b"P"[..]][0]];
        apus_chain::write_varint(&mut place, (1 << 24) + 1);
        rows.insert(b"P".to_vec(), place);
    });
    assert!(far.what.contains("far from the last one"), "{far:?}");
    let far = node.fault(FORM, |rows| {
        let mut place = Vec::new();
        apus_chain::write_varint(&mut place, 2_000_000_000);
        place.push(5);
        rows.insert(b"P".to_vec(), place);
    });
    assert!(far.what.contains("far from the last one"), "{far:?}");

    // A filter of a block that is another block's, with hashes and headers that fit.
    let wrong = node.fault(FORM, |rows| {
        let other = rows[&of_height(200)][32..64].to_vec();
        let file = node.database(FORM).parent().unwrap().join("fltr00000.dat");
        let mut bytes = fs::read(&file).unwrap();
        let place = |height: u32| {
            let mut reader = apus_chain::Reader::new(&rows[&of_height(height)][96..]);
            reader.varint().unwrap();
            reader.varint().unwrap() as usize
        };
        let length = |at: usize| 33 + usize::from(bytes[at + 32]);
        let (to, from) = (place(150), place(200));
        assert_eq!((length(to), bytes[from + 32] < 253), (length(from), true));
        let filter = bytes[from + 32..from + length(from)].to_vec();
        bytes[to + 32..][..filter.len()].copy_from_slice(&filter);
        fs::write(&file, &bytes).unwrap();
        rows.get_mut(&of_height(150)).unwrap()[32..64].copy_from_slice(&other);
        let mut header = rows[&of_height(149)][64..96].to_vec();
        for height in 150..=315 {
            let row = rows.get_mut(&of_height(height)).unwrap();
            header = sha256d(&[&row[32..64], &header].concat()).to_vec();
            row[64..96].copy_from_slice(&header);
        }
    });
    assert!(at(&wrong) == Some(150) && wrong.what.contains("not that of the block"), "{wrong:?}");
    // The entries are as before, the file is not.
    let [file] = &node.check().faults[..] else { panic!("one fault") };
    assert!(at(file) == Some(150) && file.what.contains("not the hash of its entry"), "{file:?}");
}

#[test]
fn wrong_statistics_are_found() {
    let node = Node::new(&ALL[2..4]);
    for form in &ALL[2..4] {
        let at = |fault: &IndexFault| fault.block.map(|block| block.height);
        let record = node.fault(*form, |rows| rows.get_mut(&of_height(7)).unwrap()[70] ^= 1);
        assert_eq!((record.form, at(&record), record.count), (*form, Some(7), 1));
        let missing = node.fault(*form, |rows| drop(rows.remove(&of_height(8))));
        assert!(at(&missing) == Some(8) && missing.what.contains("missing"), "{missing:?}");
        let state = node.fault(*form, |rows| rows.get_mut(&b"M"[..]).unwrap()[9] ^= 1);
        assert!(state.what.contains("cannot continue"), "{state:?}");
        let state = node.fault(*form, |rows| drop(rows.remove(&b"M"[..])));
        assert!(state.what.contains("cannot continue"), "{state:?}");
        let last = node.fault(*form, |rows| rows.get_mut(&of_height(315)).unwrap()[33] ^= 1);
        assert_eq!((at(&last), last.count), (Some(315), 2));
    }
}

/// A node that was killed has filters above the best block of the index, and will write over them.
#[test]
fn filters_above_the_best_block_do_no_harm() {
    const FORM: IndexForm = IndexForm::BlockFilter;
    let node = Node::new(&[FORM]);
    let checked = node.altered(FORM, |rows| {
        let hash = &rows[&of_height(300)][..32];
        let best = [&70_016_i32.to_le_bytes()[..], &[1], hash].concat();
        let place = rows[&of_height(301)][96..].to_vec();
        rows.insert(b"B".to_vec(), best);
        rows.insert(b"P".to_vec(), place);
        rows.get_mut(&of_height(310)).unwrap().truncate(50);
    });
    assert_eq!((&checked.faults[..], &checked.unchecked[..]), (&[][..], &[][..]));
    assert_eq!(checked.indexes, [(FORM, 300)]);
}

/// Rows that are there but that a node's look-ups do not find.
#[test]
fn a_filter_that_hides_transactions_is_found() {
    let node = Node::new(&[IndexForm::TxIndex]);
    hide_from_look_ups(&node.database(IndexForm::TxIndex));
    let [fault] = &node.check().faults[..] else { panic!("one fault") };
    assert!(fault.what.contains("a filter hides a key"), "{fault:?}");
}

/// Makes the first filter of a database's only table all zeros, with a right checksum.
fn hide_from_look_ups(database: &Path) {
    let table = files_of(database).find(|it| it.extension().is_some_and(|end| end == "ldb"));
    let table = table.unwrap();
    let mut bytes = fs::read(&table).unwrap();
    let varint = |at: &mut usize| {
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = bytes[*at];
            *at += 1;
            number |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return number;
            }
        }
    };
    // The footer begins with the place of the list of extra blocks; the list has the place behind its only name.
    let list = varint(&mut (bytes.len() - 48));
    let mut at = list + 3 + usize::from(bytes[list + 1]);
    let (start, length) = (varint(&mut at), varint(&mut at));
    let end = start + length;
    let places = start + u32::from_le_bytes(bytes[end - 5..end - 1].try_into().unwrap()) as usize;
    let first = u32::from_le_bytes(bytes[places + 4..places + 8].try_into().unwrap()) as usize;
    bytes[start..start + first - 1].fill(0);
    let sum = crc32c::crc32c(&bytes[start..=end]).rotate_right(15).wrapping_add(0xa282_ead8);
    bytes[end + 1..end + 5].copy_from_slice(&sum.to_le_bytes());
    fs::write(&table, bytes).unwrap();
}

fn files_of(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).unwrap().map(|it| it.unwrap().path())
}

/// A node would build the index again, or not start.
#[test]
fn an_index_without_a_readable_current_is_a_fault() {
    let node = Node::new(&ALL);
    for form in ALL {
        let current = node.database(form).join("CURRENT");
        let before = fs::read(&current).unwrap();
        for is_folder in [false, true] {
            fs::remove_file(&current).unwrap();
            if is_folder {
                fs::create_dir(&current).unwrap();
            }
            let checked = node.check();
            let [fault] = &checked.faults[..] else { panic!("{checked:?}") };
            assert!(fault.form == form && fault.what.contains("no CURRENT"), "{fault:?}");
            if is_folder {
                fs::remove_dir(&current).unwrap();
            }
            fs::write(&current, &before).unwrap();
        }
    }
    // A folder without any content is no index.
    fs::remove_dir_all(node.netdir().join("indexes")).unwrap();
    fs::create_dir_all(node.database(IndexForm::CoinStats)).unwrap();
    fs::create_dir_all(node.database(IndexForm::TxIndex)).unwrap();
    fs::write(node.database(IndexForm::TxIndex).join("LOCK"), "").unwrap();
    assert_eq!(forms_in(&node.netdir()), []);
}

/// A node with much cache leaves a long log when it stops, which is no fault.
#[test]
fn a_database_with_a_long_log_is_not_compared() {
    let node = Node::new(&[IndexForm::TxIndex, IndexForm::TxoSpender]);
    let log = node.database(IndexForm::TxIndex).join("999999.log");
    fs::File::create(log).unwrap().set_len((64 << 20) + 1).unwrap();
    let checked = node.check();
    assert_eq!(checked.faults, []);
    let [why] = &checked.unchecked[..] else { panic!("{checked:?}") };
    assert!(why.contains("txindex") && why.contains("start the node"), "{why}");
    assert_eq!(checked.indexes, [(IndexForm::TxoSpender, 315)]);
}

/// What was found before the blocks failed is reported.
#[test]
fn faults_found_before_a_damaged_block_are_told() {
    let node = Node::new(&[IndexForm::TxIndex]);
    let blocks = node.netdir().join("blocks/blk00000.dat");
    let mut bytes = fs::read(&blocks).unwrap();
    // In the coinbase of a block in the middle.
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&blocks, bytes).unwrap();
    let checked =
        node.altered(IndexForm::TxIndex, |rows| drop(rows.insert(b"T".to_vec(), Vec::new())));
    assert!(checked.faults.iter().any(|it| it.what.contains("the entry 54")), "{checked:?}");
    assert!(checked.unchecked.len() == 1 && checked.indexes.is_empty(), "{checked:?}");
}

#[test]
fn a_check_can_be_interrupted_while_it_reads_an_index() {
    let node = Node::new(&[IndexForm::TxIndex]);
    node.run(&[IndexForm::TxIndex], |request| {
        let interrupt = InterruptAt::new(INDEX_TABLES);
        let request = IndexesRequest {
            observer: &interrupt,
            interrupt: &interrupt.flag,
            blocks: request.blocks.clone(),
            ..*request
        };
        let error = check_indexes(&request, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
        assert!(!interrupt.ended.load(Ordering::Relaxed), "it read to the end");
    });
}

/// Interrupts when a phase begins.
struct InterruptAt {
    phase: Phase,
    flag: AtomicBool,
    ended: AtomicBool,
}

impl InterruptAt {
    fn new(phase: Phase) -> Self {
        Self { phase, flag: AtomicBool::new(false), ended: AtomicBool::new(false) }
    }
}

impl Observer for InterruptAt {
    fn event(&self, event: Event) {
        match event {
            Event::Started(phase) if phase == self.phase => {
                self.flag.store(true, Ordering::Relaxed)
            }
            Event::Ended { phase, .. } if phase == self.phase => {
                self.ended.store(true, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

/// A link that leads to itself stands for a file that the system cannot read.
#[test]
fn a_file_that_cannot_be_read_is_no_fault_of_an_index() {
    const FORM: IndexForm = IndexForm::BlockFilter;
    let node = Node::new(&[FORM]);
    let database = node.database(FORM);
    let table = files_of(&database).find(|it| it.extension().is_some_and(|end| end == "ldb"));
    let filters = database.parent().unwrap().join("fltr00000.dat");
    for file in [database.join("CURRENT"), table.unwrap(), filters] {
        let before = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(&file, &file).unwrap();
        let error = node.run(&[FORM], |request| check_indexes(request, None).unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
        fs::remove_file(&file).unwrap();
        fs::write(&file, before).unwrap();
    }
    assert_eq!(node.check().faults, []);
}

/// What a node leaves that was killed while it wrote, or lost its power.
#[test]
fn a_log_that_ends_within_a_record_is_no_fault() {
    let node = Node::new(&[IndexForm::TxIndex]);
    let log = node.database(IndexForm::TxIndex).join("000002.log");
    for torn in [&[1, 2, 3][..], &[1, 2, 3, 4, 200, 0, 1, 7], &[0; 100]] {
        fs::write(&log, torn).unwrap();
        let checked = node.check();
        assert_eq!((&checked.faults[..], &checked.unchecked[..]), (&[][..], &[][..]));
    }
}

#[test]
fn a_torn_database_is_a_fault_of_its_index_alone() {
    let node = Node::new(&ALL);
    let folder = node.database(IndexForm::TxoSpender);
    let table = fs::read_dir(&folder).unwrap().map(|it| it.unwrap().path());
    let table = table.filter(|it| it.extension().is_some_and(|end| end == "ldb")).max().unwrap();
    let mut bytes = fs::read(&table).unwrap();
    bytes[50] ^= 1;
    fs::write(&table, bytes).unwrap();
    let checked = node.check();
    let [fault] = &checked.faults[..] else { panic!("{checked:?}") };
    assert!(fault.form == IndexForm::TxoSpender && fault.what.contains(".ldb"), "{fault:?}");
    assert_eq!(checked.indexes.len(), 4);
}
