//! One job: taken, done, answered or given back.

use super::{Working, patience};
use crate::error::{ClusterError, InvalidBlock, InvalidError, RemoteError, RemoteKind, SyncError};
use crate::pass::do_segment;
use crate::queue::{Answer, AnswerKind, JobMessage, Lease, ObjectRef, SegmentResult, hints};
use crate::supply::Walker;
use apus_engine::pass::{FinishedSegment, PartialResult, Pass, Work};
use apus_engine::swiftsync::{FullyError, Partial, SegmentHints};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A job that was given so often without an answer breaks the machines that take it.
const DELIVERIES_MAX: u64 = 100;

/// After so many jobs in a row that this machine could not do, it takes no more.
const FAILURES_MAX: u32 = 3;

/// How long a job rests that a machine could not do: that machine would be offered it again at once.
const REST: Duration = Duration::from_secs(1);

/// Jobs in a row that could not be done.
#[derive(Default)]
pub(super) struct Failures(AtomicU32);

/// What became of a segment.
enum Ended {
    /// It is done, and this is what it leaves.
    Finished(ObjectRef, Work),
    /// It was stopped on the way.
    Halted,
    /// Blocks, or what was told of them, are at fault.
    Refused(SyncError),
    /// This machine is at fault.
    Failed(SyncError),
}

impl Ended {
    fn of(error: SyncError) -> Self {
        match error {
            SyncError::Interrupted => Self::Halted,
            SyncError::Invalid(InvalidError::ByUndo(error))
                if matches!(*error, FullyError::Undo { .. }) =>
            {
                // Another machine may have better ones.
                Self::Failed(InvalidError::ByUndo(error).into())
            }
            error @ SyncError::Invalid(_) => Self::Refused(error),
            error => Self::Failed(error),
        }
    }
}

/// What another machine is told of an error.
fn remote(error: &SyncError) -> RemoteError {
    let kind = match InvalidBlock::of(error) {
        Some(block) => RemoteKind::Block(block),
        None if error.is_about_hints() => RemoteKind::Hints,
        None => RemoteKind::Other,
    };
    RemoteError { kind, text: error.to_string() }
}

impl<P: Pass<Input = SegmentHints, Partial = Partial>> Working<'_, P>
where
    SyncError: From<P::Error>,
{
    /// Does a job. An error ends this machine's part in the run.
    pub(super) fn one(&self, lease: &dyn Lease, walker: &mut Walker<'_>) -> Result<(), SyncError> {
        let began = Instant::now();
        let job = match JobMessage::from_bytes(lease.message(), self.run) {
            Ok(job) => job,
            Err(error) => {
                // Another program may know what it is.
                let _ = lease.give_back(REST, None);
                return Err(ClusterError::Message(error.to_string()).into());
            }
        };
        let range = job.range;
        if lease.deliveries() > 1 && patience(self.request).with(|| lease.is_answered(range))? {
            return patience(self.request).with(|| lease.done());
        }
        let ended = match lease.deliveries() {
            ..=DELIVERIES_MAX => self.done(&job, lease, walker),
            times => Ended::Failed(
                ClusterError::Message(format!("it was given {times} times and never answered"))
                    .into(),
            ),
        };
        let answer = |kind| {
            let (run, input, worker) = (self.run, job.input, self.jobs.name().to_owned());
            Answer { run, range, input, worker, kind }.to_bytes()
        };
        match ended {
            Ended::Finished(result, work) => {
                let micros = began.elapsed().as_micros() as u64;
                let message = answer(AnswerKind::Done { result, work, micros });
                patience(self.request).with(|| lease.answer(range, &message))?;
                self.failures.0.store(0, Ordering::Relaxed);
                self.count(work);
                Ok(())
            }
            Ended::Refused(error) => {
                let message = answer(AnswerKind::Refused(remote(&error)));
                patience(self.request).with(|| lease.answer(range, &message))
            }
            Ended::Halted => {
                // If it cannot be told, the job is missed soon.
                let _ = lease.give_back(Duration::ZERO, None);
                Ok(())
            }
            Ended::Failed(_) if lease.is_over() => Ok(()),
            Ended::Failed(error) => {
                let text = error.to_string();
                let message = answer(AnswerKind::Trouble(text.clone()));
                let told = || lease.give_back(REST, Some((range, &message)));
                patience(self.request).with(told)?;
                let jobs = self.failures.0.fetch_add(1, Ordering::Relaxed) + 1;
                match jobs >= FAILURES_MAX {
                    true => Err(ClusterError::Worker { jobs, text }.into()),
                    false => Ok(()),
                }
            }
        }
    }

    fn count(&self, work: Work) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.segments += 1;
        done.work.blocks += work.blocks;
        done.work.bytes += work.bytes;
        done.work.coins += work.coins;
    }

    /// Does the segment, and puts what it leaves.
    fn done(&self, job: &JobMessage, lease: &dyn Lease, walker: &mut Walker<'_>) -> Ended {
        let finished = match self.segment(job, lease, walker) {
            Ok(Some(finished)) => finished,
            Ok(None) => return Ended::Halted,
            Err(error) => return Ended::of(error),
        };
        let bytes = SegmentResult::write(self.run, job.range, &finished);
        let work = finished.partial.done();
        // Its runs are in those bytes.
        drop(finished);
        match patience(self.request).with(|| lease.put_object(&bytes)) {
            Ok(result) => Ended::Finished(result, work),
            Err(error) => Ended::of(error),
        }
    }

    fn segment(
        &self,
        job: &JobMessage,
        lease: &dyn Lease,
        walker: &mut Walker<'_>,
    ) -> Result<Option<FinishedSegment<Partial>>, SyncError> {
        let told = patience(self.request).with(|| lease.object(&job.input))?;
        let told = hints::read(&told, job.range);
        let told = told.map_err(|error| ClusterError::Message(error.to_string()))?;
        let alive = |_, _| lease.alive();
        do_segment(self.pass, told, job.range, &self.supply, walker, &alive)
    }
}
