//! A block: our parser agrees with the `bitcoin` crate, and our validation with a model of Core's rules.
//!
//! Input: switches, height, median time past, then the block. Switches seal the block, so that the checks after
//! the commitments are reached.
//!
//! Inputs: at most 20000 bytes.

#![no_main]

use apus_chain::{
    BlockChecker, BlockContext, BlockLayout, BlockView, DecodeError, Network, Params,
};
use apus_fuzz::Input;
use apus_fuzz::rules::{self, Place};
use bitcoin::Block;
use bitcoin::consensus::encode::{Error, deserialize_partial};
use bitcoin::consensus::serialize;
use bitcoin::hashes::Hash;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let switches = input.u8();
    let place = Place {
        // Core keeps heights in an i32.
        height: input.u32() & 0x7fff_ffff,
        median_time_past: input.u32(),
        bip34: switches & 1 != 0,
        csv: switches & 2 != 0,
        segwit: switches & 4 != 0,
    };
    let Some(mut block) = read(input.rest()) else { return };
    if switches & 8 != 0 {
        rules::seal_witnesses(&mut block);
    }
    if switches & 16 != 0 {
        rules::seal_transactions(&mut block);
    }
    check(&block, &place);
});

/// Parses with both parsers; returns the block if both accept it.
fn read(raw: &[u8]) -> Option<Block> {
    let mut layout = BlockLayout::new();
    // Both parsers ignore the bytes after the block.
    let theirs = deserialize_partial::<Block>(raw).map(|(block, _)| block);
    match (layout.read(raw), theirs) {
        (Ok(view), Ok(block)) => {
            assert_same(&view, &block);
            Some(block)
        }
        // Core reads a zero flag as no outputs; it rejects such a transaction later.
        (Ok(_), Err(Error::UnsupportedSegwitFlag(0))) => None,
        (Ok(_), Err(error)) => panic!("only we accept it: {error}"),
        // The crate rejects a witness if there are no inputs; Core accepts it.
        (Err(DecodeError::SuperfluousWitness { tx, .. }), Ok(block))
            if block.txdata[tx].input.is_empty() =>
        {
            None
        }
        (Err(DecodeError::TooLong { .. }), _) => None,
        (Err(error), Ok(_)) => panic!("only we reject it: {error}"),
        (Err(_), Err(_)) => None,
    }
}

fn assert_same(view: &BlockView<'_>, block: &Block) {
    assert!(serialize(block) == view.raw());
    assert_eq!(view.hash().0, block.block_hash().to_byte_array());
    assert_eq!(view.weight() as u64, block.weight().to_wu());
    assert_eq!(view.tx_count(), block.txdata.len());
    for (ours, theirs) in view.txs().zip(&block.txdata) {
        assert_eq!(ours.stripped_size(), theirs.base_size());
        assert_eq!(ours.lock_time(), theirs.lock_time.to_consensus_u32());
        assert_eq!(ours.is_coinbase(), theirs.is_coinbase());
        assert_eq!(ours.inputs().len(), theirs.input.len());
        for (ours, theirs) in ours.inputs().zip(&theirs.input) {
            assert_eq!(ours.outpoint()[..], serialize(&theirs.previous_output));
            assert_eq!(ours.script_sig(), theirs.script_sig.as_bytes());
            assert_eq!(ours.sequence(), theirs.sequence.0);
        }
        assert_eq!(ours.outputs().len(), theirs.output.len());
        for (ours, theirs) in ours.outputs().zip(&theirs.output) {
            assert_eq!(ours.value(), theirs.value.to_sat().cast_signed());
            assert_eq!(ours.script(), theirs.script_pubkey.as_bytes());
        }
    }
}

fn check(block: &Block, place: &Place) {
    let from = |active: bool| if active { 0 } else { u32::MAX };
    let params = Params {
        bip34_height: from(place.bip34),
        csv_height: from(place.csv),
        segwit_height: from(place.segwit),
        ..Params::of(Network::Regtest).clone()
    };
    let context = BlockContext {
        params: &params,
        height: place.height,
        hash: apus_chain::BlockHash(block.block_hash().to_byte_array()),
        median_time_past: place.median_time_past,
        verifier: None,
    };
    let raw = serialize(block);
    let mut checker = BlockChecker::new();
    let ours = checker.check(&raw, &context);
    let verdict = ours.as_ref().map(|_| ()).map_err(|error| error.reason());
    assert_eq!(verdict, rules::check(block, place));
    let Ok(checked) = ours else { return };
    for ((txid, _), theirs) in checked.txs().zip(&block.txdata) {
        assert_eq!(txid.0, theirs.compute_txid().to_byte_array());
    }
}
