//! [`Utreexod`]: a real bridge node of Utreexo, for tests that get proofs from one; and [`recorded_proofs`],
//! its recorded answers for the chains of the fixtures.
//!
//! A test that needs it fails if none can be found: it never passes by skipping. It gets its blocks from a
//! bitcoind and is killed when dropped. Its answers are passed on unchanged.

use crate::bitcoind::Bitcoind;
use crate::btcd::Relative;
use flate2::read::GzDecoder;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// A running utreexod on regtest that keeps a proof for each block. Dropping it kills it.
#[derive(Debug)]
pub struct Utreexod(Relative);

impl Utreexod {
    /// Starts a bridge that gets all blocks of a bitcoind, and waits until it has them. It serves proofs to
    /// peers only while its last block is from the last 24 hours.
    ///
    /// # Panics
    /// If there is no utreexod, it does not start, or it does not accept the blocks.
    pub fn with_blocks_of(node: &Bitcoind) -> Self {
        // By default it prunes, and then keeps no proofs, nor does it serve peers that speak plaintext.
        let bridge = ["--flatutreexoproofindex", "--prune=0", "--v2transport"];
        Self(Relative::with_blocks_of("utreexod", &bridge, node))
    }

    /// Returns the port for peers, on 127.0.0.1.
    pub fn p2p_port(&self) -> u16 {
        self.0.p2p_port
    }

    /// Returns all that the node reports about the block at a height: `height`, `hash`, the fields of
    /// `getutreexoproof` in words and, as `proof`, in bytes, and the fields of `getutreexoroots`.
    ///
    /// # Panics
    /// If it does not know the block, or for the genesis block, which has no proof.
    pub fn record(&self, height: u32) -> Value {
        let ask = |method: &str, params: &[Value]| {
            self.0.ask(method, params).unwrap_or_else(|| panic!("utreexod: {method} {params:?}"))
        };
        let hash = ask("getblockhash", &[json!(height)]);
        let mut record = json!({ "height": height, "hash": hash });
        record["proof"] = ask("getutreexoproof", &[hash.clone(), json!(0)]);
        let words =
            [ask("getutreexoproof", &[hash.clone(), json!(1)]), ask("getutreexoroots", &[hash])];
        for (name, value) in words.iter().filter_map(Value::as_object).flatten() {
            // Go encodes an empty list like this.
            let empty = value.is_null();
            record[name.as_str()] = if empty { json!([]) } else { value.clone() };
        }
        record
    }
}

/// Returns the recorded answers of a utreexod for a chain, block by block from height 1, from a file of
/// `fixtures/utreexo`. Each is like [`Utreexod::record`]; `block` contains the block if no other fixture does.
///
/// # Panics
/// If there is no such file.
pub fn recorded_proofs(name: &str) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/utreexo");
    let file = File::open(folder.join(name)).unwrap();
    let lines: Box<dyn Read> =
        if name.ends_with(".gz") { Box::new(GzDecoder::new(file)) } else { Box::new(file) };
    let lines = BufReader::new(lines).lines();
    lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::forest;
    use bitcoin::consensus::encode::deserialize_hex;
    use bitcoin::hashes::{Hash, HashEngine, sha512, sha512_256};
    use bitcoin::hex::FromHex;
    use bitcoin::{Block, Network};
    use rustreexo::node_hash::BitcoinNodeHash;
    use rustreexo::proof::Proof;
    use rustreexo::stump::Stump;

    /// Converts a node's hash for the library.
    fn node(bytes: [u8; 32]) -> BitcoinNodeHash {
        if bytes == [0; 32] { BitcoinNodeHash::Empty } else { BitcoinNodeHash::from(bytes) }
    }

    fn hashes(record: &Value, name: &str) -> Vec<BitcoinNodeHash> {
        let hash = |text: &Value| <[u8; 32]>::from_hex(text.as_str().unwrap()).unwrap();
        record[name].as_array().unwrap().iter().map(|text| node(hash(text))).collect()
    }

    /// Another library accepts each block's proof with the roots before it.
    #[test]
    fn proofs_prove_what_the_blocks_spend() {
        for name in ["regtest-315-proofs.jsonl.gz", "random-proofs.jsonl.gz"] {
            let (mut before, mut proven) = (Stump::new(), 0);
            for record in recorded_proofs(name) {
                let deleted = hashes(&record, "targethashes");
                let targets: Vec<u64> =
                    serde_json::from_value(record["prooftargets"].clone()).unwrap();
                proven += targets.len();
                let proof = Proof::new(targets, hashes(&record, "proofhashes"));
                assert_eq!(before.verify(&proof, &deleted), Ok(true), "{}", record["height"]);
                let (leaves, roots) = (record["numleaves"].as_u64(), hashes(&record, "roots"));
                before = Stump { leaves: leaves.unwrap(), roots };
            }
            assert!(proven > 0, "{name} proves nothing");
        }
    }

    #[test]
    fn a_leaf_is_the_hash_of_its_preimage() {
        let tag = sha512::Hash::hash(b"UtreexoV1");
        for record in recorded_proofs("random-proofs.jsonl.gz") {
            let hash = |preimage: &Value| {
                let mut hash = sha512_256::Hash::engine();
                hash.input(tag.as_byte_array());
                hash.input(tag.as_byte_array());
                hash.input(&Vec::from_hex(preimage.as_str().unwrap()).unwrap());
                BitcoinNodeHash::from(sha512_256::Hash::from_engine(hash).to_byte_array())
            };
            let preimages = record["targetpreimages"].as_array().unwrap();
            let found: Vec<_> = preimages.iter().map(hash).collect();
            assert_eq!(found, hashes(&record, "targethashes"), "{}", record["height"]);
        }
    }

    /// The oracle's forest matches the utreexod's, including the number of leaves.
    #[test]
    fn the_roots_match_the_oracle() {
        let records = recorded_proofs("random-proofs.jsonl.gz");
        let mut blocks = vec![bitcoin::constants::genesis_block(Network::Regtest)];
        for (place, record) in (1..).zip(&records) {
            blocks.push(deserialize_hex::<Block>(record["block"].as_str().unwrap()).unwrap());
            // Starting over for each block takes a while, and the last blocks cover everything.
            if place % 40 == 0 || place == records.len() {
                let (leaves, roots) = forest(&blocks);
                assert_eq!(record["numleaves"], leaves, "{place}");
                let roots: Vec<_> = roots.into_iter().map(node).collect();
                assert_eq!(hashes(record, "roots"), roots, "{place}");
            }
        }
    }
}
