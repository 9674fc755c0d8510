//! [`Shape`]: what a database consists of, by its manifest and logs (LevelDB `db/version_edit.cc`, `db/write_batch.cc`).

use super::block::{order, split};
use super::bytes::Bytes;
use super::records::{records, whole};
use super::{ForeignError, fault};
use core::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The order of the keys, by name.
const ORDER: &[u8] = b"leveldb.BytewiseComparator";

/// Levels of a database.
const LEVELS: u64 = 7;

/// A table as the manifest has it.
pub(super) struct TableName {
    pub(super) number: u64,
    pub(super) length: u64,
    /// With their tags.
    first: Vec<u8>,
    last: Vec<u8>,
}

impl TableName {
    /// The file; a name that old versions of LevelDB gave is taken where there is no other.
    pub(super) fn path(&self, dir: &Path) -> PathBuf {
        let named = |extension: &str| dir.join(format!("{:06}.{extension}", self.number));
        Some(named("sst"))
            .filter(|old| !named("ldb").is_file() && old.is_file())
            .unwrap_or(named("ldb"))
    }

    /// Whether all its keys are before a user's key.
    pub(super) fn is_before(&self, key: &[u8]) -> bool {
        user(&self.last) < key
    }

    pub(super) fn may_have(&self, key: &[u8]) -> bool {
        user(&self.first) <= key && !self.is_before(key)
    }
}

/// Puts and deletions of the logs, the newest of each key.
pub(super) type Memory = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

pub(super) struct Shape {
    /// By level; on the first the newest comes first, on the others their keys ascend and do not overlap.
    pub(super) levels: Vec<Vec<TableName>>,
    pub(super) memory: Memory,
}

impl Shape {
    pub(super) fn read(dir: &Path) -> Result<Self, ForeignError> {
        let path = manifest_path(dir)?;
        let mut manifest = Manifest::default();
        for record in records(&path)? {
            manifest
                .take(&record)
                .ok_or_else(|| fault(&path, 0, "it has a record that says nothing"))?;
        }
        if !manifest.is_whole {
            return Err(fault(&path, 0, "it does not say where its logs begin"));
        }
        let levels =
            manifest.levels().ok_or_else(|| fault(&path, 0, "tables of a level overlap"))?;
        let lacking = levels.iter().flatten().find(|table| !table.path(dir).is_file());
        if let Some(table) = lacking {
            return Err(no_database(dir, format!("its table {:06}.ldb is missing", table.number)));
        }
        Ok(Self { levels, memory: memory(dir, manifest.log_number)? })
    }
}

fn no_database(dir: &Path, what: impl ToString) -> ForeignError {
    ForeignError::Open { path: dir.to_owned(), what: what.to_string() }
}

/// The manifest that `CURRENT` names.
fn manifest_path(dir: &Path) -> Result<PathBuf, ForeignError> {
    let current = dir.join("CURRENT");
    if !current.is_file() {
        return Err(no_database(dir, "it has no file CURRENT"));
    }
    let name = whole(&current)?;
    let name = name.strip_suffix(b"\n").and_then(|name| std::str::from_utf8(name).ok());
    let digits = name.and_then(|name| name.strip_prefix("MANIFEST-"));
    match digits.filter(|digits| !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit()))
    {
        Some(digits) => Ok(dir.join(format!("MANIFEST-{digits}"))),
        None => Err(fault(&current, 0, "it names no manifest")),
    }
}

/// The tables and the first log that the records of a manifest lead to.
#[derive(Default)]
struct Manifest {
    /// By level and number.
    tables: BTreeMap<(u64, u64), TableName>,
    /// Logs below are in tables already.
    log_number: u64,
    is_whole: bool,
}

impl Manifest {
    fn take(&mut self, record: &[u8]) -> Option<()> {
        let (mut rest, mut removed, mut added) = (Bytes(record), Vec::new(), Vec::new());
        while !rest.0.is_empty() {
            match rest.varint()? {
                1 => (rest.string()? == ORDER).then_some(())?,
                2 => (self.log_number, self.is_whole) = (rest.varint()?, true),
                // The next file's number, the last sequence number, a log of old versions.
                3 | 4 | 9 => drop(rest.varint()?),
                // Where merging goes on.
                5 => drop((rest.varint()?, rest.string()?)),
                6 => removed.push((level(&mut rest)?, rest.varint()?)),
                7 => {
                    let (level, number, length) =
                        (level(&mut rest)?, rest.varint()?, rest.varint()?);
                    let (first, last) = (key(rest.string()?)?, key(rest.string()?)?);
                    added.push(((level, number), TableName { number, length, first, last }));
                }
                _ => return None,
            }
        }
        // What one record removes it removes first.
        removed.iter().for_each(|table| drop(self.tables.remove(table)));
        self.tables.extend(added);
        Some(())
    }

    /// The tables by level, in order; nothing where two of a level have keys in common.
    fn levels(&mut self) -> Option<Vec<Vec<TableName>>> {
        let mut levels: Vec<Vec<TableName>> = (0..LEVELS).map(|_| Vec::new()).collect();
        for ((level, _), table) in core::mem::take(&mut self.tables) {
            levels[level as usize].push(table);
        }
        levels[0].reverse();
        for level in &mut levels[1..] {
            level.sort_by(|a, b| by_key(&a.first, &b.first));
            // Versions of one key may go on in the next table.
            let overlap = |pair: &[TableName]| by_key(&pair[0].last, &pair[1].first).is_ge();
            if level.windows(2).any(overlap) {
                return None;
            }
        }
        Some(levels)
    }
}

fn level(rest: &mut Bytes<'_>) -> Option<u64> {
    rest.varint().filter(|level| *level < LEVELS)
}

/// A key with its tag.
fn key(bytes: &[u8]) -> Option<Vec<u8>> {
    split(bytes).map(|_| bytes.to_vec())
}

fn user(key: &[u8]) -> &[u8] {
    split(key).expect("keys without a tag were refused").0
}

fn by_key(a: &[u8], b: &[u8]) -> Ordering {
    order(a, b).expect("keys without a tag were refused")
}

/// What the logs hold that is in no table yet.
fn memory(dir: &Path, from: u64) -> Result<Memory, ForeignError> {
    let mut logs = BTreeMap::new();
    for entry in fs::read_dir(dir).map_err(|error| fault(dir, 0, error))? {
        let path = entry.map_err(|error| fault(dir, 0, error))?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok());
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        if let Some(number) = stem.filter(|number| is_log && *number >= from) {
            logs.insert(number, path);
        }
    }
    let mut memory = Memory::new();
    for path in logs.values() {
        for record in records(path)? {
            add(&mut memory, &record)
                .ok_or_else(|| fault(path, 0, "it has a record that is none"))?;
        }
    }
    Ok(memory)
}

/// One record: sequence number, count, and so many puts and deletions.
fn add(memory: &mut Memory, record: &[u8]) -> Option<()> {
    let mut rest = Bytes(record);
    rest.take(8)?;
    for _ in 0..rest.four()? {
        let kind = rest.byte()?;
        let key = rest.string()?.to_vec();
        let value = match kind {
            1 => Some(rest.string()?.to_vec()),
            0 => None,
            _ => return None,
        };
        memory.insert(key, value);
    }
    rest.0.is_empty().then_some(())
}
