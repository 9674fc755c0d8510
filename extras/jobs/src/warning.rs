//! [`ClusterWarning`]: what a user should know of machines while the run goes on.

use crate::job::JobKey;
use apus_sync::progress::{Event, Observer};
use apus_sync::warning::Warning;

/// See the module. Its text has the advice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClusterWarning {
    /// A machine could not do a job.
    #[error("{worker} could not do {key}, which goes to another machine: {text}")]
    WorkerTrouble {
        /// The machine.
        worker: String,
        /// The job.
        key: JobKey,
        /// What it says.
        text: String,
    },
    /// What a machine gave for a job is no good.
    #[error("the result of {worker} for {key} was refused, and that is done again: {why}")]
    ResultRefused {
        /// The machine.
        worker: String,
        /// The job.
        key: JobKey,
        /// What is wrong with it.
        why: String,
    },
    /// An answer came from one who has not the key of the run.
    #[error(
        "an answer to {key} was not sealed with the key of this run, and counts for nothing: see who else \
         reaches the queue"
    )]
    AnswerForged {
        /// To which job.
        key: JobKey,
    },
    /// An object that a machine left for others is gone, or damaged.
    #[error("what was left of {key} is lost, and that is done again: {why}")]
    ObjectLost {
        /// The job that left it.
        key: JobKey,
        /// What is wrong with it.
        why: String,
    },
    /// Second results are waited for, which the machine that gave the first ones cannot give.
    #[error(
        "all jobs of this step are done, and {jobs} of them are to be done by a second machine: the run \
         waits for one"
    )]
    AuditsWait {
        /// Of how many jobs.
        jobs: usize,
    },
    /// A run that machines shared is over, and what is left of it could not be removed.
    #[error(
        "the run is over, and not all of it could be removed from the queue and the store of objects: {why}. \
         Its streams go after 30 days; its folder of objects is yours to remove"
    )]
    NotClosed {
        /// Why.
        why: String,
    },
    /// The queue is away.
    #[error("the queue does not answer, and is waited for: {why}")]
    QueueAway {
        /// What it said last.
        why: String,
    },
}

impl ClusterWarning {
    /// Tells the user.
    pub(crate) fn tell(&self, observer: &dyn Observer) {
        observer.event(Event::Warning(Warning::Extra(self.to_string())));
    }
}
