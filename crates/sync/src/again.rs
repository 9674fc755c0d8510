//! Blocks that an output needs and that no start kept: they are asked for, checked like all others,
//! and go to nobody but the source.

use crate::ahead::{Ahead, take_ahead};
use crate::error::SyncError;
use crate::progress::{Event, Phase, Progress};
use crate::run::Request;
use crate::source::ChainSource;
use apus_chain::{Height, HeightRange};
use std::time::{Duration, Instant};

/// How often progress is told.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Heights that are missing, as ranges; where two of them lie this close, the blocks between are
/// taken as well.
const GAP_MAX: Height = 16;

/// Puts ascending heights together.
pub(crate) fn ranges(heights: impl IntoIterator<Item = Height>) -> Vec<HeightRange> {
    let mut ranges: Vec<HeightRange> = Vec::new();
    for height in heights {
        match ranges.last_mut() {
            Some(last) if height < last.end.saturating_add(GAP_MAX) => last.end = height + 1,
            _ => ranges.push(HeightRange::new(height, height + 1)),
        }
    }
    ranges
}

/// Gets and checks the blocks of `missing`, which ascend, from `source`, as a phase of its own.
pub(crate) fn take_again(
    request: &Request<'_>,
    source: &dyn ChainSource,
    missing: &[HeightRange],
) -> Result<(), SyncError> {
    if missing.is_empty() {
        return Ok(());
    }
    let phase = Phase::Blocks;
    request.observer.event(Event::Started(phase));
    let bytes = take_within(phase, request, source, missing)?;
    request.observer.event(Event::Ended { phase, bytes });
    Ok(())
}

/// The same within a phase. How many bytes there were.
pub(crate) fn take_within(
    phase: Phase,
    request: &Request<'_>,
    source: &dyn ChainSource,
    missing: &[HeightRange],
) -> Result<u64, SyncError> {
    if missing.is_empty() {
        return Ok(0);
    }
    let total = missing.iter().map(|range| u64::from(range.count())).sum();
    let progress = Progress { blocks_total: total, ..Progress::default() };
    let mut taker = Taker { phase, request, source, progress, told_at: Instant::now() };
    let taken = missing.iter().try_for_each(|range| taker.take(*range));
    // What came is not to be asked for once more.
    let kept = source.sync();
    taken.and(kept)?;
    request.observer.event(Event::Progress(phase, taker.progress));
    Ok(taker.progress.bytes)
}

struct Taker<'a> {
    phase: Phase,
    request: &'a Request<'a>,
    source: &'a dyn ChainSource,
    progress: Progress,
    told_at: Instant,
}

impl Taker<'_> {
    fn take(&mut self, range: HeightRange) -> Result<(), SyncError> {
        let request = self.request;
        let bytes_of = |block: apus_chain::CheckedBlock| block.bytes().view().raw().len() as u64;
        let source = self.source;
        take_ahead(request, source, range, &bytes_of, |ahead| self.take_all(ahead))
    }

    fn take_all(&mut self, ahead: &Ahead<u64>) -> Result<(), SyncError> {
        while let Some((_, bytes)) = ahead.next()? {
            self.progress.blocks += 1;
            self.progress.bytes += bytes;
            if self.told_at.elapsed() >= PROGRESS_INTERVAL {
                self.told_at = Instant::now();
                self.request.observer.event(Event::Progress(self.phase, self.progress));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_that_lie_close_are_one_range() {
        assert_eq!(ranges([]), []);
        let found = ranges([1, 2, 3, 10, 26, 42, 59, 1000]);
        let expected = [(1, 43), (59, 60), (1000, 1001)];
        assert_eq!(found, expected.map(|(start, end)| HeightRange::new(start, end)));
    }
}
