//! The first hint files of the 2140-dev client, which name the block for which they are true.
//!
//! ```text
//! [u32 LE            stop height H]          only in the later form
//! 32 bytes           hash of the stop block, as hashed
//! each block, from height 1 on:
//!     CompactSize        number of unspent outputs, n
//!     CompactSize × n    earlier form: their indices, ascending
//!                        later form: the first index, then each distance to the previous one
//! ```
//!
//! All outputs count. The two forms look alike, so the user must say which it is. The earlier one does not
//! state its stop height and may end after any block, so the caller must check that the stop block is at the
//! height where the hints end.

use super::block::{BlockElement, HintsDecoder, HintsEncoder};
use super::elias_fano::{OUTPUTS_PER_BLOCK_MAX, check_indices};
use super::error::{HintsError, HintsFault};
use super::sink::HintsSink;
use super::window::HintsWindow;
use apus_chain::{BlockHash, Height, write_compact_size};
use std::io::{Read, Write};

const WINDOW_BYTES: usize = 1 << 16;

/// The largest index that a block can have.
const INDEX_MAX: u32 = OUTPUTS_PER_BLOCK_MAX - 1;

/// Reads either form.
pub struct OffsetsDecoder<R> {
    window: HintsWindow<R>,
    stop_block: BlockHash,
    stop_height: Option<Height>,
    next: Height,
}

impl<R: Read> OffsetsDecoder<R> {
    /// Reads the earlier form: only the hash, then indices.
    pub fn plain(reader: R) -> Result<Self, HintsError> {
        let mut window = HintsWindow::new(reader, WINDOW_BYTES, 0);
        let stop_block = BlockHash(window.array(0, "the hash of the stop block")?);
        Ok(Self { window, stop_block, stop_height: None, next: 1 })
    }

    /// Reads the later form: stop height and hash, then distances.
    pub fn with_height(reader: R) -> Result<Self, HintsError> {
        let mut window = HintsWindow::new(reader, WINDOW_BYTES, 0);
        let stop_height = u32::from_le_bytes(window.array(0, "the stop height")?);
        let stop_block = BlockHash(window.array(0, "the hash of the stop block")?);
        Ok(Self { window, stop_block, stop_height: Some(stop_height), next: 1 })
    }

    fn push(&self, indices: &mut Vec<u32>, number: u32) -> Result<(), HintsFault> {
        let limit = u64::from(INDEX_MAX);
        let previous = indices.last().copied();
        let base = if self.stop_height.is_some() { previous.unwrap_or(0) } else { 0 };
        let value = u64::from(base) + u64::from(number);
        if value > limit {
            return Err(HintsFault::TooLarge { field: "an index", value, limit });
        }
        let index = value as u32;
        match previous {
            Some(previous) if previous >= index => {
                Err(HintsFault::NotAscending { previous, index })
            }
            _ => {
                indices.push(index);
                Ok(())
            }
        }
    }
}

impl<R: Read> HintsDecoder for OffsetsDecoder<R> {
    fn stop_height(&self) -> Option<Height> {
        self.stop_height
    }

    fn stop_block(&self) -> Option<BlockHash> {
        Some(self.stop_block)
    }

    fn next_block(&mut self, indices: &mut Vec<u32>) -> Result<Option<BlockElement>, HintsError> {
        indices.clear();
        let (height, offset) = (self.next, self.window.offset());
        match self.stop_height {
            None if self.window.at_end(height)? => return Ok(None),
            Some(stop) if height > stop => {
                if self.window.at_end(stop)? {
                    return Ok(None);
                }
                return Err(HintsError::Trailing { height: stop, offset });
            }
            _ => {}
        }
        let count = self.window.number(height, "the number of indices", OUTPUTS_PER_BLOCK_MAX)?;
        for _ in 0..count {
            let at = self.window.offset();
            let number = self.window.number(height, "an index", INDEX_MAX)?;
            self.push(indices, number).map_err(|fault| HintsError::block(height, at, fault))?;
        }
        self.next = height.saturating_add(1);
        Ok(Some(BlockElement { height, offset, outputs: None }))
    }
}

/// Writes the earlier form.
pub struct OffsetsEncoder<W> {
    sink: HintsSink<W>,
}

impl<W: Write> OffsetsEncoder<W> {
    /// Writes the header, which names the block for which the hints are true.
    pub fn new(writer: W, stop_block: &BlockHash) -> Result<Self, HintsError> {
        let mut sink = HintsSink::new(writer, 1);
        sink.scratch.extend_from_slice(stop_block.as_bytes());
        sink.flush_scratch()?;
        Ok(Self { sink })
    }
}

impl<W: Write> HintsEncoder for OffsetsEncoder<W> {
    fn put_block(&mut self, indices: &[u32], _outputs: u32) -> Result<(), HintsError> {
        check_indices(indices).map_err(|fault| self.sink.invalid(fault))?;
        write_compact_size(&mut self.sink.scratch, indices.len() as u64);
        for index in indices {
            write_compact_size(&mut self.sink.scratch, (*index).into());
        }
        self.sink.end_block()
    }

    fn finish(self: Box<Self>) -> Result<(), HintsError> {
        self.sink.finish().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::swiftsync::hints::Format;
    use crate::engines::swiftsync::hints::block::tests::{collect, fault};

    const HASH: [u8; 32] = *b"the hash of the stop block, 32 B";

    fn plain(body: &[u8]) -> Result<Vec<Vec<u32>>, HintsError> {
        let bytes = [&HASH, body].concat();
        collect(Format::Offsets, &mut OffsetsDecoder::plain(&bytes[..])?)
    }

    fn with_height(height: u8, body: &[u8]) -> Result<Vec<Vec<u32>>, HintsError> {
        let bytes = [&[height, 0, 0, 0][..], &HASH, body].concat();
        let mut decoder = OffsetsDecoder::with_height(&bytes[..])?;
        assert_eq!(decoder.stop_height(), Some(height.into()));
        assert_eq!(decoder.stop_block(), Some(BlockHash(HASH)));
        collect(Format::OffsetsWithHeight, &mut decoder)
    }

    #[test]
    fn known_files_round_trip() {
        let blocks = [vec![0], vec![], vec![3, 4, 300]];
        let body = [1, 0, 0, 3, 3, 4, 0xfd, 0x2c, 1];
        assert_eq!(plain(&body).unwrap(), blocks);
        assert_eq!(with_height(3, &[1, 0, 0, 3, 3, 1, 0xfd, 0x28, 1]).unwrap(), blocks);
        let mut out = Vec::new();
        let mut encoder = Box::new(OffsetsEncoder::new(&mut out, &BlockHash(HASH)).unwrap());
        for indices in &blocks {
            encoder.put_block(indices, 301).unwrap();
        }
        encoder.finish().unwrap();
        assert_eq!(out, [&HASH[..], &body].concat());
    }

    #[test]
    fn the_hash_binds_the_stop_block() {
        let decoder = OffsetsDecoder::plain(&HASH[..]).unwrap();
        assert_eq!(decoder.stop_block(), Some(BlockHash(HASH)));
        assert!(matches!(
            fault(plain(&[]).and(OffsetsDecoder::plain(&HASH[..31]).map(drop))),
            HintsFault::End { .. }
        ));
    }

    #[test]
    fn the_stated_height_is_enforced() {
        let body = [1, 0, 1, 0];
        assert_eq!(with_height(2, &body).unwrap().len(), 2);
        assert!(matches!(fault(with_height(3, &body)), HintsFault::End { .. }));
        let error = with_height(1, &body).unwrap_err();
        assert!(matches!(error, HintsError::Trailing { height: 1, offset: 38 }));
    }

    #[test]
    fn indices_must_ascend_and_be_possible() {
        assert_eq!(fault(plain(&[2, 5, 5])), HintsFault::NotAscending { previous: 5, index: 5 });
        let repeated = fault(with_height(1, &[2, 5, 0]));
        assert_eq!(repeated, HintsFault::NotAscending { previous: 5, index: 5 });
        let last = [2, 0, 0xfe, 6, 0xb2, 1, 0];
        assert_eq!(plain(&last).unwrap(), [[0, 111_110]]);
        let beyond = fault(plain(&[2, 0, 0xfe, 7, 0xb2, 1, 0]));
        assert!(matches!(beyond, HintsFault::TooLarge { value: 111_111, limit: 111_110, .. }));
        let sum = fault(with_height(1, &[2, 0xfe, 6, 0xb2, 1, 0, 1]));
        assert!(matches!(sum, HintsFault::TooLarge { value: 111_111, .. }));
        assert!(matches!(fault(plain(&[1, 0xff])), HintsFault::End { .. }));
        assert!(matches!(fault(plain(&[1, 0xfd, 7, 0])), HintsFault::NonCanonical { .. }));
    }
}
