//! [`Spill`]: records that come in no order, sorted in runs as long as memory allows.

use crate::error::SyncError;
use crate::runs::RunWriter;
use crate::workdir::RunInfo;
use crate::workdir::names::SPILL;
use apus_engine::mergesync::Pile;
use apus_storage::Storage;
use std::sync::Arc;

/// A smaller pile is not worth a file.
const PILE_BYTES_MIN: u64 = 4 << 10;

/// Buffer of a file that is written.
pub(super) const BUFFER_BYTES: usize = 256 << 10;

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
        let memory_bytes = (memory_bytes / 2).max(PILE_BYTES_MIN);
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
        let mut out = RunWriter::create(self.storage, name, BUFFER_BYTES)?;
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
