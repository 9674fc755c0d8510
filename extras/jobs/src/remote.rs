//! Has the segments of a pass processed by other machines.
//!
//! Each segment is a job in the queue and gets one answer; the queue decides which machine gets which job and how
//! often it offers a job. An answer counts if it names this run, these heights and the exact input. Each segment
//! counts once, even if two answers arrive. A crashed run resumes from its work folder and the queue, which holds the
//! answers that arrived in the meantime. The [`Scheduler`](crate::scheduler::Scheduler) runs the jobs of any step.

use crate::job::JobKey;
use crate::mergesync;
use crate::queue::{PassKind, ReadPartial, SegmentResult, hints, payload};
use crate::scheduler::{AnswerError, JobResult, end};
use crate::shared::{SharedQueue, SharedRun, open};
use apus_chain::HeightRange;
use apus_sync::engines::mergesync as engine;
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::engines::swiftsync::{self, SegmentHints};
use apus_sync::error::{SyncError, UsageError};
use apus_sync::machines::{AnyPartial, EncodeInput, Machines, NamedPass, Segments};
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
        let payload = |range| Ok(hints::write(&input(range)?));
        let mut take = |done: Option<FinishedRange<AnyPartial>>| {
            take(done.map(|done| done.map(AnyPartial::into)))
        };
        let read = AnyPartial::read::<swiftsync::Partial>;
        self.segments(segments, (pass, read), &payload, &mut take)
    }

    fn outside(
        &self,
        segments: &Segments<'_>,
        pass: &NamedPass<'_>,
        take: &mut TakeDone<'_, AnyPartial>,
    ) -> Result<(), SyncError> {
        let what = "a run with this engine";
        let kind = PassKind::of_name(pass.name).ok_or(UsageError::NotOnCluster { what })?;
        let payload = |range| Ok(payload::write(range, &(pass.payload)(range)?));
        self.segments(segments, (kind, pass.read), &payload, take)
    }

    fn merge(
        &self,
        work: &engine::MergeWork<'_>,
        workdir: &Workdir<'_>,
        plan: &Plan,
    ) -> Result<engine::SharedResult, SyncError> {
        mergesync::run(work, self, workdir, plan)
    }

    fn end(&self, request: &Request<'_>, is_over: bool) {
        end(request, self.queue, is_over);
    }
}

impl SharedQueue<'_> {
    fn segments(
        &self,
        segments: &Segments<'_>,
        (pass, read): (PassKind, ReadPartial),
        payload: &EncodeInput<'_>,
        take: &mut TakeDone<'_, AnyPartial>,
    ) -> Result<(), SyncError> {
        let shared = SharedRun { of: *self, pass, plan: segments.plan };
        // Close the run even if there is nothing left to do: an earlier start may have been killed after the last
        // segment, and machines still wait for jobs of it.
        match hand_out(&shared, segments, (payload, read), take) {
            // Machines finish the jobs they have; the next start finds the answers.
            Err(SyncError::Interrupted) => Ok(()),
            other => other,
        }
    }
}

fn hand_out(
    shared: &SharedRun<'_>,
    segments: &Segments<'_>,
    (payload, read): (&EncodeInput<'_>, ReadPartial),
    take: &mut TakeDone<'_, AnyPartial>,
) -> Result<(), SyncError> {
    let Segments { request, source, todo, runs, counters, .. } = *segments;
    let mut scheduler = open(shared, request, source)?;
    let run = scheduler.run();
    let payload = |key: JobKey| payload(key.range).map(Some);
    let mut read_answer = |JobResult { key, bytes }: JobResult| {
        let range = key.range;
        let finished = SegmentResult::read(bytes, run, range, runs.len(), read);
        let finished = finished.map_err(|error| AnswerError::Invalid(error.to_string()))?;
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
    match scheduler.step(todo, &payload, &mut read_answer, &mut take) {
        Ok(None) => {
            scheduler.close();
            Ok(())
        }
        Ok(Some(verdict)) => {
            scheduler.close();
            Err(verdict)
        }
        Err(error) => Err(scheduler.close_if_spoilt(error)),
    }
}
