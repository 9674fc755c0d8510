//! [`OwnJob`]: a job that a machine refused, done once more here before the machine is believed.
//!
//! A verdict ends the run for all, and the words of one machine are cheap. The job is done as any worker does it, on the
//! blocks of the run's own folder, with what the job was told. What it leaves goes nowhere.

use super::Desk;
use crate::error::QueueError;
use crate::job::JobKey;
use crate::queue::{
    AnswerKind, JobAnswer, JobLease, JobMessage, JobOffer, JobQueue, Jobs, ObjectPart, ObjectRef,
};
use crate::worker::do_job;
use apus_sync::error::SyncError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// As whom the run does a job itself.
const NAME: &str = "the coordinator";

impl Desk<'_> {
    /// Does a job here, and says what came of it.
    pub(super) fn judge(&self, key: JobKey, input: ObjectRef) -> Result<AnswerKind, SyncError> {
        let job = JobMessage { run: self.run, key, input, not_by: None }.to_bytes();
        let judge = OwnJob {
            queue: self.queue,
            spec: &self.spec,
            job,
            given: Mutex::default(),
            said: Mutex::default(),
        };
        do_job(self.request, &judge, self.source)?;
        let said = std::mem::take(&mut *judge.said());
        let answer = said.and_then(|said| JobAnswer::from_bytes(&said, self.run).ok());
        answer.map(|answer| answer.kind).ok_or(SyncError::Interrupted)
    }
}

/// One job, and a worker's way to it. See the module.
struct OwnJob<'j> {
    queue: &'j dyn JobQueue,
    spec: &'j [u8],
    job: Vec<u8>,
    /// Whether the job was given out.
    given: Mutex<bool>,
    /// What was said of it.
    said: Mutex<Option<Vec<u8>>>,
}

impl OwnJob<'_> {
    fn said(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Jobs for OwnJob<'_> {
    fn spec(&self) -> &[u8] {
        self.spec
    }

    fn name(&self) -> &str {
        NAME
    }

    fn object(&self, of: &ObjectRef) -> Result<Vec<u8>, QueueError> {
        self.queue.object(of)
    }

    fn take(&self, _: Duration) -> Result<JobOffer<'_>, QueueError> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *given, true) {
            false => Ok(JobOffer::Job(Box::new(JudgedJob(self)))),
            true => Ok(JobOffer::Over),
        }
    }
}

/// The job in the hands of the thread that does it.
struct JudgedJob<'j>(&'j OwnJob<'j>);

impl JobLease for JudgedJob<'_> {
    fn message(&self) -> &[u8] {
        &self.0.job
    }

    fn deliveries(&self) -> u64 {
        1
    }

    fn alive(&self) {}

    fn object(&self, of: &ObjectRef) -> Result<Vec<u8>, QueueError> {
        self.0.queue.object(of)
    }

    fn object_parts(&self, parts: &[ObjectPart]) -> Result<Vec<Vec<u8>>, (usize, QueueError)> {
        self.0.queue.object_parts(parts)
    }

    fn put_object(&self, _: &ObjectRef, _: &Arc<Vec<u8>>) -> Result<(), QueueError> {
        Ok(())
    }

    fn is_over(&self) -> bool {
        false
    }

    fn is_answered(&self, _: JobKey) -> Result<bool, QueueError> {
        Ok(false)
    }

    fn answer(&self, _: JobKey, message: &[u8]) -> Result<(), QueueError> {
        *self.0.said() = Some(message.to_vec());
        Ok(())
    }

    fn done(&self) -> Result<(), QueueError> {
        Ok(())
    }

    fn give_back(&self, _: Duration, trouble: Option<(JobKey, &[u8])>) -> Result<(), QueueError> {
        *self.0.said() = trouble.map(|(_, message)| message.to_vec());
        Ok(())
    }
}
