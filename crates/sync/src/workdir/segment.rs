//! [`Done`]: a finished segment, and [`RunInfo`], its coins.

use super::names::run_name;
use apus_chain::HeightRange;
use apus_engine::swiftsync::{Finished, Partial};
use std::sync::Arc;

/// A finished segment as it lies in the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Done {
    /// Its heights.
    pub range: HeightRange,
    /// Its result.
    pub partial: Partial,
    /// Its coins.
    pub run: RunInfo,
    /// Its hints, one encoded element a block, where they are in memory and in no file yet.
    pub hints: Option<Vec<u8>>,
}

impl Done {
    /// A segment that is finished, but only in memory.
    pub(crate) fn held(range: HeightRange, finished: Finished, hints: Vec<u8>) -> Self {
        let Finished { partial, run, .. } = finished;
        let name = run_name(range);
        let run =
            RunInfo { name, bytes: run.len() as u64, sha256: [0; 32], held: Some(Arc::new(run)) };
        Self { range, partial, run, hints: Some(hints) }
    }

    /// Memory that it takes until it is stored.
    pub(crate) fn held_bytes(&self) -> u64 {
        let run = if self.run.held.is_some() { self.run.bytes } else { 0 };
        run + self.hints.as_ref().map_or(0, Vec::len) as u64
    }
}

/// A run as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunInfo {
    /// Name in the storage.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256 of all bytes, where they lie in a file.
    pub sha256: [u8; 32],
    /// The bytes themselves, where they are in memory and in no file yet.
    pub held: Option<Arc<Vec<u8>>>,
}
