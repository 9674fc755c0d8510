//! A flush: one transaction, retried as a whole if the server becomes unavailable.

use super::connections::{PostgresConnections, PostgresSession, listen};
use super::record::PostgresRecord;
use super::{NAME_BYTES, name_of};
use crate::store::RandomId;
use ::postgres::Transaction;
use ::postgres::binary_copy::BinaryCopyInWriter;
use ::postgres::types::Type;
use apus_chain::OutPoint;
use apus_engine::utxo::store::Flush;
use apus_engine::utxo::{CoinBytes, StoreError};
use std::borrow::Cow;

/// Pending changes in a temporary table: a coin, or NULL to delete it.
const CHANGES: &str = "\
CREATE TEMPORARY TABLE IF NOT EXISTS changes (outpoint bytea NOT NULL, coin bytea)
ON COMMIT DELETE ROWS";

const COPY_CHANGES: &str = "COPY pg_temp.changes (outpoint, coin) FROM STDIN (FORMAT binary)";
const COPY_NEW: &str = "COPY coins (outpoint, coin) FROM STDIN (FORMAT binary)";

const FORGET: &str = "TRUNCATE pg_temp.changes";

/// Size of the changes applied together, in bytes, approximately.
const PART_BYTES: usize = 4 << 20;

const PUT: &str = "\
INSERT INTO coins SELECT outpoint, coin FROM pg_temp.changes WHERE coin IS NOT NULL
ON CONFLICT (outpoint) DO UPDATE SET coin = EXCLUDED.coin";

const REMOVE: &str = "\
DELETE FROM coins USING pg_temp.changes AS gone
WHERE coins.outpoint = gone.outpoint AND gone.coin IS NULL";

/// Pending undo data, in pieces: as one value it would be held twice here, and once more while it grows.
const PIECES: &str = "\
CREATE TEMPORARY TABLE IF NOT EXISTS pieces
(hash bytea NOT NULL, height bigint NOT NULL, piece bigint NOT NULL, data bytea NOT NULL)
ON COMMIT DELETE ROWS";

const COPY_PIECES: &str =
    "COPY pg_temp.pieces (hash, height, piece, data) FROM STDIN (FORMAT binary)";

/// Length of every piece except the last, in bytes.
const PIECE_BYTES: usize = 512 << 10;

const UNDO: &str = "\
INSERT INTO undo (hash, height, data)
SELECT hash, min(height), string_agg(data, ''::bytea ORDER BY piece) FROM pg_temp.pieces GROUP BY hash
ON CONFLICT (hash) DO UPDATE SET height = EXCLUDED.height, data = EXCLUDED.data";

/// The outcome of a flush.
pub(super) enum FlushOutcome {
    /// The flush took effect.
    Done(PostgresRecord),
    /// The flush had no effect.
    Refused(StoreError),
    /// Unknown: the server became unavailable.
    Unknown(StoreError),
}

/// Why an attempt failed.
enum FlushFailure {
    /// The server, or the connection to it.
    Server(::postgres::Error),
    /// A final error.
    Final(StoreError),
}

impl From<::postgres::Error> for FlushFailure {
    fn from(error: ::postgres::Error) -> Self {
        Self::Server(error)
    }
}

/// Writes a flush on top of a record.
pub(super) fn write(
    connections: &PostgresConnections,
    before: &PostgresRecord,
    writer: RandomId,
    flush: &Flush<'_>,
) -> FlushOutcome {
    let after = PostgresRecord { epoch: before.epoch + 1, tip: Some(flush.tip) };
    let mut patience = connections.patience();
    // Only a commit can happen and still return an error.
    let mut may_have_ended = false;
    loop {
        let (tried, heard) = listen(patience.left(), || {
            let mut session = connections.connect()?;
            attempt(connections, &mut session, (before, &after), writer, flush, &mut may_have_ended)
        });
        match tried {
            Ok(()) => {
                patience.ends_well();
                return FlushOutcome::Done(after);
            }
            Err(FlushFailure::Final(error)) => return FlushOutcome::Refused(error),
            Err(FlushFailure::Server(error)) => {
                if let Err(error) = connections.bear(&mut patience, heard, &error) {
                    return match may_have_ended {
                        true => FlushOutcome::Unknown(error),
                        false => FlushOutcome::Refused(error),
                    };
                }
            }
        }
    }
}

fn attempt(
    connections: &PostgresConnections,
    session: &mut PostgresSession,
    (before, after): (&PostgresRecord, &PostgresRecord),
    writer: RandomId,
    flush: &Flush<'_>,
    may_have_ended: &mut bool,
) -> Result<(), FlushFailure> {
    let place = connections.place();
    for table in [CHANGES, PIECES] {
        session.client.batch_execute(table)?;
    }
    let mut transaction = session.client.transaction()?;
    let there = PostgresRecord::lock(&mut transaction, writer, place)??;
    if *may_have_ended && there == Some(*after) {
        return Ok(());
    }
    if there != Some(*before) {
        return Err(FlushFailure::Final(StoreError::InUse { place: place.to_owned() }));
    }
    *may_have_ended = false;
    match before.tip {
        // An empty store has no coin to replace or delete, and the flush may be a complete UTXO set.
        None => fill(&mut transaction, place, flush)?,
        Some(_) => change(&mut transaction, place, flush)?,
    }
    let from = i64::from(flush.undo_from);
    transaction.execute("DELETE FROM undo WHERE height < $1", &[&from])?;
    put_undo(&mut transaction, flush)?;
    after.put(&mut transaction)?;
    *may_have_ended = true;
    transaction.commit()?;
    Ok(())
}

/// Sends the undo data, and moves it to its table.
fn put_undo(transaction: &mut Transaction<'_>, flush: &Flush<'_>) -> Result<(), FlushFailure> {
    let mut kept = flush.undo.iter().filter(|undo| undo.block.height >= flush.undo_from).peekable();
    if kept.peek().is_none() {
        return Ok(());
    }
    let columns = [Type::BYTEA, Type::INT8, Type::INT8, Type::BYTEA];
    let mut rows = BinaryCopyInWriter::new(transaction.copy_in(COPY_PIECES)?, &columns);
    for undo in kept {
        let (hash, height) = (&undo.block.hash.0[..], i64::from(undo.block.height));
        // A block with empty undo data still gets one piece.
        let none = undo.bytes.is_empty().then_some(Cow::Borrowed(&[][..]));
        let pieces = undo.bytes.chunks(PIECE_BYTES).chain(none);
        for (number, piece) in (0_i64..).zip(pieces) {
            rows.write(&[&hash, &height, &number, &&*piece])?;
        }
    }
    rows.finish()?;
    Ok(transaction.execute(UNDO, &[]).map(drop)?)
}

/// Sends the coins of a store that is empty.
fn fill(
    transaction: &mut Transaction<'_>,
    place: &str,
    flush: &Flush<'_>,
) -> Result<(), FlushFailure> {
    let columns = [Type::BYTEA, Type::BYTEA];
    let mut rows = BinaryCopyInWriter::new(transaction.copy_in(COPY_NEW)?, &columns);
    in_order(flush, place, &mut |outpoint, coin| match coin {
        Some(coin) => Ok(rows.write(&[&&name_of(outpoint)[..], &coin.as_bytes()])?),
        None => Ok(()),
    })?;
    Ok(rows.finish().map(drop)?)
}

/// Sends the changes and applies them in parts: no statement takes long, however large the flush, and
/// the server's temporary table stays in memory.
fn change(
    transaction: &mut Transaction<'_>,
    place: &str,
    flush: &Flush<'_>,
) -> Result<(), FlushFailure> {
    let statements = [PUT, REMOVE].map(|statement| transaction.prepare(statement));
    let [put, remove] = statements;
    let (put, remove) = (put?, remove?);
    let (mut part, mut bytes) = (Vec::new(), 0);
    let mut make = |part: &[ChangedCoin]| -> Result<(), FlushFailure> {
        let columns = [Type::BYTEA, Type::BYTEA];
        let mut rows = BinaryCopyInWriter::new(transaction.copy_in(COPY_CHANGES)?, &columns);
        for (name, coin) in part {
            rows.write(&[&&name[..], &coin.as_ref().map(CoinBytes::as_bytes)])?;
        }
        rows.finish()?;
        for statement in [&put, &remove] {
            transaction.execute(statement, &[])?;
        }
        Ok(transaction.batch_execute(FORGET)?)
    };
    in_order(flush, place, &mut |outpoint, coin| {
        bytes += size_of::<ChangedCoin>() + coin.map_or(0, CoinBytes::heap_bytes);
        part.push((name_of(outpoint), coin.cloned()));
        if bytes >= PART_BYTES {
            make(&part)?;
            part.clear();
            bytes = 0;
        }
        Ok(())
    })?;
    if part.is_empty() { Ok(()) } else { make(&part) }
}

/// A coin's name, and the coin unless it is deleted.
type ChangedCoin = ([u8; NAME_BYTES], Option<CoinBytes>);

/// Receives changes one by one.
type EachRow<'a> = dyn FnMut(&OutPoint, Option<&CoinBytes>) -> Result<(), FlushFailure> + 'a;

/// Passes the changes on, and checks that they arrive in order.
fn in_order(flush: &Flush<'_>, place: &str, each: &mut EachRow<'_>) -> Result<(), FlushFailure> {
    let mut lost = None;
    let sent = flush.for_each(place, &mut |outpoint, coin| {
        each(outpoint, coin).map_err(|failure| {
            lost = Some(failure);
            StoreError::Stopped
        })
    });
    match lost {
        Some(failure) => Err(failure),
        None => Ok(sent?),
    }
}

impl From<StoreError> for FlushFailure {
    fn from(error: StoreError) -> Self {
        Self::Final(error)
    }
}
