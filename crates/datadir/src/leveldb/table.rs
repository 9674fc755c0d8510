//! [`TableFile`] is a table that a manifest names; [`TableCursor`] iterates over its entries, with one of its
//! blocks in memory.
//!
//! While iterating, the cursor checks everything that look-ups depend on, so that they would find the same
//! entries: the order of the keys, the separators of the blocks, the filters, and the first and last key in
//! the manifest.

use super::filter::{self, BASE_LOG2, hash};
use super::manifest::{LiveTable, table_path};
use super::{InternalKey, KeyValue, is_visible, masked_crc32c, split, varint, varint32};
use crate::error::IndexError;
use apus_chain::Reader;
use core::ops::Range;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The length of the footer: two handles, padding and the magic number.
pub(super) const FOOTER: usize = 48;
pub(super) const MAGIC: u64 = 0xdb47_7524_8b80_fb57;

/// A table file with a valid footer and the length in the manifest.
pub(super) struct TableFile {
    path: PathBuf,
    file: File,
    length: u64,
    /// The position of the metaindex.
    further: BlockHandle,
    index: BlockHandle,
}

impl TableFile {
    pub(super) fn open(dir: &Path, table: &LiveTable) -> Result<Self, IndexError> {
        let (path, file, length) = open_either(dir, table.number)?;
        if length != table.length {
            return Err(IndexError::corrupt(&path, length, "its length is not the manifest's"));
        }
        let no_footer = || IndexError::corrupt(&path, length, "it does not end like a table");
        let start = length.checked_sub(FOOTER as u64).ok_or_else(no_footer)?;
        let mut footer = [0; FOOTER];
        IndexError::read(&path, &file, &mut footer, start)?;
        let (further, index) = handles(&footer).ok_or_else(no_footer)?;
        Ok(Self { path, file, length, further, index })
    }

    fn block(&self, handle: BlockHandle) -> Result<BlockCursor, IndexError> {
        BlockCursor::read(&self.path, &self.file, self.length, handle)
    }

    fn corrupt(&self, at: u64, what: &'static str) -> IndexError {
        IndexError::corrupt(&self.path, at, what)
    }

    /// Reads the blocks that only look-ups need: the metaindex and the filters, which tell a look-up to skip
    /// a block. Returns the filters that a node uses.
    fn filters(&self) -> Result<Option<FilterReader>, IndexError> {
        let corrupt = |what| self.corrupt(self.further.offset, what);
        let mut list = self.block(self.further)?;
        let (mut filters, mut before) = (None, Vec::new());
        while let Some(value) = list.next().map_err(corrupt)? {
            if list.key() <= &before[..] {
                return Err(corrupt("its list of filters is not in order"));
            }
            before = list.key().to_vec();
            let handle = BlockHandle::whole(list.bytes(value))
                .ok_or_else(|| corrupt("its list of filters cannot be read"))?;
            let block = read_block(&self.path, &self.file, self.length, handle)?;
            if before == filter::NAME {
                let wrong = || self.corrupt(handle.offset, "its filters cannot be read");
                filters = Some(FilterReader::new(block).ok_or_else(wrong)?);
            }
        }
        Ok(filters)
    }
}

pub(super) struct TableCursor {
    table: TableFile,
    /// The first and the last key, from the manifest.
    smallest: InternalKey,
    largest: InternalKey,
    /// The last sequence number of the database.
    last_sequence: u64,
    index: BlockCursor,
    filters: Option<FilterReader>,
    data: Option<DataBlock>,
    /// The separator of the previous block.
    separator: Option<InternalKey>,
    /// The end of the previous block in the file.
    end: u64,
    /// The previous entry; `None` before the first one.
    last: Option<InternalKey>,
}

/// The block under the cursor.
struct DataBlock {
    entries: BlockCursor,
    offset: u64,
    /// The upper bound of the block's keys; all keys of the next block are above it.
    separator: InternalKey,
    is_empty: bool,
}

impl TableCursor {
    pub(super) fn open(
        dir: &Path,
        table: LiveTable,
        last_sequence: u64,
        with_filters: bool,
    ) -> Result<Self, IndexError> {
        let file = TableFile::open(dir, &table)?;
        let index = file.block(file.index)?;
        let filters = if with_filters { file.filters()? } else { None };
        let LiveTable { smallest, largest, .. } = table;
        let (data, separator, end, last) = (None, None, 0, None);
        let table = file;
        Ok(Self {
            table,
            smallest,
            largest,
            last_sequence,
            index,
            filters,
            data,
            separator,
            end,
            last,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.table.path
    }

    /// Moves to the next entry; returns false at the end.
    pub(super) fn next(&mut self, entry: &mut KeyValue) -> Result<bool, IndexError> {
        loop {
            let Some(data) = &mut self.data else {
                if self.next_block()? {
                    continue;
                }
                return Ok(false);
            };
            let offset = data.offset;
            let found = data.entries.next().map_err(|what| self.table.corrupt(offset, what))?;
            let Some(value) = found else {
                self.end_block().map_err(|what| self.table.corrupt(offset, what))?;
                continue;
            };
            entry.value.clear();
            entry.value.extend_from_slice(data.entries.bytes(value));
            self.check_key().map_err(|what| self.table.corrupt(offset, what))?;
            if let Some(last) = &self.last {
                entry.key.set(&last.user, last.tag.0);
            }
            return Ok(true);
        }
    }

    /// Checks the key under the cursor against its context, then stores it in `last`.
    fn check_key(&mut self) -> Result<(), &'static str> {
        let Some(data) = &mut self.data else { return Ok(()) };
        let (user, tag) = split(data.entries.key()).ok_or("a key is too short")?;
        if !is_visible(tag, self.last_sequence) {
            return Err("an entry is of no known kind, or newer than the database");
        }
        match &self.last {
            // Merging depends on this order, and so does the promise to visit each key once.
            Some(last) if !last.is_below(user, tag) => return Err("its keys are not in order"),
            None if !self.smallest.is(user, tag) => {
                return Err("its first key differs from the manifest's");
            }
            _ => {}
        }
        let is_above = |separator: &InternalKey| separator.is_below(user, tag);
        if data.is_empty && !self.separator.as_ref().is_none_or(is_above) {
            return Err("a key belongs in the previous block");
        }
        let lets_pass = |filters: &FilterReader| filters.lets_pass(data.offset, user);
        if !self.filters.as_ref().is_none_or(lets_pass) {
            return Err("a filter hides a key");
        }
        data.is_empty = false;
        self.last.get_or_insert_default().set(user, tag);
        Ok(())
    }

    fn end_block(&mut self) -> Result<(), &'static str> {
        let Some(data) = self.data.take() else { return Ok(()) };
        if data.is_empty {
            return Err("a block has no entry");
        }
        if self.last.as_ref().is_some_and(|last| last.is_behind(&data.separator)) {
            return Err("a key is above the separator of its block");
        }
        self.separator = Some(data.separator);
        Ok(())
    }

    /// Moves to the next block; returns false after the last.
    fn next_block(&mut self) -> Result<bool, IndexError> {
        let index_at = self.table.index.offset;
        let corrupt = |what| self.table.corrupt(index_at, what);
        let Some(value) = self.index.next().map_err(corrupt)? else {
            return match self.last.as_ref() == Some(&self.largest) {
                true => Ok(false),
                false => Err(corrupt("its last key differs from the manifest's")),
            };
        };
        let unreadable = || corrupt("its index cannot be read");
        let handle = BlockHandle::whole(self.index.bytes(value)).ok_or_else(unreadable)?;
        let separator = InternalKey::read(self.index.key()).ok_or_else(unreadable)?;
        if handle.offset < self.end {
            return Err(corrupt("its blocks are not in order"));
        }
        let entries = self.table.block(handle)?;
        // The block has been read, so this does not overflow.
        self.end = handle.offset + handle.size + BLOCK_TAIL;
        self.data = Some(DataBlock { entries, offset: handle.offset, separator, is_empty: true });
        Ok(true)
    }
}

/// Opens a table: `.ldb`, or `.sst` for old versions.
fn open_either(dir: &Path, number: u64) -> Result<(PathBuf, File, u64), IndexError> {
    let path = table_path(dir, number);
    let old = path.with_extension("sst");
    match (IndexError::open(&path), IndexError::open(&old)) {
        (Err(IndexError::Vanished { .. }), Ok((file, length))) => Ok((old, file, length)),
        (Ok((file, length)), Err(IndexError::Vanished { .. })) => Ok((path, file, length)),
        (Ok(_), Ok(_)) => {
            Err(IndexError::corrupt(&path, 0, "there are two tables with its number"))
        }
        (Err(IndexError::Vanished { .. }), Err(error @ IndexError::Open { .. }))
        | (Err(error), _)
        | (Ok(_), Err(error)) => Err(error),
    }
}

/// Parses the handles of the metaindex and the index in a footer.
fn handles(footer: &[u8; FOOTER]) -> Option<(BlockHandle, BlockHandle)> {
    let (handles, magic) = footer.split_last_chunk()?;
    if u64::from_le_bytes(*magic) != MAGIC {
        return None;
    }
    let mut reader = Reader::new(handles);
    Some((BlockHandle::read(&mut reader)?, BlockHandle::read(&mut reader)?))
}

/// The length of a block's trailer: the kind of compression and a checksum.
pub(super) const BLOCK_TAIL: u64 = 5;

/// The length limit of a block. Real blocks are far shorter: some kilobytes, or one long value.
const BLOCK_BYTES_MAX: u64 = 1 << 29;

const RESTART: usize = size_of::<u32>();

/// The position of a block in a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockHandle {
    pub(super) offset: u64,
    pub(super) size: u64,
}

impl BlockHandle {
    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self { offset: varint(reader)?, size: varint(reader)? })
    }

    /// Parses a value that must be exactly one handle.
    pub(super) fn whole(value: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(value);
        let handle = Self::read(&mut reader)?;
        reader.finish().ok()?;
        Some(handle)
    }
}

/// The entries of one block of a table, in order.
///
/// A key is stored without the bytes that it shares with the previous key, except at the restart points. The
/// block lists these at its end. Look-ups begin at restart points, so each must be the position of a whole
/// key.
pub(super) struct BlockCursor {
    bytes: Vec<u8>,
    /// The end of the entries, where the list of restart points begins.
    entries_end: usize,
    position: usize,
    /// The unvisited restart points, as a range in `bytes`.
    restarts: Range<usize>,
    key: Vec<u8>,
}

impl BlockCursor {
    /// Reads a block of a table of `length` bytes.
    pub(super) fn read(
        path: &Path,
        file: &File,
        length: u64,
        handle: BlockHandle,
    ) -> Result<Self, IndexError> {
        let bytes = read_block(path, file, length, handle)?;
        let no_end =
            || IndexError::corrupt(path, handle.offset, "a block has no list of restart points");
        let entries_end = restarts_start(&bytes).ok_or_else(no_end)?;
        let restarts = entries_end..bytes.len() - RESTART;
        Ok(Self { bytes, entries_end, position: 0, restarts, key: Vec::new() })
    }

    /// Moves to the next entry; returns the range of its value in the block, or `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Range<usize>>, &'static str> {
        if self.position == self.entries_end {
            // Even a block without entries has one restart point.
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

    /// Returns the key of the entry that [`next`](Self::next) moved to.
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

    /// Parses the current entry: the number of shared key bytes, and the offsets of its own key bytes, its
    /// value, and its end.
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

const NO_RESTART: &str = "a restart point is not at a whole key";

/// Reads any block of a table of `length` bytes, and verifies its checksum.
pub(super) fn read_block(
    path: &Path,
    file: &File,
    length: u64,
    handle: BlockHandle,
) -> Result<Vec<u8>, IndexError> {
    let corrupt = |what| IndexError::corrupt(path, handle.offset, what);
    let outside = || corrupt("a block lies outside its table");
    let whole = handle.size.checked_add(BLOCK_TAIL).ok_or_else(outside)?;
    let end = handle.offset.checked_add(whole).ok_or_else(outside)?;
    if end > length {
        return Err(outside());
    }
    if whole > BLOCK_BYTES_MAX {
        return Err(corrupt("a block is impossibly long"));
    }
    let mut bytes = vec![0; usize::try_from(whole).map_err(|_| outside())?];
    IndexError::read(path, file, &mut bytes, handle.offset)?;
    let sum = bytes.split_off(bytes.len() - 4);
    let sum = sum.first_chunk().map(|sum| u32::from_le_bytes(*sum));
    if sum != Some(masked_crc32c(&bytes, &[])) {
        return Err(corrupt("a block has a wrong checksum"));
    }
    if bytes.pop() != Some(0) {
        return Err(corrupt("a block is compressed, which Bitcoin Core never does"));
    }
    Ok(bytes)
}

/// Finds the start of the restart points: a block ends with at least one, of four bytes each, followed by
/// their count.
fn restarts_start(bytes: &[u8]) -> Option<usize> {
    let (rest, count) = bytes.split_last_chunk()?;
    let count = usize::try_from(u32::from_le_bytes(*count)).ok().filter(|count| *count > 0)?;
    rest.len().checked_sub(count.checked_mul(RESTART)?)
}

/// The maximum number of probes. LevelDB reserves higher numbers for other kinds of filters, and lets all
/// keys pass.
const PROBES_MAX: u8 = 30;

/// The length of the data after the filters' offsets: the start of those offsets (4), and the bytes of the
/// table per filter (1).
const TAIL: usize = size_of::<u32>() + 1;

/// The filters of a table, as a look-up uses them.
///
/// If a filter excludes a key, the look-up stops there, so each filter must let the keys of its block pass
/// (LevelDB `table/filter_block.cc`, `util/bloom.cc`).
pub(super) struct FilterReader {
    bytes: Vec<u8>,
    /// The end of the filters, where their offsets begin.
    filters_end: usize,
}

impl FilterReader {
    /// Parses a whole filter block; `None` if LevelDB would not write it.
    pub(super) fn new(bytes: Vec<u8>) -> Option<Self> {
        let (places, tail) = bytes.split_at_checked(bytes.len().checked_sub(TAIL)?)?;
        let (end, base) = tail.split_first_chunk()?;
        let filters_end = usize::try_from(u32::from_le_bytes(*end)).ok()?;
        let places = places.get(filters_end..)?;
        (*base == [BASE_LOG2] && places.len() % size_of::<u32>() == 0)
            .then_some(Self { bytes, filters_end })
    }

    /// Returns whether a look-up of the user key must read the block at `offset`.
    pub(super) fn lets_pass(&self, offset: u64, user: &[u8]) -> bool {
        let Some(filter) = usize::try_from(offset >> BASE_LOG2).ok().and_then(|it| self.filter(it))
        else {
            return false;
        };
        let Some((&probes, bits)) = filter.split_last().filter(|(_, bits)| !bits.is_empty()) else {
            return false;
        };
        if probes > PROBES_MAX {
            return true;
        }
        let mut hash = hash(user);
        let step = hash.rotate_right(17);
        // A block has fewer than 2^29 bytes.
        let length = (bits.len() * 8) as u32;
        (0..probes).all(|_| {
            let bit = (hash % length) as usize;
            hash = hash.wrapping_add(step);
            bits[bit / 8] & 1 << (bit % 8) != 0
        })
    }

    /// LevelDB lets a key pass if its filter is invalid, but writes no such filter itself.
    fn filter(&self, index: usize) -> Option<&[u8]> {
        let start = self.place(index)?;
        let end = self.place(index.checked_add(1)?)?;
        self.bytes.get(..self.filters_end)?.get(start..end)
    }

    /// The start of the list of offsets follows the list, and is also where the last filter ends.
    fn place(&self, index: usize) -> Option<usize> {
        let at = self.filters_end.checked_add(index.checked_mul(size_of::<u32>())?)?;
        let place = self.bytes.get(..self.bytes.len() - 1)?.get(at..)?.first_chunk()?;
        usize::try_from(u32::from_le_bytes(*place)).ok()
    }
}
