//! [`StoredHashes`]: hashes that segments stored. Each segment also stores how many outputs it numbers.
//!
//! A segment's first place is the sum of the counts of the segments below it; given that, segments are
//! independent.

use super::{AscendingHashes, EachHash, HashParts, PlacedHash, read_placed};
use crate::engines::swiftsync::{Partial, SwiftSync};
use crate::error::{IoError, SyncError};
use crate::workdir::{FinishedRange, RunInfo, Workdir};
use core::ops::Range;

/// The hashes of surviving coins, as the segments stored them.
pub(crate) struct StoredHashes<'w> {
    workdir: &'w Workdir<'w>,
    /// For each segment, by ascending height: its places, and the hashes of its surviving coins.
    segments: Vec<(Range<u64>, RunInfo)>,
}

impl<'w> StoredHashes<'w> {
    /// Collects the hashes of all segments.
    pub(crate) fn of(workdir: &'w Workdir<'w>, done: &[FinishedRange<Partial>]) -> Self {
        let mut done: Vec<&FinishedRange<Partial>> = done.iter().collect();
        done.sort_unstable_by_key(|done| done.range.start);
        let mut next = 0u64;
        let hashes = |done: &FinishedRange<Partial>| {
            let (run, first) = (done.run(SwiftSync::HASHES)?.clone(), next);
            next = next.saturating_add(done.partial.numbered);
            Some((first..next, run))
        };
        let segments = done.into_iter().filter_map(hashes).collect();
        Self { workdir, segments }
    }
}

impl HashParts for StoredHashes<'_> {
    fn count(&self) -> usize {
        self.segments.len()
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|(_, run)| run.bytes).sum()
    }

    fn places(&self, part: usize) -> Range<u64> {
        self.segments[part].0.clone()
    }

    fn part(&self, part: usize, each: &mut EachHash<'_>) -> Result<u64, SyncError> {
        let (Range { start, end }, run) = &self.segments[part];
        let damaged = || {
            let file = self.workdir.storage().describe(&run.name);
            SyncError::Io(IoError::RunDamaged { run: run.name.clone(), file })
        };
        let bytes = self.workdir.read_run(run)?;
        let mut ascending = AscendingHashes { free: *start, end: *end, each };
        for placed in read_placed(&bytes) {
            let PlacedHash { place, hash } = placed.ok_or_else(damaged)?;
            let place = start.checked_add(place).ok_or_else(damaged)?;
            if !ascending.take(PlacedHash { place, hash })? {
                return Err(damaged());
            }
        }
        Ok(run.bytes)
    }
}
