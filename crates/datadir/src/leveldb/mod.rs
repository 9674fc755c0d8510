//! A LevelDB read without opening it as a database: [`Database`]; and a new one written from
//! entries in order, with nothing to merge later: [`DatabaseWriter`].
//!
//! Opening one the usual way takes its lock, replays its log into new tables and writes a new
//! manifest. This reader opens files for reading, one block of a table at a time, and keeps in
//! memory only what the log holds and the index of each table under the cursor. Every length is
//! checked against its file before memory is taken for it, every checksum is verified, and damage
//! ends in an error.
//!
//! Both know LevelDB's bytewise key order and uncompressed tables, which is what Bitcoin Core
//! writes, and only go from the first key to the last. Neither changes a database that exists.
//!
//! A node at work may remove a table between the listing and the reading: that is reported as
//! [`IndexError::Vanished`], and reading again from the start helps.

mod block;
mod block_writer;
mod crc32c;
mod error;
mod filter;
mod key;
mod log;
mod manifest;
mod memory;
mod pipe;
mod seal;
mod table;
mod table_writer;
#[cfg(test)]
mod tests;
mod writer;
#[cfg(test)]
mod writer_tests;

use crate::index_error::IndexError;
use apus_chain::Reader;
use core::cmp::Reverse;
use core::ops::ControlFlow;
use manifest::{LiveTable, Manifest};
use memory::Memory;
use std::collections::BinaryHeap;
use std::path::{Path, PathBuf};
use table::TableCursor;

pub(crate) use crc32c::masked as masked_crc32c;
pub use error::DatabaseError;
pub(crate) use key::NumberedKey;
pub(crate) use writer::{DatabaseWriter, WriterOptions};

/// Called with every key and its value.
pub(crate) type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, IndexError> + 'a;

/// What a database consists of at the moment.
pub(crate) struct Database {
    dir: PathBuf,
    tables: Vec<LiveTable>,
    memory: Memory,
    /// Whether the blocks that only look-ups use are checked, too.
    filters: bool,
}

/// So often the list of files is read anew where a node at work changed it meanwhile.
const ATTEMPTS: u32 = 100;

/// A version of a key: `tag` is the sequence number, shifted by 8, and the kind of entry. The
/// newest version of the smallest key comes first.
type Head = Reverse<(Vec<u8>, Reverse<u64>, usize)>;

/// Kinds of entries, the low byte of a tag.
const KIND_DELETE: u8 = 0;
const KIND_PUT: u8 = 1;

impl Database {
    /// Reads the manifest and the log in `dir`.
    ///
    /// A node at work may turn a log into a table between the two: then neither would have what was in it, so
    /// they are read until the manifest stays as it was.
    pub(crate) fn open(dir: &Path) -> Result<Self, IndexError> {
        let mut manifest = Manifest::read(dir)?;
        for _ in 0..ATTEMPTS {
            let memory = Memory::read(dir, &manifest);
            let after = Manifest::read(dir)?;
            if after == manifest {
                let tables = manifest.into_tables();
                return Ok(Self { dir: dir.to_owned(), tables, memory: memory?, filters: false });
            }
            manifest = after;
        }
        Err(IndexError::Vanished { path: dir.to_owned() })
    }

    /// Has the blocks of tables checked that only look-ups use.
    pub(crate) fn with_filters(self) -> Self {
        Self { filters: true, ..self }
    }

    /// Visits every key once, in bytewise order, with its newest value.
    pub(crate) fn for_each(self, visit: &mut Visit<'_>) -> Result<(), IndexError> {
        let mut sources = Vec::with_capacity(self.tables.len() + 1);
        let mut heads = BinaryHeap::new();
        for table in self.tables {
            // Until its turn comes a table is only its smallest key, before all versions of it.
            heads.push(Reverse((table.smallest.clone(), Reverse(u64::MAX), sources.len())));
            sources.push(Source::Closed(table));
        }
        let mut memory = Source::Memory(self.memory);
        let mut scratch = Entry::default();
        if memory.next(&mut scratch)? {
            heads.push(scratch.head(sources.len()));
        }
        // Values of the entries in `heads`, by source.
        let mut values = vec![Vec::new(); sources.len() + 1];
        values[sources.len()] = core::mem::take(&mut scratch.value);
        sources.push(memory);
        let mut last: Option<Vec<u8>> = None;
        while let Some(Reverse((key, Reverse(tag), source))) = heads.pop() {
            let opened = sources[source].open_if_closed(&self.dir, self.filters)?;
            if !opened && last.as_ref() != Some(&key) {
                if tag as u8 == KIND_PUT && visit(&key, &values[source])?.is_break() {
                    return Ok(());
                }
                last = Some(key);
            }
            core::mem::swap(&mut scratch.value, &mut values[source]);
            if sources[source].next(&mut scratch)? {
                heads.push(scratch.head(source));
            } else {
                sources[source] = Source::Done;
            }
            core::mem::swap(&mut scratch.value, &mut values[source]);
        }
        Ok(())
    }
}

/// One version of one key.
#[derive(Default)]
struct Entry {
    key: Vec<u8>,
    tag: u64,
    value: Vec<u8>,
}

impl Entry {
    fn head(&mut self, source: usize) -> Head {
        Reverse((core::mem::take(&mut self.key), Reverse(self.tag), source))
    }
}

/// Something that gives entries in order.
enum Source {
    Closed(LiveTable),
    Table(Box<TableCursor>),
    Memory(Memory),
    Done,
}

impl Source {
    fn open_if_closed(&mut self, dir: &Path, filters: bool) -> Result<bool, IndexError> {
        let Self::Closed(table) = self else { return Ok(false) };
        let cursor = TableCursor::open(dir, table)?;
        if filters {
            cursor.check_filters()?;
        }
        *self = Self::Table(Box::new(cursor));
        Ok(true)
    }

    /// Moves to the next entry, which replaces `entry`; false at the end.
    fn next(&mut self, entry: &mut Entry) -> Result<bool, IndexError> {
        match self {
            Self::Table(cursor) => cursor.next(entry),
            Self::Memory(memory) => Ok(memory.next(entry)),
            Self::Closed(_) | Self::Done => Ok(false),
        }
    }
}

/// LevelDB's varint: groups of seven bits, least significant first.
fn varint(reader: &mut Reader<'_>) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = reader.u8().ok()?;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            // The tenth group has one bit left.
            return (shift < 63 || byte <= 1).then_some(value);
        }
    }
    None
}

/// Appends a varint.
fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A length, then as many bytes.
fn prefixed<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    let length = usize::try_from(varint(reader)?).ok()?;
    reader.take(length).ok()
}

/// An internal key: the user's key, then the tag.
fn split_internal(key: &[u8]) -> Option<(&[u8], u64)> {
    let (user, tag) = key.split_last_chunk()?;
    Some((user, u64::from_le_bytes(*tag)))
}
