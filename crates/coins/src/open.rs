//! Opening whatever store a place names.

use crate::cluster::{ClusterOptions, ClusterStore};
use crate::place::{Password, Place};
use crate::postgres::{PostgresOptions, PostgresStore};
use apus_chain::Network;
use apus_engine::utxo::{CoinsStore, StoreError};
use std::sync::Arc;

/// Opens the store at a place, for writing, or makes one where there is none. Fails where another writer
/// has it, or where it is another chain's.
pub fn open(
    place: &Place,
    network: Network,
    password: Option<Password>,
) -> Result<Arc<dyn CoinsStore>, StoreError> {
    Ok(match place {
        Place::Cluster(place) => {
            let options = ClusterOptions { password, ..ClusterOptions::default() };
            Arc::new(ClusterStore::open(place, network, &options)?)
        }
        Place::Postgres(place) => {
            let options = PostgresOptions { password, ..PostgresOptions::default() };
            Arc::new(PostgresStore::open(place, network, &options)?)
        }
    })
}
