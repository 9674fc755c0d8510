//! The chain in numbers as Parquet. All values are integers: `DECIMAL(38, 0)` where 64 bits may not do.

use crate::parquet::{compressed, failed_io, write};
use apus_chain::{BlockHash, Height};
use apus_indexes::{NumbersWriter, numbers_columns};
use apus_storage::StorageFile;
use bytes::Bytes;
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{
    ByteArray, ByteArrayType, DataType, FixedLenByteArray, FixedLenByteArrayType, Int32Type,
    Int64Type,
};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The rows of a group, which wait in memory.
const GROUP_ROWS: usize = 16 << 10;

/// Columns before the numbers.
const FIRST: usize = 2;

/// Begins the numbers in an empty file at `path`.
///
/// # Errors
/// If the file cannot be written.
pub fn parquet_numbers(
    file: Box<dyn StorageFile>,
    path: &Path,
) -> io::Result<Box<dyn NumbersWriter>> {
    let columns = numbers_columns();
    let fields: String = (columns.iter())
        .map(|column| match column.is_wide {
            true => format!("REQUIRED FIXED_LEN_BYTE_ARRAY (16) {} (DECIMAL(38,0)); ", column.name),
            false => format!("REQUIRED INT64 {}; ", column.name),
        })
        .collect();
    let schema = format!(
        "message chain {{ REQUIRED INT32 height (INTEGER(32,false)); REQUIRED BYTE_ARRAY hash (STRING); {fields}}}"
    );
    let begin = || {
        let schema = Arc::new(parse_message_type(&schema)?);
        SerializedFileWriter::new(file, schema, Arc::new(compressed()?.build()))
    };
    let columns = columns.into_iter().map(|column| Column::new(column.is_wide)).collect();
    let group = Group { heights: Vec::new(), hashes: Vec::new(), columns };
    Ok(Box::new(ParquetNumbers {
        path: path.to_owned(),
        writer: begin().map_err(failed_io)?,
        rows: 0,
        group,
    }))
}

struct ParquetNumbers {
    path: PathBuf,
    writer: SerializedFileWriter<Box<dyn StorageFile>>,
    rows: usize,
    group: Group,
}

/// The rows of a group that wait to be written.
struct Group {
    heights: Vec<i32>,
    hashes: Vec<ByteArray>,
    columns: Vec<Column>,
}

/// The numbers of a column that wait to be written, and the sum of all.
struct Column {
    is_wide: bool,
    values: Vec<u128>,
    sum: u128,
}

impl Column {
    fn new(is_wide: bool) -> Self {
        Self { is_wide, values: Vec::new(), sum: 0 }
    }
}

impl ParquetNumbers {
    fn write_group(&mut self) -> Result<(), ParquetError> {
        let Group { heights, hashes, columns } = &mut self.group;
        if heights.is_empty() {
            return Ok(());
        }
        let mut rows = self.writer.next_row_group()?;
        // Parquet's unsigned numbers are stored as signed ones of the same bits.
        write::<Int32Type>(&mut rows, heights, None)?;
        write::<ByteArrayType>(&mut rows, hashes, None)?;
        for Column { is_wide, values, .. } in columns {
            if *is_wide {
                let bytes = |value: u128| Bytes::copy_from_slice(&value.to_be_bytes());
                let wide =
                    values.drain(..).map(|it| FixedLenByteArray::from(ByteArray::from(bytes(it))));
                write::<FixedLenByteArrayType>(&mut rows, &wide.collect::<Vec<_>>(), None)?;
            } else {
                let narrow: Vec<i64> = values.drain(..).map(|value| value as i64).collect();
                write::<Int64Type>(&mut rows, &narrow, None)?;
            }
        }
        heights.clear();
        hashes.clear();
        rows.close()?;
        Ok(())
    }
}

impl NumbersWriter for ParquetNumbers {
    fn put(&mut self, height: Height, hash: &BlockHash, numbers: &[u128]) -> io::Result<()> {
        let Group { heights, hashes, columns } = &mut self.group;
        for (column, &number) in columns.iter_mut().zip(numbers) {
            if !column.is_wide && i64::try_from(number).is_err() {
                let error = format!("a number of block {height} is too large: {number}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
            column.values.push(number);
            column.sum = column.sum.wrapping_add(number);
        }
        heights.push(height as i32);
        hashes.push(ByteArray::from(hash.to_string().into_bytes()));
        self.rows += 1;
        match heights.len() < GROUP_ROWS {
            true => Ok(()),
            false => self.write_group().map_err(failed_io),
        }
    }

    /// Also reads the file back, and compares the sum of each column.
    fn finish(mut self: Box<Self>) -> io::Result<Box<dyn StorageFile>> {
        self.write_group().map_err(failed_io)?;
        let Self { path, writer, rows, group } = *self;
        let file = writer.into_inner().map_err(failed_io)?;
        let sums: Vec<u128> = group.columns.iter().map(|column| column.sum).collect();
        let wide: Vec<bool> = group.columns.iter().map(|column| column.is_wide).collect();
        if read_back(&path, &wide).map_err(failed_io)? != (rows, sums) {
            let what =
                "it was read back with other rows: the disk or the memory is at fault, or Apus";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(file)
    }
}

/// Returns the number of rows of a file, and the sum of each column of numbers.
fn read_back(path: &Path, wide: &[bool]) -> Result<(usize, Vec<u128>), ParquetError> {
    let reader = SerializedFileReader::new(File::open(path)?)?;
    let (mut rows, mut sums) = (0, vec![0u128; wide.len()]);
    for group in 0..reader.num_row_groups() {
        let group = reader.get_row_group(group)?;
        let count = group.metadata().num_rows() as usize;
        rows += count;
        for (at, (sum, is_wide)) in sums.iter_mut().zip(wide).enumerate() {
            let values = match is_wide {
                true => values::<FixedLenByteArrayType>(&*group, FIRST + at, count)?
                    .iter()
                    .map(|value| value.data().try_into().map_or(0, u128::from_be_bytes))
                    .fold(0, u128::wrapping_add),
                false => values::<Int64Type>(&*group, FIRST + at, count)?
                    .iter()
                    .fold(0, |sum: u128, value| sum.wrapping_add(*value as u128)),
            };
            *sum = sum.wrapping_add(values);
        }
    }
    Ok((rows, sums))
}

/// Returns all values of a column in a group of our own file.
fn values<T: DataType>(
    group: &dyn RowGroupReader,
    column: usize,
    count: usize,
) -> Result<Vec<T::T>, ParquetError> {
    let mut reader = get_typed_column_reader::<T>(group.get_column_reader(column)?);
    let mut values = Vec::with_capacity(count.min(GROUP_ROWS));
    while reader.read_records(GROUP_ROWS, None, None, &mut values)?.1 > 0 {}
    Ok(values)
}
