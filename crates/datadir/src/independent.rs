//! A second LevelDB reader, independent of the code that writes LevelDB here.
//!
//! A writer and a reader that share code can agree and still be wrong, and only reading back written data
//! reveals a hardware fault. So this module reads back everything that a node will use. It shares nothing
//! with [`leveldb`](crate::leveldb): it was written from LevelDB's documents and sources, and an invariant
//! keeps the two apart. It reads a database that no process is changing, takes no lock and writes nothing.
//! Its memory does not grow with the database, except with the content of the logs. It ends with an error on
//! damage, and never skips entries; but a log or manifest may end as LevelDB lets it end. The caller knows what must be
//! there.
//!
//! It reads in two ways, because they take different paths through a table: [`DatabaseEntries`] reads from
//! the first key to the last; [`DatabaseLookUps`] looks up single keys like a node, through separators,
//! filters and restart points. What leads look-ups astray hides entries from a node, so reading from first to
//! last also compares each key with the bounds, separators and restart points that lead to it.

mod layout;
mod table;
#[cfg(test)]
mod tests;

use core::cmp::Ordering;
use layout::{DatabaseLayout, TableName};
use std::collections::{VecDeque, btree_map};
use std::io;
use std::path::{Path, PathBuf};
use table::{SortedTable, TableAnswer, TableWalk};

/// The number of tables whose indexes and filters stay in memory between look-ups, a megabyte each.
const OPEN_TABLES: usize = 4;

/// Why a database could not be read back.
#[derive(Debug, thiserror::Error)]
pub enum IndependentReadError {
    /// A file of the database is damaged or missing.
    #[error("{path} cannot be read back at byte {offset}: {what}")]
    File {
        /// The file.
        path: PathBuf,
        /// The offset.
        offset: u64,
        /// The fault.
        what: String,
    },
    /// The system failed to read.
    #[error(
        "cannot read {path} at byte {offset}: {source}. Check the file's permissions and the disk"
    )]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The offset at which the read began.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The logs of the database are longer than is read here. A node with much cache stops so, and it is no fault.
    #[error(
        "{path} and the logs before it are longer than {} MiB, which is not read here: start the node, which empties \
         them, and stop it again",
        layout::FILE_BYTES_MAX >> 20
    )]
    LongLog {
        /// The log at which the limit is passed.
        path: PathBuf,
    },
    /// The folder has no complete database.
    #[error("cannot open the database {path}: {what}")]
    Open {
        /// The folder.
        path: PathBuf,
        /// The fault.
        what: String,
    },
}

fn fault(path: &Path, offset: impl TryInto<u64>, what: impl ToString) -> IndependentReadError {
    let offset = offset.try_into().unwrap_or(u64::MAX);
    IndependentReadError::File { path: path.to_owned(), offset, what: what.to_string() }
}

/// A failure to read. A file that is missing or too short is a fault of the database.
fn unread(path: &Path, offset: u64, source: io::Error) -> IndependentReadError {
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof => fault(path, offset, source),
        _ => IndependentReadError::Read { path: path.to_owned(), offset, source },
    }
}

/// A key and its value.
pub(crate) type Entry<'e> = (&'e [u8], &'e [u8]);

/// The entries of a database, one by one.
pub struct DatabaseEntries<'d> {
    dir: &'d Path,
    /// The sources, the newest first.
    sources: Vec<EntrySource>,
    /// The source of the last entry, and its key.
    last: Option<usize>,
    key: Vec<u8>,
}

/// A user key, the rank of this version within its source (newer versions have higher numbers), and
/// the value, unless it is a deletion.
type EntryVersion<'s> = (&'s [u8], u64, Option<&'s [u8]>);

/// A source of ordered entries.
enum EntrySource {
    Memory {
        left: btree_map::IntoIter<Vec<u8>, Option<Vec<u8>>>,
        at: Option<(Vec<u8>, Option<Vec<u8>>)>,
    },
    Tables {
        left: VecDeque<TableName>,
        at: Option<Box<TableWalk>>,
    },
}

impl EntrySource {
    /// Moves to the next entry.
    fn advance(&mut self, dir: &Path) -> Result<(), IndependentReadError> {
        match self {
            Self::Memory { left, at } => *at = left.next(),
            Self::Tables { left, at } => loop {
                if at.as_mut().map_or(Ok(false), |walk| walk.advance())? {
                    break;
                }
                let Some(name) = left.pop_front() else {
                    *at = None;
                    break;
                };
                let table = SortedTable::open(dir, &name)?;
                *at = Some(Box::new(TableWalk::new(table, name)));
            },
        }
        Ok(())
    }

    /// The current entry.
    fn entry(&self) -> Option<EntryVersion<'_>> {
        match self {
            Self::Memory { at, .. } => {
                at.as_ref().map(|(key, value)| (&key[..], u64::MAX, value.as_deref()))
            }
            Self::Tables { at, .. } => {
                let (key, value) = at.as_ref()?.entry();
                let (key, tag) = layout::split(key).expect("shorter keys are refused");
                Some((key, tag, (tag & 0xff != 0).then_some(value)))
            }
        }
    }
}

impl<'d> DatabaseEntries<'d> {
    /// Opens the database in the folder `dir`, which no process may change.
    pub fn open(dir: &'d Path) -> Result<Self, IndependentReadError> {
        let DatabaseLayout { levels, memory } = DatabaseLayout::read(dir)?;
        let mut sources = vec![EntrySource::Memory { left: memory.into_iter(), at: None }];
        for (level, tables) in levels.into_iter().enumerate() {
            let tables = VecDeque::from(tables);
            // On level 0 any two tables may overlap.
            let parts = if level == 0 {
                tables.into_iter().map(|it| [it].into()).collect()
            } else {
                vec![tables]
            };
            sources.extend(parts.into_iter().map(|left| EntrySource::Tables { left, at: None }));
        }
        sources.iter_mut().try_for_each(|source| source.advance(dir))?;
        Ok(Self { dir, sources, last: None, key: Vec::new() })
    }

    /// The next entry in key order; `None` at the end.
    #[allow(clippy::should_implement_trait, reason = "the entry borrows from the reader")]
    pub fn next(&mut self) -> Result<Option<Entry<'_>>, IndependentReadError> {
        let mut seen = self.last.is_some();
        loop {
            if let Some(last) = self.last.take() {
                self.sources[last].advance(self.dir)?;
            }
            let Some(at) = self.lowest() else { return Ok(None) };
            self.last = Some(at);
            let (key, _, value) = self.sources[at].entry().expect("the lowest source has an entry");
            if seen && key == self.key {
                continue;
            }
            seen = true;
            self.key.clear();
            self.key.extend_from_slice(key);
            if value.is_some() {
                let (_, _, value) = self.sources[at].entry().expect("the source has not moved");
                return Ok(value.map(|value| (&self.key[..], value)));
            }
        }
    }

    /// The source with the lowest key. If several have it, the one with its newest version.
    fn lowest(&self) -> Option<usize> {
        let mut lowest: Option<(usize, &[u8], u64)> = None;
        for (at, source) in self.sources.iter().enumerate() {
            let Some((key, tag, _)) = source.entry() else { continue };
            let is_lower = lowest.is_none_or(|(_, best, newest)| match key.cmp(best) {
                Ordering::Less => true,
                Ordering::Equal => tag > newest,
                Ordering::Greater => false,
            });
            if is_lower {
                lowest = Some((at, key, tag));
            }
        }
        lowest.map(|(at, ..)| at)
    }
}

/// Looks up single entries of a database by key.
pub struct DatabaseLookUps<'d> {
    dir: &'d Path,
    shape: DatabaseLayout,
    /// The most recently used tables, by number, the last one most recent.
    open: VecDeque<(u64, SortedTable)>,
}

impl<'d> DatabaseLookUps<'d> {
    /// Opens the database in the folder `dir`, which no process may change.
    pub fn open(dir: &'d Path) -> Result<Self, IndependentReadError> {
        Ok(Self { dir, shape: DatabaseLayout::read(dir)?, open: VecDeque::new() })
    }

    /// Looks up a key. Ascending order is fastest.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, IndependentReadError> {
        let Self { dir, shape, open } = self;
        if let Some(value) = shape.memory.get(key) {
            return Ok(value.clone());
        }
        let mut deeper = shape.levels.iter();
        let top = deeper.next().into_iter().flatten();
        let deeper = deeper
            .filter_map(|level| level.get(level.partition_point(|table| table.is_before(key))));
        for name in top.chain(deeper).filter(|table| table.may_have(key)) {
            match table(dir, open, name)?.get(key)? {
                TableAnswer::Value(value) => return Ok(Some(value)),
                TableAnswer::Deleted => return Ok(None),
                TableAnswer::Nothing => {}
            }
        }
        Ok(None)
    }
}

/// A table that stays open for the next look-up.
fn table<'t>(
    dir: &Path,
    open: &'t mut VecDeque<(u64, SortedTable)>,
    name: &TableName,
) -> Result<&'t SortedTable, IndependentReadError> {
    let there = open.iter().position(|(number, _)| *number == name.number);
    let table = match there.and_then(|at| open.remove(at)) {
        Some((_, table)) => table,
        None => SortedTable::open(dir, name)?,
    };
    if open.len() == OPEN_TABLES {
        open.pop_front();
    }
    open.push_back((name.number, table));
    Ok(&open[open.len() - 1].1)
}

/// The unread bytes. Every function returns `None` if too few are left.
#[derive(Clone, Copy)]
struct ByteCursor<'b>(&'b [u8]);

impl<'b> ByteCursor<'b> {
    fn take(&mut self, count: u64) -> Option<&'b [u8]> {
        let (taken, left) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = left;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    fn four(&mut self) -> Option<u32> {
        self.take(4).map(little)
    }

    /// Reads LevelDB's varint: seven bits per byte, the lowest first; all bytes but the last have the eighth
    /// bit set.
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// Reads a length, then that number of bytes.
    fn string(&mut self) -> Option<&'b [u8]> {
        let length = self.varint()?;
        self.take(length)
    }
}

/// Reads up to four bytes as a little-endian number.
fn little(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

/// The stored checksum of bytes: CRC-32C, rotated by fifteen bits, plus a constant (LevelDB
/// `util/crc32c.h`).
fn stored_sum(parts: [&[u8]; 2]) -> u32 {
    let sum = crc32c::crc32c_append(crc32c::crc32c(parts[0]), parts[1]);
    sum.rotate_right(15).wrapping_add(0xa282_ead8)
}
