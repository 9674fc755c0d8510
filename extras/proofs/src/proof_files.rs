//! A folder of proofs: what files it has, and whether they fit together.
//!
//! Nothing is proved here. Whether a proof holds with the roots before its block, the engine finds when it judges the block.

use crate::bridge_error::BridgeError;
use apus_chain::{Height, HeightRange};
use apus_storage::Storage;
use apus_sync::SyncError;
use apus_sync::error::StorageResult;
use apus_utreexo::{RangeFile, RangeFileError, Roots, range_of_name};
use std::io::{self, Read, Seek, SeekFrom};

/// What files of proofs have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProofsTotals {
    /// Files.
    pub files: u64,
    /// Blocks.
    pub blocks: u64,
    /// Coins that are proved.
    pub targets: u64,
    /// Hashes in proofs.
    pub hashes: u64,
    /// Bytes of proofs: places and hashes.
    pub proof_bytes: u64,
    /// Bytes of leaf data.
    pub leaf_bytes: u64,
    /// Bytes of the files.
    pub file_bytes: u64,
    /// Bytes of the longest entry.
    pub entry_bytes_max: u64,
}

/// What came of a run that makes proofs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProofsMade {
    /// The first block whose proof this start made.
    pub from: Height,
    /// What the files have that it wrote.
    pub totals: ProofsTotals,
    /// The roots after the last block.
    pub roots: Roots,
}

/// The files of proofs of a folder, by ascending height. Of other files nothing is said.
pub fn proofs_files(storage: &dyn Storage) -> Result<Vec<(HeightRange, String)>, SyncError> {
    let names = storage.names().at(storage, "")?;
    let file = |name: String| Some((range_of_name(&name)?, name));
    let mut files: Vec<_> = names.into_iter().filter_map(file).collect();
    files.sort_unstable_by_key(|(range, _)| (range.start, range.end));
    Ok(files)
}

/// Opens a file of proofs, whose heights are those of its name.
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

/// What is wrong with a file of proofs.
pub(crate) fn failed(storage: &dyn Storage, name: &str, error: RangeFileError) -> SyncError {
    BridgeError::File { file: storage.describe(name), error }.into()
}

impl ProofsTotals {
    /// Counts the entry of a block.
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

// [`StoredFile`]: a file behind the door, read at any place.

/// See the module.
pub(crate) struct StoredFile<'s> {
    storage: &'s dyn Storage,
    name: String,
    length: u64,
    at: u64,
    /// What reads on from there, if it was not left.
    reader: Option<Box<dyn Read + Send>>,
}

impl<'s> StoredFile<'s> {
    /// Opens it at its beginning.
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
