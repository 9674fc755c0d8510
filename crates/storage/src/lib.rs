//! [`Storage`]: the trait through which all durable state reaches a disk.
//!
//! It is a flat folder of named files that promises exactly what survives a crash, so that tests can
//! substitute a faulty disk and stop at every sync point. It knows no formats and no locks. The user's input
//! files are not read through it.
//!
//! Promises and limits:
//! - Bytes written are durable only after [`StorageFile::sync`], or [`Storage::sync`] of their file.
//! - A new name, a rename or a removal is durable only after [`Storage::sync_names`].
//! - A rename replaces an existing file atomically: readers see the old or the new, never a mixture.
//! - Other users of the machine can never read the files in a folder of the program's own, from the moment of
//!   their creation. On a file system without modes, its own rules apply.
//! - It never creates a file, or opens one for writing, through another user's link or name: see
//!   [`create_file`] and the functions next to it.

#![allow(clippy::disallowed_methods, reason = "this crate checks who owns a file")]

pub mod lock;
mod own;
pub mod place;

pub use own::{
    OwnerError, Ownership, create_file, create_output_dir, create_private_dir, create_private_file,
    expect_own_draft, expect_own_folder, expect_own_output, find_of_others, follow_own_links,
    is_open_to_all, make_private_dir, open_or_create, open_own_file, open_to_append, open_to_lock,
    parent, remove_draft,
};

use own::{DraftFile, open_to_read, replace_file, replace_private_file};
use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A folder for durable state.
pub trait Storage: Send + Sync {
    /// Creates an empty file, replacing any file of that name.
    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>>;
    /// Makes the bytes of a file that was written and closed durable.
    fn sync(&self, name: &str) -> io::Result<()>;
    /// Opens a file for reading from `offset` on.
    fn open(&self, name: &str, offset: u64) -> io::Result<Box<dyn Read + Send>>;
    /// Renames a file, replacing any file of the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file; a missing one is not an error.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes all names created, renamed and removed so far durable.
    fn sync_names(&self) -> io::Result<()>;
    /// Returns the names of the existing files, sorted.
    fn names(&self) -> io::Result<Vec<String>>;
    /// The length of a file in bytes.
    fn len(&self, name: &str) -> io::Result<u64>;
    /// Returns the name of a file for messages to people.
    fn describe(&self, name: &str) -> String {
        name.to_owned()
    }
}

/// A file being written.
pub trait StorageFile: Write + Send {
    /// Makes the bytes written so far durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// The temporary name of a file until it is complete and durable.
pub fn draft_name(name: &str) -> String {
    format!("{name}.tmp")
}

/// Writes a whole file so that a crash leaves the old content or the new, never a mixture.
pub fn write_atomically(storage: &dyn Storage, name: &str, bytes: &[u8]) -> io::Result<()> {
    write_atomically_by(storage, name, |file| file.write_all(bytes))
}

/// Like [`write_atomically`], for a file that `write` writes in parts.
pub fn write_atomically_by(
    storage: &dyn Storage,
    name: &str,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let draft = draft_name(name);
    let mut file = storage.create(&draft)?;
    write(&mut *file)?;
    file.sync()?;
    drop(file);
    storage.rename(&draft, name)?;
    storage.sync_names()
}

/// Writes a whole file through the temporary file `draft`, so that a crash leaves the old content or the new.
pub fn publish_file(path: &Path, draft: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = replace_file(draft)?;
    file.write_all(bytes)?;
    file.sync()?;
    fs::rename(draft, path)?;
    place::sync_names_of(parent(path))
}

/// Writes a whole new file that only its owner can access, through the temporary file `draft`. Returns false
/// if another program created the file in the meantime, and keeps that program's file.
pub fn publish_new_private_file(path: &Path, draft: &Path, bytes: &[u8]) -> io::Result<bool> {
    let mut file = replace_private_file(draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    let placed = fs::hard_link(draft, path);
    fs::remove_file(draft)?;
    match placed {
        Ok(()) => place::sync_names_of(parent(path)).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads a whole file. Refuses a file larger than `limit` bytes before allocating memory.
pub fn read_whole(storage: &dyn Storage, name: &str, limit: u64) -> io::Result<Vec<u8>> {
    let length = storage.len(name)?;
    if length > limit {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "{} has {length} bytes, more than the {limit} expected",
                storage.describe(name)
            ),
        ));
    }
    let mut bytes = Vec::with_capacity(length as usize);
    storage.open(name, 0)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The permission bits of the group and all other users.
const OF_OTHERS: u32 = 0o077;

/// A folder of a real file system.
#[derive(Debug, Clone)]
pub struct DirStorage {
    folder: PathBuf,
    private: bool,
}

impl DirStorage {
    /// Uses `folder`, which must exist; new files get the user's default permissions.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), private: false }
    }

    /// Uses `folder`, which must exist; other users cannot read new files.
    pub fn private(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), private: true }
    }

    /// Removes other users' permissions from existing files with these names, because earlier versions
    /// created them with open permissions. Skips links, and files whose permissions the system does not let
    /// us change.
    pub fn close_to_others(&self, names: impl Fn(&str) -> bool) -> io::Result<()> {
        for name in self.names()?.iter().filter(|name| names(name)) {
            let path = self.path(name);
            let there = fs::symlink_metadata(&path)?;
            let mode = there.permissions().mode();
            if !there.is_symlink() && mode & OF_OTHERS != 0 {
                let closed = fs::Permissions::from_mode(mode & 0o7777 & !OF_OTHERS);
                // Fails on a file system without modes, and for another user's file.
                let _ = fs::set_permissions(&path, closed);
            }
        }
        Ok(())
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, name: &str) -> PathBuf {
        debug_assert!(!name.contains('/'), "storage names are flat: {name}");
        self.folder.join(name)
    }
}

impl StorageFile for fs::File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

impl StorageFile for DraftFile {
    fn sync(&mut self) -> io::Result<()> {
        Self::sync(self)
    }
}

impl Storage for DirStorage {
    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
        let path = self.path(name);
        // Replace an existing file: truncating it would preserve its mode.
        Ok(match self.private {
            true => Box::new(replace_private_file(&path)?),
            false => Box::new(replace_file(&path)?),
        })
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        // Some systems sync only files opened for writing.
        open_own_file(&self.path(name))?.sync_data()
    }

    fn open(&self, name: &str, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        let mut file = open_to_read(&self.path(name))?;
        file.seek(SeekFrom::Start(offset))?;
        Ok(Box::new(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn sync_names(&self) -> io::Result<()> {
        place::sync_names_of(&self.folder)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn len(&self, name: &str) -> io::Result<u64> {
        Ok(fs::metadata(self.path(name))?.len())
    }

    fn describe(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn private_files_are_private_from_the_start() {
        let sandbox = tempfile::tempdir().unwrap();
        let folder = sandbox.path().join("new/work");
        create_private_dir(&folder).unwrap();
        create_private_dir(&folder).unwrap();
        assert_eq!(mode(&folder), 0o700);
        let storage = DirStorage::private(&folder);
        let mut file = storage.create("a").unwrap();
        assert_eq!(mode(&folder.join("a")), 0o600);
        file.write_all(b"1").unwrap();
        write_atomically(&storage, "b", b"2").unwrap();
        assert_eq!(mode(&folder.join("b")), 0o600);
        // A replaced file is a new file, with a new mode.
        set_mode(&folder.join("a"), 0o666);
        let mut file = storage.create("a").unwrap();
        file.write_all(b"3").unwrap();
        assert_eq!(
            (mode(&folder.join("a")), fs::read(folder.join("a")).unwrap()),
            (0o600, b"3".to_vec())
        );
        fs::write(folder.join("file"), "").unwrap();
        assert!(create_private_dir(&folder.join("file")).is_err());
    }

    #[test]
    fn outputs_get_the_users_default_permissions() {
        let sandbox = tempfile::tempdir().unwrap();
        fs::write(sandbox.path().join("plain"), "").unwrap();
        DirStorage::new(sandbox.path()).create("out").unwrap();
        assert_eq!(mode(&sandbox.path().join("out")), mode(&sandbox.path().join("plain")));
    }

    #[test]
    fn open_permissions_are_removed_except_from_links_and_other_names() {
        let sandbox = tempfile::tempdir().unwrap();
        let path = |name: &str| sandbox.path().join(name);
        for name in ["plan", "segment", "letter", "target"] {
            fs::write(path(name), "").unwrap();
            set_mode(&path(name), 0o644);
        }
        set_mode(&path("segment"), 0o640);
        fs::create_dir(path("coins")).unwrap();
        set_mode(&path("coins"), 0o755);
        std::os::unix::fs::symlink("target", path("link")).unwrap();
        let storage = DirStorage::private(sandbox.path());
        storage.close_to_others(|name| !["letter", "target"].contains(&name)).unwrap();
        let modes = ["plan", "segment", "coins", "letter", "target"].map(|name| mode(&path(name)));
        assert_eq!(modes, [0o600, 0o600, 0o700, 0o644, 0o644]);
    }
}
