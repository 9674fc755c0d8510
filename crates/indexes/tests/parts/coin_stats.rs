//! The index of coin statistics against a slow model, cut in any way, and its refusals.

use crate::support::{TestChain, coin_stats_index, ids, new_folder};
use apus_chain::{
    BlockHash, BlockLayout, BlockUndo, BlockUndoWriter, Coin, CoinRef, KnownBlock, MuHash, Network,
    bogosize, is_unspendable, write_utxo_element,
};
use apus_indexes::{CoinStatsForm, CoinStatsSegment, IndexBlock, MakeError};
use apus_storage::DirStorage;
use apus_testkit::chain::{BlockPlan, ChainBuilder, Shape};
use bitcoin::hashes::Hash as _;
use bitcoin::{Amount, ScriptBuf, TxOut};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::LazyLock;

const COIN: u64 = 100_000_000;

/// A chain with coins made and spent in one block, outputs that no input can spend, rewards not claimed, and a
/// halving.
static CHAIN: LazyLock<TestChain> = LazyLock::new(|| {
    let mut builder = ChainBuilder::new(11);
    builder.random_blocks(155, Shape { transactions_max: 20, ..Shape::default() });
    let output = |value, script: Vec<u8>| TxOut {
        value: Amount::from_sat(value),
        script_pubkey: ScriptBuf::from(script),
    };
    let odd = vec![
        output(1_000, vec![0x6a, 1, 7]),
        output(2_000, vec![0x51; 10_001]),
        output(3_000, vec![0x51; 10_000]),
        output(4_000, Vec::new()),
        output(0, vec![0x51]),
    ];
    builder.add_plan(BlockPlan { coinbase_outputs: Some(odd), ..BlockPlan::default() });
    builder.random_blocks(5, Shape::default());
    TestChain::new(&builder.blocks(), Network::Regtest)
});

/// The records that follow from the set of coins after each block, kept as a whole.
fn model(chain: &TestChain, form: CoinStatsForm) -> Vec<Vec<u8>> {
    let mut coins: HashMap<bitcoin::OutPoint, (u32, bool, TxOut)> = HashMap::new();
    let (mut spent, mut created, mut coinbase) = (0u128, 0u128, 0u128);
    let (mut subsidy, mut scripts, mut genesis, mut bip30) = (0u64, 0u64, 0u64, 0u64);
    let mut records = Vec::new();
    for (height, block) in (0u32..).zip(&chain.blocks) {
        let block: bitcoin::Block = bitcoin::consensus::deserialize(&block.raw).unwrap();
        let hash = BlockHash(block.block_hash().to_byte_array());
        let reward = ChainBuilder::subsidy(height);
        subsidy += reward;
        let left_out = chain.params.bip30_unspendable.contains(&KnownBlock { height, hash });
        if height == 0 {
            genesis += reward;
        }
        if left_out {
            bip30 += reward;
        }
        for tx in block.txdata.iter().filter(|_| height > 0) {
            for input in tx.input.iter().filter(|_| !tx.is_coinbase()) {
                let (_, _, output) = coins.remove(&input.previous_output).unwrap();
                spent += u128::from(output.value.to_sat());
            }
            let txid = tx.compute_txid();
            for (vout, output) in (0..).zip(&tx.output) {
                let amount = output.value.to_sat();
                if tx.is_coinbase() && left_out {
                    continue;
                } else if is_unspendable(output.script_pubkey.as_bytes()) {
                    scripts += amount;
                    continue;
                }
                *if tx.is_coinbase() { &mut coinbase } else { &mut created } += u128::from(amount);
                let coin = (height, tx.is_coinbase(), output.clone());
                coins.insert(bitcoin::OutPoint { txid, vout }, coin);
            }
        }
        let mut muhash = MuHash::new();
        let (mut size, mut amounts) = (0, 0u64);
        for (outpoint, (height, coinbase, output)) in &coins {
            let (amount, script) = (output.value.to_sat(), output.script_pubkey.as_bytes());
            let outpoint = apus_chain::OutPoint {
                txid: apus_chain::Txid(outpoint.txid.to_byte_array()),
                vout: outpoint.vout,
            };
            let mut element = Vec::new();
            let coin = CoinRef { height: *height, coinbase: *coinbase, amount, script };
            write_utxo_element(&mut element, &outpoint, coin);
            muhash.insert(&element);
            size += bogosize(script.len());
            amounts += amount;
        }
        let lost = genesis + bip30 + scripts;
        let unclaimed = subsidy - lost - amounts;
        let mut record = [hash.0, muhash.finalize()].concat();
        for number in [coins.len() as u64, size, amounts, subsidy] {
            record.extend_from_slice(&number.to_le_bytes());
        }
        match form {
            CoinStatsForm::Narrow => {
                record.extend_from_slice(&(lost + unclaimed).to_le_bytes());
                for sum in [spent, created, coinbase] {
                    record.extend_from_slice(&(sum as u64).to_le_bytes());
                }
            }
            CoinStatsForm::Wide => {
                for sum in [spent, created, coinbase] {
                    record.extend_from_slice(&[sum.to_le_bytes(), [0; 16]].concat());
                }
            }
        }
        for number in [genesis, bip30, scripts, unclaimed] {
            record.extend_from_slice(&number.to_le_bytes());
        }
        records.push(record);
    }
    records
}

fn records(rows: &std::collections::BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<Vec<u8>> {
    let of_height = rows.iter().filter(|(key, _)| key[0] == b't');
    (0u32..)
        .zip(of_height)
        .map(|(height, (key, value))| {
            assert_eq!(key[1..], height.to_be_bytes());
            value.clone()
        })
        .collect()
}

#[test]
fn each_record_describes_the_set_after_its_block() {
    for form in [CoinStatsForm::Wide, CoinStatsForm::Narrow] {
        let (tip, index) = coin_stats_index(&CHAIN, &[100, 30], form);
        let expected = model(&CHAIN, form);
        for (height, (record, expected)) in records(&index.rows).iter().zip(&expected).enumerate() {
            assert_eq!(record, expected, "{height}");
        }
        assert_eq!(index.rows.len(), expected.len() + 2);
        let last = &expected[expected.len() - 1];
        assert_eq!(tip.muhash, last[32..64]);
        assert_eq!(tip.coins.to_le_bytes(), last[64..72]);
        assert_eq!(tip.amount.to_le_bytes(), last[80..88]);
        let state: [u8; 768] = index.rows[&b"M"[..]][..].try_into().unwrap();
        assert_eq!(MuHash::from_bytes(&state).unwrap().finalize(), tip.muhash);
        assert_eq!(index.rows[&b"B"[..]], CHAIN.best());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn an_index_has_the_same_bytes_however_the_chain_is_cut(cuts in vec(0usize..162, 0..12)) {
        static WHOLE: LazyLock<std::collections::BTreeMap<Vec<u8>, Vec<u8>>> =
            LazyLock::new(|| coin_stats_index(&CHAIN, &[], CoinStatsForm::Wide).1.rows);
        let (_, index) = coin_stats_index(&CHAIN, &cuts, CoinStatsForm::Wide);
        prop_assert_eq!(&index.rows, &*WHOLE);
    }
}

#[test]
fn a_coinbase_that_a_later_one_replaces_is_in_no_set() {
    let mut builder = ChainBuilder::new(5);
    builder.empty_blocks(3);
    let mut chain = TestChain::new(&builder.blocks(), Network::Regtest);
    let hash = |at: usize| BlockHash(builder.blocks()[at].block_hash().to_byte_array());
    chain.params.bip30_unspendable =
        vec![KnownBlock { height: 2, hash: hash(2) }, KnownBlock { height: 1, hash: hash(3) }]
            .into();
    let (tip, index) = coin_stats_index(&chain, &[], CoinStatsForm::Wide);
    assert_eq!((tip.coins, tip.amount), (2, 100 * COIN));
    assert_eq!(records(&index.rows), model(&chain, CoinStatsForm::Wide));
    // bip30
    assert_eq!(records(&index.rows)[3][200..208], (50 * COIN).to_le_bytes());
}

/// What a segment says of one block of the chain when it is altered.
fn refusal(
    alter: impl Fn(&IndexBlock<'_>, &mut CoinStatsSegment<'_>) -> Result<(), MakeError>,
) -> String {
    let folder = new_folder();
    let storage = DirStorage::new(folder.path());
    let in_block = |at: &usize| {
        let undo = BlockUndo::read(&CHAIN.blocks[*at].undo).unwrap();
        undo.coins().iter().any(|coin| coin.height() == *at as u32)
    };
    let height = (1..CHAIN.blocks.len()).find(in_block).unwrap();
    let mut segment = CoinStatsSegment::new(&CHAIN.params, &storage);
    let refused = CHAIN.for_each(height..height + 1, &mut |block, _| alter(block, &mut segment));
    refused.unwrap_err().to_string()
}

#[test]
fn blocks_and_undo_data_that_do_not_fit_are_refused() {
    let missing = refusal(|block, segment| {
        segment.block(&IndexBlock { undo: None, ..*block }, &ids(&block.view))
    });
    assert!(missing.contains("undo data are missing"), "{missing}");
    let without = refusal(|block, segment| segment.block(block, &[]));
    assert!(without.contains("ids of its transactions"), "{without}");
    // The undo data of another block.
    let other = refusal(|block, segment| {
        let undo = BlockUndo::read(&CHAIN.blocks[1].undo).unwrap();
        let other = IndexBlock { undo: Some(&undo), ..*block };
        segment.block(&other, &ids(&block.view))
    });
    assert!(other.contains("not one coin for each input"), "{other}");
    // Coins of the block that it has not: its transactions have other ids.
    let foreign = refusal(|block, segment| {
        let mut txids = ids(&block.view);
        txids.iter_mut().for_each(|txid| txid[31] ^= 1);
        segment.block(block, &txids)
    });
    assert!(foreign.contains("a coin of this block that it has not"), "{foreign}");
}

/// What a segment says if one coin that the block makes and spends is another one in the undo data.
fn refused_coin(change: impl for<'c> Fn(CoinRef<'c>) -> CoinRef<'c>) -> String {
    refusal(|block, segment| {
        let undo = block.undo.unwrap();
        let (mut raw, mut changed) = (Vec::new(), false);
        let mut writer = BlockUndoWriter::new(&mut raw, undo.tx_count());
        for tx in 1..undo.tx_count() {
            let coins: Vec<Coin<'_>> =
                undo.spent_by(tx).unwrap().iter().map(|coin| coin.coin()).collect();
            writer.push_tx(coins.iter().map(|coin| {
                if coin.height != block.height || changed {
                    return coin.as_ref();
                }
                changed = true;
                change(coin.as_ref())
            }));
        }
        writer.finish();
        let undo = BlockUndo::read(&raw).unwrap();
        segment.block(&IndexBlock { undo: Some(&undo), ..*block }, &ids(&block.view))
    })
}

/// Such a coin is in no MuHash.
#[test]
fn a_coin_made_and_spent_in_one_block_is_the_blocks_output() {
    let refused = [
        refused_coin(|coin| CoinRef { amount: coin.amount + 1, ..coin }),
        refused_coin(|coin| CoinRef { script: &[0x52], ..coin }),
        refused_coin(|coin| CoinRef { coinbase: !coin.coinbase, ..coin }),
    ];
    for refused in refused {
        assert!(refused.contains("another amount or script"), "{refused}");
    }
}

#[test]
fn amounts_out_of_range_are_refused() {
    let mut builder = ChainBuilder::new(6);
    let output = |value| TxOut { value: Amount::from_sat(value), script_pubkey: ScriptBuf::new() };
    let mut block = builder.propose(BlockPlan {
        coinbase_outputs: Some(vec![output(21_000_000 * COIN + 1)]),
        ..BlockPlan::default()
    });
    apus_testkit::chain::mine(&mut block);
    let raw = bitcoin::consensus::serialize(&block);
    let mut layout = BlockLayout::new();
    let view = layout.read(&raw).unwrap();
    let undo = BlockUndo::read(&[0]).unwrap();
    let block = IndexBlock { height: 1, hash: view.hash(), view, undo: Some(&undo) };
    let folder = new_folder();
    let storage = DirStorage::new(folder.path());
    let mut segment = CoinStatsSegment::new(&CHAIN.params, &storage);
    let refused = segment.block(&block, &ids(&view)).unwrap_err().to_string();
    assert!(refused.contains("out of range"), "{refused}");
}
