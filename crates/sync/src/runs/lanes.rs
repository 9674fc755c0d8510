//! [`RunLanes`]: the records of many runs, for threads that take some keys after the other.
//!
//! Threads follow one another through the runs: one takes what it wants of the first ones while the thread before it
//! takes the same of the next. So each section is read once and is in memory once, however many threads there
//! are, and none of them reads at the place of another. Records are not merged here, and not copied: a thread gets
//! [pieces](LanePiece) of sections, each sorted.

use super::form::RunForm;
use super::reader::{IndexedRun, LanePiece, LaneSource, Lot, damaged, first_record, read};
use super::{KeyRange, Merging, RunReader, Runs};
use crate::error::{StorageResult, SyncError};
use crate::workdir::index::prefix;
use apus_storage::Storage;
use core::marker::PhantomData;
use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// See the module.
pub struct RunLanes<'s, F: RunForm> {
    runs: Runs<'s, F>,
    lanes: Vec<RunLane<F>>,
}

impl<'s, F: RunForm> RunLanes<'s, F> {
    /// The records from a key on, for so many threads.
    pub fn open(runs: Runs<'s, F>, from: u64, threads: usize) -> Result<Self, SyncError> {
        let each = (runs.runs.len() / (LANES_EACH * threads)).max(1);
        let numbered = (0..).step_by(each).zip(runs.runs.chunks(each));
        let lanes = numbered.map(|some| RunLane::open(runs.storage, some, from));
        let lanes = lanes.collect::<Result<_, _>>()?;
        Ok(Self { runs, lanes })
    }

    /// The records of some keys, once those below were taken: one lot of each run that has any. All keys have to be
    /// taken, by threads that begin in the order of the keys.
    ///
    /// # Errors
    /// Where another thread failed, which tells why, it is [`SyncError::Interrupted`].
    pub fn take(&self, keys: KeyRange) -> Result<Vec<Lot>, SyncError> {
        if keys.until == Some(keys.from) {
            // Of two threads that wait for the same key the wrong one might be first.
            return Ok(Vec::new());
        }
        let mut lots = Vec::with_capacity(self.runs.runs.len());
        for lane in &self.lanes {
            lane.take(self.runs.storage, &self.runs.runs, keys, &mut lots)?;
        }
        Ok(lots)
    }

    /// What was taken, by ascending key.
    pub fn merge(&self, lots: Vec<Lot>) -> Result<Merging<'s, F>, SyncError> {
        let reader = |lot: Lot| RunReader::of_lot(&self.runs.runs[lot.run], lot);
        Merging::of(self.runs.storage, lots.into_iter().map(reader))
    }

    /// Whether all records were taken.
    pub fn is_at_end(&mut self) -> Result<bool, SyncError> {
        let mut lots = Vec::new();
        for lane in &mut self.lanes {
            let state = lane.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            state.take::<F>(self.runs.storage, &self.runs.runs, None, &mut lots)?;
        }
        Ok(lots.is_empty())
    }

    /// Removes what was made on the way.
    pub fn close(self) -> Result<(), SyncError> {
        self.runs.close()
    }
}

/// How many lanes there are for each thread, where there are so many runs: enough that none waits long for its turn, and few
/// enough that to have it costs little.
const LANES_EACH: usize = 4;

/// Some runs that a thread passes through in one turn.
struct RunLane<F> {
    state: Mutex<LaneState>,
    moved: Condvar,
    form: PhantomData<F>,
}

struct LaneState {
    /// The number of the first run.
    first: usize,
    runs: Vec<LanePlace>,
    /// The key from which on the next thread takes records; none where all were taken.
    next: Option<u64>,
    /// How many threads wait for their turn.
    waiting: usize,
    /// A thread failed: there will be no more turns.
    failed: bool,
}

/// How far a run was taken.
struct LanePlace {
    /// What is read, if no memory holds it.
    file: Option<Box<dyn Read + Send>>,
    /// The next section.
    section: usize,
    /// Where that begins in the run.
    offset: usize,
    /// What was read and not taken.
    rest: Option<LanePiece>,
    /// Records below this key are left out.
    from: u64,
}

impl<F: RunForm> RunLane<F> {
    fn open(
        storage: &dyn Storage,
        (first, runs): (usize, &[IndexedRun]),
        from: u64,
    ) -> Result<Self, SyncError> {
        let runs = runs.iter().map(|run| LanePlace::open(storage, run, from));
        let runs = runs.collect::<Result<_, _>>()?;
        let state = LaneState { first, runs, next: Some(from), waiting: 0, failed: false };
        Ok(Self { state: Mutex::new(state), moved: Condvar::new(), form: PhantomData })
    }

    /// Waits for the turn of the thread that takes some keys, and takes them.
    fn take(
        &self,
        storage: &dyn Storage,
        runs: &[IndexedRun],
        keys: KeyRange,
        lots: &mut Vec<Lot>,
    ) -> Result<(), SyncError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.next != Some(keys.from) && !state.failed {
            state.waiting += 1;
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        if state.failed {
            return Err(SyncError::Interrupted);
        }
        let mut turn = LaneTurn { state, of: &self.moved };
        // Until all is done, whatever happens.
        turn.state.failed = true;
        turn.state.take::<F>(storage, runs, keys.until, lots)?;
        turn.state.next = keys.until;
        turn.state.failed = false;
        Ok(())
    }
}

/// A thread's turn. Should it end early, those who wait for theirs must not wait for good.
struct LaneTurn<'t> {
    state: MutexGuard<'t, LaneState>,
    of: &'t Condvar,
}

impl Drop for LaneTurn<'_> {
    fn drop(&mut self) {
        if self.state.waiting > 0 {
            self.of.notify_all();
        }
    }
}

impl LaneState {
    /// The next records of each run, which have keys below this one.
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

impl LanePlace {
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

    /// The next records that are in one section and have keys below this one; none where there are none.
    fn next<F: RunForm>(
        &mut self,
        storage: &dyn Storage,
        run: &IndexedRun,
        until: Option<u64>,
    ) -> Result<Option<LanePiece>, SyncError> {
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
            // Where the next section begins with such a record, all records before it are such.
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
    ) -> Result<LanePiece, SyncError> {
        let (name, section) = (&run.info.name, &run.index.sections[self.section]);
        let (start, length) = (self.offset, section.bytes as usize);
        let mut piece = match (&run.info.held, &mut self.file) {
            (Some(held), _) => LanePiece::held(held, start..start + length),
            (None, Some(file)) => {
                let mut bytes = vec![0; length];
                read(storage, name, &mut **file, &mut bytes)?;
                if !section.is_of(&bytes) {
                    return Err(damaged(storage, name));
                }
                LanePiece { of: LaneSource::Section(Arc::new(bytes)), range: 0..length }
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

/// How many bytes the records take whose keys are below this one; none where these are no records.
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

    /// What threads take that claim these ranges one after the other, by range.
    fn taken(
        lanes: &RunLanes<'_, CoinsForm>,
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
        /// However keys are cut, and however many threads there are.
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
                RunLanes::open(runs, from, threads).unwrap()
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

    /// A thread that finds a section damaged tells so, and the threads behind it end as well, but for those that had what
    /// they wanted.
    #[test]
    fn those_behind_one_that_fails_do_not_wait() {
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
                let lanes = RunLanes::open(runs, 0, threads).unwrap();
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
