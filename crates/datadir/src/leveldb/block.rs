//! [`BlockCursor`]: the entries of one block of a table, in order.
//!
//! Keys share beginnings with the key before them, but for those at the restart points, of which the
//! block's end has a list. Look-ups begin at restart points, so each has to be the place of a whole key.

use super::{crc32c, varint, varint32};
use crate::index_error::IndexError;
use apus_chain::Reader;
use core::ops::Range;
use std::fs::File;
use std::path::Path;

/// After each block: the kind of compression and a checksum.
pub(super) const BLOCK_TAIL: u64 = 5;

/// More than any block by far: one is some kilobytes long, or has one long value.
const BLOCK_BYTES_MAX: u64 = 1 << 29;

const RESTART: usize = size_of::<u32>();

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

    /// The one that is all of a value.
    pub(super) fn whole(value: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(value);
        let handle = Self::read(&mut reader)?;
        reader.finish().ok()?;
        Some(handle)
    }
}

pub(super) struct BlockCursor {
    bytes: Vec<u8>,
    /// Where the entries end and the restart points begin.
    entries_end: usize,
    position: usize,
    /// The restart points that are not reached yet, in `bytes`.
    restarts: Range<usize>,
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
        let restarts = entries_end..bytes.len() - RESTART;
        Ok(Self { bytes, entries_end, position: 0, restarts, key: Vec::new() })
    }

    /// Moves to the next entry: where its value lies in the block, or `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Range<usize>>, &'static str> {
        if self.position == self.entries_end {
            // A block without entries has one restart point nevertheless.
            let rest = self.restarts.len() / RESTART;
            let is_none_left = rest == usize::from(self.position == 0)
                && self.next_restart().is_none_or(|restart| restart == 0);
            return if is_none_left { Ok(None) } else { Err(NO_RESTART) };
        }
        let restart = self.next_restart();
        let is_restart = restart == Some(self.position);
        if is_restart {
            self.restarts.start += RESTART;
        } else if self.position == 0 || restart.is_some_and(|restart| restart < self.position) {
            return Err(NO_RESTART);
        }
        self.advance(is_restart).map(Some)
    }

    /// The key of the entry that [`next`](Self::next) moved to.
    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    fn next_restart(&self) -> Option<usize> {
        let point = self.bytes[self.restarts.clone()].first_chunk()?;
        usize::try_from(u32::from_le_bytes(*point)).ok()
    }

    fn advance(&mut self, is_restart: bool) -> Result<Range<usize>, &'static str> {
        let (shared, own, start, end) = self.entry().ok_or("an entry runs past its block")?;
        if is_restart && shared > 0 {
            return Err(NO_RESTART);
        }
        self.key.truncate(shared);
        self.key.extend_from_slice(&self.bytes[own..start]);
        self.position = end;
        Ok(start..end)
    }

    /// How many bytes the key of the entry here shares, and where its own begin, its value, and what follows.
    fn entry(&self) -> Option<(usize, usize, usize, usize)> {
        let mut reader = Reader::new(&self.bytes[self.position..self.entries_end]);
        let shared = varint32(&mut reader)?;
        let own = varint32(&mut reader)?;
        let value = varint32(&mut reader)?;
        let own_start = self.position + reader.position();
        reader.take(own).ok()?;
        let start = self.position + reader.position();
        reader.take(value).ok()?;
        (shared <= self.key.len()).then_some((shared, own_start, start, start + value))
    }
}

const NO_RESTART: &str = "a block has a restart point where no whole key stands";

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
    if whole > BLOCK_BYTES_MAX {
        return Err(corrupt("a block is far longer than any"));
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

/// The block ends in restart points of four bytes, at least one, and their count.
fn restarts_start(bytes: &[u8]) -> Option<usize> {
    let (rest, count) = bytes.split_last_chunk()?;
    let count = usize::try_from(u32::from_le_bytes(*count)).ok().filter(|count| *count > 0)?;
    rest.len().checked_sub(count.checked_mul(RESTART)?)
}
