//! A flush: one transaction, tried again as a whole where the server goes away in between.

use super::connections::{Connections, Session, failed, passes};
use super::name_of;
use super::record::{Record, Writer};
use ::postgres::Transaction;
use ::postgres::binary_copy::BinaryCopyInWriter;
use ::postgres::types::Type;
use apus_engine::utxo::store::Flush;
use apus_engine::utxo::{CoinBytes, StoreError};

/// Changes on their way, in the session's own table: a coin, or none where one goes.
const CHANGES: &str = "\
CREATE TEMPORARY TABLE IF NOT EXISTS changes (outpoint bytea NOT NULL, coin bytea)
ON COMMIT DELETE ROWS";

const COPY_CHANGES: &str = "COPY pg_temp.changes (outpoint, coin) FROM STDIN (FORMAT binary)";
const COPY_NEW: &str = "COPY coins (outpoint, coin) FROM STDIN (FORMAT binary)";

const PUT: &str = "\
INSERT INTO coins SELECT outpoint, coin FROM pg_temp.changes WHERE coin IS NOT NULL
ON CONFLICT (outpoint) DO UPDATE SET coin = EXCLUDED.coin";

const REMOVE: &str = "\
DELETE FROM coins USING pg_temp.changes AS gone
WHERE coins.outpoint = gone.outpoint AND gone.coin IS NULL";

const UNDO: &str = "\
INSERT INTO undo (hash, height, data) VALUES ($1, $2, $3)
ON CONFLICT (hash) DO UPDATE SET height = EXCLUDED.height, data = EXCLUDED.data";

/// What became of a flush.
pub(super) enum Flushed {
    /// It happened.
    Done(Record),
    /// It did not.
    Refused(StoreError),
    /// It did or it did not: the server went away.
    Unknown(StoreError),
}

/// Why a try came to nothing.
enum Failure {
    /// The server, or the way to it.
    Server(::postgres::Error),
    /// What it says decides.
    Final(StoreError),
}

impl From<::postgres::Error> for Failure {
    fn from(error: ::postgres::Error) -> Self {
        Self::Server(error)
    }
}

/// Writes a flush upon a record.
pub(super) fn write(
    connections: &Connections,
    before: &Record,
    writer: Writer,
    flush: &Flush<'_>,
) -> Flushed {
    let after = Record { epoch: before.epoch + 1, tip: Some(flush.tip) };
    let mut patience = connections.patience();
    // Only the end of a transaction can come about and be told as an error.
    let mut may_have_ended = false;
    loop {
        let tried = connections.connect().map_err(Failure::Server).and_then(|mut session| {
            attempt(connections, &mut session, (before, &after), writer, flush, &mut may_have_ended)
        });
        match tried {
            Ok(()) => return Flushed::Done(after),
            Err(Failure::Final(error)) => return Flushed::Refused(error),
            Err(Failure::Server(error)) if passes(&error) && patience.wait() => {}
            Err(Failure::Server(error)) => {
                let error = failed(connections.place(), &error);
                return if may_have_ended {
                    Flushed::Unknown(error)
                } else {
                    Flushed::Refused(error)
                };
            }
        }
    }
}

fn attempt(
    connections: &Connections,
    session: &mut Session,
    (before, after): (&Record, &Record),
    writer: Writer,
    flush: &Flush<'_>,
    may_have_ended: &mut bool,
) -> Result<(), Failure> {
    let place = connections.place();
    session.client.batch_execute(CHANGES)?;
    let mut transaction = session.client.transaction()?;
    let there = Record::lock(&mut transaction, writer, place)??;
    if *may_have_ended && there == Some(*after) {
        return Ok(());
    }
    if there != Some(*before) {
        return Err(Failure::Final(StoreError::InUse { place: place.to_owned() }));
    }
    *may_have_ended = false;
    if before.tip.is_none() {
        // There is nothing that could be replaced or removed, and it may be a whole set.
        copy(&mut transaction, COPY_NEW, place, flush)?;
    } else {
        copy(&mut transaction, COPY_CHANGES, place, flush)?;
        transaction.execute(PUT, &[])?;
        transaction.execute(REMOVE, &[])?;
    }
    let from = i64::from(flush.undo_from);
    transaction.execute("DELETE FROM undo WHERE height < $1", &[&from])?;
    let put = transaction.prepare(UNDO)?;
    for undo in flush.undo.iter().filter(|undo| undo.block.height >= flush.undo_from) {
        let height = i64::from(undo.block.height);
        transaction.execute(&put, &[&&undo.block.hash.0[..], &height, &&undo.bytes[..]])?;
    }
    after.put(&mut transaction)?;
    *may_have_ended = true;
    transaction.commit()?;
    Ok(())
}

/// Sends the changes; coins that go only where there may be some.
fn copy(
    transaction: &mut Transaction<'_>,
    into: &str,
    place: &str,
    flush: &Flush<'_>,
) -> Result<(), Failure> {
    let mut rows = BinaryCopyInWriter::new(transaction.copy_in(into)?, &[Type::BYTEA, Type::BYTEA]);
    let (mut last, mut lost) = (None, None);
    let sent = flush.changes.for_each(&mut |outpoint, coin| {
        if last.replace(*outpoint).is_some_and(|last| last >= *outpoint) {
            return Err(StoreError::Unordered { place: place.to_owned(), outpoint: *outpoint });
        }
        if coin.is_none() && into == COPY_NEW {
            return Ok(());
        }
        let coin = coin.map(CoinBytes::as_bytes);
        rows.write(&[&&name_of(outpoint)[..], &coin]).map_err(|error| {
            lost = Some(error);
            StoreError::Stopped
        })
    });
    match (lost, sent) {
        (Some(error), _) => Err(Failure::Server(error)),
        (None, Err(error)) => Err(Failure::Final(error)),
        (None, Ok(())) => Ok(rows.finish().map(drop)?),
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Final(error)
    }
}
