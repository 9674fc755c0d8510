//! [`DatabaseManifest`] reads the tables and logs of a database, from `CURRENT` and the file that it names;
//! [`first_record`] makes the only record of a new database's manifest.
//!
//! A manifest is a log of edits; only their sum matters here. This code adds them up like LevelDB; if LevelDB
//! could get another result, the manifest counts as damaged.

use super::log::LogReader;
use super::{FILE_NUMBER_MAX, InternalKey, SEQUENCE_MAX, prefixed, put_varint, varint};
use crate::error::IndexError;
use apus_chain::Reader;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The name of the key order.
const COMPARATOR: &[u8] = b"leveldb.BytewiseComparator";

/// The fields of a record (LevelDB `db/version_edit.cc`).
const FIELD_COMPARATOR: u64 = 1;
const FIELD_LOG_NUMBER: u64 = 2;
const FIELD_NEXT_FILE: u64 = 3;
const FIELD_LAST_SEQUENCE: u64 = 4;
const FIELD_COMPACT_POINTER: u64 = 5;
const FIELD_DELETED_FILE: u64 = 6;
const FIELD_NEW_FILE: u64 = 7;
const FIELD_PREV_LOG_NUMBER: u64 = 9;

/// The length limit of a manifest: a node begins a new one each time it starts.
const MANIFEST_BYTES_MAX: u64 = 256 << 20;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct DatabaseManifest {
    /// Logs with this number or a higher one may have entries that no table contains.
    pub(super) log_number: u64,
    /// One more such log, used before LevelDB 1.3; 0 for none.
    pub(super) prev_log_number: u64,
    /// The sequence number of the newest entry in a table, or a higher one.
    pub(super) last_sequence: u64,
    /// The tables, in the order in which a look-up searches them.
    pub(super) tables: Vec<LiveTable>,
}

impl DatabaseManifest {
    pub(super) fn read(dir: &Path) -> Result<Self, IndexError> {
        let (name, number) = current_name(dir)?;
        let mut log = LogReader::open(&dir.join(name), MANIFEST_BYTES_MAX)?;
        let (mut edits, mut record) = (Edits::default(), Vec::new());
        let mut empty = true;
        while let Some(at) = log.next(&mut record)? {
            edits.apply(&record).map_err(|what| log.corrupt(at, what))?;
            empty = false;
        }
        if empty {
            return Err(log.corrupt(0, "the manifest has no record"));
        }
        edits.check_numbers(number).map_err(|what| log.corrupt(0, what))?;
        edits.into_manifest().map_err(|TableFault { table, what }| {
            IndexError::corrupt(&table_path(dir, table), 0, what)
        })
    }
}

impl DatabaseManifest {
    /// Returns whether the log with this number may have entries that no table contains. Number 0 means "no
    /// previous log", so LevelDB reads a log of that number sooner or later.
    pub(super) fn has_log(&self, number: u64) -> bool {
        number == 0 || number >= self.log_number || number == self.prev_log_number
    }
}

/// The sum of the records so far.
#[derive(Default)]
struct Edits {
    log_number: Option<u64>,
    prev_log_number: u64,
    next_file: Option<u64>,
    last_sequence: Option<u64>,
    levels: Levels,
}

impl Edits {
    fn apply(&mut self, record: &[u8]) -> Result<(), &'static str> {
        let (mut reader, mut change) = (Reader::new(record), LevelEdit::default());
        while reader.remaining() > 0 {
            self.apply_field(&mut reader, &mut change)
                .ok_or("a manifest record cannot be read")??;
        }
        self.levels.apply(change)
    }

    /// Applies one field; `None` if the bytes run out.
    fn apply_field(
        &mut self,
        reader: &mut Reader<'_>,
        change: &mut LevelEdit,
    ) -> Option<Result<(), &'static str>> {
        match varint(reader)? {
            FIELD_COMPARATOR => {
                if prefixed(reader)? != COMPARATOR {
                    return Some(Err("the keys are in an order that this program does not know"));
                }
            }
            FIELD_LOG_NUMBER => self.log_number = Some(varint(reader)?),
            FIELD_NEXT_FILE => self.next_file = Some(varint(reader)?),
            FIELD_LAST_SEQUENCE => self.last_sequence = Some(varint(reader)?),
            // The level and key at which compaction continues.
            FIELD_COMPACT_POINTER => {
                level(varint(reader)?)?;
                InternalKey::read(prefixed(reader)?)?;
            }
            FIELD_DELETED_FILE => {
                change.removed.insert((level(varint(reader)?)?, varint(reader)?));
            }
            FIELD_NEW_FILE => {
                let level = level(varint(reader)?)?;
                let (number, length) = (varint(reader)?, varint(reader)?);
                let smallest = InternalKey::read(prefixed(reader)?)?;
                let largest = InternalKey::read(prefixed(reader)?)?;
                let table = LiveTable { number, length, smallest, largest, place: 0 };
                change.added.push((level, table));
            }
            FIELD_PREV_LOG_NUMBER => self.prev_log_number = varint(reader)?,
            _ => return Some(Err("a manifest record has an unknown field")),
        }
        Some(Ok(()))
    }

    /// Checks that the manifest has the numbers that LevelDB requires, and that they leave room for the
    /// numbers that it assigns next: LevelDB would overwrite files whose numbers are not below the next one.
    fn check_numbers(&self, manifest: u64) -> Result<(), &'static str> {
        let (Some(log), Some(next), Some(sequence)) =
            (self.log_number, self.next_file, self.last_sequence)
        else {
            return Err("the manifest lacks a number that LevelDB needs");
        };
        if next > FILE_NUMBER_MAX || sequence > SEQUENCE_MAX {
            return Err("the manifest has a number that no node reaches");
        }
        if manifest.max(log).max(self.prev_log_number) >= next {
            return Err("the manifest has a number for its next file that is taken");
        }
        Ok(())
    }

    fn into_manifest(self) -> Result<DatabaseManifest, TableFault> {
        Ok(DatabaseManifest {
            log_number: self.log_number.unwrap_or_default(),
            prev_log_number: self.prev_log_number,
            last_sequence: self.last_sequence.unwrap_or_default(),
            tables: self.levels.into_tables(self.next_file.unwrap_or_default())?,
        })
    }
}

/// A manifest's facts about a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NewTable {
    /// Length in bytes.
    pub(super) length: u64,
    /// The first key, with its tag.
    pub(super) smallest: Vec<u8>,
    /// The last key, with its tag.
    pub(super) largest: Vec<u8>,
}

/// Makes a manifest's record of a whole database. Its tables are on one level and have ascending numbers from
/// `first_number` on; every entry's sequence number is at most `last_sequence`.
///
/// `log_number` is the number of a log that does not exist: all entries are in tables.
pub(super) fn first_record(
    tables: &[NewTable],
    level: u32,
    log_number: u64,
    first_number: u64,
    last_sequence: u64,
) -> Vec<u8> {
    let mut record = Vec::new();
    put_varint(&mut record, FIELD_COMPARATOR);
    put_prefixed(&mut record, COMPARATOR);
    for (field, value) in [
        (FIELD_LOG_NUMBER, log_number),
        (FIELD_NEXT_FILE, first_number + tables.len() as u64),
        (FIELD_LAST_SEQUENCE, last_sequence),
    ] {
        put_varint(&mut record, field);
        put_varint(&mut record, value);
    }
    for (number, table) in (first_number..).zip(tables) {
        put_varint(&mut record, FIELD_NEW_FILE);
        put_varint(&mut record, u64::from(level));
        put_varint(&mut record, number);
        put_varint(&mut record, table.length);
        put_prefixed(&mut record, &table.smallest);
        put_prefixed(&mut record, &table.largest);
    }
    record
}

fn put_prefixed(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads the name and number of the manifest from `CURRENT`. Accepts only a name of the right form, so that a
/// damaged `CURRENT` cannot lead to another file.
fn current_name(dir: &Path) -> Result<(String, u64), IndexError> {
    let path = dir.join("CURRENT");
    let (file, length) = match IndexError::open(&path) {
        Err(IndexError::Vanished { .. }) => {
            return Err(IndexError::Missing { path: dir.to_owned() });
        }
        other => other?,
    };
    let wrong = || IndexError::corrupt(&path, 0, "it does not name a manifest");
    let mut text = [0; 64];
    let length = usize::try_from(length).ok().filter(|length| *length <= text.len());
    let text = &mut text[..length.ok_or_else(wrong)?];
    IndexError::read(&path, &file, text, 0)?;
    let name = core::str::from_utf8(text).ok().and_then(|text| text.strip_suffix('\n'));
    let digits = name.and_then(|name| name.strip_prefix("MANIFEST-")).unwrap_or_default();
    let number = super::number(digits).ok_or_else(wrong)?;
    Ok((name.unwrap_or_default().to_owned(), number))
}

/// The number of levels (LevelDB `db/dbformat.h`, `kNumLevels`).
const LEVELS: usize = 7;

/// The rank of the logs in the order of a look-up: first.
pub(super) const PLACE_OF_LOGS: usize = 0;

/// A table that is part of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LiveTable {
    pub(super) number: u64,
    /// Length in bytes.
    pub(super) length: u64,
    /// Its first key.
    pub(super) smallest: InternalKey,
    /// Its last key.
    pub(super) largest: InternalKey,
    /// Its rank in the order of a look-up; tables of one level have the same, except on level 0.
    pub(super) place: usize,
}

/// Returns the path of the table with a number.
pub(super) fn table_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:06}.ldb"))
}

/// A fault of the tables, and the number of the affected table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TableFault {
    /// The table's number.
    pub(super) table: u64,
    pub(super) what: &'static str,
}

/// The changes that one manifest record makes to the tables.
#[derive(Default)]
pub(super) struct LevelEdit {
    pub(super) removed: BTreeSet<(usize, u64)>,
    pub(super) added: Vec<(usize, LiveTable)>,
}

/// Converts a stored level; `None` if LevelDB has no such level.
pub(super) fn level(number: u64) -> Option<usize> {
    usize::try_from(number).ok().filter(|level| *level < LEVELS)
}

/// The tables that result from a manifest's edits, and the order in which a look-up searches them.
///
/// LevelDB searches a key in the logs, then in the tables of level 0 by descending number, then level by
/// level, and returns the first version that it finds. When it iterates over all keys, it returns the newest
/// version. Both agree only in tables that LevelDB itself arranged, so other arrangements count as damage.
#[derive(Default)]
pub(super) struct Levels {
    tables: [BTreeMap<u64, LiveTable>; LEVELS],
    /// All tables ever added, including those removed since.
    seen: BTreeSet<(usize, u64)>,
}

impl Levels {
    /// Applies removals before additions, like LevelDB, regardless of the order in the record. Removing a
    /// missing table does nothing.
    pub(super) fn apply(&mut self, change: LevelEdit) -> Result<(), &'static str> {
        for (level, number) in &change.removed {
            self.tables[*level].remove(number);
        }
        for (level, table) in change.added {
            let name = (level, table.number);
            if change.removed.contains(&name) {
                return Err("a manifest record adds and removes the same table");
            }
            // LevelDB would keep the first one.
            if !self.seen.insert(name) {
                return Err("a table is added to a level a second time");
            }
            self.tables[level].insert(table.number, table);
        }
        Ok(())
    }

    /// Returns all tables in the order of a look-up. LevelDB numbers new files from `next_file` on.
    pub(super) fn into_tables(self, next_file: u64) -> Result<Vec<LiveTable>, TableFault> {
        let mut numbers = BTreeSet::new();
        let mut all = Vec::new();
        for (level, tables) in self.tables.into_iter().enumerate() {
            let mut tables: Vec<_> = tables.into_values().collect();
            let mut place = all.last().map_or(PLACE_OF_LOGS, |last: &LiveTable| last.place) + 1;
            if level == 0 {
                tables.reverse();
            } else {
                tables.sort_by(|left, right| left.smallest.cmp(&right.smallest));
            }
            for mut table in tables {
                let fault = |what| Err(TableFault { table: table.number, what });
                if table.number == 0 || table.number >= next_file {
                    return fault("the manifest has not assigned its number");
                }
                if !numbers.insert(table.number) {
                    return fault("the manifest lists it on two levels");
                }
                if table.smallest > table.largest {
                    return fault("in the manifest its first key is after its last");
                }
                let before = all.last().filter(|before: &&LiveTable| before.place == place);
                if before.is_some_and(|before| before.largest >= table.smallest) {
                    return fault("it overlaps another table of its level");
                }
                table.place = place;
                place += usize::from(level == 0);
                all.push(table);
            }
        }
        Ok(all)
    }
}
