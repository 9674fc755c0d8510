//! Sorted runs: reads one, merges many in bounded memory.
//!
//! A run has records by ascending key, each key once. The [`RunForm`] defines their layout; records of
//! [`CoinsForm`] are `txid[32] ‖ u32le length ‖ group`, where a group is all surviving coins of one transaction
//! in the form of a UTXO snapshot. However many runs there are, at most [`MergeBudget::fan_in`] files are open
//! at once, or that number for each thread: if there are more runs, they are first merged into longer ones. All
//! bytes read are compared with the checksums of their [sections](crate::workdir::index); these also let a
//! merge begin and end anywhere among the keys.

mod form;
mod merge;
mod reader;
mod scan;

pub use form::RecordGroup;
pub use form::{CoinsForm, HashesForm, OutputForm, PlacesForm, PrevoutForm, RunForm, SpendForm};
pub use merge::RunMerger;
pub use merge::RunWriter;
pub use merge::{divide, divide_sizes};
pub use scan::SharedScan;

use crate::error::{StorageResult, SyncError};
use crate::system::runs_open_max;
use crate::workdir::RunInfo;
use crate::workdir::index::{RunIndex, SECTION_BYTES, Section};
use crate::workdir::names::MERGE;
use apus_chain::Txid;
use apus_storage::Storage;
use core::convert::Infallible;
use core::marker::PhantomData;
use reader::{IndexedRun, RunReader};
pub use reader::{Lot, RunCursor, ScanChunk, first_record};
use std::collections::VecDeque;

/// Records merged between two checks for an interrupt and progress reports, which takes some milliseconds.
pub const RECORDS_BETWEEN_NEWS: u64 = 1024;

/// Maximum number of runs that one merge opens: above that, longer runs are faster to read.
const RUNS_OPEN_MAX: u64 = 512;

/// Receives a record.
pub type EachRecord<'a> = dyn FnMut(&[u8]) -> Result<(), SyncError> + 'a;

/// Splits `bytes` from a merge into records, as txid and group.
pub fn records(bytes: &[u8]) -> impl Iterator<Item = (Txid, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (txid, after) = rest.split_first_chunk::<32>()?;
        let (length, after) = after.split_first_chunk::<4>()?;
        let (group, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rest = after;
        Some((Txid(*txid), group))
    })
}

/// Called regularly with the bytes of records merged since the last call; an error from it stops the work.
pub type GoOn<'a> = dyn Fn(u64) -> Result<(), SyncError> + Sync + 'a;

/// Limits of a merge.
#[derive(Debug, Clone, Copy)]
pub struct MergeBudget {
    /// Number of runs in the final merge, at least 2. One section of each is in memory. Runs held entirely in
    /// memory do not count.
    pub fan_in: usize,
    /// Length of the sections of intermediate runs.
    pub section_bytes: usize,
    /// Threads that write intermediate runs, one run each at a time.
    pub threads: usize,
    /// Number of runs that these threads may have open in total.
    pub open: usize,
    /// Limit for `open`, used if fewer open runs would mean merging all runs twice.
    pub open_max: usize,
}

impl MergeBudget {
    /// Opens as many runs as `bytes` of memory hold sections of. Stays below the system's limit, because some
    /// merges have two kinds of runs.
    pub fn new(bytes: u64) -> Self {
        Self::opening(bytes, runs_open_max() / 2)
    }

    fn opening(bytes: u64, open_max: u64) -> Self {
        let most = open_max.clamp(2, RUNS_OPEN_MAX);
        let fan_in = (bytes / SECTION_BYTES as u64).clamp(2, most) as usize;
        Self { fan_in, section_bytes: SECTION_BYTES, threads: 1, open: fan_in, open_max: fan_in }
    }

    /// Sets the number of threads that write intermediate runs.
    pub fn by(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Sets the memory limit for writing intermediate runs, in total.
    pub fn making(self, bytes: u64) -> Self {
        let most = runs_open_max().max(self.open as u64);
        let open_max = (bytes / SECTION_BYTES as u64).clamp(self.open as u64, most);
        Self { open_max: open_max as usize, ..self }
    }

    /// Returns the budget for threads that each open all runs in the final merge, with this much memory in
    /// total.
    pub fn for_each_of(threads: usize, bytes: u64) -> Self {
        let of = threads.max(1) as u64;
        let one = Self::opening(bytes / of, runs_open_max() / of);
        let open = one.fan_in * threads.max(1);
        Self { threads, open, open_max: open, ..one }
    }

    /// Returns, for a number of files, how many intermediate runs are written at a time, and how many files
    /// each one merges at most.
    fn groups(&self, files: usize) -> (usize, usize) {
        let groups = self.threads.clamp(1, (self.open / 2).max(1));
        let once = files.div_ceil(self.fan_in).min(RUNS_OPEN_MAX as usize);
        let each = (self.open / groups).max(once.min(self.open_max / groups));
        (groups, each.max(2))
    }

    /// Merges groups of files with `merge`, which returns a longer file for each group, until the number of files is
    /// within the limit of open ones. Merges no more files than necessary, because each merged file is read and written
    /// once more.
    fn reduce<T, E>(
        &self,
        files: impl Iterator<Item = T>,
        merge: &mut dyn FnMut(Vec<Vec<T>>) -> Result<Vec<T>, E>,
    ) -> Result<VecDeque<T>, E> {
        let mut files = VecDeque::from_iter(files);
        let (groups, each) = self.groups(files.len());
        while files.len() > self.fan_in {
            let (mut merged, mut beyond) = (Vec::new(), files.len() - self.fan_in);
            while beyond > 0 && merged.len() < groups && files.len() > 1 {
                let group: Vec<_> = files.drain(..each.min(beyond + 1).min(files.len())).collect();
                beyond -= beyond.min(group.len() - 1);
                merged.push(group);
            }
            files.extend(merge(merged)?);
        }
        Ok(files)
    }

    /// How many bytes [`Runs::open`] merges into longer runs first.
    pub fn bytes_to_merge(&self, runs: &[RunInfo]) -> u64 {
        let mut bytes = 0;
        let mut merge = |groups: Vec<Vec<u64>>| {
            let longer: Vec<u64> = groups.iter().map(|group| group.iter().sum()).collect();
            bytes += longer.iter().sum::<u64>();
            Ok::<_, Infallible>(longer)
        };
        let files = runs.iter().filter(|run| run.held.is_none()).map(|run| run.bytes);
        let Ok(_) = self.reduce(files, &mut merge);
        bytes
    }
}

/// A range of keys, as the numbers that [`prefix`](crate::workdir::index::prefix) computes from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRange {
    /// The first number.
    pub from: u64,
    /// The number after the last; `None` if the range reaches the end.
    pub until: Option<u64>,
}

impl KeyRange {
    /// All keys.
    pub const ALL: Self = Self { from: 0, until: None };

    /// The index of a key's line: 256 lines divide the keys equally for all runs. If partitions begin on lines,
    /// no piece of records must be read for two partitions.
    pub const fn line_of(prefix: u64) -> u64 {
        prefix >> 56
    }

    /// Moves the start of each range down to its line, unless the range before begins on that line.
    pub fn on_lines(ranges: Vec<Self>) -> Vec<Self> {
        let mut from = 0;
        let mut on_line = |range: &Self| {
            let line = Self::line_of(range.from) << 56;
            from = if line > from { line } else { range.from };
            from
        };
        let starts: Vec<u64> = ranges.iter().map(&mut on_line).collect();
        let ends = starts.iter().skip(1).map(|start| Some(*start)).chain([None]);
        starts.iter().zip(ends).map(|(from, until)| Self { from: *from, until }).collect()
    }

    /// Whether a key is below the end of the range.
    fn has_begun_before(&self, prefix: u64) -> bool {
        self.until.is_none_or(|until| prefix < until)
    }
}

/// Builds the index of a run's sections.
pub fn cut<F: RunForm>(run: &[u8]) -> RunIndex {
    RunIndex::cut(run, SECTION_BYTES, first_record::<F>)
}

/// Passes the records of all runs to `each` by ascending key.
///
/// The names of intermediate runs begin with [`MERGE`]; they are removed at the end, and after a crash by
/// [`Workdir`](crate::workdir::Workdir). While they are written, `go_on` is called regularly.
pub fn merge_runs<F: RunForm>(
    storage: &dyn Storage,
    runs: Vec<RunInfo>,
    budget: MergeBudget,
    go_on: &GoOn<'_>,
    each: &mut EachRecord<'_>,
) -> Result<(), SyncError> {
    let runs = Runs::<F>::open(storage, runs, budget, go_on)?;
    runs.part(KeyRange::ALL)?.give(each)?;
    runs.close()
}

/// Merges runs until few enough are in files.
fn merge_to_fan_in<F: RunForm>(
    storage: &dyn Storage,
    runs: Vec<RunInfo>,
    budget: MergeBudget,
    go_on: &GoOn<'_>,
) -> Result<Vec<RunInfo>, SyncError> {
    let (held, files): (Vec<_>, Vec<_>) = runs.into_iter().partition(|run| run.held.is_some());
    let mut names = (0..).map(|number| format!("{MERGE}{}{number}.run", F::NAME));
    let files = budget.reduce(files.into_iter(), &mut |groups| {
        let named = groups.into_iter().zip(&mut names).collect();
        merge_groups::<F>(storage, named, budget.section_bytes, go_on)
    })?;
    Ok(files.into_iter().chain(held).collect())
}

/// Merges each group into a longer run, in parallel, and removes earlier intermediate runs.
fn merge_groups<F: RunForm>(
    storage: &dyn Storage,
    groups: Vec<(Vec<RunInfo>, String)>,
    section_bytes: usize,
    go_on: &GoOn<'_>,
) -> Result<Vec<RunInfo>, SyncError> {
    let merge = |(group, name): (Vec<RunInfo>, String)| {
        let longer = merge_into_run::<F>(storage, &group, section_bytes, name, go_on)?;
        remove_merged(storage, &group).map(|()| longer)
    };
    if groups.len() < 2 {
        return groups.into_iter().map(merge).collect();
    }
    std::thread::scope(|scope| {
        let spawned = groups.into_iter().map(|group| scope.spawn(move || merge(group)));
        let threads: Vec<_> = spawned.collect();
        let joined = threads.into_iter().map(|thread| match thread.join() {
            Ok(longer) => longer,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect()
    })
}

fn remove_merged(storage: &dyn Storage, runs: &[RunInfo]) -> Result<(), SyncError> {
    let mut merged = runs.iter().filter(|run| is_merged(run));
    merged.try_for_each(|run| storage.remove(&run.name).at(storage, &run.name))
}

fn is_merged(run: &RunInfo) -> bool {
    run.name.starts_with(MERGE)
}

/// Merges runs into a longer one, in a file with sections of about `section_bytes`. All of them are open at
/// once.
pub fn merge_into_run<F: RunForm>(
    storage: &dyn Storage,
    runs: &[RunInfo],
    section_bytes: usize,
    name: String,
    go_on: &GoOn<'_>,
) -> Result<RunInfo, SyncError> {
    let mut out = RunWriter::create(storage, name, section_bytes)?;
    let (mut records, mut bytes) = (0u64, 0);
    let runs = Runs::<F>::indexed(storage, runs.to_vec())?;
    runs.part(KeyRange::ALL)?.give(&mut |record| {
        (records, bytes) = (records + 1, bytes + record.len() as u64);
        if records.is_multiple_of(RECORDS_BETWEEN_NEWS) {
            go_on(std::mem::take(&mut bytes))?;
        }
        out.write(record)
    })?;
    go_on(bytes)?;
    out.finish(false)
}

/// Runs that may all be open at once.
pub struct Runs<'s, F> {
    storage: &'s dyn Storage,
    runs: Vec<IndexedRun>,
    form: PhantomData<F>,
}

impl<'s, F: RunForm> Runs<'s, F> {
    /// Opens any number of runs. While they are merged into longer ones, `go_on` is called regularly.
    pub fn open(
        storage: &'s dyn Storage,
        runs: Vec<RunInfo>,
        budget: MergeBudget,
        go_on: &GoOn<'_>,
    ) -> Result<Self, SyncError> {
        Self::indexed(storage, merge_to_fan_in::<F>(storage, runs, budget, go_on)?)
    }

    fn indexed(storage: &'s dyn Storage, runs: Vec<RunInfo>) -> Result<Self, SyncError> {
        let runs = runs.into_iter().map(|run| IndexedRun::open(storage, run));
        Ok(Self { storage, runs: runs.collect::<Result<_, _>>()?, form: PhantomData })
    }

    /// Adds long runs in files, which are never merged into longer ones.
    pub fn with(mut self, long: &[RunInfo]) -> Result<Self, SyncError> {
        self.runs.extend(Self::indexed(self.storage, long.to_vec())?.runs);
        Ok(self)
    }

    /// The sections of all runs.
    pub fn sections(&self) -> impl Iterator<Item = &Section> {
        self.runs.iter().flat_map(|run| &run.index.sections)
    }

    /// The records of a range of keys.
    pub fn part(&self, keys: KeyRange) -> Result<RunMerger<'s, F>, SyncError> {
        let storage = self.storage;
        let readers = self.runs.iter().map(|run| RunReader::open(storage, run, keys));
        RunMerger::of(storage, readers.collect::<Result<Vec<_>, _>>()?.into_iter())
    }

    /// Removes intermediate runs.
    pub fn close(self) -> Result<(), SyncError> {
        let runs: Vec<RunInfo> = self.runs.into_iter().map(|run| run.info).collect();
        remove_merged(self.storage, &runs)
    }
}

#[cfg(test)]
mod tests {
    use super::form::GROUP_BYTES_MAX;
    use super::*;
    use crate::error::{InvalidError, IoError};
    use crate::workdir::index::prefix;
    use apus_testkit::rng::Rng;
    use apus_testkit::storage::{CrashStorage, FaultStorage, Operation};
    use proptest::prelude::*;
    use std::io;
    use std::sync::atomic::{AtomicU64, Ordering};

    pub(super) type Records = Vec<([u8; 32], Vec<u8>)>;

    const BUDGET: MergeBudget =
        MergeBudget { fan_in: 2, section_bytes: 16, threads: 1, open: 2, open_max: 2 };

    pub(super) fn bytes(records: &Records) -> Vec<u8> {
        let record = |(txid, group): &([u8; 32], Vec<u8>)| {
            [&txid[..], &(group.len() as u32).to_le_bytes(), group].concat()
        };
        records.iter().flat_map(record).collect()
    }

    /// A run in memory, with small sections.
    pub(super) fn held(name: &str, bytes: &[u8]) -> RunInfo {
        let index = RunIndex::cut(bytes, BUDGET.section_bytes, first_record::<CoinsForm>);
        RunInfo::held(name.to_owned(), bytes.to_vec(), index)
    }

    /// Writes a run and returns its true description.
    pub(super) fn write(storage: &dyn Storage, name: &str, bytes: &[u8]) -> RunInfo {
        let RunInfo { name, bytes, sections, checksum, held } = held(name, bytes);
        let held = held.unwrap();
        put(storage, &name, &[&held.bytes[..], &held.index.to_bytes()].concat());
        RunInfo { name, bytes, sections, checksum, held: None }
    }

    pub(super) fn put(storage: &dyn Storage, name: &str, file: &[u8]) {
        storage.create(name).unwrap().write_all(file).unwrap();
    }

    fn merged(
        storage: &dyn Storage,
        runs: &[RunInfo],
        budget: MergeBudget,
    ) -> Result<Records, SyncError> {
        let mut all = Vec::new();
        merge_runs::<CoinsForm>(storage, runs.to_vec(), budget, &|_| Ok(()), &mut |record| {
            all.extend(records(record).map(|(txid, group)| (txid.0, group.to_vec())));
            Ok(())
        })?;
        Ok(all)
    }

    pub(super) fn is_damage(error: &SyncError, name: &str) -> bool {
        matches!(error, SyncError::Io(IoError::RunDamaged { run, .. }) if run == name)
    }

    pub(super) fn record(txid: u8, length: usize) -> ([u8; 32], Vec<u8>) {
        ([txid; 32], vec![txid; length])
    }

    proptest! {
        #[test]
        fn a_merge_is_a_sort(
            groups in prop::collection::btree_map(
                prop::array::uniform32(0u8..3),
                prop::collection::vec(any::<u8>(), 1..50),
                0..60,
            ),
            runs in 0usize..23,
            fan_in in 2usize..=5,
            section_bytes in 1usize..100,
            threads in 1usize..4,
            mut cuts in prop::collection::vec(0u64..1 << 20, 0..4),
            seed: u64,
            twice: bool,
        ) {
            let (storage, mut rng) = (CrashStorage::new(), Rng::new(seed));
            let mut divided = vec![Records::new(); runs];
            for (txid, group) in groups.iter().filter(|_| runs > 0) {
                divided[rng.index(runs)].push((*txid, group.clone()));
            }
            let mut expected: Records = divided.concat();
            expected.sort();
            // One transaction in two runs is reported, wherever the two meet.
            let again = (twice && runs > 1 && !expected.is_empty()).then(|| {
                let record = expected[rng.index(expected.len())].clone();
                let other = divided.iter_mut().find(|run| !run.contains(&record)).unwrap();
                other.push(record.clone());
                other.sort();
                record.0
            });
            let name = |index| format!("segment-{index}.run");
            let info = |(index, run): (usize, &Records)| match index % 3 {
                2 => held(&name(index), &bytes(run)),
                _ => write(&storage, &name(index), &bytes(run)),
            };
            let infos: Vec<RunInfo> = divided.iter().enumerate().map(info).collect();
            let written = infos.iter().filter(|run| run.held.is_none()).count();
            let open = fan_in;
            let budget = MergeBudget { fan_in, section_bytes, threads, open, open_max: open };
            match (merged(&storage, &infos, budget), again) {
                (Ok(all), None) => {
                    prop_assert_eq!(&all, &expected);
                    // Parts of the merge are sorted, too, in order.
                    cuts.iter_mut().for_each(|cut| *cut = (*cut << 41) & 0x0303_0303_0303_0303);
                    cuts.sort_unstable();
                    let mut parts = Records::new();
                    let runs = Runs::<CoinsForm>::indexed(&storage, infos.clone()).unwrap();
                    let ends = cuts.iter().copied().map(Some).chain([None]);
                    for (from, until) in [0].iter().chain(&cuts).copied().zip(ends) {
                        let mut part = runs.part(KeyRange { from, until }).unwrap();
                        part.give(&mut |record| {
                            let (txid, group) = super::records(record).next().unwrap();
                            assert!(prefix(&txid.0) >= from);
                            assert!(until.is_none_or(|until| prefix(&txid.0) < until));
                            parts.push((txid.0, group.to_vec()));
                            Ok(())
                        }).unwrap();
                    }
                    prop_assert_eq!(parts, expected);
                    prop_assert_eq!(storage.names().unwrap().len(), written, "merged runs stay");
                }
                (Err(SyncError::Invalid(InvalidError::DuplicateTransaction { txid })), Some(again)) => {
                    prop_assert_eq!(txid.0, again);
                }
                (other, _) => prop_assert!(false, "{other:?}"),
            }
        }

        #[test]
        fn any_flipped_bit_is_detected(
            place: prop::sample::Index,
            bit in 0u8..8,
            in_second: bool,
        ) {
            let storage = CrashStorage::new();
            let runs = [vec![record(1, 9), record(3, 40), record(9, 1)], vec![record(2, 5)]];
            let infos = [0, 1].map(|i| write(&storage, &format!("run-{i}"), &bytes(&runs[i])));
            let name = &infos[usize::from(in_second)].name;
            let mut file = storage.live_files()[name].clone();
            let place = place.index(file.len());
            file[place] ^= 1 << bit;
            put(&storage, name, &file);
            // The callback never sees a record that was not written.
            let error = merge_runs::<CoinsForm>(&storage, infos.to_vec(), BUDGET, &|_| Ok(()), &mut |record| {
                let (txid, group) = records(record).next().unwrap();
                assert!(runs.concat().contains(&(txid.0, group.to_vec())));
                Ok(())
            });
            let error = error.unwrap_err();
            prop_assert!(is_damage(&error, name), "{error}");
        }
    }

    /// Sixteen threads with the default memory leave some fifty thousand runs of the main chain. Merging each
    /// run once reduces their number enough; if only as many could be open as in the last merge, most would be
    /// merged twice.
    #[test]
    fn runs_of_a_long_chain_are_merged_into_longer_ones_once() {
        let budget = MergeBudget::opening(56 << 20, 4_000).by(16);
        let (fan_in, files) = (budget.fan_in, 49_000);
        assert_eq!((fan_in, budget.groups(files)), (448, (16, 28)));
        let more = MergeBudget { open_max: 1_800, ..budget };
        assert_eq!(more.groups(files), (16, 110));
        assert!(28 * fan_in < files && 110 * fan_in >= files);
        // Fewer runs take no more memory than they need.
        assert_eq!(more.groups(28 * fan_in), (16, 28));
        let making = budget.making(225 << 20);
        assert_eq!(making.open_max as u64, runs_open_max().clamp(448, 1_800));
    }

    /// Runs in memory stay there, and only as many files are merged as exceed the limit.
    #[test]
    fn no_more_runs_are_merged_than_necessary() {
        let left = |files: u8, in_memory: u8, fan_in, threads| -> (usize, usize) {
            let storage = CrashStorage::new();
            let of = |id: u8| (format!("run-{id}"), bytes(&vec![record(id, 3)]));
            let files = (1..=files).map(of).map(|(name, bytes)| write(&storage, &name, &bytes));
            let memory = (101..101 + in_memory).map(of).map(|(name, bytes)| held(&name, &bytes));
            let open = fan_in;
            let budget = MergeBudget { fan_in, section_bytes: 16, threads, open, open_max: open };
            let runs: Vec<RunInfo> = files.chain(memory).collect();
            let (expected, reported) = (budget.bytes_to_merge(&runs), AtomicU64::new(0));
            let go_on = |bytes| {
                reported.fetch_add(bytes, Ordering::Relaxed);
                Ok(())
            };
            let runs = merge_to_fan_in::<CoinsForm>(&storage, runs, budget, &go_on).unwrap();
            assert_eq!(reported.into_inner(), expected);
            let merged = runs.iter().filter(|run| is_merged(run)).count();
            (runs.len() - usize::from(in_memory), merged)
        };
        assert_eq!(left(8, 5, 8, 1), (8, 0));
        assert_eq!(left(10, 5, 8, 1), (8, 1));
        assert_eq!(left(15, 0, 8, 2), (8, 3));
        assert_eq!(left(64, 0, 8, 1), (8, 8));
        for threads in 1..6 {
            assert_eq!(left(40, 3, 5, threads).0, 5, "{threads}");
        }
    }

    fn unreadable(txid: Txid) -> SyncError {
        let error = apus_chain::read_coin(&mut apus_chain::Reader::new(&[])).unwrap_err();
        SyncError::Io(IoError::Group { txid, error })
    }

    /// Runs that were already invalid when written, so that checksums do not detect this.
    #[test]
    fn runs_that_no_segment_writes_are_refused() {
        let long = |length: u32| [&[1; 32][..], &length.to_le_bytes(), &[0; 50]].concat();
        let mut lower = record(2, 3);
        lower.0[31] = 1;
        let ascends = held("run", &bytes(&vec![lower.clone(), record(2, 3)]));
        assert!(merged(&CrashStorage::new(), &[ascends], BUDGET).is_ok());
        for content in [
            bytes(&vec![record(2, 3), record(1, 3)]),
            bytes(&vec![record(2, 3), lower]),
            bytes(&vec![record(2, 3), record(2, 3)]),
            bytes(&vec![record(2, 0), record(3, 3)]),
            bytes(&vec![record(2, 3)])[..38].to_vec(),
            vec![1; 35],
            long(51),
            long(49),
            long(GROUP_BYTES_MAX + 1),
            long(u32::MAX),
        ] {
            // In a file each record is its own section; in memory, one section has all records.
            let storage = CrashStorage::new();
            for run in [write(&storage, "run", &content), held("run", &content)] {
                let error = merged(&storage, &[run], BUDGET).unwrap_err();
                assert!(is_damage(&error, "run"), "{error}");
            }
        }
    }

    #[test]
    fn a_run_that_changed_after_its_check_is_refused() {
        let storage = CrashStorage::new();
        let content = bytes(&vec![record(1, 60), record(2, 60)]);
        let run = write(&storage, "run", &content);
        let file = storage.live_files()["run"].clone();
        for length in [0, 1, 36, 96, content.len() - 1, file.len() - 1] {
            put(&storage, "run", &file[..length]);
            let error = merged(&storage, std::slice::from_ref(&run), BUDGET).unwrap_err();
            assert!(is_damage(&error, "run"), "{length}: {error}");
        }
        storage.remove("run").unwrap();
        let error = merged(&storage, &[run], BUDGET).unwrap_err();
        assert!(matches!(error, SyncError::Io(IoError::Storage { .. })), "{error}");
    }

    /// A repeated transaction is the chain's fault only if the runs are intact.
    #[test]
    fn damage_takes_precedence_over_a_repeated_transaction() {
        let storage = CrashStorage::new();
        let runs = ["a", "b", "c"].map(|name| {
            write(&storage, name, &bytes(&vec![record(name.as_bytes()[0], 3), record(200, 3)]))
        });
        let error = merged(&storage, &runs[1..], BUDGET).unwrap_err();
        assert!(
            matches!(error, SyncError::Invalid(InvalidError::DuplicateTransaction { .. })),
            "{error}"
        );
        let mut content = bytes(&vec![record(b'c', 3), record(200, 3)]);
        *content.last_mut().unwrap() ^= 1;
        write(&storage, "c", &content);
        let error = merged(&storage, &runs[1..], BUDGET).unwrap_err();
        assert!(is_damage(&error, "c"), "{error}");
    }

    #[test]
    fn errors_of_the_callback_are_passed_on() {
        let storage = CrashStorage::new();
        let run = write(&storage, "run", &bytes(&vec![record(1, 3), record(2, 3)]));
        let fails = |error: fn() -> SyncError| {
            let run = vec![run.clone()];
            merge_runs::<CoinsForm>(&storage, run, BUDGET, &|_| Ok(()), &mut |_| Err(error()))
                .unwrap_err()
        };
        assert!(matches!(
            fails(|| unreadable(Txid([1; 32]))),
            SyncError::Io(IoError::Group { .. })
        ));
        assert!(matches!(fails(|| SyncError::Interrupted), SyncError::Interrupted));
    }

    #[test]
    fn disk_errors_are_reported_as_such() {
        let storage = FaultStorage::new(CrashStorage::new());
        let runs: Vec<RunInfo> = (1..=5)
            .map(|n| write(&storage, &format!("run-{n}"), &bytes(&vec![record(n, 99)])))
            .collect();
        for operation in [Operation::Open, Operation::Read, Operation::Create, Operation::Write] {
            storage.fail_nth(operation, 2, io::ErrorKind::StorageFull);
            let error = merged(&storage, &runs, BUDGET).unwrap_err();
            assert!(matches!(error, SyncError::Io(IoError::Storage { .. })), "{error}");
            storage.heal();
        }
        assert_eq!(merged(&storage, &runs, BUDGET).unwrap().len(), 5);
    }
}
