//! Chains with undo data that the tests compute from the blocks, and indexes of them cut into segments.

use apus_chain::{
    BlockHash, BlockLayout, BlockUndo, BlockUndoWriter, BlockView, CoinRef, Network, Params,
    txids_of,
};
use apus_datadir::DatabaseEntries;
use apus_indexes::{
    CoinStatsForm, CoinStatsSegment, CoinStatsTip, FilterSegment, IndexBlock, MakeError,
    write_coin_stats_index, write_filter_index,
};
use apus_storage::DirStorage;
use apus_testkit::blkfile::read_chain;
use bitcoin::hashes::Hash as _;
use bitcoin::{Block, OutPoint, ScriptBuf, consensus::serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;

/// A block and the undo data that a node has of it.
pub(crate) struct TestBlock {
    pub raw: Vec<u8>,
    pub undo: Vec<u8>,
    /// The scripts of the outputs, then of the spent coins.
    pub scripts: Vec<ScriptBuf>,
}

/// Takes a block and the ids of its transactions.
pub(crate) type EachBlock<'e> =
    dyn FnMut(&IndexBlock<'_>, &[[u8; 32]]) -> Result<(), MakeError> + 'e;

pub(crate) struct TestChain {
    pub blocks: Vec<TestBlock>,
    pub tip: BlockHash,
    pub params: Params,
}

impl TestChain {
    /// Computes the undo data of a chain from genesis on.
    pub(crate) fn new(chain: &[Block], network: Network) -> Self {
        let mut coins = HashMap::new();
        let all = (0..).zip(chain);
        let blocks = all.map(|(height, block)| test_block(height, block, &mut coins)).collect();
        let tip = BlockHash(chain[chain.len() - 1].block_hash().to_byte_array());
        Self { blocks, tip, params: Params::of(network).clone() }
    }

    /// Reads a chain of the fixtures.
    pub(crate) fn of_fixture(blocks: &str, network: Network) -> Self {
        let genesis = bitcoin::BlockHash::from_byte_array(Params::of(network).genesis_hash.0);
        Self::new(&read_chain(&fixture(blocks), network.magic(), genesis), network)
    }

    /// Passes the blocks of some heights to `each`.
    pub(crate) fn for_each(
        &self,
        heights: std::ops::Range<usize>,
        each: &mut EachBlock<'_>,
    ) -> Result<(), MakeError> {
        for height in heights {
            let TestBlock { raw, undo, .. } = &self.blocks[height];
            let mut layout = BlockLayout::new();
            let view = layout.read(raw).unwrap();
            let undo = BlockUndo::read(undo).unwrap();
            let block = IndexBlock {
                height: height as u32,
                hash: view.hash(),
                view,
                undo: (height > 0).then_some(&undo),
            };
            each(&block, &ids(&view))?;
        }
        Ok(())
    }

    /// The value of the key `B`, of its first block only.
    pub(crate) fn best(&self) -> Vec<u8> {
        [&70016i32.to_le_bytes()[..], &[1], &self.tip.0].concat()
    }

    /// The segments that these heights separate.
    pub(crate) fn segments(&self, cuts: &[usize]) -> Vec<std::ops::Range<usize>> {
        let mut ends: Vec<_> = cuts.iter().map(|cut| cut % self.blocks.len()).collect();
        ends.extend([0, self.blocks.len()]);
        ends.sort_unstable();
        ends.windows(2).map(|ends| ends[0]..ends[1]).collect()
    }
}

/// The ids of a block's transactions.
pub(crate) fn ids(view: &BlockView<'_>) -> Vec<[u8; 32]> {
    txids_of(view).into_iter().map(|txid| txid.0).collect()
}

pub(crate) fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(path)
}

type Coins = HashMap<OutPoint, (u32, bool, bitcoin::TxOut)>;

fn test_block(height: u32, block: &Block, coins: &mut Coins) -> TestBlock {
    let (mut undo, mut scripts) = (Vec::new(), Vec::new());
    let mut writer = BlockUndoWriter::new(&mut undo, block.txdata.len());
    let mut spent_scripts = Vec::new();
    for tx in &block.txdata {
        if !tx.is_coinbase() {
            let spent: Vec<_> =
                tx.input.iter().map(|it| coins.remove(&it.previous_output).unwrap()).collect();
            writer.push_tx(spent.iter().map(|(height, coinbase, output)| CoinRef {
                height: *height,
                coinbase: *coinbase,
                amount: output.value.to_sat(),
                script: output.script_pubkey.as_bytes(),
            }));
            spent_scripts.extend(spent.into_iter().map(|(_, _, output)| output.script_pubkey));
        }
        let txid = tx.compute_txid();
        for (vout, output) in (0..).zip(&tx.output) {
            scripts.push(output.script_pubkey.clone());
            let coin = (height, tx.is_coinbase(), output.clone());
            coins.insert(OutPoint { txid, vout }, coin);
        }
    }
    writer.finish();
    scripts.extend(spent_scripts);
    TestBlock { raw: serialize(block), undo, scripts }
}

/// An index that was written.
pub(crate) struct Written {
    pub rows: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Returns all entries of a database.
pub(crate) fn rows_of(folder: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut entries = DatabaseEntries::open(folder).unwrap();
    let mut rows = BTreeMap::new();
    while let Some((key, value)) = entries.next().unwrap() {
        rows.insert(key.to_vec(), value.to_vec());
    }
    rows
}

pub(crate) fn new_folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Makes the index of filters of a chain cut at some heights, the last segment first. The files of filters
/// are in `files`.
pub(crate) fn filter_index(chain: &TestChain, cuts: &[usize], files: &Path) -> Written {
    let (folder, scratch) = (new_folder(), new_folder());
    let storages = [files, scratch.path(), folder.path()].map(DirStorage::new);
    let numbers = AtomicU32::new(0);
    let mut parts = Vec::new();
    for heights in chain.segments(cuts).into_iter().rev() {
        let mut segment = FilterSegment::new(&storages[0], &numbers, &storages[1]);
        chain.for_each(heights, &mut |block, _| segment.block(block)).unwrap();
        parts.extend(segment.finish().unwrap());
    }
    parts.reverse();
    write_filter_index(parts, &storages[2], &chain.best(), &|| Ok(())).unwrap();
    assert!(std::fs::read_dir(&scratch).unwrap().next().is_none(), "temporary files stay");
    Written { rows: rows_of(folder.path()) }
}

/// Makes the index of coin statistics of a chain cut at some heights, the last segment first.
pub(crate) fn coin_stats_index(
    chain: &TestChain,
    cuts: &[usize],
    form: CoinStatsForm,
) -> (CoinStatsTip, Written) {
    let (folder, scratch) = (new_folder(), new_folder());
    let storages = [scratch.path(), folder.path()].map(DirStorage::new);
    let mut parts = Vec::new();
    for heights in chain.segments(cuts).into_iter().rev() {
        let mut segment = CoinStatsSegment::new(&chain.params, &storages[0]);
        chain.for_each(heights, &mut |block, txids| segment.block(block, txids)).unwrap();
        parts.extend(segment.finish().unwrap());
    }
    parts.reverse();
    let tip =
        write_coin_stats_index(parts, &[(form, &storages[1])], &chain.best(), &|| Ok(())).unwrap();
    assert!(std::fs::read_dir(&scratch).unwrap().next().is_none(), "temporary files stay");
    (tip, Written { rows: rows_of(folder.path()) })
}
