//! Blocks whose scripts have not been run yet: blocks above already see their coins, and if a block proves
//! invalid, all blocks above it are discarded, too.
//!
//! A pool without threads runs a block's scripts only when its verdict is awaited, so the set of pending blocks
//! is deterministic.

use crate::chainstate::harness::*;
use apus_chain::{HeaderChain, Height, OutPoint, ScriptError, Txid};
use apus_engine::script::{Interpreter, PreparedTx, Refusal, ScriptPool};
use apus_engine::utxo::store::MemoryStore;
use apus_engine::utxo::{CoinBytes, CoinsStore, ConnectContext, ConnectError, PreparedBlock};
use apus_sync::engines::in_order::{Chainstate, ChainstateError, ChainstateOptions, Totals};
use apus_sync::engines::pass::Counts;
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind, coins_of};
use bitcoin::consensus::serialize;
use bitcoin::hashes::Hash;
use bitcoin::{Block, Transaction};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Amount and script of each spent coin, by transaction.
type Spends = BTreeMap<Vec<u8>, Vec<(u64, Vec<u8>)>>;

/// An interpreter that records its input and accepts all but one transaction.
#[derive(Default)]
struct Notes {
    asked: Mutex<Spends>,
    refused: Mutex<Option<(Vec<u8>, ScriptError)>>,
}

/// The interpreter's answer for the last input of a transaction.
struct Answer(usize, Result<(), ScriptError>);

impl Interpreter for Notes {
    fn prepare(&self, raw: &[u8], spent: &[CoinBytes]) -> Result<Box<dyn PreparedTx>, ScriptError> {
        let coins = spent.iter().map(|coin| (coin.coin().amount, coin.coin().script.to_vec()));
        self.asked.lock().unwrap().insert(raw.to_vec(), coins.collect());
        let refused = self.refused.lock().unwrap();
        let error = refused.as_ref().filter(|(tx, _)| tx == raw).map(|(_, error)| error.clone());
        Ok(Box::new(Answer(spent.len() - 1, error.map_or(Ok(()), Err))))
    }
}

impl PreparedTx for Answer {
    fn verify(&self, input: usize, _: u32) -> Result<(), Refusal> {
        if input == self.0 { self.1.clone().map_err(Refusal::from) } else { Ok(()) }
    }
}

fn open_noting(store: &Arc<MemoryStore>, notes: &Arc<Notes>, prevout_threads: usize) -> Chainstate {
    let pool = ScriptPool::with_interpreter(0, Arc::clone(notes) as _).unwrap();
    let options = ChainstateOptions { scripts: Some(pool), ..options(prevout_threads) };
    Chainstate::open(&regtest(), Arc::clone(store) as Arc<dyn CoinsStore>, options).unwrap()
}

fn prepared(chain: &HeaderChain, height: usize, block: &Block) -> Arc<PreparedBlock> {
    let params = regtest();
    Arc::new(PreparedBlock::new(&params, checked(&params, chain, height as Height, block)))
}

fn with_scripts(chain: &HeaderChain) -> ConnectContext<'_> {
    ConnectContext { ancestry: chain, check_scripts: true }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// With any blocks pending and any coins being fetched, the coins equal the model's, and each transaction's
    /// scripts are run with the coins that it spends.
    #[test]
    fn blocks_build_on_pending_ones(
        seed: u64, threads in 0usize..3, ahead in 0usize..3, every in 1usize..4,
    ) {
        let builder = random_chain(seed, 20);
        let blocks = builder.blocks();
        let chain = headers(&regtest(), &blocks);
        let (store, notes) = (Arc::new(MemoryStore::new()), Arc::new(Notes::default()));
        let mut state = open_noting(&store, &notes, threads);
        let ready: Vec<_> =
            (1..blocks.len()).map(|height| prepared(&chain, height, &blocks[height])).collect();
        let runs = |height: usize| height.is_multiple_of(every);
        for (at, block) in ready.iter().enumerate() {
            ready[at + 1..].iter().take(ahead).for_each(|next| state.prefetch(next));
            let context =
                ConnectContext { check_scripts: runs(at + 1), ..with_scripts(&chain) };
            state.begin(Arc::clone(block), &context).unwrap();
        }
        state.flush().unwrap();
        prop_assert_eq!(stored(&store), expected(builder.utxo()));
        prop_assert_eq!(state.totals().coins, stored(&store).len() as u64);
        let run: Vec<usize> = (1..blocks.len()).filter(|&height| runs(height)).collect();
        prop_assert_eq!(state.totals().scripts, run.len() as u64);
        let outputs: BTreeMap<_, _> =
            blocks.iter().flat_map(|block| &block.txdata).flat_map(coins_of).collect();
        let spends = run.iter().flat_map(|&height| &blocks[height].txdata[1..]);
        let asked: Spends = spends
            .map(|tx| {
                let coins = tx.input.iter().map(|input| &outputs[&input.previous_output]);
                let coins = coins.map(|coin| (coin.value.to_sat(), coin.script_pubkey.to_bytes()));
                (serialize(tx), coins.collect())
            })
            .collect();
        prop_assert_eq!(&*notes.asked.lock().unwrap(), &asked);
    }
}

/// Three blocks, each of which spends an output of the one before.
struct Three {
    state: Chainstate,
    notes: Arc<Notes>,
    builder: ChainBuilder,
    /// The blocks below the three.
    below: Vec<Block>,
    /// The blocks, and the relevant transaction in each.
    blocks: Vec<Block>,
    txs: Vec<Transaction>,
}

fn three() -> Three {
    let mut builder = random_chain(11, 12);
    let below = builder.blocks();
    let (store, notes) = (Arc::new(MemoryStore::new()), Arc::new(Notes::default()));
    let mut state = open_noting(&store, &notes, 0);
    connect_all(&mut state, &headers(&regtest(), &below), &below[1..]).unwrap();
    let mut coins = vec![builder.mature_coin()];
    let (mut blocks, mut txs) = (Vec::new(), Vec::new());
    for satoshi in [9_000, 8_000, 7_000] {
        let output = builder.output(satoshi, ScriptKind::OpTrue);
        let tx = builder.spend_coins(&coins, vec![output]);
        coins = coins_of(&tx);
        blocks.push(builder.block_with(vec![tx.clone()]));
        txs.push(tx);
    }
    Three { state, notes, builder, below, blocks, txs }
}

impl Three {
    fn height(&self, index: usize) -> usize {
        self.below.len() + index
    }

    /// Returns the three blocks, and the headers up to the last of them.
    fn ready(&self) -> (HeaderChain, Vec<Arc<PreparedBlock>>) {
        let chain = headers(&regtest(), &[&self.below[..], &self.blocks].concat());
        let heights = self.blocks.iter().enumerate();
        let ready = heights.map(|(index, block)| prepared(&chain, self.height(index), block));
        let ready = ready.collect();
        (chain, ready)
    }

    /// Replaces the last block.
    fn replace_last(&mut self, transactions: Vec<Transaction>) {
        self.blocks.pop();
        self.builder.set_tip(self.blocks[1].block_hash());
        self.blocks.push(self.builder.propose(BlockPlan { transactions, ..BlockPlan::default() }));
    }

    /// Returns whether the output of one of the transactions is a coin now.
    fn has(&self, index: usize) -> bool {
        let txid = Txid(self.txs[index].compute_txid().to_byte_array());
        !seen(&self.state, std::iter::once(OutPoint { txid, vout: 0 })).is_empty()
    }
}

/// A look-up sees the changes of blocks below, even those made after it began.
#[test]
fn a_coin_created_or_spent_during_its_look_up() {
    for twice in [false, true] {
        let mut three = three();
        if twice {
            // This coin is also spent by the second block.
            let again = three.builder.output(1_000, ScriptKind::OpTrue);
            let again = three.builder.spend_coins(&coins_of(&three.txs[0]), vec![again]);
            three.replace_last(vec![again]);
        }
        let (chain, ready) = three.ready();
        three.state.begin(Arc::clone(&ready[0]), &with_scripts(&chain)).unwrap();
        three.state.prefetch(&ready[2]);
        three.state.begin(Arc::clone(&ready[1]), &with_scripts(&chain)).unwrap();
        let begun = three.state.begin(Arc::clone(&ready[2]), &with_scripts(&chain));
        if twice {
            let Err(ChainstateError::Invalid { block, error }) = begun else { panic!("{begun:?}") };
            assert_eq!(block, ready[2].id());
            assert_eq!(error.reject_reason(), "bad-txns-inputs-missingorspent");
            assert_eq!(*three.state.tip(), ready[1].id());
        } else {
            begun.unwrap();
            three.state.settle().unwrap();
            assert_eq!(*three.state.tip(), ready[2].id());
        }
    }
}

#[test]
fn a_failing_script_discards_its_block_and_all_above() {
    let mut three = three();
    let (chain, ready) = three.ready();
    let refused = serialize(&three.txs[1]);
    *three.notes.refused.lock().unwrap() = Some((refused.clone(), ScriptError::Invalid));
    for block in &ready {
        three.state.begin(Arc::clone(block), &with_scripts(&chain)).unwrap();
    }
    let error = three.state.settle().unwrap_err();
    let ChainstateError::Invalid { block, error } = error else { panic!("{error}") };
    assert_eq!(block, ready[1].id());
    let ConnectError::Script { tx, txid, vin, .. } = error else { panic!("{error}") };
    let found = Txid(three.txs[1].compute_txid().to_byte_array());
    assert_eq!((tx, txid, vin), (1, found, 0));
    assert_eq!(*three.state.tip(), ready[0].id());
    assert_eq!([0, 1, 2].map(|index| three.has(index)), [true, false, false]);
    // If the scripts cannot be run there is no verdict, and the chain state cannot advance.
    let setup = ScriptError::Setup("the interpreter is out of order".to_owned());
    *three.notes.refused.lock().unwrap() = Some((refused, setup));
    three.state.begin(Arc::clone(&ready[1]), &with_scripts(&chain)).unwrap();
    let error = three.state.settle().unwrap_err();
    assert!(matches!(error, ChainstateError::Script { block, .. } if block == ready[1].id()));
    // Neither attempt leaves a trace.
    *three.notes.refused.lock().unwrap() = None;
    for block in &ready[1..] {
        three.state.begin(Arc::clone(block), &with_scripts(&chain)).unwrap();
    }
    three.state.settle().unwrap();
    assert_eq!(*three.state.tip(), ready[2].id());
    assert_eq!([0, 1, 2].map(|index| three.has(index)), [false, false, true]);
}

/// Of two invalid blocks, the lower one is reported, even if the other one's fault was found first.
#[test]
fn a_pending_block_that_proves_invalid_is_reported_before_the_one_above() {
    let mut three = three();
    let mut gone = three.txs[2].clone();
    gone.input[0].previous_output.vout = 77;
    three.replace_last(vec![gone]);
    let (chain, ready) = three.ready();
    *three.notes.refused.lock().unwrap() = Some((serialize(&three.txs[1]), ScriptError::Invalid));
    three.state.begin(Arc::clone(&ready[0]), &with_scripts(&chain)).unwrap();
    three.state.begin(Arc::clone(&ready[1]), &with_scripts(&chain)).unwrap();
    let error = three.state.begin(Arc::clone(&ready[2]), &with_scripts(&chain)).unwrap_err();
    assert!(matches!(error, ChainstateError::Invalid { block, .. } if block == ready[1].id()));
    assert_eq!(*three.state.tip(), ready[0].id());
}

/// A block is refused if its parent is not the tip, even if its height is right.
#[test]
fn a_block_of_a_branch_does_not_follow() {
    let mut three = three();
    three.builder.set_tip(three.below[three.below.len() - 1].block_hash());
    let sibling = three.builder.add_plan(BlockPlan::default());
    let child = three.builder.add_plan(BlockPlan::default());
    assert_ne!(sibling.block_hash(), three.blocks[0].block_hash());
    let (chain, ready) = three.ready();
    three.state.begin(Arc::clone(&ready[0]), &with_scripts(&chain)).unwrap();
    let branch = headers(&regtest(), &[&three.below[..], &[sibling, child.clone()]].concat());
    let child = prepared(&branch, three.height(1), &child);
    let error = three.state.begin(child, &with_scripts(&branch)).unwrap_err();
    assert!(matches!(error, ChainstateError::NotAtTip { tip, .. } if tip == ready[0].id()));
}

#[test]
fn a_pool_may_come_later_and_totals_continue_from_the_given_ones() {
    let Three { builder, below, blocks, .. } = three();
    drop(builder);
    let chain = headers(&regtest(), &[&below[..], &blocks].concat());
    let mut state = open(&Arc::new(MemoryStore::new()), 0);
    connect_all(&mut state, &chain, &below[1..]).unwrap();
    assert!(!state.has_scripts());
    let pool = ScriptPool::with_interpreter(1, Arc::new(Notes::default())).unwrap();
    state.set_scripts(pool);
    assert!(state.has_scripts());
    let given = Totals {
        counts: Counts { blocks: 100, bytes: 10_000, transactions: 300, inputs: 400, outputs: 500 },
        scripts: 60,
        coins: 7_000,
    };
    state.set_totals(given);
    state.keep_connected();
    let block = prepared(&chain, below.len(), &blocks[0]);
    state.begin(Arc::clone(&block), &with_scripts(&chain)).unwrap();
    assert_eq!(state.take_connected().len(), 0, "pending");
    state.settle().unwrap();
    let counts = block.counts();
    let (txs, raw) = (&blocks[0].txdata, serialize(&blocks[0]));
    let outputs = txs.iter().map(|tx| tx.output.len()).sum::<usize>() as u64;
    assert_eq!((counts.bytes, counts.outputs), (raw.len() as u64, outputs));
    let made = txs.iter().flat_map(coins_of);
    let coins = made.filter(|(_, coin)| !coin.script_pubkey.is_op_return()).count();
    let now = Totals {
        counts: Counts {
            blocks: 101,
            bytes: 10_000 + counts.bytes,
            transactions: 302,
            inputs: 401,
            outputs: 500 + outputs,
        },
        scripts: 61,
        coins: 7_000 - 1 + coins as u64,
    };
    assert_eq!(*state.totals(), now);
    let connected = state.take_connected();
    assert_eq!(connected.iter().map(|one| one.block.id()).collect::<Vec<_>>(), [block.id()]);
    assert_eq!(state.take_connected().len(), 0);
    state.disconnect(block.block()).unwrap();
    assert_eq!(*state.totals(), given);
}
