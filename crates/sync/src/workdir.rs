//! The work folder, from which a sync resumes after a stop at any moment.
//!
//! A finished segment consists of several files: its runs, and its partial result, which contains the length
//! and checksum of each run and gets its name when the bytes of all of them are durable. So a segment is either
//! finished or not, whenever the power fails. Other files of a crashed sync are ignored, and the next start
//! removes them. Formats: `docs/formats/workdir.md`.

pub mod index;
pub mod invalid;
pub mod names;
pub mod plan;
pub mod record;
mod segment;

pub use segment::{FinishedRange, HeldRun, RunInfo, SegmentsOf, runs_of};

use crate::engines::pass::{PartialResult, Pass, RunKind};
use crate::error::{IoError, StorageResult, SyncError, UsageError};
use apus_chain::HeightRange;
use apus_hash::sha256;
use apus_storage::{Storage, read_whole, write_atomically};
use index::{RunIndex, checksum};
use names::{
    BASE, COINS, GONE, HINTS, INDEX, JOINED, LOCK, MERGE, PLAN, POSITIONS, RECORD, SPILL,
    SPILL_BASE, is_download, is_input, is_work_file, look_alike, partial_name, partial_of_run,
    range_of_partial,
};
use plan::Plan;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::io::{self, ErrorKind};

/// Maximum length of a plan: four bytes for each segment, with at most one segment for each height.
const PLAN_BYTES_MAX: u64 = 64 << 20;

/// Maximum length of a partial result.
const PARTIAL_BYTES_MAX: u64 = 1 << 30;

/// A folder with a sync's progress.
pub struct Workdir<'a> {
    storage: &'a dyn Storage,
    /// SHA-256 of the plan: partial results of another plan are ignored.
    plan_id: [u8; 32],
}

/// Converts the error for a file that is missing, or longer than any file of a sync, to `None`.
pub(crate) fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidData) => {
            Ok(None)
        }
        other => other.map(Some),
    }
}

/// Returns the error for a work folder whose content contradicts itself.
pub(crate) fn damaged(storage: &dyn Storage) -> SyncError {
    SyncError::Io(IoError::WorkdirDamaged { file: storage.describe("") })
}

impl<'a> Workdir<'a> {
    /// Reads the plan of an earlier start, if there is one. Fails if the folder belongs to another program: it
    /// has foreign files and no plan, or foreign files with the names of a sync's.
    pub fn read_plan(storage: &dyn Storage) -> Result<Option<Plan>, SyncError> {
        let names = storage.names().at(storage, "")?;
        if names.iter().any(|name| name == PLAN) {
            let bytes = read_whole(storage, PLAN, PLAN_BYTES_MAX).at(storage, PLAN)?;
            let damaged =
                || SyncError::Io(IoError::WorkdirDamaged { file: storage.describe(PLAN) });
            return Plan::from_bytes(&bytes).map(Some).ok_or_else(damaged);
        }
        let mut foreign = names.iter().find(|name| !is_work_file(name)).cloned();
        if foreign.is_none() {
            foreign = look_alike(storage, &names)?;
        }
        match foreign {
            Some(name) => Err(SyncError::Usage(UsageError::NotAWorkFolder {
                folder: storage.describe(""),
                name,
            })),
            None => Ok(None),
        }
    }

    /// Returns the storage of the folder.
    pub fn storage(&self) -> &'a dyn Storage {
        self.storage
    }

    /// Returns the SHA-256 of the folder's plan.
    pub fn plan_id(&self) -> &[u8; 32] {
        &self.plan_id
    }

    /// Removes files of an earlier start that no later one can use: intermediate merged runs, and the spilled
    /// coins of a snapshot.
    pub fn clear_scratch(storage: &'a dyn Storage) -> Result<(), SyncError> {
        Self { storage, plan_id: [0; 32] }.clear_scratch_but(&HashSet::new())
    }

    /// Does the same, but keeps the files that this start resumes from.
    pub fn clear_scratch_but(&self, keep: &HashSet<&str>) -> Result<(), SyncError> {
        let is_scratch =
            |name: &str| name.starts_with(MERGE) || name.starts_with(SPILL) || name == JOINED;
        self.remove(|name| is_scratch(name) && !keep.contains(name))
    }

    /// Starts a sync: makes its plan durable.
    pub fn start(storage: &'a dyn Storage, plan: &Plan) -> Result<Self, SyncError> {
        let bytes = plan.to_bytes();
        let workdir = Self { storage, plan_id: sha256(&bytes) };
        workdir.remove(|name| name != LOCK && !is_input(name))?;
        write_atomically(storage, PLAN, &bytes).at(storage, PLAN)?;
        Ok(workdir)
    }

    /// Changes the plan and keeps the segments that are finished under the new one; removes everything else
    /// from the folder. A crash during the call may lose these segments.
    pub fn change<P: PartialResult>(
        storage: &'a dyn Storage,
        plan: &Plan,
        done: &[FinishedRange<P>],
    ) -> Result<Self, SyncError> {
        let bytes = plan.to_bytes();
        let workdir = Self { storage, plan_id: sha256(&bytes) };
        write_atomically(storage, PLAN, &bytes).at(storage, PLAN)?;
        for done in done {
            let (name, part) = (partial_name(done.range), done.to_bytes(&workdir.plan_id));
            write_atomically(storage, &name, &part).at(storage, &name)?;
        }
        workdir.keep_only(&[PLAN, LOCK, BASE], done)?;
        Ok(workdir)
    }

    /// Resumes a sync: returns the finished segments of its pass, or parts of segments if some ended early, and removes
    /// everything else from the folder.
    pub fn resume<P: Pass>(
        storage: &'a dyn Storage,
        plan: &Plan,
    ) -> Result<(Self, SegmentsOf<P>), SyncError> {
        let workdir = Self { storage, plan_id: sha256(&plan.to_bytes()) };
        let mut done: SegmentsOf<P> = Vec::new();
        let names = storage.names().at(storage, "")?;
        let mut ranges: Vec<HeightRange> =
            names.iter().filter_map(|it| range_of_partial(it)).collect();
        // A part that was processed again for a blame may overlap a longer one.
        ranges.sort_unstable_by_key(|range| (range.start, Reverse(range.end)));
        for range in ranges {
            let is_next = done.last().is_none_or(|last| last.range.end <= range.start);
            if is_next && plan.has_within_one(range) {
                done.extend(workdir.read(range, P::RUNS)?);
            }
        }
        // The sync may have continued above its hints: the files that record how far belong to this plan.
        workdir.keep_only(&[PLAN, LOCK, RECORD, POSITIONS, JOINED, BASE], &done)?;
        Ok((workdir, done))
    }

    /// Discards the finished segment or the join result that a damaged run belongs to, so that the next start
    /// repeats that work.
    pub fn forget(storage: &dyn Storage, run_name: &str) -> Result<(), SyncError> {
        let partial = match run_name {
            // An empty record says that there was a base: the segments above it are useless.
            name if name.starts_with(SPILL_BASE) => {
                return write_atomically(storage, BASE, &[]).at(storage, BASE);
            }
            name if name.starts_with(SPILL) => JOINED.to_owned(),
            name => partial_of_run(name),
        };
        storage.remove(&partial).at(storage, &partial)?;
        storage.sync_names().at(storage, "")
    }

    /// Removes some files, which need not exist.
    pub(crate) fn remove_files(&self, names: &HashSet<&str>) -> Result<(), SyncError> {
        self.remove(|name| names.contains(name))
    }

    /// Removes all files of a sync, the plan last.
    pub fn discard(storage: &'a dyn Storage) -> Result<(), SyncError> {
        let workdir = Self { storage, plan_id: [0; 32] };
        workdir.remove(|name| name != LOCK && name != PLAN)?;
        workdir.remove(|name| name == PLAN)
    }

    /// Removes everything except the record about coins that stay on servers, from which a later start resumes.
    pub fn leave_record(storage: &'a dyn Storage) -> Result<(), SyncError> {
        let workdir = Self { storage, plan_id: [0; 32] };
        workdir.remove(|name| ![LOCK, PLAN, RECORD].contains(&name))?;
        workdir.remove(|name| name == PLAN)
    }

    /// Removes all files of a sync that ended with a negative verdict. The plan, and with it the key, is
    /// removed first: files that survive a crash from then on are worthless.
    pub fn wipe(&self) -> Result<(), SyncError> {
        self.storage.remove(PLAN).at(self.storage, PLAN)?;
        self.storage.sync_names().at(self.storage, "")?;
        self.remove(|name| name != LOCK && !is_download(name))
    }

    /// Removes the files of a failed sync, except for downloads, which the next sync can use. Returns whether
    /// any remain.
    pub fn give_up(storage: &'a dyn Storage) -> Result<bool, SyncError> {
        let workdir = Self { storage, plan_id: [0; 32] };
        workdir.remove(|name| name != LOCK && name != PLAN && !is_download(name))?;
        workdir.remove(|name| name == PLAN)?;
        Ok(storage.names().at(storage, "")?.iter().any(|name| is_download(name)))
    }

    /// Returns whether the folder has anything to resume from: downloads, finished segments, a join result,
    /// connected blocks. A plan alone does not count.
    pub fn has_progress(storage: &'a dyn Storage) -> bool {
        let is_progress = |name: &String| {
            name.ends_with(".part")
                || [RECORD, JOINED, BASE].contains(&&**name)
                || is_download(name)
        };
        storage.names().is_ok_and(|names| names.iter().any(is_progress))
    }

    /// Removes everything except these files, the files of finished segments, and data from before the plan.
    fn keep_only<P>(&self, names: &[&str], done: &[FinishedRange<P>]) -> Result<(), SyncError> {
        let done: HashSet<String> = done.iter().flat_map(FinishedRange::names).collect();
        self.remove(|name| !names.contains(&name) && !done.contains(name) && !is_input(name))
    }

    fn remove(&self, which: impl Fn(&str) -> bool) -> Result<(), SyncError> {
        for name in self.storage.names().at(self.storage, "")? {
            // Folders belong to other modules.
            if is_work_file(&name) && ![COINS, INDEX, HINTS, GONE].contains(&&*name) && which(&name)
            {
                self.storage.remove(&name).at(self.storage, &name)?;
            }
        }
        self.storage.sync_names().at(self.storage, "")
    }

    /// Describes the file of a segment's partial result, for messages.
    pub fn describe<P>(&self, done: &FinishedRange<P>) -> String {
        self.storage.describe(&partial_name(done.range))
    }

    /// Returns the error for a folder whose content contradicts itself.
    pub fn damaged(&self) -> SyncError {
        damaged(self.storage)
    }

    /// Reads the bytes of a run, all at once: for runs that are read in order, each when it is needed.
    /// Together, the runs of the whole chain would fill memory.
    pub fn read_run<'r>(&self, run: &'r RunInfo) -> Result<Cow<'r, [u8]>, SyncError> {
        if let Some(held) = &run.held {
            return Ok(Cow::Borrowed(&held.bytes));
        }
        if !run.has_file() {
            return Ok(Cow::default());
        }
        let name = &run.name;
        // The bytes changed since they were written or read. The next start detects that and repeats the work.
        let damaged = || {
            SyncError::Io(IoError::RunDamaged {
                run: name.clone(),
                file: self.storage.describe(name),
            })
        };
        let length = run.file_bytes();
        let bytes = present(read_whole(self.storage, name, length)).at(self.storage, name)?;
        let mut bytes = bytes.filter(|bytes| bytes.len() as u64 == length).ok_or_else(damaged)?;
        let index = bytes.split_off(run.bytes as usize);
        let index = (checksum(&index) == run.checksum).then(|| RunIndex::read(&index, run.bytes));
        match index.flatten().is_some_and(|index| index.is_of(&bytes)) {
            true => Ok(Cow::Owned(bytes)),
            false => Err(damaged()),
        }
    }

    /// Reads a segment; `None` if it is not finished, which means: its partial result is not intact or not of
    /// this plan, or a run is missing. A disk error must not discard the segment, so it is returned.
    fn read<P: PartialResult>(
        &self,
        range: HeightRange,
        kinds: &[RunKind],
    ) -> Result<Option<FinishedRange<P>>, SyncError> {
        let name = partial_name(range);
        let bytes = present(read_whole(self.storage, &name, PARTIAL_BYTES_MAX));
        let Some(bytes) = bytes.at(self.storage, &name)? else { return Ok(None) };
        let done = FinishedRange::from_bytes(&bytes, &self.plan_id, range, kinds);
        for run in done.iter().flat_map(|done| &done.runs).filter(|run| run.has_file()) {
            let length = present(self.storage.len(&run.name)).at(self.storage, &run.name)?;
            if length != Some(run.file_bytes()) {
                return Ok(None);
            }
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::names::run_name;
    use super::*;
    use crate::engines::pass::FinishedSegment;
    use crate::engines::swiftsync::aggregate::{AggregateKind, Aggregator, Secret};
    use crate::engines::swiftsync::{Partial, SwiftSync};
    use crate::workdir::plan::testing::plan;
    use apus_chain::{BlockHash, Reader};
    use apus_testkit::storage::{AfterCrash, CrashStorage, FaultStorage, Operation};

    const FIRST: HeightRange = HeightRange::new(1, 5);
    const SECOND: HeightRange = HeightRange::new(5, 9);

    /// Makes a segment's result with empty sums.
    fn finished(range: HeightRange) -> Partial {
        let kind = AggregateKind::Sha256;
        let sums = Aggregator::new(kind, &Secret([0; 32]), BlockHash([1; 32]), [2; 32]).zero();
        let mut bytes = vec![1];
        bytes.extend([range.start.to_le_bytes(), range.end.to_le_bytes()].concat());
        // Counts, amounts, sums, the MuHash of the empty set, no coinbases.
        bytes.extend([7; 10 * 8 + 2 * 16]);
        sums.write(&mut bytes);
        bytes.extend(apus_chain::MuHash::new().to_bytes());
        bytes.push(0);
        let mut reader = Reader::new(&bytes);
        let partial = Partial::read(&mut reader).unwrap();
        reader.finish().unwrap();
        partial
    }

    /// Makes a folder with both segments finished.
    fn filled() -> (CrashStorage, Vec<FinishedRange<Partial>>) {
        let storage = CrashStorage::new();
        let workdir = Workdir::start(&storage, &plan(9)).unwrap();
        let done = [FIRST, SECOND].map(|range| {
            let runs = vec![vec![3; 100], vec![range.start as u8; 20], vec![], vec![]];
            let finished = FinishedSegment { partial: finished(range), runs };
            let mut done = FinishedRange::held(range, finished, SwiftSync::RUNS);
            assert_eq!(*workdir.read_run(hints_of(&done)).unwrap(), [range.start as u8; 20]);
            assert_eq!(done.held_bytes(), 120);
            workdir.store(std::slice::from_mut(&mut done)).unwrap();
            assert_eq!(done.held_bytes(), 0);
            done
        });
        (storage.clone(), done.to_vec())
    }

    fn hints_of(done: &FinishedRange<Partial>) -> &RunInfo {
        done.run(SwiftSync::HINTS).unwrap()
    }

    /// Returns the names of a segment's runs.
    fn runs(range: HeightRange) -> [String; 2] {
        [SwiftSync::COINS, SwiftSync::HINTS].map(|kind| run_name(range, kind))
    }

    fn resumed(storage: &CrashStorage, plan: &Plan) -> Vec<FinishedRange<Partial>> {
        Workdir::resume::<SwiftSync>(storage, plan).unwrap().1
    }

    #[test]
    fn stored_segments_are_found() {
        let (storage, done) = filled();
        assert_eq!(Workdir::read_plan(&storage).unwrap(), Some(plan(9)));
        assert_eq!(resumed(&storage, &plan(9)), done);
        assert_eq!(resumed(&storage.durable_image(), &plan(9)), done);
        let (workdir, _) = Workdir::resume::<SwiftSync>(&storage, &plan(9)).unwrap();
        assert_eq!(*workdir.read_run(hints_of(&done[0])).unwrap(), [1; 20]);
        assert_eq!(*workdir.read_run(hints_of(&done[1])).unwrap(), [5; 20]);
        let name = &hints_of(&done[0]).name;
        let file = storage.live_files()[name].clone();
        let flipped = |at: usize| {
            let mut file = file.clone();
            file[at] ^= 1;
            file
        };
        let lengths = [file[..19].to_vec(), file[1..].to_vec(), [&file[..], &[1]].concat()];
        // Damages the run, and its index.
        for rotten in lengths.into_iter().chain([0, 19, 20, 28, file.len() - 1].map(flipped)) {
            storage.create(name).unwrap().write_all(&rotten).unwrap();
            let error = workdir.read_run(hints_of(&done[0])).unwrap_err();
            assert!(
                matches!(&error, SyncError::Io(IoError::RunDamaged { run, .. }) if *run == runs(FIRST)[1])
            );
        }
        // The length is right, so only reading the run shows the damage.
        assert_eq!(resumed(&storage, &plan(9)), done);
        Workdir::forget(&storage, &hints_of(&done[0]).name).unwrap();
        assert_eq!(resumed(&storage, &plan(9)), done[1..]);
    }

    #[test]
    fn damaged_parts_do_not_count() {
        let (storage, done) = filled();
        let whole = storage.live_files();
        let name = partial_name(FIRST);
        let bytes = &whole[&name];
        let expect_lost = |bytes: Vec<u8>, why: &str| {
            let mut files = whole.clone();
            files.insert(name.clone(), bytes);
            let storage = CrashStorage::holding(files);
            assert_eq!(resumed(&storage, &plan(9)), done[1..], "{why}");
            // An invalid partial result is removed, and so are its runs.
            let [coins, hints] = runs(SECOND);
            let expected = ["plan", &hints, &partial_name(SECOND), &coins];
            assert_eq!(storage.names().unwrap(), expected);
        };
        for length in 0..bytes.len() {
            expect_lost(bytes[..length].to_vec(), "cut short");
        }
        for place in 0..bytes.len() {
            let mut copy = bytes.clone();
            copy[place] ^= 1 << (place % 8);
            expect_lost(copy, "a flipped bit");
        }
        expect_lost([bytes, &[0][..]].concat(), "a byte too many");
        expect_lost(whole[&partial_name(SECOND)].clone(), "from another segment");
    }

    /// A partial result with a right checksum does not count under another segment's name.
    #[test]
    fn a_partial_result_under_another_name_is_ignored() {
        let (storage, done) = filled();
        drop(storage);
        let id = sha256(&plan(9).to_bytes());
        let decode = |bytes: &[u8]| FinishedRange::from_bytes(bytes, &id, FIRST, SwiftSync::RUNS);
        for partial in [done[1].partial.clone(), finished(HeightRange::new(1, 4))] {
            let lying = FinishedRange { partial, ..done[0].clone() };
            assert_eq!(decode(&lying.to_bytes(&id)), None);
        }
        assert_eq!(decode(&done[0].to_bytes(&id)), Some(done[0].clone()));
    }

    #[test]
    fn a_sync_above_its_hints_keeps_its_record() {
        let (storage, done) = filled();
        storage.create(RECORD).unwrap().write_all(b"how far").unwrap();
        assert_eq!(resumed(&storage, &plan(9)), done);
        assert!(storage.live_files().contains_key(RECORD));
    }

    #[test]
    fn segments_of_another_plan_do_not_count() {
        let (storage, _) = filled();
        assert_eq!(resumed(&storage, &plan(8)), []);
        assert_eq!(storage.names().unwrap(), ["plan"]);
    }

    #[test]
    fn a_run_of_another_length_does_not_count() {
        for name in &runs(SECOND) {
            let bytes = filled().0.live_files()[name].len();
            for length in [None, Some(0), Some(bytes - 1), Some(bytes + 1)] {
                let (storage, done) = filled();
                let mut files = storage.live_files();
                files.remove(name);
                files.extend(length.map(|length| (name.clone(), vec![3; length])));
                assert_eq!(resumed(&CrashStorage::holding(files), &plan(9)), done[..1]);
            }
        }
    }

    /// Discarding a segment because the disk failed once would cost its work; and a disk that fails for all of
    /// them would cost everything.
    #[test]
    fn read_errors_discard_no_progress() {
        let (storage, done) = filled();
        let faulty = FaultStorage::new(storage.clone());
        for operation in [Operation::Len, Operation::Open, Operation::Read] {
            for n in 0..2 {
                faulty.fail_nth(operation, n, ErrorKind::Other);
                let error = Workdir::resume::<SwiftSync>(&faulty, &plan(9)).err().unwrap();
                assert!(matches!(error, SyncError::Io(IoError::Storage { .. })), "{error}");
                assert!(error.to_string().contains("segment-0000000"), "{error}");
                faulty.heal();
            }
        }
        assert_eq!(resumed(&storage, &plan(9)), done);
    }

    /// Of many segments stored together, those before the first that could not be written count. If waiting for
    /// the disk fails, none counts.
    #[test]
    fn stored_segments_before_a_fault_count() {
        let mut plan = plan(9);
        plan.identity.stop = 24;
        plan.segments = (0..6).map(|at| HeightRange::new(4 * at + 1, 4 * at + 5)).collect();
        let held = || -> Vec<FinishedRange<Partial>> {
            let held = |range: &HeightRange| {
                let runs = vec![vec![3; 100], vec![range.start as u8; 20], vec![], vec![]];
                let finished = FinishedSegment { partial: finished(*range), runs };
                FinishedRange::held(*range, finished, SwiftSync::RUNS)
            };
            plan.segments.iter().map(held).collect()
        };
        // Two runs and the partial result of each segment are created and waited for.
        let faults = [
            (Operation::Create, 7),
            (Operation::Create, 0),
            (Operation::Sync, 5),
            (Operation::Rename, 2),
            (Operation::SyncNames, 0),
        ];
        for (operation, nth) in faults {
            let storage = CrashStorage::new();
            Workdir::start(&storage, &plan).unwrap();
            let faulty = FaultStorage::new(storage.clone());
            let (workdir, _) = Workdir::resume::<SwiftSync>(&faulty, &plan).unwrap();
            let mut done = held();
            faulty.fail_nth(operation, nth, ErrorKind::StorageFull);
            let error = workdir.store(&mut done).unwrap_err();
            assert!(matches!(error, SyncError::Io(IoError::Storage { .. })), "{error}");
            let count = if operation == Operation::Create { nth as usize / 3 } else { 0 };
            let stored: Vec<bool> = done.iter().map(|done| done.stored).collect();
            assert_eq!(stored, (0..6).map(|at| at < count).collect::<Vec<_>>(), "{operation:?}");
            faulty.heal();
            assert_eq!(resumed(&storage.durable_image(), &plan), done[..count]);
            workdir.store(&mut done).unwrap();
            assert_eq!(resumed(&storage.durable_image(), &plan), done);
        }
        // Whenever the power fails, every segment that counts then is intact.
        let whole = |done: &FinishedRange<Partial>, workdir: &Workdir<'_>| {
            let run = workdir.read_run(hints_of(done)).unwrap().to_vec();
            assert_eq!(run, [done.range.start as u8; 20]);
            let coins = done.run(SwiftSync::COINS).unwrap();
            assert_eq!(*workdir.read_run(coins).unwrap(), [3; 100]);
        };
        for (at, after) in
            (0..19).flat_map(|at| [(at, AfterCrash::Fail), (at, AfterCrash::Unnoticed)])
        {
            let storage = CrashStorage::new();
            let workdir = Workdir::start(&storage, &plan).unwrap();
            storage.crash_at(storage.syncs() + at, after);
            let mut done = held();
            let stored = workdir.store(&mut done);
            assert!(stored.is_ok() == matches!(after, AfterCrash::Unnoticed) && storage.crashed());
            for seed in 0..4 {
                let image = storage.crash_image(seed);
                let (workdir, found) = Workdir::resume::<SwiftSync>(&image, &plan).unwrap();
                found.iter().for_each(|done| whole(done, &workdir));
                // No file has its name before all bytes are durable, unless the disk lied.
                let may_be_there = at == 18 || after == AfterCrash::Unnoticed;
                assert!(may_be_there || found.is_empty(), "{at}: {found:?}");
            }
        }
    }

    #[test]
    fn a_forgotten_segment_is_not_found_again() {
        let (storage, done) = filled();
        let (workdir, _) = Workdir::resume::<SwiftSync>(&storage, &plan(9)).unwrap();
        Workdir::forget(workdir.storage(), &runs(FIRST)[0]).unwrap();
        assert_eq!(resumed(&storage.durable_image(), &plan(9)), done[1..]);
    }

    /// The plan and the work under it are removed in a fixed order.
    #[test]
    fn the_plan_is_removed_last_on_success_and_first_on_failure() {
        for well in [true, false] {
            for at in 0..2 {
                let (storage, _) = filled();
                let storage = CrashStorage::holding(storage.live_files());
                storage.crash_at(at, apus_testkit::storage::AfterCrash::Fail);
                let (ended, first_gone): (_, fn(&str) -> bool) = if well {
                    (Workdir::discard(&storage), |name| name != PLAN)
                } else {
                    let workdir = Workdir { storage: &storage, plan_id: [0; 32] };
                    (workdir.wipe(), |name| name == PLAN)
                };
                assert!(ended.is_err());
                for seed in 0..30 {
                    let names = storage.crash_image(seed).names().unwrap();
                    let first_is_there = names.iter().any(|name| first_gone(name));
                    let rest_is_whole = [PLAN, &partial_name(FIRST), &runs(SECOND)[0].clone()]
                        .iter()
                        .filter(|name| !first_gone(name))
                        .all(|name| names.iter().any(|found| found == name));
                    match at {
                        0 => assert!(rest_is_whole, "{names:?}"),
                        _ => assert!(!first_is_there, "{names:?}"),
                    }
                }
            }
        }
    }

    #[test]
    fn a_name_alone_makes_no_folder_ours() {
        let plan_of = |files: &[(&str, &[u8])]| {
            let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec()));
            let storage = CrashStorage::holding(files.collect());
            let before = storage.names().unwrap();
            let read = Workdir::read_plan(&storage);
            assert_eq!(storage.names().unwrap(), before);
            read
        };
        for name in ["addresses", "counts", "counts-new", "kept", "positions", "headers-00001"] {
            let error = plan_of(&[(name, b"mine"), ("lock", b"")]).unwrap_err();
            assert!(
                matches!(error, SyncError::Usage(UsageError::NotAWorkFolder { .. })),
                "{error}"
            );
            assert!(error.to_string().contains(name), "{error}");
            assert_eq!(plan_of(&[(name, b""), ("lock", b"")]).unwrap(), None, "after a crash");
        }
        assert_eq!(
            plan_of(&[("connected", b"rotten")]).unwrap(),
            None,
            "the reader of that file reports it"
        );
        for (name, bytes) in [
            ("addresses", &b"apus-addresses 1 main\n"[..]),
            ("counts", b"APUSTXNS1234"),
            ("counts-new", b"APUSTXNS1234"),
            ("kept", b"APUSKEPT1234"),
            ("positions", b"APUSKEPT1234"),
            ("connected", b"APUSCONN1234"),
            ("headers-00000", b"APUSHDRS1234"),
        ] {
            assert_eq!(plan_of(&[(name, bytes)]).unwrap(), None, "{name}");
            let with_damaged = [(name, bytes), ("headers-00001", b"rotten")];
            assert_eq!(plan_of(&with_damaged).unwrap(), None, "{name}");
        }
    }

    #[test]
    fn names_of_files() {
        for name in [
            "plan",
            "plan.tmp",
            "lock",
            "segment-00000001-00000005.run",
            "segment-00000001-00000005.part",
            "segment-00000001-00000005.part.tmp",
            "merge-12.run",
            "spill-0.run",
            "addresses",
            "addresses.tmp",
        ] {
            assert!(is_work_file(name), "{name}");
        }
        for name in ["", "plan.bak", "planned", "segments", "merge-12", "a.run", "x.part", "locks"]
        {
            assert!(!is_work_file(name), "{name}");
        }
    }
}
