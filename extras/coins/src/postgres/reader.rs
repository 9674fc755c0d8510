//! [`PostgresReader`]: look-ups beside a writer, each of one block.

use super::connections::Connections;
use super::record::Record;
use super::scan::{names_of, take_rows};
use super::{PostgresOptions, PostgresPlace};
use crate::seen::{AT_ONCE, Seen, no_store};
use ::postgres::IsolationLevel;
use ::postgres::config::TargetSessionAttrs;
use apus_chain::{Network, OutPoint};
use apus_engine::utxo::StoreError;

/// Reads a store that another writes.
pub(crate) struct PostgresReader {
    connections: Connections,
}

impl std::fmt::Debug for PostgresReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = self.connections.place();
        f.debug_struct("PostgresReader").field("place", &place).finish_non_exhaustive()
    }
}

impl PostgresReader {
    pub(crate) fn open(
        place: &PostgresPlace,
        network: Network,
        options: &PostgresOptions,
    ) -> Result<Self, StoreError> {
        let connections = Connections::open(place, options, TargetSessionAttrs::Any)?;
        Record::read(&connections, network)?.ok_or_else(|| no_store(connections.place()))?;
        Ok(Self { connections })
    }

    pub(crate) fn look_up(&self, wanted: &[OutPoint]) -> Result<Seen, StoreError> {
        let place = self.connections.place();
        self.connections.run(|session| {
            let statement = session.look_up()?;
            // All its statements see what was there as it began.
            let mut transaction = session
                .client
                .build_transaction()
                .isolation_level(IsolationLevel::RepeatableRead)
                .read_only(true)
                .start()?;
            let record = match Record::within(&mut transaction, place)? {
                Ok(record) => record,
                Err(error) => return Ok(Err(error)),
            };
            let mut coins = Vec::with_capacity(wanted.len());
            for some in wanted.chunks(AT_ONCE) {
                let names = names_of(some);
                let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
                let rows = transaction.query_raw(&statement, [&names])?;
                match take_rows(&self.connections, rows, some)? {
                    Ok(some) => coins.extend(some),
                    Err(error) => return Ok(Err(error)),
                }
            }
            transaction.commit()?;
            let tip = record.tip.ok_or_else(|| no_store(place));
            Ok(tip.map(|tip| Seen { tip, coins }))
        })?
    }
}
