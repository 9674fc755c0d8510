//! [`Spill`]: records that come in no order, sorted in runs as long as memory allows.

use super::pile::{PILE_BYTES_MAX, Pile};
use crate::error::SyncError;
use crate::runs::RunWriter;
use crate::workdir::RunInfo;
use crate::workdir::index::SECTION_BYTES;
use crate::workdir::names::SPILL;
use apus_storage::Storage;
use std::sync::atomic::{AtomicU64, Ordering};

/// A smaller pile is not worth a file.
const PILE_BYTES_MIN: u64 = 4 << 10;

/// Memory for the last runs of all spills together, in bytes.
pub(super) struct HeldMemory(AtomicU64);

impl HeldMemory {
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
pub(super) struct Spill<'s> {
    storage: &'s dyn Storage,
    name: String,
    memory_bytes: u64,
    durable: bool,
    pile: Pile,
    runs: Vec<RunInfo>,
}

impl<'s> Spill<'s> {
    /// Takes no more than so much memory, but for a least that is worth a file; `name` is a part of those
    /// of its files, which are made `durable`, or need not be.
    pub(super) fn new(
        storage: &'s dyn Storage,
        name: String,
        memory_bytes: u64,
        durable: bool,
    ) -> Self {
        // The pile may have room for twice what is in it.
        let memory_bytes = (memory_bytes / 2).clamp(PILE_BYTES_MIN, PILE_BYTES_MAX);
        let (pile, runs) = (Pile::default(), Vec::new());
        Self { storage, name, memory_bytes, durable, pile, runs }
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
    pub(super) fn finish(mut self, held: &HeldMemory) -> Result<Vec<RunInfo>, SyncError> {
        if self.pile.is_empty() {
            return Ok(self.runs);
        }
        let bytes = self.pile.run_bytes();
        if self.durable || !(bytes <= PILE_BYTES_MIN || held.take(bytes)) {
            self.spill()?;
        } else {
            let name = self.next_name();
            let (bytes, index) = self.pile.into_run();
            self.runs.push(RunInfo::held(name, bytes, index));
        }
        Ok(self.runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::{MergeBudget, PlacesForm, merge_runs};
    use apus_testkit::storage::CrashStorage;

    const RECORDS: u64 = 3_000;

    /// Records in no order; the runs of them.
    fn spilled(
        storage: &CrashStorage,
        memory_bytes: u64,
        durable: bool,
        held: &HeldMemory,
    ) -> Vec<RunInfo> {
        let mut spill = Spill::new(storage, "places-7".to_owned(), memory_bytes, durable);
        for number in 0..RECORDS {
            let record = number * 1_001 % RECORDS;
            spill.push(|out| out.extend_from_slice(&record.to_be_bytes())).unwrap();
            let most = (memory_bytes / 2).max(PILE_BYTES_MIN);
            assert!(spill.pile.memory_bytes() <= most);
        }
        spill.finish(held).unwrap()
    }

    /// All are in the runs, in files or in memory.
    fn expect_all(storage: &CrashStorage, runs: &[RunInfo]) {
        let mut next = 0_u64;
        let budget = MergeBudget::new(u64::MAX);
        merge_runs::<PlacesForm>(storage, runs.to_vec(), budget, &|| Ok(()), &mut |record| {
            assert_eq!(record, next.to_be_bytes());
            next += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(next, RECORDS);
    }

    #[test]
    fn runs_are_as_long_as_memory_allows() {
        // A record takes 40 bytes before it is in a run.
        for (memory_bytes, count) in [(0, 30), (8 << 10, 30), (48 << 10, 5), (1 << 20, 1)] {
            for durable in [false, true] {
                let (storage, held) = (CrashStorage::new(), HeldMemory::new(0));
                let runs = spilled(&storage, memory_bytes, durable, &held);
                assert_eq!(runs.len(), count, "{memory_bytes}");
                expect_all(&storage, &runs);
                // The last run may be too short for a file.
                let in_files = runs.iter().filter(|run| run.held.is_none()).count();
                let last_is_short = memory_bytes <= 8 << 10 && !durable;
                assert_eq!(in_files, count - usize::from(last_is_short), "{memory_bytes}");
                storage.sync_names().unwrap();
                if durable {
                    expect_all(&storage.durable_image(), &runs);
                }
            }
        }
    }

    /// Memory is for all, and what was taken is not there for others.
    #[test]
    fn last_runs_stay_in_memory_as_long_as_there_is_any() {
        let storage = CrashStorage::new();
        let bytes = 8 * RECORDS;
        let held = HeldMemory::new(2 * bytes + 1);
        for (durable, is_held) in
            [(false, true), (true, false), (false, true), (false, false), (false, false)]
        {
            let runs = spilled(&storage, 1 << 20, durable, &held);
            assert_eq!(runs.len(), 1);
            assert_eq!(runs[0].held.is_some(), is_held);
            expect_all(&storage, &runs);
        }
        assert!(held.take(1) && !held.take(1));
    }
}
