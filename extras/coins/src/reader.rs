//! [`Reader`]: for those who look coins up and write nothing, beside the one who writes.
//!
//! It takes no lease and keeps no writer out. All coins of one look-up are of one block, and it says of
//! which. On PostgreSQL that is a transaction. On a cluster the record is read before and after, and
//! the look-up is made again where a flush came in between.

use crate::cluster::ClusterReader;
use crate::open::Access;
use crate::place::Place;
use crate::postgres::PostgresReader;
use crate::seen::Seen;
use apus_chain::{Network, OutPoint};
use apus_engine::utxo::StoreError;

/// See the module.
#[derive(Debug)]
pub struct Reader(Kind);

#[derive(Debug)]
enum Kind {
    Cluster(ClusterReader),
    Postgres(Box<PostgresReader>),
}

impl Reader {
    /// Opens the store at a place, for reading. Fails where there is none, or one of another chain.
    pub fn open(place: &Place, network: Network, access: &Access) -> Result<Self, StoreError> {
        Ok(Self(match place {
            Place::Cluster(place) => {
                Kind::Cluster(ClusterReader::open(place, network, &access.cluster())?)
            }
            Place::Postgres(place) => {
                Kind::Postgres(Box::new(PostgresReader::open(place, network, &access.postgres())?))
            }
        }))
    }

    /// Looks coins up. They are held all at once, so the caller bounds how many it asks for.
    pub fn look_up(&self, wanted: &[OutPoint]) -> Result<Seen, StoreError> {
        match &self.0 {
            Kind::Cluster(reader) => reader.look_up(wanted),
            Kind::Postgres(reader) => reader.look_up(wanted),
        }
    }
}
