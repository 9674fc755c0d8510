//! [`Owner`]: the owner of a folder, to whom a folder made by this process is given.
//!
//! A node runs as its own user, often not the one that runs this program: that user could not open a chainstate
//! that root made. So the new folder gets the owner, group and modes of the folder that it replaces, and a
//! folder that root makes inside another user's folder becomes that user's.
//!
//! Links are not followed, and only files of this process's user change their owner: the owner of the
//! surrounding folder could have put something else there meanwhile, such as a hard link to one of root's
//! files.

use super::parent;
use apus_storage::create_private_file;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RawMode, Stat};
use rustix::fs::{fchmod, fchown, fstat, fsync, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid};
use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The permission bits of a mode, for owner, group and others.
const RIGHTS: u32 = 0o777;

/// No folder of ours is nested deeper than this.
const DEPTH_MAX: usize = 8;

/// The owner and permissions of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    uid: u32,
    gid: u32,
    /// Mode of folders; `None` to leave their modes.
    folders: Option<u32>,
    /// Mode of files; `None` to leave their modes.
    files: Option<u32>,
}

impl Owner {
    /// Finds the owner for the folder that will be at `path`: the owner of the folder that is there, or, if
    /// root runs this, the owner of the surrounding folder. `None` if this process is that owner already.
    pub(super) fn of_place(path: &Path) -> io::Result<Option<Self>> {
        match path.symlink_metadata() {
            Ok(there) => Ok(Some(Self {
                uid: there.uid(),
                gid: there.gid(),
                folders: Some(there.mode() & RIGHTS),
                files: file_mode(path)?,
            })),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Err(_) => {
                let around = fs::metadata(parent(path))?;
                let gives = geteuid().is_root() && around.uid() != 0;
                let (uid, gid) = (around.uid(), around.gid());
                Ok(gives.then_some(Self { uid, gid, folders: None, files: None }))
            }
        }
    }

    /// Gives a folder that this process made, with its content, to this owner.
    pub(super) fn give(&self, folder: &Path) -> io::Result<()> {
        self.give_of(geteuid().as_raw(), folder)
    }

    /// Makes this process the owner again of a folder that [`given`] accepted.
    pub(super) fn take_back(&self, folder: &Path) -> io::Result<()> {
        let gid = folder.symlink_metadata()?.gid();
        let root = Self { uid: 0, gid, folders: None, files: None };
        root.give_of(self.uid, folder)
    }

    /// Changes the owner of the files and folders that belong to user `from`.
    fn give_of(&self, from: u32, folder: &Path) -> io::Result<()> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = openat(CWD, folder, flags, Mode::empty())?;
        self.give_folder(from, &folder, 0)
    }

    fn give_folder(&self, from: u32, folder: &OwnedFd, depth: usize) -> io::Result<()> {
        if depth > DEPTH_MAX {
            return Err(io::Error::other(
                "the folders are nested deeper than this program makes them",
            ));
        }
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            if ![&b"."[..], b".."].contains(&entry.file_name().to_bytes()) {
                self.give_entry(from, folder, entry.file_name(), depth)?;
            }
        }
        self.give_one(from, folder, self.folders)
    }

    fn give_entry(&self, from: u32, folder: &OwnedFd, name: &CStr, depth: usize) -> io::Result<()> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let entry = openat(folder, name, flags, Mode::empty())?;
        match FileType::from_raw_mode(fstat(&entry)?.st_mode) {
            FileType::Directory => self.give_folder(from, &entry, depth + 1),
            FileType::RegularFile => self.give_one(from, &entry, self.files),
            _ => Err(io::Error::other(format!("{} is not a file", name.to_string_lossy()))),
        }
    }

    fn give_one(&self, from: u32, file: impl AsFd, mode: Option<u32>) -> io::Result<()> {
        let there = fstat(&file)?;
        let is_file = FileType::from_raw_mode(there.st_mode) == FileType::RegularFile;
        let is_made_here = [from, self.uid].contains(&there.st_uid);
        if !is_made_here || is_file && there.st_nlink != 1 {
            return Err(io::Error::other("it contains something that was not made by this sync"));
        }
        self.chown(&file, &there)?;
        if let Some(mode) = mode.filter(|mode| *mode != there.st_mode & RIGHTS) {
            fchmod(&file, Mode::from_raw_mode(mode as RawMode))?;
        }
        // The change of owner must survive a power failure. Some network disks cannot sync folders.
        match fsync(&file) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) if !is_file => Ok(()),
            other => Ok(other?),
        }
    }

    fn chown(&self, file: impl AsFd, there: &Stat) -> io::Result<()> {
        if (there.st_uid, there.st_gid) == (self.uid, self.gid) {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        Ok(fchown(file, Some(uid), Some(gid))?)
    }
}

/// Returns the owner of `place` if root may have given that owner the folder, in whole or in part, before
/// root's sync was killed. `None` for other users, who cannot change owners, and if anyone else could have put
/// the folder there.
pub(super) fn given(folder: &Path, place: &Path) -> io::Result<Option<Owner>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let Some(owner) = Owner::of_place(place)?.filter(|owner| owner.uid != 0) else {
        return Ok(None);
    };
    let (there, around) = (folder.symlink_metadata()?, fs::metadata(parent(folder))?);
    let is_closed = around.uid() == owner.uid || around.uid() == 0 && around.mode() & 0o022 == 0;
    let is_given = there.is_dir() && [0, owner.uid].contains(&there.uid()) && is_closed;
    Ok(is_given.then_some(owner))
}

/// Returns the mode of a database's files, taken from `CURRENT` or else from any file.
fn file_mode(folder: &Path) -> io::Result<Option<u32>> {
    let mode = |path: &Path| {
        let there = path.symlink_metadata().ok().filter(fs::Metadata::is_file);
        there.map(|there| there.mode() & RIGHTS)
    };
    if let Some(mode) = mode(&folder.join("CURRENT")) {
        return Ok(Some(mode));
    }
    for entry in fs::read_dir(folder)? {
        if let Some(mode) = mode(&entry?.path()) {
            return Ok(Some(mode));
        }
    }
    Ok(None)
}

/// Returns user and group of the folder at `path`, if this process cannot make them the owners of its
/// replacement. It tries this with a folder next to `path`, because more than the user's id decides it.
pub fn owner_out_of_reach(path: &Path) -> io::Result<Option<(u32, u32)>> {
    let Ok(there) = path.symlink_metadata() else { return Ok(None) };
    let owner = Owner { uid: there.uid(), gid: there.gid(), folders: None, files: None };
    let name = parent(path).join(format!(".apus-{}.incomplete", std::process::id()));
    let probe = create_private_file(&name)?;
    let given = fstat(&probe).map_err(io::Error::from).and_then(|it| owner.chown(&probe, &it));
    unlinkat(CWD, &name, AtFlags::empty())?;
    // These errors mean that the user lacks the permission, or that the disk has no users and groups.
    let refusals = [Errno::PERM, Errno::ACCESS, Errno::INVAL].map(|it| Some(it.raw_os_error()));
    match given {
        Ok(()) => Ok(None),
        Err(error) if refusals.contains(&error.raw_os_error()) => Ok(Some((owner.uid, owner.gid))),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
