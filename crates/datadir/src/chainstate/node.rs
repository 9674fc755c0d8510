//! [`read_node`]: the chainstate of a node, which may be at work.
//!
//! It is read through [`Database`], which opens files for reading and takes no lock; every checksum is
//! compared, those of filters too, which a node goes by when it looks for a coin. What a node is writing
//! meanwhile is seen whole or not at all, but a table that is gone before it was read ends the reading:
//! reading again from the start helps.

use super::read_back::{ReadBack, SetEntries, block, obfuscation};
use super::{ChainstateError, KEY_BEST_BLOCK, KEY_OBFUSCATION};
use crate::leveldb::{self, Database};
use crate::obfuscation::Obfuscation;
use apus_chain::{BlockHash, OutPoint};
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

/// The block that a node's coins in the folder `dir` are at; none while it is between two.
///
/// # Errors
/// As [`read_node`].
pub fn node_best_block(dir: &Path) -> Result<Option<BlockHash>, ChainstateError> {
    let (mut key, mut best) = (Obfuscation::NONE, Ok(None));
    Database::open(dir)?.for_each(&mut |name, stored| {
        // Both come before the coins.
        match name {
            KEY_OBFUSCATION => match obfuscation(dir, stored) {
                Ok(found) => key = found,
                Err(error) => best = Err(error),
            },
            KEY_BEST_BLOCK => {
                let mut value = stored.to_vec();
                key.apply(&mut value, 0);
                best = block(dir, &value).map(Some);
            }
            _ => {}
        }
        let is_over = best.is_err() || name >= KEY_BEST_BLOCK;
        Ok(if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    best
}
