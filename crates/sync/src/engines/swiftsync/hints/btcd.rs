//! The hintsfile that btcd's SwiftSync generates and reads.
//!
//! ```text
//! 55 54 58 4f   "UTXO"
//! 01            version
//! u32 LE        stop height H
//! each block, from height 1 to H:
//!     CompactSize    length of the rest in bytes
//!     CompactSizes   the first index, then for each further one the gap to the one before,
//!                    less one
//! ```
//!
//! Only spendable outputs count. Published files have this content, compressed as a gzip member; the decoder
//! reads plain files, too. The encoder writes plain files: run `gzip` on them before btcd loads them.

use super::block::{BlockElement, HintsDecoder, HintsEncoder};
use super::delta::{push_gap, write_gaps};
use super::elias_fano::{OUTPUTS_PER_BLOCK_MAX, check_indices, number};
use super::error::{HintsError, HintsFault};
use super::sink::HintsSink;
use super::window::HintsWindow;
use apus_chain::{Height, Reader, write_compact_size};
use flate2::bufread::GzDecoder;
use std::io::{self, BufRead, BufReader, Read, Write};

/// The version after the magic.
pub const VERSION: u8 = 1;
/// The first bytes of a gzip member that holds deflated data (RFC 1952).
pub const GZIP_MAGIC: [u8; 3] = [0x1f, 0x8b, 8];

const WINDOW_BYTES: usize = 1 << 18;
/// A CompactSize of one byte advances by at least one output, one of three bytes by at least 254, one of five
/// by more than 65,536: so there are never more bytes than outputs.
const GAPS_BYTES_MAX: u32 = OUTPUTS_PER_BLOCK_MAX;

/// Reads btcd's hintsfile, plain or in a gzip member.
pub struct BtcdDecoder<R: Read> {
    window: HintsWindow<MaybeGzip<R>>,
    stop_height: Height,
    next: Height,
}

enum MaybeGzip<R: Read> {
    Plain(BufReader<R>),
    Gzip(Box<GzDecoder<BufReader<R>>>),
}

impl<R: Read> Read for MaybeGzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(reader) => reader.read(buffer),
            Self::Gzip(reader) => reader.read(buffer),
        }
    }
}

impl<R: Read> BtcdDecoder<R> {
    /// Reads the header.
    pub fn new(reader: R) -> Result<Self, HintsError> {
        let read = |source| HintsError::Read { height: 0, offset: 0, source };
        let mut reader = BufReader::with_capacity(1 << 16, reader);
        let gzip = reader.fill_buf().map_err(read)?.starts_with(&GZIP_MAGIC);
        let reader = if gzip {
            MaybeGzip::Gzip(Box::new(GzDecoder::new(reader)))
        } else {
            MaybeGzip::Plain(reader)
        };
        let mut window = HintsWindow::new(reader, WINDOW_BYTES, 0);
        let found = window.peek(9, 0)?;
        let [b'U', b'T', b'X', b'O', VERSION, height @ ..] =
            *found.first_chunk::<9>().ok_or_else(|| short(found))?
        else {
            return Err(short(found));
        };
        let stop_height = u32::from_le_bytes(height);
        window.skip(9);
        Ok(Self { window, stop_height, next: 1 })
    }

    /// Checks that the file ends where the hints end.
    fn check_end(&mut self) -> Result<(), HintsError> {
        let (height, offset) = (self.stop_height, self.window.offset());
        let surplus = match (self.window.at_end(height)?, self.window.reader_mut()) {
            (false, _) => true,
            (true, MaybeGzip::Plain(_)) => false,
            // The member ended with the right checksum, or reading would have failed.
            (true, MaybeGzip::Gzip(reader)) => {
                let read = |source| HintsError::Read { height, offset, source };
                !reader.get_mut().fill_buf().map_err(read)?.is_empty()
            }
        };
        if surplus { Err(HintsError::Trailing { height, offset }) } else { Ok(()) }
    }
}

fn short(found: &[u8]) -> HintsError {
    let found = &found[..found.len().min(9)];
    HintsError::header("btcd hints", 0, found, "5554584f, version 01, the height in four bytes")
}

impl<R: Read> HintsDecoder for BtcdDecoder<R> {
    fn stop_height(&self) -> Option<Height> {
        Some(self.stop_height)
    }

    fn next_block(&mut self, indices: &mut Vec<u32>) -> Result<Option<BlockElement>, HintsError> {
        indices.clear();
        if self.next > self.stop_height {
            self.check_end()?;
            return Ok(None);
        }
        let (height, offset) = (self.next, self.window.offset());
        let length = self.window.number(height, "the length of the gaps", GAPS_BYTES_MAX)?;
        let length = length as usize;
        let start = self.window.offset();
        let bytes = self.window.peek(length, height)?.get(..length);
        let bytes =
            bytes.ok_or(HintsError::block(height, start, HintsFault::End { field: "the gaps" }))?;
        let mut reader = Reader::new(bytes);
        while reader.remaining() > 0 {
            let at = start + reader.position() as u64;
            number(&mut reader, "a gap", OUTPUTS_PER_BLOCK_MAX)
                .and_then(|gap| push_gap(indices, gap))
                .map_err(|fault| HintsError::block(height, at, fault))?;
        }
        self.window.skip(length);
        // Heights stay below u32::MAX: the file would need as many bytes.
        self.next = height.saturating_add(1);
        Ok(Some(BlockElement { height, offset, outputs: None }))
    }
}

/// Writes btcd's hintsfile, uncompressed.
pub struct BtcdEncoder<W> {
    sink: HintsSink<W>,
    stop_height: Height,
    gaps: Vec<u8>,
}

impl<W: Write> BtcdEncoder<W> {
    /// Writes the header.
    pub fn new(writer: W, stop_height: Height) -> Result<Self, HintsError> {
        let mut sink = HintsSink::new(writer, 1);
        sink.scratch.extend_from_slice(b"UTXO");
        sink.scratch.push(VERSION);
        sink.scratch.extend_from_slice(&stop_height.to_le_bytes());
        sink.flush_scratch()?;
        Ok(Self { sink, stop_height, gaps: Vec::new() })
    }
}

impl<W: Write> HintsEncoder for BtcdEncoder<W> {
    fn put_block(&mut self, indices: &[u32], _outputs: u32) -> Result<(), HintsError> {
        if self.sink.next > self.stop_height {
            return Err(self.sink.miscounted(self.stop_height));
        }
        check_indices(indices).map_err(|fault| self.sink.invalid(fault))?;
        self.gaps.clear();
        write_gaps(&mut self.gaps, indices);
        write_compact_size(&mut self.sink.scratch, self.gaps.len() as u64);
        self.sink.scratch.extend_from_slice(&self.gaps);
        self.sink.end_block()
    }

    fn finish(self: Box<Self>) -> Result<(), HintsError> {
        if self.sink.next <= self.stop_height {
            return Err(self.sink.miscounted(self.stop_height));
        }
        self.sink.finish().map(drop)
    }
}

#[cfg(test)]
mod tests;
