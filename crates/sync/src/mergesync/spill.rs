//! [`Spill`]: records that come in no order, sorted in runs as long as memory allows.

use crate::error::{StorageResult, SyncError};
use crate::workdir::RunInfo;
use crate::workdir::names::SPILL;
use apus_engine::mergesync::Pile;
use apus_hash::Sha256;
use apus_storage::Storage;
use std::io::{BufWriter, Write};
use std::sync::Arc;

/// A pile is no larger, whatever the memory: its records are found by 32 bits.
const PILE_BYTES_MAX: u64 = 1 << 30;

/// A smaller pile is not worth a file.
const PILE_BYTES_MIN: u64 = 4 << 10;

/// See the module.
pub(super) struct Spill<'s> {
    storage: &'s dyn Storage,
    name: &'static str,
    memory_bytes: u64,
    pile: Pile,
    runs: Vec<RunInfo>,
}

impl<'s> Spill<'s> {
    /// Takes no more than so much memory, but for a least that is worth a file; `name` is a part of those
    /// of its files.
    pub(super) fn new(storage: &'s dyn Storage, name: &'static str, memory_bytes: u64) -> Self {
        // The pile may have room for twice what is in it.
        let memory_bytes = (memory_bytes / 2).clamp(PILE_BYTES_MIN, PILE_BYTES_MAX);
        Self { storage, name, memory_bytes, pile: Pile::default(), runs: Vec::new() }
    }

    pub(super) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), SyncError> {
        self.pile.push(write);
        if self.pile.memory_bytes() > self.memory_bytes { self.spill() } else { Ok(()) }
    }

    /// Writes the pile as a run. It need not be durable: after a crash the join starts anew.
    fn spill(&mut self) -> Result<(), SyncError> {
        self.pile.sort();
        let name = format!("{SPILL}{}-{}.run", self.name, self.runs.len());
        let mut out = RunWriter::create(self.storage, name)?;
        self.pile.iter().try_for_each(|record| out.write(record))?;
        self.runs.push(out.finish()?);
        self.pile.clear();
        Ok(())
    }

    /// All runs. The last one stays in memory.
    pub(super) fn finish(mut self) -> Vec<RunInfo> {
        if !self.pile.is_empty() {
            let bytes = self.pile.into_run();
            let name = format!("{SPILL}{}-{}.run", self.name, self.runs.len());
            let (length, held) = (bytes.len() as u64, Some(Arc::new(bytes)));
            self.runs.push(RunInfo { name, bytes: length, sha256: [0; 32], held });
        }
        self.runs
    }
}

/// A run on its way to a file.
pub(super) struct RunWriter<'s> {
    storage: &'s dyn Storage,
    name: String,
    out: BufWriter<Box<dyn apus_storage::StorageFile>>,
    hash: Sha256,
    bytes: u64,
}

impl<'s> RunWriter<'s> {
    pub(super) fn create(storage: &'s dyn Storage, name: String) -> Result<Self, SyncError> {
        let file = storage.create(&name).at(storage, &name)?;
        let out = BufWriter::with_capacity(1 << 18, file);
        Ok(Self { storage, name, out, hash: Sha256::new(), bytes: 0 })
    }

    pub(super) fn write(&mut self, record: &[u8]) -> Result<(), SyncError> {
        self.hash.update(record);
        self.bytes += record.len() as u64;
        self.out.write_all(record).at(self.storage, &self.name)
    }

    pub(super) fn finish(mut self) -> Result<RunInfo, SyncError> {
        self.out.flush().at(self.storage, &self.name)?;
        let Self { name, hash, bytes, .. } = self;
        Ok(RunInfo { name, bytes, sha256: hash.finalize(), held: None })
    }
}
