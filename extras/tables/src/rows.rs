//! [`RowWriter`]: what every format implements.

use crate::error::TableError;
use crate::meta::TableFacts;
use apus_chain::{CoinRef, MAX_MONEY, OutPoint};
use apus_storage::StorageFile;
use apus_sync::SyncError;

/// Number of rows, and sum of the values in satoshi.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TableSums {
    pub(crate) rows: u64,
    pub(crate) total: u64,
}

impl TableSums {
    /// Counts a row. Fails if the set has more than all money: its sum could overflow.
    pub(crate) fn add(&mut self, outpoint: &OutPoint, value: u64) -> Result<(), SyncError> {
        self.rows += 1;
        match self.total.checked_add(value).filter(|total| *total <= MAX_MONEY) {
            Some(total) => {
                self.total = total;
                Ok(())
            }
            None => Err(TableError::TooMuch { outpoint: *outpoint }.into()),
        }
    }
}

/// Writes rows in one format.
pub(crate) trait RowWriter: Send {
    /// Adds a row.
    fn put(&mut self, outpoint: &OutPoint, coin: CoinRef<'_>) -> Result<(), SyncError>;

    /// Completes the file and returns it.
    fn finish(self: Box<Self>, facts: &TableFacts) -> Result<Box<dyn StorageFile>, SyncError>;
}

/// Calls this now and then; its error ends the work.
pub(crate) type GoOn<'a> = dyn Fn() -> Result<(), SyncError> + 'a;
