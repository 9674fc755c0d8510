//! Tests what a folder's file system can do, before hours of work depend on it.
//!
//! Network disks, container layers and mounted folders look like any other folder, but may fail at the end of
//! a sync, on operations that only the end needs: locking, syncing or renaming.

use crate::own::{create_file, make_private_dir, parent, probe_name};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statfs, statx};
use rustix::io::Errno;
use std::fmt::{self, Display, Formatter};
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The type number of overlayfs in Linux.
const OVERLAY: i128 = 0x794c_7630;

/// An operation that a folder does not support.
#[derive(Debug)]
pub enum MissingAbility {
    /// Writing files.
    Files(io::Error),
    /// Making written bytes durable.
    Durable(io::Error),
    /// Locking files.
    Locks(io::Error),
    /// Renaming files.
    Renames(io::Error),
}

impl Display for MissingAbility {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files(error) => write!(f, "nothing can be written there ({error})"),
            Self::Durable(error) => write!(f, "files cannot be synced there ({error})"),
            Self::Locks(error) => write!(f, "files cannot be locked there ({error})"),
            Self::Renames(error) => write!(f, "files cannot be renamed there ({error})"),
        }
    }
}

/// Whether a program can make new names durable. Some network disks refuse to sync folders, and make names
/// durable themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameDurability {
    /// A sync of the folder makes them durable.
    Durable,
    /// The folder cannot be synced.
    Unknown,
}

/// Tries all operations that an output needs in a folder, and leaves nothing behind. `locks` includes
/// locking.
pub fn try_place(folder: &Path, locks: bool) -> Result<NameDurability, MissingAbility> {
    let (name, renamed) = (probe_name(folder), probe_name(folder));
    let mut file = create_file(&name).map_err(MissingAbility::Files)?;
    let tried = file
        .write_all(b"apus\n")
        .map_err(MissingAbility::Files)
        .and_then(|()| file.sync_all().map_err(MissingAbility::Durable))
        .and_then(|()| if locks { try_lock(&file) } else { Ok(()) })
        .and_then(|()| fs::rename(&name, &renamed).map_err(MissingAbility::Renames))
        .and_then(|()| try_names(folder).map_err(MissingAbility::Durable));
    // Exactly one of the two exists.
    let _ = fs::remove_file(if tried.is_ok() || renamed.exists() { renamed } else { name });
    tried
}

/// Like [`try_place`], for a folder with a file that is already open for writing and locked.
pub fn try_opened(file: &File, folder: &Path) -> Result<NameDurability, MissingAbility> {
    file.sync_all().map_err(MissingAbility::Durable)?;
    try_names(folder).map_err(MissingAbility::Durable)
}

/// Like [`try_place`], but writes nothing: tests only locking, and syncing of names.
pub fn look_at_place(folder: &Path) -> Result<NameDurability, MissingAbility> {
    let open = File::open(folder).map_err(MissingAbility::Files)?;
    // A shared lock does no harm. Some systems cannot lock folders.
    match open.try_lock_shared() {
        Err(TryLockError::Error(error)) if has_no_locks(&error) => {
            Err(MissingAbility::Locks(error))
        }
        _ => try_names(folder).map_err(MissingAbility::Durable),
    }
}

fn try_lock(file: &File) -> Result<(), MissingAbility> {
    match file.try_lock() {
        Ok(()) | Err(TryLockError::WouldBlock) => Ok(()),
        Err(TryLockError::Error(error)) => Err(MissingAbility::Locks(error)),
    }
}

/// Returns whether locking failed because the file system does not support it.
fn has_no_locks(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS))
}

fn try_names(folder: &Path) -> io::Result<NameDurability> {
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Ok(()) => Ok(NameDurability::Durable),
        Err(error) if is_not_for_folders(&error) => Ok(NameDurability::Unknown),
        Err(error) => Err(error),
    }
}

/// Like Core (its LevelDB, `util/env_posix.cc`), continues if the system cannot sync a folder.
fn is_not_for_folders(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::INVAL | Errno::OPNOTSUPP))
}

/// Makes the names in a folder durable, if its file system supports that for folders.
pub fn sync_names_of(folder: &Path) -> io::Result<()> {
    try_names(folder).map(drop)
}

/// Returns whether another disk or folder is mounted at this folder.
pub fn is_mount(path: &Path) -> io::Result<bool> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    if let Ok(there) = statx(CWD, path, flags, StatxFlags::empty())
        && there.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)
    {
        return Ok(there.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    }
    Ok(path.symlink_metadata()?.dev() != fs::metadata(parent(path))?.dev())
}

/// Why a folder cannot be renamed.
#[derive(Debug)]
pub enum MoveAsideError {
    /// A disk or folder is mounted on it.
    Mount,
    /// It is in a lower layer of an overlay, where folders cannot be renamed.
    LowerLayer,
    /// The system returned another error.
    Other(io::Error),
}

/// Checks that a folder could be renamed within its parent, without renaming it: asks the system to replace a
/// folder that is not empty with it. The system always refuses that, and its error shows whether a normal
/// rename would work. If a file system obeys nevertheless, this function undoes the rename.
pub fn expect_movable(folder: &Path) -> Result<(), MoveAsideError> {
    if is_mount(folder).map_err(MoveAsideError::Other)? {
        return Err(MoveAsideError::Mount);
    }
    let target = probe_name(parent(folder));
    make_private_dir(&target).map_err(MoveAsideError::Other)?;
    let within = target.join("file");
    let tried = create_file(&within).and_then(|_| fs::rename(folder, &target));
    if tried.is_ok() {
        return fs::rename(&target, folder).map_err(MoveAsideError::Other);
    }
    let _ = fs::remove_file(within).and_then(|()| fs::remove_dir(&target));
    match tried.map_err(|error| (Errno::from_io_error(&error), error)) {
        Ok(()) | Err((Some(Errno::NOTEMPTY | Errno::EXIST), _)) => Ok(()),
        Err((Some(Errno::BUSY), _)) => Err(MoveAsideError::Mount),
        Err((Some(Errno::XDEV), _)) if is_overlay(folder) => Err(MoveAsideError::LowerLayer),
        Err((_, error)) => Err(MoveAsideError::Other(error)),
    }
}

/// Like [`expect_movable`], but writes nothing if possible: it tries only overlays, because it knows how
/// those answer.
pub fn expect_movable_by_looks(folder: &Path) -> Result<(), MoveAsideError> {
    match is_mount(folder) {
        Ok(true) => Err(MoveAsideError::Mount),
        _ if is_overlay(folder) => match expect_movable(folder) {
            // This user can only read here; another user may be able to write.
            Err(MoveAsideError::Other(error)) if is_refusal(&error) => Ok(()),
            other => other,
        },
        _ => Ok(()),
    }
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

fn is_overlay(folder: &Path) -> bool {
    statfs(folder).is_ok_and(|it| i128::from(it.f_type) == OVERLAY)
}

#[cfg(test)]
mod tests;
