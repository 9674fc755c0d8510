//! What a place on a disk can do, tried before hours of work are spent on what comes there.
//!
//! Disks in a network, layers of a container and folders that are disks of their own look like any other, and refuse
//! at the end what only the end needs: a lock, to be made durable, another name.

use crate::own::{create_file, make_private_dir, parent, probe_name};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statfs, statx};
use rustix::io::Errno;
use std::fmt::{self, Display, Formatter};
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The kind of an overlay, as Linux counts kinds of file systems.
const OVERLAY: i128 = 0x794c_7630;

/// What a place cannot do.
#[derive(Debug)]
pub enum Lacking {
    /// Nothing can be written.
    Files(io::Error),
    /// What is written cannot be made durable.
    Durable(io::Error),
    /// Nothing can be locked.
    Locks(io::Error),
    /// A file cannot get another name.
    Renames(io::Error),
}

impl Display for Lacking {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files(error) => write!(f, "nothing can be written there ({error})"),
            Self::Durable(error) => write!(f, "nothing can be made durable there ({error})"),
            Self::Locks(error) => write!(f, "nothing can be locked there ({error})"),
            Self::Renames(error) => write!(f, "a file cannot get another name there ({error})"),
        }
    }
}

/// Whether new names can be made durable: some disks in a network refuse that for folders, and see to it themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameDurability {
    /// By asking for it.
    Durable,
    /// By nothing that a program can do.
    Unknown,
}

/// Tries in a folder all that is done with an output, and leaves nothing there. `locks` is for what is locked.
pub fn try_place(folder: &Path, locks: bool) -> Result<NameDurability, Lacking> {
    let (name, renamed) = (probe_name(folder), probe_name(folder));
    let mut file = create_file(&name).map_err(Lacking::Files)?;
    let tried = file
        .write_all(b"apus\n")
        .map_err(Lacking::Files)
        .and_then(|()| file.sync_all().map_err(Lacking::Durable))
        .and_then(|()| if locks { try_lock(&file) } else { Ok(()) })
        .and_then(|()| fs::rename(&name, &renamed).map_err(Lacking::Renames))
        .and_then(|()| try_names(folder).map_err(Lacking::Durable));
    // One of the two is there.
    let _ = fs::remove_file(if tried.is_ok() || renamed.exists() { renamed } else { name });
    tried
}

/// The same of a folder with a file of it that is open to be written, and locked.
pub fn try_opened(file: &File, folder: &Path) -> Result<NameDurability, Lacking> {
    file.sync_all().map_err(Lacking::Durable)?;
    try_names(folder).map_err(Lacking::Durable)
}

/// The same of what can be tried without writing anything: whether there are locks, and what becomes of names.
pub fn look_at_place(folder: &Path) -> Result<NameDurability, Lacking> {
    let open = File::open(folder).map_err(Lacking::Files)?;
    // A lock that others may share does no harm. Some systems have none for folders.
    match open.try_lock_shared() {
        Err(TryLockError::Error(error)) if has_no_locks(&error) => Err(Lacking::Locks(error)),
        _ => try_names(folder).map_err(Lacking::Durable),
    }
}

fn try_lock(file: &File) -> Result<(), Lacking> {
    match file.try_lock() {
        Ok(()) | Err(TryLockError::WouldBlock) => Ok(()),
        Err(TryLockError::Error(error)) => Err(Lacking::Locks(error)),
    }
}

/// Whether a lock was refused since the file system has none.
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

/// Core goes on where a folder cannot be made durable (its LevelDB, `util/env_posix.cc`), and so does this.
fn is_not_for_folders(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::INVAL | Errno::OPNOTSUPP))
}

/// Makes the names in a folder durable, where its file system does that for folders.
pub fn sync_names_of(folder: &Path) -> io::Result<()> {
    try_names(folder).map(drop)
}

/// Whether another disk, or a folder of another place, is mounted at this folder.
pub fn is_mount(path: &Path) -> io::Result<bool> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    if let Ok(there) = statx(CWD, path, flags, StatxFlags::empty())
        && there.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)
    {
        return Ok(there.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    }
    Ok(path.symlink_metadata()?.dev() != fs::metadata(parent(path))?.dev())
}

/// Why a folder cannot be moved aside.
#[derive(Debug)]
pub enum Unmovable {
    /// Something is mounted there.
    Mount,
    /// It lies in a lower layer of an overlay, whose folders cannot get other names.
    LowerLayer,
    /// Anything else that the system says.
    Other(io::Error),
}

/// Whether a folder could get another name beside it. It keeps its own: the system is asked to put it in place of a
/// folder that is not empty, which it never does, and says which reason it has for that. A file system that does it all the
/// same has it undone.
pub fn expect_movable(folder: &Path) -> Result<(), Unmovable> {
    if is_mount(folder).map_err(Unmovable::Other)? {
        return Err(Unmovable::Mount);
    }
    let target = probe_name(parent(folder));
    make_private_dir(&target).map_err(Unmovable::Other)?;
    let within = target.join("file");
    let tried = create_file(&within).and_then(|_| fs::rename(folder, &target));
    if tried.is_ok() {
        return fs::rename(&target, folder).map_err(Unmovable::Other);
    }
    let _ = fs::remove_file(within).and_then(|()| fs::remove_dir(&target));
    match tried.map_err(|error| (Errno::from_io_error(&error), error)) {
        Ok(()) | Err((Some(Errno::NOTEMPTY | Errno::EXIST), _)) => Ok(()),
        Err((Some(Errno::BUSY), _)) => Err(Unmovable::Mount),
        Err((Some(Errno::XDEV), _)) if is_overlay(folder) => Err(Unmovable::LowerLayer),
        Err((_, error)) => Err(Unmovable::Other(error)),
    }
}

/// The same without writing anything, as far as that can be told. Only overlays are asked by a try: their answer is known.
pub fn expect_movable_by_looks(folder: &Path) -> Result<(), Unmovable> {
    match is_mount(folder) {
        Ok(true) => Err(Unmovable::Mount),
        _ if is_overlay(folder) => match expect_movable(folder) {
            // Who only looks need not be who may write.
            Err(Unmovable::Other(error)) if is_refusal(&error) => Ok(()),
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
