//! [`Memory`]: the entries of the logs, which no table has yet, sorted.

use super::log::LogReader;
use super::manifest::Manifest;
use super::{Entry, KIND_DELETE, KIND_PUT, prefixed};
use crate::index_error::IndexError;
use apus_chain::Reader;
use core::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};

/// More than this the logs of a block index do not hold together: the first write after all
/// headers have arrived is some 150 MB, and a log ends soon after it is full.
const LOG_BYTES_MAX: u64 = 512 << 20;

type Stored = (Vec<u8>, Reverse<u64>, Vec<u8>);

#[derive(Default)]
pub(super) struct Memory {
    entries: std::vec::IntoIter<Stored>,
}

impl Memory {
    pub(super) fn read(dir: &Path, manifest: &Manifest) -> Result<Self, IndexError> {
        let (mut entries, mut record) = (Vec::new(), Vec::new());
        let mut left = LOG_BYTES_MAX;
        for path in live_logs(dir, manifest)? {
            let mut log = LogReader::open(&path, left)?;
            left = left.saturating_sub(fs::metadata(&path).map_or(0, |meta| meta.len()));
            while let Some(at) = log.next(&mut record)? {
                add_batch(&mut entries, &record)
                    .ok_or_else(|| log.corrupt(at, "a batch of writes cannot be read"))?;
            }
        }
        entries.sort_unstable();
        Ok(Self { entries: entries.into_iter() })
    }

    pub(super) fn next(&mut self, entry: &mut Entry) -> bool {
        let Some((key, Reverse(tag), value)) = self.entries.next() else { return false };
        *entry = Entry { key, tag, value };
        true
    }
}

/// A batch: the first sequence number, a count, then so many puts and deletions.
fn add_batch(entries: &mut Vec<Stored>, record: &[u8]) -> Option<()> {
    let mut reader = Reader::new(record);
    let first = reader.u64().ok()?;
    let count = reader.u32().ok()?;
    for number in 0..u64::from(count) {
        let kind = reader.u8().ok()?;
        // A sequence number has 56 bits.
        let tag = first.checked_add(number)?.checked_mul(256)? | u64::from(kind);
        let key = prefixed(&mut reader)?.to_vec();
        let value = match kind {
            KIND_PUT => prefixed(&mut reader)?.to_vec(),
            KIND_DELETE => Vec::new(),
            _ => return None,
        };
        entries.push((key, Reverse(tag), value));
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
