//! [`Lived`]: a stopped node's data directory, and the chain that it went through.

use crate::desk::{Desk, Fixture, fixtures};
use apus_testkit::bitcoind::{Bitcoind, TxOutSetInfo};
use apus_testkit::chain::{ChainBuilder, Shape, UtxoSet};
use apus_testkit::oracle;
use bitcoin::{Amount, Block, BlockHash};
use std::fs;
use std::path::{Path, PathBuf};

/// Where the node's chain is, under its data directory.
pub(crate) const CHAIN: &str = "regtest";

/// Blocks before the forks: the first coinbases can be spent after a hundred.
const TRUNK: usize = 112;

/// A node of the past, as `node` on a desk, with a chain of every kind of script, two
/// reorganizations and blocks that stayed behind. Beside it are the set and its hints.
pub(crate) struct Lived {
    pub(crate) chain: ChainBuilder,
    pub(crate) desk: Desk,
    /// The coins at its tip, by an account of the tests' own.
    pub(crate) set: TxOutSetInfo,
}

impl Lived {
    /// Starts a node with `args`, lets it live, and stops it.
    pub(crate) fn new(seed: u64, args: &[&str]) -> Self {
        let (lived, node) = Self::running(seed, args);
        node.stop();
        lived
    }

    /// The same with the node still there.
    pub(crate) fn running(seed: u64, args: &[&str]) -> (Self, Bitcoind) {
        let (desk, mut chain) = (Desk::empty(), ChainBuilder::new(seed));
        fs::create_dir(desk.path("node")).unwrap();
        let node = Bitcoind::start_in(&desk.path("node"), CHAIN, args).unwrap();
        grow(&mut chain, &node, TRUNK);
        let trunk = chain.tip();
        // Going back six blocks from the last tip, the node finds no branch that is better.
        for length in [3, 2, 5, 12] {
            chain.set_tip(trunk);
            grow(&mut chain, &node, length);
        }
        assert_eq!(node.best_block_hash(), chain.tip());
        desk.write_results(&chain);
        let set = set_of(chain.height(), chain.tip(), chain.utxo());
        (Self { chain, desk, set }, node)
    }

    /// The block so many below the tip.
    pub(crate) fn below_tip(&self, count: u32) -> BlockHash {
        self.chain.blocks()[(self.chain.height() - count) as usize].block_hash()
    }

    /// Replaces the set and the hints on the desk by those of an earlier height.
    pub(crate) fn write_results_at(&mut self, height: u32) {
        let tip = self.chain.tip();
        self.chain.set_tip(self.chain.blocks()[height as usize].block_hash());
        self.desk.write_results(&self.chain);
        self.chain.set_tip(tip);
    }

    /// What the node must say after some block of the chain.
    pub(crate) fn set_at(&self, height: u32) -> TxOutSetInfo {
        let tip = self.chain.blocks()[height as usize].block_hash();
        set_of(height, tip, &self.chain.utxo_at(tip))
    }
}

/// Adds random blocks to both.
pub(crate) fn grow(chain: &mut ChainBuilder, node: &Bitcoind, blocks: usize) {
    for _ in 0..blocks {
        submit(node, &chain.random_block(Shape::default()));
    }
}

/// Hands over a block that is fine.
pub(crate) fn submit(node: &Bitcoind, block: &Block) {
    let answer = node.submit_block(block);
    // Blocks beside the best chain are taken, but not judged.
    let taken = answer.as_ref().err().is_none_or(|reason| reason == "inconclusive");
    assert!(taken, "{answer:?}");
}

fn set_of(height: u32, tip: BlockHash, coins: &UtxoSet) -> TxOutSetInfo {
    TxOutSetInfo {
        height,
        best_block: tip,
        txouts: coins.len() as u64,
        total_amount: coins.values().map(|coin| coin.output.value).sum(),
        muhash: oracle::muhash(coins),
        hash_serialized_3: oracle::hash_serialized_3(coins),
    }
}

/// A desk with the data directory of a fixture as `node`, and what its node said of it.
pub(crate) fn fixture(fixture: Fixture) -> (Desk, TxOutSetInfo) {
    let desk = Desk::with(fixture);
    desk.copy(&fixtures().join("regtest-315/regtest"), "node/regtest");
    let said = desk.json("gettxoutsetinfo.json");
    let text = |name: &str| said[name].as_str().unwrap().to_owned();
    let set = TxOutSetInfo {
        height: u32::try_from(said["height"].as_u64().unwrap()).unwrap(),
        best_block: text("bestblock").parse().unwrap(),
        txouts: said["txouts"].as_u64().unwrap(),
        total_amount: Amount::from_btc(said["total_amount"].as_f64().unwrap()).unwrap(),
        muhash: text("muhash"),
        hash_serialized_3: text("hash_serialized_3"),
    };
    (desk, set)
}

/// A node's own folder of a chain.
pub(crate) fn chain_dir(datadir: &Path) -> PathBuf {
    datadir.join(CHAIN)
}
