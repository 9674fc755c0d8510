//! Lists and opens the proof files of a folder, and counts their contents.
//!
//! This module proves nothing. The engine checks each proof against the roots before its block when it
//! validates the block.

use crate::bridge_error::BridgeError;
use apus_chain::{Height, HeightRange};
use apus_storage::Storage;
use apus_sync::SyncError;
use apus_sync::error::StorageResult;
use apus_utreexo::{RangeFile, RangeFileError, Roots, range_of_name};
use std::io::{self, Read, Seek, SeekFrom};

/// Totals over proof files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProofsTotals {
    /// Number of files.
    pub files: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Number of proved coins.
    pub targets: u64,
    /// Number of hashes in proofs.
    pub hashes: u64,
    /// Bytes of proofs: targets and hashes.
    pub proof_bytes: u64,
    /// Bytes of leaf data.
    pub leaf_bytes: u64,
    /// Bytes of the files.
    pub file_bytes: u64,
    /// Bytes of the longest entry.
    pub entry_bytes_max: u64,
}

/// The result of a job that makes proofs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProofsMade {
    /// The first block whose proof this job made.
    pub from: Height,
    /// Totals over the files that it wrote.
    pub totals: ProofsTotals,
    /// The roots after the last block.
    pub roots: Roots,
}

/// Lists the proof files of a folder, by ascending height. Ignores other files.
pub fn proofs_files(storage: &dyn Storage) -> Result<Vec<(HeightRange, String)>, SyncError> {
    let names = storage.names().at(storage, "")?;
    let file = |name: String| Some((range_of_name(&name)?, name));
    let mut files: Vec<_> = names.into_iter().filter_map(file).collect();
    files.sort_unstable_by_key(|(range, _)| (range.start, range.end));
    Ok(files)
}

/// Opens a proof file and checks that its heights match its name.
pub(crate) fn open<'s>(
    storage: &'s dyn Storage,
    name: &str,
) -> Result<RangeFile<StoredFile<'s>>, SyncError> {
    let file = StoredFile::open(storage, name).at(storage, name)?;
    let file = RangeFile::open(file).map_err(|error| failed(storage, name, error))?;
    let (found, file_name) = (file.heights(), storage.describe(name));
    match range_of_name(name).is_none_or(|range| range == found) {
        true => Ok(file),
        false => Err(BridgeError::Name { file: file_name, found }.into()),
    }
}

/// The error for an unreadable or invalid proof file.
pub(crate) fn failed(storage: &dyn Storage, name: &str, error: RangeFileError) -> SyncError {
    BridgeError::File { file: storage.describe(name), error }.into()
}

impl ProofsTotals {
    /// Adds the entry of a block to the totals.
    pub(crate) fn count(
        &mut self,
        targets: usize,
        hashes: usize,
        proof_bytes: usize,
        entry_bytes: usize,
    ) {
        self.blocks += 1;
        self.targets += targets as u64;
        self.hashes += hashes as u64;
        self.proof_bytes += proof_bytes as u64;
        self.leaf_bytes += (entry_bytes - proof_bytes) as u64;
        self.entry_bytes_max = self.entry_bytes_max.max(entry_bytes as u64);
    }
}

// [`StoredFile`]: a file of a [`Storage`], readable at any offset.

/// A file of a [`Storage`], readable at any offset.
pub(crate) struct StoredFile<'s> {
    storage: &'s dyn Storage,
    name: String,
    length: u64,
    at: u64,
    /// Reader at `at`; dropped by a seek to another offset.
    reader: Option<Box<dyn Read + Send>>,
}

impl<'s> StoredFile<'s> {
    /// Opens the file at its beginning.
    pub(crate) fn open(storage: &'s dyn Storage, name: &str) -> io::Result<Self> {
        let length = storage.len(name)?;
        Ok(Self { storage, name: name.to_owned(), length, at: 0, reader: None })
    }
}

impl Read for StoredFile<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => none.insert(self.storage.open(&self.name, self.at)?),
        };
        let count = reader.read(out)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for StoredFile<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.length.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        let at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        if at != self.at {
            (self.at, self.reader) = (at, None);
        }
        Ok(at)
    }
}
