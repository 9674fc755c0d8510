//! Blocks for those that work on them: fetched, checked, each exactly once.
//!
//! There is one walk over blocks, a [`Walker`]'s. A thread takes a range of heights by it, in whatever
//! order the source gives them; [`in_order`] puts the ranges of many threads in order; [`ranges`] and
//! [`ranges::walk_outputs`] are uses of that. What a source is free to do wrong is dealt with here and nowhere else: a
//! damaged copy is turned down, a block that comes twice or unasked is passed over, one that never comes is
//! an error.

use crate::engines::mergesync::{Fingerprint, FingerprintKey, SeenBlock};
use crate::error::{InvalidBlock, InvalidError, SourceError, SyncError};
use crate::progress::{Progress, stop_if_interrupted};
use crate::request::RunEnv;
use crate::source::{BlockFetcher, BlockSource, ChainSource, Taken};
use apus_chain::{
    BlockBytes, BlockChecker, BlockContext, BlockError, CheckedBlock, DecodeError, HeaderChain,
    Height, HeightRange, KnownBlock, Params, ReadError, ScriptVerifier,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub mod in_order;
pub mod ranges;

/// What threads need to fetch and check blocks.
pub struct Supply<'a> {
    params: &'a Params,
    chain: &'a HeaderChain,
    verifier: Option<&'a dyn ScriptVerifier>,
    source: &'a dyn BlockSource,
    interrupt: &'a AtomicBool,
    /// How many threads compute at a time; the others wait for blocks.
    permits: Permits,
    /// The last block whose witnesses are left alone.
    unseen: Height,
}

/// Bytes behind a block are passed over, as in Core; a node that hands the record on would send them as well.
pub fn expect_no_more(block: &BlockBytes<'_>, raw: &[u8]) -> Result<(), BlockError> {
    let offset = block.view().raw().len();
    match raw.len() - offset {
        0 => Ok(()),
        count => Err(DecodeError::Read(ReadError::Trailing { offset, count }).into()),
    }
}

impl<'a> Supply<'a> {
    /// For a run that leaves the witnesses of blocks up to the height `unseen` alone.
    pub fn of(env: &'a RunEnv<'_>, source: &'a dyn ChainSource, unseen: Height) -> Self {
        Self {
            params: env.params,
            chain: source.chain(),
            verifier: env.verifier,
            source,
            interrupt: env.interrupt,
            permits: Permits::new(env.threads),
            unseen,
        }
    }

    /// Where there is no run: blocks are taken for one elsewhere, which leaves the witnesses of those up to the
    /// height `unseen` alone.
    pub fn new(
        (params, verifier): (&'a Params, Option<&'a dyn ScriptVerifier>),
        (source, unseen): (&'a dyn ChainSource, Height),
        threads: usize,
        interrupt: &'a AtomicBool,
    ) -> Self {
        let (chain, permits) = (source.chain(), Permits::new(threads));
        Self { params, chain, verifier, source, interrupt, permits, unseen }
    }

    /// A thread's own way to the blocks. Once `halt` is set it ends early.
    pub fn walker<'w>(&'w self, halt: &'w AtomicBool) -> Walker<'w> {
        let (fetcher, mut checker) = (self.source.fetcher(halt), BlockChecker::new());
        checker.leave_witnesses(self.unseen);
        Walker { supply: self, fetcher, checker, halt }
    }

    /// The right to compute, once it is free.
    pub fn permit(&self) -> Permit<'_> {
        self.permits.take()
    }
}

/// One thread's walk over blocks.
pub struct Walker<'a> {
    supply: &'a Supply<'a>,
    fetcher: Box<dyn BlockFetcher + 'a>,
    checker: BlockChecker,
    halt: &'a AtomicBool,
}

/// What is done with a block that came: whether it passes its checks, and then what comes of it.
type Look<'l> = dyn FnMut(&mut BlockChecker, &[u8], &BlockContext<'_>) -> Result<Result<(), SyncError>, BlockError>
    + 'l;

impl Walker<'_> {
    /// Gives each block of `range` to `each`, in any order. Whether all came; if not, it was halted.
    pub fn take(
        &mut self,
        range: HeightRange,
        each: &mut dyn FnMut(&BlockBytes<'_>) -> Result<(), SyncError>,
    ) -> Result<bool, SyncError> {
        let exact = self.supply.source.is_exact();
        self.walk(range, &mut |checker, raw, context| {
            let block = checker.check(raw, context)?;
            if exact {
                expect_no_more(&block, raw)?;
            }
            Ok(each(&block))
        })
    }

    /// The same, with blocks that last.
    pub fn take_owned(
        &mut self,
        range: HeightRange,
        each: &mut dyn FnMut(CheckedBlock) -> Result<(), SyncError>,
    ) -> Result<bool, SyncError> {
        self.walk(range, &mut |checker, raw, context| {
            let checked = checker.check_owned(raw.to_vec(), context);
            checked.map(&mut *each).map_err(|(_, error)| error)
        })
    }

    /// The same without a check of bytes whose fingerprint was `noted` when they were checked.
    pub fn take_again(
        &mut self,
        range: HeightRange,
        key: &FingerprintKey,
        noted: &dyn Fn(Height) -> Option<Fingerprint>,
        each: &mut dyn FnMut(&SeenBlock<'_>) -> Result<(), SyncError>,
    ) -> Result<bool, SyncError> {
        self.walk(range, &mut |checker, raw, context| {
            let id = KnownBlock { height: context.height, hash: context.hash };
            if let Some(noted) = noted(id.height).filter(|noted| *noted != Fingerprint::NONE) {
                let view = checker.read(raw, context)?;
                if let Some(seen) = SeenBlock::again(id, view, key, &noted) {
                    return Ok(each(&seen));
                }
            }
            // Other bytes than they were, or it was not noted which. They may be good all the same, or tell what is wrong.
            checker.check(raw, context).map(|block| each(&SeenBlock::checked(&block)))
        })
    }

    /// Of blocks that are invalid the lowest is told, and all below it passed, in whatever order they come.
    fn walk(&mut self, range: HeightRange, look: &mut Look<'_>) -> Result<bool, SyncError> {
        let mut missing = vec![true; range.count() as usize];
        let mut failure = None;
        let mut end = range.end;
        loop {
            let below = (range.start..end).filter(|it| missing[(it - range.start) as usize]);
            let Some(next) = next_range(below) else { break };
            match self.walk_once(next, range.start, &mut missing, look)? {
                Some(error) => {
                    let Some(invalid) = InvalidBlock::of(&error) else { return Err(error) };
                    end = invalid.block.height.min(end - 1);
                    failure = Some(error);
                }
                // The blocks need not be whole.
                None if self.halt.load(Ordering::Relaxed) => return Ok(false),
                None if next.heights().any(|it| missing[(it - range.start) as usize]) => {
                    return Err(SourceError::Incomplete { range }.into());
                }
                None => {}
            }
        }
        failure.map_or(Ok(true), Err)
    }

    /// Takes the blocks of a range that are `missing`, by their distance from the height `start`, up to the first that
    /// fails: its error.
    fn walk_once(
        &mut self,
        range: HeightRange,
        start: Height,
        missing: &mut [bool],
        look: &mut Look<'_>,
    ) -> Result<Option<SyncError>, SyncError> {
        let Self { supply, fetcher, checker, halt } = self;
        let mut failure = None;
        fetcher.fetch(range, &mut |height, raw| {
            if let Err(interrupted) = stop_if_interrupted(supply.interrupt) {
                failure = Some(interrupted);
                return Taken::Stop;
            }
            if halt.load(Ordering::Relaxed) {
                return Taken::Stop;
            }
            let place = range.contains(height).then(|| (height - start) as usize);
            let Some(is_missing @ true) = place.and_then(|place| missing.get_mut(place)) else {
                return Taken::NotWanted;
            };
            let _permit = supply.permits.take();
            let context = context(supply.params, supply.chain, supply.verifier, height);
            let error = match look(checker, raw, &context) {
                Ok(Ok(())) => {
                    *is_missing = false;
                    return Taken::Yes;
                }
                Ok(Err(error)) => error,
                Err(error) if error.is_damage() => return Taken::Damaged(error),
                Err(error) => SyncError::Invalid(InvalidError::InvalidBlock {
                    height,
                    hash: context.hash,
                    error,
                }),
            };
            failure = Some(error);
            Taken::Stop
        })?;
        Ok(failure)
    }
}

/// The first heights that follow each other.
fn next_range(mut heights: impl Iterator<Item = Height>) -> Option<HeightRange> {
    let start = heights.next()?;
    let last = heights.zip(start + 1..).take_while(|(height, next)| height == next).last();
    Some(HeightRange::new(start, last.map_or(start, |(height, _)| height) + 1))
}

/// How much there is to be done where the blocks of these heights are taken, as far as it is known.
pub fn total(source: &dyn BlockSource, heights: impl Iterator<Item = Height> + Clone) -> Progress {
    let blocks_total = heights.clone().count() as u64;
    let sizes: u64 = heights.map(|height| source.block_bytes(height)).sum();
    match source.knows_sizes() {
        true => Progress { blocks_total, bytes_total: sizes, ..Progress::default() },
        false => Progress { blocks_total, weight_total: sizes, ..Progress::default() },
    }
}

/// What the blocks of a range add to [`Progress::weight`].
pub fn weight_of(source: &dyn BlockSource, range: HeightRange) -> u64 {
    range.heights().map(|height| weight(source, height)).sum()
}

/// What a block adds to [`Progress::weight`].
pub fn weight(source: &dyn BlockSource, height: Height) -> u64 {
    if source.knows_sizes() { 0 } else { source.block_bytes(height) }
}

/// What a block at `height` is checked against.
pub fn context<'a>(
    params: &'a Params,
    chain: &HeaderChain,
    verifier: Option<&'a dyn ScriptVerifier>,
    height: Height,
) -> BlockContext<'a> {
    let before = height.saturating_sub(1);
    BlockContext {
        params,
        height,
        hash: chain.hash(height).copied().unwrap_or_default(),
        median_time_past: chain.median_time_past(before).unwrap_or_default(),
        verifier,
    }
}

// [`Permits`]: how many threads may compute at a time, where more of them wait for blocks.
//
// Peers are asked for many ranges at once, each by a thread of its own, and each checks the
// blocks that it gets. A thread that waits for a block holds no permit, and one that holds a
// permit waits for nothing.

/// A number of permits. See the module.
#[derive(Debug)]
struct Permits {
    free: Mutex<usize>,
    returned: Condvar,
}

/// A permit; it is given back when it is dropped.
#[derive(Debug)]
pub struct Permit<'a>(&'a Permits);

impl Permits {
    /// So many, and one at least.
    fn new(count: usize) -> Self {
        Self { free: Mutex::new(count.max(1)), returned: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until one is free.
    fn take(&self) -> Permit<'_> {
        let none = |free: &mut usize| *free == 0;
        let waited = self.returned.wait_while(self.lock(), none);
        *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
        Permit(self)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.0.lock() += 1;
        self.0.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn so_many_at_a_time() {
        let (permits, now, most) = (Permits::new(3), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _permit = permits.take();
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        now.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(most.load(Ordering::SeqCst) <= 3);
        assert_eq!(*permits.lock(), 3);
    }

    #[test]
    fn one_that_panicked_gives_its_permit_back() {
        let permits = Permits::new(1);
        let panicked = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _permit = permits.take();
                panic!("on purpose");
            });
            thread.join().is_err()
        });
        assert!(panicked);
        drop(permits.take());
    }
}
