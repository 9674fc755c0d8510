//! [`DatabaseManifest`]: which tables and logs make up the database, from `CURRENT` and the file that it
//! names; and [`first_record`], which makes the one record of a new database's manifest.
//!
//! A manifest is a log of edits; only their sum matters here. It is formed as LevelDB forms it, and
//! where LevelDB could come to another one, the manifest is damaged.

use super::log::LogReader;
use super::{FILE_NUMBER_MAX, InternalKey, SEQUENCE_MAX, prefixed, put_varint, varint};
use crate::error::IndexError;
use apus_chain::Reader;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The order of the keys.
const COMPARATOR: &[u8] = b"leveldb.BytewiseComparator";

/// Fields of a record (LevelDB `db/version_edit.cc`).
const FIELD_COMPARATOR: u64 = 1;
const FIELD_LOG_NUMBER: u64 = 2;
const FIELD_NEXT_FILE: u64 = 3;
const FIELD_LAST_SEQUENCE: u64 = 4;
const FIELD_COMPACT_POINTER: u64 = 5;
const FIELD_DELETED_FILE: u64 = 6;
const FIELD_NEW_FILE: u64 = 7;
const FIELD_PREV_LOG_NUMBER: u64 = 9;

/// More than this no manifest has: it starts anew whenever a node starts.
const MANIFEST_BYTES_MAX: u64 = 256 << 20;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct DatabaseManifest {
    /// Logs from this number on have entries that no table has.
    pub(super) log_number: u64,
    /// One more such log, from before LevelDB 1.3; 0 for none.
    pub(super) prev_log_number: u64,
    /// No entry of a table is newer.
    pub(super) last_sequence: u64,
    /// Those first in which a look-up is made first.
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
    /// Whether the log of a number may have entries that no table has. Number 0 is that of no log before, and so of one
    /// that LevelDB takes sooner or later.
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

    /// `None` where the bytes run out.
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
            // Where compaction goes on: a level and a key.
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

    /// Expects the numbers without which LevelDB opens nothing, and room for those that it gives out
    /// next: it would write over files whose numbers are not below the next one.
    fn check_numbers(&self, manifest: u64) -> Result<(), &'static str> {
        let (Some(log), Some(next), Some(sequence)) =
            (self.log_number, self.next_file, self.last_sequence)
        else {
            return Err("the manifest lacks a number that LevelDB needs");
        };
        if next > FILE_NUMBER_MAX || sequence > SEQUENCE_MAX {
            return Err("the manifest has a number that no node comes to");
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

/// What a manifest says of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NewTable {
    /// Length in bytes.
    pub(super) length: u64,
    /// The first key, with its tag.
    pub(super) smallest: Vec<u8>,
    /// The last key, with its tag.
    pub(super) largest: Vec<u8>,
}

/// The whole content of a database: tables of one level under ascending numbers from
/// `first_number` on, every entry with a sequence number of at most `last_sequence`.
///
/// `log_number` is of a log that does not exist: entries are in tables alone.
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

/// The manifest's name and number. Only a name of the right form is followed, so that a damaged
/// `CURRENT` leads nowhere else.
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

/// LevelDB `db/dbformat.h`, `kNumLevels`.
const LEVELS: usize = 7;

/// Where a look-up begins: the logs.
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
    /// When a look-up comes to it; tables of one level, but for level 0, have the same.
    pub(super) place: usize,
}

/// Where the table of a number lies.
pub(super) fn table_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:06}.ldb"))
}

/// What is wrong with the tables, and with which.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TableFault {
    /// The table's number.
    pub(super) table: u64,
    pub(super) what: &'static str,
}

/// What one record of a manifest does to the tables.
#[derive(Default)]
pub(super) struct LevelEdit {
    pub(super) removed: BTreeSet<(usize, u64)>,
    pub(super) added: Vec<(usize, LiveTable)>,
}

/// A level as it is stored.
pub(super) fn level(number: u64) -> Option<usize> {
    usize::try_from(number).ok().filter(|level| *level < LEVELS)
}

/// The tables that edits of a manifest leave, and the order in which a look-up goes
/// through them.
///
/// LevelDB looks for a key in the logs, then in the tables of level 0, those with high numbers first,
/// then level by level, and takes the first version that it meets. Going over all keys it takes the
/// newest. Both are the same only where tables lie as LevelDB puts them, so other arrangements are
/// damage.
#[derive(Default)]
pub(super) struct Levels {
    tables: [BTreeMap<u64, LiveTable>; LEVELS],
    /// All that were added, those too that are gone.
    seen: BTreeSet<(usize, u64)>,
}

impl Levels {
    /// Removes first and adds then, as LevelDB does, whatever the order in the record. To remove what
    /// is not there does nothing.
    pub(super) fn apply(&mut self, change: LevelEdit) -> Result<(), &'static str> {
        for (level, number) in &change.removed {
            self.tables[*level].remove(number);
        }
        for (level, table) in change.added {
            let name = (level, table.number);
            if change.removed.contains(&name) {
                return Err("a manifest record adds and removes the same table");
            }
            // LevelDB would keep what it was told first.
            if !self.seen.insert(name) {
                return Err("a table is added to a level a second time");
            }
            self.tables[level].insert(table.number, table);
        }
        Ok(())
    }

    /// All tables, those first to which a look-up comes first. New files get numbers from `next_file` on.
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
                    return fault("its number is one that the manifest has not given out");
                }
                if !numbers.insert(table.number) {
                    return fault("the manifest has it on two levels");
                }
                if table.smallest > table.largest {
                    return fault("the manifest has its first key behind its last");
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
