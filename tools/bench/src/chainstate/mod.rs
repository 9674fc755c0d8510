//! `apus-bench chainstate`: writing a chainstate, beside copying its bytes.
//!
//! A set is made up and laid down on the disk in the order of its txids, as a merge of runs gives
//! it. Then, in rounds, each in a process of its own: it is written as a chainstate; the files of
//! that are copied; it is read back through another implementation of LevelDB and its hash
//! computed. Copying as many bytes is the least that writing them can take, so the ratio of the two
//! tells how far the writer is from the disk. It does not say what the merge costs that a run does
//! on another thread at the same time.
//!
//! What is read back is compared with what was made up: without that there are no numbers.

mod coins;
mod measure;
mod part;
mod tables;

pub use measure::{Event, Plan, measure};
pub use part::{Part, part};
pub use tables::table;

use crate::machine::Machine;
use crate::process::ProcessError;
use crate::stats::Spread;
use apus_datadir::chainstate::ChainstateDbError as WriterError;
use apus_sync::{ErrorKind, SyncError};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Version of the JSON form. New fields do not change it; another meaning of one does.
pub const VERSION: u32 = 1;

/// What `apus-bench chainstate` found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chainstate {
    /// [`VERSION`].
    pub version: u32,
    /// Where.
    pub machine: Machine,
    /// Coins of the set.
    pub coins: u64,
    /// Bytes of the set as it is read, with txids and lengths of groups.
    pub set_bytes: u64,
    /// Bytes of the chainstate's files.
    pub chainstate_bytes: u64,
    /// How often each was measured; all of them once, then again in the reverse order.
    pub rounds: u32,
    /// By part.
    pub parts: Vec<MeasuredPart>,
}

/// What one part took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredPart {
    /// Which.
    pub part: Part,
    /// From the first byte read until everything was durable, or compared.
    pub wall_seconds: Spread,
    /// Processor time of all threads of its process.
    pub cpu_seconds: Spread,
    /// Greatest memory of its process in any round, without the page cache.
    pub rss_peak_bytes: Option<u64>,
    /// Its time over that of copying in the same round; the median is that of the medians.
    pub over_copy: Spread,
}

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub enum ChainstateError {
    /// The system, about a file or a folder.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Its answer.
        source: io::Error,
    },
    /// The chainstate could not be written.
    #[error(transparent)]
    Write(#[from] WriterError),
    /// It could not be read back.
    #[error(transparent)]
    ReadBack(#[from] SyncError),
    /// A part's process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A part led to something else than it must.
    #[error("{part} led to another {what} than was made up: the writer or the reader is broken")]
    Different {
        /// Which.
        part: &'static str,
        /// What differs.
        what: &'static str,
    },
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
}

impl ChainstateError {
    /// Names the file that an error of the system is about.
    fn at(path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { path: path.clone(), source }
    }

    /// What it means.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { .. } | Self::Write(_) => ErrorKind::Io,
            Self::ReadBack(error) => error.kind(),
            Self::Process(error) => error.kind(),
            Self::Different { .. } => ErrorKind::Wrong,
            Self::Interrupted => ErrorKind::Interrupted,
        }
    }
}

/// The folder in which everything is made.
#[derive(Debug, Clone)]
pub struct Place {
    folder: PathBuf,
}

impl Place {
    /// Uses `folder`, which exists. What is in it under the names used here is replaced.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The set, record by record.
    fn set(&self) -> PathBuf {
        self.folder.join("set.records")
    }

    fn chainstate(&self) -> PathBuf {
        self.folder.join("chainstate")
    }

    fn copy(&self) -> PathBuf {
        self.folder.join("chainstate.copy")
    }

    /// What a part's process led to.
    fn told(&self) -> PathBuf {
        self.folder.join("part.json")
    }

    fn tell(&self, done: &part::Done) -> Result<(), ChainstateError> {
        let failed = ChainstateError::at(&self.folder);
        let text = serde_json::to_vec(done).map_err(|error| failed(error.into()))?;
        fs::write(self.told(), text).map_err(failed)
    }

    fn read_told(&self) -> Result<part::Done, ChainstateError> {
        let path = self.told();
        let failed = ChainstateError::at(&path);
        let text = fs::read(&path).map_err(&failed)?;
        serde_json::from_slice(&text).map_err(|error| failed(error.into()))
    }

    /// Makes room for what `part` writes.
    fn prepare(&self, part: Part) -> Result<(), ChainstateError> {
        let folder = match part {
            Part::Write => self.chainstate(),
            Part::Copy => self.copy(),
            Part::Make | Part::Check => return Ok(()),
        };
        let failed = ChainstateError::at(&folder);
        remove(&folder).and_then(|()| fs::create_dir(&folder)).map_err(failed)
    }

    /// Removes everything that was made.
    fn clear(&self) -> Result<(), ChainstateError> {
        let files = [self.set(), self.told()];
        let folders = [self.chainstate(), self.copy()];
        let gone = |result: io::Result<()>| match result {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        };
        files
            .iter()
            .map(|file| gone(fs::remove_file(file)))
            .chain(folders.iter().map(|folder| remove(folder)))
            .collect::<io::Result<()>>()
            .map_err(ChainstateError::at(&self.folder))
    }
}

/// Removes a folder if it is there.
fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
pub(crate) use measure::small;
