//! Opening whatever store a place names.

use crate::cluster::{ClusterOptions, ClusterReader, ClusterStore};
use crate::postgres::{PostgresOptions, PostgresReader, PostgresStore};
use crate::store::CoinsAtTip;
use crate::url::{Password, StoreUrl};
use apus_chain::{Network, OutPoint};
use apus_engine::utxo::{CoinsStore, StoreError};
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
pub struct CoinsReader(ReaderKind);

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
