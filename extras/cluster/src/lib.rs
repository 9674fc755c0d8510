//! Segments on other machines: a job queue on NATS JetStream, and large data in an object store.
//!
//! A run hands out its segments through a [`Coordinator`], and a [`Worker`] takes them and returns the results; an
//! [`Overview`] shows both to a person. `apus_jobs` defines what the messages mean. Waiting is asynchronous inside; the
//! public interface is synchronous.
//!
//! Without the [`ClusterKey`], a client that reaches the queue can read nothing, and everything it writes is ignored.
//!
//! Invariants: a job stays in its stream until an answer to it is stored; one answer is stored for each job; an object
//! matches its name, which is its digest. The crate uses only JetStream's streams, with features that servers have
//! since version 2.9 (`docs/decisions/0029-segments-on-many-machines.md`).

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod beat;
mod coordinator;
mod forget;
mod key;
mod lease;
mod link;
mod names;
mod objects;
mod options;
mod overview;
mod worker;

pub use coordinator::Coordinator;
pub use forget::{ForgetError, forget};
pub use key::{ClusterKey, SealError};
pub use options::{LinkError, LinkOptions};
pub use overview::{Overview, RunOverview, WorkerOverview};
pub use worker::{JoinedRun, RunSeen, Worker};
