//! The UTXO set as a table, and look-ups in it by address, script or output descriptor.
//!
//! The table `utxos` has the columns of Bitcoin Core's `contrib/utxo-tools/utxo_to_sqlite.py`, so queries written for
//! that script run unchanged. [`Table`] writes it as CSV, SQLite or Parquet; [`TableOutput`] makes it an output of a
//! sync. [`Wanted`] finds coins without decompressing any. The chain in numbers is here as Parquet only: `apus-indexes` makes
//! it, and writes CSV.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod address;
mod base58;
mod bech32;
mod columns;
mod csv;
mod descriptor;
mod error;
mod find;
mod meta;
#[cfg(feature = "parquet")]
mod numbers;
mod output;
#[cfg(feature = "parquet")]
mod parquet;
mod rows;
#[cfg(feature = "sqlite")]
mod sqlite;
mod table;
mod text;

pub use address::{AddressError, AddressKinds, script_of_address, write_address};
pub use columns::{TableColumns, TableFormat};
pub use csv::CsvStream;
pub use descriptor::{KeyRange, QueryError, scripts_of_query};
pub use error::TableError;
pub use find::{FoundCoin, Wanted, WantedScript};
pub use meta::TableFacts;
#[cfg(feature = "parquet")]
pub use numbers::parquet_numbers;
pub use output::TableOutput;
pub use table::{Table, TablePlace};
pub use text::write_hex;
