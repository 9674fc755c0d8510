//! [`Machines`]: the seam between a run and other machines that do its segments.
//!
//! A run knows that its segments are done once each, and takes what they leave. Which machine does which, how often a
//! segment is tried, and how bytes travel, is the business of what implements this.

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
use std::any::Any;
use std::sync::atomic::AtomicBool;

/// Other machines, which do segments in place of this one's threads.
///
/// # Errors
/// Of the segments that fail, the lowest gives the error, whatever failed first. A run that is interrupted ends early and
/// without an error; what is under way goes on, and the next start finds it.
pub trait Machines: Sync {
    /// From where the machines have blocks of the run's folder, if this run hands them out.
    fn given(&self) -> Option<&GivenBlocks>;

    /// Does the segments `todo` under hints, and gives what each leaves to `take`.
    fn hinted(
        &self,
        segments: &Segments<'_>,
        hints: &dyn Fn(HeightRange) -> Result<SegmentHints, SyncError>,
        take: &mut TakeDone<'_, swiftsync::Partial>,
    ) -> Result<(), SyncError>;

    /// Does the segments `todo` of a pass from outside, and gives what each leaves to `take`.
    fn outside(
        &self,
        segments: &Segments<'_>,
        pass: &NamedPass<'_>,
        take: &mut TakeDone<'_, AnyPartial>,
    ) -> Result<(), SyncError>;

    /// Does all three steps of mergesync: blocks, the join, blocks with their coins.
    fn merge(
        &self,
        work: &MergeWork<'_>,
        workdir: &Workdir<'_>,
        plan: &Plan,
    ) -> Result<SharedResult, SyncError>;

    /// Waits until nothing is left elsewhere of runs that have ended. What cannot be removed is a warning.
    fn closed(&self, request: &Request<'_>);
}

/// Segments of a run for other machines.
pub struct Segments<'a> {
    /// The run.
    pub request: &'a Request<'a>,
    /// Its chain.
    pub source: &'a dyn ChainSource,
    /// Its plan.
    pub plan: &'a Plan,
    /// Which are still to be done.
    pub todo: &'a [HeightRange],
    /// The runs that each leaves.
    pub runs: &'static [RunKind],
    /// What was done so far.
    pub counters: &'a Counters,
}

/// Segments under hints by other machines.
pub(crate) struct HintedElsewhere<'a> {
    pub machines: &'a dyn Machines,
    pub plan: &'a Plan,
}

impl<P> Dispatch<P> for HintedElsewhere<'_>
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

/// A pass from outside, where its run is.
pub struct NamedPass<'a> {
    /// By what machines know it.
    pub name: &'static str,
    /// What they are told of a segment.
    pub told: &'a TellSegment<'a>,
    /// Reads what a segment leaves beside its runs; none where the bytes are no such thing.
    pub read: fn(&mut Reader<'_>) -> Option<AnyPartial>,
}

/// What machines are told of a segment, as bytes.
pub type TellSegment<'a> = dyn Fn(HeightRange) -> Result<Vec<u8>, SyncError> + 'a;

/// The segments of a pass from outside, done by other machines.
pub struct Elsewhere<'a> {
    /// The machines.
    pub machines: &'a dyn Machines,
    /// The run's plan.
    pub plan: &'a Plan,
    /// By what they know the pass.
    pub name: &'static str,
    /// What they are told of a segment.
    pub told: &'a TellSegment<'a>,
}

impl<P: Pass> Dispatch<P> for Elsewhere<'_>
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
        let pass = NamedPass { name: self.name, told: self.told, read };
        let mut take = |done: Option<FinishedRange<AnyPartial>>| {
            take(done.map(|done| done.map(AnyPartial::into)))
        };
        self.machines.outside(&segments, &pass, &mut take)
    }
}

/// What a segment of whichever pass leaves beside its runs.
pub struct AnyPartial {
    partial: Box<dyn Any + Send>,
    /// The heights covered.
    pub ranges: Vec<HeightRange>,
    /// How much was done.
    pub done: Work,
    /// About how many coins the blocks leave.
    pub coins_about: i64,
}

impl AnyPartial {
    /// Reads that of a pass.
    pub fn read<R: PartialResult + 'static>(reader: &mut Reader<'_>) -> Option<Self> {
        let partial = R::read(reader)?;
        let (ranges, done) = (partial.ranges().to_vec(), partial.done());
        let coins_about = partial.coins_about();
        Some(Self { partial: Box::new(partial), ranges, done, coins_about })
    }

    /// As that of the pass whose [`read`](Self::read) it came from.
    pub fn into<R: 'static>(self) -> R {
        *self.partial.downcast().expect("it was read as this pass leaves it")
    }
}

/// A pass from outside, where machines do its segments.
pub trait SharedPass: Sync {
    /// By what they know it.
    fn name(&self) -> &'static str;

    /// Makes ready for the segments of a run.
    fn begin<'a>(
        &'a self,
        work: &SegmentWork<'a>,
    ) -> Result<Box<dyn SegmentWorker + 'a>, SyncError>;
}

/// What a machine has for the segments of a run.
#[derive(Clone, Copy)]
pub struct SegmentWork<'a> {
    /// The run's plan.
    pub plan: &'a Plan,
    /// The chain and its blocks.
    pub source: &'a dyn ChainSource,
    /// Told what happens.
    pub observer: &'a dyn Observer,
    /// Set from outside to stop.
    pub interrupt: &'a AtomicBool,
}

/// Does segments of a run, by one thread each.
pub trait SegmentWorker: Sync {
    /// Does a segment, by what is told of it; none where it was halted. `each` hears of the height and the bytes of each
    /// block.
    fn segment(
        &self,
        told: &[u8],
        range: HeightRange,
        blocks: (&Supply<'_>, &mut Walker<'_>),
        each: &dyn Fn(Height, u64),
    ) -> Result<Option<FinishedSegment<PartialBytes>>, SyncError>;
}

/// What a segment leaves beside its runs, as it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartialBytes {
    /// Its byte form.
    pub bytes: Vec<u8>,
    /// How much was done.
    pub done: Work,
}

impl PartialBytes {
    /// What a segment leaves, as it is sent.
    pub fn of<R: PartialResult>(finished: FinishedSegment<R>) -> FinishedSegment<Self> {
        let FinishedSegment { partial, runs } = finished;
        let mut bytes = Vec::new();
        partial.write(&mut bytes);
        FinishedSegment { partial: Self { bytes, done: partial.done() }, runs }
    }
}
