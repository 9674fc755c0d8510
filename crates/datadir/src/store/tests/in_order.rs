//! Stores a real node's blocks in chain order. Our folder equals the node's, and the node opens ours.

use super::*;
use crate::leveldb::Database;
use crate::tests::index_entries;
use crate::{BlockReader, ChainBlock, rev, write_block_index};
use apus_chain::{BlockUndo, Network};
use apus_storage::DirStorage;
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::chain::{ChainBuilder, Shape};
use bitcoin::consensus::encode::serialize;
use serde_json::{Value, json};

const REGTEST: [u8; 4] = Network::Regtest.magic();

/// The block file limit of a node with `-fastprune`; replaces [`FILE_BYTES_MAX`].
const FASTPRUNE_BYTES: u64 = 0x10000;

/// A stopped node's data directory and its chain.
struct Theirs {
    dir: tempfile::TempDir,
    chain: ChainBuilder,
    blocks: Vec<Made>,
    info: apus_testkit::bitcoind::TxOutSetInfo,
}

impl Theirs {
    /// Makes a chain of random blocks, in files of 64 KiB.
    fn make(seed: u64, count: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let node = Bitcoind::start_in(dir.path(), "regtest", &["-fastprune"]).unwrap();
        let mut chain = ChainBuilder::new(seed);
        let shape = Shape { transactions_max: 30, ..Shape::default() };
        chain.random_blocks(count, shape);
        for block in &chain.blocks()[1..] {
            node.submit_block(block).unwrap();
        }
        assert_eq!(node.best_block_hash(), chain.tip());
        let info = node.txoutset_info();
        compare_undo(&node, &chain);
        node.stop();
        let mut theirs = Self { dir, chain, blocks: Vec::new(), info };
        theirs.blocks = theirs.read_back();
        theirs
    }

    fn blocksdir(&self) -> PathBuf {
        self.dir.path().join("regtest/blocks")
    }

    /// All blocks and undo data from the node's files, by height.
    fn read_back(&self) -> Vec<Made> {
        let mut entries = index_entries(&self.blocksdir());
        entries.sort_by_key(|entry| entry.height);
        let files = BlockFiles::open(self.blocksdir(), REGTEST).unwrap();
        let mut undo_files = UndoFiles::open(&self.blocksdir(), REGTEST).unwrap();
        let mut reader = BlockReader::new(&files, 1 << 16);
        let mut blocks = Vec::new();
        for (entry, ours) in entries.iter().zip(self.chain.blocks()) {
            let (file, offset) = entry.data.unwrap();
            let place = files.locate(file, offset).unwrap().unwrap();
            let mut block = Vec::new();
            let read = reader.read(&mut [(0, place)], &mut |_, _, bytes| {
                block = bytes.to_vec();
                ControlFlow::Continue(())
            });
            read.unwrap();
            assert_eq!(block, serialize(&ours));
            let prev = Header::parse(&entry.header).prev;
            let undo =
                entry.undo.map(|(file, offset)| undo_files.read(file, offset, &prev).unwrap());
            let undo = undo.unwrap_or_default();
            blocks.push(Made { hash: entry.hash, prev, block, undo });
        }
        assert_eq!(blocks.len(), self.chain.height() as usize + 1);
        blocks
    }

    /// Writes the node's blocks from the height `first` on into `regtest/blocks` of a new data directory,
    /// with an index of the whole chain.
    fn store(&self, key: Obfuscation, first: usize) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let (blocksdir, log) = (dir.path().join("regtest/blocks"), dir.path().join("positions"));
        let genesis = (first == 0).then_some(&self.blocks[0].block[..]);
        let open = || {
            BlockStore::open_with(&blocksdir, &log, REGTEST, key, genesis, FASTPRUNE_BYTES).unwrap()
        };
        let mut store = open();
        for (height, made) in self.blocks.iter().enumerate().skip(first.max(1)) {
            // Reopens the store, as a restart does.
            if height == 77 {
                store.sync().unwrap();
                drop(store);
                store = open();
            }
            store.put(&made.hash, &made.block).unwrap();
            store.put_undo(&made.hash, &made.prev, spends(&made.undo)).unwrap();
        }
        let index = blocksdir.join("index");
        fs::create_dir(&index).unwrap();
        let at = &mut |height: u32| {
            let (height, made) = (height as usize, &self.blocks[height as usize]);
            let tx_count = self.chain.blocks()[height].txdata.len() as u32;
            match height < first {
                true => ChainBlock::Pruned(*made.block.first_chunk().unwrap(), tx_count),
                false => ChainBlock::Stored(made.hash),
            }
        };
        let count = self.blocks.len() as u32;
        write_block_index(&store, &DirStorage::new(index), count, at).unwrap();
        dir
    }

    /// Copies the node's chainstate into the data directory `to`.
    fn copy_chainstate(&self, to: &Path) {
        let to = to.join("regtest/chainstate");
        fs::create_dir_all(&to).unwrap();
        for entry in fs::read_dir(self.dir.path().join("regtest/chainstate")).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

/// Compares the node's undo files with the spent coins that the node reports for each block.
fn compare_undo(node: &Bitcoind, chain: &ChainBuilder) {
    let mut undo_files = UndoFiles::open(&node.blocks_dir(), REGTEST).unwrap();
    // Requesting the coins has made the node flush them to disk.
    let entries = index_entries(&node.blocks_dir());
    assert_eq!(entries.len(), chain.height() as usize + 1);
    let mut coins = 0;
    for entry in entries.iter().filter(|entry| entry.height > 0) {
        let (file, offset) = entry.undo.unwrap();
        let prev = Header::parse(&entry.header).prev;
        let undo = undo_files.read(file, offset, &prev).unwrap();
        let undo = BlockUndo::read(&undo).unwrap();
        let reply = node.call("getblock", &[json!(entry.hash.to_string()), json!(3)]);
        let inputs = reply["tx"].as_array().unwrap().iter().skip(1);
        let inputs: Vec<&Value> = inputs
            .flat_map(|tx| tx["vin"].as_array().unwrap())
            .map(|vin| &vin["prevout"])
            .collect();
        assert_eq!(inputs.len(), undo.coins().len());
        for (reply, undo) in inputs.iter().zip(undo.coins()) {
            let coin = undo.coin();
            assert_eq!(reply["height"], json!(coin.height));
            assert_eq!(reply["generated"], json!(coin.coinbase));
            let amount = bitcoin::Amount::from_btc(reply["value"].as_f64().unwrap()).unwrap();
            assert_eq!(amount.to_sat(), coin.amount);
            let script: String =
                coin.as_ref().script.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(reply["scriptPubKey"]["hex"], json!(script));
        }
        coins += inputs.len();
    }
    assert!(coins > 500, "{coins}");
}

/// Reads all entries of an index.
fn raw_index(blocksdir: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut all = BTreeMap::new();
    let visit = Database::open(&blocksdir.join("index")).unwrap().for_each(&mut |key, value| {
        all.insert(key.to_vec(), value.to_vec());
        Ok(ControlFlow::Continue(()))
    });
    visit.unwrap();
    all
}

#[test]
fn a_node_writes_the_same_and_continues_from_ours() {
    let theirs = Theirs::make(11, 260);
    let files = BlockFiles::open(theirs.blocksdir(), REGTEST).unwrap();
    let dir = theirs.store(files.obfuscation(), 0);
    let blocksdir = dir.path().join("regtest/blocks");

    // The files are equal, apart from the zeros that the node has preallocated.
    assert!(files.files().len() > 2, "{}", files.files().len());
    for file in files.files() {
        for name in [files::file_name(file.number), rev::file_name(file.number)] {
            let node = fs::read(theirs.blocksdir().join(&name)).unwrap();
            let ours = fs::read(blocksdir.join(&name)).unwrap();
            assert!(node[..ours.len()] == ours[..], "{name}");
            assert!(node[ours.len()..].iter().all(|byte| *byte == 0), "{name}");
        }
    }
    // Our index and the node's have the same content.
    let (node, ours) = (raw_index(&theirs.blocksdir()), raw_index(&blocksdir));
    for (key, value) in &ours {
        assert_eq!(node.get(key), Some(value), "{key:02x?}");
    }
    let more: Vec<_> = node.keys().filter(|key| !ours.contains_key(*key)).collect();
    assert!(more.iter().all(|key| key[0] == b'F'), "{more:02x?}");

    theirs.copy_chainstate(dir.path());
    let args = ["-fastprune", "-checklevel=4", "-checkblocks=0"];
    let mut node = Bitcoind::start_in(dir.path(), "regtest", &args).unwrap();
    assert_eq!(node.txoutset_info(), theirs.info);
    node.mine(30);
    node.restart(&args);
    assert_eq!(node.height(), theirs.info.height + 30);
    // The node has all blocks and can disconnect them.
    node.invalidate_block(theirs.chain.blocks()[200].block_hash());
    assert_eq!(node.height(), 199);
    node.reconsider_block(theirs.chain.blocks()[200].block_hash());
    assert_eq!(node.height(), theirs.info.height + 30);
}

#[test]
fn a_node_continues_from_files_of_another_length_without_a_key() {
    let theirs = Theirs::make(12, 150);
    let dir = theirs.store(Obfuscation::NONE, 0);
    // Without coins, the node connects all blocks itself, with every rule.
    let node = Bitcoind::start_in(dir.path(), "regtest", &[]).unwrap();
    // It continues to connect them after it first answers.
    for _ in 0..600 {
        if node.height() == theirs.info.height {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(node.txoutset_info(), theirs.info);
    node.mine(3);
    assert_eq!(node.height(), theirs.info.height + 3);
}

#[test]
fn a_pruning_node_continues_from_the_last_blocks_and_reorganizes() {
    let theirs = Theirs::make(13, 150);
    let dir = theirs.store(Obfuscation::new([7; 8]), 100);
    theirs.copy_chainstate(dir.path());
    let blocks = theirs.chain.blocks();
    let refused = Bitcoind::start_in(dir.path(), "regtest", &[]).unwrap_err();
    assert!(refused.contains("prune"), "{refused}");
    let mut node = Bitcoind::start_in(dir.path(), "regtest", &["-prune=550"]).unwrap();
    assert_eq!(node.txoutset_info(), theirs.info);
    node.mine(5);
    node.restart(&["-prune=550"]);
    assert_eq!(node.height(), theirs.info.height + 5);
    let info = node.call("getblockchaininfo", &[]);
    assert_eq!((&info["pruned"], &info["pruneheight"]), (&json!(true), &json!(100)));
    node.restart(&["-prune=550", "-checklevel=4", "-checkblocks=51"]);
    node.invalidate_block(blocks[100].block_hash());
    assert_eq!(node.height(), 99);
    node.reconsider_block(blocks[100].block_hash());
    assert_eq!(node.height(), theirs.info.height + 5);
}
