//! Opening whatever store a place names.

use crate::cluster::{ClusterOptions, ClusterReader, ClusterStore};
use crate::postgres::{PostgresOptions, PostgresReader, PostgresStore};
use crate::url::{Password, StoreUrl};
use apus_chain::{KnownBlock, Network, OutPoint};
use apus_engine::utxo::{CoinBytes, CoinsStore, StoreError};
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How servers are spoken to, of whatever kind they are.
#[derive(Debug, Clone)]
pub struct Access {
    /// Their password, if they want one.
    pub password: Option<Password>,
    /// For how long they may be away, or silent, before that is an error. The first call waits for some seconds
    /// at most, since a name may be wrong.
    pub patience: Duration,
}

impl Default for Access {
    fn default() -> Self {
        Self { password: None, patience: Duration::from_secs(60) }
    }
}

impl Access {
    pub(crate) fn cluster(&self) -> ClusterOptions {
        let Self { password, patience } = self.clone();
        ClusterOptions { password, patience, ..ClusterOptions::default() }
    }

    pub(crate) fn postgres(&self) -> PostgresOptions {
        let Self { password, patience } = self.clone();
        PostgresOptions { password, patience, ..PostgresOptions::default() }
    }
}

/// Opens the store at a place, for writing, or makes one where there is none. Fails where another writer
/// has it, or where it is another chain's.
pub fn open(
    place: &StoreUrl,
    network: Network,
    access: &Access,
) -> Result<Arc<dyn CoinsStore>, StoreError> {
    Ok(match place {
        StoreUrl::Cluster(place) => {
            Arc::new(ClusterStore::open(place, network, &access.cluster())?)
        }
        StoreUrl::Postgres(place) => {
            Arc::new(PostgresStore::open(place, network, &access.postgres())?)
        }
    })
}

/// For those who look coins up and write nothing, beside the one who writes.
///
/// It takes no lease and keeps no writer out. All coins of one look-up are of one block, and it says of
/// which. On PostgreSQL that is a transaction. On a cluster the record is read before and after, and
/// the look-up is made again where a flush came in between.
#[derive(Debug)]
pub struct CoinsReader(ReaderKind);

#[derive(Debug)]
enum ReaderKind {
    Cluster(ClusterReader),
    Postgres(Box<PostgresReader>),
}

impl CoinsReader {
    /// Opens the store at a place, for reading. Fails where there is none, or one of another chain.
    pub fn open(place: &StoreUrl, network: Network, access: &Access) -> Result<Self, StoreError> {
        Ok(Self(match place {
            StoreUrl::Cluster(place) => {
                ReaderKind::Cluster(ClusterReader::open(place, network, &access.cluster())?)
            }
            StoreUrl::Postgres(place) => ReaderKind::Postgres(Box::new(PostgresReader::open(
                place,
                network,
                &access.postgres(),
            )?)),
        }))
    }

    /// Looks coins up. They are held all at once, so the caller bounds how many it asks for.
    pub fn look_up(&self, wanted: &[OutPoint]) -> Result<CoinsAtTip, StoreError> {
        match &self.0 {
            ReaderKind::Cluster(reader) => reader.look_up(wanted),
            ReaderKind::Postgres(reader) => reader.look_up(wanted),
        }
    }
}

/// Coins that are looked up with one way to the servers and back.
pub(crate) const READ_AT_ONCE: usize = 500;

/// What a look-up found.
#[derive(Debug, Clone)]
pub struct CoinsAtTip {
    /// The block that the store was at.
    pub tip: KnownBlock,
    /// The coins, in the order in which they were asked for; none where there is no such coin.
    pub coins: Vec<Option<CoinBytes>>,
}

/// The error where what the store at a place has is not what a store writes.
pub(crate) fn damaged(place: &str, what: impl Into<String>) -> StoreError {
    StoreError::Damaged { place: place.to_owned(), what: what.into() }
}

/// The error of the servers at a place, or of the way to them.
pub(crate) fn io_error(place: &str, error: impl Into<String>) -> StoreError {
    StoreError::Io { place: place.to_owned(), error: error.into() }
}

/// The error where there is nothing to read.
pub(crate) fn no_store(place: &str) -> StoreError {
    io_error(
        place,
        "there are no coins under this name: see whether it is right; apus sync --coins and apus \
                coins copy make some",
    )
}

/// What to do about an error of TLS.
pub(crate) const WHOM_TO_TRUST: &str = "the server's certificate has to be of its name, and from one whom this system trusts; \
     SSL_CERT_FILE can name others";

/// Whether an error is one of TLS, and not of the connection below.
///
/// Errors of TLS: a server that is not trusted, or is not the one that was named, or a system that trusts no authority. They
/// do not go away by themselves, so the client does not ask again.
pub(crate) fn is_tls_error(error: &(dyn Error + 'static)) -> bool {
    let within = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    error.is::<rustls::Error>()
        || error.is::<rustls_native_certs::Error>()
        || within.is_some_and(|within| within.is::<rustls::Error>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_tls_are_told_from_those_below() {
        let tls = rustls::Error::DecryptError;
        assert!(is_tls_error(&tls));
        assert!(is_tls_error(&io::Error::new(io::ErrorKind::InvalidData, tls)));
        assert!(!is_tls_error(&io::Error::new(io::ErrorKind::InvalidData, "odd")));
        assert!(!is_tls_error(&io::Error::from(io::ErrorKind::ConnectionReset)));
    }
}
