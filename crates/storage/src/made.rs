//! Making files and folders, and opening files to write: nothing else in the program does either.
//!
//! A new file is new: no link is followed, and what another user put there is never written to. What a run of ours left
//! is taken over only where it is a plain file of ours, with no other name. Nothing here waits for a pipe, but for
//! [`open_to_append`].

use crate::owned::{self, NotOwn, follow_own_links, judge_file, judge_shared};
use rustix::fs::OFlags;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// So often a file is opened that comes and goes meanwhile.
const TRIES: u32 = 100;

/// The folder that a path lies in.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

pub(crate) fn to_create(private: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    // Without rights that the user takes from all new files.
    options.create_new(true).mode(if private { 0o600 } else { 0o666 });
    options
}

/// Makes a file that is not there, with the rights that the user gives new ones.
pub fn create_file(path: &Path) -> io::Result<File> {
    to_create(false).write(true).open(path)
}

/// Makes a file that is not there, for its owner alone.
pub fn create_private_file(path: &Path) -> io::Result<File> {
    to_create(true).write(true).open(path)
}

/// Makes a folder that is not there, into which others may not look.
pub fn make_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)
}

/// The name of a file that is made for a moment, to see what comes of it.
pub(crate) fn probe_name(folder: &Path) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    folder.join(format!(".apus-{}-{number}.incomplete", std::process::id()))
}

/// To open what is there: no link, and without waiting.
fn of_existing() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    options
}

/// Makes an empty file, in place of one that a run of ours left.
pub fn replace_file(path: &Path) -> io::Result<File> {
    remove_own_file(path)?;
    create_file(path)
}

/// The same, for its owner alone.
pub(crate) fn replace_private_file(path: &Path) -> io::Result<File> {
    remove_own_file(path)?;
    create_private_file(path)
}

/// Removes a file of ours; one that is not there is no error.
fn remove_own_file(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        // For what the system says of it.
        Ok(there) if there.is_dir() => fs::remove_file(path),
        Ok(there) => {
            judge_file(path, &there)?;
            fs::remove_file(path)
        }
    }
}

/// Opens a file of ours that is there, to read and write it.
pub fn open_own_file(path: &Path) -> io::Result<File> {
    let file = of_existing().read(true).write(true).open(path).map_err(explain_link)?;
    judge_file(path, &file.metadata()?)?;
    Ok(file)
}

/// Opens a file of ours to read and write it, or makes it: with the rights that the user gives new ones, or `private`.
pub fn open_or_create(path: &Path, private: bool) -> io::Result<File> {
    for _ in 0..TRIES {
        match to_create(private).read(true).write(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            other => return other,
        }
        match open_own_file(path) {
            // Another process removed it.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => return other,
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// Opens a file that is there to lock it, whoever has it.
pub fn open_to_lock(path: &Path) -> io::Result<File> {
    let file = of_existing().write(true).open(path).map_err(explain_link)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(NotOwn::Special.into()),
    }
}

/// Opens a file to read it: a link is followed, and a pipe is refused.
pub(crate) fn open_to_read(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    match file.metadata()?.file_type() {
        kind if kind.is_file() || kind.is_dir() => Ok(file),
        _ => Err(NotOwn::Special.into()),
    }
}

/// Opens a file to write behind what it has, and makes it where it is not there. It may be a pipe or a terminal, and be
/// named by links; but in a folder that others can write to only by those of this user or the administrator, and what
/// is there must be theirs, or of the folder's owner.
pub fn open_to_append(path: &Path) -> io::Result<File> {
    for _ in 0..TRIES {
        let path = follow_own_links(path)??;
        if owned::is_of_processes(&path) {
            return OpenOptions::new().append(true).open(&path);
        }
        match to_create(false).append(true).open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            other => return other,
        }
        let there = match path.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            other => other?,
        };
        judge_shared(&there, &fs::metadata(parent(&path))?)?;
        let mut options = OpenOptions::new();
        options.append(true).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let file = options.open(&path)?;
        if is_same(&file.metadata()?, &there) {
            return Ok(file);
        }
    }
    Err(io::Error::other("what lies there changes all the time"))
}

fn is_same(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// What the system says of a link that is not followed is that there are too many.
fn explain_link(error: io::Error) -> io::Error {
    match rustix::io::Errno::from_io_error(&error) {
        Some(rustix::io::Errno::LOOP) => NotOwn::Link.into(),
        _ => error,
    }
}

/// Makes a folder into which others may not look, and those around it as the system makes folders. One that is there
/// must be this user's own, and closed to what others write; it may be named by a link of this user's.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    let path = follow_own_links(path)??;
    if let Some(around) = path.parent() {
        fs::create_dir_all(around)?;
    }
    match make_private_dir(&path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            Ok(owned::expect_own_folder(&path)??)
        }
        other => other,
    }
}

/// Makes a folder for an output: with the rights that the user gives new ones, but that others never write to it.
pub fn create_output_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o775).create(path)
}

/// Writes a whole file so that a crash leaves the old content or the new, by way of `draft`.
pub fn publish_file(path: &Path, draft: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = replace_file(draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(draft, path)?;
    crate::place::sync_names_of(parent(path))
}

/// The same of a new file that is for its owner alone. Another program may make it at the same time: then that one's
/// stays, and the answer is false.
pub fn publish_new_private_file(path: &Path, draft: &Path, bytes: &[u8]) -> io::Result<bool> {
    let mut file = replace_private_file(draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    let placed = fs::hard_link(draft, path);
    fs::remove_file(draft)?;
    match placed {
        Ok(()) => crate::place::sync_names_of(parent(path)).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
