//! One job: taken, done, answered or given back. What it leaves is put, and the answer given, while the next one is done.

use super::segments::put;
use super::{Hand, Working, patience};
use crate::error::{ClusterError, RemoteError, RemoteKind};
use crate::queue::{AnswerKind, JobAnswer, JobLease, JobMessage, ObjectRef, rest_of_passed_on};
use apus_sync::engines::pass::Work;
use apus_sync::engines::swiftsync::{ByUndoError, FullyError};
use apus_sync::error::{ErrorKind, InvalidBlock, SyncError};
use apus_sync::supply::Walker;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A job that was given so often without an answer breaks the machines that take it.
const DELIVERIES_MAX: u64 = 100;

/// After so many jobs in a row that this machine could not do, it takes no more.
const FAILURES_MAX: u32 = 3;

/// How long a job rests that a machine could not do: that machine would be offered it again at once.
const REST: Duration = Duration::from_secs(1);

/// Where objects are missing for one job after the other, for so long, it takes no more either. Other machines put them again
/// meanwhile, unless it is this one that does not see them. How many jobs that are does not matter: all that are out may
/// miss one object. The job that left it may have to be missed first (half a minute) and take minutes, and the last one
/// that misses it may have just begun its longest rest; all of that has room here, twice.
const LOST_LONGEST: Duration = Duration::from_secs(30 * 60);

/// How long a job rests when an object was missing for it for the first time: what left that has to be done again.
const LOST_REST: Duration = Duration::from_secs(5);

/// So often a rest is twice as long as the one before. The longest is eleven minutes: enough for one thread to try as many
/// jobs as are out.
const LOST_REST_DOUBLINGS: u64 = 7;

/// How long a job rests that was given so often when an object was missing for it. A queue gives jobs whose rest is over before
/// new ones. If all rests were short, those that miss an object would come round and round, and the job that makes it
/// again, which is a new one, would never be reached.
fn rest_of_lost(deliveries: u64) -> Duration {
    let doublings = deliveries.saturating_sub(1).min(LOST_REST_DOUBLINGS);
    LOST_REST * (1 << doublings)
}

/// What went wrong on this machine since it finished a job.
#[derive(Default)]
pub(super) struct Failures {
    /// Jobs in a row that could not be done.
    failed: AtomicU32,
    /// When an object was missing first, and for how many jobs one was.
    lost: Mutex<Option<(Instant, u32)>>,
}

impl Failures {
    /// It finished a job.
    fn end(&self) {
        self.failed.store(0, Ordering::Relaxed);
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Counts one more job that could not be done, which may be too many.
    fn fail(&self, text: String) -> Result<(), SyncError> {
        let jobs = self.failed.fetch_add(1, Ordering::Relaxed) + 1;
        match jobs >= FAILURES_MAX {
            true => Err(ClusterError::Worker { jobs, text }.into()),
            false => Ok(()),
        }
    }

    /// Counts one more job for which an object is missing; that may have gone on for too long.
    fn lose(&self, now: Instant, text: String) -> Result<(), SyncError> {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, jobs) = lost.get_or_insert((now, 0));
        *jobs += 1;
        match now.saturating_duration_since(*since) >= LOST_LONGEST {
            true => Err(ClusterError::Worker { jobs: *jobs, text }.into()),
            false => Ok(()),
        }
    }
}

/// What became of a segment.
enum JobEnd {
    /// It is done, and this is what it leaves.
    Finished(ObjectRef, Work),
    /// It was stopped on the way.
    Halted,
    /// Blocks, or what was told of them, are at fault.
    Refused(SyncError),
    /// An object that others left is not there, or damaged.
    Lost([u8; 32], String),
    /// This machine is at fault.
    Failed(SyncError),
}

impl JobEnd {
    fn of(error: SyncError) -> Self {
        if let Some(ClusterError::Lost { object, why }) = ClusterError::of(&error) {
            return Self::Lost(*object, why.clone());
        }
        // Another machine may have better undo data.
        if let Some(ByUndoError(FullyError::Undo { .. })) = error.downcast() {
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

/// What another machine is told of an error.
fn remote(error: &SyncError) -> RemoteError {
    let kind = match InvalidBlock::of(error) {
        Some(block) => RemoteKind::Block(block),
        None if error.is_about_hints() => RemoteKind::Hints,
        None => RemoteKind::Other,
    };
    RemoteError { kind, text: error.to_string() }
}

/// A job that was done, or not, whose machine has still to say so.
pub(super) struct Left<'l> {
    lease: Box<dyn JobLease + 'l>,
    job: JobMessage,
    /// How long the machine was at it.
    busy: Duration,
    /// What it leaves, none where it was halted; and objects that are still here.
    outcome: Result<Option<(Vec<u8>, Work)>, SyncError>,
    objects: Vec<(ObjectRef, Arc<Vec<u8>>)>,
}

impl Left<'_> {
    /// Gives a sign of life.
    pub(super) fn alive(&self) {
        self.lease.alive();
    }
}

impl Working<'_> {
    /// Does a job, and says what is left to be said of it; nothing where it was for others. An error ends this machine's
    /// part in the run.
    pub(super) fn one<'l>(
        &self,
        lease: Box<dyn JobLease + 'l>,
        walker: &mut Walker<'_>,
    ) -> Result<Option<Left<'l>>, SyncError> {
        let began = Instant::now();
        let job = match JobMessage::from_bytes(lease.message(), self.run) {
            Ok(job) => job,
            Err(error) => {
                // Another program may know what it is.
                let _ = lease.give_back(REST, None);
                return Err(ClusterError::Message(error.to_string()).into());
            }
        };
        let key = job.key;
        if job.not_by.as_deref() == Some(self.jobs.name()) {
            let rest = rest_of_passed_on();
            patience(self.request).with(|| lease.give_back(rest, None))?;
            return Ok(None);
        }
        if lease.deliveries() > 1 && patience(self.request).with(|| lease.is_answered(key))? {
            patience(self.request).with(|| lease.done())?;
            return Ok(None);
        }
        let (request, run, supply) = (self.request, self.run, &self.supply);
        let hand = Hand { request, run, job: &job, lease: &*lease, supply, held: Mutex::default() };
        let outcome = match lease.deliveries() {
            ..=DELIVERIES_MAX => self.does.job(&hand, walker),
            times => {
                Err(ClusterError::Message(format!("it was given {times} times and never answered"))
                    .into())
            }
        };
        let (objects, busy) =
            (hand.held.into_inner().unwrap_or_else(PoisonError::into_inner), began.elapsed());
        Ok(Some(Left { lease, job, busy, outcome, objects }))
    }

    /// Puts what a job leaves, and answers it or gives it back. An error ends this machine's part in the run.
    pub(super) fn say(&self, left: Left<'_>) -> Result<(), SyncError> {
        let Left { lease, job, busy, outcome, objects } = left;
        let (key, began) = (job.key, Instant::now());
        let answer = |kind| {
            let (run, input, worker) = (self.run, job.input, self.jobs.name().to_owned());
            JobAnswer { run, key, input, worker, kind }.to_bytes()
        };
        match self.ended(&*lease, outcome, objects) {
            JobEnd::Finished(result, work) => {
                let micros = (busy + began.elapsed()).as_micros() as u64;
                let message = answer(AnswerKind::Done { result, work, micros });
                patience(self.request).with(|| lease.answer(key, &message))?;
                self.failures.end();
                self.count(work);
                Ok(())
            }
            JobEnd::Refused(error) => {
                let message = answer(AnswerKind::Refused(remote(&error)));
                patience(self.request).with(|| lease.answer(key, &message))
            }
            JobEnd::Halted => {
                // If it cannot be told, the job is missed soon.
                let _ = lease.give_back(Duration::ZERO, None);
                Ok(())
            }
            JobEnd::Failed(_) | JobEnd::Lost(..) if lease.is_over() => Ok(()),
            JobEnd::Lost(object, text) => {
                let message = answer(AnswerKind::Lost { object, text: text.clone() });
                let rest = rest_of_lost(lease.deliveries());
                let told = || lease.give_back(rest, Some((key, &message)));
                patience(self.request).with(told)?;
                self.failures.lose(Instant::now(), text)
            }
            JobEnd::Failed(error) => {
                let text = error.to_string();
                let message = answer(AnswerKind::Trouble(text.clone()));
                let told = || lease.give_back(REST, Some((key, &message)));
                patience(self.request).with(told)?;
                self.failures.fail(text)
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

    /// Puts what a job leaves, if it leaves anything.
    fn ended(
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
    fn a_job_that_misses_an_object_rests_longer_each_time() {
        let rests = [0, 1, 2, 3, 8, 9, u64::MAX].map(|times| rest_of_lost(times).as_secs());
        assert_eq!(rests, [5, 5, 10, 20, 640, 640, 640]);
    }

    /// However many jobs miss objects, and whatever lies between them and the last one that was finished.
    #[test]
    fn a_machine_that_misses_objects_for_long_takes_no_more_jobs() {
        let (failures, began) = (Failures::default(), Instant::now());
        let lose = |after: Duration| failures.lose(began + after, "it is not there".to_owned());
        let nearly = LOST_LONGEST - Duration::from_secs(1);
        for _ in 0..1000 {
            lose(Duration::ZERO).unwrap();
        }
        lose(nearly).unwrap();
        failures.end();
        // It had nothing to do meanwhile.
        lose(3 * LOST_LONGEST).unwrap();
        lose(3 * LOST_LONGEST + nearly).unwrap();
        let error = lose(4 * LOST_LONGEST).unwrap_err().to_string();
        assert!(error.starts_with("3 jobs in a row") && error.contains("not there"), "{error}");
    }

    #[test]
    fn a_machine_that_cannot_do_its_jobs_takes_no_more() {
        let failures = Failures::default();
        let fail = || failures.fail("no space".to_owned());
        fail().unwrap();
        fail().unwrap();
        failures.end();
        fail().unwrap();
        fail().unwrap();
        assert!(fail().unwrap_err().to_string().contains("no space"));
    }
}
