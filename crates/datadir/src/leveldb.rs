//! Reads a LevelDB database without opening it as a database ([`Database`]), and writes a new one from sorted
//! entries ([`DatabaseWriter`]), which LevelDB need not merge later.
//!
//! Opening a database the usual way takes its lock, replays its log into new tables and writes a
//! new manifest. This reader only opens files for reading, one block of a table at a time. In
//! memory it keeps only what the log holds and the index of each table under the cursor. It checks
//! every length against its file before it allocates memory, verifies every checksum, and ends with
//! an error on damage.
//!
//! A node reads its database in two ways: it iterates over all keys, and it looks up single ones. This
//! reader's result is the one that both ways return. If they could differ, or if LevelDB could read a file
//! differently, the database counts as damaged, even if its checksums are right. `scripts/soak --kind
//! leveldb` compares this reader with LevelDB itself.
//!
//! Reader and writer support LevelDB's bytewise key order and uncompressed tables, as used by Bitcoin Core,
//! and only iterate from the first key to the last. Neither changes an existing database.
//!
//! A running node may remove a table between listing and reading. This causes [`IndexError::Vanished`];
//! reading again from the start helps.

mod block_writer;
mod filter;
mod log;
mod manifest;
#[cfg(test)]
mod oracle_tests;
mod table;
mod table_writer;
#[cfg(test)]
mod tests;
mod writer;
#[cfg(test)]
mod writer_tests;

pub(crate) use block_writer::NumberedKey;
pub use writer::{DatabaseError, DatabaseSize, DatabaseWriter, WriterOptions};

use crate::error::IndexError;
use apus_chain::Reader;
use core::cmp::Reverse;
use core::ops::ControlFlow;
use log::LogMemory;
use manifest::{DatabaseManifest, LiveTable, PLACE_OF_LOGS};
use std::collections::BinaryHeap;
use std::path::{Path, PathBuf};
use table::{TableCursor, TableFile};

/// Receives every key and its value, and may stop.
pub(crate) type EachEntry<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Receives every key and its value.
pub(crate) type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, IndexError> + 'a;

/// A database's tables and logs at one moment.
pub(crate) struct Database {
    dir: PathBuf,
    tables: Vec<LiveTable>,
    memory: LogMemory,
    last_sequence: u64,
    /// Whether to check the blocks that only look-ups use, too.
    filters: bool,
}

/// How often to list the files again if a running node changes them during the listing.
const ATTEMPTS: u32 = 100;

/// The kinds of entries, in the low byte of a tag.
const KIND_DELETE: u8 = 0;
const KIND_PUT: u8 = 1;

impl Database {
    /// Reads the manifest and the logs in `dir`. Checks that the tables exist, have the right lengths and
    /// footers, and follow LevelDB's arrangement.
    ///
    /// A running node may turn a log into a table during the call, so that the log's entries would be found
    /// in neither. So the call repeats until the manifest stays the same.
    pub(crate) fn open(dir: &Path) -> Result<Self, IndexError> {
        let mut manifest = DatabaseManifest::read(dir)?;
        for _ in 0..ATTEMPTS {
            let found =
                LogMemory::read(dir, |number| manifest.has_log(number)).and_then(|memory| {
                    manifest.tables.iter().try_for_each(|it| TableFile::open(dir, it).map(drop))?;
                    Ok(memory)
                });
            let after = DatabaseManifest::read(dir)?;
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

    /// Also checks the blocks of tables that only look-ups use.
    pub(crate) fn with_filters(self) -> Self {
        Self { filters: true, ..self }
    }

    /// Visits every key once, in bytewise order, with its newest value. The visited entries are
    /// valid only once this has returned without an error.
    pub(crate) fn for_each(self, visit: &mut Visit<'_>) -> Result<(), IndexError> {
        let mut merge = Merge::new(self);
        let mut before = PreviousVersion::default();
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

/// Passes every key of the database in `dir` with its newest value to `each`, in bytewise order. What it passed is valid
/// only once this has returned without an error.
///
/// # Errors
/// Anything for which LevelDB would fail, or could read another value.
pub fn for_each_entry(dir: &Path, each: &mut EachEntry<'_>) -> Result<(), IndexError> {
    Database::open(dir)?.with_filters().for_each(&mut |key, value| Ok(each(key, value)))
}

/// Checks that all files listed by the database in `dir` exist and fit together, without reading the content
/// of the tables: fast, regardless of its size.
pub(crate) fn check_files(dir: &Path) -> Result<(), IndexError> {
    Database::open(dir).map(drop)
}

/// One version of one key, and its value.
#[derive(Default)]
struct KeyValue {
    key: InternalKey,
    value: Vec<u8>,
}

/// Reads LevelDB's varint: groups of seven bits, least significant first.
fn varint(reader: &mut Reader<'_>) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = reader.u8().ok()?;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            // The tenth group has one bit left. LevelDB never writes superfluous groups, and its functions
            // disagree about how to read them.
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

/// Reads a varint that LevelDB reads as 32 bits, for a length.
fn varint32(reader: &mut Reader<'_>) -> Option<usize> {
    u32::try_from(varint(reader)?).ok()?.try_into().ok()
}

/// Reads a length, then that number of bytes.
fn prefixed<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    let length = varint32(reader)?;
    reader.take(length).ok()
}

/// Parses the number in a file's name, which consists of digits only.
fn number(digits: &str) -> Option<u64> {
    let are_digits = digits.bytes().all(|digit| digit.is_ascii_digit());
    digits.parse().ok().filter(|_| are_digits)
}

/// Computes the masked checksum of `first` followed by `second`.
///
/// CRC-32C (Castagnoli), as LevelDB stores it: masked, so that a checksum of data that contains
/// checksums stays reliable.
pub(crate) fn masked_crc32c(first: &[u8], second: &[u8]) -> u32 {
    let sum = crc32c::crc32c_append(crc32c::crc32c(first), second);
    sum.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The limit of file numbers: no node has created this many. LevelDB continues counting from the last.
const FILE_NUMBER_MAX: u64 = 1 << 48;

/// The limit of sequence numbers: no node has written this often, and LevelDB's 56 bits leave room to
/// continue counting.
const SEQUENCE_MAX: u64 = 1 << 55;

/// A key with its tag, in LevelDB's order: by user key, the newest version first.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct InternalKey {
    user: Vec<u8>,
    /// The sequence number, shifted left by 8, and the kind of entry.
    tag: Reverse<u64>,
}

impl InternalKey {
    /// Parses a stored key; `None` if it is too short for a tag.
    fn read(bytes: &[u8]) -> Option<Self> {
        let (user, tag) = split(bytes)?;
        Some(Self { user: user.to_vec(), tag: Reverse(tag) })
    }

    /// Changes the key, reusing its memory if that suffices.
    fn set(&mut self, user: &[u8], tag: u64) {
        self.user.clear();
        self.user.extend_from_slice(user);
        self.tag = Reverse(tag);
    }

    /// Returns whether it sorts before another key.
    fn is_below(&self, user: &[u8], tag: u64) -> bool {
        (&self.user[..], self.tag) < (user, Reverse(tag))
    }

    /// Returns whether it sorts after a separator. Each sequence number has only one entry, so kinds do not
    /// count: in a separator before a deletion, `rusty-leveldb` writes the kind of a put, and look-ups still
    /// find the entry.
    fn is_behind(&self, separator: &Self) -> bool {
        (&self.user, Reverse(self.tag.0 >> 8)) > (&separator.user, Reverse(separator.tag.0 >> 8))
    }

    fn is(&self, user: &[u8], tag: u64) -> bool {
        self.tag.0 == tag && self.user == user
    }
}

/// Splits stored bytes into user key and tag.
fn split(bytes: &[u8]) -> Option<(&[u8], u64)> {
    let (user, tag) = bytes.split_last_chunk()?;
    Some((user, u64::from_le_bytes(*tag)))
}

/// Returns whether a tag belongs to a put or a deletion that LevelDB can see when `last_sequence` is its last
/// sequence number.
fn is_visible(tag: u64, last_sequence: u64) -> bool {
    matches!(tag as u8, KIND_PUT | KIND_DELETE) && tag >> 8 <= last_sequence
}

/// Merges the versions of all keys from all sources. Keys ascend; the newest version of a key comes first.
struct Merge {
    dir: PathBuf,
    last_sequence: u64,
    with_filters: bool,
    sources: Vec<MergeSource>,
    /// The next entry of each source.
    heads: BinaryHeap<Reverse<(InternalKey, usize)>>,
    /// The values of these entries, by source.
    values: Vec<Vec<u8>>,
    /// The entry under the cursor, and its source.
    current: Option<(InternalKey, usize)>,
    scratch: KeyValue,
}

/// A source of ordered entries.
struct MergeSource {
    /// The position of this source in the order of a look-up.
    place: usize,
    state: MergeInput,
}

enum MergeInput {
    Closed(LiveTable),
    Table(Box<TableCursor>),
    Memory(LogMemory),
    Done,
}

/// A version of a key.
struct KeyVersion<'m> {
    key: &'m InternalKey,
    value: &'m [u8],
    /// The position of its source in the order of a look-up.
    place: usize,
    /// The table or log that contains it.
    source: usize,
}

/// The previous version, and the state of its key's versions.
#[derive(Default)]
struct PreviousVersion {
    key: InternalKey,
    place: usize,
    source: usize,
    /// Whether the newest version of the key at this place is a deletion.
    is_deleted_here: bool,
    is_there: bool,
}

impl PreviousVersion {
    /// Returns whether this is a newer version of the same key.
    fn is_of(&self, key: &InternalKey) -> bool {
        self.is_there && self.key.user == key.user
    }

    /// Explains how a look-up could find an old version, now or later; `older` is the next version in order.
    fn conflict(&self, older: &KeyVersion<'_>) -> Option<&'static str> {
        if self.key.tag.0 >> 8 == older.key.tag.0 >> 8 {
            return Some("a version of a key exists twice");
        }
        if older.place < self.place {
            return Some("a look-up finds an old version of a key here, not the newest");
        }
        // When Core's LevelDB merges the other table into a lower level, it looks for older
        // versions there but not in the neighbouring table, and drops the deletion.
        let is_neighbour = older.place == self.place && older.source != self.source;
        (is_neighbour && self.is_deleted_here)
            .then_some("a deletion of a key is in the previous table, where LevelDB may forget it")
    }

    fn set(&mut self, version: &KeyVersion<'_>) {
        let is_first_here = !self.is_of(version.key) || self.place != version.place;
        if is_first_here {
            self.is_deleted_here = version.key.tag.0 as u8 == KIND_DELETE;
        }
        self.key.clone_from(version.key);
        (self.place, self.source, self.is_there) = (version.place, version.source, true);
    }
}

impl Merge {
    fn new(database: Database) -> Self {
        let Database { dir, tables, memory, last_sequence, filters } = database;
        let mut sources = Vec::with_capacity(tables.len() + 1);
        sources.push(MergeSource { place: PLACE_OF_LOGS, state: MergeInput::Memory(memory) });
        let mut heads = BinaryHeap::new();
        let unread = |user: &[u8]| InternalKey { user: user.to_vec(), tag: Reverse(u64::MAX) };
        heads.push(Reverse((unread(&[]), 0)));
        for table in tables {
            // An unopened table takes part with its smallest key, which sorts before all versions of that
            // key.
            heads.push(Reverse((unread(&table.smallest.user), sources.len())));
            sources.push(MergeSource { place: table.place, state: MergeInput::Closed(table) });
        }
        let values = vec![Vec::new(); sources.len()];
        let (current, scratch) = (None, KeyValue::default());
        Self { dir, last_sequence, with_filters: filters, sources, heads, values, current, scratch }
    }

    /// Moves to the next version; `None` at the end.
    fn next(&mut self) -> Result<Option<KeyVersion<'_>>, IndexError> {
        if let Some((key, source)) = self.current.take() {
            self.advance(key, source)?;
        }
        loop {
            let Some(Reverse((key, source))) = self.heads.pop() else { return Ok(None) };
            if key.tag != Reverse(u64::MAX) {
                let (key, _) = self.current.insert((key, source));
                let (value, place) = (&self.values[source], self.sources[source].place);
                return Ok(Some(KeyVersion { key, value, place, source }));
            }
            let state = &mut self.sources[source].state;
            if let MergeInput::Closed(_) = state
                && let MergeInput::Closed(table) = core::mem::replace(state, MergeInput::Done)
            {
                let (last, filters) = (self.last_sequence, self.with_filters);
                let cursor = TableCursor::open(&self.dir, table, last, filters)?;
                *state = MergeInput::Table(Box::new(cursor));
            }
            self.advance(key, source)?;
        }
    }

    /// The file of the version under the cursor.
    fn path(&self) -> &Path {
        let source = self.current.as_ref().and_then(|(_, source)| self.sources.get(*source));
        match source.map(|source| &source.state) {
            Some(MergeInput::Table(cursor)) => cursor.path(),
            _ => &self.dir,
        }
    }

    /// Makes the next entry of a source its head. Reuses the previous key's memory.
    fn advance(&mut self, key: InternalKey, source: usize) -> Result<(), IndexError> {
        let Self { sources, heads, values, scratch, .. } = self;
        scratch.key = key;
        core::mem::swap(&mut scratch.value, &mut values[source]);
        let state = &mut sources[source].state;
        let is_there = match state {
            MergeInput::Table(cursor) => cursor.next(scratch)?,
            MergeInput::Memory(memory) => memory.next(scratch),
            MergeInput::Closed(_) | MergeInput::Done => false,
        };
        if is_there {
            heads.push(Reverse((core::mem::take(&mut scratch.key), source)));
        } else {
            *state = MergeInput::Done;
        }
        core::mem::swap(&mut scratch.value, &mut values[source]);
        Ok(())
    }
}
