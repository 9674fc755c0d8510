//! Compares the zero-copy block view with real blocks and with the `bitcoin` crate.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use apus_chain::{BlockLayout, BlockView, DecodeError};
use bitcoin::consensus::{deserialize, serialize};
use bitcoin::hashes::Hash;
use proptest::prelude::*;
use std::path::Path;

fn real_blocks() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/main-blocks");
    let mut blocks: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "raw"))
        .map(|path| (path.display().to_string(), std::fs::read(path).unwrap()))
        .collect();
    blocks.sort();
    assert!(blocks.len() >= 10, "the fixtures hold at least ten real blocks");
    blocks
}

fn assert_same(view: &BlockView<'_>, block: &bitcoin::Block) {
    assert_eq!(view.hash().0, block.block_hash().to_byte_array());
    assert_eq!(view.tx_count(), block.txdata.len());
    assert_eq!(view.weight() as u64, block.weight().to_wu());
    for (ours, theirs) in view.txs().zip(&block.txdata) {
        let parts = ours.id_parts().concat();
        assert_eq!(apus_hash::sha256d(&parts), theirs.compute_txid().to_byte_array());
        assert_eq!(apus_hash::sha256d(ours.raw()), theirs.compute_wtxid().to_byte_array());
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

#[test]
fn real_blocks_read_as_in_the_bitcoin_crate() {
    let mut layout = BlockLayout::new();
    for (name, raw) in real_blocks() {
        let view = layout.read(&raw).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_same(&view, &deserialize(&raw).unwrap());
    }
}

#[test]
fn every_truncation_is_refused() {
    let (_, raw) = real_blocks().into_iter().min_by_key(|(_, raw)| raw.len()).unwrap();
    let mut layout = BlockLayout::new();
    for length in 0..raw.len() {
        assert!(layout.read(&raw[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn bytes_after_a_block_are_ignored() {
    let mut layout = BlockLayout::new();
    for (name, raw) in real_blocks() {
        for surplus in [&[0][..], &[0xff; 300], &raw, &vec![7; 4_000_000]] {
            let longer = [&raw[..], surplus].concat();
            let view = layout.read(&longer).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(view.raw() == raw, "{name}");
            assert_same(&view, &deserialize(&raw).unwrap());
        }
    }
}

/// Makes 500,000 transactions of ten bytes each.
#[test]
fn bytes_beyond_the_maximum_block_size_are_not_read() {
    let raw = [&[0; 80][..], &[0xfe], &500_000u32.to_le_bytes(), &[0; 5_000_000]].concat();
    let mut layout = BlockLayout::new();
    let error = DecodeError::TooLong { size: 5_000_085 };
    assert_eq!(layout.read(&raw).unwrap_err(), error);
    let end = layout.read(&raw[..4_000_000]).unwrap_err();
    assert!(matches!(end, DecodeError::Read(_)), "{end}");
}

/// A header, followed by one transaction's bytes.
fn block_of(tx: &[u8]) -> Vec<u8> {
    [&[0; 80][..], &[1], tx].concat()
}

#[test]
fn witness_forms_that_core_rejects_are_rejected() {
    let input = [&[0u8; 36][..], &[0], &[0xff; 4]].concat();
    let output = [0u8; 9];
    let tx = |flag: u8, witness: &[u8]| {
        let parts = [&[1, 0, 0, 0][..], &[0, flag], &[1], &input, &[1], &output, witness, &[0; 4]];
        block_of(&parts.concat())
    };
    let mut layout = BlockLayout::new();
    assert!(layout.read(&tx(1, &[1, 1, 7])).is_ok());
    assert_eq!(
        layout.read(&tx(1, &[0])).unwrap_err(),
        DecodeError::SuperfluousWitness { tx: 0, offset: 81 }
    );
    assert_eq!(
        layout.read(&tx(2, &[])).unwrap_err(),
        DecodeError::UnknownFlag { tx: 0, offset: 81, flag: 2 }
    );
    assert_eq!(
        layout.read(&tx(3, &[1, 1, 7])).unwrap_err(),
        DecodeError::UnknownFlag { tx: 0, offset: 81, flag: 3 }
    );
    // Core reads a zero flag as a transaction with neither inputs nor outputs.
    let raw = block_of(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let empty = layout.read(&raw).unwrap();
    let tx = empty.tx(0).unwrap();
    assert_eq!((tx.inputs().len(), tx.outputs().len()), (0, 0));
}

proptest! {
    /// A damaged block never causes a panic. If both readers accept it, they read the same values.
    #[test]
    fn damaged_blocks_never_panic(
        choice in any::<prop::sample::Index>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let blocks = real_blocks();
        let small: Vec<_> = blocks.iter().filter(|(_, raw)| raw.len() < 50_000).collect();
        let mut raw = small[choice.index(small.len())].1.clone();
        for (place, byte) in flips {
            let place = place.index(raw.len());
            raw[place] = byte;
        }
        let mut layout = BlockLayout::new();
        if let Ok(view) = layout.read(&raw) {
            // The crate rejects a few more things, such as amounts above 21 million.
            if let Ok(block) = deserialize::<bitcoin::Block>(&raw) {
                assert_same(&view, &block);
            }
        }
    }
}
