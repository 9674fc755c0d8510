//! Apache Parquet: groups of rows, each column compressed with zstd. The set's facts are its key-value metadata.

use crate::columns::{ScriptColumns, TABLE};
use crate::meta::{Fact, TableFacts};
use crate::rows::{GoOn, RowWriter, TableSums};
use crate::text::{reversed_txid, txid_digits, write_hex};
use apus_chain::{CoinRef, OutPoint, ScriptType};
use apus_storage::StorageFile;
use apus_sync::{IoError, SyncError};
use bytes::Bytes;
use parquet::basic::{Compression, ZstdLevel};
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, FixedLenByteArray, FixedLenByteArrayType,
    Int32Type, Int64Type,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Limits of a group: rows, and bytes of its texts.
const GROUP_ROWS: usize = 128 << 10;
const GROUP_BYTES: usize = 16 << 20;

/// Values read back at once.
const VALUES: usize = 8 << 10;

type Output = Box<dyn StorageFile>;

/// A Parquet file that is being written.
pub(crate) struct ParquetTable {
    path: PathBuf,
    writer: SerializedFileWriter<Output>,
    columns: ScriptColumns,
    group: Group,
    hex: Vec<u8>,
}

/// Values of a column, in order.
#[derive(Default)]
struct Texts {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Texts {
    fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
    }

    /// Returns the values, which share their bytes.
    fn take(&mut self) -> impl Iterator<Item = Bytes> {
        let Self { bytes, ends } = std::mem::take(self);
        let (bytes, mut start) = (Bytes::from(bytes), 0);
        ends.into_iter().map(move |end| bytes.slice(std::mem::replace(&mut start, end)..end))
    }
}

/// The rows of a group that wait to be written.
#[derive(Default)]
struct Group {
    txids: Texts,
    vouts: Vec<i32>,
    values: Vec<i64>,
    coinbases: Vec<bool>,
    heights: Vec<i32>,
    scripts: Texts,
    kinds: Vec<ScriptType>,
    addresses: Texts,
    /// 1 for each row with an address, 0 for others.
    has_address: Vec<i16>,
}

impl Group {
    fn is_full(&self) -> bool {
        let bytes = self.txids.bytes.len() + self.scripts.bytes.len() + self.addresses.bytes.len();
        self.vouts.len() == GROUP_ROWS || bytes >= GROUP_BYTES
    }
}

impl ParquetTable {
    pub(crate) fn new(
        file: Output,
        path: PathBuf,
        columns: ScriptColumns,
    ) -> Result<Self, SyncError> {
        let begin = || {
            let schema = Arc::new(parse_message_type(&schema(&columns))?);
            SerializedFileWriter::new(file, schema, Arc::new(properties()?))
        };
        let writer = begin().map_err(|error| failed(&path, error))?;
        Ok(Self { path, writer, columns, group: Group::default(), hex: Vec::new() })
    }

    fn write_group(&mut self) -> Result<(), SyncError> {
        let Self { path, writer, columns, group, .. } = self;
        if group.vouts.is_empty() {
            return Ok(());
        }
        let mut write = || {
            let mut rows = writer.next_row_group()?;
            write_columns(&mut rows, columns, group)?;
            rows.close()
        };
        write().map_err(|error| failed(path, error))?;
        *group = Group::default();
        Ok(())
    }
}

/// Returns the schema in Parquet's language.
fn schema(columns: &ScriptColumns) -> String {
    let (txid, script) = match columns.raw() {
        true => ("FIXED_LEN_BYTE_ARRAY (32) txid", "BYTE_ARRAY scriptpubkey"),
        false => ("BYTE_ARRAY txid (STRING)", "BYTE_ARRAY scriptpubkey (STRING)"),
    };
    let fields: String = columns
        .names()
        .map(|name| match name {
            "txid" => format!("REQUIRED {txid}; "),
            "scriptpubkey" => format!("REQUIRED {script}; "),
            "value" => "REQUIRED INT64 value; ".to_owned(),
            "coinbase" => "REQUIRED BOOLEAN coinbase; ".to_owned(),
            "address" => "OPTIONAL BYTE_ARRAY address (STRING); ".to_owned(),
            "type" => "REQUIRED BYTE_ARRAY type (STRING); ".to_owned(),
            _ => format!("REQUIRED INT32 {name} (INTEGER(32,false)); "),
        })
        .collect();
    format!("message {TABLE} {{ {fields}}}")
}

/// How every file is compressed, and its writer's name.
pub(crate) fn compressed() -> Result<WriterPropertiesBuilder, ParquetError> {
    Ok(WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
        .set_created_by(format!("apus {}", env!("CARGO_PKG_VERSION"))))
}

/// Txids and scripts do not repeat enough for a dictionary.
fn properties() -> Result<WriterProperties, ParquetError> {
    let mut properties =
        compressed()?.set_dictionary_enabled(false).set_statistics_enabled(EnabledStatistics::None);
    for name in ["vout", "height", "type"] {
        properties = properties.set_column_dictionary_enabled(ColumnPath::from(name), true);
    }
    for name in ["vout", "value", "height"] {
        let column = ColumnPath::from(name);
        properties = properties.set_column_statistics_enabled(column, EnabledStatistics::Chunk);
    }
    Ok(properties.build())
}

/// Writes the columns of a group, in order.
fn write_columns(
    rows: &mut SerializedRowGroupWriter<'_, Output>,
    columns: &ScriptColumns,
    group: &mut Group,
) -> Result<(), ParquetError> {
    let texts =
        |texts: &mut Texts| -> Vec<ByteArray> { texts.take().map(ByteArray::from).collect() };
    if columns.raw() {
        let txids = group.txids.take().map(|txid| FixedLenByteArray::from(ByteArray::from(txid)));
        write::<FixedLenByteArrayType>(rows, &txids.collect::<Vec<_>>(), None)?;
    } else {
        write::<ByteArrayType>(rows, &texts(&mut group.txids), None)?;
    }
    write::<Int32Type>(rows, &group.vouts, None)?;
    write::<Int64Type>(rows, &group.values, None)?;
    write::<BoolType>(rows, &group.coinbases, None)?;
    write::<Int32Type>(rows, &group.heights, None)?;
    write::<ByteArrayType>(rows, &texts(&mut group.scripts), None)?;
    if columns.has_kind() {
        let names =
            ScriptType::ALL.map(|kind| ByteArray::from(Bytes::from_static(kind.name().as_bytes())));
        let kinds: Vec<_> = group.kinds.iter().map(|kind| names[*kind as usize].clone()).collect();
        write::<ByteArrayType>(rows, &kinds, None)?;
    }
    if columns.has_address() {
        write::<ByteArrayType>(rows, &texts(&mut group.addresses), Some(&group.has_address))?;
    }
    Ok(())
}

/// Writes the next column of a group.
pub(crate) fn write<T: DataType>(
    rows: &mut SerializedRowGroupWriter<'_, Output>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let missing = || ParquetError::General("the schema lacks a column".to_owned());
    let mut column = rows.next_column()?.ok_or_else(missing)?;
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}

impl RowWriter for ParquetTable {
    fn put(&mut self, outpoint: &OutPoint, coin: CoinRef<'_>) -> Result<(), SyncError> {
        let Self { columns, group, hex, .. } = self;
        if columns.raw() {
            group.txids.push(&reversed_txid(&outpoint.txid.0));
            group.scripts.push(coin.script);
        } else {
            group.txids.push(&txid_digits(&outpoint.txid.0));
            hex.clear();
            write_hex(hex, coin.script);
            group.scripts.push(hex);
        }
        // Parquet's unsigned numbers are stored as signed ones of the same bits.
        group.vouts.push(outpoint.vout as i32);
        group.values.push(coin.amount as i64);
        group.coinbases.push(coin.coinbase);
        group.heights.push(coin.height as i32);
        let has_address = columns.has_address();
        let (kind, address) = columns.of(coin.script);
        group.kinds.extend(kind);
        if has_address {
            group.has_address.push(address.is_some().into());
            if let Some(address) = address {
                group.addresses.push(address.as_bytes());
            }
        }
        if group.is_full() { self.write_group() } else { Ok(()) }
    }

    fn finish(mut self: Box<Self>, facts: &TableFacts) -> Result<Output, SyncError> {
        self.write_group()?;
        let Self { path, mut writer, .. } = *self;
        for (key, fact) in facts.pairs() {
            let value = match fact {
                Fact::Text(text) => text,
                Fact::Number(number) => number.to_string(),
            };
            writer.append_key_value_metadata(KeyValue::new(key.to_owned(), value));
        }
        writer.into_inner().map_err(|error| failed(&path, error))
    }
}

/// Counts and sums the rows of a file.
pub(crate) fn read_back(path: &Path, go_on: &GoOn<'_>) -> Result<TableSums, SyncError> {
    let failed = |error| failed(path, error);
    let file = File::open(path).map_err(|error| failed(error.into()))?;
    let reader = SerializedFileReader::new(file).map_err(failed)?;
    let (mut sums, mut values) = (TableSums::default(), Vec::with_capacity(VALUES));
    for group in 0..reader.num_row_groups() {
        let group = reader.get_row_group(group).map_err(failed)?;
        let column = group.get_column_reader(VALUE).map_err(failed)?;
        let mut column = get_typed_column_reader::<Int64Type>(column);
        loop {
            go_on()?;
            values.clear();
            let (_, count, _) =
                column.read_records(VALUES, None, None, &mut values).map_err(failed)?;
            if count == 0 {
                break;
            }
            sums.rows += count as u64;
            sums.total =
                values.iter().fold(sums.total, |sum, value| sum.wrapping_add(*value as u64));
        }
    }
    Ok(sums)
}

/// The place of the column `value`.
const VALUE: usize = 2;

fn failed(path: &Path, error: ParquetError) -> SyncError {
    SyncError::Io(IoError::Storage { file: path.display().to_string(), error: failed_io(error) })
}

/// Returns the system's error if it is one.
pub(crate) fn failed_io(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        error => io::Error::other(error),
    }
}
