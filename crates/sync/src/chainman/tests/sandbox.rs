//! A test harness: a manager with stub coins, which only know which blocks are invalid; and blocks with names.

use crate::chainman::{
    ChainManager, ChainManagerError, LogState, Submission, SubmitOutcome, TipCoins, TipCoinsError,
};
use apus_chain::{Ancestry, BlockHash, CheckedBlock, Header, KnownBlock, Network, Params};
use apus_storage::Storage;
use apus_testkit::chain::{BlockPlan, ChainBuilder};
use bitcoin::consensus::serialize;
use bitcoin::hashes::Hash;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// What the stub coins know and did.
#[derive(Debug, Clone, Default)]
pub(super) struct TestState {
    /// Blocks that are invalid, with the reason.
    pub(super) bad: HashMap<BlockHash, String>,
    /// The connected chain, without the genesis block.
    pub(super) chain: Vec<BlockHash>,
    /// Number of blocks connected, disconnected and rejected so far.
    pub(super) moves: usize,
}

/// Coins that share their state with the test.
#[derive(Clone)]
pub(super) struct TestCoins(pub(super) Arc<Mutex<TestState>>);

pub(super) fn regtest() -> &'static Params {
    Params::of(Network::Regtest)
}

impl TipCoins for TestCoins {
    fn tip(&self) -> KnownBlock {
        let state = self.0.lock().unwrap();
        let hash = state.chain.last().copied().unwrap_or(regtest().genesis_hash);
        KnownBlock { height: state.chain.len() as u32, hash }
    }

    fn connect(&mut self, block: CheckedBlock, below: &dyn Ancestry) -> Result<(), TipCoinsError> {
        let tip = self.tip();
        assert_eq!(Header::parse(block.bytes().view().header()).prev, tip.hash, "out of order");
        assert_eq!(block.height(), tip.height + 1);
        assert_eq!(below.hash(tip.height), Some(tip.hash));
        assert_eq!(below.hash(tip.height + 1), None);
        assert!(below.median_time_past(tip.height).is_some());
        let mut state = self.0.lock().unwrap();
        state.moves += 1;
        if let Some(reason) = state.bad.get(&block.hash()) {
            return Err(TipCoinsError::Invalid { reason: reason.clone() });
        }
        state.chain.push(block.hash());
        Ok(())
    }

    fn disconnect(&mut self, block: &CheckedBlock) -> Result<(), TipCoinsError> {
        assert_eq!(block.hash(), self.tip().hash, "only the tip can go");
        let mut state = self.0.lock().unwrap();
        state.moves += 1;
        state.chain.pop();
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TipCoinsError> {
        Ok(())
    }
}

pub(super) fn ours(hash: bitcoin::BlockHash) -> BlockHash {
    BlockHash(hash.to_byte_array())
}

/// A manager, its stub coins' state, and a builder of blocks.
pub(super) struct Sandbox {
    pub(super) manager: ChainManager,
    pub(super) state: Arc<Mutex<TestState>>,
    pub(super) builder: ChainBuilder,
    named: HashMap<String, bitcoin::BlockHash>,
}

impl Sandbox {
    /// Makes a sandbox in memory.
    pub(super) fn new() -> Self {
        let state = Arc::new(Mutex::new(TestState::default()));
        let coins = Box::new(TestCoins(Arc::clone(&state)));
        Self::of(ChainManager::in_memory(regtest(), coins, None), state)
    }

    /// Opens a sandbox on a storage, and resumes from its log; `state` says where the coins are.
    pub(super) fn on(
        storage: &(impl Storage + Clone + 'static),
        state: &Arc<Mutex<TestState>>,
    ) -> (ChainManager, LogState) {
        Self::try_on(storage, state).unwrap()
    }

    pub(super) fn try_on(
        storage: &(impl Storage + Clone + 'static),
        state: &Arc<Mutex<TestState>>,
    ) -> Result<(ChainManager, LogState), ChainManagerError> {
        let coins = Box::new(TestCoins(Arc::clone(state)));
        let open = |_| Ok::<Box<dyn TipCoins>, ChainManagerError>(coins);
        ChainManager::open(regtest(), Arc::new(storage.clone()), None, open)
    }

    pub(super) fn of(manager: ChainManager, state: Arc<Mutex<TestState>>) -> Self {
        let mut named = HashMap::new();
        let builder = ChainBuilder::new(7);
        named.insert("genesis".to_owned(), builder.tip());
        Self { manager, state, builder, named }
    }

    /// Builds a chain of blocks on `parent`, named like `"a1 a2 a3"`.
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

    /// Makes blocks invalid. The reject reason is the block's name.
    pub(super) fn spoil(&mut self, names: &str) {
        for name in names.split(' ') {
            let hash = self.hash(name);
            self.state.lock().unwrap().bad.insert(hash, format!("bad-{name}"));
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

    /// Submits blocks that must all be accepted, each becoming the tip if no other block waits for it.
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

    /// Checks the invariants that hold between two calls.
    fn expect_quiet(&self) {
        let state = self.state.lock().unwrap();
        let tip = self.manager.tip();
        assert_eq!(state.chain.len(), tip.height as usize);
        let hash = state.chain.last().copied().unwrap_or(regtest().genesis_hash);
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
