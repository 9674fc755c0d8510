//! Stores of coins that lie beyond a network: [`CoinsStore`](apus_engine::utxo::CoinsStore)s whose coins
//! are kept by servers.
//!
//! - [`url`]: where such a store is, as its user names it, and the password.
//! - [`open()`]: whichever of them a place names.
//! - [`BatchedStore`]: look-ups of many callers as batches.
//! - [`CoinsReader`]: look-ups beside a writer.
//! - [`stored`]: what of it is read, for those who try any bytes.
//! - [`cluster`]: [`ClusterStore`], on Redis Cluster.
//! - [`postgres`]: [`PostgresStore`], on PostgreSQL.
//!
//! What every store promises is promised here too: it is at a block, at any moment that a crash of the
//! client or of a server can choose. Nothing here prints or logs, and no message has a password in it.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod access;
mod batcher;
pub mod cluster;
mod patience;
pub mod postgres;
mod store;
pub mod url;

pub use self::postgres::{PostgresOptions, PostgresStore};
pub use access::{Access, CoinsReader, open};
pub use batcher::{BatchedStore, Batcher, BatcherOptions, BatcherStats, Producer, Ticket};
pub use cluster::{ClusterOptions, ClusterStore, stored};
pub use store::CoinsAtTip;
pub use url::{ClusterUrl, Password, PasswordExposed, PostgresUrl, StoreUrl, StoreUrlError};
