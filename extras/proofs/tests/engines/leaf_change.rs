//! The changes of a block to the forest, compared with a slow and obvious count.

use crate::harness::hash_of;
use apus_chain::{
    BlockChecker, BlockContext, CoinRef, Height, Network, OutPoint, Params, Reader, Txid,
    write_coin,
};
use apus_proofs::leaf_change::{BlockLeafChange, SpentLeaf};
use apus_sync::engines::mergesync::{IndexedCoin, SeenBlock};
use apus_testkit::chain::{ChainBuilder, Shape, coins_of};
use apus_testkit::effort::rounds;
use apus_utreexo::{CompactLeaf, NodeHash, Spender, leaf_hash};
use bitcoin::hashes::Hash;
use bitcoin::{Block, TxIn, TxOut};
use proptest::prelude::*;
use std::collections::HashMap;

fn outpoint_of(name: &bitcoin::OutPoint) -> OutPoint {
    OutPoint { txid: Txid(name.txid.to_byte_array()), vout: name.vout }
}

/// An existing coin.
#[derive(Clone)]
struct There {
    leaf: SpentLeaf,
    coinbase: bool,
    output: TxOut,
}

impl There {
    /// Encodes the coin as it is stored.
    fn coin(&self) -> Vec<u8> {
        let Self { leaf: SpentLeaf { height, .. }, coinbase, ref output } = *self;
        let (amount, script) = (output.value.to_sat(), output.script_pubkey.as_bytes());
        let mut bytes = Vec::new();
        write_coin(&mut bytes, CoinRef { height, coinbase, amount, script });
        bytes
    }
}

/// The changes of a block, counted in the simplest way.
struct Counted {
    spent: Vec<(There, TxIn)>,
    /// The coins of all inputs except the coinbase's, each with its number, if any.
    coins: Vec<(Vec<u8>, Option<u32>)>,
    added: Vec<NodeHash>,
}

/// Processes a block's transactions in order.
fn count(there: &mut HashMap<OutPoint, There>, height: Height, block: &Block) -> Counted {
    // The block's outputs as coins, until it spends them.
    let mut own: Vec<(OutPoint, bool, TxOut)> = Vec::new();
    let (mut spent, mut coins) = (Vec::new(), Vec::new());
    for (at, tx) in block.txdata.iter().enumerate() {
        for input in tx.input.iter().filter(|_| at > 0) {
            let outpoint = outpoint_of(&input.previous_output);
            match own.iter().position(|(own, ..)| *own == outpoint) {
                Some(place) => {
                    let (_, coinbase, output) = own.remove(place);
                    let leaf = SpentLeaf { height, number: 0 };
                    coins.push((There { leaf, coinbase, output }.coin(), None));
                }
                None => {
                    let coin = there.remove(&outpoint).unwrap();
                    coins.push((coin.coin(), Some(coin.leaf.number)));
                    spent.push((coin, input.clone()));
                }
            }
        }
        for (name, output) in coins_of(tx) {
            let script = &output.script_pubkey;
            if !script.is_op_return() && script.len() <= 10_000 {
                own.push((outpoint_of(&name), at == 0, output));
            }
        }
    }
    let mut added = Vec::new();
    for (number, (outpoint, coinbase, output)) in (0..).zip(own) {
        let script = output.script_pubkey.as_bytes();
        let coin = CoinRef { height, coinbase, amount: output.value.to_sat(), script };
        added.push(leaf_hash(&hash_of(block), &outpoint, coin));
        there.insert(outpoint, There { leaf: SpentLeaf { height, number }, coinbase, output });
    }
    Counted { spent, coins, added }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(8, 200) as u32))]

    /// The blocks spend many of their own outputs.
    #[test]
    fn changes_match_the_count(seed: u64, blocks in 1usize..12) {
        let mut builder = ChainBuilder::new(seed);
        builder.empty_blocks(100);
        builder.random_blocks(blocks, Shape { transactions_max: 40, inputs_max: 6, outputs_max: 9 });
        let (mut there, mut checker) = (HashMap::new(), BlockChecker::new());
        let params = Params::of(Network::Regtest);
        for (height, block) in (0..).zip(&builder.blocks()).skip(1) {
            let counted = count(&mut there, height, block);
            let (raw, hash) = (bitcoin::consensus::serialize(block), hash_of(block));
            let context =
                BlockContext { params, height, hash, median_time_past: 0, verifier: None };
            let checked = checker.check(&raw, &context).unwrap();
            let coins = counted.coins.iter().map(|(coin, number)| IndexedCoin { coin, number: *number });
            let coins: Vec<IndexedCoin<'_>> = coins.collect();
            let change = BlockLeafChange::of(&SeenBlock::checked(&checked), &coins).unwrap();
            let BlockLeafChange { spent, data, added } = change;
            let places: Vec<SpentLeaf> = counted.spent.iter().map(|(coin, _)| coin.leaf).collect();
            prop_assert_eq!((spent, added), (places, counted.added), "{}", height);
            let mut reader = Reader::new(&data);
            for (There { leaf, coinbase, output }, input) in &counted.spent {
                let spender = Spender {
                    script_sig: input.script_sig.as_bytes(),
                    witness_top: input.witness.last(),
                };
                let read = CompactLeaf::read(&mut reader, &spender).unwrap();
                let coin = read.coin();
                prop_assert_eq!((coin.height, coin.coinbase), (leaf.height, *coinbase));
                prop_assert_eq!(coin.amount, output.value.to_sat());
                prop_assert_eq!(coin.script, output.script_pubkey.as_bytes());
            }
            prop_assert_eq!(reader.remaining(), 0);
        }
    }
}
