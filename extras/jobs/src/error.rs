//! [`ClusterError`]: what goes wrong between machines that do a run together; [`QueueError`]; and [`RemoteError`].

use crate::job::JobKey;
use apus_sync::error::{ErrorKind, InvalidBlock, RunError, SyncError};
use apus_sync::progress::{Event, Observer};
use apus_sync::warning::Warning;

/// Why a queue did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The server does not answer, or not now: worth another try.
    #[error("{0}")]
    Away(String),
    /// What was asked for cannot be, however often it is tried.
    #[error("{0}")]
    Refused(String),
    /// An object that is not there, or is not what its name says.
    #[error("{0}")]
    Object(String),
    /// This machine cannot read or write the store of objects, which says nothing of what is there.
    #[error("{0}")]
    Store(String),
}

/// What goes wrong between machines.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The queue.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// A message that this program cannot go by.
    #[error("{0}")]
    Message(String),
    /// Machines fail at a segment one after the other.
    #[error(
        "{machines} machines could not do {key}; the last of them, {worker}, says: {text}. See to these \
         machines; the same command then goes on from here"
    )]
    Trouble {
        /// The job.
        key: JobKey,
        /// How many machines.
        machines: usize,
        /// The last one.
        worker: String,
        /// What it said.
        text: String,
    },
    /// Results of a segment are no good, one after the other.
    #[error(
        "{results} results for {key} were of no use; the last of them, of {worker}: {why}. See to these \
         machines and to the store of objects; the same command then goes on from here"
    )]
    Useless {
        /// The job.
        key: JobKey,
        /// How many results.
        results: usize,
        /// Whose the last one was.
        worker: String,
        /// What was wrong with it.
        why: String,
    },
    /// A machine refuses a job, and whether it is right cannot be seen here.
    #[error(
        "{worker} refuses {key}: {said}. The coordinator does not believe it unseen, and cannot do the job itself: \
         {why}. See to that; the same command then goes on from here"
    )]
    Unjudged {
        /// The job.
        key: JobKey,
        /// The machine.
        worker: String,
        /// What it says.
        said: String,
        /// Why the coordinator cannot do the job.
        why: String,
    },
    /// Two machines did one job, and say different things.
    #[error(
        "{first} and {second} did {key}, and their results differ: one of the two machines computes what is \
         wrong, or one of them lies. Find out which, and do the run anew without it"
    )]
    Differ {
        /// The job.
        key: JobKey,
        /// The machine whose result counted.
        first: String,
        /// The other one.
        second: String,
    },
    /// An object that a job needs is not there, or damaged.
    #[error("{why}")]
    Lost {
        /// Its digest.
        object: [u8; 32],
        /// In which way.
        why: String,
    },
    /// What a job is told is lost, and the coordinator has not what it was made of.
    #[error(
        "what is told of {key} is lost, and the coordinator cannot say it again: {why} (object {object}). \
         See to the store of objects; the same command then goes on from here"
    )]
    InputLost {
        /// The job.
        key: JobKey,
        /// The object.
        object: String,
        /// In which way it is lost.
        why: String,
    },
    /// A machine fails at one job after the other.
    #[error(
        "{jobs} jobs in a row failed on this machine, and went to others; the last of them: {text}"
    )]
    Worker {
        /// How many.
        jobs: u32,
        /// What the last one failed of.
        text: String,
    },
    /// The coordinator's headers are no chain up to the block where the run stops.
    #[error("the headers that the coordinator gives are no chain up to its stop block: {0}")]
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
        // Other results of one of the two machines may be wrong as well.
        matches!(self, Self::Differ { .. })
    }
}

impl ClusterError {
    /// The error of machines that ended a run, if one did.
    pub fn of(error: &SyncError) -> Option<&Self> {
        error.downcast()
    }

    /// Why an object is of no use, if that is what ended the run.
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

/// What another machine says is wrong with blocks, or with what it was told of them. It reads as the error does on the
/// machine where it was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct RemoteError {
    /// What is at fault.
    pub kind: RemoteKind,
    /// For people.
    pub text: String,
}

/// What is at fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteKind {
    /// A block.
    Block(InvalidBlock),
    /// Hints, or a block.
    Hints,
    /// Something else that was judged.
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

/// Says what a user should know of machines while the run goes on.
pub(crate) fn warn(observer: &dyn Observer, what: String) {
    observer.event(Event::Warning(Warning::Extra(what)));
}
