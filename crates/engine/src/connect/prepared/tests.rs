//! Tests the wanted coins of a block against a simple reference implementation.

use super::*;
use apus_chain::{BlockChecker, BlockContext, BlockHash, Network, Params, Txid};
use apus_testkit::chain::{BlockPlan, ChainBuilder, Shape};
use apus_testkit::rng::Rng;
use bitcoin::consensus::encode::serialize;
use bitcoin::hashes::Hash;
use bitcoin::{Amount, Witness, absolute, transaction};
use bitcoin::{Block, OutPoint as CoreOutPoint, ScriptBuf, Sequence, Transaction, TxIn, TxOut};
use std::collections::HashMap;

fn ours(outpoint: CoreOutPoint) -> OutPoint {
    OutPoint { txid: Txid(outpoint.txid.to_byte_array()), vout: outpoint.vout }
}

fn wanted_and_places(height: u32, block: &Block) -> (Vec<OutPoint>, Vec<Place>) {
    let raw = serialize(block);
    let mut checker = BlockChecker::new();
    let context = BlockContext {
        params: Params::of(Network::Regtest),
        height,
        hash: BlockHash(block.block_hash().to_byte_array()),
        median_time_past: 0,
        verifier: None,
    };
    let block = checker.check(&raw, &context).unwrap();
    // The function clears both first.
    let (mut wanted, mut places) = (vec![OutPoint::default()], vec![Place::Wanted(9)]);
    wanted_of(&block, &mut wanted, &mut places);
    (wanted, places)
}

/// A reference implementation with a map of the outputs created so far.
fn by_hand(block: &Block) -> (Vec<OutPoint>, Vec<Place>) {
    let (mut wanted, mut places, mut made) = (Vec::new(), Vec::new(), HashMap::new());
    for (index, tx) in block.txdata.iter().enumerate() {
        for input in tx.input.iter().filter(|_| index > 0) {
            places.push(match made.get(&input.previous_output) {
                Some(&place) => place,
                None => {
                    wanted.push(ours(input.previous_output));
                    Place::Wanted(wanted.len() as u32 - 1)
                }
            });
        }
        for vout in 0..tx.output.len() as u32 {
            let outpoint = CoreOutPoint { txid: tx.compute_txid(), vout };
            made.insert(outpoint, Place::Created { tx: index as u32, vout });
        }
    }
    (wanted, places)
}

fn spending(outpoints: impl IntoIterator<Item = CoreOutPoint>, outputs: usize) -> Transaction {
    let input = |previous_output| TxIn {
        previous_output,
        script_sig: ScriptBuf::new(),
        sequence: Sequence::MAX,
        witness: Witness::new(),
    };
    let output = TxOut { value: Amount::from_sat(1), script_pubkey: ScriptBuf::from(vec![0x51]) };
    Transaction {
        version: transaction::Version::TWO,
        lock_time: absolute::LockTime::ZERO,
        input: outpoints.into_iter().map(input).collect(),
        output: vec![output; outputs],
    }
}

fn foreign(number: u8, vout: u32) -> CoreOutPoint {
    CoreOutPoint { txid: bitcoin::Txid::from_byte_array([number; 32]), vout }
}

fn block_of(transactions: Vec<Transaction>) -> Block {
    ChainBuilder::new(1).propose(BlockPlan { transactions, ..BlockPlan::default() })
}

#[test]
fn valid_blocks_want_coins_they_do_not_create() {
    let mut builder = ChainBuilder::new(4);
    builder.empty_blocks(110);
    let mut created = 0;
    for _ in 0..40 {
        let shape = Shape { transactions_max: 40, inputs_max: 4, outputs_max: 5 };
        let block = builder.random_block(shape);
        let (wanted, places) = wanted_and_places(builder.height(), &block);
        assert_eq!((wanted, places.clone()), by_hand(&block));
        created += places.iter().filter(|place| matches!(place, Place::Created { .. })).count();
    }
    assert!(created > 100, "the blocks spend what they create {created} times");
}

/// Blocks that spend arbitrary outpoints: their own outputs before and after their creation,
/// nonexistent outputs, the coinbase's, foreign ones, and repeated ones.
#[test]
fn any_block_wants_coins_not_created_earlier_in_it() {
    let mut rng = Rng::new(7);
    for _ in 0..60 {
        let count = rng.index(60);
        let mut transactions: Vec<Transaction> = Vec::new();
        for _ in 0..count {
            let mut outpoints = Vec::new();
            for _ in 0..rng.between(1, 5) {
                let outpoint = match transactions.len() {
                    before if before > 0 && rng.one_in(2) => CoreOutPoint {
                        txid: transactions[rng.index(before)].compute_txid(),
                        vout: rng.below(4) as u32,
                    },
                    _ => foreign(rng.below(20) as u8 + 1, rng.below(3) as u32),
                };
                if !outpoints.contains(&outpoint) {
                    outpoints.push(outpoint);
                }
            }
            transactions.push(spending(outpoints, rng.between(1, 3) as usize));
        }
        // Now some of them spend outputs of later transactions.
        rng.shuffle(&mut transactions);
        let block = block_of(transactions);
        assert_eq!(wanted_and_places(1, &block), by_hand(&block));
    }
}

#[test]
fn an_output_of_a_later_transaction_is_wanted() {
    let later = spending([foreign(1, 0)], 1);
    let outpoint = CoreOutPoint { txid: later.compute_txid(), vout: 0 };
    let earlier = spending([outpoint], 1);
    let (wanted, places) = wanted_and_places(1, &block_of(vec![earlier.clone(), later.clone()]));
    assert_eq!(wanted, [ours(outpoint), ours(foreign(1, 0))]);
    assert_eq!(places, [Place::Wanted(0), Place::Wanted(1)]);
    let (wanted, places) = wanted_and_places(1, &block_of(vec![later, earlier]));
    assert_eq!(wanted, [ours(foreign(1, 0))]);
    assert_eq!(places, [Place::Wanted(0), Place::Created { tx: 1, vout: 0 }]);
}

#[test]
fn an_output_that_an_earlier_transaction_lacks_is_wanted() {
    let earlier = spending([foreign(1, 0)], 2);
    let lacking = CoreOutPoint { txid: earlier.compute_txid(), vout: 2 };
    let (wanted, places) = wanted_and_places(1, &block_of(vec![earlier, spending([lacking], 1)]));
    assert_eq!(wanted, [ours(foreign(1, 0)), ours(lacking)]);
    assert_eq!(places, [Place::Wanted(0), Place::Wanted(1)]);
}

#[test]
fn a_block_with_only_a_coinbase_wants_nothing() {
    let (wanted, places) = wanted_and_places(1, &block_of(Vec::new()));
    assert!(wanted.is_empty() && places.is_empty());
}
