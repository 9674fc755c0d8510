//! Bytes that only the system can know beforehand: for secrets and keys.

use crate::error::{IoError, SyncError};

/// So many of them.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], SyncError> {
    let mut bytes = [0; N];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) => Err(SyncError::Io(IoError::Random(error.to_string()))),
    }
}
