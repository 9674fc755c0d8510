//! Fetches blocks that an output needs and that no start kept: they are checked like all others, and only the
//! source keeps them.

use crate::error::SyncError;
use crate::progress::{Event, PROGRESS_INTERVAL, Phase, Progress};
use crate::request::RunEnv;
use crate::source::ChainSource;
use crate::supply::Supply;
use crate::supply::in_order::{InOrder, by_checking, take_in_order};
use apus_chain::{
    BlockBytes, CheckedBlock, Height, HeightRange, Params, ScriptVerifier, is_unspendable,
};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Fetches and checks the `missing` blocks, which ascend, from `source`, as a separate phase.
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

/// Like [`take_missing`], but within the caller's phase. Returns the number of bytes.
pub fn take_ranges(
    phase: Phase,
    env: &RunEnv<'_>,
    source: &dyn ChainSource,
    missing: &[HeightRange],
) -> Result<u64, SyncError> {
    take_each(phase, env, source, missing, &drop, &mut |()| ())
}

/// Fetches and checks the blocks of `ranges`, which ascend, within a phase. Calls `of` on each block on a
/// worker thread, and passes the result to `each`. Returns the number of bytes.
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
    let mut taker = RangeTaker { phase, env, source, progress, reported_at: Instant::now() };
    let taken = ranges.iter().try_for_each(|range| taker.take(*range, of, each));
    // Blocks that arrived must not be fetched again.
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
    reported_at: Instant,
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
            if self.reported_at.elapsed() >= PROGRESS_INTERVAL {
                self.reported_at = Instant::now();
                self.env.observer.event(Event::Progress(self.phase, self.progress));
            }
        }
        Ok(())
    }
}

// The outputs of each block of a chain, in ascending height: needed to convert between hints that count all
// outputs and hints that count spendable ones.

/// Bytes of blocks read ahead.
const BYTES_AHEAD: u64 = 16 << 20;

/// The outputs of one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputsOfBlock {
    /// The block's height.
    pub height: Height,
    /// In block order, whether each output can be a coin.
    pub spendable: Vec<bool>,
    /// Whether the coinbase is one of the two that a later one overwrote (BIP-30).
    pub coinbase_overwritten: bool,
}

/// Passes the outputs of the blocks of `heights` to `each`, in ascending height. Checks every block.
pub fn walk_outputs(
    params: &Params,
    source: &dyn ChainSource,
    verifier: Option<&dyn ScriptVerifier>,
    heights: HeightRange,
    each: &mut dyn FnMut(OutputsOfBlock) -> Result<(), SyncError>,
) -> Result<(), SyncError> {
    let never = AtomicBool::new(false);
    let supply = Supply::new((params, verifier), (source, 0), 1, &never);
    let of = |block: CheckedBlock| {
        let bytes = block.bytes().view().raw().len() as u64;
        (outputs(params, &block.bytes()), bytes)
    };
    InOrder::new(heights, BYTES_AHEAD).run(&supply, 1, &by_checking(&of), |ahead| {
        while let Some((_, (outputs, _))) = ahead.next()? {
            each(outputs)?;
        }
        Ok(())
    })
}

fn outputs(params: &Params, block: &BlockBytes<'_>) -> OutputsOfBlock {
    let overwritten = params.is_bip30_unspendable(block.height(), &block.hash());
    let spendable = block
        .view()
        .txs()
        .enumerate()
        .flat_map(|(place, tx)| {
            let lost = place == 0 && overwritten;
            tx.outputs().map(move |output| !lost && !is_unspendable(output.script()))
        })
        .collect();
    OutputsOfBlock { height: block.height(), spendable, coinbase_overwritten: overwritten }
}
