//! [`ScratchFolder`]: a folder for data of jobs that do not fit in memory.
//!
//! It belongs to this process, which removes it when it ends. A killed process leaves its folder behind, and the next
//! process in the same place removes it.

use apus_storage::lock::FolderLock;
use apus_storage::{DirStorage, expect_own_folder, make_private_dir};
use apus_sync::error::{IoError, SyncError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Prefix of the folders' names.
const NAME: &str = "apus-scratch-";

/// The file in each folder that is locked while the folder is in use.
const LOCK: &str = "lock";

/// A folder for temporary files, removed when dropped.
pub(super) struct ScratchFolder {
    folder: PathBuf,
    next: AtomicU64,
    /// Held until the folder is gone.
    _lock: FolderLock,
}

/// The folder of one job, removed when dropped.
pub(super) struct JobFolder(PathBuf);

fn failed(path: &Path, error: io::Error) -> SyncError {
    SyncError::Io(IoError::Storage { file: path.display().to_string(), error })
}

impl ScratchFolder {
    /// Creates a folder in `place`, and removes the folders of dead processes there.
    pub(super) fn make(place: &Path) -> Result<Self, SyncError> {
        std::fs::create_dir_all(place).map_err(|error| failed(place, error))?;
        for entry in std::fs::read_dir(place).map_err(|error| failed(place, error))?.flatten() {
            // Never lock a file in another program's folder, not even for a moment: that program could find it locked.
            let is_ours = || matches!(expect_own_folder(&entry.path()), Ok(Ok(())));
            if !entry.file_name().to_string_lossy().starts_with(NAME) || !is_ours() {
                continue;
            }
            // If it cannot be locked or removed, another process uses it or will remove it.
            if let Ok(Some(_held)) = FolderLock::try_take_existing(&entry.path().join(LOCK)) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
        for number in 0.. {
            let folder = place.join(format!("{NAME}{}-{number}", std::process::id()));
            match make_private_dir(&folder) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                other => other.map_err(|error| failed(&folder, error))?,
            }
            if let Some(lock) = locked(&folder).map_err(|error| failed(&folder, error))? {
                return Ok(Self { folder, next: AtomicU64::new(0), _lock: lock });
            }
        }
        unreachable!("the range has no end")
    }

    /// Creates the folder of a job.
    pub(super) fn folder(&self) -> Result<JobFolder, SyncError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.join(number.to_string());
        make_private_dir(&folder).map_err(|error| failed(&folder, error))?;
        Ok(JobFolder(folder))
    }
}

/// Locks a new folder; `None` if another process was faster. That process considers an unlocked folder abandoned, and
/// may remove it between any two steps here.
fn locked(folder: &Path) -> io::Result<Option<FolderLock>> {
    let path = folder.join(LOCK);
    let lock = match FolderLock::try_take(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    Ok(lock.filter(|lock| lock.is_at(&path)))
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        // The next process removes what is left.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl JobFolder {
    pub(super) fn storage(&self) -> DirStorage {
        DirStorage::private(&self.0)
    }
}

impl Drop for JobFolder {
    fn drop(&mut self) {
        // The parent folder is removed later, with everything left in it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn only_folders_of_killed_processes_are_removed() {
        let temp = tempfile::tempdir().unwrap();
        let place = temp.path().join("new");
        let used = ScratchFolder::make(&place).unwrap();
        let job = used.folder().unwrap();
        fs::write(job.0.join("file"), "1").unwrap();
        let left = place.join("apus-scratch-1-0");
        fs::create_dir_all(&left).unwrap();
        fs::write(left.join(LOCK), "").unwrap();
        let other = place.join("other");
        fs::create_dir_all(&other).unwrap();
        fs::write(other.join(LOCK), "").unwrap();
        let second = ScratchFolder::make(&place).unwrap();
        assert!(!left.exists() && other.exists() && job.0.join("file").exists());
        let folder = job.0.clone();
        drop(job);
        assert!(!folder.exists());
        drop((used, second));
        let names: Vec<_> =
            fs::read_dir(&place).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(names, ["other"]);
    }

    /// Files of other programs are never locked, regardless of their names.
    #[test]
    fn files_of_other_programs_are_not_locked() {
        let temp = tempfile::tempdir().unwrap();
        let other = temp.path().join("other");
        fs::create_dir_all(&other).unwrap();
        fs::write(other.join(LOCK), "").unwrap();
        let (stop, path) = (AtomicBool::new(false), other.join(LOCK));
        std::thread::scope(|scope| {
            let program = scope.spawn(|| {
                let mut taken = true;
                while taken && !stop.load(Ordering::Relaxed) {
                    taken = FolderLock::try_take(&path).unwrap().is_some();
                }
                taken
            });
            for _ in 0..300 {
                drop(ScratchFolder::make(temp.path()).unwrap());
            }
            stop.store(true, Ordering::Relaxed);
            assert!(program.join().unwrap());
        });
    }

    /// Another process may remove a folder before it is locked; the folder is not used then.
    #[test]
    fn a_folder_removed_before_it_is_locked_is_not_taken() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("apus-scratch-1-0");
        assert!(locked(&folder).unwrap().is_none());
        fs::create_dir(&folder).unwrap();
        let lock = locked(&folder).unwrap().unwrap();
        let path = folder.join(LOCK);
        assert!(lock.is_at(&path));
        fs::remove_file(&path).unwrap();
        assert!(!lock.is_at(&path));
        fs::write(&path, "").unwrap();
        assert!(!lock.is_at(&path));
    }
}
