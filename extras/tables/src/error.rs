//! [`TableError`]: why a table was not written.

use apus_chain::OutPoint;
use apus_sync::{ErrorKind, RunError};
use std::path::PathBuf;

/// Why a table was not written.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The coins are worth more than all money, so their sum could overflow.
    #[error("with coin {outpoint}, the set has more than all money: the set is damaged")]
    TooMuch {
        /// The coin.
        outpoint: OutPoint,
    },
    /// The rows that were read back are not the set's.
    #[error(
        "{draft} has {rows} rows worth {total} satoshi, but the set has {coins} coins worth {worth}. The disk or the \
         memory is at fault, or Apus: the table did not get its name. Check the disk, then rerun the command"
    )]
    Different {
        /// The file.
        draft: PathBuf,
        /// Its rows.
        rows: u64,
        /// The sum of their values, in satoshi.
        total: u64,
        /// The set's coins.
        coins: u64,
        /// The sum of their values, in satoshi.
        worth: u64,
    },
    /// The table is used out of order, or after an error.
    #[error("the table was not written completely. This is a bug in Apus: please report it")]
    Incomplete,
}

impl RunError for TableError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::TooMuch { .. } => ErrorKind::Wrong,
            Self::Different { .. } | Self::Incomplete => ErrorKind::Io,
        }
    }

    fn class(&self) -> &'static str {
        match self {
            Self::TooMuch { .. } => "wrong_data",
            Self::Different { .. } | Self::Incomplete => "io",
        }
    }
}
