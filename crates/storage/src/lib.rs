//! [`Storage`]: the one door through which durable state reaches a disk.
//!
//! A flat folder of named files with exactly the guarantees that a crash leaves standing, so that
//! tests can put a faulty disk behind the same door and stop the world at every sync point. It
//! knows no formats and no locks; input files of the user's do not come through here.
//!
//! What is promised and what is not:
//! - Bytes written are durable only after [`StorageFile::sync`], or [`Storage::sync`] of their file.
//! - A new name, a rename or a removal is durable only after [`Storage::sync_names`].
//! - A rename replaces an existing file at once: readers see the old or the new, never a mixture.
//! - In a folder of the program's own, other users of the machine can read nothing from the moment that
//!   it is there. A file system without modes keeps to its own.
//! - No file is made or opened to be written where another user leads: see [`create_file`] and what stands beside it.

#![allow(clippy::disallowed_methods, reason = "here it is seen whose a file is")]

pub mod lock;
mod own;
pub mod place;

pub use own::{
    NotOwn, Owned, create_file, create_output_dir, create_private_dir, create_private_file,
    expect_own_draft, expect_own_folder, expect_own_output, find_of_others, follow_own_links,
    is_open_to_all, make_private_dir, open_or_create, open_own_file, open_to_append, open_to_lock,
    parent, replace_file,
};

use own::{open_to_read, replace_private_file};
use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A folder for durable state.
pub trait Storage: Send + Sync {
    /// Starts an empty file, replacing one of that name.
    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>>;
    /// Makes the bytes of a file durable that was written and closed.
    fn sync(&self, name: &str) -> io::Result<()>;
    /// Opens a file to read from `offset` on.
    fn open(&self, name: &str, offset: u64) -> io::Result<Box<dyn Read + Send>>;
    /// Gives a file another name, replacing one of that name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file; one that is not there is no error.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes names durable: those created, renamed and removed so far.
    fn sync_names(&self) -> io::Result<()>;
    /// The files that are there, sorted.
    fn names(&self) -> io::Result<Vec<String>>;
    /// Length of a file in bytes.
    fn len(&self, name: &str) -> io::Result<u64>;
    /// What to call a file in a message to people.
    fn describe(&self, name: &str) -> String {
        name.to_owned()
    }
}

/// A file being written.
pub trait StorageFile: Write + Send {
    /// Makes the bytes written so far durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// What a file is called before it is whole and durable.
pub fn draft_name(name: &str) -> String {
    format!("{name}.tmp")
}

/// Writes a whole file so that a crash leaves the old content or the new, never a part.
pub fn write_atomically(storage: &dyn Storage, name: &str, bytes: &[u8]) -> io::Result<()> {
    let draft = draft_name(name);
    let mut file = storage.create(&draft)?;
    file.write_all(bytes)?;
    file.sync()?;
    drop(file);
    storage.rename(&draft, name)?;
    storage.sync_names()
}

/// Writes a whole file so that a crash leaves the old content or the new, by way of `draft`.
pub fn publish_file(path: &Path, draft: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = replace_file(draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(draft, path)?;
    place::sync_names_of(parent(path))
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
        Ok(()) => place::sync_names_of(parent(path)).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads a whole file, refusing one larger than `limit` bytes before anything is allocated.
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

/// The rights of the group and of all other users to a file or folder.
const OF_OTHERS: u32 = 0o077;

/// A real folder of a file system.
#[derive(Debug, Clone)]
pub struct DirStorage {
    folder: PathBuf,
    private: bool,
}

impl DirStorage {
    /// Uses `folder`, which must exist, for files with the rights that the user gives new ones.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), private: false }
    }

    /// Uses `folder`, which must exist, for files that others may not read.
    pub fn private(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), private: true }
    }

    /// Takes their rights from others to what is there already under these names, as an earlier version
    /// left them. Links are left alone. Where the system does not let that be done, nothing is.
    pub fn close_to_others(&self, names: impl Fn(&str) -> bool) -> io::Result<()> {
        for name in self.names()?.iter().filter(|name| names(name)) {
            let path = self.path(name);
            let there = fs::symlink_metadata(&path)?;
            let mode = there.permissions().mode();
            if !there.is_symlink() && mode & OF_OTHERS != 0 {
                let closed = fs::Permissions::from_mode(mode & 0o7777 & !OF_OTHERS);
                // On a file system without modes, or a file of another user's.
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

impl Storage for DirStorage {
    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
        let path = self.path(name);
        // One that is there would keep its mode.
        let file = if self.private { replace_private_file(&path) } else { replace_file(&path) };
        Ok(Box::new(file?))
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        // Some systems sync only what could be written.
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
    fn what_is_private_is_so_from_the_beginning() {
        let desk = tempfile::tempdir().unwrap();
        let folder = desk.path().join("new/work");
        create_private_dir(&folder).unwrap();
        create_private_dir(&folder).unwrap();
        assert_eq!(mode(&folder), 0o700);
        let storage = DirStorage::private(&folder);
        let mut file = storage.create("a").unwrap();
        assert_eq!(mode(&folder.join("a")), 0o600);
        file.write_all(b"1").unwrap();
        write_atomically(&storage, "b", b"2").unwrap();
        assert_eq!(mode(&folder.join("b")), 0o600);
        // One that is replaced is a new one.
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
    fn outputs_have_the_rights_that_the_user_gives() {
        let desk = tempfile::tempdir().unwrap();
        fs::write(desk.path().join("plain"), "").unwrap();
        DirStorage::new(desk.path()).create("out").unwrap();
        assert_eq!(mode(&desk.path().join("out")), mode(&desk.path().join("plain")));
    }

    #[test]
    fn what_was_open_is_closed_but_for_links_and_others_files() {
        let desk = tempfile::tempdir().unwrap();
        let path = |name: &str| desk.path().join(name);
        for name in ["plan", "segment", "letter", "elsewhere"] {
            fs::write(path(name), "").unwrap();
            set_mode(&path(name), 0o644);
        }
        set_mode(&path("segment"), 0o640);
        fs::create_dir(path("coins")).unwrap();
        set_mode(&path("coins"), 0o755);
        std::os::unix::fs::symlink("elsewhere", path("link")).unwrap();
        let storage = DirStorage::private(desk.path());
        storage.close_to_others(|name| !["letter", "elsewhere"].contains(&name)).unwrap();
        let modes =
            ["plan", "segment", "coins", "letter", "elsewhere"].map(|name| mode(&path(name)));
        assert_eq!(modes, [0o600, 0o600, 0o700, 0o644, 0o644]);
    }
}
