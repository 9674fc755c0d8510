//! [`TableFile`]: a table that a manifest names; [`TableCursor`]: its entries, in order, with one block
//! of it in memory.
//!
//! All is held on the way that look-ups rely on, so that they find what is read here: the order of the
//! keys, the separators of the blocks, the filters, and the keys that the manifest has for the table.

use super::Entry;
use super::block::{BLOCK_TAIL, BlockCursor, Handle, read_block};
use super::filter;
use super::filter_reader::FilterReader;
use super::internal_key::{InternalKey, is_visible, split};
use super::levels::LiveTable;
use crate::index_error::IndexError;
use apus_chain::Reader;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Two handles, padding and the magic number at a table's end.
pub(super) const FOOTER: usize = 48;
pub(super) const MAGIC: u64 = 0xdb47_7524_8b80_fb57;

/// A table whose length is the manifest's, and which ends as a table does.
pub(super) struct TableFile {
    path: PathBuf,
    file: File,
    length: u64,
    /// Where the list of further blocks lies.
    further: Handle,
    index: Handle,
}

impl TableFile {
    pub(super) fn open(dir: &Path, table: &LiveTable) -> Result<Self, IndexError> {
        let (path, file, length) = open_either(dir, table.number)?;
        if length != table.length {
            return Err(IndexError::corrupt(&path, length, "its length is not the manifest's"));
        }
        let no_footer = || IndexError::corrupt(&path, length, "it does not end as a table does");
        let start = length.checked_sub(FOOTER as u64).ok_or_else(no_footer)?;
        let mut footer = [0; FOOTER];
        IndexError::read(&path, &file, &mut footer, start)?;
        let (further, index) = handles(&footer).ok_or_else(no_footer)?;
        Ok(Self { path, file, length, further, index })
    }

    fn block(&self, handle: Handle) -> Result<BlockCursor, IndexError> {
        BlockCursor::read(&self.path, &self.file, self.length, handle)
    }

    fn corrupt(&self, at: u64, what: &'static str) -> IndexError {
        IndexError::corrupt(&self.path, at, what)
    }

    /// Reads the blocks that going from the first key to the last does without: the filters, which make a
    /// look-up end early, and their list. Gives those that a node asks.
    fn filters(&self) -> Result<Option<FilterReader>, IndexError> {
        let corrupt = |what| self.corrupt(self.further.offset, what);
        let mut list = self.block(self.further)?;
        let (mut filters, mut before) = (None, Vec::new());
        while let Some(value) = list.next().map_err(corrupt)? {
            if list.key() <= &before[..] {
                return Err(corrupt("its list of filters is not in order"));
            }
            before = list.key().to_vec();
            let handle = Handle::whole(list.bytes(value))
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
    /// The first and the last key, as the manifest has them.
    smallest: InternalKey,
    largest: InternalKey,
    /// Of the database.
    last_sequence: u64,
    index: BlockCursor,
    filters: Option<FilterReader>,
    data: Option<DataBlock>,
    /// The separator of the block before.
    separator: Option<InternalKey>,
    /// Where the block before ends, in the file.
    end: u64,
    /// The entry before; none at first.
    last: Option<InternalKey>,
}

/// The block under the cursor.
struct DataBlock {
    entries: BlockCursor,
    offset: u64,
    /// No key of it is above; all of the next block are.
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

    /// Moves to the next entry; false at the end.
    pub(super) fn next(&mut self, entry: &mut Entry) -> Result<bool, IndexError> {
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

    /// Holds the key under the cursor against what is around it, and keeps it as the last one.
    fn check_key(&mut self) -> Result<(), &'static str> {
        let Some(data) = &mut self.data else { return Ok(()) };
        let (user, tag) = split(data.entries.key()).ok_or("a key is too short")?;
        if !is_visible(tag, self.last_sequence) {
            return Err("an entry is of no known kind, or newer than the database");
        }
        match &self.last {
            // Merging, and the promise that no key comes twice, rest on the order.
            Some(last) if !last.is_below(user, tag) => return Err("its keys are not in order"),
            None if !self.smallest.is(user, tag) => {
                return Err("its first key is not the one that the manifest has");
            }
            _ => {}
        }
        let is_above = |separator: &InternalKey| separator.is_below(user, tag);
        if data.is_empty && !self.separator.as_ref().is_none_or(is_above) {
            return Err("a key belongs into the block before");
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
            return Err("a key is above the one that the index has for its block");
        }
        self.separator = Some(data.separator);
        Ok(())
    }

    /// Moves to the next block; false behind the last.
    fn next_block(&mut self) -> Result<bool, IndexError> {
        let index_at = self.table.index.offset;
        let corrupt = |what| self.table.corrupt(index_at, what);
        let Some(value) = self.index.next().map_err(corrupt)? else {
            return match self.last.as_ref() == Some(&self.largest) {
                true => Ok(false),
                false => Err(corrupt("its last key is not the one that the manifest has")),
            };
        };
        let unreadable = || corrupt("its index cannot be read");
        let handle = Handle::whole(self.index.bytes(value)).ok_or_else(unreadable)?;
        let separator = InternalKey::read(self.index.key()).ok_or_else(unreadable)?;
        if handle.offset < self.end {
            return Err(corrupt("its blocks are not in order"));
        }
        let entries = self.table.block(handle)?;
        // It lies within the file.
        self.end = handle.offset + handle.size + BLOCK_TAIL;
        self.data = Some(DataBlock { entries, offset: handle.offset, separator, is_empty: true });
        Ok(true)
    }
}

pub(super) fn table_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:06}.ldb"))
}

/// Tables end in `.ldb`, in `.sst` where an old version wrote them.
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

/// Of the list of further blocks, and of the index.
fn handles(footer: &[u8; FOOTER]) -> Option<(Handle, Handle)> {
    let (handles, magic) = footer.split_last_chunk()?;
    if u64::from_le_bytes(*magic) != MAGIC {
        return None;
    }
    let mut reader = Reader::new(handles);
    Some((Handle::read(&mut reader)?, Handle::read(&mut reader)?))
}
