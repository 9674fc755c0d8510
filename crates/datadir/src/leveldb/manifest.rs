//! [`Manifest`]: which tables and logs make up the database, from `CURRENT` and the file that it
//! names; and [`first_record`], which makes the one record of a new database's manifest.
//!
//! A manifest is a log of edits; only their sum matters here.

use super::log::LogReader;
use super::seal::Made;
use super::{prefixed, put_varint, split_internal, varint};
use crate::index_error::IndexError;
use apus_chain::Reader;
use std::collections::BTreeMap;
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

/// A table that is part of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LiveTable {
    pub(super) number: u64,
    /// Length in bytes.
    pub(super) length: u64,
    /// The first user key in it.
    pub(super) smallest: Vec<u8>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Manifest {
    /// Logs from this number on have entries that no table has.
    pub(super) log_number: u64,
    /// One more such log, from before LevelDB 1.3; 0 for none.
    pub(super) prev_log_number: u64,
    tables: BTreeMap<u64, LiveTable>,
}

impl Manifest {
    pub(super) fn read(dir: &Path) -> Result<Self, IndexError> {
        let path = dir.join(current_name(dir)?);
        let mut log = LogReader::open(&path, MANIFEST_BYTES_MAX)?;
        let (mut manifest, mut record) = (Self::default(), Vec::new());
        let mut empty = true;
        while let Some(at) = log.next(&mut record)? {
            manifest.apply(&record).map_err(|what| log.corrupt(at, what))?;
            empty = false;
        }
        if empty {
            return Err(log.corrupt(0, "the manifest has no record"));
        }
        Ok(manifest)
    }

    pub(super) fn into_tables(self) -> Vec<LiveTable> {
        self.tables.into_values().collect()
    }

    fn apply(&mut self, record: &[u8]) -> Result<(), &'static str> {
        let mut reader = Reader::new(record);
        while reader.remaining() > 0 {
            self.apply_field(&mut reader).ok_or("a manifest record cannot be read")??;
        }
        Ok(())
    }

    /// `None` where the bytes run out.
    fn apply_field(&mut self, reader: &mut Reader<'_>) -> Option<Result<(), &'static str>> {
        match varint(reader)? {
            FIELD_COMPARATOR => {
                if prefixed(reader)? != COMPARATOR {
                    return Some(Err("the keys are in an order that this program does not know"));
                }
            }
            FIELD_LOG_NUMBER => self.log_number = varint(reader)?,
            // The next file's number and the last sequence number are for writers.
            FIELD_NEXT_FILE | FIELD_LAST_SEQUENCE => {
                varint(reader)?;
            }
            // Where compaction goes on: a level and a key.
            FIELD_COMPACT_POINTER => {
                varint(reader)?;
                prefixed(reader)?;
            }
            FIELD_DELETED_FILE => {
                let _level = varint(reader)?;
                self.tables.remove(&varint(reader)?);
            }
            FIELD_NEW_FILE => {
                let _level = varint(reader)?;
                let (number, length) = (varint(reader)?, varint(reader)?);
                let (smallest, _) = split_internal(prefixed(reader)?)?;
                prefixed(reader)?;
                let table = LiveTable { number, length, smallest: smallest.to_vec() };
                self.tables.insert(number, table);
            }
            FIELD_PREV_LOG_NUMBER => self.prev_log_number = varint(reader)?,
            _ => return Some(Err("a manifest record has an unknown field")),
        }
        Some(Ok(()))
    }
}

/// The whole content of a database: tables of one level under ascending numbers from
/// `first_number` on, every entry with a sequence number of at most `last_sequence`.
///
/// `log_number` is of a log that does not exist: entries are in tables alone.
pub(super) fn first_record(
    tables: &[Made],
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

/// The manifest's name. Only a name of the right form is followed, so that a damaged `CURRENT`
/// leads nowhere else.
fn current_name(dir: &Path) -> Result<PathBuf, IndexError> {
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
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(wrong());
    }
    Ok(PathBuf::from(name.unwrap_or_default()))
}
