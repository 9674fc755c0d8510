//! [`MirrorStorage`]: a real folder with the sync points of a [`CrashStorage`].

use super::CrashStorage;
use apus_storage::{DirStorage, Storage, StorageFile};
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// A real folder, for files that a library also writes or reads by their paths, and a [`CrashStorage`] with the same
/// files, which crashes. Bytes that do not pass through a [`StorageFile`] reach it when the file is synced.
#[derive(Debug)]
pub struct MirrorStorage {
    folder: DirStorage,
    disk: CrashStorage,
}

impl MirrorStorage {
    /// Mirrors a folder, whose files are all durable.
    pub fn new(folder: &Path) -> Self {
        let files = fs::read_dir(folder).expect("a folder of the test").map(|entry| {
            let path = entry.expect("a readable folder").path();
            let name = path.file_name().expect("a file").to_string_lossy().into_owned();
            (name, fs::read(path).expect("a readable file"))
        });
        let disk = CrashStorage::holding(files.collect());
        Self { folder: DirStorage::new(folder), disk }
    }

    /// The disk, to let it crash.
    pub fn disk(&self) -> &CrashStorage {
        &self.disk
    }
}

impl Storage for MirrorStorage {
    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
        let mirrored = self.disk.create(name)?;
        let path = self.folder.folder().join(name);
        Ok(Box::new(MirrorFile { mirrored, real: self.folder.create(name)?, path, length: 0 }))
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        self.disk.sync(name)
    }

    fn open(&self, name: &str, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        self.disk.open(name, offset)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)?;
        self.folder.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)?;
        self.folder.remove(name)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.disk.sync_names()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.disk.names()
    }

    fn len(&self, name: &str) -> io::Result<u64> {
        self.disk.len(name)
    }
}

struct MirrorFile {
    mirrored: Box<dyn StorageFile>,
    real: Box<dyn StorageFile>,
    path: PathBuf,
    /// Bytes that the mirror has.
    length: usize,
}

impl Write for MirrorFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.mirrored.write_all(bytes)?;
        self.real.write_all(bytes)?;
        self.length += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.real.flush()
    }
}

impl StorageFile for MirrorFile {
    fn sync(&mut self) -> io::Result<()> {
        let bytes = fs::read(&self.path)?;
        self.mirrored.write_all(bytes.get(self.length..).unwrap_or_default())?;
        self.length = bytes.len();
        self.mirrored.sync()
    }
}
