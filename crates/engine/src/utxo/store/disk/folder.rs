//! The folder around the tree: a lock, and the header file that identifies the folder.
//!
//! The file `store` is created once the tree exists, and never changes. So a folder with it but
//! without a tree has lost data, and a folder without it holds no coins.

use super::StoreError;
use apus_chain::Network;
use apus_hash::sha256;
use apus_storage::lock::FolderLock;
use apus_storage::{Storage, read_whole, write_atomically};
use std::io;
use std::path::Path;

/// The header file.
pub(super) const HEADER: &str = "store";
/// Locked while a process uses the folder.
pub(super) const LOCK: &str = "lock";
/// The library's folder.
pub(super) const TREE: &str = "tree";

/// The kind of a folder, as stated in its header.
#[derive(Debug, Clone, Copy)]
pub struct FolderForm {
    /// The first bytes of the header.
    pub magic: &'static [u8; 8],
    /// The latest supported format.
    pub format: u32,
}

const DIGEST_BYTES: usize = 32;
/// Later formats may have longer headers.
const HEADER_BYTES_MAX: u64 = 4096;

/// Excludes other processes as long as the lock is held.
pub(super) fn lock(folder: &Path) -> Result<FolderLock, StoreError> {
    let path = folder.join(LOCK);
    FolderLock::try_take(&path)
        .map_err(|error| StoreError::io(&path.display().to_string(), &error))?
        .ok_or_else(|| StoreError::InUse { place: folder.display().to_string() })
}

/// Writes the header file.
pub(super) fn write_header(
    storage: &dyn Storage,
    place: &str,
    form: FolderForm,
    network: Network,
) -> Result<(), StoreError> {
    let mut bytes = form.magic.to_vec();
    bytes.extend_from_slice(&form.format.to_le_bytes());
    bytes.extend_from_slice(&network.magic());
    bytes.extend_from_slice(&sha256(&bytes));
    write_atomically(storage, HEADER, &bytes).map_err(|error| StoreError::io(place, &error))
}

/// Reads the header file; returns false if the folder is new. Rejects folders with other contents.
pub(super) fn read_header(
    storage: &dyn Storage,
    place: &str,
    form: FolderForm,
    network: Network,
) -> Result<bool, StoreError> {
    let failed = |error: io::Error| StoreError::io(place, &error);
    let names = storage.names().map_err(failed)?;
    if !names.iter().any(|name| name == HEADER) {
        let draft = format!("{HEADER}.tmp");
        let ours = [LOCK, TREE, draft.as_str()];
        return match names.into_iter().find(|name| !ours.contains(&name.as_str())) {
            Some(name) => Err(StoreError::Foreign { place: place.to_owned(), name }),
            None => Ok(false),
        };
    }
    let bytes = match read_whole(storage, HEADER, HEADER_BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(StoreError::damaged(place, format!("its file `{HEADER}` is too long")));
        }
        other => other.map_err(failed)?,
    };
    check_header(&bytes, place, form, network)?;
    Ok(true)
}

fn check_header(
    bytes: &[u8],
    place: &str,
    form: FolderForm,
    network: Network,
) -> Result<(), StoreError> {
    let torn = || StoreError::damaged(place, format!("its file `{HEADER}` is corrupt"));
    let (header, digest) = bytes.split_last_chunk::<DIGEST_BYTES>().ok_or_else(torn)?;
    if sha256(header) != *digest {
        return Err(torn());
    }
    let header = header.strip_prefix(form.magic).ok_or_else(torn)?;
    let (format, rest) = header.split_first_chunk().ok_or_else(torn)?;
    let found = u32::from_le_bytes(*format);
    if found > form.format {
        return Err(StoreError::Newer { place: place.to_owned(), found, known: form.format });
    }
    let magic = rest.try_into().map_err(|_| torn())?;
    match Network::from_magic(magic) {
        Some(found) if found == network => Ok(()),
        Some(found) => {
            let place = place.to_owned();
            Err(StoreError::OtherNetwork { place, found, wanted: network })
        }
        None => Err(torn()),
    }
}
