//! A LevelDB read without opening it as a database: [`Database`]; and a new one written from
//! entries in order, with nothing to merge later: [`DatabaseWriter`].
//!
//! Opening one the usual way takes its lock, replays its log into new tables and writes a new
//! manifest. This reader opens files for reading, one block of a table at a time, and keeps in
//! memory only what the log holds and the index of each table under the cursor. Every length is
//! checked against its file before memory is taken for it, every checksum is verified, and damage
//! ends in an error.
//!
//! A node reads its database in two ways: it goes over all keys, and it looks single ones up. What is
//! read here is what both give. Where they could differ, or LevelDB could take a file otherwise than it
//! is taken here, the database is damaged, whatever its checksums say. `scripts/soak --kind leveldb`
//! holds this against LevelDB itself.
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
mod filter_reader;
mod internal_key;
mod key;
mod levels;
mod log;
mod manifest;
mod memory;
mod merge;
#[cfg(test)]
mod oracle_tests;
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
use core::ops::ControlFlow;
use internal_key::InternalKey;
use levels::LiveTable;
use manifest::Manifest;
use memory::Memory;
use merge::{Before, Merge};
use std::path::{Path, PathBuf};
use table::TableFile;

#[cfg(test)]
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
    last_sequence: u64,
    /// Whether the blocks that only look-ups use are checked, too.
    filters: bool,
}

/// So often the list of files is read anew where a node at work changed it meanwhile.
const ATTEMPTS: u32 = 100;

/// Kinds of entries, the low byte of a tag.
const KIND_DELETE: u8 = 0;
const KIND_PUT: u8 = 1;

impl Database {
    /// Reads the manifest and the logs in `dir`, and sees that the tables are there, whole by their
    /// lengths and ends, and lie as LevelDB puts them.
    ///
    /// A node at work may turn a log into a table meanwhile: then neither would have what was in it, so
    /// they are read until the manifest stays as it was.
    pub(crate) fn open(dir: &Path) -> Result<Self, IndexError> {
        let mut manifest = Manifest::read(dir)?;
        for _ in 0..ATTEMPTS {
            let found = Memory::read(dir, &manifest).and_then(|memory| {
                manifest.tables.iter().try_for_each(|it| TableFile::open(dir, it).map(drop))?;
                Ok(memory)
            });
            let after = Manifest::read(dir)?;
            if after == manifest {
                let (memory, tables) = (found?, manifest.tables);
                let last_sequence = manifest.last_sequence.max(memory.last_sequence);
                let dir = dir.to_owned();
                return Ok(Self { dir, tables, memory, last_sequence, filters: false });
            }
            manifest = after;
        }
        Err(IndexError::Vanished { path: dir.to_owned() })
    }

    /// Has the blocks of tables checked that only look-ups use.
    pub(crate) fn with_filters(self) -> Self {
        Self { filters: true, ..self }
    }

    /// Visits every key once, in bytewise order, with its newest value. What was visited holds once this has
    /// ended without an error.
    pub(crate) fn for_each(self, visit: &mut Visit<'_>) -> Result<(), IndexError> {
        let mut merge = Merge::new(self);
        let mut before = Before::default();
        while let Some(version) = merge.next()? {
            let (key, is_put) = (version.key, version.key.tag.0 as u8 == KIND_PUT);
            if before.is_of(key) {
                if let Some(what) = before.conflict(&version) {
                    return Err(IndexError::corrupt(merge.path(), 0, what));
                }
            } else if is_put && visit(&key.user, version.value)?.is_break() {
                return Ok(());
            }
            before.set(&version);
        }
        Ok(())
    }
}

/// Sees that all is there that a database in `dir` says it has, and fits together, without reading what is
/// in the tables: fast, whatever its size.
pub(crate) fn check_files(dir: &Path) -> Result<(), IndexError> {
    Database::open(dir).map(drop)
}

/// One version of one key, and its value.
#[derive(Default)]
struct Entry {
    key: InternalKey,
    value: Vec<u8>,
}

/// LevelDB's varint: groups of seven bits, least significant first.
fn varint(reader: &mut Reader<'_>) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = reader.u8().ok()?;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            // The tenth group has one bit left. LevelDB writes no group that adds nothing, and reads such
            // numbers in more than one way.
            let is_short = shift == 0 || byte != 0;
            return (is_short && (shift < 63 || byte <= 1)).then_some(value);
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

/// A varint where LevelDB takes 32 bits of it, for a length.
fn varint32(reader: &mut Reader<'_>) -> Option<usize> {
    u32::try_from(varint(reader)?).ok()?.try_into().ok()
}

/// A length, then as many bytes.
fn prefixed<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    let length = varint32(reader)?;
    reader.take(length).ok()
}

/// The number in a file's name, which has digits alone.
fn number(digits: &str) -> Option<u64> {
    let are_digits = digits.bytes().all(|digit| digit.is_ascii_digit());
    digits.parse().ok().filter(|_| are_digits)
}
