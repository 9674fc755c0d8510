//! [`DatabaseLayout`]: the tables and logs of a database, from its manifest and log files (LevelDB
//! `db/version_edit.cc`, `db/write_batch.cc`).

use super::{ByteCursor, IndependentReadError, fault, stored_sum, unread};
use core::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// The name of the key order.
const ORDER: &[u8] = b"leveldb.BytewiseComparator";

/// The order of the bytes after each user key: sequence number and kind, the newest first.
pub(super) const TAG: usize = 8;

/// The number of levels of a database.
const LEVELS: u64 = 7;

/// A table listed in the manifest.
pub(super) struct TableName {
    pub(super) number: u64,
    pub(super) length: u64,
    /// The first and the last key, with their tags.
    first: Vec<u8>,
    last: Vec<u8>,
}

impl TableName {
    /// Returns the path of the table's file; falls back to the extension of old LevelDB versions.
    pub(super) fn path(&self, dir: &Path) -> PathBuf {
        let named = |extension: &str| dir.join(format!("{:06}.{extension}", self.number));
        Some(named("sst"))
            .filter(|old| !named("ldb").is_file() && old.is_file())
            .unwrap_or(named("ldb"))
    }

    /// Returns whether all its keys sort before a user key.
    pub(super) fn is_before(&self, key: &[u8]) -> bool {
        user(&self.last) < key
    }

    pub(super) fn may_have(&self, key: &[u8]) -> bool {
        user(&self.first) <= key && !self.is_before(key)
    }

    /// Returns whether a key with its tag is not before the first one.
    pub(super) fn begins_with(&self, key: &[u8]) -> bool {
        order(&self.first, key).is_some_and(Ordering::is_le)
    }

    /// Returns whether a key with its tag is not behind the last one.
    pub(super) fn ends_with(&self, key: &[u8]) -> bool {
        order(key, &self.last).is_some_and(Ordering::is_le)
    }
}

/// Splits a key into user key and tag; `None` if the key is too short.
pub(super) fn split(key: &[u8]) -> Option<(&[u8], u64)> {
    let (user, tag) = key.split_last_chunk::<TAG>()?;
    Some((user, u64::from_le_bytes(*tag)))
}

/// LevelDB's order: user keys ascend, and the newest version of a key comes first.
pub(super) fn order(a: &[u8], b: &[u8]) -> Option<Ordering> {
    let ((a, newer), (b, older)) = (split(a)?, split(b)?);
    Some(a.cmp(b).then(older.cmp(&newer)))
}

/// Puts and deletions in the logs, the newest of each key.
pub(super) type LoggedValues = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

pub(super) struct DatabaseLayout {
    /// Indexed by level. On level 0 the newest table comes first; on the others, keys ascend and do
    /// not overlap.
    pub(super) levels: Vec<Vec<TableName>>,
    pub(super) memory: LoggedValues,
}

impl DatabaseLayout {
    pub(super) fn read(dir: &Path) -> Result<Self, IndependentReadError> {
        let path = manifest_path(dir)?;
        let mut manifest = TableList::default();
        for record in records(&path, &whole(&path, FILE_BYTES_MAX)?)? {
            manifest.take(&record).ok_or_else(|| fault(&path, 0, "a record cannot be parsed"))?;
        }
        if !manifest.is_whole {
            return Err(fault(&path, 0, "it does not name its first log"));
        }
        let levels =
            manifest.levels().ok_or_else(|| fault(&path, 0, "tables of a level overlap"))?;
        for table in levels.iter().flatten() {
            if !is_file(&table.path(dir))? {
                let what = format!("its table {:06}.ldb is missing", table.number);
                return Err(no_database(dir, what));
            }
        }
        Ok(Self { levels, memory: memory(dir, manifest.log_number)? })
    }
}

fn no_database(dir: &Path, what: impl ToString) -> IndependentReadError {
    IndependentReadError::Open { path: dir.to_owned(), what: what.to_string() }
}

/// Returns whether there is a file at a path.
fn is_file(path: &Path) -> Result<bool, IndependentReadError> {
    match fs::metadata(path) {
        Ok(there) => Ok(there.is_file()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(unread(path, 0, error)),
    }
}

/// Reads the manifest that `CURRENT` names.
fn manifest_path(dir: &Path) -> Result<PathBuf, IndependentReadError> {
    let current = dir.join("CURRENT");
    if !is_file(&current)? {
        return Err(no_database(dir, "it has no CURRENT file"));
    }
    let name = whole(&current, FILE_BYTES_MAX)?;
    let name = name.strip_suffix(b"\n").and_then(|name| std::str::from_utf8(name).ok());
    let digits = name.and_then(|name| name.strip_prefix("MANIFEST-"));
    match digits.filter(|digits| !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit()))
    {
        Some(digits) => Ok(dir.join(format!("MANIFEST-{digits}"))),
        None => Err(fault(&current, 0, "it does not name a manifest")),
    }
}

/// The tables and the first log, accumulated from the records of a manifest.
#[derive(Default)]
struct TableList {
    /// Indexed by level and number.
    tables: BTreeMap<(u64, u64), TableName>,
    /// Logs with lower numbers are already in tables, so they are not read.
    log_number: u64,
    is_whole: bool,
}

impl TableList {
    fn take(&mut self, record: &[u8]) -> Option<()> {
        let (mut rest, mut removed, mut added) = (ByteCursor(record), Vec::new(), Vec::new());
        while !rest.0.is_empty() {
            match rest.varint()? {
                1 => (rest.string()? == ORDER).then_some(())?,
                2 => (self.log_number, self.is_whole) = (rest.varint()?, true),
                // The next file's number, the last sequence number, a log of old versions.
                3 | 4 | 9 => drop(rest.varint()?),
                // The key at which compaction continues.
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
        // LevelDB applies a record's removals before its additions.
        removed.iter().for_each(|table| drop(self.tables.remove(table)));
        self.tables.extend(added);
        Some(())
    }

    /// Sorts the tables of each level; `None` if two tables of a level overlap.
    fn levels(&mut self) -> Option<Vec<Vec<TableName>>> {
        let mut levels: Vec<Vec<TableName>> = (0..LEVELS).map(|_| Vec::new()).collect();
        for ((level, _), table) in core::mem::take(&mut self.tables) {
            levels[level as usize].push(table);
        }
        levels[0].reverse();
        for level in &mut levels[1..] {
            level.sort_by(|a, b| by_key(&a.first, &b.first));
            // Versions of one key may continue in the next table.
            let overlap = |pair: &[TableName]| by_key(&pair[0].last, &pair[1].first).is_ge();
            if level.windows(2).any(overlap) {
                return None;
            }
        }
        Some(levels)
    }
}

fn level(rest: &mut ByteCursor<'_>) -> Option<u64> {
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

/// Collects the log entries that are in no table yet.
fn memory(dir: &Path, from: u64) -> Result<LoggedValues, IndependentReadError> {
    let mut logs = BTreeMap::new();
    for entry in fs::read_dir(dir).map_err(|error| unread(dir, 0, error))? {
        let path = entry.map_err(|error| unread(dir, 0, error))?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok());
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        if let Some(number) = stem.filter(|number| is_log && *number >= from) {
            logs.insert(number, path);
        }
    }
    let (mut memory, mut left) = (LoggedValues::new(), FILE_BYTES_MAX);
    for path in logs.values() {
        let bytes = whole(path, left)?;
        left -= bytes.len() as u64;
        for record in records(path, &bytes)? {
            add(&mut memory, &record).ok_or_else(|| fault(path, 0, "a record cannot be parsed"))?;
        }
    }
    Ok(memory)
}

/// Adds one record: a sequence number, a count, then that many puts and deletions.
fn add(memory: &mut LoggedValues, record: &[u8]) -> Option<()> {
    let mut rest = ByteCursor(record);
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

const BLOCK_BYTES: usize = 32 << 10;

/// The length of the head of each piece: checksum, length, kind.
const HEAD: usize = 7;

const WHOLE: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// A block whose rest has no pieces, which may be zeros: a file system may give a file its space before its content.
const NOTHING: u8 = 0;

/// The length limit of a manifest, and of all logs together. Restarting the node makes longer ones short again.
pub(super) const FILE_BYTES_MAX: u64 = 64 << 20;

/// Parses all records of a file, in order.
///
/// A file is a series of 32 KiB blocks; a record is one piece or several. A node that was killed, or a loss of power,
/// leaves an unfinished record at the end. It is left out where LevelDB leaves it out (`db/log_reader.cc`); nothing else
/// is skipped.
fn records(path: &Path, bytes: &[u8]) -> Result<Vec<Vec<u8>>, IndependentReadError> {
    let (mut all, mut begun) = (Vec::new(), None::<Vec<u8>>);
    let mut at = 0;
    while let Some((kind, piece, next)) = piece(bytes, at).map_err(|what| fault(path, at, what))? {
        match (kind, begun.take()) {
            (NOTHING, None) if piece.is_empty() => {}
            (WHOLE, None) => all.push(piece.to_vec()),
            (FIRST, None) => begun = Some(piece.to_vec()),
            (MIDDLE, Some(mut record)) => {
                record.extend_from_slice(piece);
                begun = Some(record);
            }
            (LAST, Some(mut record)) => {
                record.extend_from_slice(piece);
                all.push(record);
            }
            _ => return Err(fault(path, at, "a piece of a record is out of place")),
        }
        at = next;
    }
    Ok(all)
}

type Piece<'b> = (u8, &'b [u8], usize);

/// Reads the piece at an offset: its kind and content, and the offset of the next piece; `None` at the end, also where
/// the last block ends within a piece.
fn piece(bytes: &[u8], at: usize) -> Result<Option<Piece<'_>>, &'static str> {
    let left = BLOCK_BYTES - at % BLOCK_BYTES;
    // The rest of a block is padding if it is too short for a head.
    let at = if left < HEAD { at + left } else { at };
    if at >= bytes.len() {
        return Ok(None);
    }
    let full_end = (at / BLOCK_BYTES + 1) * BLOCK_BYTES;
    let block_end = bytes.len().min(full_end);
    let mut rest = ByteCursor(&bytes[at..block_end]);
    let mut head =
        || Some((rest.four()?, u64::from(rest.byte()?), u64::from(rest.byte()?), rest.byte()?));
    // A full block has room for it.
    let Some((sum, low, high, kind)) = head() else { return Ok(None) };
    let Some(content) = rest.take(low | high << 8) else {
        // Behind a full block, LevelDB expects more.
        return match block_end == full_end {
            true => Err("a record is longer than the rest of its block"),
            false => Ok(None),
        };
    };
    if kind == NOTHING && content.is_empty() {
        return Ok(Some((NOTHING, content, block_end)));
    }
    if sum != stored_sum([&[kind], content]) {
        return Err("a record has a wrong checksum");
    }
    Ok(Some((kind, content, at + HEAD + content.len())))
}

/// Reads a file of at most `bytes_max` bytes.
fn whole(path: &Path, bytes_max: u64) -> Result<Vec<u8>, IndependentReadError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(bytes_max + 1).read_to_end(&mut bytes));
    read.map_err(|error| unread(path, 0, error))?;
    if bytes.len() as u64 > bytes_max {
        return Err(match path.extension().is_some_and(|extension| extension == "log") {
            true => IndependentReadError::LongLog { path: path.to_owned() },
            false => fault(path, 0, "it is too long for its kind"),
        });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a file of these pieces.
    fn file(pieces: &[(u8, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (kind, content) in pieces {
            bytes.extend(stored_sum([&[*kind], content]).to_le_bytes());
            bytes.extend((content.len() as u16).to_le_bytes());
            bytes.push(*kind);
            bytes.extend_from_slice(content);
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        records(Path::new("log"), bytes).map_err(|error| error.to_string())
    }

    #[test]
    fn pieces_form_records() {
        let rest = vec![5; BLOCK_BYTES - 2 * HEAD - 2 - 3];
        let mut bytes = file(&[(WHOLE, b"ab"), (FIRST, &rest)]);
        // Three bytes of padding, too short for a head.
        bytes.extend([0; 3]);
        assert_eq!(bytes.len(), BLOCK_BYTES);
        bytes.extend(file(&[(MIDDLE, b"c"), (LAST, b"d"), (WHOLE, b"")]));
        let record = [&rest[..], b"cd"].concat();
        assert_eq!(read(&bytes).unwrap(), [b"ab".to_vec(), record, Vec::new()]);
        assert_eq!(read(&[]).unwrap(), [[0; 0]; 0]);
    }

    /// The log of a node with much cache may be long; other files are not.
    #[test]
    fn a_long_log_is_no_damage() {
        let folder = tempfile::tempdir().unwrap();
        for (name, is_log) in [("000007.log", true), ("MANIFEST-000002", false)] {
            let path = folder.path().join(name);
            std::fs::File::create(&path).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
            let error = whole(&path, FILE_BYTES_MAX).unwrap_err();
            assert_eq!(matches!(error, IndependentReadError::LongLog { .. }), is_log, "{error}");
        }
    }

    #[test]
    fn all_logs_together_have_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        for number in 7..9 {
            let log = folder.path().join(format!("{number:06}.log"));
            std::fs::File::create(log).unwrap().set_len(FILE_BYTES_MAX / 2 + 1).unwrap();
        }
        let error = memory(folder.path(), 7).unwrap_err();
        assert!(matches!(error, IndependentReadError::LongLog { .. }), "{error}");
        assert!(memory(folder.path(), 8).unwrap().is_empty());
    }

    /// What a node leaves that was killed, or lost its power.
    #[test]
    fn a_file_ends_where_leveldb_ends_it() {
        let whole = file(&[(WHOLE, b"ab")]);
        let next = file(&[(FIRST, b"c"), (MIDDLE, b"d"), (LAST, b"efg")]);
        for length in 0..next.len() {
            let torn = [&whole[..], &next[..length]].concat();
            assert_eq!(read(&torn).unwrap(), [b"ab"], "{length}");
        }
        for zeros in [1, HEAD, 20, BLOCK_BYTES] {
            assert_eq!(read(&[&whole[..], &vec![0; zeros]].concat()).unwrap(), [b"ab"], "{zeros}");
        }
        // Behind zeros, LevelDB continues with the next block.
        let mut padded = whole.clone();
        padded.resize(BLOCK_BYTES, 0);
        padded.extend(&whole);
        assert_eq!(read(&padded).unwrap(), [b"ab", b"ab"]);
    }

    #[test]
    fn invalid_records_are_refused() {
        let mut long = file(&[(WHOLE, b"a")]);
        long.resize(BLOCK_BYTES, 0xff);
        let flipped = |at: usize| {
            let mut bytes = file(&[(WHOLE, b"a"), (WHOLE, b"b")]);
            bytes[at] ^= 1;
            bytes
        };
        for (bytes, why) in [
            ([file(&[(FIRST, b"a")]), vec![0; 20]].concat(), "out of place"),
            (file(&[(LAST, b"a")]), "out of place"),
            (file(&[(FIRST, b"a"), (WHOLE, b"b")]), "out of place"),
            (file(&[(5, b"a")]), "out of place"),
            (file(&[(NOTHING, b"a")]), "out of place"),
            (long, "longer than the rest"),
            (flipped(0), "checksum"),
            (flipped(HEAD), "checksum"),
            (flipped(2 * HEAD + 1), "checksum"),
        ] {
            let error = read(&bytes).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
