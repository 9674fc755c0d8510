//! [`OwnJob`]: a rejected job that the coordinator repeats before it believes the machine.
//!
//! A verdict ends the run for all machines, and one faulty machine must not be able to do that. The coordinator
//! processes the job like any worker, with the blocks of its own folder and the same payload. The result is
//! discarded.

use super::Scheduler;
use crate::error::QueueError;
use crate::job::JobKey;
use crate::queue::{
    AnswerKind, JobAnswer, JobLease, JobMessage, JobOffer, JobQueue, Jobs, ObjectPart, ObjectRef,
};
use crate::worker::do_job;
use apus_sync::error::SyncError;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// The name of the coordinator as a worker.
pub(super) const NAME: &str = "the coordinator";

impl Scheduler<'_> {
    /// Processes a job on the coordinator and returns the answer.
    pub(super) fn repeat_here(
        &self,
        key: JobKey,
        input: ObjectRef,
    ) -> Result<AnswerKind, SyncError> {
        let job = JobMessage { run: self.run, key, input, not_by: None }.to_bytes();
        let own = OwnJob {
            queue: self.queue,
            spec: &self.spec,
            job,
            given: Mutex::default(),
            reply: Mutex::default(),
        };
        do_job(self.request, &own, self.source)?;
        let reply = std::mem::take(&mut *own.reply.lock());
        let answer = reply.and_then(|reply| JobAnswer::from_bytes(&reply, self.run).ok());
        answer.map(|answer| answer.kind).ok_or(SyncError::Interrupted)
    }
}

/// One job, offered to a worker in this process.
struct OwnJob<'j> {
    queue: &'j dyn JobQueue,
    spec: &'j [u8],
    job: Vec<u8>,
    /// Whether the job was given out.
    given: Mutex<bool>,
    /// The answer to it.
    reply: Mutex<Option<Vec<u8>>>,
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
        match std::mem::replace(&mut *self.given.lock(), true) {
            false => Ok(JobOffer::Job(Box::new(LocalLease(self)))),
            true => Ok(JobOffer::Over),
        }
    }
}

/// The lease of the thread that processes the job.
struct LocalLease<'j>(&'j OwnJob<'j>);

impl JobLease for LocalLease<'_> {
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
        *self.0.reply.lock() = Some(message.to_vec());
        Ok(())
    }

    fn done(&self) -> Result<(), QueueError> {
        Ok(())
    }

    fn give_back(&self, _: Duration, trouble: Option<(JobKey, &[u8])>) -> Result<(), QueueError> {
        *self.0.reply.lock() = trouble.map(|(_, message)| message.to_vec());
        Ok(())
    }
}
