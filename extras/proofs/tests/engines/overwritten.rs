//! Leaves of outputs that left the UTXO set only because they were overwritten.

use crate::harness::hash_of;
use apus_chain::{BlockChecker, BlockContext, HeaderChain, Height, Network, Params};
use apus_proofs::roots::leaf_hasher;
use apus_sync::commitment::{PlacedHash, read_placed};
use apus_sync::engines::pass::Pass;
use apus_sync::engines::swiftsync::aggregate::{AggregateKind, Aggregator, Secret};
use apus_sync::engines::swiftsync::{IndexHints, SegmentHints, SwiftSync};
use apus_utreexo::NodeHash;
use bitcoin::Block;
use std::fs;
use std::path::Path;

/// A real block of the main chain.
fn main_block(height: Height) -> Block {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/main-blocks");
    let start = format!("{height}_");
    let named = |entry: &fs::DirEntry| entry.file_name().to_str().unwrap().starts_with(&start);
    let file = fs::read_dir(folder).unwrap().map(Result::unwrap).find(named).unwrap();
    bitcoin::consensus::encode::deserialize(&fs::read(file.path()).unwrap()).unwrap()
}

/// An engine with only the genesis header.
fn main_engine(params: &Params) -> SwiftSync {
    let headers = HeaderChain::from_headers(params, 4_000_000_000, []).unwrap();
    let (kind, secret) = (AggregateKind::Sha256, Secret([7; 32]));
    SwiftSync::new(params, &headers, Aggregator::new(kind, &secret, *headers.tip_hash(), [0; 32]))
}

/// The coinbases of blocks 91,722 and 91,812 were overwritten, and their leaves are never deleted. The hashes
/// are from utreexod (`wire`, `leaf.go`).
#[test]
fn overwritten_coinbases_stay_in_the_forest() {
    let params = Params::of(Network::Main);
    let engine = main_engine(params).with_hashes(Some(leaf_hasher));
    for (height, leaf) in [
        (91_722, "84b3af0783b410b4564c5d1f361868559f7cf77cfc65ce2be951210357022fe3"),
        (91_812, "bc6b4bf7cebbd33a18d6b0fe1f8ecc7aa5403083c39ee343b985d51fd0295ad8"),
    ] {
        let block = main_block(height);
        let raw = bitcoin::consensus::encode::serialize(&block);
        let hash = hash_of(&block);
        let context = BlockContext { params, height, hash, median_time_past: 0, verifier: None };
        let mut checker = BlockChecker::new();
        let checked = checker.check(&raw, &context).unwrap();
        let mut hints = IndexHints::new(height);
        hints.push([]);
        let mut segment = engine.begin(SegmentHints::Indices(hints));
        engine.block(&mut segment, &checked).unwrap();
        let done = engine.finish(segment).unwrap();
        let live: Vec<PlacedHash> = read_placed(&done.hashes).map(Option::unwrap).collect();
        assert_eq!(live.len(), 1);
        assert_eq!((live[0].place, NodeHash(live[0].hash).to_string()), (0, leaf.to_owned()));
        let outputs: usize = block.txdata.iter().map(|tx| tx.output.len()).sum();
        assert_eq!(done.partial.numbered, outputs as u64);
    }
}
