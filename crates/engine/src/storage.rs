//! [`Storage`]: the one door through which durable state reaches a disk.
//!
//! A flat folder of named files with exactly the guarantees that a crash leaves standing, so that
//! tests can put a faulty disk behind the same door and stop the world at every sync point. It
//! knows no formats and no locks; input files of the user's do not come through here.
//!
//! What is promised and what is not:
//! - Bytes written are durable only after [`StorageFile::sync`].
//! - A new name, a rename or a removal is durable only after [`Storage::sync_names`].
//! - A rename replaces an existing file at once: readers see the old or the new, never a mixture.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A folder for durable state.
pub trait Storage: Send + Sync {
    /// Starts an empty file, replacing one of that name.
    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>>;
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

/// Writes a whole file so that a crash leaves the old content or the new, never a part.
pub fn write_atomically(storage: &dyn Storage, name: &str, bytes: &[u8]) -> io::Result<()> {
    let draft = format!("{name}.tmp");
    let mut file = storage.create(&draft)?;
    file.write_all(bytes)?;
    file.sync()?;
    drop(file);
    storage.rename(&draft, name)?;
    storage.sync_names()
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

/// A real folder of a file system.
#[derive(Debug)]
pub struct DirStorage {
    folder: PathBuf,
}

impl DirStorage {
    /// Uses `folder`, which must exist.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
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
        Ok(Box::new(fs::File::create(self.path(name))?))
    }

    fn open(&self, name: &str, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        let mut file = fs::File::open(self.path(name))?;
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
        fs::File::open(&self.folder)?.sync_all()
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
