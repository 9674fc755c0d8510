//! [`read_node`]: the chainstate of a node, which may be at work.
//!
//! It is read through [`Database`], which opens files for reading and takes no lock; every checksum is
//! compared, those of filters too, which a node goes by when it looks for a coin. What a node is writing
//! meanwhile is seen whole or not at all, but a table that is gone before it was read ends the reading:
//! reading again from the start helps.

use super::ChainstateError;
use super::read_back::{ReadBack, SetEntries};
use crate::leveldb::{self, Database};
use apus_chain::OutPoint;
use core::ops::ControlFlow;
use std::path::Path;

/// Sees that the files of a node's chainstate in the folder `dir` are there and fit together, without
/// reading what is in its tables: in a second, whatever its size.
///
/// # Errors
/// [`ChainstateError::Table`], `Vanished`, `Missing` and `Read`, as [`read_node`] would end with.
pub fn check_files(dir: &Path) -> Result<(), ChainstateError> {
    Ok(leveldb::check_files(dir)?)
}

/// Reads a node's chainstate in the folder `dir` from start to end, as [`read_back()`](super::read_back())
/// reads one that was written here.
///
/// # Errors
/// [`ChainstateError::Table`] where a file is damaged or gone; otherwise as there.
pub fn read_node(
    dir: &Path,
    each: &mut dyn FnMut(OutPoint, &[u8]) -> ControlFlow<()>,
) -> Result<ReadBack, ChainstateError> {
    let mut set = SetEntries::new(dir);
    let mut failed = None;
    Database::open(dir)?.with_filters().for_each(&mut |key, value| {
        Ok(set.entry(key, value, each).unwrap_or_else(|error| {
            failed = Some(error);
            ControlFlow::Break(())
        }))
    })?;
    failed.map_or_else(|| set.finish(), Err)
}
