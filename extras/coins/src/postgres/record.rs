//! [`PostgresRecord`]: a store's identity and its block, in the only row of a table.

use super::connections::{PostgresConnections, PostgresSession, passes};
use crate::store::RandomId;
use ::postgres::Row;
use ::postgres::error::SqlState;
use apus_chain::{BlockHash, KnownBlock, Network};
use apus_engine::utxo::StoreError;

const FORMAT: i32 = 1;

/// Allowed numbers of partitions of the coin table.
const PARTITIONS: std::ops::RangeInclusive<u16> = 1..=256;

/// A store's flush count and its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PostgresRecord {
    /// Number of flushes so far.
    pub(super) epoch: i64,
    pub(super) tip: Option<KnownBlock>,
}

/// Parses the columns of a row. `None` if no store wrote it.
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

/// Parses a row from the server.
fn found(row: Option<&Row>) -> Option<(Network, PostgresRecord)> {
    let row = row?;
    let (network, epoch) = (row.try_get("network").ok()?, row.try_get("epoch").ok()?);
    parse(network, epoch, row.try_get("height").ok()?, row.try_get("hash").ok()?)
}

/// Returns true if an error means that there is no store yet.
fn is_nothing(error: &::postgres::Error) -> bool {
    let nothing = [SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME];
    error.code().is_some_and(|code| nothing.contains(code))
}

/// Returns true if an error means that the schema contains something other than a store.
fn is_strange(error: &::postgres::Error) -> bool {
    let strange = [
        SqlState::UNDEFINED_COLUMN,
        SqlState::UNDEFINED_FUNCTION,
        SqlState::DATATYPE_MISMATCH,
        SqlState::DUPLICATE_TABLE,
        SqlState::WRONG_OBJECT_TYPE,
    ];
    error.code().is_some_and(|code| strange.contains(code))
        // A value of another type, but not a server that has gone or is silent.
        || error.code().is_none() && !passes(error)
}

impl PostgresRecord {
    /// Reads the record, if there is one. Fails if it is not a store's, or of another chain.
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
        let not_a_store = || not_a_store(connections);
        let format = match format {
            Ok(Ok(None)) => return Ok(None),
            Ok(Ok(Some(format))) => format,
            Ok(Err(())) => return Err(not_a_store()),
            Err(error) => return Err(error),
        };
        let place = || connections.place().to_owned();
        match u32::try_from(format) {
            Ok(found) if format > FORMAT => {
                return Err(StoreError::Newer { place: place(), found, known: FORMAT as u32 });
            }
            Ok(_) if format == FORMAT => {}
            _ => return Err(not_a_store()),
        }
        let row = connections.run(|session| {
            let columns = "SELECT network, epoch, height, hash FROM record";
            session.client.query_opt(columns, &[])
        })?;
        let read = found(row.as_ref());
        let (found, record) = read.ok_or_else(not_a_store)?;
        if found != network {
            return Err(StoreError::OtherNetwork { place: place(), found, wanted: network });
        }
        Ok(Some(record))
    }

    /// Reads the record, or creates a store. Makes `writer` the current writer.
    pub(super) fn take_or_make(
        connections: &PostgresConnections,
        network: Network,
        writer: RandomId,
        partitions: u16,
    ) -> Result<Self, StoreError> {
        let partitions = partitions.clamp(*PARTITIONS.start(), *PARTITIONS.end());
        if Self::read(connections, network)?.is_none() {
            let made = connections.run(|session| {
                match create_tables(session, connections.schema(), network, partitions) {
                    Err(error) if is_strange(&error) => Ok(false),
                    done => done.map(|()| true),
                }
            })?;
            if !made {
                return Err(not_a_store(connections));
            }
        }
        // This waits until a flush that an earlier writer left running has committed or rolled back.
        connections.run(|session| {
            session.client.execute("UPDATE record SET writer = $1", &[&&writer.0[..]])
        })?;
        // Another writer may have been faster.
        Self::read(connections, network)?.ok_or_else(|| not_a_store(connections))
    }

    /// Reads the record within a transaction.
    pub(super) fn within(
        transaction: &mut ::postgres::Transaction<'_>,
        place: &str,
    ) -> Result<Result<Self, StoreError>, ::postgres::Error> {
        let columns = "SELECT network, epoch, height, hash FROM record";
        let row = transaction.query_opt(columns, &[])?;
        let record = found(row.as_ref());
        let not_a_store = || StoreError::damaged(place, STRANGE);
        Ok(record.map(|(_, record)| record).ok_or_else(not_a_store))
    }

    /// Reads the record within a transaction, and locks it until the end. `None` if another writer has
    /// replaced this one.
    pub(super) fn lock(
        transaction: &mut ::postgres::Transaction<'_>,
        writer: RandomId,
        place: &str,
    ) -> Result<Result<Option<Self>, StoreError>, ::postgres::Error> {
        let row = transaction
            .query_opt("SELECT network, epoch, height, hash, writer FROM record FOR UPDATE", &[])?;
        let not_a_store = || StoreError::damaged(place, STRANGE);
        let ours = row.as_ref().is_some_and(|row| {
            row.try_get::<_, &[u8]>("writer").is_ok_and(|there| there == writer.0)
        });
        let record = found(row.as_ref());
        Ok(record.map(|(_, record)| ours.then_some(record)).ok_or_else(not_a_store))
    }

    /// Replaces the record, within the transaction that locked it.
    pub(super) fn put(
        &self,
        transaction: &mut ::postgres::Transaction<'_>,
    ) -> Result<(), ::postgres::Error> {
        let (height, hash) = match &self.tip {
            Some(tip) => (Some(i64::from(tip.height)), Some(&tip.hash.0[..])),
            None => (None, None),
        };
        let statement = "UPDATE record SET epoch = $1, height = $2, hash = $3";
        transaction.execute(statement, &[&self.epoch, &height, &hash]).map(drop)
    }
}

const STRANGE: &str = "its table record has no valid row";

fn not_a_store(connections: &PostgresConnections) -> StoreError {
    StoreError::damaged(
        connections.place(),
        format!("the schema {} does not contain a store", connections.schema()),
    )
}

/// Creates the tables, all or none.
fn create_tables(
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
    let statement = "INSERT INTO record (format, network, epoch, writer) VALUES ($1, $2, 0, '')";
    transaction.execute(statement, &[&FORMAT, &&network.magic()[..]])?;
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use super::super::line::PlainConnector;
    use super::*;
    use crate::retry;
    use ::postgres::config::SslNegotiation;
    use std::net::TcpListener;
    use std::time::Duration;

    #[test]
    fn silence_does_not_mean_that_the_schema_has_something_else() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut config = ::postgres::Config::new();
        config.host("127.0.0.1").port(server.local_addr().unwrap().port()).user("me");
        config.ssl_mode(::postgres::config::SslMode::Require);
        config.ssl_negotiation(SslNegotiation::Direct);
        let _listening = retry::within(Duration::from_millis(50));
        let error = config.connect(PlainConnector).err().unwrap();
        assert!(passes(&error) && !is_strange(&error), "{error:?}");
    }

    #[test]
    fn rows_that_no_store_wrote_are_invalid() {
        let magic = Network::Regtest.magic();
        let (height, hash) = (Some(7), Some(&[5; 32][..]));
        let tip = Some(KnownBlock { height: 7, hash: BlockHash([5; 32]) });
        let record = |tip| Some((Network::Regtest, PostgresRecord { epoch: 3, tip }));
        assert_eq!(parse(&magic, 3, height, hash), record(tip));
        assert_eq!(parse(&magic, 3, None, None), record(None));
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
