//! Compares the manifest and the hints with independent counts of the blocks.

use crate::{Chain, small};
use apus_testkit::chain::{hints, is_unspendable, utxo_set};
use apus_testkit::oracle::{BitOrder, hints_file};
use bitcoin::{Block, OutPoint};
use std::collections::HashMap;
use std::fs;

/// The ages of all spent coins, in blocks.
fn ages(blocks: &[Block]) -> Vec<u32> {
    let mut heights: HashMap<OutPoint, u32> = HashMap::new();
    let mut ages = Vec::new();
    for (height, block) in (0..).zip(blocks) {
        for tx in &block.txdata {
            if !tx.is_coinbase() {
                ages.extend(tx.input.iter().map(|input| height - heights[&input.previous_output]));
            }
            let txid = tx.compute_txid();
            let outpoints = (0..tx.output.len() as u32).map(|vout| OutPoint { txid, vout });
            heights.extend(outpoints.map(|outpoint| (outpoint, height)));
        }
    }
    ages
}

#[test]
fn manifest_and_hints_match_the_blocks() {
    for signed in [true, false] {
        let chain = Chain::make(&crate::MakeOptions { signed, ..small(12, 5) });
        let manifest = &chain.manifest;
        let blocks = chain.blocks();
        let coins = utxo_set(&blocks);
        let transactions = || blocks[1..].iter().flat_map(|block| &block.txdata);
        let outputs = || transactions().flat_map(|tx| &tx.output);
        assert_eq!(manifest.height as usize, blocks.len() - 1);
        assert_eq!(manifest.tip_hash, blocks.last().unwrap().block_hash().to_string());
        let busy: Vec<usize> =
            (0..blocks.len()).filter(|&height| blocks[height].txdata.len() > 1).collect();
        assert_eq!(busy.len(), 12);
        assert_eq!(manifest.assumevalid_height as usize, busy[11]);
        let last_busy = blocks[busy[11]].block_hash();
        assert_eq!(manifest.assumevalid_hash, last_busy.to_string());
        assert_eq!(manifest.transactions as usize, transactions().count());
        let spent = ages(&blocks);
        assert_eq!(manifest.inputs as usize, spent.len());
        assert_eq!(manifest.outputs as usize, outputs().count());
        let unspendable = outputs().filter(|output| is_unspendable(&output.script_pubkey)).count();
        assert_eq!(manifest.unspendable as usize, unspendable);
        assert_eq!(manifest.coins as usize, coins.len());
        let worth: u64 = coins.values().map(|coin| coin.output.value.to_sat()).sum();
        assert_eq!(manifest.total_amount_sat, worth);
        let bytes: usize = blocks[1..].iter().map(Block::total_size).sum();
        assert_eq!(manifest.bytes as usize, bytes);
        assert_eq!(manifest.scripts.values().sum::<u64>(), manifest.outputs - manifest.unspendable);
        for (blocks, count) in &manifest.spent_within {
            let within = spent.iter().filter(|age| *age <= blocks).count();
            assert_eq!(*count as usize, within, "{blocks}");
        }
        let expected = hints_file(&hints(&blocks, &coins), BitOrder::Msb);
        assert_eq!(fs::read(chain.path().join("chain.hints")).unwrap(), expected);
    }
}

/// Payments equal the inputs minus the fees, and coinbases claim all fees.
#[test]
fn no_satoshi_is_lost() {
    let chain = Chain::make(&small(10, 6));
    let mut subsidies = 0;
    for height in 1..=chain.manifest.height {
        subsidies += 5_000_000_000u64 >> (height / 150);
    }
    assert_eq!(chain.manifest.total_amount_sat, subsidies);
}
