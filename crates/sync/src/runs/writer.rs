//! [`RunWriter`]: writes a run, and says of it what a reader compares with.

use crate::error::{StorageResult, SyncError};
use crate::workdir::RunInfo;
use apus_hash::Sha256;
use apus_storage::{Storage, StorageFile};
use std::io::{BufWriter, Write};

/// A run on its way to a file. It need not be durable: after a crash it is made anew.
pub(crate) struct RunWriter<'s> {
    storage: &'s dyn Storage,
    name: String,
    out: BufWriter<Box<dyn StorageFile>>,
    hash: Sha256,
    bytes: u64,
}

impl<'s> RunWriter<'s> {
    pub(crate) fn create(
        storage: &'s dyn Storage,
        name: String,
        buffer_bytes: usize,
    ) -> Result<Self, SyncError> {
        let file = storage.create(&name).at(storage, &name)?;
        let out = BufWriter::with_capacity(buffer_bytes, file);
        Ok(Self { storage, name, out, hash: Sha256::new(), bytes: 0 })
    }

    pub(crate) fn write(&mut self, record: &[u8]) -> Result<(), SyncError> {
        self.hash.update(record);
        self.bytes += record.len() as u64;
        self.out.write_all(record).at(self.storage, &self.name)
    }

    pub(crate) fn finish(mut self) -> Result<RunInfo, SyncError> {
        self.out.flush().at(self.storage, &self.name)?;
        let Self { name, hash, bytes, .. } = self;
        Ok(RunInfo { name, bytes, sha256: hash.finalize(), held: None })
    }
}
