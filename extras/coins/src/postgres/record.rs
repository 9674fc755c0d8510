//! [`PostgresRecord`]: what a store is, and at which block; the one row of a table.

use super::connections::{PostgresConnections, PostgresSession};
use crate::store::RandomId;
use ::postgres::Row;
use ::postgres::error::SqlState;
use apus_chain::{BlockHash, KnownBlock, Network};
use apus_engine::utxo::StoreError;

const FORMAT: i32 = 1;

/// Parts that the table of coins may have.
const PARTITIONS: std::ops::RangeInclusive<u16> = 1..=256;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PostgresRecord {
    /// How many flushes there were.
    pub(super) epoch: i64,
    pub(super) tip: Option<KnownBlock>,
}

/// What the columns of a row say; none where no store wrote it.
fn parse(
    network: &[u8],
    epoch: i64,
    height: Option<i64>,
    hash: Option<&[u8]>,
) -> Option<(Network, PostgresRecord)> {
    let network = Network::from_magic(network.try_into().ok()?)?;
    let tip = match (height, hash) {
        (None, None) => None,
        (Some(height), Some(hash)) => Some(KnownBlock {
            height: height.try_into().ok()?,
            hash: BlockHash(hash.try_into().ok()?),
        }),
        _ => return None,
    };
    (epoch >= 0).then_some((network, PostgresRecord { epoch, tip }))
}

/// The same of a row as the server has it.
fn found(row: Option<&Row>) -> Option<(Network, PostgresRecord)> {
    let row = row?;
    let (network, epoch) = (row.try_get("network").ok()?, row.try_get("epoch").ok()?);
    parse(network, epoch, row.try_get("height").ok()?, row.try_get("hash").ok()?)
}

/// Whether an error says that there is nothing yet.
fn is_nothing(error: &::postgres::Error) -> bool {
    let nothing = [SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME];
    error.code().is_some_and(|code| nothing.contains(code))
}

/// Whether an error says that what is there is another's.
fn is_strange(error: &::postgres::Error) -> bool {
    let strange = [
        SqlState::UNDEFINED_COLUMN,
        SqlState::UNDEFINED_FUNCTION,
        SqlState::DATATYPE_MISMATCH,
        SqlState::DUPLICATE_TABLE,
        SqlState::WRONG_OBJECT_TYPE,
    ];
    error.code().is_some_and(|code| strange.contains(code))
        || error.code().is_none() && !error.is_closed()
}

impl PostgresRecord {
    /// The record that is there, if one is. Refuses what is not ours, or of another chain.
    pub(super) fn read(
        connections: &PostgresConnections,
        network: Network,
    ) -> Result<Option<Self>, StoreError> {
        let format = connections.run(|session| {
            match session.client.query_opt("SELECT format FROM record", &[]) {
                Ok(row) => row.map(|row| row.try_get::<_, i32>(0)).transpose().map(Ok),
                Err(error) if is_nothing(&error) => Ok(Ok(None)),
                Err(error) if is_strange(&error) => Ok(Err(())),
                Err(error) => Err(error),
            }
        });
        let strange = || strange(connections);
        let format = match format {
            Ok(Ok(None)) => return Ok(None),
            Ok(Ok(Some(format))) => format,
            Ok(Err(())) => return Err(strange()),
            Err(error) => return Err(error),
        };
        let place = || connections.place().to_owned();
        match u32::try_from(format) {
            Ok(found) if format > FORMAT => {
                return Err(StoreError::Newer { place: place(), found, known: FORMAT as u32 });
            }
            Ok(_) if format == FORMAT => {}
            _ => return Err(strange()),
        }
        let row = connections.run(|session| {
            let columns = "SELECT network, epoch, height, hash FROM record";
            session.client.query_opt(columns, &[])
        })?;
        let read = found(row.as_ref());
        let (found, record) = read.ok_or_else(strange)?;
        if found != network {
            return Err(StoreError::OtherNetwork { place: place(), found, wanted: network });
        }
        Ok(Some(record))
    }

    /// The record that is there, or that of a new store, with `writer` as the one who writes from now on.
    pub(super) fn take_or_make(
        connections: &PostgresConnections,
        network: Network,
        writer: RandomId,
        partitions: u16,
    ) -> Result<Self, StoreError> {
        let partitions = partitions.clamp(*PARTITIONS.start(), *PARTITIONS.end());
        if Self::read(connections, network)?.is_none() {
            let made = connections.run(|session| {
                match make(session, connections.schema(), network, partitions) {
                    Err(error) if is_strange(&error) => Ok(false),
                    done => done.map(|()| true),
                }
            })?;
            if !made {
                return Err(strange(connections));
            }
        }
        // A flush that a writer left behind ends first, in one way or the other.
        connections.run(|session| {
            session.client.execute("UPDATE record SET writer = $1", &[&&writer.0[..]])
        })?;
        // It may be another's that was faster.
        Self::read(connections, network)?.ok_or_else(|| strange(connections))
    }

    /// Within a transaction: the record.
    pub(super) fn within(
        transaction: &mut ::postgres::Transaction<'_>,
        place: &str,
    ) -> Result<Result<Self, StoreError>, ::postgres::Error> {
        let columns = "SELECT network, epoch, height, hash FROM record";
        let row = transaction.query_opt(columns, &[])?;
        let record = found(row.as_ref());
        let strange = || StoreError::damaged(place, STRANGE);
        Ok(record.map(|(_, record)| record).ok_or_else(strange))
    }

    /// Within a transaction: the record, and that no other changes it until the end. None where another
    /// writer has it.
    pub(super) fn lock(
        transaction: &mut ::postgres::Transaction<'_>,
        writer: RandomId,
        place: &str,
    ) -> Result<Result<Option<Self>, StoreError>, ::postgres::Error> {
        let said = transaction
            .query_opt("SELECT network, epoch, height, hash, writer FROM record FOR UPDATE", &[])?;
        let strange = || StoreError::damaged(place, STRANGE);
        let ours = said.as_ref().is_some_and(|row| {
            row.try_get::<_, &[u8]>("writer").is_ok_and(|there| there == writer.0)
        });
        let record = found(said.as_ref());
        Ok(record.map(|(_, record)| ours.then_some(record)).ok_or_else(strange))
    }

    /// Within a transaction that locked it: puts this record in the place of the one that is there.
    pub(super) fn put(
        &self,
        transaction: &mut ::postgres::Transaction<'_>,
    ) -> Result<(), ::postgres::Error> {
        let (height, hash) = match &self.tip {
            Some(tip) => (Some(i64::from(tip.height)), Some(&tip.hash.0[..])),
            None => (None, None),
        };
        let put = "UPDATE record SET epoch = $1, height = $2, hash = $3";
        transaction.execute(put, &[&self.epoch, &height, &hash]).map(drop)
    }
}

const STRANGE: &str = "its table record has no row of a store";

fn strange(connections: &PostgresConnections) -> StoreError {
    StoreError::damaged(
        connections.place(),
        format!("what the schema {} has is no store's", connections.schema()),
    )
}

/// Makes the tables, all of them or none.
fn make(
    session: &mut PostgresSession,
    schema: &str,
    network: Network,
    partitions: u16,
) -> Result<(), ::postgres::Error> {
    let mut transaction = session.client.transaction()?;
    transaction.batch_execute(&format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\""))?;
    transaction.batch_execute(
        "CREATE TABLE record (
             one boolean PRIMARY KEY DEFAULT true CHECK (one),
             format integer NOT NULL,
             network bytea NOT NULL,
             epoch bigint NOT NULL,
             writer bytea NOT NULL,
             height bigint,
             hash bytea);
         CREATE TABLE coins (
             outpoint bytea PRIMARY KEY,
             coin bytea NOT NULL) PARTITION BY HASH (outpoint);
         CREATE TABLE undo (
             hash bytea PRIMARY KEY,
             height bigint NOT NULL,
             data bytea NOT NULL);
         ALTER TABLE undo ALTER COLUMN data SET STORAGE EXTERNAL",
    )?;
    for number in 0..partitions {
        transaction.batch_execute(&format!(
            "CREATE TABLE coins_{number} PARTITION OF coins
             FOR VALUES WITH (MODULUS {partitions}, REMAINDER {number})"
        ))?;
    }
    let put = "INSERT INTO record (format, network, epoch, writer) VALUES ($1, $2, 0, '')";
    transaction.execute(put, &[&FORMAT, &&network.magic()[..]])?;
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_store_wrote_is_no_record() {
        let magic = Network::Regtest.magic();
        let (height, hash) = (Some(7), Some(&[5; 32][..]));
        let tip = Some(KnownBlock { height: 7, hash: BlockHash([5; 32]) });
        let is = |tip| Some((Network::Regtest, PostgresRecord { epoch: 3, tip }));
        assert_eq!(parse(&magic, 3, height, hash), is(tip));
        assert_eq!(parse(&magic, 3, None, None), is(None));
        for bad in [
            parse(&[1, 2, 3, 4], 3, height, hash),
            parse(&magic[..3], 3, height, hash),
            parse(&magic, -1, height, hash),
            parse(&magic, 3, None, hash),
            parse(&magic, 3, height, None),
            parse(&magic, 3, height, Some(&[5; 31])),
            parse(&magic, 3, Some(-1), hash),
            parse(&magic, 3, Some(1 << 32), hash),
        ] {
            assert_eq!(bad, None);
        }
    }
}
