//! End-to-end tests of shared runs: a real NATS server, a coordinator and workers as processes on this machine.
//!
//! Even if programs are killed and restarted, a run produces exactly a node's set, or fails with the same error as a
//! run on one machine.

mod abandoned;
mod altered;
mod audits;
mod chaos;
mod closing;
mod faults;
mod full;
mod joined;
mod kept;
mod leader;
mod lines;
mod lost;
mod nats_cluster;
mod netns;
mod nodes;
mod outsider;
mod outsiders;
#[cfg(feature = "utreexo")]
mod proven;
mod read_once;
mod refusals;
mod roots;
#[cfg(feature = "s3")]
mod s3;
mod same_set;
mod versitygw;
mod world;
