//! CSV: a header line, then a line for each coin. No value has a comma or a quote.

use crate::columns::ScriptColumns;
use crate::meta::TableFacts;
use crate::rows::{GoOn, RowWriter, TableSums};
use crate::text::{txid_digits, write_hex, write_number};
use crate::{AddressKinds, TableColumns};
use apus_chain::{CoinRef, OutPoint, Txid};
use apus_storage::StorageFile;
use apus_sync::{IoError, SyncError};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Bytes written at once.
const BATCH_BYTES: usize = 1 << 18;

/// Lines that wait to be written.
struct Lines {
    columns: ScriptColumns,
    text: Vec<u8>,
    txid: Txid,
    digits: [u8; 64],
}

impl Lines {
    fn new(columns: ScriptColumns) -> Self {
        let mut text = Vec::with_capacity(BATCH_BYTES + BATCH_BYTES / 4);
        for (number, name) in columns.names().enumerate() {
            text.extend_from_slice(if number == 0 { b"" } else { b"," });
            text.extend_from_slice(name.as_bytes());
        }
        text.push(b'\n');
        let txid = Txid([0; 32]);
        Self { columns, text, txid, digits: txid_digits(&txid.0) }
    }

    fn put(&mut self, outpoint: &OutPoint, coin: CoinRef<'_>) {
        let Self { columns, text, txid, digits } = self;
        if *txid != outpoint.txid {
            (*txid, *digits) = (outpoint.txid, txid_digits(&outpoint.txid.0));
        }
        text.extend_from_slice(digits);
        for number in [outpoint.vout.into(), coin.amount, coin.coinbase.into(), coin.height.into()]
        {
            text.push(b',');
            write_number(text, number);
        }
        text.push(b',');
        write_hex(text, coin.script);
        let has_address = columns.has_address();
        let (kind, address) = columns.of(coin.script);
        if let Some(kind) = kind {
            text.push(b',');
            text.extend_from_slice(kind.name().as_bytes());
        }
        if has_address {
            text.push(b',');
            text.extend_from_slice(address.unwrap_or_default().as_bytes());
        }
        text.push(b'\n');
    }

    fn write_if(&mut self, due: bool, to: &mut (impl Write + ?Sized)) -> io::Result<()> {
        if due || self.text.len() >= BATCH_BYTES {
            to.write_all(&self.text)?;
            self.text.clear();
        }
        Ok(())
    }
}

/// Writes a table to a stream such as a pipe.
pub struct CsvStream<W> {
    lines: Lines,
    to: W,
    sums: TableSums,
}

impl<W: Write> CsvStream<W> {
    /// Begins a table; txids and scripts are always hexadecimal.
    pub fn new(to: W, columns: TableColumns, kinds: AddressKinds) -> Self {
        let lines = Lines::new(ScriptColumns::new(columns, kinds));
        Self { lines, to, sums: TableSums::default() }
    }

    /// Adds a row.
    pub fn put(&mut self, outpoint: &OutPoint, coin: CoinRef<'_>) -> Result<(), SyncError> {
        self.sums.add(outpoint, coin.amount)?;
        self.lines.put(outpoint, coin);
        self.lines.write_if(false, &mut self.to).map_err(stream_error)
    }

    /// Writes the rest. Returns the number of rows, and the sum of the values in satoshi.
    pub fn finish(mut self) -> Result<(u64, u64), SyncError> {
        let written = self.lines.write_if(true, &mut self.to).and_then(|()| self.to.flush());
        written.map_err(stream_error)?;
        Ok((self.sums.rows, self.sums.total))
    }
}

fn stream_error(error: io::Error) -> SyncError {
    SyncError::Io(IoError::Storage { file: "standard output".to_owned(), error })
}

fn at(path: &Path, error: io::Error) -> SyncError {
    SyncError::Io(IoError::Storage { file: path.display().to_string(), error })
}

/// A CSV file that is being written.
pub(crate) struct CsvFile {
    lines: Lines,
    file: Box<dyn StorageFile>,
    path: PathBuf,
}

impl CsvFile {
    pub(crate) fn new(file: Box<dyn StorageFile>, path: PathBuf, columns: ScriptColumns) -> Self {
        Self { lines: Lines::new(columns), file, path }
    }
}

impl RowWriter for CsvFile {
    fn put(&mut self, outpoint: &OutPoint, coin: CoinRef<'_>) -> Result<(), SyncError> {
        self.lines.put(outpoint, coin);
        self.lines.write_if(false, &mut *self.file).map_err(|error| at(&self.path, error))
    }

    fn finish(mut self: Box<Self>, _: &TableFacts) -> Result<Box<dyn StorageFile>, SyncError> {
        self.lines.write_if(true, &mut *self.file).map_err(|error| at(&self.path, error))?;
        Ok(self.file)
    }
}

/// Counts and sums the rows of a file: each ends a line, and its third value is the coin's.
pub(crate) fn read_back(path: &Path, go_on: &GoOn<'_>) -> Result<TableSums, SyncError> {
    let mut file = File::open(path).map_err(|error| at(path, error))?;
    let (mut sums, mut buffer) = (TableSums::default(), vec![0; BATCH_BYTES]);
    let (mut commas, mut value, mut is_header) = (0, 0_u64, true);
    loop {
        go_on()?;
        let count = match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(at(path, error)),
        };
        for &byte in &buffer[..count] {
            match byte {
                b',' => commas += 1,
                b'\n' => {
                    if !is_header {
                        sums.rows += 1;
                        sums.total = sums.total.wrapping_add(value);
                    }
                    (commas, value, is_header) = (0, 0, false);
                }
                b'0'..=b'9' if commas == 2 => {
                    value = value.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'));
                }
                _ => {}
            }
        }
    }
    Ok(sums)
}
