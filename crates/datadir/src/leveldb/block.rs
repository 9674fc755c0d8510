//! [`BlockCursor`]: the entries of one block of a table, in order.
//!
//! Keys share beginnings with the key before them. The restart points at the end are for binary
//! search and are only stepped over.

use super::{crc32c, varint};
use crate::index_error::IndexError;
use apus_chain::Reader;
use core::ops::Range;
use std::fs::File;
use std::path::Path;

/// After each block: the kind of compression and a checksum.
pub(super) const BLOCK_TAIL: u64 = 5;

/// A place in a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handle {
    pub(super) offset: u64,
    pub(super) size: u64,
}

impl Handle {
    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self { offset: varint(reader)?, size: varint(reader)? })
    }
}

pub(super) struct BlockCursor {
    bytes: Vec<u8>,
    /// Where the entries end and the restart points begin.
    entries_end: usize,
    position: usize,
    key: Vec<u8>,
}

impl BlockCursor {
    /// Reads a block of a table that has `length` bytes.
    pub(super) fn read(
        path: &Path,
        file: &File,
        length: u64,
        handle: Handle,
    ) -> Result<Self, IndexError> {
        let bytes = read_block(path, file, length, handle)?;
        let no_end = || IndexError::corrupt(path, handle.offset, "a block has no end");
        let entries_end = restarts_start(&bytes).ok_or_else(no_end)?;
        Ok(Self { bytes, entries_end, position: 0, key: Vec::new() })
    }

    /// Moves to the next entry: where its value lies in the block, or `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Range<usize>>, &'static str> {
        if self.position == self.entries_end {
            return Ok(None);
        }
        self.advance().ok_or("an entry runs past its block").map(Some)
    }

    /// The key of the entry that [`next`](Self::next) moved to.
    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    fn advance(&mut self) -> Option<Range<usize>> {
        let mut reader = Reader::new(&self.bytes[self.position..self.entries_end]);
        let shared = usize::try_from(varint(&mut reader)?).ok()?;
        let own = usize::try_from(varint(&mut reader)?).ok()?;
        let value = usize::try_from(varint(&mut reader)?).ok()?;
        let own = reader.take(own).ok()?;
        let start = self.position + reader.position();
        reader.take(value).ok()?;
        if shared > self.key.len() {
            return None;
        }
        self.key.truncate(shared);
        self.key.extend_from_slice(own);
        self.position = start + value;
        Some(start..self.position)
    }
}

/// Reads any block of a table that has `length` bytes, and compares its checksum.
pub(super) fn read_block(
    path: &Path,
    file: &File,
    length: u64,
    handle: Handle,
) -> Result<Vec<u8>, IndexError> {
    let corrupt = |what| IndexError::corrupt(path, handle.offset, what);
    let outside = || corrupt("a block lies outside its table");
    let whole = handle.size.checked_add(BLOCK_TAIL).ok_or_else(outside)?;
    let end = handle.offset.checked_add(whole).ok_or_else(outside)?;
    if end > length {
        return Err(outside());
    }
    let mut bytes = vec![0; usize::try_from(whole).map_err(|_| outside())?];
    IndexError::read(path, file, &mut bytes, handle.offset)?;
    let sum = bytes.split_off(bytes.len() - 4);
    let sum = sum.first_chunk().map(|sum| u32::from_le_bytes(*sum));
    if sum != Some(crc32c::masked(&bytes, &[])) {
        return Err(corrupt("a block has a wrong checksum"));
    }
    if bytes.pop() != Some(0) {
        return Err(corrupt("a block is compressed, which Bitcoin Core never does"));
    }
    Ok(bytes)
}

/// The block ends in restart points of four bytes and their count.
fn restarts_start(bytes: &[u8]) -> Option<usize> {
    let (rest, count) = bytes.split_last_chunk()?;
    let points = usize::try_from(u32::from_le_bytes(*count)).ok()?.checked_mul(4)?;
    rest.len().checked_sub(points)
}
