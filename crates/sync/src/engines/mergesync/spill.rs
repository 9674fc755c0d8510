//! [`Spill`]: sorts records that arrive in any order into runs as long as memory allows.

use crate::error::SyncError;
use crate::runs::RunWriter;
use crate::workdir::RunInfo;
use crate::workdir::index::{RunIndex, SECTION_BYTES, prefix};
use crate::workdir::names::SPILL;
use apus_engine::sort::sort_by_number;
use apus_storage::Storage;
use std::sync::atomic::{AtomicU64, Ordering};

/// Minimum size of a pile; a smaller one is not worth a file.
const PILE_BYTES_MIN: u64 = 4 << 10;

/// Memory for the last runs of all spills together, in bytes.
pub(super) struct HeldMemory(AtomicU64);

impl HeldMemory {
    pub(super) fn new(bytes: u64) -> Self {
        Self(AtomicU64::new(bytes))
    }

    /// Takes this many bytes, if that much is left.
    fn take(&self, bytes: u64) -> bool {
        let left = |left: u64| left.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok()
    }
}

/// Sorts records into runs.
pub(super) struct Spill<'s> {
    storage: &'s dyn Storage,
    name: String,
    memory_bytes: u64,
    durable: bool,
    pile: Pile,
    runs: Vec<RunInfo>,
}

impl<'s> Spill<'s> {
    /// Uses no more than `memory_bytes`, but at least enough to make a file worthwhile; `name` is part of its
    /// files' names. The files are synced if `durable`.
    pub(super) fn new(
        storage: &'s dyn Storage,
        name: String,
        memory_bytes: u64,
        durable: bool,
    ) -> Self {
        // The pile may reserve twice what it holds.
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

    /// Returns all runs. The last one stays in memory if there is enough left and it need not be durable.
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

// [`Pile`]: records in order of arrival, which can be sorted by their bytes.

/// Place of a record: its first bytes, to sort by, its offset among all bytes, and its length.
type Place = (u64, u32, u32);

/// Maximum size of a pile: offsets have 32 bits, and the last record may be long.
pub(super) const PILE_BYTES_MAX: u64 = 2 << 30;

/// Records in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Pile {
    bytes: Vec<u8>,
    records: Vec<Place>,
    /// Working space of the sort.
    spare: Vec<Place>,
}

impl Pile {
    /// Adds a record of at least eight bytes.
    pub(super) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        write(&mut self.bytes);
        let record = &self.bytes[start..];
        self.records.push((prefix(record), start as u32, record.len() as u32));
    }

    /// Memory for the records and for sorting them, in bytes. Reserved capacity may take as much again.
    pub(super) fn memory_bytes(&self) -> u64 {
        (self.bytes.len() + 2 * self.records.len() * size_of::<Place>()) as u64
    }

    /// Length in bytes of the records as a run.
    pub(super) fn run_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Whether there are no records.
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Removes all records and keeps their memory.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.records.clear();
    }

    /// Sorts the records.
    pub(super) fn sort(&mut self) {
        let Self { bytes, records, spare } = self;
        let of = |place: &Place| &bytes[place.1 as usize..][..place.2 as usize];
        let by_bytes = |a: &Place, b: &Place| a.0.cmp(&b.0).then_with(|| of(a).cmp(of(b)));
        sort_by_number(records, spare, |place| place.0, by_bytes);
    }

    /// The records, in their current order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.records
            .iter()
            .map(|(_, start, length)| &self.bytes[*start as usize..][..*length as usize])
    }

    /// Turns the records into a sorted run that stays in memory.
    pub(super) fn into_run(mut self) -> (Vec<u8>, RunIndex) {
        self.sort();
        let mut run = Vec::with_capacity(self.bytes.len());
        let mut index = RunIndex::default();
        self.iter().for_each(|record| {
            index.take_held(record);
            run.extend_from_slice(record);
        });
        (run, index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::{MergeBudget, PlacesForm, merge_runs};
    use apus_testkit::storage::CrashStorage;

    const RECORDS: u64 = 3_000;

    /// Spills records in random order and returns the runs.
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

    /// Checks that all records are in the runs, whether in files or in memory.
    fn expect_all(storage: &CrashStorage, runs: &[RunInfo]) {
        let mut next = 0_u64;
        let budget = MergeBudget::new(u64::MAX);
        merge_runs::<PlacesForm>(storage, runs.to_vec(), budget, &|_| Ok(()), &mut |record| {
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

    /// All spills share the memory: memory that one takes is not available to others.
    #[test]
    fn last_runs_stay_in_memory_while_they_fit() {
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

#[cfg(test)]
mod pile_tests {
    use super::*;
    use proptest::prelude::*;

    fn piled(records: &[Vec<u8>]) -> Pile {
        let mut pile = Pile::default();
        records.iter().for_each(|record| pile.push(|out| out.extend_from_slice(record)));
        pile
    }

    proptest! {
        /// Holds even if their first bytes are equal and their lengths differ.
        #[test]
        fn records_are_sorted_by_their_bytes(
            records in proptest::collection::vec(
                (0u8..3, proptest::collection::vec(0u8..3, 0..4))
                    .prop_map(|(first, rest)| [&[first; 8][..], &rest[..]].concat()),
                0..40,
            ),
        ) {
            let mut pile = piled(&records);
            let bytes: usize = records.iter().map(Vec::len).sum();
            prop_assert_eq!(pile.is_empty(), records.is_empty());
            prop_assert_eq!(pile.run_bytes(), bytes as u64);
            let places = 2 * records.len() * size_of::<Place>();
            prop_assert_eq!(pile.memory_bytes(), (bytes + places) as u64);
            prop_assert!(pile.iter().eq(records.iter().map(Vec::as_slice)));
            let mut sorted = records.clone();
            sorted.sort();
            pile.sort();
            prop_assert!(pile.iter().eq(sorted.iter().map(Vec::as_slice)));
            let (run, index) = piled(&records).into_run();
            prop_assert_eq!(&run, &sorted.concat());
            prop_assert_eq!(index.run_bytes(), run.len() as u64);
            pile.clear();
            prop_assert!(pile.is_empty() && pile.iter().next().is_none());
            prop_assert_eq!(pile.memory_bytes(), 0);
        }
    }
}
