//! The work folder on disk: its place, lock and owner, and its removal at the end.

use crate::failure::{Failure, INTERRUPTED};
use crate::files::{OTHER_WORKDIR, no_progress_there};
use apus_chain::Network;
use apus_storage::lock::FolderLock;
use apus_storage::place::{NameDurability, try_opened};
use apus_storage::{
    DirStorage, OwnerError, create_private_dir, expect_own_folder, find_of_others,
    follow_own_links, read_whole, write_atomically,
};
use apus_sync::{
    COINS, ENDED, GONE, HINTS, INDEX, IoError, LOCK, POSITIONS, RECORD, SyncError, UsageError,
};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Maximum length of a stored place of coins, in bytes.
const PLACE_BYTES_MAX: u64 = 4096;

/// A work folder, locked for this process.
pub(crate) struct WorkFolder {
    storage: DirStorage,
    /// The lock, held while this process uses the folder.
    lock: FolderLock,
}

impl WorkFolder {
    /// Creates the folder if it is missing, and locks it against other runs. An existing folder must belong to this
    /// user and be inaccessible to others; a link to it must belong to this user or the administrator.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let path = &match follow_own_links(path).map_err(|error| Failure::io(path, error))? {
            Ok(path) => path,
            Err(why) => return Err(not_own(path, why)),
        };
        if path.exists() && !path.is_dir() {
            return Err(Failure::usage(format!(
                "{} is a file, not a work folder: use another --workdir",
                path.display()
            )));
        }
        if path.exists()
            && let Err(why) = expect_own_folder(path).map_err(|error| Failure::io(path, error))?
        {
            return Err(not_own(path, why));
        }
        create_private_dir(path).map_err(|error| Failure::making(path, &error, OTHER_WORKDIR))?;
        let lock_path = path.join(LOCK);
        let lock = FolderLock::try_take(&lock_path);
        match lock.map_err(|error| not_locked(&lock_path, &error))? {
            // A run that ended meanwhile removed the lock file: we locked a file without a name.
            Some(lock) if !lock.is_at(&lock_path) => Self::open(path),
            Some(lock) => {
                let folder = Self { storage: DirStorage::private(path), lock };
                folder.expect_durable().inspect_err(|_| folder.leave())?;
                Ok(folder)
            }
            None => Err(Failure::usage(format!(
                "{} is in use by another sync: wait until that sync ends, or use another --workdir",
                path.display()
            ))),
        }
    }

    /// Fails if new files in the folder would not survive a power cut.
    fn expect_durable(&self) -> Result<(), Failure> {
        let folder = self.storage.folder();
        match try_opened(self.lock.file(), folder) {
            Ok(NameDurability::Durable) => Ok(()),
            Ok(NameDurability::Unknown) => Err(no_progress_there(folder)),
            Err(why) => Err(Failure::io(folder, format!("{why}: {OTHER_WORKDIR}"))),
        }
    }

    /// Fails if the folder has content of other users, who may have had access to it before.
    pub(crate) fn expect_own_content(&self) -> Result<(), Failure> {
        let folder = self.storage.folder();
        match find_of_others(folder).map_err(|error| Failure::io(folder, error))? {
            None => Ok(()),
            Some((file, why)) => Err(Failure::usage(format!(
                "{}: {why}, and a sync would trust this content. Remove the work folder (rm -r {}) to start from \
                 scratch, or use another --workdir",
                file.display(),
                folder.display()
            ))),
        }
    }

    /// Begins a run in the folder. Fails, and changes nothing, if the folder is not for this run. Finishes a folder's
    /// removal that a crash interrupted, and makes files private that an earlier version made readable for all. `coins`
    /// is the place of the run's coins, if they are on servers.
    pub(crate) fn begin(&self, coins: Option<&str>) -> Result<(), Failure> {
        let begun = apus_sync::expect_work_folder(&self.storage).map_err(Failure::from);
        let begun = begun.and_then(|()| self.expect_own_content());
        let begun = begun.and_then(|()| self.expect_coins(coins)).and_then(|()| self.unmark_end());
        begun.inspect_err(|_| self.leave())?;
        let folder = self.storage.folder();
        let is_ours = |name: &str| {
            let is_folder = [COINS, INDEX, HINTS].contains(&name);
            apus_sync::is_work_file(name) && (!is_folder || is_made_by_a_run(&folder.join(name)))
        };
        self.close_to_others(is_ours)?;
        self.remove_remains()
    }

    /// Makes the files and folders with these names inaccessible to other users.
    pub(crate) fn close_to_others(&self, names: impl Fn(&str) -> bool) -> Result<(), Failure> {
        let closed = self.storage.close_to_others(names);
        closed.map_err(|error| Failure::io(self.storage.folder(), error))
    }

    pub(crate) fn storage(&self) -> &DirStorage {
        &self.storage
    }

    /// Whether the folder has an earlier start's plan, or its record of connected blocks.
    pub(crate) fn has_plan(path: &Path) -> bool {
        path.join("plan").exists() || path.join(RECORD).exists()
    }

    /// Whether an earlier start was interrupted, so that it may have written some of its outputs.
    pub(crate) fn was_broken_off(path: &Path) -> bool {
        Self::has_plan(path) && !path.join(ENDED).exists()
    }

    /// Keeps all content after a successful run, for a later run to continue from.
    pub(crate) fn leave_ended(&self) -> Result<(), Failure> {
        self.mark_end("")
    }

    /// Keeps, after a successful run, the state that belongs to coins on servers, for a later run to continue from.
    pub(crate) fn leave_coins(&self, place: &str) -> Result<(), Failure> {
        self.discard_folders()?;
        apus_sync::keep_record(&self.storage)?;
        self.mark_end(place)
    }

    fn mark_end(&self, text: &str) -> Result<(), Failure> {
        let made = write_atomically(&self.storage, ENDED, text.as_bytes());
        made.map_err(|error| Failure::io(&self.storage.folder().join(ENDED), error))?;
        self.leave();
        Ok(())
    }

    /// Fails if the folder holds the state of other coins on servers, which this run would destroy.
    fn expect_coins(&self, coins: Option<&str>) -> Result<(), Failure> {
        let path = self.storage.folder().join(ENDED);
        let place = match read_whole(&self.storage, ENDED, PLACE_BYTES_MAX) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            read => read.map_err(|error| Failure::io(&path, error))?,
        };
        match String::from_utf8_lossy(&place) {
            place if place.is_empty() || Some(&*place) == coins => Ok(()),
            place => Err(Failure::usage(format!(
                "{} holds the state of the coins at {place}. Choose one: use another --workdir, add --coins \
                 {place} to continue with these coins, or remove that folder to abandon them",
                self.storage.folder().display()
            ))),
        }
    }

    fn unmark_end(&self) -> Result<(), Failure> {
        let mark = self.storage.folder().join(ENDED);
        gone(&mark, fs::remove_file(&mark))
    }

    /// Ends a failed run: removes content that later runs cannot use, and adds to the failure's message that progress
    /// is kept, if any is.
    pub(crate) fn give_up(self, error: SyncError) -> Failure {
        let folder = self.storage.folder();
        if matches!(error, SyncError::Usage(UsageError::NotAWorkFolder { .. })) {
            // The files there are not ours, even if their names match.
            self.leave();
            return error.into();
        }
        // Results under hints or roots that proved wrong would mislead the next ones.
        let proven_wrong = error.spoils_progress();
        let mut kept = Self::has_plan(folder) && !proven_wrong;
        if !kept {
            // Report the first failure, not this one.
            kept = self.give_up_progress().unwrap_or(false);
        }
        self.leave();
        let about_itself = matches!(
            error,
            SyncError::Io(IoError::WorkdirDamaged { .. })
                | SyncError::Io(IoError::RunDamaged { .. })
                | SyncError::Io(IoError::CoinsChanged { .. })
                | SyncError::Usage(UsageError::OtherRun { .. })
                | SyncError::Io(IoError::BlocksReadBack { .. })
                | SyncError::Io(IoError::KeptReadBack { .. })
        );
        let mut failure = Failure::from(error);
        if failure.code == INTERRUPTED {
            failure.message = if kept && apus_sync::has_progress(&self.storage) {
                format!(
                    "interrupted: progress is kept in {}. Rerun the command to resume",
                    folder.display()
                )
            } else {
                "interrupted before there was progress to keep. Rerun the command to start again"
                    .into()
            };
            return failure;
        }
        if kept && !about_itself { self.keep(failure) } else { failure }
    }

    /// Adds to a failure's message that progress is kept, if any is, and how to resume.
    pub(crate) fn keep(&self, mut failure: Failure) -> Failure {
        if apus_sync::has_progress(&self.storage) {
            failure.message.push_str(&format!(
                "\napus: progress is kept in {}. Fix this, then rerun the command to resume",
                self.storage.folder().display()
            ));
        }
        failure
    }

    /// Discards the progress, and the folder unless it has other content.
    pub(crate) fn discard(self) -> Result<(), Failure> {
        self.discard_progress()?;
        self.leave();
        Ok(())
    }

    fn discard_progress(&self) -> Result<(), Failure> {
        self.discard_folders()?;
        Ok(apus_sync::discard_progress(&self.storage)?)
    }

    /// Discards everything except downloads; returns whether any exist.
    fn give_up_progress(&self) -> Result<bool, Failure> {
        self.discard_folders()?;
        Ok(apus_sync::give_up_progress(&self.storage)?)
    }

    /// Removes the folders of coins and hints. The files that mark progress are removed later. Renames a folder before
    /// it removes it, so that a crash never leaves a part under its name.
    fn discard_folders(&self) -> Result<(), Failure> {
        let folder = self.storage.folder();
        for name in [COINS, HINTS] {
            let (path, gone) = (folder.join(name), folder.join(GONE));
            if !is_made_by_a_run(&path) {
                continue;
            }
            match fs::rename(&path, &gone) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(Failure::io(&path, error)),
                Ok(()) => self.remove_remains()?,
            }
        }
        let positions = folder.join(POSITIONS);
        gone(&positions, fs::remove_file(&positions))
    }

    /// Finishes a folder's removal that a crash interrupted.
    fn remove_remains(&self) -> Result<(), Failure> {
        let remains = self.storage.folder().join(GONE);
        gone(&remains, fs::remove_dir_all(&remains))
    }

    /// Removes the lock, and then the folder if it is empty. If the user put files next to the lock, the folder stays,
    /// which is harmless.
    pub(crate) fn leave(&self) {
        let folder = self.storage.folder();
        let lock = folder.join(LOCK);
        // Our lock is empty.
        if lock.metadata().is_ok_and(|lock| lock.len() == 0) {
            let _ = fs::remove_file(lock);
        }
        let _ = fs::remove_dir(folder);
    }
}

/// Converts the result of a removal: success if the file was removed or is missing.
fn gone(path: &Path, removed: io::Result<()>) -> Result<(), Failure> {
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Failure::io(path, error)),
        _ => Ok(()),
    }
}

/// Creates the error, with its remedy, for a folder that cannot be locked: some network disks have no locks.
fn not_locked(path: &Path, error: &io::Error) -> Failure {
    use ErrorKind::{PermissionDenied, ReadOnlyFilesystem, StorageFull};
    match error.kind() {
        PermissionDenied | ReadOnlyFilesystem | StorageFull => {
            Failure::making(path, error, OTHER_WORKDIR)
        }
        _ => Failure::io(path, format!("{error}: {OTHER_WORKDIR}, on a local disk")),
    }
}

/// Creates the error for a folder that is not safe for progress, with the remedy.
fn not_own(path: &Path, why: OwnerError) -> Failure {
    let name = path.display();
    let remedy = match why {
        OwnerError::OpenTo(_) => {
            format!("revoke their access (chmod go-w {name}) if they have not used it, ")
        }
        OwnerError::Of(_) => {
            format!(
                "make it yours (chown -R) if you trust what is in it, remove it (rm -r {name}), "
            )
        }
        _ => format!("remove it (rm {name}), "),
    };
    Failure::usage(format!(
        "{name} is not safe as a work folder: {why}. Anyone who can change these files controls the result: \
         {remedy}or use another --workdir"
    ))
}

/// Whether a folder of coins or hints holds only files that a run puts there. True for a missing folder.
fn is_made_by_a_run(folder: &Path) -> bool {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return error.kind() == ErrorKind::NotFound,
    };
    let ours = ["lock", "store", "store.tmp", "tree", "set.dat", "set.dat.incomplete", "work"];
    entries.flatten().all(|entry| ours.iter().any(|name| entry.file_name() == *name))
}

/// Returns the default work folder: next to the first output, or in the current folder without one; named after the
/// chain and the hints.
pub(crate) fn default_path(
    chain: Network,
    hints: Option<&Path>,
    first_output: Option<&Path>,
) -> PathBuf {
    match first_output {
        Some(path) => {
            let mut name = path.as_os_str().to_owned();
            name.push(".work");
            name.into()
        }
        None => {
            let hints = hints.and_then(Path::file_name).map(|name| name.to_string_lossy());
            let name = hints.as_deref().unwrap_or("utxo");
            format!("apus-{chain}-{name}.work").into()
        }
    }
}
