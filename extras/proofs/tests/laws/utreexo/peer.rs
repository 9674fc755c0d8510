//! Proofs that utreexod 0.6.0 made, with its roots between any two blocks.

use crate::swiftsync::harness::Chain;
use crate::utreexo::harness::{Ranges, run};
use apus_chain::{HeightRange, Network, Params, Reader};
use apus_testkit::rng::Rng;
use apus_testkit::utreexod::recorded_proofs;
use apus_utreexo::{Proof, Roots, TARGETS_MAX};
use bitcoin::Block;
use bitcoin::consensus::encode::deserialize_hex;
use bitcoin::hex::FromHex;
use serde_json::Value;

fn bytes(text: &Value) -> Vec<u8> {
    Vec::from_hex(text.as_str().unwrap()).unwrap()
}

/// utreexod's encoding of a proof and leaves, without the number of leaves, which equals the number of
/// targets.
fn entry(record: &Value) -> Vec<u8> {
    let bytes = bytes(&record["proof"]);
    let mut reader = Reader::new(&bytes);
    let proof = Proof::read(&mut reader, TARGETS_MAX).unwrap();
    assert_eq!(reader.compact_size().unwrap(), proof.targets.len());
    let mut entry = Vec::new();
    proof.write(&mut entry);
    entry.extend_from_slice(reader.take(reader.remaining()).unwrap());
    entry
}

fn roots(record: &Value) -> Roots {
    let hashes = record["roots"].as_array().unwrap();
    let mut out = record["numleaves"].as_u64().unwrap().to_le_bytes().to_vec();
    out.extend((hashes.len() as u64).to_le_bytes());
    hashes.iter().for_each(|hash| out.extend(bytes(hash)));
    Roots::read(&out).unwrap()
}

/// utreexod's recorded data for each block from height 1, and the blocks.
fn recorded() -> (Vec<Value>, Vec<Block>) {
    let records = recorded_proofs("random-proofs.jsonl.gz");
    let mut blocks = vec![bitcoin::constants::genesis_block(bitcoin::Network::Regtest)];
    let block = |record: &Value| deserialize_hex::<Block>(record["block"].as_str().unwrap());
    blocks.extend(records.iter().map(|record| block(record).unwrap()));
    (records, blocks)
}

/// Validates the recorded data as one range, and block by block.
#[test]
fn blocks_pass_with_the_data_of_utreexod() {
    let (records, blocks) = recorded();
    let chain = Chain::with(Params::of(Network::Regtest), blocks);
    let mut after = vec![Roots::default()];
    after.extend(records.iter().map(roots));
    let mut entries = vec![None];
    entries.extend(records.iter().map(|record| Some(entry(record))));
    let stop = chain.stop();
    let each: Vec<HeightRange> = (1..=stop).map(|at| HeightRange::new(at, at + 1)).collect();
    let mut rng = Rng::new(1);
    for cuts in [vec![HeightRange::new(1, stop + 1)], each] {
        let roots = |height: u32| after[height as usize].clone();
        let range = |cut: HeightRange| (cut, roots(cut.start - 1), roots(cut.end - 1));
        let ranges = cuts.into_iter().map(range).collect();
        let data = Ranges { entries: entries.clone(), ranges };
        let verdict = run(&chain, &data, &mut rng).unwrap();
        assert_eq!(verdict.roots, after[stop as usize]);
        assert_eq!(verdict.coins.unwrap().coins as usize, chain.utxo().len());
    }
}

/// Our test data and utreexod's are byte-identical.
#[test]
fn the_test_data_match_utreexod() {
    let (records, blocks) = recorded();
    let data = crate::utreexo::bridge::proofs_of(&blocks);
    for (height, record) in (1..).zip(&records) {
        assert_eq!(data.entries[height].bytes(), entry(record), "{height}");
        assert_eq!(data.roots[height], roots(record), "{height}");
    }
    assert!(data.entries.iter().any(|entry| entry.coins.len() > 5), "the chain spends");
}
