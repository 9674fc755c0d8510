//! A [`Pass`] over the segments of a plan, made durable on the way.
//!
//! A [`Dispatch`] sees that each segment is done; what it hands over is kept here, and written down
//! before it takes too much memory or too long to do again.

mod threads;

pub use threads::Threads;
pub use threads::do_segment;

use crate::engines::pass::{PartialResult, Pass, Work};
use crate::engines::swiftsync::aggregate::Secret;
use crate::error::{IoError, SyncError};
use crate::folder::{FolderKind, FolderOutput};
use crate::progress::{Event, Phase, Progress, Segment, SegmentState};
use crate::request::Request;
use crate::source::ChainSource;
use crate::supply::{total, weight_of};
use crate::system::random_bytes;
use crate::workdir::plan::{Plan, RunIdentity, divide, divide_tapered};
use crate::workdir::{FinishedRange, SegmentsOf, Workdir};
use apus_chain::{BlockHash, Height, HeightRange, ScriptChecks};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

/// Memory that finished segments may take which are in no file yet. More of it spares some files, but segments under
/// way make better use of it: the longer these are (`segment_bytes`), the fewer records there are to hold.
pub const fn held_bytes_max(memory_bytes: u64) -> u64 {
    memory_bytes / 8 * 3
}

/// What a segment of a pass is told, by its heights.
pub type InputOf<'a, P> = dyn Fn(HeightRange) -> Result<<P as Pass>::Input, SyncError> + Sync + 'a;

/// A pass with all that its segments need.
pub struct PassJob<'a, P: Pass> {
    pub request: &'a Request<'a>,
    pub source: &'a dyn ChainSource,
    pub pass: &'a P,
    pub input: &'a InputOf<'a, P>,
    /// The last block whose witnesses are left alone.
    pub unseen: Height,
}

/// What becomes of a segment that is done. Called without one every now and then, too.
pub type Take<'t, P> = TakeDone<'t, <P as Pass>::Partial>;

/// The same by what a segment leaves.
pub type TakeDone<'t, R> = dyn FnMut(Option<FinishedRange<R>>) -> Result<(), SyncError> + 't;

/// What does the segments of a pass: threads here, or other machines.
///
/// # Errors
/// The lowest segment that fails is the one told, whatever failed first.
pub trait Dispatch<P: Pass> {
    /// Has each segment of `todo` done once, in any order, and gives what it leaves to `take`, on this
    /// thread. It ends early, and without an error, where the run is interrupted.
    fn run(
        &self,
        job: &PassJob<'_, P>,
        todo: &[HeightRange],
        counters: &Counters,
        take: &mut Take<'_, P>,
    ) -> Result<(), SyncError>;
}

/// Fails where an earlier start planned another run.
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

/// The last of the blocks up to a height whose scripts are taken for valid; 0 where all are run.
pub fn last_assumed(request: &Request<'_>, source: &dyn ChainSource, last: Height) -> Height {
    let assumed = request.assume_valid();
    assumed_by(request, source, assumed).min(last)
}

/// The last block that Core would take for valid where it does so with this one and those below; 0 where there is
/// none.
pub fn assumed_by(
    request: &Request<'_>,
    source: &dyn ChainSource,
    assume_valid: Option<BlockHash>,
) -> Height {
    let checks = ScriptChecks::new(request.env.params, source.chain(), assume_valid);
    checks.last_assumed().unwrap_or_default()
}

/// Whether blocks that are valid are wanted whole: handed on to a node, or for an index.
pub fn needs_blocks(request: &Request<'_>, source: &dyn ChainSource) -> bool {
    let has_blocks = |output: &FolderOutput| matches!(output.kind, FolderKind::Datadir(_));
    source.archive().is_some()
        || request.folders.iter().any(has_blocks)
        || request.index().is_some()
}

/// Whether witnesses may be left alone: the run says so, and nothing depends on them.
pub fn may_leave_witnesses(request: &Request<'_>, source: &dyn ChainSource) -> bool {
    request.leave_witnesses.is_some() && !needs_blocks(request, source)
}

/// The last block of this chain whose witnesses are left alone, as the earlier start took it, if that was fewer; 0
/// where all are checked. Peers are not asked for them then.
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

/// The segments of an earlier plan, or the heights from 1 to `last` divided; so many may be in memory at a
/// time.
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

/// The segments of a range, of which so many may be in memory at a time.
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
    let total = range.heights().map(size).sum();
    let bytes = segment_bytes(
        total,
        request.env.memory_bytes,
        request.env.threads as u64,
        under_way as u64,
    );
    let at_the_end = match request.env.is_shared {
        true => under_way.max(machines(total, bytes)),
        false => under_way,
    };
    divide_tapered(range, (bytes, SEGMENT_BYTES_MIN), at_the_end, size)
}

/// For so many machines the last segments of a run that they share are short: how many there will be is not known. The
/// records of short segments are more, so that of a short chain most segments are long all the same.
fn machines(bytes_total: u64, segment_bytes: u64) -> usize {
    (bytes_total / (8 * segment_bytes)).clamp(2, 16) as usize
}

/// A smaller segment is not worth its runs, unless memory is that little.
const SEGMENT_BYTES_MIN: u64 = 4 << 20;

/// Small enough that a few of them are under way at once in the memory allowed, of which their blocks, read one by one,
/// come to half: what is kept of them takes half of that. Large enough that the whole main chain is some ten thousand of
/// them. The longer one is the fewer records leave it: more spends find their coins within.
fn segment_bytes(bytes_total: u64, memory_bytes: u64, threads: u64, under_way: u64) -> u64 {
    /// Segments for each thread, where the chain is long enough.
    const EACH: u64 = 4;
    // So many as threads are no smaller than this; more of them share what these would take.
    let least = ((12_u64 << 20).saturating_mul(threads) / under_way).max(2 << 20);
    let share = (memory_bytes / (2 * under_way)).clamp(least, 128 << 20);
    share.min((bytes_total / (EACH * threads)).max(SEGMENT_BYTES_MIN))
}

/// No more segments than these are made of so many bytes of blocks, where their size is left to `segment_bytes` and as
/// many are under way as there are threads.
pub fn segments_at_most(block_bytes: u64, memory_bytes: u64, threads: u64) -> u64 {
    let bytes = segment_bytes(block_bytes, memory_bytes, threads, threads);
    // The last one of each thread is in quarters, and the last of all, and of those before these, is begun.
    block_bytes / bytes + 3 * threads + 2
}

/// Goes on with an earlier plan, which must be the same, or makes one.
pub fn begin_or_go_on<'w, P: Pass>(
    request: &Request<'w>,
    earlier: Option<Plan>,
    identity: RunIdentity,
    segments: Vec<HeightRange>,
) -> Result<(Workdir<'w>, Plan, SegmentsOf<P>), SyncError> {
    let Some(plan) = earlier else {
        let plan = Plan { identity, secret: Secret(random_bytes()?), segments };
        return Ok((Workdir::start(request.env.workdir, &plan)?, plan, Vec::new()));
    };
    let (workdir, done) = Workdir::resume::<P>(request.env.workdir, &plan)?;
    let (segments, of) = (done.len(), plan.segments.len());
    request.env.observer.event(Event::Resumed { segments, of });
    Ok((workdir, plan, done))
}

/// What all segments come to together.
pub fn whole<P: Pass>(
    pass: &P,
    workdir: &Workdir<'_>,
    done: &[FinishedRange<P::Partial>],
) -> Result<P::Partial, SyncError> {
    let mut whole = pass.nothing();
    for done in done {
        let damaged = |_| SyncError::Io(IoError::WorkdirDamaged { file: workdir.describe(done) });
        whole.merge(&done.partial).map_err(damaged)?;
    }
    Ok(whole)
}

/// Does the segments that are not `done` yet. All of them, the done ones included, by ascending height.
pub fn run<P: Pass>(
    job: &PassJob<'_, P>,
    dispatch: &dyn Dispatch<P>,
    workdir: &Workdir<'_>,
    segments: &[HeightRange],
    done: SegmentsOf<P>,
) -> Result<SegmentsOf<P>, SyncError> {
    let is_done = |range: &HeightRange| done.iter().any(|done| done.range == *range);
    let todo: Vec<HeightRange> = segments.iter().copied().filter(|it| !is_done(it)).collect();
    let counters = Counters::default();
    for done in &done {
        counters.add(done.partial.done());
        counters.finished(done.partial.done().bytes, done.partial.coins_about());
        counters.add_weight(weight_of(job.source, done.range));
    }
    tell_segments(job, segments, &todo);
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
    let interrupted =
        job.request.env.interrupt.load(Ordering::Relaxed) && results.all.len() < segments.len();
    match ran {
        Err(error) => {
            // Kept if that is possible; the error to tell is the one that ended the run.
            let _ = results.store();
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

/// Tells what there is to be done, and what of it an earlier start did.
fn tell_segments<P: Pass>(job: &PassJob<'_, P>, segments: &[HeightRange], todo: &[HeightRange]) {
    let segment = |range: &HeightRange| Segment {
        range: *range,
        bytes: bytes_of(job.source, *range),
        state: match todo.binary_search(range) {
            Ok(_) => SegmentState::Waiting,
            Err(_) => SegmentState::Done,
        },
    };
    job.request.env.observer.event(Event::Segments(segments.iter().map(segment).collect()));
}

fn bytes_of(source: &dyn ChainSource, range: HeightRange) -> u64 {
    range.heights().map(|height| source.block_bytes(height)).sum()
}

/// The finished segments. Those that came last are held in memory while there is room, and the runs of those
/// before go into files, but the disk is waited for only now and then: many are made durable together, and
/// those of a short run never have to be.
struct Results<'a, P: Pass> {
    job: &'a PassJob<'a, P>,
    workdir: &'a Workdir<'a>,
    all: SegmentsOf<P>,
    /// How many of them are durable, and since when.
    stored: usize,
    stored_at: Instant,
    /// Whether that failed once. A system says but once that bytes did not reach the disk, so a second try proves nothing.
    failed: bool,
    /// How many of them are in files.
    written: usize,
    /// Memory of the others.
    held_bytes: u64,
    /// Bytes of the blocks of those that are still to come.
    to_come: u64,
    /// The same of those that are under way at a time.
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
        let stored = done.len();
        Self {
            job,
            workdir,
            all: done,
            stored,
            stored_at: Instant::now(),
            failed: false,
            written: stored,
            held_bytes: 0,
            to_come: todo.iter().map(bytes).sum(),
            under_way: longest * job.request.env.threads as u64,
        }
    }

    /// Takes a finished segment, and makes it and those that wait durable if it is time.
    fn take(&mut self, done: Option<FinishedRange<P::Partial>>) -> Result<(), SyncError> {
        self.held_bytes += done.as_ref().map_or(0, FinishedRange::held_bytes);
        let of_blocks = |done: &FinishedRange<P::Partial>| bytes_of(self.job.source, done.range);
        self.to_come = self.to_come.saturating_sub(done.as_ref().map_or(0, of_blocks));
        self.all.extend(done);
        let request = self.job.request;
        if self.stored_at.elapsed() >= request.env.checkpoint_interval {
            return self.store();
        }
        // The last ones take the memory of those that were under way, so that no thread waits for a file at the end.
        // Sizes that are not known are all 0.
        while self.to_come >= self.under_way
            && self.held_bytes > held_bytes_max(request.env.memory_bytes)
            && self.written < self.all.len()
        {
            self.put(self.written, |workdir, done| workdir.write(&mut done[0]))?;
            self.written += 1;
        }
        Ok(())
    }

    /// Has segments from one on put into files; those that fail may have taken some of their memory.
    fn put(
        &mut self,
        from: usize,
        put: impl FnOnce(&Workdir<'a>, &mut [FinishedRange<P::Partial>]) -> Result<(), SyncError>,
    ) -> Result<(), SyncError> {
        let result = put(self.workdir, &mut self.all[from..]);
        self.held_bytes = self.all[from..].iter().map(FinishedRange::held_bytes).sum();
        result
    }

    /// Makes all finished segments durable, after what the source keeps of their blocks; none where that failed before.
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
    /// Bytes of the blocks of segments that are done, and about how many coins these leave.
    finished_bytes: AtomicU64,
    coins_about: AtomicI64,
}

impl Counters {
    pub fn add(&self, work: Work) {
        self.blocks.fetch_add(work.blocks, Ordering::Relaxed);
        self.bytes.fetch_add(work.bytes, Ordering::Relaxed);
        self.coins.fetch_add(work.coins, Ordering::Relaxed);
    }

    /// Of blocks whose sizes are guessed.
    pub fn add_weight(&self, weight: u64) {
        self.weight.fetch_add(weight, Ordering::Relaxed);
    }

    /// Of a segment that is done, beside its work: the bytes of its blocks, and about how many coins they leave.
    pub fn finished(&self, bytes: u64, coins_about: i64) {
        self.finished_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.coins_about.fetch_add(coins_about, Ordering::Relaxed);
    }

    /// About how many coins so many bytes of blocks leave, by those of the segments that are done.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_segments_than_said() {
        for (blocks, threads, memory_bytes) in
            [(10, 1, 16 << 20), (1_000, 2, 16 << 20), (1_000, 2, 450 << 20), (20_000, 16, 2 << 30)]
        {
            // Sizes that no segment comes out even with.
            let size = |height: Height| 1_500_000 + u64::from(height % 7) * 100_001;
            let range = HeightRange::new(1, blocks + 1);
            let total = range.heights().map(size).sum();
            let bytes = segment_bytes(total, memory_bytes, threads, threads);
            let limits = (bytes, SEGMENT_BYTES_MIN);
            let made = divide_tapered(range, limits, threads as usize, size).len() as u64;
            let most = segments_at_most(total, memory_bytes, threads);
            assert!(made <= most && most <= made + made / 4 + 3 * threads + 2, "{made} {most}");
        }
    }
}
