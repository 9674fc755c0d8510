//! Opening whatever store a place names.

use crate::cluster::{ClusterOptions, ClusterStore};
use crate::place::{Password, Place};
use crate::postgres::{PostgresOptions, PostgresStore};
use apus_chain::Network;
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
    place: &Place,
    network: Network,
    access: &Access,
) -> Result<Arc<dyn CoinsStore>, StoreError> {
    Ok(match place {
        Place::Cluster(place) => Arc::new(ClusterStore::open(place, network, &access.cluster())?),
        Place::Postgres(place) => {
            Arc::new(PostgresStore::open(place, network, &access.postgres())?)
        }
    })
}
