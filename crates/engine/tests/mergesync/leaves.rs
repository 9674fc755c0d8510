//! The numbers of leaves that coins carry through both walks: those of a slow and obvious count.

use crate::chain::{Chain, hash_of, outpoint_of};
use crate::harness::agree;
use apus_chain::{CoinRef, Height, OutPoint, Reader};
use apus_engine::mergesync::{BlockLeaves, SpentLeaf};
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind, Shape, coins_of};
use apus_testkit::effort::rounds;
use apus_testkit::oracle::proofs;
use apus_utreexo::{CompactLeaf, NodeHash, Spender, leaf_hash};
use bitcoin::{Block, TxIn, TxOut};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};

/// A coin that is there.
struct There {
    leaf: SpentLeaf,
    coinbase: bool,
    output: TxOut,
}

/// What a block does, in the plainest way there is.
struct Counted {
    spent: Vec<(There, TxIn)>,
    added: Vec<NodeHash>,
}

/// Goes through a block's transactions in their order.
fn count(there: &mut HashMap<OutPoint, There>, height: Height, block: &Block) -> Counted {
    // Outputs of the block, with the coins that they are, until it spends them.
    let mut own: Vec<(OutPoint, bool, TxOut)> = Vec::new();
    let mut spent = Vec::new();
    for (at, tx) in block.txdata.iter().enumerate() {
        for input in tx.input.iter().filter(|_| at > 0) {
            let outpoint = outpoint_of(&input.previous_output);
            match own.iter().position(|(own, ..)| *own == outpoint) {
                Some(place) => drop(own.remove(place)),
                None => spent.push((there.remove(&outpoint).unwrap(), input.clone())),
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
    Counted { spent, added }
}

/// The leaves of a chain's first blocks are those of the count.
pub(crate) fn expect_leaves(chain: &Chain, leaves: BTreeMap<Height, Option<BlockLeaves>>) {
    let mut there = HashMap::new();
    for (height, leaves) in leaves {
        let BlockLeaves { spent, data, added } = leaves.unwrap();
        let counted = count(&mut there, height, &chain.blocks[height as usize]);
        let places: Vec<SpentLeaf> = counted.spent.iter().map(|(coin, _)| coin.leaf).collect();
        assert_eq!((spent, added), (places, counted.added), "{height}");
        let mut reader = Reader::new(&data);
        for (There { leaf, coinbase, output }, input) in &counted.spent {
            let spender = Spender {
                script_sig: input.script_sig.as_bytes(),
                witness_top: input.witness.last(),
            };
            let read = CompactLeaf::read(&mut reader, &spender).unwrap();
            let coin = read.coin();
            assert_eq!((coin.height, coin.coinbase), (leaf.height, *coinbase));
            assert_eq!(coin.amount, output.value.to_sat());
            assert_eq!(coin.script, output.script_pubkey.as_bytes());
        }
        assert_eq!(reader.remaining(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(12, 300) as u32))]

    /// Blocks that spend much of themselves.
    #[test]
    fn own_spends_are_no_leaves(seed: u64, blocks in 1usize..12) {
        let mut builder = ChainBuilder::new(seed);
        builder.empty_blocks(100);
        builder.random_blocks(blocks, Shape { transactions_max: 40, inputs_max: 6, outputs_max: 9 });
        prop_assert_eq!(agree(&Chain::of(&builder), seed).refused, None);
    }
}

/// Outputs that the block spends itself, before, between and behind others, out of order.
#[test]
fn what_a_block_spends_itself_has_no_number() {
    let mut builder = ChainBuilder::new(3);
    builder.empty_blocks(101);
    let coin = builder.mature_coin();
    let outputs = (0..7).map(|_| builder.output(1000, ScriptKind::OpTrue)).collect();
    let seven = builder.spend_coins(&[coin], outputs);
    let of = coins_of(&seven);
    let outputs = (0..2).map(|_| builder.output(300, ScriptKind::OpTrue)).collect();
    let again = builder.spend_coins(&[of[6].clone(), of[1].clone()], outputs);
    let outputs = vec![builder.output(200, ScriptKind::OpTrue)];
    let last = builder.spend_coins(&[coins_of(&again)[0].clone(), of[3].clone()], outputs);
    builder.add_plan(BlockPlan { transactions: vec![seven, again, last], ..BlockPlan::default() });
    for at in [0, 5, 2] {
        let outputs = vec![builder.output(10, ScriptKind::OpTrue)];
        let tx = builder.spend_coins(&[of[at].clone()], outputs);
        builder.block_with(vec![tx]);
    }
    for seed in 0..8 {
        assert_eq!(agree(&Chain::of(&builder), seed).refused, None);
    }
    let added: Vec<usize> =
        proofs(&builder.blocks()).iter().skip(101).map(|block| block.added.len()).collect();
    // Seven, two and one, and the coinbase's, without the four that it spends.
    assert_eq!(added[0], 7, "the model says the same");
}
