//! [`CrashStorage`]: stops the world at a sync point and shows the states that a disk may then have.

use super::disk::ModelDisk;
use apus_storage::{Storage, StorageFile};
use std::collections::BTreeMap;
use std::io::{self, Cursor, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard};

/// What the program notices of a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterCrash {
    /// Every operation fails from then on, the sync first.
    Fail,
    /// Nothing: the program continues on its own view, but no later change reaches the disk.
    Unnoticed,
}

#[derive(Debug, Default)]
struct CrashedDiskState {
    disk: ModelDisk,
    syncs: u64,
    crash: Option<(u64, AfterCrash)>,
    /// The disk at the moment of the crash.
    crashed: Option<ModelDisk>,
}

impl CrashedDiskState {
    /// Fails if the crash has happened and must be noticed.
    fn check(&self) -> io::Result<()> {
        match (&self.crashed, self.crash) {
            (Some(_), Some((_, AfterCrash::Fail))) => Err(io::Error::other("the disk is gone")),
            _ => Ok(()),
        }
    }

    /// Passes a sync point; returns false after the crash.
    fn sync_point(&mut self) -> io::Result<bool> {
        if let Some((at, _)) = self.crash
            && self.crashed.is_none()
            && self.syncs >= at
        {
            self.crashed = Some(self.disk.clone());
        }
        self.syncs += 1;
        self.check()?;
        Ok(self.crashed.is_none())
    }
}

/// A folder in memory that can crash. Clones are the same folder.
#[derive(Debug, Clone, Default)]
pub struct CrashStorage {
    state: Arc<Mutex<CrashedDiskState>>,
}

impl CrashStorage {
    /// Makes an empty folder that never crashes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a folder with these files, all durable.
    pub fn holding(files: BTreeMap<String, Vec<u8>>) -> Self {
        let state =
            CrashedDiskState { disk: ModelDisk::holding(files), ..CrashedDiskState::default() };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Lets only the first `syncs` sync points take effect.
    pub fn crash_at(&self, syncs: u64, after: AfterCrash) {
        self.state().crash = Some((syncs, after));
    }

    /// Returns the number of sync points: calls to `sync` and `sync_names`, including failed ones.
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// Returns whether the crash has happened.
    pub fn crashed(&self) -> bool {
        self.state().crashed.is_some()
    }

    /// Returns the files that the program sees.
    pub fn live_files(&self) -> BTreeMap<String, Vec<u8>> {
        self.state().disk.live_files()
    }

    /// Returns the files that certainly survive a crash: the minimum content of the disk.
    pub fn durable_image(&self) -> Self {
        let state = self.state();
        Self::holding(state.crashed.as_ref().unwrap_or(&state.disk).durable_files())
    }

    /// Returns a possible content of the disk after the crash, or after one now: everything durable, and as
    /// much of the unsynced rest as `seed` decides: parts of files, zeros in place of bytes, some changes of
    /// names and not others.
    pub fn crash_image(&self, seed: u64) -> Self {
        let state = self.state();
        Self::holding(state.crashed.as_ref().unwrap_or(&state.disk).after_crash(seed))
    }

    fn state(&self) -> MutexGuard<'_, CrashedDiskState> {
        self.state.lock().expect("no test panics while it holds the disk")
    }
}

fn missing(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("there is no file {name}"))
}

impl Storage for CrashStorage {
    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
        let mut state = self.state();
        state.check()?;
        let file = state.disk.create(name);
        Ok(Box::new(CrashFile { storage: self.clone(), file }))
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        if state.sync_point()? {
            let file = state.disk.place(name).ok_or_else(|| missing(name))?;
            state.disk.sync_file(file);
        }
        Ok(())
    }

    fn open(&self, name: &str, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        let state = self.state();
        state.check()?;
        let content = state.disk.file(name).ok_or_else(|| missing(name))?.live.clone();
        let mut reader = Cursor::new(content);
        reader.set_position(offset);
        Ok(Box::new(reader))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.check()?;
        state.disk.rename(from, to).then_some(()).ok_or_else(|| missing(from))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.check()?;
        state.disk.remove(name);
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.state();
        if state.sync_point()? {
            state.disk.sync_names();
        }
        Ok(())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let state = self.state();
        state.check()?;
        Ok(state.disk.names())
    }

    fn len(&self, name: &str) -> io::Result<u64> {
        let state = self.state();
        state.check()?;
        Ok(state.disk.file(name).ok_or_else(|| missing(name))?.live.len() as u64)
    }
}

#[derive(Debug)]
struct CrashFile {
    storage: CrashStorage,
    file: usize,
}

impl Write for CrashFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.storage.state();
        state.check()?;
        state.disk.append(self.file, bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.storage.state().check()
    }
}

impl StorageFile for CrashFile {
    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.storage.state();
        if state.sync_point()? {
            state.disk.sync_file(self.file);
        }
        Ok(())
    }
}
