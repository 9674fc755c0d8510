//! Blocks that an output needs and that no start kept: they are asked for, checked like all others,
//! and go to the source alone.

use super::in_order::{InOrder, take_in_order};
use crate::error::SyncError;
use crate::progress::{Event, PROGRESS_INTERVAL, Phase, Progress};
use crate::request::RunEnv;
use crate::source::ChainSource;
use apus_chain::{CheckedBlock, HeightRange};
use std::time::Instant;

/// Gets and checks the blocks of `missing`, which ascend, from `source`, as a phase of its own.
pub fn take_missing(
    env: &RunEnv<'_>,
    source: &dyn ChainSource,
    missing: &[HeightRange],
) -> Result<(), SyncError> {
    if missing.is_empty() {
        return Ok(());
    }
    let phase = Phase::Blocks;
    env.observer.event(Event::Started(phase));
    let bytes = take_ranges(phase, env, source, missing)?;
    env.observer.event(Event::Ended { phase, bytes });
    Ok(())
}

/// The same within a phase. How many bytes there were.
pub fn take_ranges(
    phase: Phase,
    env: &RunEnv<'_>,
    source: &dyn ChainSource,
    missing: &[HeightRange],
) -> Result<u64, SyncError> {
    take_each(phase, env, source, missing, &drop, &mut |()| ())
}

/// Gets and checks the blocks of `ranges`, which ascend, within a phase, and gives what `of` makes of each
/// on a worker's thread to `each`. How many bytes there were.
pub fn take_each<T: Send>(
    phase: Phase,
    env: &RunEnv<'_>,
    source: &dyn ChainSource,
    ranges: &[HeightRange],
    of: &(dyn Fn(CheckedBlock) -> T + Sync),
    each: &mut dyn FnMut(T),
) -> Result<u64, SyncError> {
    if ranges.is_empty() {
        return Ok(0);
    }
    let total = ranges.iter().map(|range| u64::from(range.count())).sum();
    let progress = Progress { blocks_total: total, ..Progress::default() };
    let mut taker = RangeTaker { phase, env, source, progress, told_at: Instant::now() };
    let taken = ranges.iter().try_for_each(|range| taker.take(*range, of, each));
    // What came is not to be asked for once more.
    let kept = source.sync();
    taken.and(kept)?;
    env.observer.event(Event::Progress(phase, taker.progress));
    Ok(taker.progress.bytes)
}

struct RangeTaker<'a> {
    phase: Phase,
    env: &'a RunEnv<'a>,
    source: &'a dyn ChainSource,
    progress: Progress,
    told_at: Instant,
}

impl RangeTaker<'_> {
    fn take<T: Send>(
        &mut self,
        range: HeightRange,
        of: &(dyn Fn(CheckedBlock) -> T + Sync),
        each: &mut dyn FnMut(T),
    ) -> Result<(), SyncError> {
        let (env, source) = (self.env, self.source);
        let with_bytes = |block: CheckedBlock| {
            let bytes = block.bytes().view().raw().len() as u64;
            (of(block), bytes)
        };
        take_in_order(env, source, (range, 0), &with_bytes, |ahead| self.take_all(ahead, each))
    }

    fn take_all<T: Send>(
        &mut self,
        ahead: &InOrder<(T, u64)>,
        each: &mut dyn FnMut(T),
    ) -> Result<(), SyncError> {
        while let Some((_, (block, bytes))) = ahead.next()? {
            each(block);
            self.progress.blocks += 1;
            self.progress.bytes += bytes;
            if self.told_at.elapsed() >= PROGRESS_INTERVAL {
                self.told_at = Instant::now();
                self.env.observer.event(Event::Progress(self.phase, self.progress));
            }
        }
        Ok(())
    }
}
