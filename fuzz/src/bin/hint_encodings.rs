//! Hints in the other encodings: accepted files are written back as the same bytes, or at least the same sets.
//!
//! Input: which encoding, then the file.
//!
//! Inputs: at most 8192 bytes.

#![no_main]

use apus_fuzz::Input;
use apus_sync::engines::swiftsync::hints::bitmap::{BitmapDecoder, BitmapEncoder};
use apus_sync::engines::swiftsync::hints::btcd::{BtcdDecoder, BtcdEncoder, GZIP_MAGIC};
use apus_sync::engines::swiftsync::hints::delta::{DeltaDecoder, DeltaEncoder};
use apus_sync::engines::swiftsync::hints::offsets::{OffsetsDecoder, OffsetsEncoder};
use apus_sync::engines::swiftsync::hints::{
    Format, HintsDecoder, HintsEncoder, HintsError, OUTPUTS_PER_BLOCK_MAX, detect_format,
};
use libfuzzer_sys::fuzz_target;

/// Indices of a block, and its number of outputs if the encoding states it.
type Blocks = Vec<(Vec<u32>, Option<u32>)>;

/// Compressed data can grow a thousandfold and more; this target does not test that.
const INDICES_MAX: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let encoding = input.u8() % 5;
    let file = input.rest();
    detect_format(file);
    let mut out = Vec::new();
    match encoding {
        0 => {
            let Ok(blocks) = read(Format::Bitmap, &mut BitmapDecoder::new(file)) else { return };
            write(Box::new(BitmapEncoder::new(&mut out)), &blocks);
        }
        1 => {
            let Ok(blocks) = read(Format::Delta, &mut DeltaDecoder::new(file)) else { return };
            write(Box::new(DeltaEncoder::new(&mut out)), &blocks);
        }
        2 => {
            let Ok(mut decoder) = BtcdDecoder::new(file) else { return };
            let Ok(blocks) = read(Format::Btcd, &mut decoder) else { return };
            let stop = decoder.stop_height().expect("the file states it");
            write(Box::new(BtcdEncoder::new(&mut out, stop).expect("memory")), &blocks);
            if file.starts_with(&GZIP_MAGIC) {
                let mut again = BtcdDecoder::new(&out[..]).expect("it was written");
                assert!(read(Format::Btcd, &mut again).expect("it was written") == blocks);
                return;
            }
        }
        3 => {
            let Ok(mut decoder) = OffsetsDecoder::plain(file) else { return };
            let Ok(blocks) = read(Format::Offsets, &mut decoder) else { return };
            write(offsets(&mut out, &decoder), &blocks);
        }
        _ => {
            let Ok(mut decoder) = OffsetsDecoder::with_height(file) else { return };
            let Ok(blocks) = read(Format::OffsetsWithHeight, &mut decoder) else { return };
            assert_eq!(decoder.stop_height(), Some(blocks.len() as u32));
            write(offsets(&mut out, &decoder), &blocks);
            let mut again = OffsetsDecoder::plain(&out[..]).expect("it was written");
            assert!(read(Format::Offsets, &mut again).expect("it was written") == blocks);
            return;
        }
    }
    assert!(out == file);
});

fn offsets<'a>(
    out: &'a mut Vec<u8>,
    decoder: &OffsetsDecoder<&[u8]>,
) -> Box<dyn HintsEncoder + 'a> {
    let stop_block = decoder.stop_block().expect("the file states it");
    Box::new(OffsetsEncoder::new(out, &stop_block).expect("memory"))
}

fn read(format: Format, decoder: &mut dyn HintsDecoder) -> Result<Blocks, Option<HintsError>> {
    let (mut blocks, mut indices) = (Blocks::new(), Vec::new());
    let mut total = 0;
    while let Some(element) = decoder.next_block(&mut indices)? {
        assert_eq!(element.height, format.start_height() + blocks.len() as u32);
        assert!(indices.is_sorted_by(|a, b| a < b));
        assert!(indices.last().is_none_or(|last| *last < OUTPUTS_PER_BLOCK_MAX));
        total += 1 + indices.len();
        if total > INDICES_MAX {
            return Err(None);
        }
        blocks.push((indices.clone(), element.outputs));
    }
    Ok(blocks)
}

fn write(mut encoder: Box<dyn HintsEncoder + '_>, blocks: &Blocks) {
    for (indices, outputs) in blocks {
        let least = indices.last().map_or(0, |last| last + 1);
        encoder.put_block(indices, outputs.unwrap_or(least)).expect("it was read");
    }
    encoder.finish().expect("all blocks were written");
}
