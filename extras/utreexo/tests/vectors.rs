//! Published vectors: roots of added and deleted leaves, and roots of a real chain.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use apus_chain::{BlockHash, CoinRef, OutPoint, Txid, is_unspendable};
use apus_utreexo::{Fragment, NodeHash, Roots, RootsError, leaf_hash};
use bitcoin::consensus::encode::deserialize_hex;
use bitcoin::hashes::Hash;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::PathBuf;

fn fixture<T: for<'de> Deserialize<'de>>(name: &str) -> T {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name);
    let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap()
}

#[derive(Deserialize)]
struct Cases {
    insertion_tests: Vec<Case>,
    deletion_tests: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    leaf_preimages: Vec<u8>,
    /// Deleted leaves.
    #[serde(default)]
    target_values: Vec<u64>,
    expected_roots: Vec<String>,
}

impl Case {
    /// Adds and deletes at once: a deleted leaf counts as never added.
    fn check(&self) {
        let mut fragment = Fragment::new(0).unwrap();
        for (place, preimage) in (0..).zip(&self.leaf_preimages) {
            let leaf = NodeHash(Sha256::digest([*preimage]).into());
            let is_deleted = self.target_values.contains(&place);
            fragment.push(if is_deleted { NodeHash::EMPTY } else { leaf }).unwrap();
        }
        let roots = fragment.roots().unwrap();
        let roots: Vec<String> = roots.hashes().iter().map(NodeHash::to_string).collect();
        assert_eq!(roots, self.expected_roots, "{:?}", self.target_values);
    }
}

#[test]
fn leaves_added_and_deleted() {
    for (name, deletions) in [("test_cases.json", 14), ("pytreexo_test_cases.json", 11)] {
        let cases: Cases = fixture(&format!("utreexo/{name}"));
        assert_eq!((cases.insertion_tests.len(), cases.deletion_tests.len()), (4, deletions));
        cases.insertion_tests.iter().chain(&cases.deletion_tests).for_each(Case::check);
    }
}

#[derive(Deserialize)]
struct RawBlock {
    block: String,
}

#[derive(Deserialize)]
struct ChainRoots {
    roots: Vec<String>,
    numleaves: u64,
}

/// The forest of a chain's coins, without the coins spent so far.
#[derive(Default)]
struct Coins {
    leaves: Vec<NodeHash>,
    places: HashMap<bitcoin::OutPoint, usize>,
}

impl Coins {
    fn connect(&mut self, height: u32, block: &bitcoin::Block) {
        let of_block = BlockHash(block.block_hash().to_byte_array());
        let spends = block.txdata.iter().skip(1).flat_map(|tx| &tx.input);
        let spent: Vec<bitcoin::OutPoint> = spends.map(|input| input.previous_output).collect();
        for tx in &block.txdata {
            let (txid, coinbase) = (tx.compute_txid(), tx.is_coinbase());
            for (vout, output) in (0..).zip(&tx.output) {
                let outpoint = bitcoin::OutPoint { txid, vout };
                let script = output.script_pubkey.as_bytes();
                if is_unspendable(script) || spent.contains(&outpoint) {
                    continue;
                }
                let coin = CoinRef { height, coinbase, amount: output.value.to_sat(), script };
                let ours = OutPoint { txid: Txid(txid.to_byte_array()), vout };
                self.places.insert(outpoint, self.leaves.len());
                self.leaves.push(leaf_hash(&of_block, &ours, coin));
            }
        }
        for outpoint in spent {
            if let Some(place) = self.places.remove(&outpoint) {
                self.leaves[place] = NodeHash::EMPTY;
            }
        }
    }

    fn roots(&self) -> Roots {
        let mut fragment = Fragment::new(0).unwrap();
        self.leaves.iter().for_each(|leaf| fragment.push(*leaf).unwrap());
        fragment.roots().unwrap()
    }
}

/// Compares the roots at every height. The genesis block's output is neither a coin nor a leaf.
#[test]
fn roots_of_signets_first_blocks_match() {
    let blocks: Vec<RawBlock> = fixture("floresta/signet_blocks.json");
    let expected: Vec<ChainRoots> = fixture("floresta/signet_roots.json");
    assert!(blocks.len() == 121 && expected.len() >= 120);
    let mut coins = Coins::default();
    for (height, (raw, expected)) in (1..).zip(blocks[1..].iter().zip(&expected)) {
        coins.connect(height, &deserialize_hex(&raw.block).unwrap());
        let roots = coins.roots();
        let hashes: Vec<String> = roots.hashes().iter().map(NodeHash::to_string).collect();
        assert_eq!((roots.leaves(), &hashes), (expected.numleaves, &expected.roots), "{height}");
    }
}

#[test]
fn roots_round_trip() {
    let mut fragment = Fragment::new(0).unwrap();
    for place in 0..70u8 {
        let roots = fragment.roots().unwrap();
        let mut bytes = Vec::new();
        roots.write(&mut bytes);
        assert_eq!(Roots::read(&bytes), Ok(roots));
        for length in 0..bytes.len() {
            assert!(Roots::read(&bytes[..length]).is_err());
        }
        bytes.push(0);
        assert!(matches!(Roots::read(&bytes), Err(RootsError::Length { .. })));
        fragment.push(NodeHash([place; 32])).unwrap();
    }
    let wrong = [3u64.to_le_bytes(), 1u64.to_le_bytes()].concat();
    assert_eq!(Roots::read(&wrong), Err(RootsError::Count { leaves: 3, needed: 2, found: 1 }));
    let wrong = [u64::MAX.to_le_bytes(), 64u64.to_le_bytes()].concat();
    assert_eq!(Roots::read(&wrong), Err(RootsError::TooMany { leaves: u64::MAX }));
}
