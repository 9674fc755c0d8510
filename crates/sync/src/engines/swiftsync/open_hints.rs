//! [`HintsProvider`]: hints for segments, from a hintsfile or from a UTXO snapshot.
//!
//! A hintsfile tells by place, a [snapshot](super::snapshot_hints::SnapshotHints) by name.

use crate::engines::swiftsync::hints::{HintsFile, HintsOptions};
use crate::engines::swiftsync::{IndexHints, SegmentHints};
use crate::error::SyncError;
use apus_chain::HeightRange;
use std::path::{Path, PathBuf};

/// Gives the hints of segments, from any thread.
pub(crate) trait HintsProvider: Sync {
    /// The hints of one segment of the plan.
    fn segment(&self, range: HeightRange) -> Result<SegmentHints, SyncError>;
}

/// A hintsfile.
pub(crate) struct FileHints {
    path: PathBuf,
    file: HintsFile,
}

impl FileHints {
    /// Opens the file and checks all of it.
    pub(crate) fn open(path: &Path, options: &HintsOptions) -> Result<Self, SyncError> {
        let named = |error| SyncError::Hints { file: path.display().to_string(), error };
        let file = HintsFile::open_path(path, options).map_err(named)?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// The file.
    pub(crate) fn file(&self) -> &HintsFile {
        &self.file
    }
}

impl<P: HintsProvider + ?Sized> HintsProvider for &P {
    fn segment(&self, range: HeightRange) -> Result<SegmentHints, SyncError> {
        (**self).segment(range)
    }
}

impl HintsProvider for FileHints {
    fn segment(&self, range: HeightRange) -> Result<SegmentHints, SyncError> {
        let named = |error| SyncError::Hints { file: self.path.display().to_string(), error };
        let mut reader = self.file.range(range).map_err(named)?;
        let mut hints = IndexHints::new(range.start);
        while let Some(block) = reader.next().map_err(named)? {
            hints.push(block.indices);
        }
        Ok(SegmentHints::Indices(hints))
    }
}
