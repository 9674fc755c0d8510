//! [`Threads`]: processes the segments of a pass on threads of this process.
//!
//! Each worker claims a segment, walks over its blocks and feeds the pass. If a source wants more workers than there
//! are threads, several fill one segment, piece by piece, so that fewer and longer segments are in memory.
//!
//! How much memory a segment takes depends on what its blocks contain. A segment that is expected to take more than
//! its share is cut: before it begins or, if several workers fill it, between pieces.
//!
//! After a failure no segment begins, and the workers end once all lower blocks are processed: the lowest failure is
//! reported, whichever comes first.
//!
//! A finished segment goes through a bounded channel to the calling thread. The channel provides back-pressure: a
//! slow disk stalls the workers.

use crate::engines::pass::{FinishedSegment, PartialResult, Pass, Work};
use crate::error::{IoError, SyncError};
use crate::pass::{
    Counters, Dispatch, PassJob, Take, open_bytes_max, open_bytes_min, segments_bytes,
};
use crate::progress::{Event, PROGRESS_INTERVAL, SegmentState};
use crate::source::ChainSource;
use crate::supply::{OnPanic, Supply, Walker, weight};
use crate::workdir::FinishedRange;
use apus_chain::{BlockBytes, Height, HeightRange};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};

/// A dispatch to as many threads as the request and the source want.
pub struct Threads;

/// State shared by the workers.
struct SegmentQueue<'a, P: Pass> {
    job: &'a PassJob<'a, P>,
    claims: Mutex<Claims<P::Segment>>,
    /// Signalled when a segment is finished.
    finished: Condvar,
    /// Whether several workers fill a segment.
    several: bool,
    /// The number of segments that may be in memory, and the memory at which one is cut.
    open_max: usize,
    bytes_max: u64,
    /// The memory that a segment takes for each byte of its blocks, in 256ths.
    density: AtomicU64,
    halt: AtomicBool,
    supply: Supply<'a>,
    counters: &'a Counters,
}

/// What workers have claimed.
struct Claims<S> {
    /// Segments that no worker has claimed, the lowest last.
    todo: Vec<HeightRange>,
    /// The segment with unclaimed heights, and these.
    last: Option<(Arc<OpenSegment<S>>, HeightRange)>,
    /// The number of segments in memory.
    open: usize,
    /// The pieces that workers process.
    under_way: Vec<HeightRange>,
    /// The lowest piece that failed, even if another failed first.
    failure: Option<(HeightRange, SyncError)>,
}

impl<S> Claims<S> {
    /// Keeps the error if no lower piece has failed.
    fn fail(&mut self, range: HeightRange, error: SyncError) {
        if self.failure.as_ref().is_none_or(|(lowest, _)| range < *lowest) {
            self.failure = Some((range, error));
        }
    }
}

/// A segment that workers fill.
struct OpenSegment<S> {
    range: HeightRange,
    /// The segment, from its first block until it is finished.
    segment: Mutex<Option<S>>,
    /// The first height that is not claimed.
    end: AtomicU32,
    /// The number of its pieces that are claimed, but not done.
    pieces: AtomicUsize,
    /// Its memory before the first block, and now, in bytes.
    empty: AtomicU64,
    memory: AtomicU64,
    /// The bytes of claimed blocks, and of blocks that have arrived.
    claimed: AtomicU64,
    arrived: AtomicU64,
}

impl<S> OpenSegment<S> {
    fn new(range: HeightRange) -> Self {
        Self {
            range,
            segment: Mutex::new(None),
            end: AtomicU32::new(range.start),
            pieces: AtomicUsize::new(0),
            empty: AtomicU64::new(0),
            memory: AtomicU64::new(0),
            claimed: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
        }
    }
}

impl<P: Pass> Dispatch<P> for Threads
where
    SyncError: From<P::Error>,
{
    fn run(
        &self,
        job: &PassJob<'_, P>,
        todo: &[HeightRange],
        counters: &Counters,
        take: &mut Take<'_, P>,
    ) -> Result<(), SyncError> {
        let threads = job.request.env.threads;
        let shared = SegmentQueue::new(job, todo, counters);
        let workers = job.source.fetchers(threads);
        let workers = if shared.several { workers } else { workers.min(todo.len()) };
        std::thread::scope(|scope| {
            let (send, receive) = sync_channel::<FinishedRange<P::Partial>>(threads / 2);
            for index in 0..workers {
                let (send, shared) = (send.clone(), &shared);
                let spawned = std::thread::Builder::new()
                    .name(format!("blocks-{index}"))
                    .spawn_scoped(scope, move || shared.work(&send));
                if let Err(error) = spawned {
                    shared.end(SyncError::Io(IoError::Threads { wanted: workers, error }));
                    break;
                }
            }
            drop(send);
            loop {
                let done = match receive.recv_timeout(PROGRESS_INTERVAL) {
                    Ok(done) => Some(done),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => break,
                };
                take(done).unwrap_or_else(|error| shared.end(error));
            }
            let failure = shared.claims.lock().failure.take();
            failure.map_or_else(|| take(None), |(_, error)| Err(error))
        })
    }
}

impl<'a, P: Pass> SegmentQueue<'a, P>
where
    SyncError: From<P::Error>,
{
    fn new(job: &'a PassJob<'a, P>, todo: &[HeightRange], counters: &'a Counters) -> Self {
        let env = &job.request.env;
        let open_max = open_max::<P>(job.source, env.threads);
        let todo = todo.iter().rev().copied().collect();
        Self {
            job,
            claims: Mutex::new(Claims {
                todo,
                last: None,
                open: 0,
                under_way: Vec::new(),
                failure: None,
            }),
            finished: Condvar::new(),
            several: is_filled_by_several::<P>(job.source, env.threads),
            open_max,
            bytes_max: open_bytes_max(segments_bytes(env, job.source), open_max as u64),
            density: AtomicU64::new(DENSITY_AT_FIRST),
            halt: AtomicBool::new(false),
            supply: Supply::of(env, job.source, job.unseen),
            counters,
        }
    }

    /// Whether workers are to end: then some segments are never finished.
    fn is_halted(&self) -> bool {
        let interrupt = self.job.request.env.interrupt;
        self.halt.load(Ordering::Relaxed) || interrupt.load(Ordering::Relaxed)
    }

    /// Ends all workers, whatever they process, with this error.
    fn end(&self, error: SyncError) {
        self.halt.store(true, Ordering::Relaxed);
        self.claims.lock().fail(HeightRange::new(0, 0), error);
    }

    /// Runs one worker.
    fn work(&self, send: &SyncSender<FinishedRange<P::Partial>>) {
        let _guard = OnPanic(|| self.halt.store(true, Ordering::Relaxed));
        let mut walker = self.supply.walker(&self.halt);
        while let Some((open, piece)) = self.claim() {
            let filled = match self.fill(&open, piece, &mut walker) {
                Err(SyncError::Interrupted) => return,
                filled => self.release(piece, filled),
            };
            let Some(done) = filled else { continue };
            if send.send(done).is_err() {
                return;
            }
            // Until it is taken, a finished segment needs memory, too.
            self.claims.lock().open -= 1;
            self.finished.notify_all();
        }
    }

    /// Releases a piece that ended. After a failure, ends all workers once no lower piece is under way.
    fn release<T>(&self, piece: HeightRange, filled: Result<Option<T>, SyncError>) -> Option<T> {
        let mut claims = self.claims.lock();
        claims.under_way.retain(|other| *other != piece);
        let done = filled.unwrap_or_else(|error| {
            claims.fail(piece, error);
            None
        });
        if let Some((lowest, _)) = &claims.failure
            && claims.under_way.iter().all(|other| other > lowest)
        {
            self.halt.store(true, Ordering::Relaxed);
        }
        done
    }

    /// Claims the next piece. Waits while as many segments as possible are in memory; returns `None` if no piece is
    /// left, if one failed, or if it was halted.
    fn claim(&self) -> Option<(Arc<OpenSegment<P::Segment>>, HeightRange)> {
        let mut claims = self.claims.lock();
        loop {
            // The worker that ended the last piece has left a segment without pieces to the next ones.
            let is_filled =
                |(open, _): &(Arc<OpenSegment<_>>, _)| open.pieces.load(Ordering::Relaxed) > 0;
            if self.several && claims.last.as_ref().is_some_and(is_filled) {
                self.cut(&mut claims);
            }
            // All pieces that are left are above the one that failed.
            if self.is_halted() || claims.failure.is_some() {
                return None;
            }
            if claims.last.is_some() {
                break;
            }
            let range = *claims.todo.last()?;
            if claims.open < self.open_max {
                if self.job.limit.is_some_and(|limit| !limit.admits(range)) {
                    return None;
                }
                claims.todo.pop();
                claims.open += 1;
                let range = match P::CAN_END_EARLY && !self.several {
                    true => self.split_to_fit(range, &mut claims.todo),
                    false => range,
                };
                claims.last = Some((Arc::new(OpenSegment::new(range)), range));
            } else {
                self.finished.wait_for(&mut claims, PROGRESS_INTERVAL);
            }
        }
        let (open, rest) = claims.last.take()?;
        let (piece, bytes) = match self.several {
            true => first_part(self.job.source, rest, PIECE),
            false => (rest, 0),
        };
        open.pieces.fetch_add(1, Ordering::Relaxed);
        open.claimed.fetch_add(bytes, Ordering::Relaxed);
        open.end.store(piece.end, Ordering::Relaxed);
        claims.under_way.push(piece);
        if piece.end == rest.end && claims.todo.is_empty() {
            self.job.pass.has_begun_all();
        } else if piece.end < rest.end {
            claims.last = Some((Arc::clone(&open), HeightRange::new(piece.end, rest.end)));
        }
        Some((open, piece))
    }

    /// Splits off the first part of a segment that is expected to fit into its share of the memory. The rest becomes
    /// the next segment.
    fn split_to_fit(&self, range: HeightRange, todo: &mut Vec<HeightRange>) -> HeightRange {
        // With little memory, planned segments are longer than `bytes_max`.
        let bytes_max = self.bytes_max.max(open_bytes_min(self.open_max as u64));
        let most = bytes_max.saturating_mul(256) / self.density.load(Ordering::Relaxed).max(1);
        let (first, _) = first_part(self.job.source, range, (most, 1));
        if first.end < range.end {
            todo.push(HeightRange::new(first.end, range.end));
        }
        first
    }

    /// Leaves the unclaimed heights of a segment to another one if the claimed ones are expected to take too much
    /// memory. Returns whether the segment has no unclaimed heights now.
    fn cut(&self, claims: &mut Claims<P::Segment>) -> bool {
        let Some((open, rest)) = &claims.last else { return true };
        let [claimed, arrived, memory] =
            [&open.claimed, &open.arrived, &open.memory].map(|it| it.load(Ordering::Relaxed));
        let density = self.density.load(Ordering::Relaxed);
        let to_come = claimed.saturating_sub(arrived).saturating_mul(density) / 256;
        let is_full = memory.saturating_add(to_come) >= self.bytes_max;
        if is_full {
            claims.todo.push(*rest);
            claims.last = None;
        }
        is_full
    }

    /// Passes the blocks of a piece to its segment. Returns the segment if it is finished then.
    fn fill(
        &self,
        open: &Arc<OpenSegment<P::Segment>>,
        piece: HeightRange,
        walker: &mut Walker<'_>,
    ) -> Result<Option<FinishedRange<P::Partial>>, SyncError> {
        let pass = self.job.pass;
        self.begin(open)?;
        let mut take = |block: &BlockBytes<'_>| {
            let free = open.segment.try_lock();
            // Another worker can use the permit meanwhile.
            let mut segment = free.unwrap_or_else(|| self.supply.wait(|| open.segment.lock()));
            if let Some(segment) = &mut *segment {
                if P::FETCHES {
                    self.supply.wait(|| pass.fetch(segment, block))?;
                }
                pass.block(segment, block)?;
                let memory = pass.memory_bytes(segment);
                let size = self.job.source.block_bytes(block.height());
                let arrived = open.arrived.fetch_add(size, Ordering::Relaxed) + size;
                open.memory.store(memory, Ordering::Relaxed);
                // A few blocks say little.
                if arrived >= PIECE.0 {
                    let of_blocks = memory.saturating_sub(open.empty.load(Ordering::Relaxed));
                    let density = of_blocks.saturating_mul(256) / arrived;
                    self.density.store(density, Ordering::Relaxed);
                }
            }
            drop(segment);
            let bytes = block.view().raw().len() as u64;
            self.counters.add(Work { blocks: 1, bytes, ..Work::default() });
            self.counters.add_weight(weight(self.job.source, block.height()));
            Ok(())
        };
        match feed(pass, piece, walker, &mut take)? {
            true => self.end_piece(open),
            false => Ok(None),
        }
    }

    /// Begins a segment, if no other worker has.
    fn begin(&self, open: &OpenSegment<P::Segment>) -> Result<(), SyncError> {
        let mut segment = open.segment.lock();
        if segment.is_none() {
            let range = open.range;
            self.job.request.env.observer.event(Event::Segment(range, SegmentState::Begun));
            let begun = self.job.pass.begin((self.job.input)(range)?)?;
            let empty = self.job.pass.memory_bytes(&begun);
            open.empty.store(empty, Ordering::Relaxed);
            open.memory.store(empty, Ordering::Relaxed);
            *segment = Some(begun);
        }
        Ok(())
    }

    /// Ends a piece, and with the last one the segment.
    fn end_piece(
        &self,
        open: &Arc<OpenSegment<P::Segment>>,
    ) -> Result<Option<FinishedRange<P::Partial>>, SyncError> {
        {
            let mut claims = self.claims.lock();
            let is_of_this = |(last, _): &(Arc<OpenSegment<_>>, _)| Arc::ptr_eq(last, open);
            let has_more = claims.last.as_ref().is_some_and(is_of_this);
            let is_last = open.pieces.fetch_sub(1, Ordering::Relaxed) == 1;
            if !is_last || has_more && !self.cut(&mut claims) {
                return Ok(None);
            }
        }
        let Some(mut segment) = open.segment.lock().take() else { return Ok(None) };
        let range = HeightRange::new(open.range.start, open.end.load(Ordering::Relaxed));
        if range.end < open.range.end {
            self.job.pass.cut(&mut segment, range.end);
        }
        let finished = {
            let _permit = self.supply.permit();
            self.job.pass.finish(segment)?
        };
        let Work { bytes, coins, .. } = finished.partial.done();
        self.counters.add(Work { coins, ..Work::default() });
        self.counters.finished(bytes, finished.partial.coins_about());
        Ok(Some(FinishedRange::held(range, finished, P::RUNS)))
    }
}

/// Bytes of the blocks that a worker claims at a time, and their minimum number: with more, segments would be cut
/// later than they should; with less, workers would wait for the last block of each piece.
const PIECE: (u64, u32) = (1 << 20, 2);

/// The density that is assumed at first: one byte of memory for each byte of a block.
const DENSITY_AT_FIRST: u64 = 256;

/// The shortest first part of a range with at least this many bytes and blocks, or the whole range. Also returns its
/// bytes.
fn first_part(
    source: &dyn ChainSource,
    range: HeightRange,
    (bytes_min, blocks_min): (u64, u32),
) -> (HeightRange, u64) {
    let (mut end, mut bytes) = (range.start, 0);
    while end < range.end && (bytes < bytes_min || end - range.start < blocks_min) {
        bytes += source.block_bytes(end);
        end += 1;
    }
    (HeightRange::new(range.start, end), bytes)
}

/// Whether several workers fill a segment: as blocks arrive late, there are more workers than threads.
fn is_filled_by_several<P: Pass>(source: &dyn ChainSource, threads: usize) -> bool {
    P::CAN_END_EARLY && source.fetchers(threads) > threads
}

/// The number of segments that may be in memory at a time. If several workers fill each, one more than there are
/// threads, so that none waits for a segment's last block.
pub(crate) fn open_max<P: Pass>(source: &dyn ChainSource, threads: usize) -> usize {
    match is_filled_by_several::<P>(source, threads) {
        true => threads + 1,
        false => source.fetchers(threads),
    }
}

// One segment, processed by one thread: here, or on another machine.

/// Walks over the blocks of a segment and feeds the pass; `None` if it was halted. Calls `each` with the
/// height and the bytes of each block.
pub fn do_segment<P: Pass>(
    pass: &P,
    input: P::Input,
    range: HeightRange,
    supply: &Supply<'_>,
    walker: &mut Walker<'_>,
    each: &dyn Fn(Height, u64),
) -> Result<Option<FinishedSegment<P::Partial>>, SyncError>
where
    SyncError: From<P::Error>,
{
    let mut segment = pass.begin(input)?;
    let mut take = |block: &BlockBytes<'_>| {
        if P::FETCHES {
            supply.wait(|| pass.fetch(&mut segment, block))?;
        }
        pass.block(&mut segment, block)?;
        each(block.height(), block.view().raw().len() as u64);
        Ok(())
    };
    if !feed(pass, range, walker, &mut take)? {
        return Ok(None);
    }
    let _permit = supply.permit();
    Ok(Some(pass.finish(segment)?))
}

/// Walks over the blocks of a range, by ascending height if the pass wants that. Returns `false` if it was halted.
fn feed<P: Pass>(
    pass: &P,
    range: HeightRange,
    walker: &mut Walker<'_>,
    take: &mut dyn FnMut(&BlockBytes<'_>) -> Result<(), SyncError>,
) -> Result<bool, SyncError> {
    match pass.blocks_ascend() {
        true => walker.take_ascending(range, take),
        false => walker.take(range, take),
    }
}
