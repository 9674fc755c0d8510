//! The bitmap of the first SwiftSync prototype: one bit for each output ever created.
//!
//! ```text
//! each block, from the genesis block on:
//!     u16 LE     number of outputs of the block, c > 0
//!     bits       ceil(c / 8) bytes, least significant bit first; 1: unspent; padded with zeros
//! u16 LE 0       the end
//! ```
//!
//! The bitmap counts all outputs, even ones that can never be coins. The file names neither the chain nor the
//! height, so the caller must compare the number of blocks and every block's [`BlockElement::outputs`] with the
//! chain: the count of a block with more than 65,535 outputs wraps, and a block with exactly 65,536 looks like
//! the end. A later draft of the same prototype starts with a u32 height and has no end mark; no data was
//! published in it, and it is not supported.

use super::block::{BlockElement, HintsDecoder, HintsEncoder};
use super::elias_fano::check_indices;
use super::error::{HintsError, HintsFault};
use super::sink::HintsSink;
use super::window::HintsWindow;
use apus_chain::Height;
use std::io::{Read, Write};

const BITMAP_BYTES_MAX: usize = 1 << 13;

/// Reads a bitmap.
pub struct BitmapDecoder<R> {
    window: HintsWindow<R>,
    next: Height,
    ended: bool,
}

impl<R: Read> BitmapDecoder<R> {
    /// Starts at the first byte of the file.
    pub fn new(reader: R) -> Self {
        Self { window: HintsWindow::new(reader, 8 * BITMAP_BYTES_MAX, 0), next: 0, ended: false }
    }
}

impl<R: Read> HintsDecoder for BitmapDecoder<R> {
    fn next_block(&mut self, indices: &mut Vec<u32>) -> Result<Option<BlockElement>, HintsError> {
        indices.clear();
        if self.ended {
            return Ok(None);
        }
        let (height, offset) = (self.next, self.window.offset());
        let count = self.window.array(height, "the count of outputs, or the closing 0")?;
        let count = u16::from_le_bytes(count);
        if count == 0 {
            if !self.window.at_end(height)? {
                return Err(HintsError::ZeroCount { height, offset });
            }
            self.ended = true;
            return Ok(None);
        }
        let fail = |fault| HintsError::block(height, offset, fault);
        let length = usize::from(count).div_ceil(8);
        let bytes = self.window.peek(length, height)?.get(..length);
        let bytes = bytes.ok_or_else(|| fail(HintsFault::End { field: "the bits" }))?;
        for (byte, base) in bytes.iter().zip((0u32..).step_by(8)) {
            let mut bits = *byte;
            while bits != 0 {
                indices.push(base + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
        if indices.last().is_some_and(|last| *last >= count.into()) {
            return Err(fail(HintsFault::Padding { field: "the bits" }));
        }
        self.window.skip(length);
        self.next = height.saturating_add(1);
        Ok(Some(BlockElement { height, offset, outputs: Some(count.into()) }))
    }
}

/// Writes a bitmap.
pub struct BitmapEncoder<W> {
    sink: HintsSink<W>,
}

impl<W: Write> BitmapEncoder<W> {
    /// Writes to the start of a file.
    pub const fn new(writer: W) -> Self {
        Self { sink: HintsSink::new(writer, 0) }
    }
}

impl<W: Write> HintsEncoder for BitmapEncoder<W> {
    fn put_block(&mut self, indices: &[u32], outputs: u32) -> Result<(), HintsError> {
        let limit = u16::MAX.into();
        check_indices(indices).map_err(|fault| self.sink.invalid(fault))?;
        if outputs == 0 || outputs > limit {
            return Err(self.sink.invalid(HintsFault::TooManyOutputs { outputs, limit }));
        }
        if let Some(&last) = indices.last().filter(|last| **last >= outputs) {
            let (field, value, limit) = ("an index", last.into(), u64::from(outputs) - 1);
            return Err(self.sink.invalid(HintsFault::TooLarge { field, value, limit }));
        }
        let scratch = &mut self.sink.scratch;
        scratch.extend_from_slice(&(outputs as u16).to_le_bytes());
        scratch.resize(2 + (outputs as usize).div_ceil(8), 0);
        for index in indices {
            scratch[2 + (index / 8) as usize] |= 1 << (index % 8);
        }
        self.sink.end_block()
    }

    fn finish(mut self: Box<Self>) -> Result<(), HintsError> {
        self.sink.scratch.extend_from_slice(&[0, 0]);
        self.sink.flush_scratch()?;
        self.sink.finish().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::swiftsync::hints::Format;
    use crate::engines::swiftsync::hints::block::tests::{collect, fault};

    fn read(bytes: &[u8]) -> Result<Vec<Vec<u32>>, HintsError> {
        collect(Format::Bitmap, &mut BitmapDecoder::new(bytes))
    }

    fn write(blocks: &[(&[u32], u32)]) -> Result<Vec<u8>, HintsError> {
        let mut out = Vec::new();
        let mut encoder = Box::new(BitmapEncoder::new(&mut out));
        for (indices, outputs) in blocks {
            encoder.put_block(indices, *outputs)?;
        }
        encoder.finish()?;
        Ok(out)
    }

    #[test]
    fn the_published_example_round_trips() {
        let bytes = [1, 0, 0x00, 9, 0, 0b1000_0010, 0b1, 8, 0, 0x80, 0, 0];
        assert_eq!(read(&bytes).unwrap(), [vec![], vec![1, 7, 8], vec![7]]);
        assert_eq!(write(&[(&[], 1), (&[1, 7, 8], 9), (&[7], 8)]).unwrap(), bytes);
        let mut decoder = BitmapDecoder::new(&bytes[..]);
        assert_eq!(decoder.stop_height(), None);
        let mut indices = Vec::new();
        decoder.next_block(&mut indices).unwrap();
        let element = decoder.next_block(&mut indices).unwrap();
        assert_eq!(element, Some(BlockElement { height: 1, offset: 3, outputs: Some(9) }));
    }

    #[test]
    fn the_closing_zero_must_be_at_the_end() {
        let bytes = [1, 0, 0, 9, 0, 0, 0, 0, 0];
        assert_eq!(read(&bytes).unwrap().len(), 2);
        for end in 0..bytes.len() {
            assert!(matches!(fault(read(&bytes[..end])), HintsFault::End { .. }), "{end}");
        }
        let longer = [&bytes[..], &[1]].concat();
        let error = read(&longer).unwrap_err();
        assert!(matches!(error, HintsError::ZeroCount { height: 2, offset: 7 }));
    }

    #[test]
    fn bits_past_the_count_are_refused() {
        let error = fault(read(&[9, 0, 0, 0b10, 0, 0]));
        assert_eq!(error, HintsFault::Padding { field: "the bits" });
    }

    #[test]
    fn counts_above_sixteen_bits_cannot_be_written() {
        assert_eq!(write(&[(&[65_534], 65_535)]).unwrap().len(), 2 + (1 << 13) + 2);
        for outputs in [0, 65_536, 70_000] {
            let error = fault(write(&[(&[], outputs)]));
            assert_eq!(error, HintsFault::TooManyOutputs { outputs, limit: 65_535 });
        }
        assert!(matches!(
            fault(write(&[(&[8], 8)])),
            HintsFault::TooLarge { value: 8, limit: 7, .. }
        ));
    }
}
