//! Reads back folders from our writers and from a node. Every kind of damage between writing and reading back
//! must be found.

mod damage;

use super::*;
use crate::UndoFiles;
use crate::index::{ChainBlock, write_block_index};
use crate::leveldb::{Database, DatabaseWriter, WriterOptions};
use crate::store::{BlockStore, SpentCoins};
use crate::tests::{KEY, MAGIC, fixtures};
use apus_chain::{BlockHash, BlockUndoWriter, CoinSum, CoinSumKey, KeyedCoinSum, Network, Txid};
use apus_storage::DirStorage;
use apus_testkit::chain::{ChainBuilder, ModelCoin, Shape};
use apus_testkit::oracle::coin_bytes;
use apus_testkit::rng::Rng;
use bitcoin::OutPoint;
use bitcoin::consensus::encode::serialize;
use bitcoin::hashes::Hash;
use std::collections::BTreeMap;

/// Enough blocks for coinbases to mature.
const BLOCKS: usize = 130;

/// The file length limit: makes about ten files.
const FILE_BYTES: u64 = 8_000;

/// A block with its undo data and its median time past.
#[derive(Clone)]
struct Made {
    hash: BlockHash,
    prev: BlockHash,
    block: Vec<u8>,
    tx_count: u32,
    undo: Vec<u8>,
    coins: u64,
    /// The sum of the coins that the block spends.
    spent: KeyedCoinSum,
    time: u32,
}

/// The key of the coin sums.
const SUM_KEY: CoinSumKey = CoinSumKey::new([0x77; 16]);

impl Made {
    fn spends(&self) -> SpentCoins<'_> {
        SpentCoins { undo: &self.undo, sum: self.spent }
    }
}

/// Builds a valid chain.
fn chain(seed: u64) -> Vec<Made> {
    let mut builder = ChainBuilder::new(seed);
    builder.random_blocks(BLOCKS, Shape { transactions_max: 4, ..Shape::default() });
    let mut coins: BTreeMap<OutPoint, ModelCoin> = BTreeMap::new();
    let mut all: Vec<Made> = Vec::new();
    for (height, block) in (0..).zip(builder.blocks()) {
        let (mut undo, mut spent, mut sum) = (Vec::new(), 0, CoinSum::default());
        let mut writer = BlockUndoWriter::new(&mut undo, block.txdata.len());
        for (place, tx) in block.txdata.iter().enumerate() {
            if place > 0 {
                let inputs = tx.input.iter();
                let taken = inputs.map(|input| coins.remove(&input.previous_output).unwrap());
                let taken: Vec<Vec<u8>> = taken.map(|coin| coin_bytes(&coin)).collect();
                writer.push_stored_tx(taken.iter().map(Vec::as_slice)).unwrap();
                spent += taken.len() as u64;
                for (input, coin) in tx.input.iter().zip(&taken) {
                    let OutPoint { txid, vout } = input.previous_output;
                    let txid = Txid(txid.to_byte_array());
                    sum.add(SUM_KEY.coin(&apus_chain::OutPoint { txid, vout }, coin));
                }
            }
            for (vout, output) in (0..).zip(&tx.output) {
                let coin = ModelCoin { output: output.clone(), height, coinbase: place == 0 };
                coins.insert(OutPoint { txid: tx.compute_txid(), vout }, coin);
            }
        }
        writer.finish();
        all.push(Made {
            hash: BlockHash(block.block_hash().to_byte_array()),
            prev: BlockHash(block.header.prev_blockhash.to_byte_array()),
            block: serialize(&block),
            tx_count: block.txdata.len() as u32,
            undo,
            coins: spent,
            spent: KeyedCoinSum { key: SUM_KEY, sum },
            time: builder.median_time_past(block.block_hash()),
        });
    }
    assert!(all.iter().map(|made| made.coins).sum::<u64>() > 50);
    all
}

/// The height of a pruned folder's first block.
const FIRST: u32 = 100;

/// The expected content of a folder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    InOrder,
    InAnyOrder,
    /// The last blocks, from [`FIRST`] on.
    Last,
}

/// A temporary folder and the chain that it should hold.
struct Folder {
    dir: tempfile::TempDir,
    kind: Kind,
    chain: Vec<Made>,
    /// Whether the sums of the spent coins are known.
    sums: bool,
}

impl Folder {
    fn new(kind: Kind, chain: &[Made]) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), kind, chain: chain.to_vec(), sums: true }
    }

    /// Opens a store for these files, with the genesis block if given.
    fn open(&self, key: [u8; 8], genesis: Option<&Made>) -> BlockStore {
        let (log, key) = (self.dir.path().join("log"), Obfuscation::new(key));
        let genesis = genesis.map(|made| &made.block[..]);
        BlockStore::open_with(&self.blocks(), &log, MAGIC, key, genesis, FILE_BYTES).unwrap()
    }

    /// Writes the index of the chain, with the blocks below height `first` pruned.
    fn index(&self, store: &BlockStore, first: u32) {
        let at = &mut |height: u32| {
            let made = &self.chain[height as usize];
            match height < first {
                true => ChainBlock::Pruned(*made.block.first_chunk().unwrap(), made.tx_count),
                false => ChainBlock::Stored(made.hash),
            }
        };
        write_block_index(store, &self.new_index(), self.chain.len() as u32, at).unwrap();
    }

    /// Writes blocks in chain order, like a sync that fills a data directory.
    fn in_order(chain: &[Made], key: [u8; 8]) -> Self {
        let folder = Self::new(Kind::InOrder, chain);
        let store = folder.open(key, Some(&chain[0]));
        folder.put_from(&store, 1);
        folder.index(&store, 0);
        folder
    }

    fn put_from(&self, store: &BlockStore, first: usize) {
        for made in &self.chain[first..] {
            store.put(&made.hash, &made.block).unwrap();
            store.put_undo(&made.hash, &made.prev, made.spends()).unwrap();
        }
    }

    /// Writes blocks in any order, mixed with blocks of another chain, and undo data for every third block.
    fn in_any_order(chain: &[Made], others: &[Made], seed: u64) -> Self {
        let folder = Self::new(Kind::InAnyOrder, chain);
        let store = folder.open(KEY, Some(&chain[0]));
        let mut all: Vec<&Made> = chain[1..].iter().chain(&others[1..]).collect();
        Rng::new(seed).shuffle(&mut all);
        for made in &all {
            store.put(&made.hash, &made.block).unwrap();
        }
        for made in all.iter().step_by(3) {
            store.put_undo(&made.hash, &made.prev, made.spends()).unwrap();
        }
        folder.index(&store, 0);
        folder
    }

    /// Writes only the last blocks, like a pruning node.
    fn pruned(chain: &[Made], key: [u8; 8]) -> Self {
        let folder = Self::new(Kind::Last, chain);
        let store = folder.open(key, None);
        folder.put_from(&store, FIRST as usize);
        folder.index(&store, FIRST);
        folder
    }

    fn blocks(&self) -> PathBuf {
        self.dir.path().join("blocks")
    }

    fn new_index(&self) -> DirStorage {
        let index = self.blocks().join("index");
        fs::create_dir_all(&index).unwrap();
        DirStorage::new(index)
    }

    /// Reads everything back; returns the number of index entries and the results of all parts.
    fn read(&self) -> Result<(u64, PartRead), ReadBackError> {
        let params = Params::of(Network::Regtest);
        let counts: Vec<u32> = self.chain.iter().map(|made| made.tx_count).collect();
        let context = |height: u32| BlockContext {
            params,
            height,
            hash: self.chain[height as usize].hash,
            median_time_past: self.chain[height.saturating_sub(1) as usize].time,
            verifier: None,
        };
        let folder = self.blocks();
        let spent = |height: u32| Some(self.chain[height as usize].spent);
        let written = WrittenBlocks {
            folder: &folder,
            params,
            blocks: self.chain.len() as u32,
            holds: ExpectedFolder {
                first: if self.kind == Kind::Last { FIRST } else { 0 },
                tx_counts: (self.kind == Kind::Last).then_some(&counts),
                whole: self.kind != Kind::InAnyOrder,
            },
            context: &context,
            spent: self.sums.then_some(&spent as &SpentAt<'_>),
        };
        let all = BlocksReadBack::open(written, &mut |_| ControlFlow::Continue(()))?.unwrap();
        let (mut found, mut reader) = (PartRead::default(), PartReader::new());
        for part in 0..all.parts() {
            let part = all.check(part, &mut reader)?;
            found.blocks += part.blocks;
            found.undo += part.undo;
            found.undo_coins += part.undo_coins;
            found.bytes += part.bytes;
        }
        assert_eq!(all.transactions(), counts.iter().map(|count| u64::from(*count)).sum::<u64>());
        assert!(self.kind == Kind::InAnyOrder || found.bytes == all.bytes());
        Ok((all.index_entries(), found))
    }

    /// The block and undo files with their content, and the obfuscation key.
    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let paths = fs::read_dir(self.blocks()).unwrap().map(|entry| entry.unwrap().path());
        paths
            .filter(|path| path.is_file())
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect()
    }

    /// All entries of the index.
    fn entries(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut all = BTreeMap::new();
        let visit = &mut |key: &[u8], value: &[u8]| {
            all.insert(key.to_vec(), value.to_vec());
            Ok(ControlFlow::Continue(()))
        };
        Database::open(&self.blocks().join("index")).unwrap().for_each(visit).unwrap();
        all
    }

    /// Rewrites the index with one of these entries replaced.
    fn set_entries(&self, entries: &BTreeMap<Vec<u8>, Vec<u8>>) {
        fs::remove_dir_all(self.blocks().join("index")).unwrap();
        let folder = self.new_index();
        let mut writer = DatabaseWriter::new(&folder, WriterOptions::default()).unwrap();
        for (key, value) in entries {
            writer.put(key, value).unwrap();
        }
        writer.finish().unwrap();
    }
}

fn coins(chain: &[Made]) -> u64 {
    chain.iter().map(|made| made.coins).sum()
}

#[test]
fn a_written_folder_passes() {
    let chain = chain(1);
    for key in [KEY, [0; 8]] {
        let folder = Folder::in_order(&chain, key);
        let files = folder.files();
        let count = (files.len() as u64 - 1) / 2;
        assert!(count > 5);
        let (entries, found) = folder.read().unwrap();
        let blocks = chain.len() as u64;
        assert_eq!(entries, blocks + count + 1);
        assert_eq!((found.blocks, found.undo), (blocks, blocks - 1));
        assert_eq!(found.undo_coins, coins(&chain));
        let bytes: usize = files.values().map(Vec::len).sum();
        assert_eq!(found.bytes, bytes as u64 - 8);
    }
}

#[test]
fn blocks_in_any_order_pass() {
    let (chain, others) = (chain(2), chain(3));
    for seed in 0..3 {
        let folder = Folder::in_any_order(&chain, &others, seed);
        // Unrelated files do not matter.
        fs::write(folder.blocks().join("notes"), "").unwrap();
        let (_, found) = folder.read().unwrap();
        assert_eq!(found.blocks, chain.len() as u64);
        assert!(found.undo > 20 && found.undo < 70, "{found:?}");
    }
}

#[test]
fn a_pruned_folder_passes() {
    let chain = chain(4);
    let folder = Folder::pruned(&chain, KEY);
    let (entries, found) = folder.read().unwrap();
    let last = &chain[FIRST as usize..];
    let files = folder.files().len() as u64 / 2;
    assert_eq!(entries, chain.len() as u64 + 2 + files);
    assert_eq!((found.blocks, found.undo), (last.len() as u64, last.len() as u64));
    assert_eq!(found.undo_coins, last.iter().map(|made| made.coins).sum::<u64>());
}

#[test]
fn reading_the_index_can_be_cancelled() {
    let folder = Folder::pruned(&chain(5), KEY);
    let params = Params::of(Network::Regtest);
    let context = |height: u32| BlockContext {
        params,
        height,
        hash: folder.chain[height as usize].hash,
        median_time_past: 0,
        verifier: None,
    };
    let counts: Vec<u32> = folder.chain.iter().map(|made| made.tx_count).collect();
    let (blocks, dir) = (folder.chain.len() as u32, folder.blocks());
    let holds = ExpectedFolder { first: FIRST, tx_counts: Some(&counts), whole: true };
    let (context, spent) = (&context, None);
    let written = WrittenBlocks { folder: &dir, params, blocks, holds, context, spent };
    let all = BlocksReadBack::open(written, &mut |_| ControlFlow::Break(())).unwrap();
    assert!(all.is_none());
}

/// A real node's files pass like ours, apart from their preallocated space and the index entries about the
/// node itself.
#[test]
fn a_nodes_folder_passes() {
    let theirs = fixtures().join("regtest-315/regtest/blocks");
    let mut chain = Vec::new();
    crate::read_index(&theirs, &mut |entry| {
        chain.push(entry);
        ControlFlow::Continue(())
    })
    .unwrap();
    chain.sort_by_key(|entry| entry.height);
    let times: Vec<u32> =
        chain.iter().map(|entry| apus_chain::Header::parse(&entry.header).time).collect();
    let median = |height: usize| {
        let mut last: Vec<u32> = times[height.saturating_sub(10)..=height].to_vec();
        last.sort_unstable();
        last[last.len() / 2]
    };
    let chain: Vec<Made> = chain
        .iter()
        .map(|entry| Made {
            hash: entry.hash,
            prev: BlockHash::ZERO,
            block: Vec::new(),
            tx_count: entry.tx_count,
            undo: Vec::new(),
            coins: 0,
            spent: KeyedCoinSum::NONE,
            time: median(entry.height as usize),
        })
        .collect();
    let folder = Folder { sums: false, ..Folder::new(Kind::InOrder, &chain) };
    fs::create_dir_all(folder.blocks().join("index")).unwrap();
    for place in ["", "index"] {
        for entry in fs::read_dir(theirs.join(place)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let to = folder.blocks().join(place).join(path.file_name().unwrap());
                fs::write(to, fs::read(path).unwrap()).unwrap();
            }
        }
    }
    let mut entries = folder.entries();
    entries.retain(|key, _| key[0] != b'F');
    folder.set_entries(&entries);
    if !folder.blocks().join(KEY_FILE).exists() {
        fs::write(folder.blocks().join(KEY_FILE), [0; 8]).unwrap();
    }
    for (path, bytes) in folder.files() {
        let number = path.to_str().unwrap().trim_end_matches(".dat").rsplit(['k', 'v']).next();
        let Some(Ok(number)) = number.map(str::parse::<i32>) else { continue };
        let value = &entries[&[&b"f"[..], &number.to_le_bytes()].concat()];
        let mut reader = apus_chain::Reader::new(value);
        let sizes: Vec<u64> = (0..3).map(|_| reader.varint().unwrap()).collect();
        let is_undo = path.file_name().unwrap().to_str().unwrap().starts_with("rev");
        let length = sizes[if is_undo { 2 } else { 1 }] as usize;
        assert!(bytes[length..].iter().all(|byte| *byte == 0));
        fs::write(path, &bytes[..length]).unwrap();
    }
    let (_, found) = folder.read().unwrap();
    assert_eq!((found.blocks, found.undo, found.undo_coins), (316, 315, 10));
    let mut undo = UndoFiles::open(&folder.blocks(), MAGIC).unwrap();
    assert!(undo.read(0, 8, &chain[0].hash).is_ok());
}
