//! [`StoredLeaves`]: leaves that segments hashed, of which each tells how many it adds and which survive.
//!
//! Where a segment's first leaf lies follows from the numbers of those below it; from then on segments are
//! independent.

use super::{ForestParts, Growing, Sprout};
use crate::engines::pass::RunKind;
use crate::engines::swiftsync::Partial;
use crate::error::{IoError, SyncError};
use crate::workdir::{FinishedRange, RunInfo, Workdir};
use apus_utreexo::{Fragment, LiveLeaf, read_live};

/// See the module.
pub struct StoredLeaves<'w> {
    workdir: &'w Workdir<'w>,
    /// By ascending height.
    segments: Vec<LeafSegment>,
}

/// What a segment adds to the forest.
struct LeafSegment {
    /// Its first leaf.
    first: u64,
    /// How many leaves.
    count: u64,
    /// Those that survive.
    run: RunInfo,
}

impl<'w> StoredLeaves<'w> {
    /// Those of all segments.
    pub fn of(workdir: &'w Workdir<'w>, done: &[FinishedRange<Partial>]) -> Self {
        let mut done: Vec<&FinishedRange<Partial>> = done.iter().collect();
        done.sort_unstable_by_key(|done| done.range.start);
        let mut next = 0u64;
        let leaves = |done: &FinishedRange<Partial>| {
            let (run, first, count) =
                (done.run(RunKind::Leaves)?.clone(), next, done.partial.leaves);
            next = next.saturating_add(count);
            Some(LeafSegment { first, count, run })
        };
        let segments = done.into_iter().filter_map(leaves).collect();
        Self { workdir, segments }
    }
}

impl ForestParts for StoredLeaves<'_> {
    fn count(&self) -> usize {
        self.segments.len()
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.run.bytes).sum()
    }

    fn fragment(&self, part: usize, growing: &Growing<'_>) -> Result<Fragment, SyncError> {
        let LeafSegment { first, count, run } = &self.segments[part];
        let damaged = || {
            let file = self.workdir.storage().describe(&run.name);
            SyncError::Io(IoError::RunDamaged { run: run.name.clone(), file })
        };
        let bytes = self.workdir.read_run(run)?;
        let mut sprout = Sprout::new(growing, *first)?;
        for leaf in read_live(&bytes) {
            let LiveLeaf { place, hash } = leaf.ok_or_else(damaged)?;
            let place = first.checked_add(place).ok_or_else(damaged)?;
            if !sprout.take(LiveLeaf { place, hash })? {
                return Err(damaged());
            }
        }
        let fragment = sprout.finish(first.saturating_add(*count), run.bytes)?;
        fragment.ok_or_else(damaged)
    }
}
