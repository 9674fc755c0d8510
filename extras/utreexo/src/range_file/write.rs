//! [`RangeWriter`]: writes a proof file from its first byte to its last.

use super::{END_MAGIC, ENTRY_BYTES_MAX, FOOT_BYTES, MAGIC, RECORD_BYTES, VERSION};
use super::{RangeHead, heights};
use crate::Roots;
use apus_chain::{BlockHash, Height};
use crc32c::{crc32c, crc32c_append};
use std::io::{self, ErrorKind, Write};

/// Writes the entries of a range by ascending height, then tail and foot.
///
/// A file is valid only once [`finish`](Self::finish) returns. The caller makes it durable.
#[derive(Debug)]
pub struct RangeWriter<W> {
    out: W,
    first: Height,
    /// Records of the blocks so far.
    tail: Vec<u8>,
    /// Leaves ever added, after the last of these blocks.
    leaves: u64,
    bytes: u64,
    /// CRC-32C of the head.
    crc: u32,
}

impl<W: Write> RangeWriter<W> {
    /// Starts a file by writing its head.
    ///
    /// # Errors
    /// `InvalidInput` for a first height that a file cannot have; otherwise errors of `out`.
    pub fn new(mut out: W, head: &RangeHead) -> io::Result<Self> {
        if heights(head.first, 1).is_none() {
            let what = format!("a proof file cannot begin at block {}", head.first);
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

    /// Appends the entry of the next block. `leaves_after` is the number of leaves ever added, after that
    /// block.
    ///
    /// # Errors
    /// `InvalidInput` for an entry that is too long, for fewer leaves than before, and for more blocks than a
    /// file can have; otherwise errors of `out`, after which the file is unusable.
    pub fn put(&mut self, block: &BlockHash, leaves_after: u64, entry: &[u8]) -> io::Result<()> {
        let length = u32::try_from(entry.len()).ok().filter(|length| *length <= ENTRY_BYTES_MAX);
        let length = length.ok_or_else(|| {
            let found = entry.len();
            let what = format!(
                "an entry of {found} bytes is too long for a proof file: at most \
                 {ENTRY_BYTES_MAX}"
            );
            io::Error::new(ErrorKind::InvalidInput, what)
        })?;
        let blocks = self.blocks() + 1;
        if heights(self.first, blocks).is_none() {
            let what = format!("a proof file cannot have {blocks} blocks");
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        if leaves_after < self.leaves {
            let what =
                format!("the number of leaves cannot fall: {leaves_after} after {}", self.leaves);
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
    /// `InvalidInput` for a range without blocks, and for roots whose number of leaves differs from the last
    /// block's; otherwise errors of `out`.
    pub fn finish(mut self, after: &Roots) -> io::Result<W> {
        let blocks = self.blocks();
        if blocks == 0 {
            let what = "a proof file needs at least one block";
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        if after.leaves != self.leaves {
            let what = format!(
                "the last block has {} leaves after it, the roots have {}",
                self.leaves, after.leaves
            );
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

    /// Number of blocks so far, never more than a file can have.
    fn blocks(&self) -> u32 {
        (self.tail.len() / RECORD_BYTES) as u32
    }
}
