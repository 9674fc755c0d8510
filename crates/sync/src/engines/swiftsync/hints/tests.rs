//! Hints of real chains, made by two implementations from a node's UTXO sets.

use super::block::tests::collect;
use super::*;
use apus_chain::{BlockHash, HeightRange};
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    let path = fixture(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn open(name: &str) -> HintsFile {
    HintsFile::open_path(&fixture(name), &HintsOptions::default()).unwrap()
}

fn all(file: &HintsFile) -> Vec<Vec<u32>> {
    let heights = HeightRange::new(1, file.info().stop_height + 1);
    collect(Format::Bip456, &mut file.range(heights).unwrap()).unwrap()
}

fn rewrite(blocks: &[Vec<u32>], order: BitOrder) -> Vec<u8> {
    let (stop, layout) = (blocks.len() as u32, Layout::FromHeightOne);
    let mut writer = HintsWriter::with(Vec::new(), stop, order, layout).unwrap();
    blocks.iter().for_each(|indices| writer.put(indices).unwrap());
    writer.finish().unwrap()
}

/// Number of coins that the node counted, from `gettxoutsetinfo`.
fn coins_of(folder: &str) -> u64 {
    let json = bytes(&format!("{folder}/gettxoutsetinfo.json"));
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    json["txouts"].as_u64().unwrap()
}

#[test]
fn real_chains_round_trip_in_both_orders() {
    // On the regtest chain the first two coinbases are spent: their elements are empty.
    for (folder, stop_height, settled) in
        [("main-4521", 4521, 1), ("signet-120", 120, 1), ("regtest-315", 315, 3)]
    {
        let names = ["bip456", "hintsfile-0.2"].map(|kind| format!("{folder}/utxo.{kind}.hints"));
        let [msb, lsb] = names.each_ref().map(|name| open(name));
        let blocks = all(&msb);
        assert_eq!(blocks, all(&lsb), "{folder}");
        for (file, order, name) in
            [(&msb, BitOrder::MsbFirst, &names[0]), (&lsb, BitOrder::LsbFirst, &names[1])]
        {
            let info = file.info();
            assert_eq!(info.order, order, "{name}");
            assert_eq!(info.order_evidence, OrderEvidence::Settled(settled), "{name}");
            assert_eq!(info.layout, Layout::FromHeightOne, "{name}");
            assert_eq!(info.stop_height, stop_height, "{name}");
            assert_eq!(info.coins, coins_of(folder), "{name}");
            assert_eq!(rewrite(&blocks, order), bytes(name), "{name}");
        }
        let theirs = hintsfile::Hintsfile::from_reader(&mut &bytes(&names[1])[..]).unwrap();
        for (height, indices) in (1..).zip(&blocks) {
            assert_eq!(theirs.indices_at_height(height).as_ref(), Some(indices));
        }
    }
}

#[test]
fn a_file_of_another_project_round_trips() {
    let name = "floresta/bitcoin-175.hints";
    let file = open(name);
    assert_eq!((file.info().stop_height, file.info().order), (175, BitOrder::MsbFirst));
    // Block 170 has the first payment, which spends the coinbase of block 9.
    let blocks = all(&file);
    assert_eq!(blocks[8], [] as [u32; 0]);
    assert_eq!(blocks[0], [0]);
    assert_eq!(rewrite(&blocks, BitOrder::MsbFirst), bytes(name));
    let main = all(&open("main-4521/utxo.bip456.hints"));
    // Later blocks can spend only outputs that were unspent.
    for (height, (early, late)) in blocks.iter().zip(&main).enumerate() {
        assert!(late.iter().all(|index| early.contains(index)), "height {}", height + 1);
    }
}

#[test]
fn every_cut_of_a_real_file_is_an_error() {
    let whole = bytes("signet-120/utxo.bip456.hints");
    for end in 0..whole.len() {
        let error = HintsFile::open(whole[..end].to_vec(), &HintsOptions::default()).err();
        let error = error.unwrap_or_else(|| panic!("{end} bytes were accepted"));
        assert_eq!(error.kind(), HintsErrorKind::Invalid);
        assert!(error.to_string().contains("byte"), "{error}");
    }
    for surplus in 0..=255 {
        let longer = [&whole[..], &[surplus]].concat();
        let error = HintsFile::open(longer, &HintsOptions::default()).err().unwrap();
        assert!(matches!(error, HintsError::Trailing { height: 120, offset: 369 }));
    }
}

/// A file is refused in the wrong order, for both orders.
#[test]
fn a_wrong_order_is_refused() {
    for (name, order) in [
        ("main-4521/utxo.bip456.hints", BitOrder::LsbFirst),
        ("main-4521/utxo.hintsfile-0.2.hints", BitOrder::MsbFirst),
    ] {
        let options = HintsOptions { order: Some(order), layout: None };
        let error = HintsFile::open(bytes(name), &options).err().unwrap();
        assert!(matches!(error, HintsError::Block { height: 1, offset: 9, .. }), "{error}");
    }
}

/// A real chain's sets survive every other encoding and back.
#[test]
fn other_encodings_preserve_real_hints() {
    let blocks = all(&open("regtest-315/utxo.bip456.hints"));
    let from_genesis = [&[vec![]], &blocks[..]].concat();
    let stop_block = BlockHash([7; 32]);
    let (mut bits, mut delta, mut gaps, mut offsets) = (vec![], vec![], vec![], vec![]);
    let formats = [Format::Bitmap, Format::Delta, Format::Btcd, Format::Offsets];
    let encoders: [Box<dyn HintsEncoder + '_>; 4] = [
        Box::new(bitmap::BitmapEncoder::new(&mut bits)),
        Box::new(delta::DeltaEncoder::new(&mut delta)),
        Box::new(btcd::BtcdEncoder::new(&mut gaps, blocks.len() as u32).unwrap()),
        Box::new(offsets::OffsetsEncoder::new(&mut offsets, &stop_block).unwrap()),
    ];
    for (format, mut encoder) in formats.into_iter().zip(encoders) {
        for indices in &from_genesis[format.start_height() as usize..] {
            let outputs = indices.last().map_or(1, |last| last + 1);
            encoder.put_block(indices, outputs).unwrap();
        }
        encoder.finish().unwrap();
    }
    let mut decoders: [Box<dyn HintsDecoder + '_>; 4] = [
        Box::new(bitmap::BitmapDecoder::new(&bits[..])),
        Box::new(delta::DeltaDecoder::new(&delta[..])),
        Box::new(btcd::BtcdDecoder::new(&gaps[..]).unwrap()),
        Box::new(offsets::OffsetsDecoder::plain(&offsets[..]).unwrap()),
    ];
    for (format, decoder) in formats.into_iter().zip(&mut decoders) {
        let start = format.start_height() as usize;
        assert_eq!(collect(format, &mut **decoder).unwrap(), from_genesis[start..]);
    }
}

proptest::proptest! {
    #[test]
    fn no_decoder_panics(data in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
        let drain = |decoder: Result<Box<dyn HintsDecoder + '_>, HintsError>| {
            let (Ok(mut decoder), mut indices) = (decoder, Vec::new()) else { return };
            while let Ok(Some(_)) = decoder.next_block(&mut indices) {
                assert!(indices.len() <= OUTPUTS_PER_BLOCK_MAX as usize);
                assert!(indices.is_sorted_by(|a, b| a < b));
            }
        };
        let data = &data[..];
        drain(Ok(Box::new(bitmap::BitmapDecoder::new(data))));
        drain(Ok(Box::new(delta::DeltaDecoder::new(data))));
        drain(btcd::BtcdDecoder::new(data).map(|decoder| Box::new(decoder) as _));
        drain(offsets::OffsetsDecoder::plain(data).map(|decoder| Box::new(decoder) as _));
        drain(offsets::OffsetsDecoder::with_height(data).map(|decoder| Box::new(decoder) as _));
        let headed = [&b"UTXO\x01\x05\0\0\0"[..], data].concat();
        drain(btcd::BtcdDecoder::new(&headed[..]).map(|decoder| Box::new(decoder) as _));
    }
}

/// An encoder has written everything by the end, or returns an error.
#[test]
fn an_encoder_that_cannot_write_its_last_bytes_fails() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Err(std::io::Error::other("the disk is full"))
        }
    }
    let writer = HintsWriter::new(Full, 1).unwrap();
    let encoders: [(Format, Box<dyn HintsEncoder>); 5] = [
        (Format::Btcd, Box::new(btcd::BtcdEncoder::new(Full, 1).unwrap())),
        (Format::Delta, Box::new(delta::DeltaEncoder::new(Full))),
        (Format::Bitmap, Box::new(bitmap::BitmapEncoder::new(Full))),
        (
            Format::Offsets,
            Box::new(offsets::OffsetsEncoder::new(Full, &BlockHash([1; 32])).unwrap()),
        ),
        (Format::Bip456, Box::new(writer)),
    ];
    for (format, mut encoder) in encoders {
        for _ in format.start_height()..=1 {
            encoder.put_block(&[], 1).unwrap();
        }
        let error = encoder.finish().unwrap_err();
        assert!(matches!(error, HintsError::Write { .. }), "{error}");
    }
}
