//! Gaps as CompactSizes, the first idea for packing the bitmap.
//!
//! ```text
//! each block, from the genesis block on:
//!     CompactSize          number of unspent outputs, n
//!     CompactSize × n      number of spent outputs between each of them and the previous one
//! ```
//!
//! All outputs count, as in the bitmap. Only sizes and the idea were published ("00010000011001 would be 3,
//! 5, 0, 2"), not the bytes. This module defines the rest: the count comes first, genesis is included, and
//! nothing precedes or follows the blocks. A file does not name its stop height and may end after any block,
//! so the caller must compare the number of blocks with the chain.

use crate::engines::swiftsync::hints::block::{BlockElement, HintsDecoder, HintsEncoder};
use crate::engines::swiftsync::hints::elias_fano::{OUTPUTS_PER_BLOCK_MAX, check_indices};
use crate::engines::swiftsync::hints::error::{HintsError, HintsFault};
use crate::engines::swiftsync::hints::sink::HintsSink;
use crate::engines::swiftsync::hints::window::HintsWindow;
use apus_chain::{Height, write_compact_size};
use std::io::{Read, Write};

const WINDOW_BYTES: usize = 1 << 16;

/// Reads gaps.
pub struct DeltaDecoder<R> {
    window: HintsWindow<R>,
    next: Height,
}

impl<R: Read> DeltaDecoder<R> {
    /// Starts at the first byte of the file.
    pub fn new(reader: R) -> Self {
        Self { window: HintsWindow::new(reader, WINDOW_BYTES, 0), next: 0 }
    }
}

impl<R: Read> HintsDecoder for DeltaDecoder<R> {
    fn next_block(&mut self, indices: &mut Vec<u32>) -> Result<Option<BlockElement>, HintsError> {
        indices.clear();
        let (height, offset) = (self.next, self.window.offset());
        if self.window.at_end(height)? {
            return Ok(None);
        }
        let count = self.window.number(height, "the number of indices", OUTPUTS_PER_BLOCK_MAX)?;
        for _ in 0..count {
            let at = self.window.offset();
            let gap = self.window.number(height, "a gap", OUTPUTS_PER_BLOCK_MAX)?;
            push_gap(indices, gap).map_err(|fault| HintsError::block(height, at, fault))?;
        }
        self.next = height.saturating_add(1);
        Ok(Some(BlockElement { height, offset, outputs: None }))
    }
}

/// Writes gaps.
pub struct DeltaEncoder<W> {
    sink: HintsSink<W>,
}

impl<W: Write> DeltaEncoder<W> {
    /// Writes to the start of a file.
    pub const fn new(writer: W) -> Self {
        Self { sink: HintsSink::new(writer, 0) }
    }
}

impl<W: Write> HintsEncoder for DeltaEncoder<W> {
    fn put_block(&mut self, indices: &[u32], _outputs: u32) -> Result<(), HintsError> {
        check_indices(indices).map_err(|fault| self.sink.invalid(fault))?;
        write_compact_size(&mut self.sink.scratch, indices.len() as u64);
        super::delta::write_gaps(&mut self.sink.scratch, indices);
        self.sink.end_block()
    }

    fn finish(self: Box<Self>) -> Result<(), HintsError> {
        self.sink.finish().map(drop)
    }
}

// Gaps between indices: the number of outputs between an index and the previous one.

/// Appends the index that is `gap` outputs past the one after the last.
pub(super) fn push_gap(indices: &mut Vec<u32>, gap: u32) -> Result<(), HintsFault> {
    let least = indices.last().map_or(0, |last| u64::from(*last) + 1);
    let (value, limit) = (least + u64::from(gap), u64::from(OUTPUTS_PER_BLOCK_MAX) - 1);
    if value > limit {
        return Err(HintsFault::TooLarge { field: "an index", value, limit });
    }
    indices.push(value as u32);
    Ok(())
}

/// Appends the gaps of ascending `indices` as CompactSizes.
pub(super) fn write_gaps(out: &mut Vec<u8>, indices: &[u32]) {
    let mut least = 0;
    for index in indices {
        write_compact_size(out, u64::from(index - least));
        least = index + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::swiftsync::hints::Format;
    use crate::engines::swiftsync::hints::block::tests::{collect, fault};
    use crate::engines::swiftsync::hints::error::HintsFault;

    fn read(bytes: &[u8]) -> Result<Vec<Vec<u32>>, HintsError> {
        collect(Format::Delta, &mut DeltaDecoder::new(bytes))
    }

    #[test]
    fn the_published_example_round_trips() {
        // The published example, 00010000011001, between an empty block and a far index.
        let bytes = [0, 4, 3, 5, 0, 2, 1, 0xfd, 0x2c, 0x01];
        let blocks = [vec![], vec![3, 9, 10, 13], vec![300]];
        assert_eq!(read(&bytes).unwrap(), blocks);
        let mut out = Vec::new();
        let mut encoder = Box::new(DeltaEncoder::new(&mut out));
        for indices in &blocks {
            encoder.put_block(indices, 301).unwrap();
        }
        encoder.finish().unwrap();
        assert_eq!(out, bytes);
    }

    #[test]
    fn an_end_inside_a_block_is_an_error() {
        let bytes = [0, 4, 3, 5, 0, 2, 1, 0xfd, 0x2c, 0x01];
        for end in 0..bytes.len() {
            match end {
                0 | 1 | 6 => assert!(read(&bytes[..end]).is_ok()),
                _ => assert!(matches!(fault(read(&bytes[..end])), HintsFault::End { .. }), "{end}"),
            }
        }
    }

    #[test]
    fn absurd_numbers_are_refused() {
        let count = fault(read(&[0xfe, 8, 0xb2, 1, 0]));
        assert!(matches!(count, HintsFault::TooLarge { value: 111_112, limit: 111_111, .. }));
        let sum = fault(read(&[2, 0xfe, 6, 0xb2, 1, 0, 0]));
        assert!(matches!(sum, HintsFault::TooLarge { value: 111_111, limit: 111_110, .. }));
        let long = fault(read(&[1, 0xfd, 3, 0]));
        assert!(matches!(long, HintsFault::NonCanonical { .. }));
    }
}
