//! [`TableCursor`]: the entries of one table, in order, with one block of it in memory.

use super::block::{BlockCursor, Handle, read_block};
use super::manifest::LiveTable;
use super::{Entry, split_internal};
use crate::index_error::IndexError;
use apus_chain::Reader;
use core::cmp::Reverse;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Two handles, padding and the magic number at a table's end.
pub(super) const FOOTER: usize = 48;
pub(super) const MAGIC: u64 = 0xdb47_7524_8b80_fb57;

pub(super) struct TableCursor {
    path: PathBuf,
    file: File,
    length: u64,
    /// Where the list of further blocks lies.
    further: Handle,
    index: BlockCursor,
    data: Option<BlockCursor>,
    /// File offset of `data`, for messages.
    data_offset: u64,
    /// The entry before this one; at first what the manifest says is the smallest key.
    last: (Vec<u8>, Reverse<u64>),
}

impl TableCursor {
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
        let index = BlockCursor::read(&path, &file, length, index)?;
        let last = (table.smallest.clone(), Reverse(u64::MAX));
        Ok(Self { path, file, length, further, index, data: None, data_offset: 0, last })
    }

    /// Reads the blocks that going from the first key to the last does without: the filters, which make a
    /// look-up end early, and their list.
    pub(super) fn check_filters(&self) -> Result<(), IndexError> {
        let corrupt = |what| IndexError::corrupt(&self.path, self.further.offset, what);
        let mut list = BlockCursor::read(&self.path, &self.file, self.length, self.further)?;
        while let Some(value) = list.next().map_err(corrupt)? {
            let handle = Handle::read(&mut Reader::new(list.bytes(value)))
                .ok_or_else(|| corrupt("its list of filters cannot be read"))?;
            read_block(&self.path, &self.file, self.length, handle)?;
        }
        Ok(())
    }

    /// Moves to the next entry; false at the end.
    pub(super) fn next(&mut self, entry: &mut Entry) -> Result<bool, IndexError> {
        loop {
            let (path, at) = (&self.path, self.data_offset);
            let corrupt = |what| IndexError::corrupt(path, at, what);
            if let Some(data) = &mut self.data
                && let Some(value) = data.next().map_err(corrupt)?
            {
                let (user, tag) =
                    split_internal(data.key()).ok_or_else(|| corrupt("a key is too short"))?;
                // Merging, and the promise that no key comes twice, rest on the order.
                if (user, Reverse(tag)) < (&self.last.0, self.last.1) {
                    return Err(corrupt("its keys are not in order"));
                }
                self.last.0.clear();
                self.last.0.extend_from_slice(user);
                self.last.1 = Reverse(tag);
                entry.key.clone_from(&self.last.0);
                entry.tag = tag;
                entry.value.clear();
                entry.value.extend_from_slice(data.bytes(value));
                return Ok(true);
            }
            let Some(value) = self.index.next().map_err(corrupt)? else { return Ok(false) };
            let handle = Handle::read(&mut Reader::new(self.index.bytes(value)))
                .ok_or_else(|| corrupt("its index cannot be read"))?;
            self.data_offset = handle.offset;
            self.data = Some(BlockCursor::read(&self.path, &self.file, self.length, handle)?);
        }
    }
}

/// Tables end in `.ldb`, in `.sst` where an old version wrote them.
fn open_either(dir: &Path, number: u64) -> Result<(PathBuf, File, u64), IndexError> {
    let path = dir.join(format!("{number:06}.ldb"));
    match IndexError::open(&path) {
        Err(IndexError::Vanished { .. }) => {
            let old = dir.join(format!("{number:06}.sst"));
            match IndexError::open(&old) {
                Ok((file, length)) => Ok((old, file, length)),
                Err(IndexError::Vanished { .. }) => Err(IndexError::Vanished { path }),
                Err(error) => Err(error),
            }
        }
        other => other.map(|(file, length)| (path, file, length)),
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
