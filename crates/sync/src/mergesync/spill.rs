//! [`Spill`]: records that come in no order, sorted in runs as long as memory allows.

use super::pile::Pile;
use crate::error::SyncError;
use crate::runs::{Form, RunWriter, cut};
use crate::workdir::RunInfo;
use crate::workdir::index::SECTION_BYTES;
use crate::workdir::names::SPILL;
use apus_storage::Storage;
use core::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// A smaller pile is not worth a file.
const PILE_BYTES_MIN: u64 = 4 << 10;

/// Memory for the last runs of all spills together, in bytes.
pub(super) struct Held(AtomicU64);

impl Held {
    pub(super) fn new(bytes: u64) -> Self {
        Self(AtomicU64::new(bytes))
    }

    /// Whether there was so much left, which is taken then.
    fn take(&self, bytes: u64) -> bool {
        let left = |left: u64| left.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok()
    }
}

/// See the module.
pub(super) struct Spill<'s, F> {
    storage: &'s dyn Storage,
    name: String,
    memory_bytes: u64,
    durable: bool,
    pile: Pile,
    runs: Vec<RunInfo>,
    form: PhantomData<F>,
}

impl<'s, F: Form> Spill<'s, F> {
    /// Takes no more than so much memory, but for a least that is worth a file; `name` is a part of those
    /// of its files, which are made `durable`, or need not be.
    pub(super) fn new(
        storage: &'s dyn Storage,
        name: String,
        memory_bytes: u64,
        durable: bool,
    ) -> Self {
        // The pile may have room for twice what is in it.
        let memory_bytes = (memory_bytes / 2).max(PILE_BYTES_MIN);
        let (pile, runs) = (Pile::default(), Vec::new());
        Self { storage, name, memory_bytes, durable, pile, runs, form: PhantomData }
    }

    pub(super) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), SyncError> {
        self.pile.push(write);
        if self.pile.memory_bytes() > self.memory_bytes { self.spill() } else { Ok(()) }
    }

    fn next_name(&self) -> String {
        format!("{SPILL}{}-{}.run", self.name, self.runs.len())
    }

    /// Writes the pile as a run.
    fn spill(&mut self) -> Result<(), SyncError> {
        self.pile.sort();
        let mut out = RunWriter::create(self.storage, self.next_name(), SECTION_BYTES)?;
        self.pile.iter().try_for_each(|record| out.write(record))?;
        self.runs.push(out.finish(self.durable)?);
        self.pile.clear();
        Ok(())
    }

    /// All runs. The last one stays in memory if there is any left for it and it need not be durable.
    pub(super) fn finish(mut self, held: &Held) -> Result<Vec<RunInfo>, SyncError> {
        if self.pile.is_empty() {
            return Ok(self.runs);
        }
        let bytes = self.pile.run_bytes();
        if self.durable || !(bytes <= PILE_BYTES_MIN || held.take(bytes)) {
            self.spill()?;
        } else {
            let name = self.next_name();
            let bytes = self.pile.into_run();
            let index = cut::<F>(&bytes);
            self.runs.push(RunInfo::held(name, bytes, index));
        }
        Ok(self.runs)
    }
}
