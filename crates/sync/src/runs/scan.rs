//! [`SharedScan`]: the records of many runs, for threads that take ranges of keys in order.
//!
//! The scan is cooperative: threads follow each other through the runs, and a thread takes its records from the
//! first runs while the thread ahead takes its own from the next runs. So each section is read once and is in
//! memory once, for any number of threads, and no two threads read at the same place. Records are neither
//! merged nor copied here: a thread gets [chunks](ScanChunk) of sections, each sorted.

use super::form::RunForm;
use super::reader::{ChunkSource, IndexedRun, Lot, ScanChunk, damaged, first_record, read};
use super::{KeyRange, RunMerger, RunReader, Runs};
use crate::error::{StorageResult, SyncError};
use crate::workdir::index::prefix;
use apus_storage::Storage;
use core::marker::PhantomData;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::io::Read;
use std::sync::Arc;

/// The records of many runs, for threads that take ranges of keys in order.
pub struct SharedScan<'s, F: RunForm> {
    runs: Runs<'s, F>,
    lanes: Vec<ScanGroup<F>>,
}

impl<'s, F: RunForm> SharedScan<'s, F> {
    /// Opens the scan at a key, for this many threads.
    pub fn open(runs: Runs<'s, F>, from: u64, threads: usize) -> Result<Self, SyncError> {
        let each = (runs.runs.len() / (LANES_EACH * threads)).max(1);
        let numbered = (0..).step_by(each).zip(runs.runs.chunks(each));
        let lanes = numbered.map(|some| ScanGroup::open(runs.storage, some, from));
        let lanes = lanes.collect::<Result<_, _>>()?;
        Ok(Self { runs, lanes })
    }

    /// Takes the records of a range of keys, after the records below it were taken: one lot of each run that
    /// has any. All keys must be taken, by threads that begin in the order of the keys.
    ///
    /// # Errors
    /// [`SyncError::Interrupted`] if another thread failed; that thread returns the reason.
    pub fn take(&self, keys: KeyRange) -> Result<Vec<Lot>, SyncError> {
        if keys.until == Some(keys.from) {
            // An empty range takes no turn: of two threads that wait for the same key, the wrong one might go
            // first.
            return Ok(Vec::new());
        }
        let mut lots = Vec::with_capacity(self.runs.runs.len());
        for lane in &self.lanes {
            lane.take(self.runs.storage, &self.runs.runs, keys, &mut lots)?;
        }
        Ok(lots)
    }

    /// Merges the records of some lots by ascending key.
    pub fn merge(&self, lots: Vec<Lot>) -> Result<RunMerger<'s, F>, SyncError> {
        let reader = |lot: Lot| RunReader::of_lot(&self.runs.runs[lot.run], lot);
        RunMerger::of(self.runs.storage, lots.into_iter().map(reader))
    }

    /// Whether the threads have taken all records.
    pub fn is_at_end(&mut self) -> Result<bool, SyncError> {
        let mut lots = Vec::new();
        for lane in &mut self.lanes {
            let state = lane.state.get_mut();
            state.take::<F>(self.runs.storage, &self.runs.runs, None, &mut lots)?;
        }
        Ok(lots.is_empty())
    }

    /// Removes intermediate runs.
    pub fn close(self) -> Result<(), SyncError> {
        self.runs.close()
    }
}

/// Maximum number of groups of runs per thread: enough that no thread waits long for its turn, and few enough
/// to cost little.
const LANES_EACH: usize = 4;

/// The runs that a thread reads in one turn.
struct ScanGroup<F> {
    state: Mutex<ScanState>,
    moved: Condvar,
    form: PhantomData<F>,
}

struct ScanState {
    /// Index of the first run.
    first: usize,
    runs: Vec<ScanPosition>,
    /// The first key of the next thread's records; `None` if all were taken.
    next: Option<u64>,
    /// Number of threads that wait for their turn.
    waiting: usize,
    /// Whether a thread failed; then there are no more turns.
    failed: bool,
}

/// The position in a run.
struct ScanPosition {
    /// The file, if the run is not in memory.
    file: Option<Box<dyn Read + Send>>,
    /// The next section.
    section: usize,
    /// Offset of that section in the run.
    offset: usize,
    /// Records that were read but not taken yet.
    rest: Option<ScanChunk>,
    /// Records below this key are skipped.
    from: u64,
}

impl<F: RunForm> ScanGroup<F> {
    fn open(
        storage: &dyn Storage,
        (first, runs): (usize, &[IndexedRun]),
        from: u64,
    ) -> Result<Self, SyncError> {
        let runs = runs.iter().map(|run| ScanPosition::open(storage, run, from));
        let runs = runs.collect::<Result<_, _>>()?;
        let state = ScanState { first, runs, next: Some(from), waiting: 0, failed: false };
        Ok(Self { state: Mutex::new(state), moved: Condvar::new(), form: PhantomData })
    }

    /// Waits for the turn of the thread that takes a range of keys, and takes its records.
    fn take(
        &self,
        storage: &dyn Storage,
        runs: &[IndexedRun],
        keys: KeyRange,
        lots: &mut Vec<Lot>,
    ) -> Result<(), SyncError> {
        let mut state = self.state.lock();
        while state.next != Some(keys.from) && !state.failed {
            state.waiting += 1;
            self.moved.wait(&mut state);
            state.waiting -= 1;
        }
        if state.failed {
            return Err(SyncError::Interrupted);
        }
        let mut turn = ScanTurn { state, of: &self.moved };
        // Stays set if anything below fails.
        turn.state.failed = true;
        turn.state.take::<F>(storage, runs, keys.until, lots)?;
        turn.state.next = keys.until;
        turn.state.failed = false;
        Ok(())
    }
}

/// A thread's turn. If it ends early, it must wake the threads that wait for theirs.
struct ScanTurn<'t> {
    state: MutexGuard<'t, ScanState>,
    of: &'t Condvar,
}

impl Drop for ScanTurn<'_> {
    fn drop(&mut self) {
        if self.state.waiting > 0 {
            self.of.notify_all();
        }
    }
}

impl ScanState {
    /// The next records of each run with keys below this one.
    fn take<F: RunForm>(
        &mut self,
        storage: &dyn Storage,
        runs: &[IndexedRun],
        until: Option<u64>,
        lots: &mut Vec<Lot>,
    ) -> Result<(), SyncError> {
        for (number, place) in (self.first..).zip(&mut self.runs) {
            let run = &runs[number];
            let Some(first) = place.next::<F>(storage, run, until)? else { continue };
            let mut rest = Vec::new();
            while let Some(piece) = place.next::<F>(storage, run, until)? {
                rest.push(piece);
            }
            lots.push(Lot { run: number, first, rest });
        }
        Ok(())
    }
}

impl ScanPosition {
    fn open(storage: &dyn Storage, run: &IndexedRun, from: u64) -> Result<Self, SyncError> {
        let (section, offset) = run.section_of(from);
        let file = match run.info.held {
            Some(_) => None,
            None => {
                let name = &run.info.name;
                Some(storage.open(name, offset as u64).at(storage, name)?)
            }
        };
        Ok(Self { file, section, offset, rest: None, from })
    }

    /// The next records of one section with keys below this one; `None` if there are none.
    fn next<F: RunForm>(
        &mut self,
        storage: &dyn Storage,
        run: &IndexedRun,
        until: Option<u64>,
    ) -> Result<Option<ScanChunk>, SyncError> {
        let is_below = |prefix: u64| until.is_none_or(|until| prefix < until);
        loop {
            let next = run.index.sections.get(self.section);
            let mut piece = match self.rest.take() {
                Some(rest) => rest,
                None if next.is_some_and(|next| is_below(next.prefix)) => {
                    self.next_section::<F>(storage, run)?
                }
                None => return Ok(None),
            };
            // If the next section begins with such a record, all records before it qualify.
            let next = run.index.sections.get(self.section);
            let all = next.map_or(until.is_none(), |next| is_below(next.prefix));
            if let Some(until) = until.filter(|_| !all) {
                let below = bytes_below::<F>(piece.bytes(), until);
                let below = below.ok_or_else(|| damaged(storage, &run.info.name))?;
                self.rest = piece.split_off(below);
            }
            match piece.range.is_empty() {
                false => return Ok(Some(piece)),
                true if self.rest.is_some() => return Ok(None),
                true => {}
            }
        }
    }

    /// Reads the next section.
    fn next_section<F: RunForm>(
        &mut self,
        storage: &dyn Storage,
        run: &IndexedRun,
    ) -> Result<ScanChunk, SyncError> {
        let (name, section) = (&run.info.name, &run.index.sections[self.section]);
        let (start, length) = (self.offset, section.bytes as usize);
        let mut piece = match (&run.info.held, &mut self.file) {
            (Some(held), _) => ScanChunk::held(held, start..start + length),
            (None, Some(file)) => {
                let mut bytes = vec![0; length];
                read(storage, name, &mut **file, &mut bytes)?;
                if !section.is_of(&bytes) {
                    return Err(damaged(storage, name));
                }
                ScanChunk { of: ChunkSource::Section(Arc::new(bytes)), range: 0..length }
            }
            (None, None) => return Err(damaged(storage, name)),
        };
        if section.prefix < self.from {
            let below = bytes_below::<F>(piece.bytes(), self.from);
            piece.range.start += below.ok_or_else(|| damaged(storage, name))?;
        }
        self.section += 1;
        self.offset += length;
        Ok(piece)
    }
}

/// Length in bytes of the records with keys below this one; `None` if the records are invalid.
fn bytes_below<F: RunForm>(records: &[u8], until: u64) -> Option<usize> {
    let mut at = 0;
    while at < records.len() && prefix(&records[at..]) < until {
        at += first_record::<F>(&records[at..])?;
    }
    (at <= records.len()).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Records, bytes, held, is_damage, put, record, write};
    use super::super::{CoinsForm, records};
    use super::*;
    use crate::workdir::RunInfo;
    use apus_testkit::rng::Rng;
    use apus_testkit::storage::CrashStorage;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// The records that threads take for these ranges, which they claim in order, by range.
    fn taken(
        lanes: &SharedScan<'_, CoinsForm>,
        ranges: &[KeyRange],
        threads: usize,
    ) -> Vec<(usize, Result<Records, SyncError>)> {
        let next = AtomicUsize::new(0);
        let take = |keys| {
            let (mut merging, mut all) = (lanes.merge(lanes.take(keys)?)?, Records::new());
            merging.give(&mut |record| {
                all.extend(records(record).map(|(txid, group)| (txid.0, group.to_vec())));
                Ok(())
            })?;
            Ok(all)
        };
        let work = || {
            let claim = || next.fetch_add(1, Ordering::Relaxed);
            let claims = std::iter::repeat_with(claim);
            let claims = claims.map_while(|at| Some((at, take(*ranges.get(at)?))));
            claims.collect::<Vec<_>>()
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let mut all: Vec<_> =
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
            all.sort_by_key(|(at, _)| *at);
            all
        })
    }

    fn ranges(from: u64, cuts: &[u64]) -> Vec<KeyRange> {
        let starts = [from].into_iter().chain(cuts.iter().copied());
        let ends = cuts.iter().copied().map(Some).chain([None]);
        starts.zip(ends).map(|(from, until)| KeyRange { from, until }).collect()
    }

    proptest! {
        /// Holds for any division of the keys and any number of threads.
        #[test]
        fn each_range_has_the_records_of_its_keys(
            groups in prop::collection::btree_map(
                prop::array::uniform32(0u8..3),
                prop::collection::vec(any::<u8>(), 1..50),
                0..60,
            ),
            runs in 1usize..20,
            mut cuts in prop::collection::vec(0u64..1 << 20, 1..9),
            threads in 1usize..5,
            seed: u64,
        ) {
            let (storage, mut rng) = (CrashStorage::new(), Rng::new(seed));
            let mut divided = vec![Records::new(); runs];
            for (txid, group) in &groups {
                divided[rng.index(runs)].push((*txid, group.clone()));
            }
            let name = |index| format!("segment-{index}.run");
            let info = |(index, run): (usize, &Records)| match index % 3 {
                2 => held(&name(index), &bytes(run)),
                _ => write(&storage, &name(index), &bytes(run)),
            };
            let infos: Vec<RunInfo> = divided.iter().enumerate().map(info).collect();
            cuts.iter_mut().for_each(|cut| *cut = (*cut << 41) & 0x0303_0303_0303_0303);
            cuts.sort_unstable();
            let open = |from| {
                let runs = Runs::<CoinsForm>::indexed(&storage, infos.clone()).unwrap();
                SharedScan::open(runs, from, threads).unwrap()
            };
            let ranges = ranges(cuts[0], &cuts[1..]);
            let mut lanes = open(cuts[0]);
            for (at, all) in taken(&lanes, &ranges, threads) {
                let KeyRange { from, until } = ranges[at];
                let is_of = |txid: &[u8; 32]| {
                    prefix(txid) >= from && until.is_none_or(|until| prefix(txid) < until)
                };
                let of_range = groups.iter().filter(|(txid, _)| is_of(txid));
                let expected: Records = of_range.map(|(id, group)| (*id, group.clone())).collect();
                prop_assert_eq!(all.unwrap(), expected);
            }
            prop_assert!(lanes.is_at_end().unwrap());
            let is_left = groups.keys().any(|txid| prefix(txid) >= cuts[0]);
            prop_assert_eq!(open(cuts[0]).is_at_end().unwrap(), !is_left);
        }
    }

    /// A thread that finds a damaged section reports it, and the threads behind it end as well, except those
    /// that already had their records.
    #[test]
    fn threads_behind_a_failed_one_do_not_wait() {
        let all: Records = (1..=40).map(|id| record(id, 9)).collect();
        let ranges = ranges(0, &[5, 9, 20, 30, 36].map(|id| u64::from_be_bytes([id; 8])));
        for place in [0, 300, 600, 1_200] {
            let storage = CrashStorage::new();
            let of =
                |rest: usize| -> Records { all.iter().skip(rest).step_by(3).cloned().collect() };
            let infos: Vec<RunInfo> = (0..3)
                .map(|rest| write(&storage, &format!("run-{rest}"), &bytes(&of(rest))))
                .collect();
            let mut file = storage.live_files()["run-1"].clone();
            let place = place.min(file.len() / 2);
            file[place] ^= 1;
            put(&storage, "run-1", &file);
            for threads in [1, 3, 6] {
                let runs = Runs::<CoinsForm>::indexed(&storage, infos.clone()).unwrap();
                let lanes = SharedScan::open(runs, 0, threads).unwrap();
                let outcomes = taken(&lanes, &ranges, threads).into_iter().map(|it| it.1);
                let outcomes: Vec<_> = outcomes.collect();
                let bad = outcomes.iter().position(|outcome| outcome.is_err()).unwrap();
                assert!(outcomes[bad].as_ref().is_err_and(|error| is_damage(error, "run-1")));
                let behind = &outcomes[bad + 1..];
                assert!(behind.iter().all(|it| matches!(it, Err(SyncError::Interrupted))));
            }
        }
    }
}
