//! Submits random trees of valid and invalid blocks in random order, and invalidates and reconsiders blocks: a
//! real node has the same tip after every step.

use crate::sandbox::{Scripts, manager, reason};
use apus_chain::{Network, Params};
use apus_sync::chainman::{ChainManager, SubmitOutcome};
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::chain::{BlockPlan, ChainBuilder, Commitment, ScriptKind, Shape, seal};
use apus_testkit::rng::Rng;
use bitcoin::consensus::serialize;
use bitcoin::hashes::Hash;
use bitcoin::{Block, BlockHash};
use std::collections::{HashMap, VecDeque};

/// Makes blocks on random parents; some break a rule, some are damaged copies.
struct Supply {
    chain: ChainBuilder,
    rng: Rng,
    tips: Vec<BlockHash>,
}

impl Supply {
    fn new(seed: u64) -> Self {
        let mut chain = ChainBuilder::new(seed);
        for _ in 0..102 {
            chain.random_block(Shape::default());
        }
        let tips = vec![chain.tip()];
        Self { chain, rng: Rng::new(seed), tips }
    }

    /// Makes a new block, usually the child of an earlier one.
    fn block(&mut self) -> Block {
        let back = self.rng.below(self.tips.len().min(4) as u64) as usize;
        self.chain.set_tip(self.tips[self.tips.len() - 1 - back]);
        let block = match self.rng.below(10) {
            0 => self.greedy(),
            1 => self.with_the_wrong_height(),
            2 => self.spends_nothing(),
            3 => self.chain.add_plan(BlockPlan { version: Some(1), ..BlockPlan::default() }),
            4 => self
                .chain
                .add_plan(BlockPlan { commitment: Commitment::Always, ..BlockPlan::default() }),
            5 | 6 => self.chain.block_with(Vec::new()),
            _ => self.chain.random_block(Shape::default()),
        };
        self.tips.push(block.block_hash());
        block
    }

    /// Makes a block whose coinbase claims one satoshi too much.
    fn greedy(&mut self) -> Block {
        let value = ChainBuilder::subsidy(self.chain.height() + 1) + 1;
        let output = self.chain.output(value, ScriptKind::OpTrue);
        self.chain
            .add_plan(BlockPlan { coinbase_outputs: Some(vec![output]), ..BlockPlan::default() })
    }

    fn with_the_wrong_height(&mut self) -> Block {
        let height = self.chain.height();
        let output = self.chain.output(1, ScriptKind::OpTrue);
        let coinbase = self.chain.coinbase(height + 300, vec![output]);
        self.chain.add_plan(BlockPlan { coinbase: Some(coinbase), ..BlockPlan::default() })
    }

    fn spends_nothing(&mut self) -> Block {
        let mut txid = [0; 32];
        txid[..8].copy_from_slice(&self.rng.next_u64().to_le_bytes());
        let nowhere = bitcoin::OutPoint { txid: bitcoin::Txid::from_byte_array(txid), vout: 0 };
        let output = self.chain.output(1, ScriptKind::OpTrue);
        let tx = self.chain.spend(&[nowhere], vec![output]);
        let mut block =
            self.chain.propose(BlockPlan { transactions: vec![tx], ..BlockPlan::default() });
        seal(&mut block);
        self.chain.add(block.clone());
        block
    }
}

/// The node and the manager.
struct Pair {
    node: Bitcoind,
    manager: ChainManager,
    /// Blocks that the node did not keep, because it did not know their parents.
    unkept: Vec<Block>,
}

impl Pair {
    fn new() -> Self {
        let params = Params::of(Network::Regtest);
        let scripts =
            if cfg!(feature = "kernel") { run() } else { Scripts::Listed(HashMap::new()) };
        let node = Bitcoind::start(&["-checkblockindex=0"]);
        Self { node, manager: manager(params, scripts), unkept: Vec::new() }
    }

    fn submit(&mut self, block: &Block) {
        let said = self.node.submit_block(block);
        let outcome = self.manager.submit(serialize(block)).unwrap().outcome;
        let node = match &said {
            Ok(()) => "accepted",
            Err(reason) => reason,
        };
        if node == "prev-blk-not-found" {
            if !self.unkept.contains(block) {
                self.unkept.push(block.clone());
            }
        } else {
            self.offer_children_of(block.block_hash());
        }
        match (node, &outcome) {
            ("accepted", SubmitOutcome::Accepted) | ("duplicate", SubmitOutcome::Duplicate) => {}
            // In the manager, blocks that waited for this one may decide the outcome.
            ("inconclusive", SubmitOutcome::Inconclusive | SubmitOutcome::Accepted) => {}
            // The node reports only on the submitted block, not on its descendants.
            ("inconclusive", SubmitOutcome::Rejected { .. }) => {}
            ("prev-blk-not-found", SubmitOutcome::Orphan) => {}
            (refused, SubmitOutcome::Rejected { .. }) => {
                let ours = reason(&outcome);
                assert_eq!(ours.split(',').next(), Some(refused), "{}", block.block_hash());
            }
            _ => panic!("{node} here, {outcome:?} there: {}", block.block_hash()),
        }
        self.compare();
    }

    /// The node forgets blocks without a parent, so they are submitted again.
    fn offer_children_of(&mut self, hash: BlockHash) {
        let mut parents = VecDeque::from([hash]);
        while let Some(parent) = parents.pop_front() {
            let (children, others): (Vec<Block>, Vec<Block>) = std::mem::take(&mut self.unkept)
                .into_iter()
                .partition(|block| block.header.prev_blockhash == parent);
            self.unkept = others;
            for block in children {
                match self.node.submit_block(&block) {
                    Err(reason) if reason == "prev-blk-not-found" => self.unkept.push(block),
                    _ => parents.push_back(block.block_hash()),
                }
            }
        }
    }

    fn compare(&self) {
        let ours = self.manager.tip().hash;
        assert_eq!(ours.to_string(), self.node.best_block_hash().to_string());
    }

    fn invalidate(&mut self, hash: BlockHash) {
        self.order("invalidateblock", hash);
    }

    fn order(&mut self, what: &str, hash: BlockHash) {
        let ours = apus_chain::BlockHash(hash.to_byte_array());
        let known = match what {
            "invalidateblock" => self.manager.invalidate(&ours).unwrap(),
            _ => self.manager.reconsider(&ours).unwrap(),
        };
        let said = self.node.try_call(what, &[serde_json::json!(hash.to_string())]);
        assert_eq!(said.is_ok(), known, "{said:?}");
        self.compare();
    }
}

#[cfg(feature = "kernel")]
fn run() -> Scripts {
    Scripts::Run
}

#[cfg(not(feature = "kernel"))]
fn run() -> Scripts {
    unreachable!("there is no interpreter")
}

fn live(seed: u64) {
    let mut supply = Supply::new(seed);
    let mut pair = Pair::new();
    for block in supply.chain.blocks().iter().skip(1) {
        pair.submit(block);
    }
    let mut held: Vec<Block> = Vec::new();
    let mut rng = Rng::new(seed ^ 0x5eed);
    for _ in 0..120 {
        held.push(supply.block());
        match rng.below(12) {
            // Some blocks arrive late, some arrive twice.
            0 | 1 => {}
            2 => {
                let at = rng.below(supply.tips.len() as u64) as usize;
                let block = supply.chain.block(supply.tips[at]).clone();
                pair.submit(&block);
            }
            3 => {
                let at =
                    supply.tips.len() - 1 - rng.below(supply.tips.len().min(8) as u64) as usize;
                pair.invalidate(supply.tips[at]);
            }
            4 | 5 => {
                let at =
                    supply.tips.len() - 1 - rng.below(supply.tips.len().min(8) as u64) as usize;
                pair.order("reconsiderblock", supply.tips[at]);
            }
            _ => {
                let at = rng.below(held.len() as u64) as usize;
                let block = held.swap_remove(at);
                pair.submit(&block);
            }
        }
    }
    for block in held {
        pair.submit(&block);
    }
}

#[test]
fn a_real_node_has_the_same_tip_after_every_step() {
    for seed in 1..=apus_testkit::effort::rounds(4, 200) {
        live(seed);
    }
}
