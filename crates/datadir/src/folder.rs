//! [`OutFolder`]: where the files of a database that is written go.
//!
//! The least that a crash-safe writer needs, so that a caller can put another disk behind it, and a
//! test one that fails. Reading back does not come through here.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A folder to write new files into.
pub trait OutFolder: Send + Sync {
    /// Starts an empty file, replacing one of that name.
    fn create(&self, name: &str) -> io::Result<Box<dyn OutFile>>;
    /// Gives a file another name, replacing one of that name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Makes names durable: those created and changed so far.
    fn sync_names(&self) -> io::Result<()>;
    /// What to call a file in a message to people.
    fn describe(&self, name: &str) -> String;
}

/// A file being written.
pub trait OutFile: Write + Send {
    /// Makes the bytes written so far durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// A real folder of a file system.
#[derive(Debug, Clone)]
pub struct OutDir {
    path: PathBuf,
}

impl OutDir {
    /// Uses the folder `path`, which must exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl OutFile for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

impl OutFolder for OutDir {
    fn create(&self, name: &str) -> io::Result<Box<dyn OutFile>> {
        Ok(Box::new(File::create(self.path.join(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn describe(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }
}
