//! The stores on Redis Cluster and on PostgreSQL, on real servers: what every store must do, and what it survives.
//! What is the same of both is one test, given [`Servers`](servers::Servers) of each kind.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod batched;
mod cluster;
mod kill;
#[path = "../../../../crates/engine/tests/store/laws.rs"]
mod laws;
mod postgres;
mod refusals;
mod replaced;
mod servers;
mod stopped;
#[path = "../../../../crates/engine/tests/store/support.rs"]
mod support;
mod tls;
mod writing;
