//! [`Memory`]: the entries of the logs, which no table has yet, sorted.

use super::log::LogReader;
use super::manifest::Manifest;
use super::{Entry, KIND_DELETE, KIND_PUT, prefixed};
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
}

impl Memory {
    pub(super) fn read(dir: &Path, manifest: &Manifest) -> Result<Self, IndexError> {
        let (mut bytes, mut entries, mut record) = (Vec::new(), Vec::new(), Vec::new());
        let mut left = LOG_BYTES_MAX;
        for path in live_logs(dir, manifest)? {
            let mut log = LogReader::open(&path, left)?;
            left = left.saturating_sub(fs::metadata(&path).map_or(0, |meta| meta.len()));
            while let Some(at) = log.next(&mut record)? {
                add_batch(&mut entries, &record, bytes.len())
                    .ok_or_else(|| log.corrupt(at, "a batch of writes cannot be read"))?;
                bytes.extend_from_slice(&record);
            }
        }
        entries.sort_unstable_by(|left, right| {
            let key = |entry: &Logged| &bytes[entry.key.clone()];
            key(left).cmp(key(right)).then(right.tag.cmp(&left.tag))
        });
        Ok(Self { bytes, entries: entries.into_iter() })
    }

    pub(super) fn next(&mut self, entry: &mut Entry) -> bool {
        let Some(Logged { key, tag, value }) = self.entries.next() else { return false };
        entry.key.clear();
        entry.key.extend_from_slice(&self.bytes[key]);
        entry.value.clear();
        entry.value.extend_from_slice(&self.bytes[value]);
        entry.tag = tag;
        true
    }
}

/// A batch: the first sequence number, a count, then so many puts and deletions. It will lie at `start`.
fn add_batch(entries: &mut Vec<Logged>, record: &[u8], start: usize) -> Option<()> {
    let mut reader = Reader::new(record);
    let first = reader.u64().ok()?;
    let count = reader.u32().ok()?;
    for number in 0..u64::from(count) {
        let kind = reader.u8().ok()?;
        // A sequence number has 56 bits.
        let tag = first.checked_add(number)?.checked_mul(256)? | u64::from(kind);
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

fn live_logs(dir: &Path, manifest: &Manifest) -> Result<Vec<PathBuf>, IndexError> {
    let failed = |source| IndexError::Open { path: dir.to_owned(), source };
    let mut logs = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(digits) = name.strip_suffix(".log") else { continue };
        let Ok(number) = digits.parse::<u64>() else { continue };
        let previous = manifest.prev_log_number != 0 && number == manifest.prev_log_number;
        if number >= manifest.log_number || previous {
            logs.push((number, path));
        }
    }
    logs.sort_unstable();
    Ok(logs.into_iter().map(|(_, path)| path).collect())
}
