//! Tests with invalid blocks: each is refused for the right reason, and leaves no trace.

use crate::chainstate::harness::*;
use apus_chain::{OutPoint, SpendError, Txid};
use apus_engine::utxo::ConnectError;
use apus_engine::utxo::store::MemoryStore;
use apus_sync::engines::in_order::{Chainstate, ChainstateError};
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind, coins_of};
use bitcoin::hashes::Hash;
use bitcoin::{Amount, Block, Sequence, Transaction};
use std::sync::Arc;

/// A chain state at the tip of a builder that has mature coins.
struct World {
    builder: ChainBuilder,
    state: Chainstate,
    store: Arc<MemoryStore>,
}

fn world() -> World {
    let builder = random_chain(11, 12);
    let blocks = builder.blocks();
    let chain = headers(&regtest(), &blocks);
    let store = Arc::new(MemoryStore::new());
    let mut state = open(&store, 2);
    connect_all(&mut state, &chain, &blocks[1..]).unwrap();
    World { builder, state, store }
}

impl World {
    fn spend(&mut self, satoshi: u64) -> Transaction {
        let (outpoint, _) = self.builder.mature_coin();
        let output = self.builder.output(satoshi, ScriptKind::OpTrue);
        self.builder.spend(&[outpoint], vec![output])
    }

    fn propose(&mut self, transactions: Vec<Transaction>) -> Block {
        self.builder.propose(BlockPlan { transactions, ..BlockPlan::default() })
    }

    /// Submits the block to the chain state; returns the reason of the refusal.
    fn refused(&mut self, block: &Block) -> String {
        let mut blocks = self.builder.blocks();
        blocks.push(block.clone());
        let chain = headers(&regtest(), &blocks);
        let before = *self.state.tip();
        let error = connect(&mut self.state, &regtest(), &chain, block).unwrap_err();
        assert_eq!(*self.state.tip(), before);
        self.expect_no_trace(block);
        match error {
            ChainstateError::Invalid { block: id, error } => {
                assert_eq!(id.height, before.height + 1);
                error.reject_reason()
            }
            error => panic!("{error}"),
        }
    }

    fn expect_no_trace(&mut self, block: &Block) {
        let mut names: Vec<OutPoint> = expected(self.builder.utxo()).into_keys().collect();
        let made = block.txdata.iter().flat_map(coins_of).map(|(outpoint, _)| outpoint);
        let name = |outpoint: bitcoin::OutPoint| {
            let txid = Txid(outpoint.txid.to_byte_array());
            OutPoint { txid, vout: outpoint.vout }
        };
        names.extend(made.map(name));
        let there = seen(&self.state, names.into_iter());
        assert_eq!(there, expected(self.builder.utxo()));
        assert_eq!(self.state.sum(), Some(sum_of(&there)));
    }

    /// Checks that the next valid block still connects.
    fn still_connects(mut self) {
        let block = self.builder.add_plan(BlockPlan::default());
        let chain = headers(&regtest(), &self.builder.blocks());
        connect(&mut self.state, &regtest(), &chain, &block).unwrap();
        self.state.flush().unwrap();
        assert_eq!(stored(&self.store), expected(self.builder.utxo()));
    }
}

#[test]
fn a_missing_coin() {
    let mut world = world();
    let mut tx = world.spend(1_000);
    tx.input[0].previous_output.vout += 77;
    let block = world.propose(vec![tx]);
    assert_eq!(world.refused(&block), "bad-txns-inputs-missingorspent");
    world.still_connects();
}

#[test]
fn a_coin_spent_twice_in_a_block() {
    let mut world = world();
    let (one, other) = (world.spend(1_000), world.spend(2_000));
    let block = world.propose(vec![one, other]);
    assert_eq!(world.refused(&block), "bad-txns-inputs-missingorspent");
    world.still_connects();
}

#[test]
fn an_output_of_the_same_block_spent_twice() {
    let mut world = world();
    let first = world.spend(5_000);
    let made = coins_of(&first);
    let spends: Vec<Transaction> = [1_000, 2_000]
        .map(|satoshi| {
            let output = world.builder.output(satoshi, ScriptKind::OpTrue);
            world.builder.spend_coins(&made, vec![output])
        })
        .into();
    let block = world.propose([vec![first.clone()], spends[..1].to_vec()].concat());
    let ok = world.propose([vec![first], spends].concat());
    assert_eq!(world.refused(&ok), "bad-txns-inputs-missingorspent");
    // Spending it once is valid.
    let mut blocks = world.builder.blocks();
    blocks.push(block.clone());
    let chain = headers(&regtest(), &blocks);
    connect(&mut world.state, &regtest(), &chain, &block).unwrap();
}

#[test]
fn an_output_of_a_later_transaction() {
    let mut world = world();
    let first = world.spend(5_000);
    let output = world.builder.output(1_000, ScriptKind::OpTrue);
    let second = world.builder.spend_coins(&coins_of(&first), vec![output]);
    let block = world.propose(vec![second, first]);
    assert_eq!(world.refused(&block), "bad-txns-inputs-missingorspent");
    world.still_connects();
}

#[test]
fn a_coin_spent_in_an_earlier_block() {
    let mut world = world();
    let tx = world.spend(1_000);
    let block = world.builder.block_with(vec![tx.clone()]);
    let chain = headers(&regtest(), &world.builder.blocks());
    connect(&mut world.state, &regtest(), &chain, &block).unwrap();
    let mut again = tx;
    again.output[0].value = Amount::from_sat(900);
    let block = world.propose(vec![again]);
    assert_eq!(world.refused(&block), "bad-txns-inputs-missingorspent");
    world.still_connects();
}

/// Core checks for existing outputs (BIP-30) before it looks up spent coins, even on chains where no valid
/// block can repeat a transaction.
#[test]
fn a_transaction_that_exists_already() {
    let mut world = world();
    let tx = world.spend(1_000);
    let block = world.builder.block_with(vec![tx.clone()]);
    let chain = headers(&regtest(), &world.builder.blocks());
    connect(&mut world.state, &regtest(), &chain, &block).unwrap();
    let again = world.propose(vec![tx.clone()]);
    assert_eq!(world.refused(&again), "bad-txns-BIP30");
    let chain = headers(&regtest(), &[world.builder.blocks(), vec![again.clone()]].concat());
    let error = connect(&mut world.state, &regtest(), &chain, &again).unwrap_err();
    let ChainstateError::Invalid { error: ConnectError::Spend(error), .. } = error else {
        panic!("{error}")
    };
    let txid = Txid(tx.compute_txid().to_byte_array());
    assert_eq!(error, SpendError::Bip30 { tx: 1, txid, outpoint: OutPoint { txid, vout: 0 } });
    world.still_connects();
}

#[test]
fn more_out_than_in() {
    let mut world = world();
    let (_, output) = world.builder.mature_coin();
    let tx = world.spend(output.value.to_sat() + 1);
    let block = world.propose(vec![tx]);
    assert_eq!(world.refused(&block), "bad-txns-in-belowout");
    world.still_connects();
}

#[test]
fn a_coinbase_that_takes_a_satoshi_too_many() {
    let mut world = world();
    let (_, output) = world.builder.mature_coin();
    let tx = world.spend(output.value.to_sat() - 500);
    let height = world.builder.height() + 1;
    for (more, fine) in [(501, false), (500, true)] {
        let value = ChainBuilder::subsidy(height) + more;
        let coinbase_outputs = Some(vec![world.builder.output(value, ScriptKind::OpTrue)]);
        let plan =
            BlockPlan { transactions: vec![tx.clone()], coinbase_outputs, ..BlockPlan::default() };
        let block = world.builder.propose(plan);
        if fine {
            let mut blocks = world.builder.blocks();
            blocks.push(block.clone());
            let chain = headers(&regtest(), &blocks);
            connect(&mut world.state, &regtest(), &chain, &block).unwrap();
        } else {
            assert_eq!(world.refused(&block), "bad-cb-amount");
        }
    }
}

#[test]
fn a_coinbase_spent_too_early() {
    let mut world = world();
    let height = world.builder.height() + 1;
    let young = world.builder.utxo().iter().find(|(_, coin)| {
        coin.coinbase && coin.height + 100 > height && coin.output.value.to_sat() > 1_000
    });
    let (outpoint, coin) = young.map(|(outpoint, coin)| (*outpoint, coin.output.clone())).unwrap();
    let output = world.builder.output(1_000, ScriptKind::OpTrue);
    let tx = world.builder.spend_coins(&[(outpoint, coin)], vec![output]);
    let block = world.propose(vec![tx]);
    assert_eq!(world.refused(&block), "bad-txns-premature-spend-of-coinbase");
    world.still_connects();
}

/// Core first checks whether all coins exist (`consensus/tx_verify.cpp`, `CheckTxInputs`).
#[test]
fn a_missing_coin_next_to_an_immature_one() {
    let mut world = world();
    let height = world.builder.height() + 1;
    let mut coins = world.builder.utxo().iter();
    let young = coins.find(|(_, coin)| coin.coinbase && coin.height + 100 > height).unwrap();
    let young = (*young.0, young.1.output.clone());
    let gone = (bitcoin::OutPoint { vout: 77, ..young.0 }, young.1.clone());
    let output = world.builder.output(1_000, ScriptKind::OpTrue);
    let tx = world.builder.spend_coins(&[young, gone], vec![output]);
    let block = world.propose(vec![tx]);
    assert_eq!(world.refused(&block), "bad-txns-inputs-missingorspent");
    world.still_connects();
}

#[test]
fn an_unmet_relative_lock() {
    let mut world = world();
    let mut tx = world.spend(1_000);
    tx.version = bitcoin::transaction::Version::TWO;
    tx.input[0].sequence = Sequence::from_height(60_000);
    let block = world.propose(vec![tx]);
    assert_eq!(world.refused(&block), "bad-txns-nonfinal");
    world.still_connects();
}

#[test]
fn a_block_that_does_not_follow_the_tip() {
    let mut world = world();
    let block = world.builder.add_plan(BlockPlan::default());
    let next = world.builder.add_plan(BlockPlan::default());
    let chain = headers(&regtest(), &world.builder.blocks());
    let height = world.builder.height();
    let ahead = checked(&regtest(), &chain, height, &next);
    let context = apus_engine::utxo::ConnectContext { ancestry: &chain, check_scripts: false };
    let error = world.state.connect(ahead, &context).unwrap_err();
    assert!(matches!(error, ChainstateError::NotAtTip { .. }), "{error}");
    connect(&mut world.state, &regtest(), &chain, &block).unwrap();
    connect(&mut world.state, &regtest(), &chain, &next).unwrap();
}

#[test]
fn scripts_are_never_skipped_without_an_interpreter() {
    let mut world = world();
    let block = world.builder.add_plan(BlockPlan::default());
    let chain = headers(&regtest(), &world.builder.blocks());
    let block = checked(&regtest(), &chain, chain.tip_height(), &block);
    let context = apus_engine::utxo::ConnectContext { ancestry: &chain, check_scripts: true };
    let error = world.state.connect(block, &context).unwrap_err();
    assert!(matches!(error, ChainstateError::NoInterpreter(_)), "{error}");
}
