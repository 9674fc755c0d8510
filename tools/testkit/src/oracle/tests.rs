//! The oracle against files of real nodes.

use super::*;
use crate::blkfile;
use crate::chain::{UtxoSet, hints, utxo_set};
use bitcoin::{Amount, Block, Network};
use proptest::prelude::*;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// Checks every number recorded for a fixture, computed only from its blocks.
fn check(name: &str, blocks: &str, network: Network) -> (Vec<Block>, UtxoSet) {
    let folder = fixtures().join(name);
    let magic = network.magic().to_bytes();
    let genesis = bitcoin::constants::genesis_block(network).block_hash();
    let chain = blkfile::read_chain(&folder.join(blocks), magic, genesis);
    let coins = utxo_set(&chain);
    let said = fs::read_to_string(folder.join("gettxoutsetinfo.json")).unwrap();
    let said: Value = serde_json::from_str(&said).unwrap();

    let tip = chain.last().unwrap().block_hash();
    assert_eq!(said["height"], chain.len() - 1);
    assert_eq!(said["bestblock"], tip.to_string());
    assert_eq!(said["txouts"], coins.len());
    let total: Amount = coins.values().map(|coin| coin.output.value).sum();
    assert_eq!(said["total_amount"].as_f64().unwrap(), total.to_btc());
    assert_eq!(said["muhash"], muhash(&coins));
    assert_eq!(said["hash_serialized_3"], hash_serialized_3(&coins));

    let read = |file: &str| fs::read(folder.join(file)).unwrap();
    assert!(read("utxo.dat") == snapshot(magic, tip, &coins), "the snapshot of {name} differs");
    let hints = hints(&chain, &coins);
    let lsb = read("utxo.hintsfile-0.2.hints");
    assert_eq!(read_hints_file(&lsb), hints);
    assert!(lsb == hints_file(&hints, BitOrder::Lsb));
    assert!(read("utxo.bip456.hints") == hints_file(&hints, BitOrder::Msb));
    (chain, coins)
}

#[test]
fn the_regtest_chain_gives_bitcoinds_numbers() {
    // Contains every compressed script kind and a transaction of 20,001 outputs.
    check("regtest-315", "regtest/blocks", Network::Regtest);
}

#[test]
fn the_main_chain_gives_bitcoinds_numbers() {
    let (_, coins) = check("main-4521", "blocks", Network::Bitcoin);
    // Both hashes detect one wrong coin.
    let mut other = coins.clone();
    other.first_entry().unwrap().get_mut().height ^= 1;
    assert_ne!(muhash(&other), muhash(&coins));
    assert_ne!(hash_serialized_3(&other), hash_serialized_3(&coins));
}

#[test]
fn the_signet_chain_gives_bitcoinds_numbers() {
    check("signet-120", "blocks", Network::Signet);
}

#[test]
fn the_empty_set_has_the_hash_of_one() {
    // The product of nothing is 1: the SHA-256 of 01 and 383 zero bytes.
    let one = [&[1][..], &[0; 383]].concat();
    let hash: String = Sha256::digest(one).iter().rev().map(|b| format!("{b:02x}")).collect();
    assert_eq!(muhash(&UtxoSet::new()), hash);
}

#[test]
fn numbers_are_encoded_as_in_core() {
    for (number, bytes) in [
        (0, &[0x00][..]),
        (127, &[0x7f]),
        (128, &[0x80, 0x00]),
        (255, &[0x80, 0x7f]),
        (16_511, &[0xff, 0x7f]),
        (16_512, &[0x80, 0x80, 0x00]),
        (u64::MAX, &[0x80, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0x7f]),
    ] {
        assert_eq!(varint(number), bytes, "{number}");
    }
}

fn vectors(file: &str) -> Value {
    let text = fs::read_to_string(fixtures().join("bip-vectors").join(file)).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn amounts_match_the_drafts_vectors() {
    let vectors = vectors("compressed_amount.json");
    for vector in vectors.as_array().unwrap() {
        let satoshi = vector[0].as_u64().unwrap();
        assert_eq!(format!("{:#x}", compress_amount(satoshi)), vector[1], "{satoshi}");
    }
    assert!(vectors.as_array().unwrap().len() > 5);
}

#[test]
fn hints_match_the_vectors_of_both_orders() {
    let vectors = &vectors("elias_fano_both_orders.json")["vectors"];
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    for vector in vectors.as_array().unwrap() {
        let indices = vector["indices"].as_array().unwrap();
        let indices = indices.iter().map(|index| index.as_u64().unwrap() as u32).collect();
        let hints = [indices];
        let msb = &hints_file(&hints, BitOrder::Msb)[9..];
        assert_eq!(hex(msb), vector["msb_0_1_x_and_bip456_vectors"]);
        assert_eq!(hex(&hints_file(&hints, BitOrder::Lsb)[9..]), vector["lsb_0_2_x"]);
    }
    assert!(vectors.as_array().unwrap().len() >= 10);
}

proptest! {
    #[test]
    fn hints_round_trip_in_both_orders(sets in prop::collection::vec(
        prop::collection::btree_set(0u32..5_000, 0..60), 0..12)) {
        let hints: Vec<Vec<u32>> =
            sets.into_iter().map(|set| set.into_iter().collect()).collect();
        let lsb = hints_file(&hints, BitOrder::Lsb);
        let msb = hints_file(&hints, BitOrder::Msb);
        prop_assert_eq!(lsb.len(), msb.len());
        prop_assert_eq!(read_hints_file(&lsb), hints);
    }
}
