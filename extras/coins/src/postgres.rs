//! [`PostgresStore`]: coins on PostgreSQL.
//!
//! A store is a schema of a database. Coins are in a table partitioned by the hashes of their names.
//! `docs/remote-coins.md` lists the columns.
//!
//! # A flush is atomic
//!
//! It is one transaction, which changes the coins, the undo data and the record of the store's block. Changes
//! first go by `COPY` into a temporary table of the session. From there, one statement inserts or updates
//! coins and another deletes them. If the connection is lost during the commit, the record shows whether it
//! happened.
//!
//! # One writer
//!
//! A *lease* keeps a second writer out and lets it report why: an advisory lock that the server holds for a
//! session and releases with it. Safety does not depend on it. A writer that opens the store puts a random
//! number, the *writer*, into the record. Each flush starts by checking that number, which locks the record
//! until the flush ends. So a replaced writer changes nothing.
//!
//! # Reading
//!
//! A look-up and a listing of all coins are one statement each, so each sees a single block, even during a
//! flush.

mod connections;
mod flush;
mod line;
mod record;
mod scan;

pub(crate) use scan::PostgresReader;

use crate::store::{KnownRecord, RandomId};
use crate::url::{Password, PostgresUrl};
use ::postgres::config::TargetSessionAttrs;
use apus_chain::{BlockHash, KnownBlock, Network, OutPoint};
use apus_engine::utxo::store::{EachCoin, Flush};
use apus_engine::utxo::{CoinBytes, CoinsStore, StoreError};
use connections::{PostgresConnections, PostgresSession, listen};
use flush::FlushOutcome;
use parking_lot::Mutex;
use record::PostgresRecord;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How many coins justify a round trip to the server.
const AT_ONCE: usize = 100;

/// Length of a coin's name: its txid and the output number, big-endian, so that names sort like outpoints.
const NAME_BYTES: usize = 36;

/// Options of a store.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// The password, if the server requires one.
    pub password: Option<Password>,
    /// How long to wait for a departing writer.
    pub lease: Duration,
    /// How long the server may be unavailable or silent before that is an error.
    pub patience: Duration,
    /// Partitions of the coin table, 1 to 256. An existing store keeps its own number.
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

/// A coin store on PostgreSQL.
pub struct PostgresStore {
    connections: Arc<PostgresConnections>,
    lease: Mutex<PostgresLease>,
    record: KnownRecord<PostgresRecord>,
    writer: RandomId,
}

impl PostgresStore {
    /// Opens a store for writing, or creates it.
    pub fn open(
        place: &PostgresUrl,
        network: Network,
        options: &PostgresOptions,
    ) -> Result<Self, StoreError> {
        // The host name may also resolve to a standby, whose coins lag behind.
        let attrs = TargetSessionAttrs::ReadWrite;
        let connections = Arc::new(PostgresConnections::open(place, options, attrs)?);
        connections.expect_durable()?;
        // Check first, so that a foreign store is not even locked.
        PostgresRecord::read(&connections, network)?;
        let lease = PostgresLease::take(&connections, options.lease)?;
        let writer = RandomId::random(connections.place())?;
        let record =
            PostgresRecord::take_or_make(&connections, network, writer, options.partitions)?;
        let (lease, record) = (Mutex::new(lease), KnownRecord::new(connections.place(), record));
        Ok(Self { connections, lease, record, writer })
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
        self.lease.lock().expect_held()?;
        match flush::write(&self.connections, &writing.before, self.writer, flush) {
            FlushOutcome::Done(record) => {
                writing.ends(record);
                Ok(())
            }
            FlushOutcome::Refused(error) => Err(error),
            FlushOutcome::Unknown(error) => {
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

/// A coin's name.
fn name_of(outpoint: &OutPoint) -> [u8; NAME_BYTES] {
    let mut name = [0; NAME_BYTES];
    name[..32].copy_from_slice(&outpoint.txid.0);
    name[32..].copy_from_slice(&outpoint.vout.to_be_bytes());
    name
}

/// The coin with this name.
fn outpoint_of(name: &[u8]) -> Option<OutPoint> {
    let name: &[u8; NAME_BYTES] = name.try_into().ok()?;
    let (txid, vout) = name.split_at(32);
    let txid = apus_chain::Txid(txid.try_into().ok()?);
    Some(OutPoint { txid, vout: u32::from_be_bytes(vout.try_into().ok()?) })
}

/// How often to check a lease that another writer holds.
const LOOK: Duration = Duration::from_millis(50);

/// The lock's number is a hash of a text that other users of the database are unlikely to lock.
const TAKE: &str = "SELECT pg_try_advisory_lock(hashtextextended('apus-coins:' || $1::text, 0))";

/// A writer's lease, kept for as long as its session lasts.
///
/// It is an advisory lock of the server in its own session. It exists for users: a second writer reports the
/// first and does no work in vain. [`postgres`](super) explains why coins stay correct even if the session is
/// lost. Dropping it ends the session and so gives it back.
struct PostgresLease {
    connections: Arc<PostgresConnections>,
    waits: Duration,
    session: Option<PostgresSession>,
}

impl PostgresLease {
    /// Takes the lease. Waits for the session of a vanished client to end.
    fn take(connections: &Arc<PostgresConnections>, waits: Duration) -> Result<Self, StoreError> {
        let mut lease = Self { connections: Arc::clone(connections), waits, session: None };
        lease.renew()?;
        Ok(lease)
    }

    /// Takes the lease again if its session was lost. Fails if another writer holds it.
    fn expect_held(&mut self) -> Result<(), StoreError> {
        let limit = self.connections.patience().left();
        let alive = |session: &mut PostgresSession| {
            listen(limit, || session.client.batch_execute("SELECT 1")).0.is_ok()
        };
        if self.session.as_mut().is_some_and(alive) {
            return Ok(());
        }
        self.session = None;
        self.renew()
    }

    fn renew(&mut self) -> Result<(), StoreError> {
        let (started, mut patience) = (Instant::now(), self.connections.patience());
        loop {
            match listen(patience.left(), || self.try_take()) {
                (Ok(Some(session)), _) => {
                    patience.ends_well();
                    self.session = Some(session);
                    return Ok(());
                }
                (Ok(None), _) if started.elapsed() > self.waits => {
                    return Err(StoreError::InUse { place: self.connections.place().to_owned() });
                }
                (Ok(None), _) => thread::sleep(LOOK.min(self.waits)),
                (Err(error), heard) => self.connections.bear(&mut patience, heard, &error)?,
            }
        }
    }

    fn try_take(&self) -> Result<Option<PostgresSession>, ::postgres::Error> {
        let mut session = self.connections.connect()?;
        let row = session.client.query_one(TAKE, &[&self.connections.schema()])?;
        Ok(row.try_get::<_, bool>(0)?.then_some(session))
    }
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
