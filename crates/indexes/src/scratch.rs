//! [`ScratchFile`]: a segment's records, kept on disk until all segments are there.
//!
//! Records must outlive neither a crash nor the process, so nothing is synced. The file is removed when its
//! [`ScratchReader`] is dropped.

use crate::making::MakeError;
use apus_storage::{Storage, StorageFile};
use std::io::{BufReader, BufWriter, Read, Write};

/// A file of records being written.
pub(crate) struct ScratchFile<'s> {
    storage: &'s dyn Storage,
    name: String,
    file: BufWriter<Box<dyn StorageFile>>,
}

/// A complete file of records. Removes the file when dropped.
pub(crate) struct ScratchRecords<'s> {
    storage: &'s dyn Storage,
    name: String,
}

/// Reads records in the order in which they were written.
pub(crate) struct ScratchReader<'s> {
    records: ScratchRecords<'s>,
    file: BufReader<Box<dyn Read + Send>>,
}

/// The bytes written or read at once.
const BUFFER_BYTES: usize = 64 << 10;

impl<'s> ScratchFile<'s> {
    /// Creates the file `name`, which must be unique in `storage`.
    pub(crate) fn create(storage: &'s dyn Storage, name: String) -> Result<Self, MakeError> {
        let file = storage.create(&name).map_err(MakeError::of_file(storage, &name))?;
        Ok(Self { storage, name, file: BufWriter::with_capacity(BUFFER_BYTES, file) })
    }

    pub(crate) fn write(&mut self, record: &[u8]) -> Result<(), MakeError> {
        self.file.write_all(record).map_err(MakeError::of_file(self.storage, &self.name))
    }

    pub(crate) fn finish(mut self) -> Result<ScratchRecords<'s>, MakeError> {
        self.file.flush().map_err(MakeError::of_file(self.storage, &self.name))?;
        Ok(ScratchRecords { storage: self.storage, name: self.name })
    }
}

impl<'s> ScratchRecords<'s> {
    pub(crate) fn read(self) -> Result<ScratchReader<'s>, MakeError> {
        let file = self.storage.open(&self.name, 0);
        let file = file.map_err(MakeError::of_file(self.storage, &self.name))?;
        Ok(ScratchReader { records: self, file: BufReader::with_capacity(BUFFER_BYTES, file) })
    }
}

impl ScratchReader<'_> {
    /// Fills `record` with the next bytes.
    pub(crate) fn next(&mut self, record: &mut [u8]) -> Result<(), MakeError> {
        let ScratchRecords { storage, name } = &self.records;
        self.file.read_exact(record).map_err(MakeError::of_file(*storage, name))
    }
}

impl Drop for ScratchRecords<'_> {
    fn drop(&mut self) {
        // A file that stays is harmless: it is in a folder of temporary files.
        let _ = self.storage.remove(&self.name);
    }
}
