//! The seam between a run and other machines that do its segments: [`JobQueue`] where the run is, [`Jobs`] where
//! segments are done, and what is sent between them.
//!
//! A queue carries bytes and knows heights; what the bytes mean is here ([`RunSpec`], [`JobMessage`], [`JobAnswer`],
//! [`hints`], [`told`], [`SegmentResult`]), so that a queue can be any. Messages are small. What is large is an object,
//! which goes by another way and is named by its digest. Each call of a queue is one try: what waits for a server that is
//! away, and for how long, is the caller's business ([`QueuePatience`]).

pub(crate) mod hints;
mod message;
pub(crate) mod result;
mod shuffle;
mod spec;
pub(crate) mod told;
mod wire;

pub(crate) use message::{AnswerKind, JobAnswer, JobMessage};
pub use message::{reads_as_sent, rest_of_passed_on};
pub(crate) use result::{ReadPartial, SegmentResult, SentUndo};
pub(crate) use shuffle::{
    ConnectDone, ConnectTold, ForestTold, FoundPart, FoundSlice, GatherDone, JoinDone, JoinFound,
    JoinSource, JoinTold, RecordPiece, RunObjects, Sent, Slice, nothing_told,
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

/// Where a run puts jobs and gets answers.
pub trait JobQueue: Sync {
    /// Makes a run known, so that machines may join it, or goes on with it where an earlier start made it known.
    /// The `spec` has the secret of the run.
    fn open(&self, run: &RunId, spec: &[u8]) -> Result<(), QueueError>;

    /// Puts an object of a run, which need not be open.
    fn put_object(&self, run: &RunId, bytes: &[u8]) -> Result<ObjectRef, QueueError>;

    /// Gets an object, which is what its name says.
    fn object(&self, of: &ObjectRef) -> Result<Vec<u8>, QueueError>;

    /// Gets some bytes of each of these objects, in this order, as a machine at a job does ([`JobLease::object_parts`]).
    fn object_parts(&self, parts: &[ObjectPart]) -> Result<Vec<Vec<u8>>, (usize, QueueError)>;

    /// Puts a job, unless it is there as such a copy.
    fn put_job(&self, key: JobKey, copy: JobCopy, message: &[u8]) -> Result<(), QueueError>;

    /// The same of a job whose answer was of no use: that may be there still as one that a machine is at, since a machine
    /// answers before it is done with it.
    fn put_job_anew(&self, key: JobKey, copy: JobCopy, message: &[u8]) -> Result<(), QueueError>;

    /// The next answer to any job of the run, each once and from the first one on, those to an earlier start too.
    /// Waits for one no longer than so long.
    fn answer(&self, wait: Duration) -> Result<Option<AnswerBytes>, QueueError>;

    /// Forgets an answer that is of no use, so that there can be another to that job.
    fn forget(&self, answer: &AnswerBytes) -> Result<(), QueueError>;

    /// How many of a hundred jobs are to be done twice, by two machines, and compared.
    fn audit_percent(&self) -> u8 {
        0
    }

    /// The machines that gave a sign of life.
    fn workers(&self) -> Vec<WorkerSeen>;

    /// By what machines have blocks of the run's folder, if they are handed out.
    fn given(&self) -> Option<&GivenBlocks> {
        None
    }

    /// Ends the run: whatever the queue has of it goes, the secret among it, and workers are let go. Its objects may take
    /// longer to remove than the run has to wait.
    fn close(&self) -> Result<(), QueueError>;

    /// Waits until the objects of runs that were closed are gone.
    fn closed(&self) -> Result<(), QueueError> {
        Ok(())
    }
}

/// An answer as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerBytes {
    /// By what the queue knows it.
    pub place: u64,
    /// The job.
    pub key: JobKey,
    /// Whether it is to be compared with the one that counts.
    pub audit: bool,
    /// Whether one wrote it who has the key of the run.
    pub is_genuine: bool,
    /// The message.
    pub message: Vec<u8>,
}

/// A machine as its last sign of life shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSeen {
    /// Its name.
    pub name: String,
    /// How long ago that was.
    pub ago: Duration,
    /// Whether it waits for a job.
    pub idle: bool,
    /// What it does, for people.
    pub doing: String,
}

/// Where a machine gets jobs of one run.
pub trait Jobs: Sync {
    /// What the run is.
    fn spec(&self) -> &[u8];

    /// By what this machine is known.
    fn name(&self) -> &str;

    /// Gets an object, which is what its name says.
    fn object(&self, of: &ObjectRef) -> Result<Vec<u8>, QueueError>;

    /// A job, if one comes in time.
    fn take(&self, wait: Duration) -> Result<JobOffer<'_>, QueueError>;
}

/// What a machine is offered.
pub enum JobOffer<'a> {
    /// A job.
    Job(Box<dyn JobLease + 'a>),
    /// Nothing now.
    Nothing,
    /// The run has ended.
    Over,
}

/// A job that this machine has, as long as it gives signs of life. Dropped, it goes to another one when
/// these are missed.
pub trait JobLease: Send + Sync {
    /// The message.
    fn message(&self) -> &[u8];

    /// How often the job was given to any machine, this time among them.
    fn deliveries(&self) -> u64;

    /// A sign of life, to be given after each block. Costs nothing where one was given a moment ago.
    fn alive(&self);

    /// Gets an object while it gives signs of life.
    fn object(&self, of: &ObjectRef) -> Result<Vec<u8>, QueueError>;

    /// Gets some bytes of each of these objects, in this order. Nothing says that they are what they should be: the
    /// caller has digests of them. The object that is not there, or too short, is named by its place among `parts`.
    fn object_parts(&self, parts: &[ObjectPart]) -> Result<Vec<Vec<u8>>, (usize, QueueError)>;

    /// Puts an object of this name while it gives signs of life. Its bytes may be many, and are not copied.
    fn put_object(&self, of: &ObjectRef, bytes: &Arc<Vec<u8>>) -> Result<(), QueueError>;

    /// Whether the run has ended meanwhile, as far as that is known: then nothing waits for the job, and what was put for it
    /// is removed, since it came too late to go with the run.
    fn is_over(&self) -> bool;

    /// Whether the job has been answered, by any machine.
    fn is_answered(&self, key: JobKey) -> Result<bool, QueueError>;

    /// Answers the job unless another machine has, or the run has ended, and is done with it.
    fn answer(&self, key: JobKey, message: &[u8]) -> Result<(), QueueError>;

    /// The job is answered already: it is done with.
    fn done(&self) -> Result<(), QueueError>;

    /// Gives the job back, to be offered again after so long; says why where this machine is at fault.
    fn give_back(
        &self,
        after: Duration,
        trouble: Option<(JobKey, &[u8])>,
    ) -> Result<(), QueueError>;
}

/// Tries what a queue is asked for again while it is away.
pub(crate) struct QueuePatience<'a> {
    /// The longest that it may be away at a stretch.
    pub(crate) longest: Duration,
    pub(crate) observer: &'a dyn Observer,
    pub(crate) interrupt: &'a AtomicBool,
}

/// When the user is told that it is waited for.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(200);

impl QueuePatience<'_> {
    /// Tries until it works, cannot work, took too long, or the run is interrupted.
    pub(crate) fn with<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, QueueError>,
    ) -> Result<T, SyncError> {
        let (began, mut told) = (Instant::now(), false);
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(QueueError::Away(what)) if began.elapsed() >= self.longest => {
                    let what = format!(
                        "{what}: it was away for {} seconds. Start it again, and then the same command",
                        began.elapsed().as_secs()
                    );
                    return Err(QueueError::Away(what).into());
                }
                Err(QueueError::Away(why)) => {
                    if !told && began.elapsed() >= TOLD_AFTER {
                        told = true;
                        warn(
                            self.observer,
                            format!("the queue does not answer, and is waited for: {why}"),
                        );
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
    use apus_sync::progress::Silent;
    use std::sync::atomic::Ordering;

    #[test]
    fn what_is_away_for_a_while_is_tried_again() {
        let interrupt = AtomicBool::new(false);
        let patience = QueuePatience {
            longest: Duration::from_secs(60),
            observer: &Silent,
            interrupt: &interrupt,
        };
        let mut tries = 0;
        let value = patience.with(|| {
            tries += 1;
            if tries < 3 { Err(QueueError::Away("gone".into())) } else { Ok(5) }
        });
        assert_eq!(value.unwrap(), 5);
        let refused = patience.with(|| Err::<(), _>(QueueError::Refused("never".into())));
        assert!(refused.unwrap_err().to_string().contains("never"));
        interrupt.store(true, Ordering::Relaxed);
        let away = || Err::<(), _>(QueueError::Away("gone".into()));
        assert!(matches!(patience.with(away), Err(SyncError::Interrupted)));
        let short = QueuePatience { longest: Duration::ZERO, ..patience };
        let told = short.with(away).unwrap_err().to_string();
        assert!(told.contains("gone: it was away"), "{told}");
    }
}
