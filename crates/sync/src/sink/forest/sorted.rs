//! [`SortedLeaves`]: leaves that lie in sorted runs, as a join leaves them.
//!
//! Places are divided into parts by what the runs' sections hold, and each part is a merge of its own.

use super::{ForestParts, Growing, Sprout};
use crate::error::{IoError, SyncError};
use crate::progress::stop_if_interrupted;
use crate::request::RunEnv;
use crate::runs::{KeyRange, LeavesForm, MergeBudget, Merging, Runs, divide};
use crate::workdir::RunInfo;
use apus_chain::Reader;
use apus_utreexo::{Fragment, LiveLeaf, NodeHash};

/// Parts for each thread, so that none waits long for the others at the end.
const PARTS_EACH: u64 = 4;

/// A smaller part is not worth a merge.
const PART_BYTES_MIN: u64 = 1 << 20;

/// See the module.
pub struct SortedLeaves<'r> {
    runs: Runs<'r, LeavesForm>,
    parts: Vec<KeyRange>,
    bytes: u64,
    /// How many leaves there are in all, deleted ones included.
    count: u64,
    /// For messages.
    folder: String,
}

impl<'r> SortedLeaves<'r> {
    /// Those of all leaves, of which there are `count`, that these runs name.
    pub fn open(env: &RunEnv<'r>, runs: Vec<RunInfo>, count: u64) -> Result<Self, SyncError> {
        let bytes: u64 = runs.iter().map(|run| run.bytes).sum();
        let go_on = || stop_if_interrupted(env.interrupt);
        let budget = MergeBudget::for_each_of(env.threads, env.memory_bytes / 2);
        let runs = Runs::open(env.workdir, runs, budget, &go_on)?;
        let parts = (bytes / PART_BYTES_MIN).clamp(1, PARTS_EACH * env.threads as u64);
        let parts = divide(runs.sections(), parts);
        let folder = env.workdir.describe("");
        Ok(Self { runs, parts, bytes, count, folder })
    }

    /// All were gone through.
    pub fn close(self) -> Result<(), SyncError> {
        self.runs.close()
    }

    fn damaged(&self) -> SyncError {
        SyncError::Io(IoError::WorkdirDamaged { file: self.folder.clone() })
    }
}

impl ForestParts for SortedLeaves<'_> {
    fn count(&self) -> usize {
        self.parts.len()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn fragment(&self, part: usize, growing: &Growing<'_>) -> Result<Fragment, SyncError> {
        let keys = self.parts[part];
        let mut sprout = Sprout::new(growing, keys.from)?;
        let mut merging: Merging<'_, LeavesForm> = self.runs.part(keys)?;
        let mut bytes = 0;
        merging.next()?;
        while let Some(record) = merging.current() {
            bytes += record.len() as u64;
            let leaf = read(record).ok_or_else(|| self.damaged())?;
            if !sprout.take(leaf)? {
                return Err(self.damaged());
            }
            merging.next()?;
        }
        let fragment = sprout.finish(keys.until.unwrap_or(self.count), bytes)?;
        fragment.ok_or_else(|| self.damaged())
    }
}

fn read(record: &[u8]) -> Option<LiveLeaf> {
    let mut reader = Reader::new(record);
    let place = u64::from_be_bytes(*reader.array().ok()?);
    Some(LiveLeaf { place, hash: NodeHash(*reader.array().ok()?) })
}
