//! Stores of coins that lie beyond a network: [`CoinsStore`](apus_engine::utxo::CoinsStore)s whose coins
//! are kept by servers.
//!
//! - [`place`]: where such a store is, as its user names it, and the password.
//! - [`open()`]: whichever of them a place names.
//! - [`Reader`]: look-ups beside a writer.
//! - [`stored`]: what of it is read, for those who try any bytes.
//! - [`cluster`]: [`ClusterStore`], on Redis Cluster.
//! - [`postgres`]: [`PostgresStore`], on PostgreSQL.
//!
//! What every store promises is promised here too: it is at a block, at any moment that a crash of the
//! client or of a server can choose. Nothing here prints or logs, and no message has a password in it.

pub mod cluster;
mod known;
mod open;
mod patience;
pub mod place;
pub mod postgres;
mod random;
mod reader;
mod seen;
mod silence;
pub mod stored;
mod trust;

pub use self::postgres::{PostgresOptions, PostgresStore};
pub use cluster::{ClusterOptions, ClusterStore};
pub use open::{Access, open};
pub use place::{ClusterPlace, Exposed, Password, Place, PlaceError, PostgresPlace};
pub use reader::Reader;
pub use seen::Seen;
