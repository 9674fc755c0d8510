//! The work folder on a real disk: where it is, who may use it, and that it goes when done.

use crate::failure::Failure;
use apus_chain::Network;
use apus_engine::storage::DirStorage;
use apus_sync::LOCK;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

/// A work folder that this process alone uses.
pub(crate) struct WorkFolder {
    storage: DirStorage,
    /// Held while the folder is used.
    _lock: File,
}

impl WorkFolder {
    /// Makes the folder if it is not there, and keeps other runs out of it.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        fs::create_dir_all(path).map_err(|error| Failure::io(path, error))?;
        let lock_path = path.join(LOCK);
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(|error| Failure::io(&lock_path, error))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { storage: DirStorage::new(path), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(Failure::usage(format!(
                "{} is in use by another run: wait for it, or name another --workdir",
                path.display()
            ))),
            Err(TryLockError::Error(error)) => Err(Failure::io(&lock_path, error)),
        }
    }

    pub(crate) fn storage(&self) -> &DirStorage {
        &self.storage
    }

    /// Whether an earlier start left its plan here.
    pub(crate) fn has_plan(path: &Path) -> bool {
        path.join("plan").exists()
    }

    /// Gives up the progress, and the folder if nothing else is in it.
    pub(crate) fn discard(self) -> Result<(), Failure> {
        apus_sync::discard_progress(&self.storage)?;
        let folder = self.storage.folder().to_owned();
        // Somebody may have put something beside; then the folder stays, which harms nobody.
        let _ = fs::remove_file(folder.join(LOCK));
        let _ = fs::remove_dir(&folder);
        Ok(())
    }
}

/// Where progress is kept if the user does not say: beside the first output, else in the current
/// folder under the names of the chain and the hints.
pub(crate) fn default_path(chain: Network, hints: &Path, first_output: Option<&Path>) -> PathBuf {
    match first_output {
        Some(path) => {
            let mut name = path.as_os_str().to_owned();
            name.push(".work");
            name.into()
        }
        None => {
            let hints = hints.file_name().unwrap_or_default().to_string_lossy();
            format!("apus-{chain}-{hints}.work").into()
        }
    }
}
