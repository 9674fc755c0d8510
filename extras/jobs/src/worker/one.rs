//! Takes a job, processes it, and answers it or gives it back. The upload of its result and the answer overlap with
//! the next job.

use super::segments::put;
use super::{HeldJob, WorkerState, retry};
use crate::error::{ClusterError, RemoteError, RemoteKind};
use crate::queue::{AnswerKind, JobAnswer, JobLease, JobMessage, ObjectRef, pass_on_delay};
use apus_engine::script::Signatures;
use apus_sync::engines::pass::Work;
use apus_sync::engines::swiftsync::{ByUndoError, UndoPassError};
use apus_sync::error::{ErrorKind, InvalidBlock, SyncError};
use apus_sync::supply::Walker;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A job delivered this often without an answer breaks the machines that take it.
const DELIVERIES_MAX: u64 = 100;

/// This machine stops after this many failed jobs in a row.
const FAILURES_MAX: u32 = 3;

/// Delay before a failed job is offered again; without it, the same machine would get it back at once.
const DELAY: Duration = Duration::from_secs(1);

/// This machine also stops if objects are missing for every job for this long. Other machines create them again
/// meanwhile, so it must be this machine that does not see them. The number of jobs does not matter: all outstanding
/// jobs may need the same object. The limit leaves room for twice the worst case: the job that created the object is
/// first detected as lost (half a minute), then takes minutes, and the last job that needs the object has just begun
/// its longest delay.
const LOST_LONGEST: Duration = Duration::from_secs(30 * 60);

/// Delay of a job when an object is missing for the first time: the job that created it must be repeated.
const LOST_DELAY: Duration = Duration::from_secs(5);

/// The delay doubles this many times. The longest is eleven minutes, in which one thread can try all outstanding jobs.
const LOST_DELAY_DOUBLINGS: u64 = 7;

/// Delay of a job with a missing object, after this many deliveries. A queue prefers jobs whose delay is over to new
/// ones. With short delays, the jobs that miss an object would be delivered again and again, and the new job that
/// creates the object would never be reached.
fn lost_delay(deliveries: u64) -> Duration {
    let doublings = deliveries.saturating_sub(1).min(LOST_DELAY_DOUBLINGS);
    LOST_DELAY * (1 << doublings)
}

/// Failures on this machine since it last finished a job.
#[derive(Default)]
pub(super) struct Failures {
    /// Failed jobs in a row.
    failed: AtomicU32,
    /// When an object was first missing, and for how many jobs since.
    lost: Mutex<Option<(Instant, u32)>>,
}

impl Failures {
    /// Forgets all failures, after a finished job.
    fn reset(&self) {
        self.failed.store(0, Ordering::Relaxed);
        *self.lost.lock() = None;
    }

    /// Counts a failed job, and fails after [`FAILURES_MAX`].
    fn fail(&self, text: String) -> Result<(), SyncError> {
        let jobs = self.failed.fetch_add(1, Ordering::Relaxed) + 1;
        match jobs >= FAILURES_MAX {
            true => Err(ClusterError::Worker { jobs, text }.into()),
            false => Ok(()),
        }
    }

    /// Counts a job with a missing object, and fails once that has lasted for [`LOST_LONGEST`].
    fn lose(&self, now: Instant, text: String) -> Result<(), SyncError> {
        let mut lost = self.lost.lock();
        let (since, jobs) = lost.get_or_insert((now, 0));
        *jobs += 1;
        match now.saturating_duration_since(*since) >= LOST_LONGEST {
            true => Err(ClusterError::Worker { jobs: *jobs, text }.into()),
            false => Ok(()),
        }
    }
}

/// How a job ended.
enum JobEnd {
    /// It is done, with this result.
    Finished(ObjectRef, Work),
    /// It was interrupted.
    Halted,
    /// The blocks or the payload are invalid.
    Refused(SyncError),
    /// An object of another job is missing or damaged.
    Lost([u8; 32], String),
    /// This machine failed.
    Failed(SyncError),
}

impl JobEnd {
    fn of(error: SyncError) -> Self {
        if let Some(ClusterError::Lost { object, why }) = ClusterError::of(&error) {
            return Self::Lost(*object, why.clone());
        }
        // Undo data are local: another machine may have intact ones.
        if let Some(ByUndoError(UndoPassError::Undo { .. })) = error.downcast() {
            return Self::Failed(error);
        }
        match error {
            SyncError::Interrupted => Self::Halted,
            error if InvalidBlock::of(&error).is_some() => Self::Refused(error),
            error @ SyncError::Invalid(_) => Self::Refused(error),
            error @ SyncError::Run(_)
                if matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Wrong) =>
            {
                Self::Refused(error)
            }
            error => Self::Failed(error),
        }
    }
}

/// Converts an error for the coordinator.
fn remote(error: &SyncError) -> RemoteError {
    let kind = match InvalidBlock::of(error) {
        Some(block) => RemoteKind::Block(block),
        None if error.is_about_hints() => RemoteKind::Hints,
        None => RemoteKind::Other,
    };
    RemoteError { kind, text: error.to_string() }
}

/// A job that has ended and is not answered yet.
pub(super) struct UnreportedJob<'l> {
    lease: Box<dyn JobLease + 'l>,
    job: JobMessage,
    /// Time the machine took.
    busy: Duration,
    /// Its result, `None` if it was halted.
    outcome: Result<Option<(Vec<u8>, Work)>, SyncError>,
    /// Objects to store before the answer.
    objects: Vec<(ObjectRef, Arc<Vec<u8>>)>,
}

impl UnreportedJob<'_> {
    /// Sends a heartbeat.
    pub(super) fn alive(&self) {
        self.lease.alive();
    }
}

impl WorkerState<'_> {
    /// Processes a job and returns it for [`WorkerState::report`]; `None` if the job is for other machines or already
    /// answered. On an error this machine leaves the run.
    pub(super) fn run_job<'l>(
        &self,
        lease: Box<dyn JobLease + 'l>,
        walker: &mut Walker<'_>,
    ) -> Result<Option<UnreportedJob<'l>>, SyncError> {
        let began = Instant::now();
        let job = match JobMessage::from_bytes(lease.message(), self.run) {
            Ok(job) => job,
            Err(error) => {
                // Another version of the program may understand it.
                let _ = lease.give_back(DELAY, None);
                return Err(ClusterError::Message(error.to_string()).into());
            }
        };
        let key = job.key;
        if job.not_by.as_deref() == Some(self.jobs.name()) {
            let delay = pass_on_delay();
            retry(self.request).with(|| lease.give_back(delay, None))?;
            return Ok(None);
        }
        if lease.deliveries() > 1 && retry(self.request).with(|| lease.is_answered(key))? {
            retry(self.request).with(|| lease.done())?;
            return Ok(None);
        }
        let (request, run, supply) = (self.request, self.run, &self.supply);
        let task =
            HeldJob { request, run, job: &job, lease: &*lease, supply, objects: Mutex::default() };
        let outcome = match lease.deliveries() {
            ..=DELIVERIES_MAX => self.runner.job(&task, walker),
            times => Err(ClusterError::Message(format!(
                "it was delivered {times} times and never answered"
            ))
            .into()),
        };
        let (objects, busy) = (task.objects.into_inner(), began.elapsed());
        Ok(Some(UnreportedJob { lease, job, busy, outcome, objects }))
    }

    /// Uploads the result of a job, and answers the job or gives it back. On an error this machine leaves the run.
    pub(super) fn report(&self, left: UnreportedJob<'_>) -> Result<(), SyncError> {
        let UnreportedJob { lease, job, busy, outcome, objects } = left;
        let (key, began) = (job.key, Instant::now());
        let answer = |kind| {
            let (run, input, worker) = (self.run, job.input, self.jobs.name().to_owned());
            JobAnswer { run, key, input, worker, kind }.to_bytes()
        };
        if Signatures::are_faulty() {
            // Not an answer to this job: if it had one already, the queue would drop this.
            let message = answer(AnswerKind::Faulty);
            let trouble = Some((key, &message[..]));
            retry(self.request).with(|| lease.give_back(Duration::ZERO, trouble))?;
            return Err(ClusterError::Faulty { worker: self.jobs.name().to_owned() }.into());
        }
        match self.upload(&*lease, outcome, objects) {
            JobEnd::Finished(result, work) => {
                let micros = (busy + began.elapsed()).as_micros() as u64;
                let message = answer(AnswerKind::Done { result, work, micros });
                retry(self.request).with(|| lease.answer(key, &message))?;
                self.failures.reset();
                self.count(work);
                Ok(())
            }
            JobEnd::Refused(error) => {
                let message = answer(AnswerKind::Refused(remote(&error)));
                retry(self.request).with(|| lease.answer(key, &message))
            }
            JobEnd::Failed(_) | JobEnd::Lost(..) | JobEnd::Halted if lease.is_over() => Ok(()),
            JobEnd::Halted => {
                // If this fails, the queue soon misses the heartbeats and requeues the job.
                let _ = lease.give_back(Duration::ZERO, None);
                Ok(())
            }
            JobEnd::Lost(object, text) => {
                let message = answer(AnswerKind::Lost { object, text: text.clone() });
                let delay = lost_delay(lease.deliveries());
                retry(self.request).with(|| lease.give_back(delay, Some((key, &message))))?;
                self.failures.lose(Instant::now(), text)
            }
            JobEnd::Failed(error) => {
                let text = error.to_string();
                let message = answer(AnswerKind::Trouble(text.clone()));
                retry(self.request).with(|| lease.give_back(DELAY, Some((key, &message))))?;
                self.failures.fail(text)
            }
        }
    }

    fn count(&self, work: Work) {
        let mut done = self.done.lock();
        done.segments += 1;
        done.work.blocks += work.blocks;
        done.work.bytes += work.bytes;
        done.work.coins += work.coins;
    }

    /// Stores the objects and the result of a job, if it has one.
    fn upload(
        &self,
        lease: &dyn JobLease,
        outcome: Result<Option<(Vec<u8>, Work)>, SyncError>,
        objects: Vec<(ObjectRef, Arc<Vec<u8>>)>,
    ) -> JobEnd {
        let (bytes, work) = match outcome {
            Ok(Some(done)) => done,
            Ok(None) => return JobEnd::Halted,
            Err(error) => return JobEnd::of(error),
        };
        let result = ObjectRef::of(&bytes);
        let mut all = objects.into_iter().chain([(result, Arc::new(bytes))]);
        let put = |(of, bytes): (ObjectRef, Arc<Vec<u8>>)| put(self.request, lease, &of, &bytes);
        match all.try_for_each(put) {
            Ok(()) => JobEnd::Finished(result, work),
            Err(error) => JobEnd::of(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_of_a_job_with_a_missing_object_grows() {
        let delays = [0, 1, 2, 3, 8, 9, u64::MAX].map(|times| lost_delay(times).as_secs());
        assert_eq!(delays, [5, 5, 10, 20, 640, 640, 640]);
    }

    /// The limit does not depend on the number of jobs, or on the time since the last finished one.
    #[test]
    fn a_machine_that_misses_objects_for_long_stops() {
        let (failures, began) = (Failures::default(), Instant::now());
        let lose = |after: Duration| failures.lose(began + after, "it is not there".to_owned());
        let nearly = LOST_LONGEST - Duration::from_secs(1);
        for _ in 0..1000 {
            lose(Duration::ZERO).unwrap();
        }
        lose(nearly).unwrap();
        failures.reset();
        // The machine was idle in between.
        lose(3 * LOST_LONGEST).unwrap();
        lose(3 * LOST_LONGEST + nearly).unwrap();
        let error = lose(4 * LOST_LONGEST).unwrap_err().to_string();
        assert!(error.starts_with("3 jobs in a row") && error.contains("not there"), "{error}");
    }

    #[test]
    fn a_machine_stops_after_several_failed_jobs() {
        let failures = Failures::default();
        let fail = || failures.fail("no space".to_owned());
        fail().unwrap();
        fail().unwrap();
        failures.reset();
        fail().unwrap();
        fail().unwrap();
        assert!(fail().unwrap_err().to_string().contains("no space"));
    }
}
