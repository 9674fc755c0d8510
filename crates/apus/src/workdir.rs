//! The work folder on a real disk: where it is, who may use it, and that it goes when done.

use crate::failure::{Failure, INTERRUPTED};
use crate::files::{ELSEWHERE, no_progress_there};
use apus_chain::Network;
use apus_storage::lock::FolderLock;
use apus_storage::place::{NameDurability, try_opened};
use apus_storage::{
    DirStorage, NotOwn, create_private_dir, expect_own_folder, find_of_others, follow_own_links,
    read_whole, write_atomically,
};
use apus_sync::{
    COINS, ENDED, GONE, HINTS, INDEX, IoError, LOCK, POSITIONS, RECORD, SyncError, UsageError,
};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// No place of coins is longer.
const PLACE_BYTES_MAX: u64 = 4096;

/// A work folder that this process alone uses.
pub(crate) struct WorkFolder {
    storage: DirStorage,
    /// Held while the folder is used.
    lock: FolderLock,
}

impl WorkFolder {
    /// Makes the folder if it is not there, and keeps other runs out of it. One that is there must be this user's alone; a
    /// link to it must be of this user or the administrator.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let path = &match follow_own_links(path).map_err(|error| Failure::io(path, error))? {
            Ok(path) => path,
            Err(why) => return Err(not_own(path, why)),
        };
        if path.exists() && !path.is_dir() {
            return Err(Failure::usage(format!(
                "{} is a file, not a folder for progress: name another --workdir",
                path.display()
            )));
        }
        if path.exists()
            && let Err(why) = expect_own_folder(path).map_err(|error| Failure::io(path, error))?
        {
            return Err(not_own(path, why));
        }
        create_private_dir(path).map_err(|error| Failure::making(path, &error, ELSEWHERE))?;
        let lock_path = path.join(LOCK);
        let lock = FolderLock::try_take(&lock_path);
        match lock.map_err(|error| not_locked(&lock_path, &error))? {
            // A run that ended in between took the name away: what is locked is another's past.
            Some(lock) if !lock.is_at(&lock_path) => Self::open(path),
            Some(lock) => {
                let folder = Self { storage: DirStorage::private(path), lock };
                folder.expect_durable().inspect_err(|_| folder.leave())?;
                Ok(folder)
            }
            None => Err(Failure::usage(format!(
                "{} is in use by another run: wait for it, or name another --workdir",
                path.display()
            ))),
        }
    }

    /// What is put there outlives a power cut.
    fn expect_durable(&self) -> Result<(), Failure> {
        let folder = self.storage.folder();
        match try_opened(self.lock.file(), folder) {
            Ok(NameDurability::Durable) => Ok(()),
            Ok(NameDurability::Unknown) => Err(no_progress_there(folder)),
            Err(why) => Err(Failure::io(folder, format!("{why}: {ELSEWHERE}"))),
        }
    }

    /// Nothing in the folder was put there by other users, who could do so before it was closed to them.
    pub(crate) fn expect_own_content(&self) -> Result<(), Failure> {
        let folder = self.storage.folder();
        match find_of_others(folder).map_err(|error| Failure::io(folder, error))? {
            None => Ok(()),
            Some((file, why)) => Err(Failure::usage(format!(
                "{}: {why}, and a run would believe what it says: remove the folder for progress (rm -r {}) to start \
                 anew, or name another --workdir",
                file.display(),
                folder.display()
            ))),
        }
    }

    /// Begins a run in the folder, unless it is not ours: then nothing in it is touched. Removes
    /// what a crash left of a folder that was on its way out, and closes to others what an earlier
    /// version made for all to read. `coins` is the place of the run's coins, where that is on servers.
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

    /// Closes to others what is there under these names.
    pub(crate) fn close_to_others(&self, names: impl Fn(&str) -> bool) -> Result<(), Failure> {
        let closed = self.storage.close_to_others(names);
        closed.map_err(|error| Failure::io(self.storage.folder(), error))
    }

    pub(crate) fn storage(&self) -> &DirStorage {
        &self.storage
    }

    /// Whether an earlier start left its plan here, or its record of blocks connected.
    pub(crate) fn has_plan(path: &Path) -> bool {
        path.join("plan").exists() || path.join(RECORD).exists()
    }

    /// Whether an earlier start was broken off, so that it may have written some of its outputs.
    pub(crate) fn was_broken_off(path: &Path) -> bool {
        Self::has_plan(path) && !path.join(ENDED).exists()
    }

    /// Leaves all as it is after a run that ended well, for one that goes on from there.
    pub(crate) fn leave_ended(&self) -> Result<(), Failure> {
        self.mark_end("")
    }

    /// Leaves what is known of the coins at a place on servers, after a run that brought them to where they are, for one that
    /// brings them further.
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

    /// What is known of coins on servers is of use for these alone, and would be lost in another run.
    fn expect_coins(&self, coins: Option<&str>) -> Result<(), Failure> {
        let path = self.storage.folder().join(ENDED);
        let place = match read_whole(&self.storage, ENDED, PLACE_BYTES_MAX) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            read => read.map_err(|error| Failure::io(&path, error))?,
        };
        match String::from_utf8_lossy(&place) {
            place if place.is_empty() || Some(&*place) == coins => Ok(()),
            place => Err(Failure::usage(format!(
                "{} has what is known of the coins at {place}: name another --workdir, or --coins {place} to go on with them, \
                 or remove that folder to give them up",
                self.storage.folder().display()
            ))),
        }
    }

    fn unmark_end(&self) -> Result<(), Failure> {
        let mark = self.storage.folder().join(ENDED);
        gone(&mark, fs::remove_file(&mark))
    }

    /// Ends a run that failed: whatever is of no use to a later one goes, and the failure says
    /// what is kept.
    pub(crate) fn give_up(self, error: SyncError) -> Failure {
        let folder = self.storage.folder();
        if matches!(error, SyncError::Usage(UsageError::NotAWorkFolder { .. })) {
            // Whatever its names, nothing there is ours.
            self.leave();
            return error.into();
        }
        // What was computed under hints or roots that proved wrong is in the way of the next ones.
        let proven_wrong = error.spoils_progress();
        let mut kept = Self::has_plan(folder) && !proven_wrong;
        if !kept {
            // The failure to tell is the first one.
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
                    "interrupted; progress is kept in {}, and the same command goes on from there",
                    folder.display()
                )
            } else {
                "interrupted before there was progress to keep; the same command starts anew".into()
            };
            return failure;
        }
        if kept && !about_itself { self.keep(failure) } else { failure }
    }

    /// Says that progress is kept, if there is any: mending something lets the same run go on.
    pub(crate) fn keep(&self, mut failure: Failure) -> Failure {
        if apus_sync::has_progress(&self.storage) {
            failure.message.push_str(&format!(
                "\napus: progress is kept in {}: once this is mended, the same command goes on from \
                 there",
                self.storage.folder().display()
            ));
        }
        failure
    }

    /// Gives up the progress, and the folder if nothing else is in it.
    pub(crate) fn discard(self) -> Result<(), Failure> {
        self.discard_progress()?;
        self.leave();
        Ok(())
    }

    fn discard_progress(&self) -> Result<(), Failure> {
        self.discard_folders()?;
        Ok(apus_sync::discard_progress(&self.storage)?)
    }

    /// Gives up all but what was downloaded; tells whether there is any of that.
    fn give_up_progress(&self) -> Result<bool, Failure> {
        self.discard_folders()?;
        Ok(apus_sync::give_up_progress(&self.storage)?)
    }

    /// What says that there is progress goes after these. A folder goes by another name first: a crash
    /// leaves the whole of it or nothing.
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

    /// Removes what a crash left of a folder that was on its way out.
    fn remove_remains(&self) -> Result<(), Failure> {
        let remains = self.storage.folder().join(GONE);
        gone(&remains, fs::remove_dir_all(&remains))
    }

    /// Removes the lock, and the folder if that was all. Where the user put something beside it
    /// the folder stays, which does no harm.
    pub(crate) fn leave(&self) {
        let folder = self.storage.folder();
        let lock = folder.join(LOCK);
        // One of ours is empty.
        if lock.metadata().is_ok_and(|lock| lock.len() == 0) {
            let _ = fs::remove_file(lock);
        }
        let _ = fs::remove_dir(folder);
    }
}

/// What was removed, or was not there.
fn gone(path: &Path, removed: io::Result<()>) -> Result<(), Failure> {
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Failure::io(path, error)),
        _ => Ok(()),
    }
}

/// Why the folder's lock cannot be had, and what to do: some disks in a network have no locks.
fn not_locked(path: &Path, error: &io::Error) -> Failure {
    use ErrorKind::{PermissionDenied, ReadOnlyFilesystem, StorageFull};
    match error.kind() {
        PermissionDenied | ReadOnlyFilesystem | StorageFull => {
            Failure::making(path, error, ELSEWHERE)
        }
        _ => Failure::io(path, format!("{error}: {ELSEWHERE}, on a disk of this machine")),
    }
}

/// Why a folder is no place for progress, and what to do.
fn not_own(path: &Path, why: NotOwn) -> Failure {
    let name = path.display();
    let mend = match why {
        NotOwn::OpenTo(_) => {
            format!("take the right from them (chmod go-w {name}) if none of them used it, ")
        }
        NotOwn::Of(_) => {
            format!(
                "make it yours (chown -R) if you trust what is in it, remove it (rm -r {name}), "
            )
        }
        _ => format!("remove it (rm {name}), "),
    };
    Failure::usage(format!(
        "{name} is no folder for progress: {why}, and whoever changes the files of a run decides what comes of it: \
         {mend}or name another --workdir"
    ))
}

/// Whether a folder of coins or hints holds what a run puts there and nothing else. One that is not
/// there does.
fn is_made_by_a_run(folder: &Path) -> bool {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return error.kind() == ErrorKind::NotFound,
    };
    let ours = ["lock", "store", "store.tmp", "tree", "set.dat", "set.dat.incomplete", "work"];
    entries.flatten().all(|entry| ours.iter().any(|name| entry.file_name() == *name))
}

/// Where progress is kept if the user does not say: beside the first output, else in the current
/// folder under the names of the chain and the hints.
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
