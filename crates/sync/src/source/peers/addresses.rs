//! Addresses of nodes in the work folder, so that the next start finds peers sooner.
//!
//! Format: `docs/formats/addresses.md`. They are a help and nothing more: a file that cannot be read
//! or written is passed over, and addresses are found again.

use crate::workdir::names::ADDRESSES;
use apus_p2p::addresses::FILE_BYTES_MAX;
use apus_storage::{Storage, read_whole, write_atomically};

/// What an earlier start left; nothing if it left none.
pub(super) fn read(storage: &dyn Storage) -> Vec<u8> {
    read_whole(storage, ADDRESSES, FILE_BYTES_MAX as u64).unwrap_or_default()
}

/// Leaves them for the next start.
pub(super) fn write(storage: &dyn Storage, addresses: &[u8]) {
    let _ = write_atomically(storage, ADDRESSES, addresses);
}
