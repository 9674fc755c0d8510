//! [`FolderLock`]: keeps other processes out of one of this program's folders while it is in use.
//!
//! The lock (`flock`) belongs to the open file description. A child process that is just starting holds a
//! copy until it executes its own program. So this code releases the lock explicitly: if it only closed the
//! file, the folder would become free at an unpredictable time. The crate that knows node folders locks those
//! in another way.

use crate::own::{open_or_create, open_own_file, open_to_lock};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A lock on a file, held until it is dropped.
#[derive(Debug)]
pub struct FolderLock(File);

impl FolderLock {
    /// Locks the file at `path`; creates a missing file for its owner alone. Returns `None` if another
    /// process holds the lock. An existing file must be ours.
    pub fn try_take(path: &Path) -> io::Result<Option<Self>> {
        Self::lock(open_or_create(path, true)?)
    }

    /// Like [`try_take`](Self::try_take), but fails if the file does not exist.
    pub fn try_take_existing(path: &Path) -> io::Result<Option<Self>> {
        Self::lock(open_own_file(path)?)
    }

    /// Like [`try_take_existing`](Self::try_take_existing), but the file may belong to another
    /// user.
    pub fn try_take_given(path: &Path) -> io::Result<Option<Self>> {
        Self::lock(open_to_lock(path)?)
    }

    fn lock(file: File) -> io::Result<Option<Self>> {
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Returns whether the locked file is still at `path`: another process may have removed it before this
    /// one locked it.
    #[must_use]
    pub fn is_at(&self, path: &Path) -> bool {
        match (self.0.metadata(), fs::metadata(path)) {
            (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
            _ => false,
        }
    }

    /// The locked file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.0
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // If this fails, closing the file releases the lock anyway.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_process_holds_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = FolderLock::try_take(&path).unwrap().unwrap();
        assert!(FolderLock::try_take(&path).unwrap().is_none());
        assert!(FolderLock::try_take_existing(&path).unwrap().is_none());
        drop(held);
        assert!(FolderLock::try_take(&path).unwrap().is_some());
        assert!(FolderLock::try_take_existing(&path).unwrap().is_some());
        let missing = dir.path().join("missing");
        assert!(FolderLock::try_take_existing(&missing).is_err() && !missing.exists());
    }

    #[test]
    fn the_lock_file_stays_until_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let lock = FolderLock::try_take(&path).unwrap().unwrap();
        assert!(lock.is_at(&path));
        fs::remove_file(&path).unwrap();
        assert!(!lock.is_at(&path));
        fs::write(&path, "").unwrap();
        assert!(!lock.is_at(&path));
    }

    #[test]
    fn dropping_the_lock_releases_it_despite_an_open_copy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = FolderLock::try_take(&path).unwrap().unwrap();
        // A child process holds such a copy until it executes its own program.
        let copy = held.file().try_clone().unwrap();
        drop(held);
        assert!(FolderLock::try_take(&path).unwrap().is_some());
        drop(copy);
    }
}
