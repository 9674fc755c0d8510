//! [`Machines`]: the seam between a run and other machines that do its segments.
//!
//! A run knows that its segments are done once each, and takes what they leave. Which machine does which, how often a
//! segment is tried, and how bytes travel, is the business of what implements this.

use crate::engines::mergesync::{MergeWork, SharedResult};
use crate::engines::pass::{Pass, RunKind};
use crate::engines::swiftsync::{self, SegmentHints};
use crate::engines::utreexo;
use crate::error::SyncError;
use crate::pass::{Counters, Dispatch, InputOf, PassJob, TakeDone};
use crate::request::Request;
use crate::source::{ChainSource, GivenBlocks};
use crate::workdir::Workdir;
use crate::workdir::plan::Plan;
use apus_chain::HeightRange;
use apus_utreexo::Roots;

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

    /// Does the segments `todo` by proofs, with the roots around each as far as they are known here.
    fn proven(
        &self,
        segments: &Segments<'_>,
        roots: &RootsAround<'_>,
        take: &mut TakeDone<'_, utreexo::Partial>,
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

/// The roots around a segment, before and after it.
pub type RootsAround<'a> = dyn Fn(HeightRange) -> Option<(&'a Roots, &'a Roots)> + 'a;

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

/// Segments by proofs, done by other machines.
pub(crate) struct ProvenElsewhere<'a> {
    pub machines: &'a dyn Machines,
    pub plan: &'a Plan,
    pub roots: &'a RootsAround<'a>,
}

impl<'u> Dispatch<utreexo::Utreexo<'u>> for ProvenElsewhere<'_> {
    fn run(
        &self,
        job: &PassJob<'_, utreexo::Utreexo<'u>>,
        todo: &[HeightRange],
        counters: &Counters,
        take: &mut TakeDone<'_, utreexo::Partial>,
    ) -> Result<(), SyncError> {
        let PassJob { request, source, .. } = *job;
        let runs = <utreexo::Utreexo<'u> as Pass>::RUNS;
        let segments = Segments { request, source, plan: self.plan, todo, runs, counters };
        self.machines.proven(&segments, self.roots, take)
    }
}
