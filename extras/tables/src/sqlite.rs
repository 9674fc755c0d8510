//! SQLite: the table `utxos`, and a table `meta` with the set's facts.
//!
//! SQLite writes the file itself, in one transaction without a journal: until the table is complete, it is a draft that
//! no one reads. Its only file is the draft, which exists already when SQLite opens it.

use crate::columns::{ScriptColumns, TABLE};
use crate::meta::{Fact, TableFacts};
use crate::rows::{GoOn, RowWriter, TableSums};
use crate::text::{reversed_txid, txid_digits, write_hex};
use apus_chain::{CoinRef, Height, OutPoint};
use apus_storage::StorageFile;
use apus_sync::{IoError, SyncError};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, ToSql};
use std::io;
use std::path::{Path, PathBuf};

/// Rows, and bytes of their scripts, that are inserted together.
const BATCH_ROWS: usize = 1 << 10;
const BATCH_BYTES: usize = 1 << 20;

/// Rows read back between two looks at signals.
const ROWS_BETWEEN: i64 = 1 << 20;

/// Before the first row: pages of 16 KiB, which need fewer writes; nothing that protects an existing database; 16 MiB of
/// pages in memory.
const BEGIN: &str = "PRAGMA page_size=16384; PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; \
    PRAGMA locking_mode=EXCLUSIVE; PRAGMA temp_store=MEMORY; PRAGMA cache_size=-16384; BEGIN;";

/// An SQLite database that is being written.
pub(crate) struct SqliteFile {
    /// The same file; kept open so that it can be synced.
    file: Box<dyn StorageFile>,
    path: PathBuf,
    database: Connection,
    columns: ScriptColumns,
    insert: String,
    /// Rows that wait to be inserted, and their scripts.
    rows: Vec<WaitingRow>,
    scripts: Vec<u8>,
    hex: Vec<u8>,
}

struct WaitingRow {
    outpoint: OutPoint,
    height: Height,
    coinbase: bool,
    amount: u64,
    /// Where its script ends.
    script_end: usize,
}

/// Binds a value without copying it.
struct Borrowed<'a>(ValueRef<'a>);

impl ToSql for Borrowed<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(self.0))
    }
}

impl SqliteFile {
    pub(crate) fn new(
        file: Box<dyn StorageFile>,
        path: PathBuf,
        columns: ScriptColumns,
    ) -> Result<Self, SyncError> {
        let begin = || {
            let database = open(&path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
            database.execute_batch(BEGIN)?;
            database.execute_batch(&create(&columns))?;
            Ok(database)
        };
        let database = begin().map_err(|error| failed(&path, error))?;
        let places: Vec<&str> = columns.names().map(|_| "?").collect();
        let insert = format!("INSERT INTO {TABLE} VALUES({})", places.join(","));
        let rows = Vec::with_capacity(BATCH_ROWS);
        let (scripts, hex) = (Vec::new(), Vec::new());
        Ok(Self { file, path, database, columns, insert, rows, scripts, hex })
    }

    fn insert(&mut self) -> Result<(), SyncError> {
        self.insert_rows().map_err(|error| failed(&self.path, error))?;
        self.rows.clear();
        self.scripts.clear();
        Ok(())
    }

    fn insert_rows(&mut self) -> rusqlite::Result<()> {
        let Self { database, columns, insert, rows, scripts, hex, .. } = self;
        let (raw, has_address) = (columns.raw(), columns.has_address());
        let mut statement = database.prepare(insert)?;
        let mut start = 0;
        for row in &*rows {
            let script = &scripts[start..row.script_end];
            start = row.script_end;
            if raw {
                let txid = reversed_txid(&row.outpoint.txid.0);
                statement.raw_bind_parameter(1, Borrowed(ValueRef::Blob(&txid)))?;
                statement.raw_bind_parameter(6, Borrowed(ValueRef::Blob(script)))?;
            } else {
                let txid = txid_digits(&row.outpoint.txid.0);
                statement.raw_bind_parameter(1, Borrowed(ValueRef::Text(&txid)))?;
                hex.clear();
                write_hex(hex, script);
                statement.raw_bind_parameter(6, Borrowed(ValueRef::Text(hex)))?;
            }
            statement.raw_bind_parameter(2, row.outpoint.vout)?;
            // A set has at most all money, which fits.
            statement.raw_bind_parameter(3, row.amount as i64)?;
            statement.raw_bind_parameter(4, row.coinbase)?;
            statement.raw_bind_parameter(5, row.height)?;
            let (kind, address) = columns.of(script);
            let mut next = 7;
            if let Some(kind) = kind {
                statement.raw_bind_parameter(next, kind.name())?;
                next += 1;
            }
            if has_address {
                statement.raw_bind_parameter(next, address)?;
            }
            statement.raw_execute()?;
        }
        Ok(())
    }
}

/// Opens a file that exists. SQLite would take a relative name that begins with `file:` for a URI.
fn open(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    let path = if path.is_relative() { Path::new(".").join(path) } else { path.to_owned() };
    Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)
}

/// Returns the statements that create the tables. Without further columns, `utxos` is Core's.
fn create(columns: &ScriptColumns) -> String {
    let typed = columns.names().map(|name| match name {
        "vout" | "value" | "coinbase" | "height" => format!("{name} INT"),
        "txid" | "scriptpubkey" if columns.raw() => format!("{name} BLOB"),
        _ => format!("{name} TEXT"),
    });
    let typed: Vec<String> = typed.collect();
    format!("CREATE TABLE {TABLE}({}); CREATE TABLE meta(key TEXT, value);", typed.join(", "))
}

impl RowWriter for SqliteFile {
    fn put(&mut self, outpoint: &OutPoint, coin: CoinRef<'_>) -> Result<(), SyncError> {
        self.scripts.extend_from_slice(coin.script);
        let CoinRef { height, coinbase, amount, .. } = coin;
        let script_end = self.scripts.len();
        self.rows.push(WaitingRow { outpoint: *outpoint, height, coinbase, amount, script_end });
        if self.rows.len() == BATCH_ROWS || script_end >= BATCH_BYTES {
            self.insert()
        } else {
            Ok(())
        }
    }

    fn finish(mut self: Box<Self>, facts: &TableFacts) -> Result<Box<dyn StorageFile>, SyncError> {
        self.insert()?;
        let Self { file, path, database, .. } = *self;
        let end = |database: Connection| {
            for (key, fact) in facts.pairs() {
                let insert = "INSERT INTO meta VALUES(?, ?)";
                match fact {
                    Fact::Text(text) => database.execute(insert, (key, text))?,
                    Fact::Number(number) => database.execute(insert, (key, number as i64))?,
                };
            }
            database.execute_batch("COMMIT;")?;
            database.close().map_err(|(_, error)| error)
        };
        end(database).map_err(|error| failed(&path, error))?;
        Ok(file)
    }
}

/// Counts and sums the rows of a database.
pub(crate) fn read_back(path: &Path, go_on: &GoOn<'_>) -> Result<TableSums, SyncError> {
    let failed = |error| failed(path, error);
    let database = open(path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(failed)?;
    let query = format!(
        "SELECT count(*), ifnull(sum(value), 0) FROM {TABLE} WHERE rowid > ?1 AND rowid <= ?1 + {ROWS_BETWEEN}"
    );
    let last =
        database
            .query_row(&format!("SELECT ifnull(max(rowid), 0) FROM {TABLE}"), (), |row| row.get(0));
    let last: i64 = last.map_err(failed)?;
    let mut statement = database.prepare(&query).map_err(failed)?;
    let (mut sums, mut from) = (TableSums::default(), 0_i64);
    while from < last {
        go_on()?;
        let part = statement.query_row((from,), |row| Ok((row.get(0)?, row.get(1)?)));
        let (rows, total): (i64, i64) = part.map_err(failed)?;
        sums.rows += rows as u64;
        sums.total = sums.total.wrapping_add(total as u64);
        from += ROWS_BETWEEN;
    }
    Ok(sums)
}

fn failed(path: &Path, error: rusqlite::Error) -> SyncError {
    let file = path.display().to_string();
    let kind = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => io::ErrorKind::StorageFull,
        Some(ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::Other,
    };
    SyncError::Io(IoError::Storage { file, error: io::Error::new(kind, error) })
}
