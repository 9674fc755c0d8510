//! Syncs shared between machines: jobs, their results, the scheduler and the worker.
//!
//! [`SharedQueue`] hands the segments of a run to other machines; [`work`] processes them there. Jobs and answers
//! travel through a [`JobQueue`], which treats both as opaque bytes; `apus-cluster` implements one on a NATS server.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod error;
mod job;
mod mergesync;
mod queue;
mod remote;
mod scheduler;
mod shared;
mod worker;

pub use error::{ClusterError, QueueError, RemoteError, RemoteKind};
pub use job::{JobCopy, JobKey, JobStep};
pub use queue::{
    AnswerBytes, JobLease, JobOffer, JobQueue, Jobs, ObjectPart, ObjectRef, RunDescription, RunId,
    WIRE_VERSION, WireError, WorkerSeen, describe_run, pass_on_delay, reads_as_sent,
};
pub use shared::SharedQueue;
pub use worker::{WorkBlocks, WorkDone, WorkRequest, work};
