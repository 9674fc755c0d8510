//! [`Lived`]: the data directory of a node with a history, and its chain.

use crate::sandbox::{Fixture, Sandbox, fixtures};
use apus_testkit::bitcoind::{Bitcoind, TxOutSetInfo};
use apus_testkit::chain::{ChainBuilder, Shape, UtxoSet};
use apus_testkit::oracle;
use bitcoin::{Amount, Block, BlockHash};
use std::fs;
use std::path::{Path, PathBuf};

/// The chain's folder under the node's data directory.
pub(crate) const CHAIN: &str = "regtest";

/// Blocks before the forks: enough for the first coinbases to be spendable, after a hundred.
const TRUNK: usize = 112;

/// A node with a history, in `node` on a sandbox: its chain has every kind of script, two reorganizations and stale
/// blocks. Next to it are the set and its hints.
pub(crate) struct Lived {
    pub(crate) chain: ChainBuilder,
    pub(crate) sandbox: Sandbox,
    /// The coins at its tip, computed by the tests.
    pub(crate) set: TxOutSetInfo,
}

impl Lived {
    /// Starts a node with `args`, grows its chain, and stops it.
    pub(crate) fn new(seed: u64, args: &[&str]) -> Self {
        let (lived, node) = Self::running(seed, args);
        node.stop();
        lived
    }

    /// Makes the same history, but keeps the node running.
    pub(crate) fn running(seed: u64, args: &[&str]) -> (Self, Bitcoind) {
        let (sandbox, mut chain) = (Sandbox::empty(), ChainBuilder::new(seed));
        fs::create_dir(sandbox.path("node")).unwrap();
        let node = Bitcoind::start_in(&sandbox.path("node"), CHAIN, args).unwrap();
        grow(&mut chain, &node, TRUNK);
        let trunk = chain.tip();
        // A node that disconnects six blocks below the last tip finds no better branch.
        for length in [3, 2, 5, 12] {
            chain.set_tip(trunk);
            grow(&mut chain, &node, length);
        }
        assert_eq!(node.best_block_hash(), chain.tip());
        sandbox.write_results(&chain);
        let set = set_of(chain.height(), chain.tip(), chain.utxo());
        (Self { chain, sandbox, set }, node)
    }

    /// The block `count` below the tip.
    pub(crate) fn below_tip(&self, count: u32) -> BlockHash {
        self.chain.blocks()[(self.chain.height() - count) as usize].block_hash()
    }

    /// Replaces the set and the hints on the sandbox by an earlier height's.
    pub(crate) fn write_results_at(&mut self, height: u32) {
        let tip = self.chain.tip();
        self.chain.set_tip(self.chain.blocks()[height as usize].block_hash());
        self.sandbox.write_results(&self.chain);
        self.chain.set_tip(tip);
    }

    /// The answer that the node must give at a height of the chain.
    pub(crate) fn set_at(&self, height: u32) -> TxOutSetInfo {
        let tip = self.chain.blocks()[height as usize].block_hash();
        set_of(height, tip, &self.chain.utxo_at(tip))
    }
}

/// Adds random blocks to the chain and to the node.
pub(crate) fn grow(chain: &mut ChainBuilder, node: &Bitcoind, blocks: usize) {
    for _ in 0..blocks {
        submit(node, &chain.random_block(Shape::default()));
    }
}

/// Submits a valid block.
pub(crate) fn submit(node: &Bitcoind, block: &Block) {
    let answer = node.submit_block(block);
    // The node accepts blocks on other branches without validating them.
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

/// A sandbox with the data directory of a fixture as `node`, and the set that its node reported.
pub(crate) fn fixture(fixture: Fixture) -> (Sandbox, TxOutSetInfo) {
    let sandbox = Sandbox::with(fixture);
    sandbox.copy(&fixtures().join("regtest-315/regtest"), "node/regtest");
    let said = sandbox.json("gettxoutsetinfo.json");
    let text = |name: &str| said[name].as_str().unwrap().to_owned();
    let set = TxOutSetInfo {
        height: u32::try_from(said["height"].as_u64().unwrap()).unwrap(),
        best_block: text("bestblock").parse().unwrap(),
        txouts: said["txouts"].as_u64().unwrap(),
        total_amount: Amount::from_btc(said["total_amount"].as_f64().unwrap()).unwrap(),
        muhash: text("muhash"),
        hash_serialized_3: text("hash_serialized_3"),
    };
    (sandbox, set)
}

/// The folder of the chain in a data directory.
pub(crate) fn chain_dir(datadir: &Path) -> PathBuf {
    datadir.join(CHAIN)
}
