//! [`DatadirLock`]: keeps a node out of its own folder while that is worked on, and this program
//! out while a node is there.
//!
//! Core and LevelDB lock with `fcntl` (Core `util/fs.cpp`, `FileLock`): the lock belongs to the
//! process, and closing any handle of the file gives it up. So this is for files that nothing else
//! in the process opens.

use apus_storage::{create_file, open_to_lock};
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

/// Core's lock file in a data directory and in a folder of blocks (Core `util/fs_helpers.cpp`,
/// `LockDirectory`).
pub const DATADIR_LOCK: &str = ".lock";

/// LevelDB's lock file in a database.
pub const LEVELDB_LOCK: &str = "LOCK";

/// A lock on a folder, held until it is dropped.
#[derive(Debug)]
pub struct DatadirLock {
    _file: File,
}

/// Why a folder could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has locked it.
    #[error("{folder} is in use, most likely by a running node: stop it first")]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// The system could not.
    #[error("cannot lock {path}: {source}; see that the folder may be written to")]
    System {
        /// The lock file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl DatadirLock {
    /// Locks `folder` by its file `name`, which is made if it is not there, as Core does. Then it
    /// belongs to the folder's owner, who has to open it after us.
    pub fn take(folder: &Path, name: &str) -> Result<Self, LockError> {
        let path = folder.join(name);
        let file = match open_to_lock(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(folder, &path),
            other => other,
        };
        let file = file.map_err(|source| LockError::System { path: path.clone(), source })?;
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: file }),
            Err(Errno::AGAIN | Errno::ACCESS) => {
                Err(LockError::InUse { folder: folder.to_owned() })
            }
            Err(error) => Err(LockError::System { path, source: error.into() }),
        }
    }
}

/// Makes a lock file for the owner of its folder.
fn make(folder: &Path, path: &Path) -> io::Result<File> {
    let file = match create_file(path) {
        // Another process made it meanwhile.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return open_to_lock(path);
        }
        other => other?,
    };
    let owner = folder.metadata()?;
    // Only root gives files away; to others the file is their own, as any that they make.
    let _ = fchown(&file, Some(owner.uid()), Some(owner.gid()));
    Ok(file)
}
