//! [`FolderLock`]: keeps other processes out of a folder of this program's own while one uses it.
//!
//! The lock (`flock`) belongs to the open file, and a process that is being started elsewhere in
//! this one holds a copy of that until it has become its own program. So the lock is given up by
//! saying so: closing the file alone would leave it to chance when the folder is free again.
//! Folders of a node are locked in another way, by the crate that knows them.

use crate::own::{open_or_create, open_own_file, open_to_lock};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A lock on a file, held until it is dropped.
#[derive(Debug)]
pub struct FolderLock(File);

impl FolderLock {
    /// Locks the file at `path`, which is made if it is not there, for its owner alone; `None`
    /// where another process holds it. One that is there must be ours.
    pub fn try_take(path: &Path) -> io::Result<Option<Self>> {
        Self::lock(open_or_create(path, true)?)
    }

    /// As [`try_take`](Self::try_take), of a file that is there: none is made.
    pub fn try_take_existing(path: &Path) -> io::Result<Option<Self>> {
        Self::lock(open_own_file(path)?)
    }

    /// As [`try_take_existing`](Self::try_take_existing), of a file that may have been given to another user.
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

    /// Whether the locked file still is the one at a path: another process may have removed it before it was locked.
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
        // Where this fails, closing the file does it.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
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
    fn it_is_at_its_path_until_another_file_is() {
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
    fn dropped_is_free_though_a_copy_of_the_file_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = FolderLock::try_take(&path).unwrap().unwrap();
        // What a process being started has until it is another program.
        let copy = held.file().try_clone().unwrap();
        drop(held);
        assert!(FolderLock::try_take(&path).unwrap().is_some());
        drop(copy);
    }
}
