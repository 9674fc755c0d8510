//! [`Manifest`]: which tables and logs make up the database, from `CURRENT` and the file that it
//! names.
//!
//! A manifest is a log of edits; only their sum matters here.

use super::log::LogReader;
use super::{prefixed, split_internal, varint};
use crate::index_error::IndexError;
use apus_chain::Reader;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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

#[derive(Debug, Default)]
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
            1 => {
                if prefixed(reader)? != b"leveldb.BytewiseComparator" {
                    return Some(Err("the keys are in an order that this program does not know"));
                }
            }
            2 => self.log_number = varint(reader)?,
            // The next file's number and the last sequence number are for writers.
            3 | 4 => {
                varint(reader)?;
            }
            // Where compaction goes on: a level and a key.
            5 => {
                varint(reader)?;
                prefixed(reader)?;
            }
            6 => {
                let _level = varint(reader)?;
                self.tables.remove(&varint(reader)?);
            }
            7 => {
                let _level = varint(reader)?;
                let (number, length) = (varint(reader)?, varint(reader)?);
                let (smallest, _) = split_internal(prefixed(reader)?)?;
                prefixed(reader)?;
                let table = LiveTable { number, length, smallest: smallest.to_vec() };
                self.tables.insert(number, table);
            }
            9 => self.prev_log_number = varint(reader)?,
            _ => return Some(Err("a manifest record has an unknown field")),
        }
        Some(Ok(()))
    }
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
