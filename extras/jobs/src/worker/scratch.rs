//! [`ScratchFolder`]: a folder for what is too large for memory while a job is done.
//!
//! It is this process's own, and goes when the process ends. One that was killed leaves its folder, which the next
//! process that works there removes.

use apus_storage::lock::FolderLock;
use apus_storage::{DirStorage, expect_own_folder, make_private_dir};
use apus_sync::error::{IoError, SyncError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// How the names of folders begin.
const NAME: &str = "apus-scratch-";

/// The file in each that is locked while it is used.
const LOCK: &str = "lock";

/// See the module.
pub(super) struct ScratchFolder {
    folder: PathBuf,
    next: AtomicU64,
    /// Held until the folder is gone.
    _lock: FolderLock,
}

/// A job's own folder, which goes with it.
pub(super) struct JobFolder(PathBuf);

fn failed(path: &Path, error: io::Error) -> SyncError {
    SyncError::Io(IoError::Storage { file: path.display().to_string(), error })
}

impl ScratchFolder {
    /// Makes one in `place`, and removes those that no process uses any more.
    pub(super) fn make(place: &Path) -> Result<Self, SyncError> {
        std::fs::create_dir_all(place).map_err(|error| failed(place, error))?;
        for entry in std::fs::read_dir(place).map_err(|error| failed(place, error))?.flatten() {
            // In folders of others nothing is locked, be it for a moment: another program would find its own file taken.
            let is_ours = || matches!(expect_own_folder(&entry.path()), Ok(Ok(())));
            if !entry.file_name().to_string_lossy().starts_with(NAME) || !is_ours() {
                continue;
            }
            // Where it cannot be locked or removed it is another's business.
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
        unreachable!("numbers do not end")
    }

    /// A folder for a job.
    pub(super) fn folder(&self) -> Result<JobFolder, SyncError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.join(number.to_string());
        make_private_dir(&folder).map_err(|error| failed(&folder, error))?;
        Ok(JobFolder(folder))
    }
}

/// Locks a folder that was just made; none where another process was faster. That one takes what is not locked for left
/// behind, and may have removed it between any two steps here.
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
        // What stays is removed by the next process.
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
        // What stays goes with the folder around it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn what_killed_processes_leave_is_removed_and_nothing_else() {
        let desk = tempfile::tempdir().unwrap();
        let place = desk.path().join("new");
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

    /// No other program finds a file of its own locked, however it is called.
    #[test]
    fn files_of_other_programs_are_not_locked() {
        let desk = tempfile::tempdir().unwrap();
        let other = desk.path().join("other");
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
                drop(ScratchFolder::make(desk.path()).unwrap());
            }
            stop.store(true, Ordering::Relaxed);
            assert!(program.join().unwrap());
        });
    }

    /// Another process may remove a folder that is not locked yet, and it is not used then.
    #[test]
    fn a_folder_that_is_gone_when_it_is_locked_is_not_taken() {
        let desk = tempfile::tempdir().unwrap();
        let folder = desk.path().join("apus-scratch-1-0");
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
