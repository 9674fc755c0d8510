//! [`Memory`]: the entries of the logs, which no table has yet, sorted.

use super::internal_key::SEQUENCE_MAX;
use super::levels::FILE_NUMBER_MAX;
use super::log::LogReader;
use super::manifest::Manifest;
use super::{Entry, KIND_DELETE, KIND_PUT, number, prefixed};
use crate::index_error::IndexError;
use apus_chain::Reader;
use core::ops::Range;
use std::fs;
use std::path::{Path, PathBuf};

/// More than this the logs of a block index do not hold together: the first write after all
/// headers have arrived is some 150 MB, and a log ends soon after it is full.
const LOG_BYTES_MAX: u64 = 512 << 20;

/// An entry of a log: where its key and its value lie in what was read.
struct Logged {
    key: Range<usize>,
    tag: u64,
    value: Range<usize>,
}

#[derive(Default)]
pub(super) struct Memory {
    /// All records, one after the other: an entry is small, and there may be a million.
    bytes: Vec<u8>,
    entries: std::vec::IntoIter<Logged>,
    /// The last sequence number of the logs; 0 where they have none.
    pub(super) last_sequence: u64,
}

impl Memory {
    pub(super) fn read(dir: &Path, manifest: &Manifest) -> Result<Self, IndexError> {
        let (mut bytes, mut entries, mut record) = (Vec::new(), Vec::new(), Vec::new());
        let (mut left, mut next_sequence) = (LOG_BYTES_MAX, 1);
        for path in live_logs(dir, manifest)? {
            let mut log = LogReader::open(&path, left)?;
            left = left.saturating_sub(fs::metadata(&path).map_or(0, |meta| meta.len()));
            while let Some(at) = log.next(&mut record)? {
                let batch = Batch::read(&record)
                    .ok_or_else(|| log.corrupt(at, "a batch of writes cannot be read"))?;
                // Later batches are newer: LevelDB may put them into tables that it looks into first.
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
            let key = |entry: &Logged| &bytes[entry.key.clone()];
            key(left).cmp(key(right)).then(right.tag.cmp(&left.tag))
        });
        Ok(Self { bytes, entries: entries.into_iter(), last_sequence: next_sequence - 1 })
    }

    pub(super) fn next(&mut self, entry: &mut Entry) -> bool {
        let Some(Logged { key, tag, value }) = self.entries.next() else { return false };
        entry.key.set(&self.bytes[key], tag);
        entry.value.clear();
        entry.value.extend_from_slice(&self.bytes[value]);
        true
    }
}

/// Some writes: the first sequence number, a count, then so many puts and deletions.
struct Batch<'r> {
    reader: Reader<'r>,
    first: u64,
    /// The sequence number that follows.
    end: u64,
}

impl<'r> Batch<'r> {
    fn read(record: &'r [u8]) -> Option<Self> {
        let mut reader = Reader::new(record);
        let first = reader.u64().ok()?;
        let end = first.checked_add(u64::from(reader.u32().ok()?))?;
        Some(Self { reader, first, end })
    }

    /// Adds its entries; it will lie at `start`.
    fn add_to(self, entries: &mut Vec<Logged>, start: usize) -> Option<()> {
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
            entries.push(Logged { key, tag, value });
        }
        reader.finish().ok()
    }
}

fn live_logs(dir: &Path, manifest: &Manifest) -> Result<Vec<PathBuf>, IndexError> {
    let failed = |source| IndexError::Open { path: dir.to_owned(), source };
    let mut logs = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(number) = name.strip_suffix(".log").and_then(number) else { continue };
        // Number 0 is that of no log before, and so of one that LevelDB takes sooner or later.
        if number != 0 && number < manifest.log_number && number != manifest.prev_log_number {
            continue;
        }
        // LevelDB takes the number from the name, and makes a name of the number.
        if name != format!("{number:06}.log") || number == 0 || number > FILE_NUMBER_MAX {
            return Err(IndexError::corrupt(&path, 0, "no log of LevelDB's has such a name"));
        }
        logs.push((number, path));
    }
    logs.sort_unstable();
    Ok(logs.into_iter().map(|(_, path)| path).collect())
}
