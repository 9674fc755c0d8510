//! A manager with coins that only know which blocks are to be invalid, and blocks with names.

use crate::chainman::{
    ChainManager, ChainManagerError, Resumed, Submission, SubmitOutcome, TipCoins, TipCoinsError,
};
use apus_chain::{Ancestry, BlockHash, CheckedBlock, Header, KnownBlock, Network, Params};
use apus_storage::Storage;
use apus_testkit::chain::{BlockPlan, ChainBuilder};
use bitcoin::consensus::serialize;
use bitcoin::hashes::Hash;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// What the coins of a test know and see.
#[derive(Debug, Clone, Default)]
pub(super) struct Judge {
    /// Blocks to find invalid, and for what reason.
    pub(super) bad: HashMap<BlockHash, String>,
    /// The chain that is connected, without the genesis block.
    pub(super) chain: Vec<BlockHash>,
    /// Blocks connected, disconnected and found invalid so far.
    pub(super) moves: usize,
}

/// Coins that share their state with the test.
#[derive(Clone)]
pub(super) struct TestCoins(pub(super) Arc<Mutex<Judge>>);

pub(super) fn regtest() -> &'static Params {
    Params::of(Network::Regtest)
}

impl TipCoins for TestCoins {
    fn tip(&self) -> KnownBlock {
        let judge = self.0.lock().unwrap();
        let hash = judge.chain.last().copied().unwrap_or(regtest().genesis_hash);
        KnownBlock { height: judge.chain.len() as u32, hash }
    }

    fn connect(&mut self, block: CheckedBlock, below: &dyn Ancestry) -> Result<(), TipCoinsError> {
        let tip = self.tip();
        assert_eq!(Header::parse(block.bytes().view().header()).prev, tip.hash, "out of order");
        assert_eq!(block.height(), tip.height + 1);
        assert_eq!(below.hash(tip.height), Some(tip.hash));
        assert_eq!(below.hash(tip.height + 1), None);
        assert!(below.median_time_past(tip.height).is_some());
        let mut judge = self.0.lock().unwrap();
        judge.moves += 1;
        if let Some(reason) = judge.bad.get(&block.hash()) {
            return Err(TipCoinsError::Invalid { reason: reason.clone() });
        }
        judge.chain.push(block.hash());
        Ok(())
    }

    fn disconnect(&mut self, block: &CheckedBlock) -> Result<(), TipCoinsError> {
        assert_eq!(block.hash(), self.tip().hash, "only the tip can go");
        let mut judge = self.0.lock().unwrap();
        judge.moves += 1;
        judge.chain.pop();
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TipCoinsError> {
        Ok(())
    }
}

pub(super) fn ours(hash: bitcoin::BlockHash) -> BlockHash {
    BlockHash(hash.to_byte_array())
}

/// A manager, the coins' judge, and a builder of blocks.
pub(super) struct Desk {
    pub(super) manager: ChainManager,
    pub(super) judge: Arc<Mutex<Judge>>,
    pub(super) builder: ChainBuilder,
    named: HashMap<String, bitcoin::BlockHash>,
}

impl Desk {
    /// In memory.
    pub(super) fn new() -> Self {
        let judge = Arc::new(Mutex::new(Judge::default()));
        let coins = Box::new(TestCoins(Arc::clone(&judge)));
        Self::of(ChainManager::in_memory(regtest(), coins, None), judge)
    }

    /// On a storage, from what is there; the coins begin where `judge` says.
    pub(super) fn on(
        storage: &(impl Storage + Clone + 'static),
        judge: &Arc<Mutex<Judge>>,
    ) -> (ChainManager, Resumed) {
        Self::try_on(storage, judge).unwrap()
    }

    pub(super) fn try_on(
        storage: &(impl Storage + Clone + 'static),
        judge: &Arc<Mutex<Judge>>,
    ) -> Result<(ChainManager, Resumed), ChainManagerError> {
        let coins = Box::new(TestCoins(Arc::clone(judge)));
        let open = |_| Ok::<Box<dyn TipCoins>, ChainManagerError>(coins);
        ChainManager::open(regtest(), Arc::new(storage.clone()), None, open)
    }

    pub(super) fn of(manager: ChainManager, judge: Arc<Mutex<Judge>>) -> Self {
        let mut named = HashMap::new();
        let builder = ChainBuilder::new(7);
        named.insert("genesis".to_owned(), builder.tip());
        Self { manager, judge, builder, named }
    }

    /// Builds blocks, each on the one before, the first on `parent`: `"a1 a2 a3"`.
    pub(super) fn build(&mut self, parent: &str, names: &str) {
        self.build_with(parent, names, BlockPlan::default());
    }

    pub(super) fn build_with(&mut self, parent: &str, names: &str, plan: BlockPlan) {
        self.builder.set_tip(self.named[parent]);
        for name in names.split(' ') {
            let block = self.builder.add_plan(plan.clone());
            self.named.insert(name.to_owned(), block.block_hash());
        }
    }

    pub(super) fn hash(&self, name: &str) -> BlockHash {
        ours(self.named[name])
    }

    pub(super) fn raw(&self, name: &str) -> Vec<u8> {
        serialize(self.builder.block(self.named[name]))
    }

    /// Makes blocks invalid, each for its own name as the reason.
    pub(super) fn spoil(&mut self, names: &str) {
        for name in names.split(' ') {
            let hash = self.hash(name);
            self.judge.lock().unwrap().bad.insert(hash, format!("bad-{name}"));
        }
    }

    pub(super) fn submit_raw(&mut self, raw: Vec<u8>) -> SubmitOutcome {
        let Submission { outcome, .. } = self.manager.submit(raw).unwrap();
        self.expect_quiet();
        outcome
    }

    pub(super) fn submit(&mut self, name: &str) -> SubmitOutcome {
        let raw = self.raw(name);
        self.submit_raw(raw)
    }

    /// Submits a block that has to be accepted, and become the tip where nothing waits for it.
    pub(super) fn accept(&mut self, names: &str) {
        for name in names.split(' ') {
            assert_eq!(self.submit(name), SubmitOutcome::Accepted, "{name}");
        }
    }

    pub(super) fn expect(&mut self, name: &str, outcome: SubmitOutcome, tip: &str) {
        assert_eq!(self.submit(name), outcome, "{name}");
        self.expect_tip(tip);
    }

    pub(super) fn expect_tip(&self, name: &str) {
        assert_eq!(self.name_of(self.manager.tip().hash), name);
    }

    fn name_of(&self, hash: BlockHash) -> &str {
        let (name, _) = self.named.iter().find(|(_, named)| ours(**named) == hash).unwrap();
        name
    }

    /// What holds between two calls, whatever happened.
    fn expect_quiet(&self) {
        let judge = self.judge.lock().unwrap();
        let tip = self.manager.tip();
        assert_eq!(judge.chain.len(), tip.height as usize);
        let hash = judge.chain.last().copied().unwrap_or(regtest().genesis_hash);
        assert_eq!(hash, tip.hash, "the coins are at the tip");
    }

    pub(super) fn invalidate(&mut self, name: &str) {
        let hash = self.hash(name);
        assert!(self.manager.invalidate(&hash).unwrap());
        self.expect_quiet();
    }

    pub(super) fn reconsider(&mut self, name: &str) {
        let hash = self.hash(name);
        assert!(self.manager.reconsider(&hash).unwrap());
        self.expect_quiet();
    }
}

pub(super) fn rejected(reason: &str) -> SubmitOutcome {
    SubmitOutcome::Rejected { reason: reason.to_owned() }
}
