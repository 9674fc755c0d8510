//! Errors of a shared run: [`ClusterError`], [`QueueError`] and [`RemoteError`].

use crate::job::JobKey;
use apus_sync::error::{ErrorKind, InvalidBlock, RunError, SyncError};
use apus_sync::progress::{Event, Observer};
use apus_sync::warning::Warning;

/// Failure of one call to a queue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The server does not answer or is temporarily unavailable: retry.
    #[error("{0}")]
    Away(String),
    /// The request is invalid; a retry would fail, too.
    #[error("{0}")]
    Refused(String),
    /// An object is missing, or its bytes do not match its digest.
    #[error("{0}")]
    Object(String),
    /// This machine cannot read or write the object store, so it cannot tell whether the object is there.
    #[error("{0}")]
    Store(String),
}

/// Failure of a run shared between machines.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A call to the queue failed.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// A message is damaged, or asks for something this program cannot do.
    #[error("{0}")]
    Message(String),
    /// Several machines failed at the same job.
    #[error(
        "{machines} machines could not process {key}; the last, {worker}, reports: {text}. Fix these machines, then \
         rerun the command to resume"
    )]
    Trouble {
        /// The job.
        key: JobKey,
        /// Number of machines that failed.
        machines: usize,
        /// The last machine that failed.
        worker: String,
        /// Its error message.
        text: String,
    },
    /// Several results of the same job were invalid.
    #[error(
        "{results} results for {key} were invalid; the last one, from {worker}: {why}. Check these machines and the \
         object store, then rerun the command to resume"
    )]
    BadResults {
        /// The job.
        key: JobKey,
        /// Number of invalid results.
        results: usize,
        /// The machine that sent the last one.
        worker: String,
        /// Why the last one is invalid.
        why: String,
    },
    /// A machine rejects a job, and the coordinator cannot check the verdict.
    #[error(
        "{worker} rejects {key}: {reply}. The coordinator must confirm this and cannot do the job itself: {why}. Fix \
         that, then rerun the command to resume"
    )]
    Unconfirmed {
        /// The job.
        key: JobKey,
        /// The machine.
        worker: String,
        /// Its error message.
        reply: String,
        /// Why the coordinator cannot repeat the job.
        why: String,
    },
    /// Two machines returned different results for the same job.
    #[error(
        "{first} and {second} did {key}, and their results differ: one of the two machines computes wrong results, \
         or lies. Find out which one, then start over without that machine"
    )]
    Differ {
        /// The job.
        key: JobKey,
        /// The machine whose result was accepted.
        first: String,
        /// The other machine.
        second: String,
    },
    /// A machine found that it computes wrongly.
    #[error(
        "a test found that {worker} computes wrongly, so the signatures that it checked prove nothing. Test its \
         processor and memory, then start over without that machine"
    )]
    Faulty {
        /// The machine.
        worker: String,
    },
    /// An object that a job needs is missing or damaged.
    #[error("{why}")]
    Lost {
        /// The object's digest.
        object: [u8; 32],
        /// The error message.
        why: String,
    },
    /// The payload of a job is lost, and the coordinator cannot build it again.
    #[error(
        "the payload of {key} is lost, and the coordinator cannot build it again: {why} (object {object}). Check \
         the object store, then rerun the command to resume"
    )]
    InputLost {
        /// The job.
        key: JobKey,
        /// The object.
        object: String,
        /// Why it is lost.
        why: String,
    },
    /// This machine failed at several jobs in a row.
    #[error("{jobs} jobs in a row failed on this machine and were requeued; the last one: {text}")]
    Worker {
        /// Number of failed jobs.
        jobs: u32,
        /// Error of the last one.
        text: String,
    },
    /// The coordinator's headers do not form a chain up to its stop block.
    #[error("the headers from the coordinator do not form a chain up to its stop block: {0}")]
    Headers(String),
}

impl RunError for ClusterError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Message(_) | Self::Queue(QueueError::Refused(_)) => ErrorKind::Usage,
            _ => ErrorKind::Io,
        }
    }

    fn class(&self) -> &'static str {
        "cluster"
    }

    fn spoils_progress(&self) -> bool {
        // More results of the faulty machine may be wrong.
        matches!(self, Self::Differ { .. } | Self::Faulty { .. })
    }
}

impl ClusterError {
    /// Returns the [`ClusterError`] that ended a run, if one did.
    pub fn of(error: &SyncError) -> Option<&Self> {
        error.downcast()
    }

    /// Returns the message about a missing or damaged object, if that ended the run.
    pub(crate) fn lost_object(error: &SyncError) -> Option<&String> {
        match Self::of(error)? {
            Self::Queue(QueueError::Object(why)) => Some(why),
            _ => None,
        }
    }
}

impl From<QueueError> for SyncError {
    fn from(error: QueueError) -> Self {
        ClusterError::from(error).into()
    }
}

/// An error that another machine found in blocks or in a job's payload. Its text is the error message of that machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct RemoteError {
    /// What the error is about.
    pub kind: RemoteKind,
    /// Error message for the user.
    pub text: String,
}

/// What a [`RemoteError`] is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteKind {
    /// An invalid block.
    Block(InvalidBlock),
    /// Wrong hints, or an invalid block: the two look alike.
    Hints,
    /// Any other failed check.
    Other,
}

impl RunError for RemoteError {
    fn kind(&self) -> ErrorKind {
        match self.kind {
            RemoteKind::Block(_) => ErrorKind::Invalid,
            RemoteKind::Hints | RemoteKind::Other => ErrorKind::Wrong,
        }
    }

    fn class(&self) -> &'static str {
        "wrong_data"
    }

    fn invalid_block(&self) -> Option<InvalidBlock> {
        match &self.kind {
            RemoteKind::Block(block) => Some(block.clone()),
            RemoteKind::Hints | RemoteKind::Other => None,
        }
    }

    fn is_about_hints(&self) -> bool {
        self.kind == RemoteKind::Hints
    }
}

/// Shows the user a warning about the machines.
pub(crate) fn warn(observer: &dyn Observer, text: String) {
    observer.event(Event::Warning(Warning::Extra(text)));
}
