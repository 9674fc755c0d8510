//! Runs that machines share: jobs, what they leave, and who does them.
//!
//! [`SharedQueue`] has the segments of a run done by other machines; [`work`] does them there. Jobs and answers go through a
//! [`JobQueue`], which knows nothing of what they mean; `apus-cluster` has one on a server.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod desk;
mod error;
mod job;
mod mergesync;
mod queue;
mod remote;
mod shared;
mod worker;

pub use error::{ClusterError, QueueError, RemoteError, RemoteKind};
pub use job::{JobCopy, JobKey, JobStep};
pub use queue::{
    AnswerBytes, JobLease, JobOffer, JobQueue, Jobs, ObjectPart, ObjectRef, RunDescription, RunId,
    WIRE_VERSION, WireError, WorkerSeen, describe_run, reads_as_sent, rest_of_passed_on,
};
pub use shared::SharedQueue;
pub use worker::{WorkBlocks, WorkDone, WorkRequest, work};
