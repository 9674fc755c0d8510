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
pub use writer::DatabaseError;
pub(crate) use writer::{DatabaseWriter, WriterOptions};

use crate::error::IndexError;
use apus_chain::Reader;
use core::cmp::Reverse;
use core::ops::ControlFlow;
use log::LogMemory;
use manifest::{DatabaseManifest, LiveTable, PLACE_OF_LOGS};
use std::collections::BinaryHeap;
use std::path::{Path, PathBuf};
use table::{TableCursor, TableFile};

/// Called with every key and its value.
pub(crate) type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, IndexError> + 'a;

/// What a database consists of at the moment.
pub(crate) struct Database {
    dir: PathBuf,
    tables: Vec<LiveTable>,
    memory: LogMemory,
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
        let mut manifest = DatabaseManifest::read(dir)?;
        for _ in 0..ATTEMPTS {
            let found = LogMemory::read(dir, &manifest).and_then(|memory| {
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

    /// Has the blocks of tables checked that only look-ups use.
    pub(crate) fn with_filters(self) -> Self {
        Self { filters: true, ..self }
    }

    /// Visits every key once, in bytewise order, with its newest value. What was visited holds once this has
    /// ended without an error.
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

/// Sees that all is there that a database in `dir` says it has, and fits together, without reading what is
/// in the tables: fast, whatever its size.
pub(crate) fn check_files(dir: &Path) -> Result<(), IndexError> {
    Database::open(dir).map(drop)
}

/// One version of one key, and its value.
#[derive(Default)]
struct KeyValue {
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

/// Checksum of `first` followed by `second`, masked.
///
/// CRC-32C (Castagnoli), as LevelDB stores it: masked, so that a checksum of data that contains
/// checksums stays sound.
pub(crate) fn masked_crc32c(first: &[u8], second: &[u8]) -> u32 {
    let sum = crc32c::crc32c_append(crc32c::crc32c(first), second);
    sum.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// No node has written so often, and LevelDB needs room to go on counting: it has 56 bits.
const SEQUENCE_MAX: u64 = 1 << 55;

/// In LevelDB's order: by the user's key, the newest version first.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct InternalKey {
    user: Vec<u8>,
    /// The sequence number, shifted by 8, and the kind of entry.
    tag: Reverse<u64>,
}

impl InternalKey {
    /// The key that is stored as `bytes`; `None` where they have no room for a tag.
    fn read(bytes: &[u8]) -> Option<Self> {
        let (user, tag) = split(bytes)?;
        Some(Self { user: user.to_vec(), tag: Reverse(tag) })
    }

    /// Becomes another, without new memory where its own suffices.
    fn set(&mut self, user: &[u8], tag: u64) {
        self.user.clear();
        self.user.extend_from_slice(user);
        self.tag = Reverse(tag);
    }

    /// Whether it stands before another.
    fn is_below(&self, user: &[u8], tag: u64) -> bool {
        (&self.user[..], self.tag) < (user, Reverse(tag))
    }

    /// Whether it stands behind another. Of one sequence number there is one kind, whatever a separator says:
    /// `rusty-leveldb` has a put there where the entry is a deletion, and all the same it is found.
    fn is_behind(&self, separator: &Self) -> bool {
        (&self.user, Reverse(self.tag.0 >> 8)) > (&separator.user, Reverse(separator.tag.0 >> 8))
    }

    fn is(&self, user: &[u8], tag: u64) -> bool {
        self.tag.0 == tag && self.user == user
    }
}

/// The user's key, then the tag.
fn split(bytes: &[u8]) -> Option<(&[u8], u64)> {
    let (user, tag) = bytes.split_last_chunk()?;
    Some((user, u64::from_le_bytes(*tag)))
}

/// Whether a tag is of a put or a deletion that LevelDB sees when `last_sequence` is the last.
fn is_visible(tag: u64, last_sequence: u64) -> bool {
    matches!(tag as u8, KIND_PUT | KIND_DELETE) && tag >> 8 <= last_sequence
}

/// A version of a key. Of several the one with the smallest key comes first, of those of one key the newest.
struct Merge {
    dir: PathBuf,
    last_sequence: u64,
    with_filters: bool,
    sources: Vec<MergeSource>,
    /// The next entry of each source.
    heads: BinaryHeap<Reverse<(InternalKey, usize)>>,
    /// Their values, by source.
    values: Vec<Vec<u8>>,
    /// The entry under the cursor, and its source.
    current: Option<(InternalKey, usize)>,
    scratch: KeyValue,
}

/// Something that gives entries in order.
struct MergeSource {
    /// When a look-up comes to it.
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
    /// When a look-up comes to where it stands.
    place: usize,
    /// Which table or log it is from.
    source: usize,
}

/// The version before, and what matters of those of its key.
#[derive(Default)]
struct PreviousVersion {
    key: InternalKey,
    place: usize,
    source: usize,
    /// Whether the newest version of the key that stands in this place is a deletion.
    is_deleted_here: bool,
    is_there: bool,
}

impl PreviousVersion {
    /// Whether the key had a newer version.
    fn is_of(&self, key: &InternalKey) -> bool {
        self.is_there && self.key.user == key.user
    }

    /// Why a look-up could find another version of a key than the newest, now or some day; `older` comes next.
    fn conflict(&self, older: &KeyVersion<'_>) -> Option<&'static str> {
        if self.key.tag.0 >> 8 == older.key.tag.0 >> 8 {
            return Some("a version of a key is there twice");
        }
        if older.place < self.place {
            return Some("a look-up finds an old version of a key here, not the newest");
        }
        // Merging the other table into a level below, Core's LevelDB looks for older versions there and not in the
        // next table beside it, and takes the deletion for done.
        let is_beside = older.place == self.place && older.source != self.source;
        (is_beside && self.is_deleted_here).then_some(
            "a deletion of a key stands in the table before, where LevelDB may forget it",
        )
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
            // Until its turn comes a table is only its smallest key, before all versions of it.
            heads.push(Reverse((unread(&table.smallest.user), sources.len())));
            sources.push(MergeSource { place: table.place, state: MergeInput::Closed(table) });
        }
        let values = vec![Vec::new(); sources.len()];
        let (current, scratch) = (None, KeyValue::default());
        Self { dir, last_sequence, with_filters: filters, sources, heads, values, current, scratch }
    }

    /// Moves to the next version; nothing behind the last.
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

    /// Where the version under the cursor stands.
    fn path(&self) -> &Path {
        let source = self.current.as_ref().and_then(|(_, source)| self.sources.get(*source));
        match source.map(|source| &source.state) {
            Some(MergeInput::Table(cursor)) => cursor.path(),
            _ => &self.dir,
        }
    }

    /// The next entry of a source becomes its head. The key that was it lends its memory.
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
