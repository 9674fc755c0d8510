//! Look-ups, the list of all coins in the order of their names, and undo data.

use super::connections::{PostgresConnections, failed, listen};
use super::record::PostgresRecord;
use super::{NAME_BYTES, PostgresOptions, PostgresUrl, name_of, outpoint_of};
use crate::retry;
use crate::store::{CoinsAtTip, READ_AT_ONCE, no_store};
use ::postgres::binary_copy::{BinaryCopyOutIter, BinaryCopyOutRow};
use ::postgres::config::TargetSessionAttrs;
use ::postgres::fallible_iterator::FallibleIterator;
use ::postgres::types::Type;
use ::postgres::{IsolationLevel, RowIter};
use apus_chain::{BlockHash, Network, OutPoint};
use apus_engine::utxo::store::{EachCoin, stored_coin};
use apus_engine::utxo::{CoinBytes, StoreError};
use std::time::Duration;

/// How long the server may be silent before the first coin of a listing: it sorts up to several hundred
/// million.
const SORTING: Duration = Duration::from_secs(30 * 60);

/// Looks coins up in one statement. Returns them in the order of `wanted`.
pub(super) fn look_up(
    connections: &PostgresConnections,
    wanted: &[OutPoint],
) -> Result<Vec<Option<CoinBytes>>, StoreError> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let names = names_of(wanted);
    let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
    connections.run(|session| {
        let statement = session.look_up()?;
        let rows = session.client.query_raw(&statement, [&names])?;
        take_rows(connections, rows, wanted)
    })?
}

/// The names of coins.
pub(super) fn names_of(wanted: &[OutPoint]) -> Vec<[u8; NAME_BYTES]> {
    wanted.iter().map(name_of).collect()
}

/// Takes the answers to a look-up.
pub(super) fn take_rows(
    connections: &PostgresConnections,
    mut rows: RowIter<'_>,
    wanted: &[OutPoint],
) -> Result<Result<Vec<Option<CoinBytes>>, StoreError>, ::postgres::Error> {
    let mut coins = vec![None; wanted.len()];
    while let Some(row) = rows.next()? {
        let (place, bytes): (i64, &[u8]) = (row.try_get(0)?, row.try_get(1)?);
        // Places count from 1.
        let place = usize::try_from(place - 1).ok().filter(|place| *place < wanted.len());
        let Some(place) = place else {
            return Ok(Err(StoreError::damaged(
                connections.place(),
                "its answers do not match the request",
            )));
        };
        match stored_coin(connections.place(), wanted[place], bytes) {
            Ok(coin) => coins[place] = Some(coin),
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(coins))
}

/// Passes every coin to `each`, by ascending outpoint. The server sorts them, on its disk if necessary, and
/// sends them as fast as they are taken.
pub(super) fn coins(
    connections: &PostgresConnections,
    each: &mut EachCoin<'_>,
) -> Result<(), StoreError> {
    let mut patience = connections.patience();
    // The listing can be retried until the first coin was passed on.
    let mut given = false;
    loop {
        // The server is silent while it sorts.
        let limit = patience.left().max(SORTING);
        let (walked, heard) = listen(limit, || walk(connections, &mut given, each));
        match walked {
            Ok(done) => {
                patience.ends_well();
                return done;
            }
            Err(error) if given => return Err(failed(connections.place(), &error)),
            Err(error) => connections.bear(&mut patience, heard, &error)?,
        }
    }
}

/// Makes one attempt. Sets `given` before the first coin is passed on.
fn walk(
    connections: &PostgresConnections,
    given: &mut bool,
    each: &mut EachCoin<'_>,
) -> Result<Result<(), StoreError>, ::postgres::Error> {
    // A connection with an unfinished answer cannot be used again.
    let mut session = {
        let _soon = retry::within(connections.patience().left());
        connections.connect()?
    };
    // Here a sequential scan is the right plan.
    session.client.batch_execute("SET enable_seqscan = on; SET bytea_output = hex")?;
    let from =
        "COPY (SELECT outpoint, coin FROM coins ORDER BY outpoint) TO STDOUT (FORMAT binary)";
    let reader = session.client.copy_out(from)?;
    let mut rows = BinaryCopyOutIter::new(reader, &[Type::BYTEA, Type::BYTEA]);
    while let Some(row) = rows.next()? {
        *given = true;
        if let Err(error) = give(connections, &row, each) {
            return Ok(Err(error));
        }
    }
    Ok(Ok(()))
}

fn give(
    connections: &PostgresConnections,
    row: &BinaryCopyOutRow,
    each: &mut EachCoin<'_>,
) -> Result<(), StoreError> {
    let read = row.try_get::<&[u8]>(0).and_then(|name| Ok((name, row.try_get::<&[u8]>(1)?)));
    let (name, bytes) = read.map_err(|error| failed(connections.place(), &error))?;
    let none =
        || StoreError::damaged(connections.place(), "its table coins has a row that is not a coin");
    let outpoint = outpoint_of(name).ok_or_else(none)?;
    each(&outpoint, &stored_coin(connections.place(), outpoint, bytes)?)
}

/// Reads the undo data of a block.
pub(super) fn undo(
    connections: &PostgresConnections,
    block: &BlockHash,
) -> Result<Option<Vec<u8>>, StoreError> {
    connections.run(|session| {
        let ask = "SELECT data FROM undo WHERE hash = $1";
        let row = session.client.query_opt(ask, &[&&block.0[..]])?;
        row.map(|row| row.try_get(0)).transpose()
    })
}

/// Reads a store while another process writes it.
pub(crate) struct PostgresReader {
    connections: PostgresConnections,
}

impl PostgresReader {
    pub(crate) fn open(
        place: &PostgresUrl,
        network: Network,
        options: &PostgresOptions,
    ) -> Result<Self, StoreError> {
        let connections = PostgresConnections::open(place, options, TargetSessionAttrs::Any)?;
        PostgresRecord::read(&connections, network)?
            .ok_or_else(|| no_store(connections.place()))?;
        Ok(Self { connections })
    }

    pub(crate) fn look_up(&self, wanted: &[OutPoint]) -> Result<CoinsAtTip, StoreError> {
        let place = self.connections.place();
        self.connections.run(|session| {
            let statement = session.look_up()?;
            // All its statements see the state at its start.
            let mut transaction = session
                .client
                .build_transaction()
                .isolation_level(IsolationLevel::RepeatableRead)
                .read_only(true)
                .start()?;
            let record = match PostgresRecord::within(&mut transaction, place)? {
                Ok(record) => record,
                Err(error) => return Ok(Err(error)),
            };
            let mut coins = Vec::with_capacity(wanted.len());
            for some in wanted.chunks(READ_AT_ONCE) {
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
            Ok(tip.map(|tip| CoinsAtTip { tip, coins }))
        })?
    }
}
