//! [`PostgresStore`]: coins on PostgreSQL.
//!
//! A store is a schema of a database. Coins lie in a table that is divided by the hashes of their
//! names; which columns there are: `docs/formats/remote-coins.md`.
//!
//! # A flush is one step
//!
//! It is one transaction, which changes the coins, the undo data and the record that says at which
//! block the store is. Changes come by `COPY` into a table of the session's own first, and go from
//! there to where they belong with one statement for those that are made and one for those that go.
//! Where the connection is lost while the transaction ends, the record says whether it did.
//!
//! # One writer
//!
//! A *lease* keeps a second writer out, and tells it so: a lock that the server holds for a session, and
//! lets go with it. Safety does not rest on it. Who opens a store puts a number of its own, the *writer*,
//! into the record, and each flush begins by looking whether it still stands there, which locks it
//! for as long as the flush lasts. So a writer that was replaced changes nothing.
//!
//! # Reading
//!
//! A look-up and a list of all coins are one statement each, so they are of one block, also while a
//! flush is under way.

mod connections;
mod flush;
mod lease;
mod line;
mod reader;
mod record;
mod scan;

pub(crate) use reader::PostgresReader;

use crate::known::Known;
use crate::place::{Password, PostgresPlace};
use ::postgres::config::TargetSessionAttrs;
use apus_chain::{BlockHash, KnownBlock, Network, OutPoint};
use apus_engine::utxo::store::{EachCoin, Flush};
use apus_engine::utxo::{CoinBytes, CoinsStore, StoreError};
use connections::Connections;
use flush::Flushed;
use lease::Lease;
use record::{Record, Writer};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How many coins are worth one way to the server and back.
const AT_ONCE: usize = 100;

/// Bytes of a coin's name: its txid, and the number of the output, big-endian, so that names ascend as
/// outpoints do.
const NAME_BYTES: usize = 36;

/// What may be chosen of a store.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// The password, if the server wants one.
    pub password: Option<Password>,
    /// How long to wait for a writer that is about to be gone.
    pub lease: Duration,
    /// For how long the server may be away, or silent, before that is an error.
    pub patience: Duration,
    /// Parts of the table of coins, 1 to 256; a store that is there has its own.
    pub partitions: u16,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            password: None,
            lease: Duration::from_secs(10),
            patience: Duration::from_secs(60),
            partitions: 16,
        }
    }
}

/// Coins on PostgreSQL.
pub struct PostgresStore {
    connections: Arc<Connections>,
    lease: Mutex<Lease>,
    record: Known<Record>,
    writer: Writer,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").field("place", &self.place()).finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Opens the store at a place, for writing, or makes one where there is none.
    pub fn open(
        place: &PostgresPlace,
        network: Network,
        options: &PostgresOptions,
    ) -> Result<Self, StoreError> {
        // Its name may stand for a standby as well, whose coins are those of some time ago.
        let attrs = TargetSessionAttrs::ReadWrite;
        let connections = Arc::new(Connections::open(place, options, attrs)?);
        connections.expect_durable()?;
        // What is not ours is not even locked.
        Record::read(&connections, network)?;
        let lease = Lease::take(&connections, options.lease)?;
        let writer = Writer::random(connections.place())?;
        let record = Record::take_or_make(&connections, network, writer, options.partitions)?;
        let (lease, record) = (Mutex::new(lease), Known::new(connections.place(), record));
        Ok(Self { connections, lease, record, writer })
    }

    fn place(&self) -> &str {
        self.connections.place()
    }
}

impl CoinsStore for PostgresStore {
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError> {
        self.record.get().map(|record| record.tip)
    }

    fn get(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        Ok(self.get_many(std::slice::from_ref(outpoint))?.pop().flatten())
    }

    fn get_many(&self, wanted: &[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        scan::look_up(&self.connections, wanted)
    }

    fn at_once(&self) -> usize {
        AT_ONCE
    }

    fn write(&self, flush: &Flush<'_>) -> Result<(), StoreError> {
        let mut writing = self.record.write()?;
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).expect_held()?;
        match flush::write(&self.connections, &writing.before, self.writer, flush) {
            Flushed::Done(record) => {
                writing.ends(record);
                Ok(())
            }
            Flushed::Refused(error) => Err(error),
            Flushed::Unknown(error) => {
                writing.is_open();
                Err(error)
            }
        }
    }

    fn undo(&self, block: &BlockHash) -> Result<Option<Vec<u8>>, StoreError> {
        scan::undo(&self.connections, block)
    }

    fn for_each(&self, each: &mut EachCoin<'_>) -> Result<(), StoreError> {
        scan::coins(&self.connections, each)
    }
}

/// What a coin is called.
fn name_of(outpoint: &OutPoint) -> [u8; NAME_BYTES] {
    let mut name = [0; NAME_BYTES];
    name[..32].copy_from_slice(&outpoint.txid.0);
    name[32..].copy_from_slice(&outpoint.vout.to_be_bytes());
    name
}

/// The coin that is called so.
fn outpoint_of(name: &[u8]) -> Option<OutPoint> {
    let name: &[u8; NAME_BYTES] = name.try_into().ok()?;
    let (txid, vout) = name.split_at(32);
    let txid = apus_chain::Txid(txid.try_into().ok()?);
    Some(OutPoint { txid, vout: u32::from_be_bytes(vout.try_into().ok()?) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::Txid;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_are_read_as_they_were_written_and_ascend(
            (a, b) in ((any::<[u8; 32]>(), any::<u32>()), (any::<[u8; 32]>(), any::<u32>())),
        ) {
            let [a, b] = [a, b].map(|(txid, vout)| OutPoint { txid: Txid(txid), vout });
            prop_assert_eq!(outpoint_of(&name_of(&a)), Some(a));
            prop_assert_eq!(a.cmp(&b), name_of(&a).cmp(&name_of(&b)));
            prop_assert_eq!(outpoint_of(&name_of(&a)[1..]), None);
        }
    }
}
