//! Opens the store that a URL names.

use crate::cluster::{ClusterOptions, ClusterReader, ClusterStore};
use crate::postgres::{PostgresOptions, PostgresReader, PostgresStore};
use crate::store::CoinsAtTip;
use crate::url::{Password, StoreUrl};
use apus_chain::{Network, OutPoint};
use apus_engine::utxo::{CoinsStore, StoreError};
use std::sync::Arc;
use std::time::Duration;

/// How to access servers of either kind.
#[derive(Debug, Clone)]
pub struct Access {
    /// The servers' password, if they require one.
    pub password: Option<Password>,
    /// How long the servers may be unavailable or silent before that is an error. The first call waits for a
    /// few seconds at most, because the name may be wrong.
    pub patience: Duration,
    /// Receives what could not be checked, for people.
    pub notice: fn(&str),
}

impl Default for Access {
    fn default() -> Self {
        Self { password: None, patience: Duration::from_secs(60), notice: |_| () }
    }
}

impl Access {
    pub(crate) fn cluster(&self) -> ClusterOptions {
        let Self { password, patience, notice } = self.clone();
        ClusterOptions { password, patience, notice, ..ClusterOptions::default() }
    }

    pub(crate) fn postgres(&self) -> PostgresOptions {
        let Self { password, patience, notice: _ } = self.clone();
        PostgresOptions { password, patience, ..PostgresOptions::default() }
    }
}

/// Opens a store for writing, or creates it. Fails if another writer holds it, or if it belongs to another
/// chain.
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

/// Like [`open`], but creates no store: fails if there is none.
pub fn open_existing(
    place: &StoreUrl,
    network: Network,
    access: &Access,
) -> Result<Arc<dyn CoinsStore>, StoreError> {
    match place {
        StoreUrl::Cluster(place) => {
            ClusterReader::open(place, network, &access.cluster())?.expect_store()?;
        }
        StoreUrl::Postgres(place) => {
            PostgresReader::open(place, network, &access.postgres())?;
        }
    }
    open(place, network, access)
}

/// Looks coins up without writing, while another process writes.
///
/// It takes no lease and blocks no writer. All coins of one look-up belong to one block, which the result
/// names. On PostgreSQL a transaction ensures this. On a cluster the record is read before and after the
/// look-up, which is repeated if a flush happened in between.
pub struct CoinsReader(ReaderKind);

enum ReaderKind {
    Cluster(Box<ClusterReader>),
    Postgres(Box<PostgresReader>),
}

impl CoinsReader {
    /// Opens a store for reading. Fails if the store does not exist or belongs to another chain; on a cluster
    /// only the look-ups check that.
    pub fn open(place: &StoreUrl, network: Network, access: &Access) -> Result<Self, StoreError> {
        Ok(Self(match place {
            StoreUrl::Cluster(place) => {
                let reader = ClusterReader::open(place, network, &access.cluster())?;
                ReaderKind::Cluster(Box::new(reader))
            }
            StoreUrl::Postgres(place) => ReaderKind::Postgres(Box::new(PostgresReader::open(
                place,
                network,
                &access.postgres(),
            )?)),
        }))
    }

    /// Looks coins up. Holds them all in memory, so the caller must limit how many it requests.
    pub fn look_up(&self, wanted: &[OutPoint]) -> Result<CoinsAtTip, StoreError> {
        match &self.0 {
            ReaderKind::Cluster(reader) => reader.look_up(wanted),
            ReaderKind::Postgres(reader) => reader.look_up(wanted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fake::FakeServer;

    #[test]
    fn a_missing_store_is_not_created() {
        let server = FakeServer::start(|_, words| match &words[0][..] {
            b"GET" => Some(b"$-1\r\n".to_vec()),
            other => panic!("{other:?} is not for a reader"),
        });
        let place = server.url().parse().unwrap();
        let error = open_existing(&place, Network::Regtest, &Access::default()).err().unwrap();
        assert!(error.to_string().contains("no coins under this name"), "{error}");
    }
}
