//! A real node continues from a folder of blocks in random order, with undo data only for the last few.

use super::*;
use crate::index::{ChainBlock, IndexEntry, write_block_index};
use crate::tests::index_entries;
use apus_chain::Network;
use apus_storage::DirStorage;
use apus_testkit::bitcoind::{Bitcoind, TxOutSetInfo};
use apus_testkit::chain::{ChainBuilder, Shape};
use bitcoin::Block;
use bitcoin::consensus::encode::serialize;
use bitcoin::hashes::Hash;

const REGTEST: [u8; 4] = Network::Regtest.magic();

/// The block file limit of a node with `-fastprune`.
const FASTPRUNE_BYTES: u64 = 0x10000;

/// The number of blocks with undo data, at the end of the chain. A node checks six when it starts.
const WITH_UNDO: usize = 10;

const SHAPE: Shape = Shape { transactions_max: 30, inputs_max: 4, outputs_max: 6 };

/// A stopped node, and a data directory with its coins and our blocks.
struct Handover {
    theirs: tempfile::TempDir,
    ours: tempfile::TempDir,
    chain: ChainBuilder,
    /// The blocks off the chain.
    aside: Vec<Block>,
    info: TxOutSetInfo,
}

fn hash_of(block: &Block) -> BlockHash {
    BlockHash(block.block_hash().to_byte_array())
}

impl Handover {
    /// Makes a node with a chain of 150 blocks and a shorter branch, then stops it.
    fn new(seed: u64) -> Self {
        let [theirs, ours] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let node = Bitcoind::start_in(theirs.path(), "regtest", &["-fastprune"]).unwrap();
        let mut chain = ChainBuilder::new(seed);
        chain.random_blocks(140, SHAPE);
        let trunk = chain.tip();
        let aside = chain.random_blocks(4, SHAPE);
        chain.set_tip(trunk);
        chain.random_blocks(10, SHAPE);
        for block in chain.blocks()[1..].iter().chain(&aside) {
            let answer = node.submit_block(block);
            assert!(answer.as_ref().err().is_none_or(|said| said == "inconclusive"), "{answer:?}");
        }
        assert_eq!(node.best_block_hash(), chain.tip());
        let info = node.txoutset_info();
        node.stop();
        Self { theirs, ours, chain, aside, info }
    }

    /// Stores the blocks in our folder in random order, with a restart in between, and copies the coins.
    fn keep(&self, key: Obfuscation, max: u64, rng: &mut Rng) {
        let (chain_dir, log) = (self.ours.path().join("regtest"), self.ours.path().join("kept"));
        let blocksdir = chain_dir.join("blocks");
        let chain = self.chain.blocks();
        let genesis = serialize(&chain[0]);
        let open =
            || BlockStore::open_with(&blocksdir, &log, REGTEST, key, Some(&genesis), max).unwrap();
        let mut order: Vec<&Block> = chain[1..].iter().chain(&self.aside).collect();
        rng.shuffle(&mut order);
        let mut kept = open();
        for (at, block) in order.into_iter().enumerate() {
            if at == 77 {
                kept.sync().unwrap();
                drop(kept);
                kept = open();
            }
            kept.put(&hash_of(block), &serialize(block)).unwrap();
        }
        for (hash, prev, undo) in self.undo_of_last() {
            kept.put_undo(&hash, &prev, spends(&undo)).unwrap();
        }
        let index = blocksdir.join("index");
        fs::create_dir(&index).unwrap();
        let at = &mut |height| ChainBlock::Stored(hash_of(&chain[height as usize]));
        write_block_index(&kept, &DirStorage::new(&index), chain.len() as u32, at).unwrap();
        let chainstate = chain_dir.join("chainstate");
        fs::create_dir(&chainstate).unwrap();
        for entry in fs::read_dir(self.theirs.path().join("regtest/chainstate")).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), chainstate.join(entry.file_name())).unwrap();
        }
    }

    /// Reads the undo data of the last blocks from the node's files, with the hashes of the blocks and of the
    /// previous ones.
    fn undo_of_last(&self) -> Vec<(BlockHash, BlockHash, Vec<u8>)> {
        let blocksdir = self.theirs.path().join("regtest/blocks");
        let entries = index_entries(&blocksdir).into_iter();
        let entries: BTreeMap<BlockHash, IndexEntry> =
            entries.map(|entry| (entry.hash, entry)).collect();
        let mut files = UndoFiles::open(&blocksdir, REGTEST).unwrap();
        let chain = self.chain.blocks();
        let last = chain[chain.len() - WITH_UNDO..].iter();
        last.map(|block| {
            let entry = &entries[&hash_of(block)];
            let (file, offset) = entry.undo.unwrap();
            let prev = Header::parse(&entry.header).prev;
            (entry.hash, prev, files.read(file, offset, &prev).unwrap())
        })
        .collect()
    }

    fn start(&self, args: &[&str]) -> Bitcoind {
        // Removed, because it contains messages of earlier starts.
        let _ = fs::remove_file(self.ours.path().join("regtest/debug.log"));
        Bitcoind::start_in(self.ours.path(), "regtest", args).unwrap()
    }

    /// The hash of the block `count` below the tip.
    fn below_tip(&self, count: usize) -> bitcoin::BlockHash {
        let chain = self.chain.blocks();
        chain[chain.len() - 1 - count].block_hash()
    }
}

#[track_caller]
fn has_verified(node: &Bitcoind, blocks: u32) {
    let said = format!("No coin database inconsistencies in last {blocks} blocks");
    assert!(node.log().contains(&said), "{}", node.log());
}

/// A node with default options starts at the same tip, mines and restarts. It disconnects three of our blocks
/// and connects them again, then switches to a longer branch from there. It finds every block.
#[test]
fn a_node_continues_from_blocks_in_any_order() {
    for (seed, key, max, arg) in [
        (21, Obfuscation::new(KEY), FASTPRUNE_BYTES, "-fastprune"),
        (22, Obfuscation::NONE, FILE_BYTES_MAX, "-blocksxor=0"),
    ] {
        let mut handover = Handover::new(seed);
        handover.keep(key, max, &mut Rng::new(seed));
        let (height, tip) = (handover.info.height, handover.chain.tip());
        let files = fs::read_dir(handover.ours.path().join("regtest/blocks")).unwrap().count();
        assert!(max == FILE_BYTES_MAX || files > 8, "{files}");

        let mut node = handover.start(&[arg]);
        has_verified(&node, 6);
        assert!(!node.log().contains("UpdateTip"), "no block is connected again");
        assert_eq!(node.txoutset_info(), handover.info);
        node.mine(3);
        let mined = node.txoutset_info();
        node.restart(&[arg]);
        assert_eq!((node.height(), node.txoutset_info()), (height + 3, mined.clone()));
        node.invalidate_block(handover.below_tip(2));
        assert_eq!(node.height(), height - 3);
        node.reconsider_block(handover.below_tip(2));
        assert_eq!(node.txoutset_info(), mined);

        handover.chain.set_tip(handover.below_tip(3));
        for block in handover.chain.random_blocks(8, SHAPE) {
            let answer = node.submit_block(&block);
            assert!(answer.as_ref().err().is_none_or(|said| said == "inconclusive"), "{answer:?}");
        }
        assert_eq!(node.best_block_hash(), handover.chain.tip());
        let info = node.txoutset_info();
        assert_eq!((info.height, node.block_at(height).block_hash() != tip), (height + 5, true));
        node.stop();

        // The node reads and checks every block, at all heights.
        let node = handover.start(&[arg, "-checkblocks=0", "-checklevel=1"]);
        has_verified(&node, height + 5);
        assert_eq!(node.txoutset_info(), info);
        assert_eq!(node.block_at(1), handover.chain.blocks()[1]);
        node.stop();
    }
}

/// A node that has only the files rebuilds index and coins, with the same result.
#[test]
fn a_node_rebuilds_everything_from_the_files() {
    let handover = Handover::new(23);
    handover.keep(Obfuscation::new(KEY), FASTPRUNE_BYTES, &mut Rng::new(23));
    let node = handover.start(&["-fastprune", "-reindex"]);
    // It continues to connect blocks after it first answers.
    for _ in 0..600 {
        if node.height() == handover.info.height {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(node.txoutset_info(), handover.info);
    // Our folder also has the blocks off the chain.
    for block in &handover.aside {
        let hash = serde_json::json!(block.block_hash().to_string());
        let reply = node.call("getblockheader", &[hash]);
        assert_eq!(reply["confirmations"], serde_json::json!(-1));
    }
}
