//! Segments on other machines: jobs on NATS JetStream, large data in a store of objects.
//!
//! [`Coordinator`] is where a run gives out its segments, [`Worker`] is where they come from and their results go to;
//! [`Overview`] shows both to a person. What the messages mean is not known here: `apus_sync` writes and reads them.
//! All that waits is asynchronous inside, and nothing of that is seen outside.
//!
//! Whoever reaches the queue and lacks the [`ClusterKey`] reads nothing of it, and what he writes counts for nothing.
//!
//! What is held true: a job stays in its stream until an answer to it is stored; an answer is stored once for each
//! job; an object is what its name, a digest, says. Of JetStream only streams are used, as servers since 2.9 have
//! them (`docs/decisions/0029-segments-on-many-machines.md`).

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod beat;
mod coordinator;
mod key;
mod lease;
mod link;
mod names;
mod objects;
mod options;
mod overview;
mod worker;

pub use coordinator::Coordinator;
pub use key::{ClusterKey, SealError};
pub use options::{LinkError, LinkOptions};
pub use overview::{Overview, RunOverview, WorkerOverview};
pub use worker::{JoinedRun, RunSeen, Worker};
