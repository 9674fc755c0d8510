//! Stores of coins that lie beyond a network: [`CoinsStore`](apus_engine::utxo::CoinsStore)s whose coins
//! are kept by servers.
//!
//! - [`place`]: where such a store is, as its user names it, and the password.
//! - [`cluster`]: [`ClusterStore`], on Redis Cluster.
//!
//! What every store promises is promised here too: it is at a block, at any moment that a crash of the
//! client or of a server can choose. Nothing here prints or logs, and no message has a password in it.

pub mod cluster;
pub mod place;

pub use cluster::{ClusterOptions, ClusterStore};
pub use place::{Password, Place, PlaceError};
