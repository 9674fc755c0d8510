//! The segments of a pass, done by other machines.
//!
//! A job goes into the queue for each segment, and an answer comes back; which machine does which, and how often a
//! job is offered, is the queue's business. An answer counts if it is of this run, these heights and the very input,
//! and each segment counts once, whatever comes twice. All that is needed to go on after a crash is in the work folder
//! and in the queue: what was answered meanwhile is found there. The desk is for any jobs of a run.

use crate::desk::{Answered, Useless, await_closed};
use crate::job::JobKey;
use crate::mergesync;
use crate::queue::{PassKind, ReadPartial, SegmentResult, hints, told};
use crate::shared::{SharedQueue, SharedRun, open};
use apus_chain::HeightRange;
use apus_sync::engines::mergesync as engine;
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::engines::swiftsync::{self, SegmentHints};
use apus_sync::error::{SyncError, UsageError};
use apus_sync::machines::{AnyPartial, Machines, NamedPass, Segments, TellSegment};
use apus_sync::pass::TakeDone;
use apus_sync::request::Request;
use apus_sync::source::GivenBlocks;
use apus_sync::supply::weight_of;
use apus_sync::workdir::plan::Plan;
use apus_sync::workdir::{FinishedRange, Workdir};

impl Machines for SharedQueue<'_> {
    fn given(&self) -> Option<&GivenBlocks> {
        self.queue.given()
    }

    fn hinted(
        &self,
        segments: &Segments<'_>,
        input: &dyn Fn(HeightRange) -> Result<SegmentHints, SyncError>,
        take: &mut TakeDone<'_, swiftsync::Partial>,
    ) -> Result<(), SyncError> {
        let pass = match segments.plan.identity.aggregate {
            AggregateKind::Coins => PassKind::Fully,
            _ => PassKind::SwiftSync,
        };
        let told = |range| Ok(hints::write(&input(range)?));
        let mut take = |done: Option<FinishedRange<AnyPartial>>| {
            take(done.map(|done| done.map(AnyPartial::into)))
        };
        let read = AnyPartial::read::<swiftsync::Partial>;
        self.segments(segments, (pass, read), &told, &mut take)
    }

    fn outside(
        &self,
        segments: &Segments<'_>,
        pass: &NamedPass<'_>,
        take: &mut TakeDone<'_, AnyPartial>,
    ) -> Result<(), SyncError> {
        let what = "a run by this engine";
        let kind = PassKind::of_name(pass.name).ok_or(UsageError::NotOnCluster { what })?;
        let told = |range| Ok(told::write(range, &(pass.told)(range)?));
        self.segments(segments, (kind, pass.read), &told, take)
    }

    fn merge(
        &self,
        work: &engine::MergeWork<'_>,
        workdir: &Workdir<'_>,
        plan: &Plan,
    ) -> Result<engine::SharedResult, SyncError> {
        mergesync::run(work, self, workdir, plan)
    }

    fn closed(&self, request: &Request<'_>) {
        await_closed(request, self.queue);
    }
}

impl SharedQueue<'_> {
    fn segments(
        &self,
        segments: &Segments<'_>,
        (pass, read): (PassKind, ReadPartial),
        told: &TellSegment<'_>,
        take: &mut TakeDone<'_, AnyPartial>,
    ) -> Result<(), SyncError> {
        let shared = SharedRun { of: *self, pass, plan: segments.plan };
        // With nothing to do the run is ended all the same: the start before this one may have been killed when all was
        // done, and machines still wait for jobs of it.
        match hand_out(&shared, segments, (told, read), take) {
            // What is under way goes on, and is found by the next start.
            Err(SyncError::Interrupted) => Ok(()),
            other => other,
        }
    }
}

fn hand_out(
    shared: &SharedRun<'_>,
    segments: &Segments<'_>,
    (told, read): (&TellSegment<'_>, ReadPartial),
    take: &mut TakeDone<'_, AnyPartial>,
) -> Result<(), SyncError> {
    let Segments { request, source, todo, runs, counters, .. } = *segments;
    let mut desk = open(shared, request, source)?;
    let run = desk.run();
    let told = |key: JobKey| told(key.range).map(Some);
    let mut read_answer = |Answered { key, bytes }: Answered| {
        let range = key.range;
        let finished = SegmentResult::read(bytes, run, range, runs.len(), read);
        let finished = finished.map_err(|error| Useless::Result(error.to_string()))?;
        Ok(FinishedRange::held(range, finished, runs))
    };
    let mut take = |done: Option<FinishedRange<AnyPartial>>| {
        if let Some(done) = &done {
            let AnyPartial { done: work, coins_about, .. } = done.partial;
            counters.add(work);
            counters.finished(work.bytes, coins_about);
            counters.add_weight(weight_of(source, done.range));
        }
        take(done)
    };
    let todo = todo.iter().map(|range| JobKey::blocks(*range));
    match desk.step(todo, &told, &mut read_answer, &mut take) {
        Ok(None) => {
            desk.close();
            Ok(())
        }
        Ok(Some((_, verdict))) => {
            desk.close();
            Err(verdict)
        }
        Err(error) if error.spoils_progress() => {
            desk.close();
            Err(error)
        }
        Err(error) => Err(error),
    }
}
