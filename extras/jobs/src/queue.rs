//! The interface between a run and the machines that process its segments: [`JobQueue`] on the coordinator's side,
//! [`Jobs`] on a worker's side, and the messages between them.
//!
//! A queue carries bytes and knows heights. This module defines the bytes ([`RunSpec`], [`JobMessage`],
//! [`JobAnswer`], [`hints`], [`payload`], [`SegmentResult`]), so a queue can be built on any transport. Messages are
//! small. Large data are objects, which go through an object store and are named by their digest. Each call of a
//! queue is one attempt; the caller decides how long to retry while a server is unreachable ([`QueueRetry`]).

pub(crate) mod hints;
mod message;
pub(crate) mod payload;
pub(crate) mod result;
mod shuffle;
mod spec;
mod wire;

pub(crate) use message::{AnswerKind, JobAnswer, JobMessage};
pub use message::{pass_on_delay, reads_as_sent};
pub(crate) use result::{ReadPartial, SegmentResult, SentUndo};
pub(crate) use shuffle::{
    ConnectDone, ConnectPayload, FirstPassDone, ForestPayload, FoundPart, FoundSlice, JoinDone,
    JoinFound, JoinPayload, JoinSource, RecordPiece, RunObjects, Sent, Slice, empty_payload,
};
pub(crate) use spec::{PassKind, RunSpec};
pub use spec::{RunDescription, RunId, describe_run};
pub(crate) use wire::digest;
pub use wire::{ObjectPart, ObjectRef, WIRE_VERSION, WireError};

use crate::error::{QueueError, warn};
use crate::job::{JobCopy, JobKey};
use apus_sync::error::SyncError;
use apus_sync::progress::{Observer, stop_if_interrupted};
use apus_sync::source::GivenBlocks;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The coordinator's side of a queue: takes jobs and returns answers.
pub trait JobQueue: Sync {
    /// Announces a run so that machines may join it, or resumes it if an earlier start announced it. The `spec`
    /// contains the secret of the run.
    fn open(&self, run: &RunId, spec: &[u8]) -> Result<(), QueueError>;

    /// Stores an object of a run, which need not be open.
    fn put_object(&self, run: &RunId, bytes: &[u8]) -> Result<ObjectRef, QueueError>;

    /// Reads an object and checks its digest.
    fn object(&self, of: &ObjectRef) -> Result<Vec<u8>, QueueError>;

    /// Reads some bytes of each of these objects, in this order, like [`JobLease::object_parts`].
    fn object_parts(&self, parts: &[ObjectPart]) -> Result<Vec<Vec<u8>>, (usize, QueueError)>;

    /// Queues a job unless this copy of it is queued already.
    fn put_job(&self, key: JobKey, copy: JobCopy, message: &[u8]) -> Result<(), QueueError>;

    /// Queues a job again after an invalid answer. The queue may still list the job as leased, because a machine
    /// answers before it acknowledges the job.
    fn put_job_again(&self, key: JobKey, copy: JobCopy, message: &[u8]) -> Result<(), QueueError>;

    /// Waits at most `wait` for the next answer to any job of the run. Returns each answer once, in order of arrival,
    /// including answers to an earlier start.
    fn answer(&self, wait: Duration) -> Result<Option<AnswerBytes>, QueueError>;

    /// Removes an invalid answer, so that the job can be answered again.
    fn forget(&self, answer: &AnswerBytes) -> Result<(), QueueError>;

    /// Percentage of jobs to run twice, on two machines, and compare.
    fn audit_percent(&self) -> u8 {
        0
    }

    /// The machines that sent a heartbeat.
    fn workers(&self) -> Vec<WorkerSeen>;

    /// The machines that take part in other runs, and those runs, for people.
    fn workers_elsewhere(&self) -> Vec<String> {
        Vec::new()
    }

    /// How machines read blocks of the run's folder, if the run hands them out.
    fn given(&self) -> Option<&GivenBlocks> {
        None
    }

    /// Ends the open run, if there is one: removes all its data from the queue, including the secret, and releases the
    /// workers. Does not wait until all objects are removed.
    fn close(&self) -> Result<(), QueueError>;

    /// Waits until the objects of closed runs are removed.
    fn closed(&self) -> Result<(), QueueError> {
        Ok(())
    }
}

/// An answer as received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerBytes {
    /// Identifies the answer in the queue.
    pub place: u64,
    /// The job.
    pub key: JobKey,
    /// Whether it answers an audit and is compared with the accepted answer.
    pub audit: bool,
    /// Whether its writer has the key of the run.
    pub is_genuine: bool,
    /// The message.
    pub message: Vec<u8>,
}

/// The state of a machine at its last heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSeen {
    /// Its name.
    pub name: String,
    /// Time since that heartbeat.
    pub ago: Duration,
    /// Whether it waits for a job.
    pub idle: bool,
    /// Description of its current work.
    pub doing: String,
}

/// A worker's side of a queue: gives out jobs of one run.
pub trait Jobs: Sync {
    /// The description of the run.
    fn spec(&self) -> &[u8];

    /// The name of this machine.
    fn name(&self) -> &str;

    /// Reads an object and checks its digest.
    fn object(&self, of: &ObjectRef) -> Result<Vec<u8>, QueueError>;

    /// Takes a job, waiting at most `wait` for one.
    fn take(&self, wait: Duration) -> Result<JobOffer<'_>, QueueError>;
}

/// The result of [`Jobs::take`].
pub enum JobOffer<'a> {
    /// A job.
    Job(Box<dyn JobLease + 'a>),
    /// No job at the moment.
    Nothing,
    /// The run has ended.
    Over,
}

/// A job leased to this machine for as long as it sends heartbeats. If the lease is dropped, another machine gets the
/// job once heartbeats are missing.
pub trait JobLease: Send + Sync {
    /// The message.
    fn message(&self) -> &[u8];

    /// How often the job was delivered to any machine, including this time.
    fn deliveries(&self) -> u64;

    /// Sends a heartbeat; call it after each block. Does nothing if one was sent a moment ago.
    fn alive(&self);

    /// Reads an object and sends heartbeats while it waits.
    fn object(&self, of: &ObjectRef) -> Result<Vec<u8>, QueueError>;

    /// Reads some bytes of each of these objects, in this order. Does not verify them: the caller has their digests. An
    /// error carries the index in `parts` of the object that is missing or too short.
    fn object_parts(&self, parts: &[ObjectPart]) -> Result<Vec<Vec<u8>>, (usize, QueueError)>;

    /// Stores an object under this name and sends heartbeats while it waits. Does not copy the bytes, which may be
    /// many.
    fn put_object(&self, of: &ObjectRef, bytes: &Arc<Vec<u8>>) -> Result<(), QueueError>;

    /// Whether the run is known to have ended, so that nothing waits for the job. If so, also removes the objects
    /// stored for the job: they arrived too late to be removed with the run.
    fn is_over(&self) -> bool;

    /// Whether any machine has answered the job.
    fn is_answered(&self, key: JobKey) -> Result<bool, QueueError>;

    /// Answers the job, unless another machine has or the run has ended, and acknowledges it.
    fn answer(&self, key: JobKey, message: &[u8]) -> Result<(), QueueError>;

    /// Acknowledges a job that is answered already.
    fn done(&self) -> Result<(), QueueError>;

    /// Returns the job to the queue, which offers it again after `after`; `trouble` says why if this machine is at
    /// fault.
    fn give_back(
        &self,
        after: Duration,
        trouble: Option<(JobKey, &[u8])>,
    ) -> Result<(), QueueError>;
}

/// Retries calls to a queue while it is unreachable.
pub(crate) struct QueueRetry<'a> {
    /// Fail once the queue has been unreachable for this long without a break.
    pub(crate) max_away: Duration,
    pub(crate) observer: &'a dyn Observer,
    pub(crate) interrupt: &'a AtomicBool,
}

/// Warn the user after this much waiting.
const WARN_AFTER: Duration = Duration::from_secs(2);

/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

impl QueueRetry<'_> {
    /// Retries until the attempt succeeds or fails for another reason, the queue is away for too long, or the run is
    /// interrupted.
    pub(crate) fn with<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, QueueError>,
    ) -> Result<T, SyncError> {
        let (began, mut warned) = (Instant::now(), false);
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(QueueError::Away(what)) if began.elapsed() >= self.max_away => {
                    let what = format!(
                        "{what}: no answer for {} seconds. Restart the server, then rerun the command to resume",
                        began.elapsed().as_secs()
                    );
                    return Err(QueueError::Away(what).into());
                }
                Err(QueueError::Away(why)) => {
                    if !warned && began.elapsed() >= WARN_AFTER {
                        warned = true;
                        warn(self.observer, format!("the queue does not answer, retrying: {why}"));
                    }
                }
                Err(error) => return Err(error.into()),
            }
            stop_if_interrupted(self.interrupt)?;
            std::thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_sync::progress::SilentObserver;
    use std::sync::atomic::Ordering;

    #[test]
    fn an_unreachable_queue_is_retried() {
        let interrupt = AtomicBool::new(false);
        let retry = QueueRetry {
            max_away: Duration::from_secs(60),
            observer: &SilentObserver,
            interrupt: &interrupt,
        };
        let mut tries = 0;
        let value = retry.with(|| {
            tries += 1;
            if tries < 3 { Err(QueueError::Away("gone".into())) } else { Ok(5) }
        });
        assert_eq!(value.unwrap(), 5);
        let refused = retry.with(|| Err::<(), _>(QueueError::Refused("never".into())));
        assert!(refused.unwrap_err().to_string().contains("never"));
        interrupt.store(true, Ordering::Relaxed);
        let away = || Err::<(), _>(QueueError::Away("gone".into()));
        assert!(matches!(retry.with(away), Err(SyncError::Interrupted)));
        let short = QueueRetry { max_away: Duration::ZERO, ..retry };
        let error = short.with(away).unwrap_err().to_string();
        assert!(error.contains("gone: no answer for"), "{error}");
    }
}
