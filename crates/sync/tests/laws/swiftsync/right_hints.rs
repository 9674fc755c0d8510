//! Tests that right hints give exactly the model's coins, their MuHash and their totals.

use crate::swiftsync::harness::{
    Chain, KINDS, hash_of, model_coins, model_totals, shown, snapshot,
};
use crate::swiftsync::shapes::{random_chain, small_chain};
use apus_chain::Network;
use apus_sync::engines::swiftsync::Counts;
use apus_testkit::chain::{ChainBuilder, Shape, UtxoSet};
use apus_testkit::effort::rounds;
use apus_testkit::{blkfile, oracle};
use bitcoin::hashes::Hash;
use std::fs;
use std::path::Path;

/// Compares everything possible with the model.
fn expect_the_models_set(chain: &Chain) {
    let (utxo, hints) = (chain.utxo(), chain.hints());
    for kind in KINDS {
        let outcome = chain.run(kind, &hints).unwrap();
        assert_eq!(outcome.coins, model_coins(&utxo));
        assert_eq!(outcome.verdict.coins, model_totals(&utxo));
        assert_eq!(outcome.verdict.counts, model_counts(chain));
        assert_eq!(shown(&outcome.verdict.muhash.unwrap()), oracle::muhash(&utxo));
        assert_eq!(outcome.hints, hints);
        assert!(snapshot_of(chain, &outcome.records) == expected_snapshot(chain, &utxo));
        let by_name = chain.run_with_snapshot(kind, 3, &snapshot(&utxo)).unwrap();
        assert_eq!(by_name, outcome);
    }
}

fn model_counts(chain: &Chain) -> Counts {
    let blocks = &chain.blocks[1..];
    let txs = || blocks.iter().flat_map(|block| &block.txdata);
    let spends = txs().filter(|tx| !tx.is_coinbase()).map(|tx| tx.input.len());
    Counts {
        blocks: blocks.len() as u64,
        bytes: blocks.iter().map(|block| block.total_size() as u64).sum(),
        transactions: txs().count() as u64,
        inputs: spends.sum::<usize>() as u64,
        outputs: txs().map(|tx| tx.output.len() as u64).sum(),
    }
}

fn expected_snapshot(chain: &Chain, utxo: &UtxoSet) -> Vec<u8> {
    let tip = chain.blocks[chain.blocks.len() - 1].block_hash();
    oracle::snapshot(chain.params.network.magic(), tip, utxo)
}

/// Writes the runs' groups after a snapshot's header, as a snapshot has them.
fn snapshot_of(chain: &Chain, records: &[Vec<u8>]) -> Vec<u8> {
    let header = expected_snapshot(chain, &UtxoSet::new());
    let count = chain.utxo().len() as u64;
    let mut file = [&header[..header.len() - 8], &count.to_le_bytes()].concat();
    for record in records {
        file.extend_from_slice(&record[..32]);
        file.extend_from_slice(&record[36..]);
    }
    file
}

#[test]
fn of_the_small_chain() {
    expect_the_models_set(&Chain::of(&small_chain()));
}

#[test]
fn of_random_chains_that_spend_at_once() {
    for seed in 0..rounds(24, 2_000) {
        expect_the_models_set(&Chain::of(&random_chain(seed, 25)));
    }
}

#[test]
fn random_chains_that_a_node_accepts() {
    for seed in 0..rounds(3, 100) {
        let mut builder = ChainBuilder::new(seed);
        builder.random_blocks(130, Shape::default());
        expect_the_models_set(&Chain::of(&builder));
    }
}

#[test]
fn of_a_chain_of_one_block() {
    let mut builder = ChainBuilder::new(1);
    builder.empty_blocks(1);
    expect_the_models_set(&Chain::of(&builder));
}

/// Compares a fixture's chain with the node's answers about it.
fn expect_the_nodes_numbers(name: &str, blocks: &str, network: Network) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name);
    let params = apus_chain::Params::of(network);
    let genesis = bitcoin::BlockHash::from_byte_array(params.genesis_hash.0);
    let blocks = blkfile::read_chain(&folder.join(blocks), network.magic(), genesis);
    let chain = Chain::with(params, blocks);
    assert_eq!(*chain.headers.tip_hash(), hash_of(&chain.blocks[chain.stop() as usize]));
    let file = fs::read(folder.join("utxo.hintsfile-0.2.hints")).unwrap();
    let hints = oracle::read_hints_file(&file);
    let outcome = chain.run(KINDS[0], &hints).unwrap();
    assert_eq!(outcome.hints, hints);
    assert!(snapshot_of(&chain, &outcome.records) == fs::read(folder.join("utxo.dat")).unwrap());
    let info = fs::read_to_string(folder.join("gettxoutsetinfo.json")).unwrap();
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["muhash"], shown(&outcome.verdict.muhash.unwrap()));
    assert_eq!(info["txouts"], outcome.verdict.coins.coins);
    assert_eq!(info["bogosize"], outcome.verdict.coins.bogosize);
    assert_eq!(info["transactions"].as_u64().unwrap_or(outcome.verdict.coins.transactions), {
        outcome.verdict.coins.transactions
    });
}

#[test]
fn of_the_main_chains_first_blocks() {
    expect_the_nodes_numbers("main-4521", "blocks", Network::Main);
}

#[test]
fn of_a_nodes_regtest_chain_with_every_script_and_20_001_outputs() {
    expect_the_nodes_numbers("regtest-315", "regtest/blocks", Network::Regtest);
}
