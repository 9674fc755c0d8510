//! [`LogReader`] and [`append_record`]: the records of a LevelDB log, the format of both `.log`
//! files and manifests.
//!
//! A log consists of 32 KiB blocks. A record is one fragment or several; no fragment crosses blocks, and each
//! has a checksum, a length and a kind. A crash, or a node that is writing right now, leaves an unfinished
//! record at the end. It counts as the end exactly when LevelDB treats it so. Any other fault is an error.

use super::{
    FILE_NUMBER_MAX, KIND_DELETE, KIND_PUT, KeyValue, SEQUENCE_MAX, masked_crc32c, number, prefixed,
};
use crate::error::IndexError;
use apus_chain::Reader;
use core::ops::Range;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

const BLOCK: usize = 32 << 10;
const HEAD: usize = 7;

const FULL: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

pub(super) struct LogReader {
    path: PathBuf,
    file: File,
    length: u64,
    block: Vec<u8>,
    /// The file offset of `block`.
    start: u64,
    position: usize,
}

impl LogReader {
    /// Opens a log. Refuses a log of more than `length_max` bytes, so that memory for its content is bounded
    /// too.
    pub(super) fn open(path: &Path, length_max: u64) -> Result<Self, IndexError> {
        let (file, length) = IndexError::open(path)?;
        if length > length_max {
            return Err(IndexError::corrupt(
                path,
                0,
                "it is far longer than any log that a node writes",
            ));
        }
        let (path, block) = (path.to_owned(), Vec::with_capacity(BLOCK));
        Ok(Self { path, file, length, block, start: 0, position: 0 })
    }

    /// Reads the next record into `record`; `None` at the end. Returns the offset of its first
    /// fragment.
    pub(super) fn next(&mut self, record: &mut Vec<u8>) -> Result<Option<u64>, IndexError> {
        record.clear();
        let mut begun: Option<u64> = None;
        loop {
            if self.block.len() - self.position < HEAD {
                // The rest of a block that is too short for a head is padding.
                if !self.next_block()? {
                    return Ok(None);
                }
                continue;
            }
            let at = self.start + self.position as u64;
            let (head, rest) = self.block[self.position..].split_at(HEAD);
            let &[c0, c1, c2, c3, l0, l1, kind] = head else { return Ok(None) };
            let length = usize::from(u16::from_le_bytes([l0, l1]));
            if kind == 0 && length == 0 {
                if begun.is_some() {
                    return Err(self.corrupt(at, "a log record is cut off"));
                }
                // A file system may have preallocated this space.
                self.position = self.block.len();
                continue;
            }
            let Some(data) = rest.get(..length) else {
                // After a full block, LevelDB cannot know whether it is the last.
                if self.block.len() < BLOCK {
                    return Ok(None);
                }
                return Err(self.corrupt(at, "a log record runs past its block"));
            };
            if u32::from_le_bytes([c0, c1, c2, c3]) != masked_crc32c(&[kind], data) {
                return Err(self.corrupt(at, "a log record has a wrong checksum"));
            }
            // Old versions of LevelDB started a record at the end of a block, then again in the next block.
            if matches!(kind, FULL | FIRST) && record.is_empty() {
                begun = None;
            }
            let fits = matches!(kind, FULL | FIRST) == begun.is_none();
            if !fits || !(FULL..=LAST).contains(&kind) {
                return Err(self.corrupt(at, "a log record is out of order"));
            }
            record.extend_from_slice(data);
            self.position += HEAD + length;
            let begin = *begun.get_or_insert(at);
            if matches!(kind, FULL | LAST) {
                return Ok(Some(begin));
            }
            debug_assert!(matches!(kind, FIRST | MIDDLE));
        }
    }

    fn next_block(&mut self) -> Result<bool, IndexError> {
        self.start += self.block.len() as u64;
        self.position = 0;
        let left = self.length - self.start;
        self.block.resize(usize::try_from(left).map_or(BLOCK, |left| left.min(BLOCK)), 0);
        IndexError::read(&self.path, &self.file, &mut self.block, self.start)?;
        Ok(!self.block.is_empty())
    }

    pub(super) fn corrupt(&self, at: u64, what: &'static str) -> IndexError {
        IndexError::corrupt(&self.path, at, what)
    }
}

/// Appends a record to `log`, which must hold the log from its first byte on.
pub(super) fn append_record(log: &mut Vec<u8>, mut record: &[u8]) {
    let mut first = true;
    loop {
        let mut left = BLOCK - log.len() % BLOCK;
        if left < HEAD {
            log.resize(log.len() + left, 0);
            left = BLOCK;
        }
        let (data, rest) = record.split_at(record.len().min(left - HEAD));
        let kind = match (first, rest.is_empty()) {
            (true, true) => FULL,
            (true, false) => FIRST,
            (false, false) => MIDDLE,
            (false, true) => LAST,
        };
        log.extend_from_slice(&masked_crc32c(&[kind], data).to_le_bytes());
        // At most a block, so it fits 16 bits.
        log.extend_from_slice(&(data.len() as u16).to_le_bytes());
        log.push(kind);
        log.extend_from_slice(data);
        if rest.is_empty() {
            return;
        }
        (record, first) = (rest, false);
    }
}

/// Upper bound for all logs of a block index together: the first write after the header sync is about 150 MB,
/// and LevelDB starts a new log soon after one is full.
const LOG_BYTES_MAX: u64 = 512 << 20;

/// An entry of a log: the positions of its key and its value in the concatenated records.
struct LogEntry {
    key: Range<usize>,
    tag: u64,
    value: Range<usize>,
}

/// The sorted entries of the logs, which no table contains yet.
#[derive(Default)]
pub(super) struct LogMemory {
    /// All records, concatenated in one buffer: entries are small, and may number a million.
    bytes: Vec<u8>,
    entries: std::vec::IntoIter<LogEntry>,
    /// The last sequence number in the logs; 0 if the logs are empty.
    pub(super) last_sequence: u64,
}

impl LogMemory {
    /// Reads the logs in `dir` with the numbers `live`.
    pub(super) fn read(dir: &Path, live: impl Fn(u64) -> bool) -> Result<Self, IndexError> {
        let (mut bytes, mut entries, mut record) = (Vec::new(), Vec::new(), Vec::new());
        let (mut left, mut next_sequence) = (LOG_BYTES_MAX, 1);
        for path in live_logs(dir, live)? {
            let mut log = LogReader::open(&path, left)?;
            left = left.saturating_sub(fs::metadata(&path).map_or(0, |meta| meta.len()));
            while let Some(at) = log.next(&mut record)? {
                let batch = WriteBatch::read(&record)
                    .ok_or_else(|| log.corrupt(at, "a batch of writes cannot be read"))?;
                // Later batches must have higher sequence numbers: LevelDB may put them into tables that it
                // searches first.
                if batch.first < next_sequence || batch.end > SEQUENCE_MAX {
                    return Err(log.corrupt(at, "a batch of writes has a wrong sequence number"));
                }
                next_sequence = batch.end;
                batch
                    .add_to(&mut entries, bytes.len())
                    .ok_or_else(|| log.corrupt(at, "a batch of writes cannot be read"))?;
                bytes.extend_from_slice(&record);
            }
        }
        entries.sort_unstable_by(|left, right| {
            let key = |entry: &LogEntry| &bytes[entry.key.clone()];
            key(left).cmp(key(right)).then(right.tag.cmp(&left.tag))
        });
        Ok(Self { bytes, entries: entries.into_iter(), last_sequence: next_sequence - 1 })
    }

    pub(super) fn next(&mut self, entry: &mut KeyValue) -> bool {
        let Some(LogEntry { key, tag, value }) = self.entries.next() else { return false };
        entry.key.set(&self.bytes[key], tag);
        entry.value.clear();
        entry.value.extend_from_slice(&self.bytes[value]);
        true
    }
}

/// A batch of writes: the first sequence number, a count, and that many puts and deletions.
struct WriteBatch<'r> {
    reader: Reader<'r>,
    first: u64,
    /// The next sequence number after the batch.
    end: u64,
}

impl<'r> WriteBatch<'r> {
    fn read(record: &'r [u8]) -> Option<Self> {
        let mut reader = Reader::new(record);
        let first = reader.u64().ok()?;
        let end = first.checked_add(u64::from(reader.u32().ok()?))?;
        Some(Self { reader, first, end })
    }

    /// Adds the batch's entries; `start` is the batch's offset in the concatenated records.
    fn add_to(self, entries: &mut Vec<LogEntry>, start: usize) -> Option<()> {
        let Self { mut reader, first, end } = self;
        for sequence in first..end {
            let kind = reader.u8().ok()?;
            let tag = sequence << 8 | u64::from(kind);
            let mut bytes = || {
                let length = prefixed(&mut reader)?.len();
                let end = start + reader.position();
                Some(end - length..end)
            };
            let key = bytes()?;
            let value = match kind {
                KIND_PUT => bytes()?,
                KIND_DELETE => start..start,
                _ => return None,
            };
            entries.push(LogEntry { key, tag, value });
        }
        reader.finish().ok()
    }
}

fn live_logs(dir: &Path, live: impl Fn(u64) -> bool) -> Result<Vec<PathBuf>, IndexError> {
    let failed = |source| IndexError::Open { path: dir.to_owned(), source };
    let mut logs = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(number) = name.strip_suffix(".log").and_then(number) else { continue };
        if !live(number) {
            continue;
        }
        // LevelDB parses the number from the name, then forms the name from the number.
        if name != format!("{number:06}.log") || number == 0 || number > FILE_NUMBER_MAX {
            return Err(IndexError::corrupt(&path, 0, "LevelDB never gives a log such a name"));
        }
        logs.push((number, path));
    }
    logs.sort_unstable();
    Ok(logs.into_iter().map(|(_, path)| path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    proptest! {
        #[test]
        fn records_of_any_length_come_back(
            lengths in proptest::collection::vec(
                prop_oneof![0usize..40, BLOCK - 20..BLOCK + 20, 2 * BLOCK..3 * BLOCK], 1..6,
            ),
        ) {
            let mut log = Vec::new();
            for (seed, length) in lengths.iter().enumerate() {
                append_record(&mut log, &vec![seed as u8; *length]);
            }
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("log");
            fs::write(&path, &log).unwrap();
            let mut reader = LogReader::open(&path, u64::MAX).unwrap();
            let mut record = Vec::new();
            for (seed, length) in lengths.iter().enumerate() {
                prop_assert!(reader.next(&mut record).unwrap().is_some());
                prop_assert_eq!(&record, &vec![seed as u8; *length]);
            }
            prop_assert!(reader.next(&mut record).unwrap().is_none());
        }
    }
}
