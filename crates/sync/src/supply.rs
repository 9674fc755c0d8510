//! Supplies the threads that process blocks: fetches and checks each block exactly once.
//!
//! All blocks go through the walk of a [`Walker`]. A thread walks a range of heights, in the order in which the
//! source gives the blocks; [`in_order`] orders the ranges of many threads; [`ranges`] and
//! [`ranges::walk_outputs`] build on it. Only this module handles a source's mistakes: it rejects a damaged
//! copy, ignores a repeated or unrequested block, and fails if a block never arrives.

use crate::engines::mergesync::{Fingerprint, FingerprintKey, SeenBlock};
use crate::error::{InvalidBlock, InvalidError, SourceError, SyncError};
use crate::progress::{Progress, stop_if_interrupted};
use crate::request::RunEnv;
use crate::source::{BlockFetcher, BlockReply, BlockSource, ChainSource};
use apus_chain::{
    BlockBytes, BlockChecker, BlockContext, BlockError, CheckedBlock, DecodeError, HeaderChain,
    Height, HeightRange, KnownBlock, Network, Params, ReadError, ScriptVerifier,
};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

pub mod in_order;
pub mod ranges;

/// Everything that threads need to fetch and check blocks.
pub struct Supply<'a> {
    params: &'a Params,
    chain: &'a HeaderChain,
    verifier: Option<&'a dyn ScriptVerifier>,
    source: &'a dyn BlockSource,
    interrupt: &'a AtomicBool,
    /// How many threads compute at a time; the others wait for blocks.
    permits: Permits,
    /// The last block whose witnesses are not read.
    unseen: Height,
    /// Bytes of blocks that each walker requests at once if it needs them by ascending height; 0 to request them one
    /// by one.
    window_bytes: u64,
}

/// What the walkers of a source that is far away request at once, all together: enough for a fast line.
const WINDOWS_BYTES: u64 = 64 << 20;

/// The bytes that each walker requests at once. A source that is near gives a block as soon as it is needed.
fn window_bytes(source: &dyn ChainSource, threads: usize, all_bytes: u64) -> u64 {
    match source.fetchers(threads) {
        walkers if walkers > threads => all_bytes / walkers as u64,
        _ => 0,
    }
}

/// Fails on bytes after a block. Core ignores them, but a node that passes the record on would send them too.
pub fn expect_no_more(block: &BlockBytes<'_>, raw: &[u8]) -> Result<(), BlockError> {
    let offset = block.view().raw().len();
    match raw.len() - offset {
        0 => Ok(()),
        count => Err(DecodeError::Read(ReadError::Trailing { offset, count }).into()),
    }
}

impl<'a> Supply<'a> {
    /// Creates the value for a sync that does not read the witnesses of blocks up to the height `unseen`.
    pub fn of(env: &'a RunEnv<'_>, source: &'a dyn ChainSource, unseen: Height) -> Self {
        Self {
            params: env.params,
            chain: source.chain(),
            verifier: env.verifier,
            source,
            interrupt: env.interrupt,
            permits: Permits::new(env.threads),
            unseen,
            window_bytes: window_bytes(
                source,
                env.threads,
                (env.memory_bytes / 8).min(WINDOWS_BYTES),
            ),
        }
    }

    /// Creates the value for use outside a sync. The witnesses of blocks up to the height `unseen` are not
    /// read.
    pub fn new(
        (params, verifier): (&'a Params, Option<&'a dyn ScriptVerifier>),
        (source, unseen): (&'a dyn ChainSource, Height),
        threads: usize,
        interrupt: &'a AtomicBool,
    ) -> Self {
        let (chain, permits) = (source.chain(), Permits::new(threads));
        let window_bytes = window_bytes(source, threads, WINDOWS_BYTES);
        Self { params, chain, verifier, source, interrupt, permits, unseen, window_bytes }
    }

    /// A walker for one thread. It ends early once `halt` is set.
    pub fn walker<'w>(&'w self, halt: &'w AtomicBool) -> Walker<'w> {
        let (fetcher, mut checker) = (self.source.fetcher(halt), BlockChecker::new());
        checker.leave_witnesses(self.unseen);
        Walker { supply: self, fetcher, checker, halt, largest: 0 }
    }

    /// Waits for the right to compute.
    pub fn permit(&self) -> Permit<'_> {
        self.permits.take()
    }

    /// Lets another thread compute while the caller, which has the right, waits for something.
    pub(crate) fn wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.permits.give_back();
        let waited = wait();
        // A thread that holds a permit returns it.
        std::mem::forget(self.permits.take());
        waited
    }
}

/// One thread's walk over blocks.
pub struct Walker<'a> {
    supply: &'a Supply<'a>,
    fetcher: Box<dyn BlockFetcher + 'a>,
    checker: BlockChecker,
    halt: &'a AtomicBool,
    /// The bytes of the largest block of the last window.
    largest: u64,
}

/// Processes a block that has arrived: returns whether it passes its checks, and then the result.
type Look<'l> = dyn FnMut(&mut BlockChecker, &[u8], &BlockContext<'_>) -> Result<Result<(), SyncError>, BlockError>
    + 'l;

/// What an earlier walk left of the block at a height.
pub type OfBlock<'f, T> = dyn Fn(Height) -> Option<T> + 'f;

impl Walker<'_> {
    /// Passes each block of `range` to `each`, in any order. Returns `false` if it was halted early.
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

    /// Like [`take`](Self::take), but passes the blocks by ascending height. Blocks of a source that is far away are
    /// requested many at a time, and wait until it is their turn.
    pub fn take_ascending(
        &mut self,
        range: HeightRange,
        each: &mut dyn FnMut(&BlockBytes<'_>) -> Result<(), SyncError>,
    ) -> Result<bool, SyncError> {
        let mut start = range.start;
        while start < range.end {
            let window = HeightRange::new(start, self.window_end(start, range.end));
            let is_whole = match window.count() {
                1 => self.take(window, each)?,
                _ => self.take_window(window, each)?,
            };
            if !is_whole {
                return Ok(false);
            }
            start = window.end;
        }
        Ok(true)
    }

    /// Where the window that starts at a height ends: sizes are expected, and may be wrong.
    fn window_end(&self, start: Height, end: Height) -> Height {
        let (mut next, mut bytes) = (start + 1, 0);
        while next < end {
            bytes += self.supply.source.block_bytes(next).max(self.largest);
            if bytes > self.supply.window_bytes {
                break;
            }
            next += 1;
        }
        next
    }

    fn take_window(
        &mut self,
        window: HeightRange,
        each: &mut dyn FnMut(&BlockBytes<'_>) -> Result<(), SyncError>,
    ) -> Result<bool, SyncError> {
        let (mut next, mut largest, mut early) = (window.start, 0, BTreeMap::new());
        let is_whole = self.take_owned(window, &mut |block| {
            largest = block.memory_bytes().max(largest);
            early.insert(block.height(), block);
            while let Some(block) = early.remove(&next) {
                next += 1;
                each(&block.bytes())?;
            }
            Ok(())
        });
        self.largest = largest;
        is_whole
    }

    /// Like [`take`](Self::take), but passes owned blocks.
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

    /// Like [`take`](Self::take), but does not get the blocks that `waiting` has, and does not repeat the checks of
    /// blocks on the user's disk whose fingerprint was `noted` earlier ([`Fingerprint`]).
    pub fn take_again<'b>(
        &mut self,
        range: HeightRange,
        key: &FingerprintKey,
        (noted, waiting): (&OfBlock<'_, Fingerprint>, &OfBlock<'_, &'b [u8]>),
        each: &mut dyn FnMut(&SeenBlock<'_>) -> Result<(), SyncError>,
    ) -> Result<bool, SyncError> {
        let look: &mut Look<'_> = &mut |checker, raw, context| {
            let id = KnownBlock { height: context.height, hash: context.hash };
            let is_here =
                || waiting(id.height).is_some() || self.supply.source.is_on_disk(id.height);
            if let Some(noted) =
                noted(id.height).filter(|noted| *noted != Fingerprint::NONE && is_here())
            {
                let view = checker.read(raw, context)?;
                if let Some(seen) = SeenBlock::again(id, view, key, &noted) {
                    return Ok(each(&seen));
                }
            }
            // The bytes have changed, or have no fingerprint. They may still be valid, or the check finds the
            // fault.
            checker.check(raw, context).map(|block| each(&SeenBlock::checked(&block)))
        };
        let mut next = range.start;
        while next < range.end {
            let is_waiting = |height: &Height| waiting(*height).is_some();
            let end = (next..range.end).find(is_waiting).unwrap_or(range.end);
            if !self.walk(HeightRange::new(next, end), look)? {
                return Ok(false);
            }
            next = end;
            while let Some(raw) = waiting(next).filter(|_| next < range.end) {
                if self.halt.load(Ordering::Relaxed) {
                    return Ok(false);
                }
                self.look_at_waiting(next, raw, look)?;
                next += 1;
            }
        }
        Ok(true)
    }

    /// Looks at a block that waited in the work folder.
    fn look_at_waiting(
        &mut self,
        height: Height,
        raw: &[u8],
        look: &mut Look<'_>,
    ) -> Result<(), SyncError> {
        let Self { supply, checker, .. } = self;
        stop_if_interrupted(supply.interrupt)?;
        let _permit = supply.permits.take();
        let context = context(supply.params, supply.chain, supply.verifier, height);
        let hash = context.hash;
        look(checker, raw, &context).unwrap_or_else(|error| {
            Err(match error.is_damage() {
                true => {
                    let place = "the work folder".to_owned();
                    SourceError::Damaged { height, hash, place, error }.into()
                }
                false => InvalidError::InvalidBlock { height, hash, error }.into(),
            })
        })
    }

    /// Reports the lowest of several invalid blocks, after all blocks below it passed, in any order of arrival.
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
                // When halted, blocks may be missing.
                None if self.halt.load(Ordering::Relaxed) => return Ok(false),
                None if next.heights().any(|it| missing[(it - range.start) as usize]) => {
                    return Err(SourceError::Incomplete { range }.into());
                }
                None => {}
            }
        }
        failure.map_or(Ok(true), Err)
    }

    /// Takes the `missing` blocks of a range, indexed by the distance from the height `start`, up to the
    /// first that fails; returns its error.
    fn walk_once(
        &mut self,
        range: HeightRange,
        start: Height,
        missing: &mut [bool],
        look: &mut Look<'_>,
    ) -> Result<Option<SyncError>, SyncError> {
        let Self { supply, fetcher, checker, halt, .. } = self;
        let mut failure = None;
        fetcher.fetch(range, &mut |height, raw| {
            if let Err(interrupted) = stop_if_interrupted(supply.interrupt) {
                failure = Some(interrupted);
                return BlockReply::Stop;
            }
            if halt.load(Ordering::Relaxed) {
                return BlockReply::Stop;
            }
            let place = range.contains(height).then(|| (height - start) as usize);
            let Some(is_missing @ true) = place.and_then(|place| missing.get_mut(place)) else {
                return BlockReply::NotWanted;
            };
            let _permit = supply.permits.take();
            let context = context(supply.params, supply.chain, supply.verifier, height);
            let error = match look(checker, raw, &context) {
                Ok(Ok(())) => {
                    *is_missing = false;
                    return BlockReply::Yes;
                }
                Ok(Err(error)) => error,
                Err(error) if error.is_damage() => return BlockReply::Damaged(error),
                Err(error) => SyncError::Invalid(InvalidError::InvalidBlock {
                    height,
                    hash: context.hash,
                    error,
                }),
            };
            failure = Some(error);
            BlockReply::Stop
        })?;
        Ok(failure)
    }
}

/// Returns the first consecutive heights as a range.
fn next_range(mut heights: impl Iterator<Item = Height>) -> Option<HeightRange> {
    let start = heights.next()?;
    let last = heights.zip(start + 1..).take_while(|(height, next)| height == next).last();
    Some(HeightRange::new(start, last.map_or(start, |(height, _)| height) + 1))
}

/// The total work for the blocks of these heights, as far as it is known.
pub fn total(source: &dyn BlockSource, heights: impl Iterator<Item = Height> + Clone) -> Progress {
    let blocks_total = heights.clone().count() as u64;
    let sizes: u64 = heights.map(|height| source.block_bytes(height)).sum();
    match source.knows_sizes() {
        true => Progress { blocks_total, bytes_total: sizes, ..Progress::default() },
        false => Progress { blocks_total, weight_total: sizes, ..Progress::default() },
    }
}

/// The bytes of the blocks of these heights, or the source's estimate.
pub fn bytes_of(source: &dyn BlockSource, range: HeightRange) -> u64 {
    range.heights().map(|height| source.block_bytes(height)).sum()
}

/// Whether the sizes of a source's blocks are known well enough to refuse a run for lack of disk space. From peers,
/// only those of the main chain are.
pub fn predicts_sizes(source: &dyn BlockSource, params: &Params) -> bool {
    source.knows_sizes() || params.network == Network::Main
}

/// What the blocks of a range add to [`Progress::weight`].
pub fn weight_of(source: &dyn BlockSource, range: HeightRange) -> u64 {
    range.heights().map(|height| weight(source, height)).sum()
}

/// What a block adds to [`Progress::weight`].
pub fn weight(source: &dyn BlockSource, height: Height) -> u64 {
    if source.knows_sizes() { 0 } else { source.block_bytes(height) }
}

/// The context in which a block at `height` is checked.
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

// [`Permits`]: limits how many threads compute at a time, because many more wait for blocks.
//
// Many threads each request a range from peers at once, and also check the blocks that they get. A thread that
// waits for a block holds no permit, and a thread that holds a permit waits for nothing.

/// A number of permits to compute.
#[derive(Debug)]
struct Permits {
    free: Mutex<usize>,
    returned: Condvar,
}

/// A permit; dropping it returns it.
#[derive(Debug)]
pub struct Permit<'a>(&'a Permits);

impl Permits {
    /// Creates this many permits, but at least one.
    fn new(count: usize) -> Self {
        Self { free: Mutex::new(count.max(1)), returned: Condvar::new() }
    }

    /// Waits until a permit is free.
    fn take(&self) -> Permit<'_> {
        let mut free = self.free.lock();
        self.returned.wait_while(&mut free, |free| *free == 0);
        *free -= 1;
        Permit(self)
    }

    fn give_back(&self) {
        *self.free.lock() += 1;
        self.returned.notify_one();
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// Calls a function if the thread panics, so that no other thread waits for it.
pub(crate) struct OnPanic<F: Fn()>(pub(crate) F);

impl<F: Fn()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::{BlockHash, BlockLayout};
    use apus_testkit::chain::ChainBuilder;
    use bitcoin::consensus::serialize;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A source of the first block of a chain, with changed bytes.
    struct FakeSource {
        raw: Vec<u8>,
        is_on_disk: bool,
    }

    impl BlockSource for FakeSource {
        fn fetcher<'a>(&'a self, _halt: &'a AtomicBool) -> Box<dyn BlockFetcher + 'a> {
            Box::new(FakeFetcher(self))
        }

        fn is_on_disk(&self, _height: Height) -> bool {
            self.is_on_disk
        }

        fn block_bytes(&self, _height: Height) -> u64 {
            self.raw.len() as u64
        }
    }

    struct FakeFetcher<'a>(&'a FakeSource);

    impl BlockFetcher for FakeFetcher<'_> {
        fn fetch(
            &mut self,
            _want: HeightRange,
            each: &mut dyn FnMut(Height, &[u8]) -> BlockReply,
        ) -> Result<(), SourceError> {
            match each(1, &self.0.raw) {
                BlockReply::Damaged(error) => {
                    let (hash, place) = (BlockHash::ZERO, String::new());
                    Err(SourceError::Damaged { height: 1, hash, place, error })
                }
                _ => Ok(()),
            }
        }
    }

    /// A fingerprint is no proof against those who may send a block again: they could make other bytes with the same one.
    #[test]
    fn only_blocks_on_disk_are_recognised_by_their_fingerprints() {
        let (params, interrupt) = (Params::of(Network::Regtest), AtomicBool::new(false));
        let mut builder = ChainBuilder::new(9);
        builder.empty_blocks(1);
        let mut blocks: Vec<Vec<u8>> = builder.blocks().iter().map(serialize).collect();
        let headers = blocks.iter().map(|block| block.first_chunk().unwrap());
        let chain = HeaderChain::from_headers(params, 4_000_000_000, headers).unwrap();
        let mut raw = blocks.remove(1);
        let last = raw.len() - 1;
        raw[last] ^= 1;
        let key = FingerprintKey::new([7; 8]);
        let noted = key.of(&BlockLayout::new().read(&raw).unwrap());
        for is_on_disk in [true, false] {
            let source = FakeSource { raw: raw.clone(), is_on_disk };
            let supply = Supply {
                params,
                chain: &chain,
                verifier: None,
                source: &source,
                interrupt: &interrupt,
                permits: Permits::new(1),
                unseen: 0,
                window_bytes: 0,
            };
            let of_block: (&OfBlock<'_, _>, &OfBlock<'_, _>) = (&|_| Some(noted), &|_| None);
            let range = HeightRange::new(1, 2);
            let taken =
                supply.walker(&interrupt).take_again(range, &key, of_block, &mut |_| Ok(()));
            assert_eq!(taken.is_ok(), is_on_disk, "{taken:?}");
        }
    }

    #[test]
    fn no_more_threads_compute_than_permits() {
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
        assert_eq!(*permits.free.lock(), 3);
    }

    #[test]
    fn a_panicking_thread_returns_its_permit() {
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
