//! [`BlocksFolder`]: where a node keeps its block files and their index.

use apus_chain::Network;
use apus_storage::{create_file, open_to_lock};
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

/// The folders of the block files and of the index. They are the same unless the node runs with `-blocksdir`:
/// Core then keeps block files, undo files and their key in `blocksdir`, and the index in its data directory
/// (Core `init.cpp`, `AppInitMain`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlocksFolder {
    /// The folder of `blk*.dat`, `rev*.dat` and `xor.dat`.
    pub files: PathBuf,
    /// The folder that contains `index`.
    pub home: PathBuf,
}

impl BlocksFolder {
    /// The folder of the block index.
    pub fn index(&self) -> PathBuf {
        self.home.join("index")
    }

    /// Returns whether the index is in the same folder as the files.
    pub fn is_one(&self) -> bool {
        self.files == self.home
    }
}

impl From<&Path> for BlocksFolder {
    fn from(folder: &Path) -> Self {
        Self { files: folder.to_owned(), home: folder.to_owned() }
    }
}

impl From<&PathBuf> for BlocksFolder {
    fn from(folder: &PathBuf) -> Self {
        folder.as_path().into()
    }
}

impl From<PathBuf> for BlocksFolder {
    fn from(folder: PathBuf) -> Self {
        folder.as_path().into()
    }
}

impl From<&BlocksFolder> for BlocksFolder {
    fn from(folder: &BlocksFolder) -> Self {
        folder.clone()
    }
}

/// The folder of a chain in a data directory (Core `chainparamsbase.cpp`).
pub fn chain_folder(datadir: &Path, network: Network) -> PathBuf {
    match network.data_folder() {
        Some(name) => datadir.join(name),
        None => datadir.to_owned(),
    }
}

/// Core's lock file in a data directory and in a folder of blocks (Core `util/fs_helpers.cpp`,
/// `LockDirectory`).
pub const DATADIR_LOCK: &str = ".lock";

/// LevelDB's lock file in a database.
pub const LEVELDB_LOCK: &str = "LOCK";

/// A lock on a folder, held until it is dropped.
///
/// Core and LevelDB lock with `fcntl` (Core `util/fs.cpp`, `FileLock`): the lock belongs to the
/// process, and closing any handle of the file releases it. So use this only for files that nothing
/// else in the process opens.
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
    /// The system failed to lock.
    #[error("cannot lock {path}: {source}. Check that the folder is writable")]
    System {
        /// The lock file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl DatadirLock {
    /// Locks `folder` through its file `name`. Creates a missing file, like Core, and gives it to the
    /// folder's owner, who must be able to open it later.
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

/// Creates a lock file that belongs to its folder's owner.
fn make(folder: &Path, path: &Path) -> io::Result<File> {
    let file = match create_file(path) {
        // Another process has just created it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return open_to_lock(path);
        }
        other => other?,
    };
    let owner = folder.metadata()?;
    // Only root can give files away; for others, the file is already their own.
    let _ = fchown(&file, Some(owner.uid()), Some(owner.gid()));
    Ok(file)
}

/// Returns how many bytes this user can still write to the file system of `path`, which must exist.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_measured_and_a_missing_path_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let free = free_bytes(folder.path()).unwrap();
        assert!((1 << 20..1 << 60).contains(&free), "{free}");
        assert!(free_bytes(&folder.path().join("nowhere")).is_err());
    }
}
