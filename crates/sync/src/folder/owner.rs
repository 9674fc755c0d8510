//! [`Owner`]: whose a folder is, and giving one that was made here to them.
//!
//! A node runs as a user of its own, and the user of this program need not be that one: root makes a
//! chainstate for a node that could not open it. So what takes a folder's place gets its owner, its
//! group and its modes, and what root makes in another user's folder becomes that user's.
//!
//! No link is followed, and only what this process made is given away: the owner of the folder around
//! could have put something else there meanwhile, a second name of a file of root's, say.

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

/// What may be asked of a mode: the rights of owner, group and others.
const RIGHTS: u32 = 0o777;

/// No folder of ours has others within others as deep as this.
const DEPTH_MAX: usize = 8;

/// Who has a folder, with which rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    uid: u32,
    gid: u32,
    /// Mode of folders; as they are where none is to be kept.
    folders: Option<u32>,
    /// Mode of files.
    files: Option<u32>,
}

impl Owner {
    /// Of what takes the place of `path`: the owner of the folder that is there, otherwise, where root
    /// runs this, that of the folder around. None where that is this process's own.
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

    /// Gives a folder that this process made, and all in it, to this owner.
    pub(super) fn give(&self, folder: &Path) -> io::Result<()> {
        self.give_of(geteuid().as_raw(), folder)
    }

    /// Takes back what [`given`] found.
    pub(super) fn take_back(&self, folder: &Path) -> io::Result<()> {
        let gid = folder.symlink_metadata()?.gid();
        let root = Self { uid: 0, gid, folders: None, files: None };
        root.give_of(self.uid, folder)
    }

    /// The same with what the user `from` has of it.
    fn give_of(&self, from: u32, folder: &Path) -> io::Result<()> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = openat(CWD, folder, flags, Mode::empty())?;
        self.give_folder(from, &folder, 0)
    }

    fn give_folder(&self, from: u32, folder: &OwnedFd, depth: usize) -> io::Result<()> {
        if depth > DEPTH_MAX {
            return Err(io::Error::other("there are more folders in one another than were made"));
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
            _ => Err(io::Error::other(format!("{} is no file", name.to_string_lossy()))),
        }
    }

    fn give_one(&self, from: u32, file: impl AsFd, mode: Option<u32>) -> io::Result<()> {
        let there = fstat(&file)?;
        let is_file = FileType::from_raw_mode(there.st_mode) == FileType::RegularFile;
        let is_made_here = [from, self.uid].contains(&there.st_uid);
        if !is_made_here || is_file && there.st_nlink != 1 {
            return Err(io::Error::other("something is in it that was not made by this run"));
        }
        self.chown(&file, &there)?;
        if let Some(mode) = mode.filter(|mode| *mode != there.st_mode & RIGHTS) {
            fchmod(&file, Mode::from_raw_mode(mode as RawMode))?;
        }
        // What a power cut leaves is to be theirs, too. Some disks in a network do that for no folder.
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

/// The owner of `place` to whom root may have given a folder, in whole or in part, before it was killed. None but root gives
/// folders to others. None where others than that owner could have put the folder there.
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

/// The mode of a database's files, by the one that each has, or of any file.
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

/// Whose the folder at `path` is, if this process could not give them another in its place: the
/// numbers of user and group. Tried beside it, since more than one's name decides about that.
pub fn owner_out_of_reach(path: &Path) -> io::Result<Option<(u32, u32)>> {
    let Ok(there) = path.symlink_metadata() else { return Ok(None) };
    let owner = Owner { uid: there.uid(), gid: there.gid(), folders: None, files: None };
    let name = parent(path).join(format!(".apus-{}.incomplete", std::process::id()));
    let probe = create_private_file(&name)?;
    let given = fstat(&probe).map_err(io::Error::from).and_then(|it| owner.chown(&probe, &it));
    unlinkat(CWD, &name, AtFlags::empty())?;
    // What systems say to a user that may not, and where a user or group means nothing.
    let refusals = [Errno::PERM, Errno::ACCESS, Errno::INVAL].map(|it| Some(it.raw_os_error()));
    match given {
        Ok(()) => Ok(None),
        Err(error) if refusals.contains(&error.raw_os_error()) => Ok(Some((owner.uid, owner.gid))),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
