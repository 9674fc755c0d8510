//! Runs a [`Pass`] over the segments of a plan and makes its results durable.
//!
//! A [`Dispatch`] has each segment processed. This module keeps the results, and writes them to files before
//! they take too much memory or would take too long to redo.

mod threads;

pub use threads::Threads;
pub use threads::do_segment;
pub(crate) use threads::open_max;

use crate::engines::pass::{PartialResult, Pass, Work};
use crate::engines::swiftsync::aggregate::Secret;
use crate::error::{IoError, SyncError};
use crate::folder::{FolderKind, FolderOutput};
use crate::progress::{Event, Phase, Progress, Segment, SegmentState};
use crate::request::{Request, RunEnv};
use crate::source::ChainSource;
use crate::supply::{bytes_of, total, weight_of};
use crate::system::random_bytes;
use crate::workdir::plan::{Plan, RunIdentity, divide, divide_tapered};
use crate::workdir::{FinishedRange, SegmentsOf, Workdir};
use apus_chain::{BlockHash, Height, HeightRange, ScriptChecks};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// Memory for finished segments that are not in files yet. More memory here would save some files, but segments
/// in progress make better use of it: the longer they are (`segment_bytes`), the fewer records they leave.
pub const fn held_bytes_max(memory_bytes: u64) -> u64 {
    memory_bytes / 8 * 3
}

/// What a worker takes besides its segment: a block, what is derived from it, and the runs of a segment that ends.
const WORKER_BYTES: u64 = 4 << 20;

/// Memory for segments, in bytes, beside what the workers take that keep this source busy.
fn segments_bytes(env: &RunEnv<'_>, source: &dyn ChainSource) -> u64 {
    let workers = WORKER_BYTES * source.fetchers(env.threads) as u64;
    env.memory_bytes.saturating_sub(workers).max(env.memory_bytes / 4)
}

/// Memory for each of the segments in memory, in bytes.
const fn open_bytes_max(segments_bytes: u64, under_way: u64) -> u64 {
    segments_bytes / (2 * under_way)
}

/// The least memory for each of the segments in memory: its share of 24 MiB, but at least 1 MiB.
const fn open_bytes_min(under_way: u64) -> u64 {
    let under_way = if under_way < 2 { 2 } else { under_way };
    let share = (24 << 20) / under_way;
    if share < 1 << 20 { 1 << 20 } else { share }
}

/// Returns the input of the segment with these heights.
pub type InputOf<'a, P> = dyn Fn(HeightRange) -> Result<<P as Pass>::Input, SyncError> + Sync + 'a;

/// A pass with everything that its segments need.
pub struct PassJob<'a, P: Pass> {
    pub request: &'a Request<'a>,
    pub source: &'a dyn ChainSource,
    pub pass: &'a P,
    pub input: &'a InputOf<'a, P>,
    /// The last block whose witnesses are not read.
    pub unseen: Height,
    /// The merged result of the blocks below the segments to process, if earlier batches processed some.
    pub below: Option<&'a P::Partial>,
    /// Where the pass may end before its last segment.
    pub limit: Option<&'a PassLimit<'a, P::Partial>>,
}

/// Ends a pass early: when the finished segments suffice, no other segment begins, except for those below them.
pub struct PassLimit<'a, R> {
    /// Whether the finished segments suffice, with this one; called once for each.
    is_reached_by: &'a (dyn Fn(&FinishedRange<R>) -> bool + Sync),
    /// Segments that begin below this height are processed in any case.
    at_least: AtomicU32,
    is_reached: AtomicBool,
}

impl<'a, R> PassLimit<'a, R> {
    /// Makes a limit for the segments from a height on.
    pub fn new(
        first: Height,
        is_reached_by: &'a (dyn Fn(&FinishedRange<R>) -> bool + Sync),
    ) -> Self {
        let at_least = AtomicU32::new(first + 1);
        Self { is_reached_by, at_least, is_reached: AtomicBool::new(false) }
    }

    /// Takes a segment that an earlier start finished: no gap may remain below it.
    fn take_earlier(&self, done: &FinishedRange<R>) {
        self.at_least.fetch_max(done.range.end, Ordering::Relaxed);
        self.take(done);
    }

    fn take(&self, done: &FinishedRange<R>) {
        if (self.is_reached_by)(done) {
            self.is_reached.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a segment may still begin.
    pub(crate) fn admits(&self, range: HeightRange) -> bool {
        let is_reached = self.is_reached.load(Ordering::Relaxed);
        !is_reached || range.start < self.at_least.load(Ordering::Relaxed)
    }
}

/// Receives finished segments. Also called periodically with `None`.
pub type Take<'t, P> = TakeDone<'t, <P as Pass>::Partial>;

/// Like [`Take`], but generic over the type of a segment's result.
pub type TakeDone<'t, R> = dyn FnMut(Option<FinishedRange<R>>) -> Result<(), SyncError> + 't;

/// Processes the segments of a pass, on threads here or on other machines.
///
/// # Errors
/// Returns the error of the lowest failed segment, even if another failed first.
pub trait Dispatch<P: Pass> {
    /// Processes each segment of `todo` once, in any order, and passes its result to `take` on this thread.
    /// Ends early, without an error, if the sync is interrupted.
    fn run(
        &self,
        job: &PassJob<'_, P>,
        todo: &[HeightRange],
        counters: &Counters,
        take: &mut Take<'_, P>,
    ) -> Result<(), SyncError>;
}

/// Fails if an earlier start's plan differs.
pub fn expect_same(
    request: &Request<'_>,
    earlier: Option<&Plan>,
    identity: &RunIdentity,
) -> Result<(), SyncError> {
    match earlier.and_then(|plan| plan.identity.difference(identity)) {
        Some(what) => Err(request.env.other_run(what)),
        None => Ok(()),
    }
}

/// The last block up to a height whose scripts are assumed valid; 0 if all scripts are run.
pub fn last_assumed(request: &Request<'_>, source: &dyn ChainSource, last: Height) -> Height {
    let assumed = request.assume_valid();
    assumed_by(request, source, assumed).min(last)
}

/// The last block that Core would assume valid, given this assumed-valid block; 0 if there is none.
pub fn assumed_by(
    request: &Request<'_>,
    source: &dyn ChainSource,
    assume_valid: Option<BlockHash>,
) -> Height {
    let checks = ScriptChecks::new(request.env.params, source.chain(), assume_valid);
    checks.last_assumed().unwrap_or_default()
}

/// Whether valid blocks are needed in full: to pass them on to a node, or for an index.
pub fn needs_blocks(request: &Request<'_>, source: &dyn ChainSource) -> bool {
    let has_blocks = |output: &FolderOutput| matches!(output.kind, FolderKind::Datadir(_));
    source.archive().is_some()
        || request.folders.iter().any(has_blocks)
        || request.index().is_some()
}

/// Whether witnesses may be skipped: the user allows it, and nothing depends on them.
pub fn may_leave_witnesses(request: &Request<'_>, source: &dyn ChainSource) -> bool {
    request.leave_witnesses.is_some() && !needs_blocks(request, source)
}

/// The last block of this chain whose witnesses are not read, or the earlier start's, if that was lower; 0 if
/// all witnesses are checked. Peers are not asked for skipped witnesses.
pub fn leave_witnesses(
    request: &Request<'_>,
    source: &dyn ChainSource,
    earlier: Option<Height>,
) -> Height {
    let now = match may_leave_witnesses(request, source) {
        true => assumed_by(request, source, request.leave_witnesses),
        false => 0,
    };
    let unseen = earlier.map_or(now, |earlier| earlier.min(now));
    source.leave_witnesses(unseen);
    unseen
}

/// The segments of an earlier plan or, without one, the heights from 1 to `last` divided into segments;
/// `under_way` segments may be in memory at a time.
pub fn segments(
    request: &Request<'_>,
    source: &dyn ChainSource,
    earlier: Option<&Plan>,
    last: Height,
    under_way: usize,
) -> Vec<HeightRange> {
    if let Some(plan) = earlier {
        return plan.segments.clone();
    }
    divided(request, source, HeightRange::new(1, last + 1), under_way)
}

/// Divides a range into segments; `under_way` of them may be in memory at a time.
pub fn divided(
    request: &Request<'_>,
    source: &dyn ChainSource,
    range: HeightRange,
    under_way: usize,
) -> Vec<HeightRange> {
    let size = |height: Height| source.block_bytes(height);
    if let Some(bytes) = request.env.segment_bytes {
        return divide(range, bytes, size);
    }
    let total = bytes_of(source, range);
    let bytes = segment_bytes(
        total,
        segments_bytes(&request.env, source),
        request.env.threads as u64,
        under_way as u64,
    );
    // The records of the segments in progress come on top of a batch.
    let scratch = request.env.scratch.map_or(u64::MAX, |scratch| scratch.bytes);
    let bytes = bytes.min((scratch / (2 * under_way.max(1) as u64)).max(SEGMENT_BYTES_MIN));
    let at_the_end = match request.env.is_shared {
        true => under_way.max(machines(total, bytes)),
        false => under_way,
    };
    divide_tapered(range, (bytes, SEGMENT_BYTES_MIN), at_the_end, size)
}

/// The number of machines for which the last segments of a shared sync are short, because their real number
/// is unknown. Short segments leave more records, so even on a short chain most segments are long.
fn machines(bytes_total: u64, segment_bytes: u64) -> usize {
    (bytes_total / (8 * segment_bytes)).clamp(2, 16) as usize
}

/// Minimum size of a segment, unless memory is scarce; a smaller one is not worth its runs.
const SEGMENT_BYTES_MIN: u64 = 4 << 20;

/// Size of a segment. Small enough that a few of them are in progress at once in the available memory: half
/// of it is for their blocks, which are read one by one, and half of that for their results. Large enough
/// that the whole main chain has about ten thousand of them. A longer segment leaves fewer records, because
/// more spends find their coins within it.
fn segment_bytes(bytes_total: u64, memory_bytes: u64, threads: u64, under_way: u64) -> u64 {
    /// Number of segments for each thread, if the chain is long enough.
    const EACH: u64 = 4;
    let share = open_bytes_max(memory_bytes, under_way).clamp(open_bytes_min(under_way), 128 << 20);
    share.min((bytes_total / (EACH * threads)).max(SEGMENT_BYTES_MIN))
}

/// Continues an earlier plan, which must be the same, or makes a new one. Blocks up to `below` are done in any case.
pub fn begin_or_resume<'w, P: Pass>(
    request: &Request<'w>,
    earlier: Option<Plan>,
    identity: RunIdentity,
    segments: Vec<HeightRange>,
    below: Height,
) -> Result<(Workdir<'w>, Plan, SegmentsOf<P>), SyncError> {
    let Some(plan) = earlier else {
        let plan = Plan { identity, secret: Secret(random_bytes()?), segments };
        return Ok((Workdir::start(request.env.workdir, &plan)?, plan, Vec::new()));
    };
    let (workdir, done) = Workdir::resume::<P>(request.env.workdir, &plan)?;
    report_resumed(request, &plan, &done, below);
    Ok((workdir, plan, done))
}

/// Reports how many segments of a plan are done: those in `done`, as a whole or in parts, and all `below` a block.
pub fn report_resumed<P>(
    request: &Request<'_>,
    plan: &Plan,
    done: &[FinishedRange<P>],
    below: Height,
) {
    let is_done = |segment: &&HeightRange| {
        let first = done.partition_point(|part| part.range.start < segment.start);
        let parts = done[first..].iter().take_while(|part| part.range.end <= segment.end);
        segment.end <= below + 1
            || parts.map(|part| part.range.count()).sum::<u32>() == segment.count()
    };
    let segments = plan.segments.iter().filter(is_done).count();
    request.env.observer.event(Event::Resumed { segments, of: plan.segments.len() });
}

/// Merges the results of all segments with the result of the blocks below, if there is one.
pub fn whole<P: Pass>(
    pass: &P,
    workdir: &Workdir<'_>,
    below: Option<&P::Partial>,
    done: &[FinishedRange<P::Partial>],
) -> Result<P::Partial, SyncError> {
    let mut whole = pass.nothing();
    if let Some(below) = below {
        whole.merge(below).map_err(|_| workdir.damaged())?;
    }
    for done in done {
        let damaged = |_| SyncError::Io(IoError::WorkdirDamaged { file: workdir.describe(done) });
        whole.merge(&done.partial).map_err(damaged)?;
    }
    Ok(whole)
}

/// Processes the segments that are not in `done` yet, up to the limit if there is one. Returns all finished
/// segments, including `done`, by ascending height.
pub fn run<P: Pass>(
    job: &PassJob<'_, P>,
    dispatch: &dyn Dispatch<P>,
    workdir: &Workdir<'_>,
    segments: &[HeightRange],
    done: SegmentsOf<P>,
) -> Result<SegmentsOf<P>, SyncError> {
    let below = job.below.and_then(|below| below.ranges().last()).map_or(1, |below| below.end);
    let todo = without(segments, below, &done);
    let counters = Counters::default();
    if let Some(partial) = job.below {
        counters.add(partial.done());
        counters.finished(partial.done().bytes, partial.coins_about());
        counters.add_weight(weight_of(job.source, HeightRange::new(1, below)));
    }
    for done in &done {
        job.limit.inspect(|limit| limit.take_earlier(done));
        counters.add(done.partial.done());
        counters.finished(done.partial.done().bytes, done.partial.coins_about());
        counters.add_weight(weight_of(job.source, done.range));
    }
    tell_segments(job, below, &done, &todo);
    let heights = segments.iter().flat_map(|segment| segment.heights());
    let total = total(job.source, heights);
    let mut results = Results::new(job, workdir, done, &todo);
    let ran = dispatch.run(job, &todo, &counters, &mut |done| {
        let observer = job.request.env.observer;
        if let Some(done) = &done {
            observer.event(Event::Segment(done.range, SegmentState::Done));
        }
        observer.event(Event::Progress(Phase::Blocks, counters.progress(total)));
        results.take(done)
    });
    let interrupted = job.request.env.interrupt.load(Ordering::Relaxed)
        && !without(&todo, below, &results.all).is_empty();
    match ran {
        Err(error) => {
            // Keep the results if possible; the error to report is the one that ended the sync.
            if !error.spoils_progress() {
                let _ = results.store();
            }
            Err(error)
        }
        Ok(()) if interrupted => {
            results.store()?;
            Err(SyncError::Interrupted)
        }
        Ok(()) => {
            results.all.sort_unstable_by_key(|done| done.range);
            Ok(results.all)
        }
    }
}

/// The parts of the segments that are neither below a height nor done. Of a segment that was cut, a part may be done.
fn without<R>(
    segments: &[HeightRange],
    below: Height,
    done: &[FinishedRange<R>],
) -> Vec<HeightRange> {
    let mut done: Vec<HeightRange> = done.iter().map(|done| done.range).collect();
    done.sort_unstable();
    let mut left = Vec::new();
    for segment in segments {
        let mut next = segment.start.max(below);
        let at = done.partition_point(|done| done.end <= next);
        for done in done[at..].iter().take_while(|done| done.start < segment.end) {
            left.extend((next < done.start).then(|| HeightRange::new(next, done.start)));
            next = done.end;
        }
        left.extend((next < segment.end).then(|| HeightRange::new(next, segment.end)));
    }
    left
}

/// Reports the segments, and which of them an earlier start did.
fn tell_segments<P: Pass>(
    job: &PassJob<'_, P>,
    below: Height,
    done: &[FinishedRange<P::Partial>],
    todo: &[HeightRange],
) {
    let segment = |range: HeightRange, state| {
        let bytes = bytes_of(job.source, range);
        Segment { range, bytes, state }
    };
    let below = job.below.map(|_| HeightRange::new(1, below));
    let done = below.into_iter().chain(done.iter().map(|done| done.range));
    let done = done.map(|range| segment(range, SegmentState::Done));
    let todo = todo.iter().map(|range| segment(*range, SegmentState::Waiting));
    job.request.env.observer.event(Event::Segments(done.chain(todo).collect()));
}

/// The finished segments. The latest ones stay in memory while there is room; the runs of earlier ones go into
/// files. Waiting for the disk is rare: many segments are made durable together, and a short sync makes none
/// durable.
struct Results<'a, P: Pass> {
    job: &'a PassJob<'a, P>,
    workdir: &'a Workdir<'a>,
    all: SegmentsOf<P>,
    /// Number of durable segments, and the time of the last store.
    stored: usize,
    stored_at: Instant,
    /// Whether storing failed once. The system reports only once that bytes did not reach the disk, so a
    /// second try would prove nothing.
    failed: bool,
    /// Number of segments in files.
    written: usize,
    /// Memory of the other segments, in bytes.
    held_bytes: u64,
    /// Bytes of the blocks of unfinished segments.
    to_come: u64,
    /// Bytes of the blocks of segments in progress at a time.
    under_way: u64,
}

impl<'a, P: Pass> Results<'a, P> {
    fn new(
        job: &'a PassJob<'a, P>,
        workdir: &'a Workdir<'a>,
        done: SegmentsOf<P>,
        todo: &[HeightRange],
    ) -> Self {
        let bytes = |range: &HeightRange| bytes_of(job.source, *range);
        let longest = todo.iter().map(bytes).max().unwrap_or_default();
        // Segments above the end of a batch may still be in memory.
        let stored = done.iter().take_while(|done| done.stored).count();
        let held_bytes = done[stored..].iter().map(FinishedRange::held_bytes).sum();
        Self {
            job,
            workdir,
            all: done,
            stored,
            stored_at: Instant::now(),
            failed: false,
            written: stored,
            held_bytes,
            to_come: todo.iter().map(bytes).sum(),
            under_way: longest * job.request.env.threads as u64,
        }
    }

    /// Takes a finished segment, and makes it and the waiting ones durable if a checkpoint is due.
    fn take(&mut self, done: Option<FinishedRange<P::Partial>>) -> Result<(), SyncError> {
        self.held_bytes += done.as_ref().map_or(0, FinishedRange::held_bytes);
        let of_blocks = |done: &FinishedRange<P::Partial>| bytes_of(self.job.source, done.range);
        self.to_come = self.to_come.saturating_sub(done.as_ref().map_or(0, of_blocks));
        done.iter().for_each(|done| self.job.limit.iter().for_each(|limit| limit.take(done)));
        self.all.extend(done);
        let request = self.job.request;
        if self.stored_at.elapsed() >= request.env.checkpoint_interval {
            return self.store();
        }
        // The last segments use the memory that segments in progress no longer need, so that no thread waits
        // for a file at the end.
        let most = held_bytes_max(segments_bytes(&request.env, self.job.source));
        let most = if self.to_come >= self.under_way { most } else { 2 * most };
        while self.held_bytes > most && self.written < self.all.len() {
            self.put(self.written, |workdir, done| workdir.write(&mut done[0]))?;
            self.written += 1;
        }
        Ok(())
    }

    /// Writes the segments from an index on into files; if that fails, the memory of some may already be freed.
    fn put(
        &mut self,
        from: usize,
        put: impl FnOnce(&Workdir<'a>, &mut [FinishedRange<P::Partial>]) -> Result<(), SyncError>,
    ) -> Result<(), SyncError> {
        let result = put(self.workdir, &mut self.all[from..]);
        self.held_bytes = self.all[from..].iter().map(FinishedRange::held_bytes).sum();
        result
    }

    /// Makes all finished segments durable, after the blocks that the source keeps; does nothing if that
    /// failed before.
    fn store(&mut self) -> Result<(), SyncError> {
        if self.failed {
            return Ok(());
        }
        self.job.source.sync()?;
        let stored = self.put(self.stored, Workdir::store);
        self.stored += self.all[self.stored..].iter().take_while(|done| done.stored).count();
        self.written = self.written.max(self.stored);
        self.stored_at = Instant::now();
        self.failed = stored.is_err();
        stored
    }
}

/// Work done so far, by this start and earlier ones.
#[derive(Default)]
pub struct Counters {
    blocks: AtomicU64,
    bytes: AtomicU64,
    coins: AtomicU64,
    weight: AtomicU64,
    /// Bytes of the blocks of finished segments, and approximately how many coins these leave.
    finished_bytes: AtomicU64,
    coins_about: AtomicI64,
}

impl Counters {
    pub fn add(&self, work: Work) {
        self.blocks.fetch_add(work.blocks, Ordering::Relaxed);
        self.bytes.fetch_add(work.bytes, Ordering::Relaxed);
        self.coins.fetch_add(work.coins, Ordering::Relaxed);
    }

    /// Adds weight, for blocks with estimated sizes.
    pub fn add_weight(&self, weight: u64) {
        self.weight.fetch_add(weight, Ordering::Relaxed);
    }

    /// Adds a finished segment, whose work is counted separately: the bytes of its blocks, and approximately
    /// how many coins they leave.
    pub fn finished(&self, bytes: u64, coins_about: i64) {
        self.finished_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.coins_about.fetch_add(coins_about, Ordering::Relaxed);
    }

    /// Estimates how many coins this many bytes of blocks leave, from the finished segments.
    fn coins_of(&self, bytes: u64) -> u64 {
        let finished = self.finished_bytes.load(Ordering::Relaxed).max(1);
        let coins = self.coins_about.load(Ordering::Relaxed).max(0);
        (coins as f64 * (bytes as f64 / finished as f64)) as u64
    }

    fn progress(&self, total: Progress) -> Progress {
        let bytes = self.bytes.load(Ordering::Relaxed);
        Progress {
            blocks: self.blocks.load(Ordering::Relaxed),
            bytes,
            coins_about: self.coins_of(bytes),
            coins: self.coins.load(Ordering::Relaxed),
            weight: self.weight.load(Ordering::Relaxed),
            ..total
        }
    }
}
