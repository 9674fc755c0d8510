//! [`PostgresStore`]: coins on PostgreSQL.
//!
//! A store is a schema of a database. Coins lie in a table that is divided by the hashes of their
//! names; which columns there are: `docs/remote-coins.md`.
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
use record::PostgresRecord;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

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
    connections: Arc<PostgresConnections>,
    lease: Mutex<PostgresLease>,
    record: KnownRecord<PostgresRecord>,
    writer: RandomId,
}

impl PostgresStore {
    /// Opens the store at a place, for writing, or makes one where there is none.
    pub fn open(
        place: &PostgresUrl,
        network: Network,
        options: &PostgresOptions,
    ) -> Result<Self, StoreError> {
        // Its name may stand for a standby as well, whose coins are those of some time ago.
        let attrs = TargetSessionAttrs::ReadWrite;
        let connections = Arc::new(PostgresConnections::open(place, options, attrs)?);
        connections.expect_durable()?;
        // What is not ours is not even locked.
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
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).expect_held()?;
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

/// How often a lease that another holds is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// The number of a lock is made of a text, which others in the same database will hardly use.
const TAKE: &str = "SELECT pg_try_advisory_lock(hashtextextended('apus-coins:' || $1::text, 0))";

/// Says that a writer is there, for as long as its session lasts.
///
/// It is a lock of the server's that belongs to a session of its own. It is for people: a second writer
/// learns that there is one, and does no work in vain. What keeps the coins right where a session was
/// lost is told in [`postgres`](super). Given back as it is dropped, with its session.
struct PostgresLease {
    connections: Arc<PostgresConnections>,
    waits: Duration,
    session: Option<PostgresSession>,
}

impl PostgresLease {
    /// Takes it, after waiting for a session to end whose client is gone.
    fn take(connections: &Arc<PostgresConnections>, waits: Duration) -> Result<Self, StoreError> {
        let mut lease = Self { connections: Arc::clone(connections), waits, session: None };
        lease.renew()?;
        Ok(lease)
    }

    /// Takes it again where its session was lost. Fails where another writer has it.
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
