//! Remote coin stores: [`CoinsStore`](apus_engine::utxo::CoinsStore)s whose coins are kept by servers.
//!
//! - [`url`]: a store's URL, and the password.
//! - [`open()`], [`open_existing()`]: open a store of either kind.
//! - [`BatchedStore`]: batches the look-ups of many callers.
//! - [`CoinsReader`]: looks coins up while another process writes.
//! - [`stored`]: parsers of stored data, for fuzzing.
//! - [`cluster`]: [`ClusterStore`], on Redis Cluster.
//! - [`postgres`]: [`PostgresStore`], on PostgreSQL.
//!
//! These stores keep the promise of every store: whenever the client or a server crashes, the store is at
//! some block. Nothing here prints or logs, and no message contains a password.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod access;
mod batcher;
pub mod cluster;
pub mod postgres;
mod retry;
mod store;
pub mod url;

pub use self::postgres::{PostgresOptions, PostgresStore};
pub use access::{Access, CoinsReader, open, open_existing};
pub use batcher::{BatchedStore, Batcher, BatcherOptions, BatcherStats, Producer, Ticket};
pub use cluster::{ClusterOptions, ClusterStore, stored};
pub use store::CoinsAtTip;
pub use url::{ClusterUrl, Password, PasswordExposed, PostgresUrl, StoreUrl, StoreUrlError};
