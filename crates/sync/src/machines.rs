//! [`Machines`]: the interface between a sync and other machines that process its segments.
//!
//! A sync relies on each segment being processed once, and takes its result. The implementation decides which
//! machine processes which segment, how often it is retried, and how bytes are sent.

use crate::engines::mergesync::{MergeWork, SharedResult};
use crate::engines::pass::{FinishedSegment, PartialResult, Pass, RunKind, Work};
use crate::engines::swiftsync::{self, SegmentHints};
use crate::error::SyncError;
use crate::pass::{Counters, Dispatch, InputOf, PassJob, TakeDone};
use crate::progress::Observer;
use crate::request::Request;
use crate::source::{ChainSource, GivenBlocks};
use crate::supply::{Supply, Walker};
use crate::workdir::plan::Plan;
use crate::workdir::{FinishedRange, Workdir};
use apus_chain::{Height, HeightRange, Reader};
use apus_engine::script::Signatures;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Other machines, which process segments in place of this machine's threads.
///
/// # Errors
/// If several segments fail, returns the error of the lowest one, even if another failed first. An interrupted
/// sync ends early and without an error; jobs in progress continue, and the next start finds their results.
pub trait Machines: Sync {
    /// Where the machines read blocks of the sync's folder, if this sync offers them.
    fn given(&self) -> Option<&GivenBlocks>;

    /// Processes the segments `todo` with hints, and passes each result to `take`.
    fn hinted(
        &self,
        segments: &Segments<'_>,
        hints: &dyn Fn(HeightRange) -> Result<SegmentHints, SyncError>,
        take: &mut TakeDone<'_, swiftsync::Partial>,
    ) -> Result<(), SyncError>;

    /// Processes the segments `todo` of a pass from another crate, and passes each result to `take`.
    fn outside(
        &self,
        segments: &Segments<'_>,
        pass: &NamedPass<'_>,
        take: &mut TakeDone<'_, AnyPartial>,
    ) -> Result<(), SyncError>;

    /// Runs all three steps of mergesync: blocks, the join, blocks with their coins. The results stay on the machines
    /// until the sync [ends](Self::end).
    fn merge(
        &self,
        work: &MergeWork<'_>,
        workdir: &Workdir<'_>,
        plan: &Plan,
    ) -> Result<SharedResult, SyncError>;

    /// Ends the sync for the machines if no start can resume it, and waits until ended syncs have no data left on them.
    /// Warns of data that cannot be removed.
    fn end(&self, request: &Request<'_>, is_over: bool);
}

/// Segments of a sync for other machines.
pub struct Segments<'a> {
    /// The sync's request.
    pub request: &'a Request<'a>,
    /// Its chain.
    pub source: &'a dyn ChainSource,
    /// Its plan.
    pub plan: &'a Plan,
    /// The remaining segments.
    pub todo: &'a [HeightRange],
    /// The kinds of runs that each segment produces.
    pub runs: &'static [RunKind],
    /// Counters of the work done so far.
    pub counters: &'a Counters,
}

/// Segments with hints on other machines.
pub(crate) struct RemoteHintedPass<'a> {
    pub machines: &'a dyn Machines,
    pub plan: &'a Plan,
}

impl<P> Dispatch<P> for RemoteHintedPass<'_>
where
    P: Pass<Input = SegmentHints, Partial = swiftsync::Partial>,
{
    fn run(
        &self,
        job: &PassJob<'_, P>,
        todo: &[HeightRange],
        counters: &Counters,
        take: &mut TakeDone<'_, P::Partial>,
    ) -> Result<(), SyncError> {
        let PassJob { request, source, .. } = *job;
        let input: &InputOf<'_, P> = job.input;
        let segments = Segments { request, source, plan: self.plan, todo, runs: P::RUNS, counters };
        self.machines.hinted(&segments, &|range| input(range), take)
    }
}

/// A pass from another crate, on the machine that distributes its segments.
pub struct NamedPass<'a> {
    /// Its name in the protocol.
    pub name: &'static str,
    /// Encodes a segment's input.
    pub payload: &'a EncodeInput<'a>,
    /// Decodes a segment's partial result, without its runs; `None` if the bytes are invalid.
    pub read: fn(&mut Reader<'_>) -> Option<AnyPartial>,
}

/// A segment's input for other machines, as bytes.
pub type EncodeInput<'a> = dyn Fn(HeightRange) -> Result<Vec<u8>, SyncError> + 'a;

/// The segments of a pass from another crate, processed by other machines.
pub struct RemotePass<'a> {
    /// The machines.
    pub machines: &'a dyn Machines,
    /// The sync's plan.
    pub plan: &'a Plan,
    /// The pass's name in the protocol.
    pub name: &'static str,
    /// Encodes a segment's input.
    pub payload: &'a EncodeInput<'a>,
}

impl<P: Pass> Dispatch<P> for RemotePass<'_>
where
    P::Partial: 'static,
{
    fn run(
        &self,
        job: &PassJob<'_, P>,
        todo: &[HeightRange],
        counters: &Counters,
        take: &mut TakeDone<'_, P::Partial>,
    ) -> Result<(), SyncError> {
        let PassJob { request, source, .. } = *job;
        let segments = Segments { request, source, plan: self.plan, todo, runs: P::RUNS, counters };
        let read = AnyPartial::read::<P::Partial>;
        let pass = NamedPass { name: self.name, payload: self.payload, read };
        let mut take = |done: Option<FinishedRange<AnyPartial>>| {
            take(done.map(|done| done.map(AnyPartial::into)))
        };
        self.machines.outside(&segments, &pass, &mut take)
    }
}

/// The partial result of a segment of any pass, without its runs.
pub struct AnyPartial {
    partial: Box<dyn Any + Send>,
    /// The heights covered.
    pub ranges: Vec<HeightRange>,
    /// The amount of work done.
    pub done: Work,
    /// Approximate number of coins that the blocks leave.
    pub coins_about: i64,
}

impl AnyPartial {
    /// Reads the partial result of a pass.
    pub fn read<R: PartialResult + 'static>(reader: &mut Reader<'_>) -> Option<Self> {
        let partial = R::read(reader)?;
        let (ranges, done) = (partial.ranges().to_vec(), partial.done());
        let coins_about = partial.coins_about();
        Some(Self { partial: Box::new(partial), ranges, done, coins_about })
    }

    /// Converts it back to the type of the pass whose [`read`](Self::read) it came from.
    pub fn into<R: 'static>(self) -> R {
        *self.partial.downcast().expect("it was read as this type")
    }
}

/// A pass from another crate whose segments other machines can process.
pub trait SharedPass: Sync {
    /// Returns its name in the protocol.
    fn name(&self) -> &'static str;

    /// Prepares for the segments of a sync.
    fn begin<'a>(
        &'a self,
        work: &SegmentWork<'a>,
    ) -> Result<Box<dyn SegmentWorker + 'a>, SyncError>;
}

/// What a machine needs to process segments of a sync.
#[derive(Clone, Copy)]
pub struct SegmentWork<'a> {
    /// The sync's plan.
    pub plan: &'a Plan,
    /// The chain and its blocks.
    pub source: &'a dyn ChainSource,
    /// How scripts' signatures are checked.
    pub signatures: &'a Arc<Signatures>,
    /// Receives events.
    pub observer: &'a dyn Observer,
    /// Stops the work once the caller sets it.
    pub interrupt: &'a AtomicBool,
}

/// Processes segments of a sync, each on one thread.
pub trait SegmentWorker: Sync {
    /// Processes a segment from its encoded input; returns `None` if halted. Calls `each` with the height and the
    /// bytes of each block.
    fn segment(
        &self,
        input: &[u8],
        range: HeightRange,
        blocks: (&Supply<'_>, &mut Walker<'_>),
        each: &dyn Fn(Height, u64),
    ) -> Result<Option<FinishedSegment<PartialBytes>>, SyncError>;
}

/// A segment's encoded partial result, without its runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartialBytes {
    /// The encoded partial result.
    pub bytes: Vec<u8>,
    /// The amount of work done.
    pub done: Work,
}

impl PartialBytes {
    /// Encodes a finished segment's partial result.
    pub fn of<R: PartialResult>(finished: FinishedSegment<R>) -> FinishedSegment<Self> {
        let FinishedSegment { partial, runs } = finished;
        let mut bytes = Vec::new();
        partial.write(&mut bytes);
        FinishedSegment { partial: Self { bytes, done: partial.done() }, runs }
    }
}
