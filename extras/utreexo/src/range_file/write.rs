//! [`RangeWriter`]: makes a file of proofs, from its first byte to its last.

use super::{END_MAGIC, ENTRY_BYTES_MAX, FOOT_BYTES, MAGIC, RECORD_BYTES, VERSION};
use super::{RangeHead, heights};
use crate::Roots;
use apus_chain::{BlockHash, Height};
use crc32c::{crc32c, crc32c_append};
use std::io::{self, ErrorKind, Write};

/// Writes the entries of a range by ascending height, then what stands behind them.
///
/// A file counts only once [`finish`](Self::finish) is done. The caller makes it durable.
#[derive(Debug)]
pub struct RangeWriter<W> {
    out: W,
    first: Height,
    /// Records of the blocks so far.
    tail: Vec<u8>,
    /// Leaves that there ever were after the last of them.
    leaves: u64,
    bytes: u64,
    /// That of the head.
    crc: u32,
}

impl<W: Write> RangeWriter<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// `InvalidInput` for a range that no file has, else what `out` says.
    pub fn new(mut out: W, head: &RangeHead) -> io::Result<Self> {
        if heights(head.first, 1).is_none() {
            let what = format!("a file of proofs cannot begin with block {}", head.first);
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&head.network);
        bytes.extend_from_slice(&head.first.to_le_bytes());
        bytes.extend_from_slice(&head.before.0);
        head.roots.write(&mut bytes);
        out.write_all(&bytes)?;
        let crc = crc32c(&bytes);
        let (tail, leaves) = (Vec::new(), head.roots.leaves);
        Ok(Self { out, first: head.first, tail, leaves, bytes: bytes.len() as u64, crc })
    }

    /// Appends the entry of the next block, after which there have ever been so many leaves.
    ///
    /// # Errors
    /// `InvalidInput` for one that is too long, for fewer leaves than before, and for more blocks than a file has;
    /// else what `out` says, and then the file is of no use.
    pub fn put(&mut self, block: &BlockHash, leaves_after: u64, entry: &[u8]) -> io::Result<()> {
        let length = u32::try_from(entry.len()).ok().filter(|length| *length <= ENTRY_BYTES_MAX);
        let length = length.ok_or_else(|| {
            let found = entry.len();
            let what = format!(
                "an entry of {found} bytes is too long for a file of proofs: at most \
                 {ENTRY_BYTES_MAX}"
            );
            io::Error::new(ErrorKind::InvalidInput, what)
        })?;
        let blocks = self.blocks() + 1;
        if heights(self.first, blocks).is_none() {
            let what = format!("a file of proofs cannot have {blocks} blocks");
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        if leaves_after < self.leaves {
            let what = format!("{leaves_after} leaves cannot come after {}", self.leaves);
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        self.out.write_all(entry)?;
        self.leaves = leaves_after;
        self.tail.extend_from_slice(&block.0);
        self.tail.extend_from_slice(&leaves_after.to_le_bytes());
        self.tail.extend_from_slice(&self.bytes.to_le_bytes());
        self.tail.extend_from_slice(&length.to_le_bytes());
        self.tail.extend_from_slice(&crc32c(entry).to_le_bytes());
        self.bytes += u64::from(length);
        Ok(())
    }

    /// Ends the file with the roots after the last block.
    ///
    /// # Errors
    /// `InvalidInput` for a range without a block, and for roots of other leaves than those after that block; else
    /// what `out` says.
    pub fn finish(mut self, after: &Roots) -> io::Result<W> {
        let blocks = self.blocks();
        if blocks == 0 {
            let what = "a file of proofs needs a block";
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        if after.leaves != self.leaves {
            let what =
                format!("the last block leaves {} leaves, not {}", self.leaves, after.leaves);
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        after.write(&mut self.tail);
        let mut foot = [0; FOOT_BYTES];
        foot[..8].copy_from_slice(&self.bytes.to_le_bytes());
        foot[8..12].copy_from_slice(&blocks.to_le_bytes());
        let crc = crc32c_append(crc32c_append(self.crc, &self.tail), &foot[..12]);
        foot[12..16].copy_from_slice(&crc.to_le_bytes());
        foot[16..].copy_from_slice(&END_MAGIC);
        self.out.write_all(&self.tail)?;
        self.out.write_all(&foot)?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// Bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many blocks so far; never more than a file has.
    fn blocks(&self) -> u32 {
        (self.tail.len() / RECORD_BYTES) as u32
    }
}
