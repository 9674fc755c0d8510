//! [`SortedHashes`]: hashes in sorted runs, as a join writes them.
//!
//! The sizes of the runs' sections determine how the places are divided into parts; each part is merged
//! separately.

use super::{AscendingHashes, EachHash, HashParts, PlacedHash};
use crate::error::{IoError, SyncError};
use crate::progress::stop_if_interrupted;
use crate::request::RunEnv;
use crate::runs::{HashesForm, KeyRange, MergeBudget, RunMerger, Runs, divide};
use crate::workdir::RunInfo;
use apus_chain::Reader;
use core::ops::Range;

/// Parts for each thread: enough that no thread waits long for the others at the end.
const PARTS_EACH: u64 = 4;

/// Minimum size of a part; a smaller one is not worth a merge.
const PART_BYTES_MIN: u64 = 1 << 20;

/// The hashes of surviving coins, in sorted runs.
pub(crate) struct SortedHashes<'r> {
    runs: Runs<'r, HashesForm>,
    parts: Vec<KeyRange>,
    bytes: u64,
    /// Number of numbered outputs, whether they survive or not.
    count: u64,
    /// The folder's name, for messages.
    folder: String,
}

impl<'r> SortedHashes<'r> {
    /// Opens the hashes in these runs; `count` is the total number of numbered outputs.
    pub(crate) fn open(
        env: &RunEnv<'r>,
        runs: Vec<RunInfo>,
        count: u64,
    ) -> Result<Self, SyncError> {
        let bytes: u64 = runs.iter().map(|run| run.bytes).sum();
        let go_on = |_| stop_if_interrupted(env.interrupt);
        let budget = MergeBudget::for_each_of(env.threads, env.memory_bytes / 2);
        let runs = Runs::open(env.workdir, runs, budget, &go_on)?;
        let parts = (bytes / PART_BYTES_MIN).clamp(1, PARTS_EACH * env.threads as u64);
        let parts = divide(runs.sections(), parts);
        let folder = env.workdir.describe("");
        Ok(Self { runs, parts, bytes, count, folder })
    }

    /// Checks that the runs were read to their end. Call it after all parts were read.
    pub(crate) fn close(self) -> Result<(), SyncError> {
        self.runs.close()
    }
}

impl HashParts for SortedHashes<'_> {
    fn count(&self) -> usize {
        self.parts.len()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn places(&self, part: usize) -> Range<u64> {
        let KeyRange { from, until } = self.parts[part];
        from..until.unwrap_or(self.count)
    }

    fn part(&self, part: usize, each: &mut EachHash<'_>) -> Result<u64, SyncError> {
        let damaged = || SyncError::Io(IoError::WorkdirDamaged { file: self.folder.clone() });
        let Range { start, end } = self.places(part);
        if start > end {
            return Err(damaged());
        }
        let mut ascending = AscendingHashes { free: start, end, each };
        let mut merging: RunMerger<'_, HashesForm> = self.runs.part(self.parts[part])?;
        let mut bytes = 0;
        merging.next()?;
        while let Some(record) = merging.current() {
            bytes += record.len() as u64;
            let placed = read(record).ok_or_else(damaged)?;
            if !ascending.take(placed)? {
                return Err(damaged());
            }
            merging.next()?;
        }
        Ok(bytes)
    }
}

fn read(record: &[u8]) -> Option<PlacedHash> {
    let mut reader = Reader::new(record);
    let place = u64::from_be_bytes(*reader.array().ok()?);
    Some(PlacedHash { place, hash: *reader.array().ok()? })
}
