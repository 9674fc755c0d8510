//! [`Lease`]: says that a writer is there, for as long as its session lasts.
//!
//! It is a lock of the server's that belongs to a session of its own. It is for people: a second writer
//! learns that there is one, and does no work in vain. What keeps the coins right where a session was
//! lost is told in [`postgres`](super).

use super::connections::{Connections, Session, listen};
use apus_engine::utxo::StoreError;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How often a lease that another holds is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// The number of a lock is made of a text, which others in the same database will hardly use.
const TAKE: &str = "SELECT pg_try_advisory_lock(hashtextextended('apus-coins:' || $1::text, 0))";

/// See the module. Given back as it is dropped, with its session.
pub(super) struct Lease {
    connections: Arc<Connections>,
    waits: Duration,
    session: Option<Session>,
}

impl Lease {
    /// Takes it, after waiting for a session to end whose client is gone.
    pub(super) fn take(
        connections: &Arc<Connections>,
        waits: Duration,
    ) -> Result<Self, StoreError> {
        let mut lease = Self { connections: Arc::clone(connections), waits, session: None };
        lease.renew()?;
        Ok(lease)
    }

    /// Takes it again where its session was lost. Fails where another writer has it.
    pub(super) fn expect_held(&mut self) -> Result<(), StoreError> {
        let limit = self.connections.patience().left();
        let alive = |session: &mut Session| {
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

    fn try_take(&self) -> Result<Option<Session>, ::postgres::Error> {
        let mut session = self.connections.connect()?;
        let row = session.client.query_one(TAKE, &[&self.connections.schema()])?;
        Ok(row.try_get::<_, bool>(0)?.then_some(session))
    }
}
