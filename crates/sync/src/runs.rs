//! Sorted runs: reading one, merging many in bounded memory.
//!
//! A run holds records by ascending key, each key once. How they lie is their [`Form`]'s to say; those of
//! [`Coins`] are `txid[32] ‖ u32le length ‖ group`, where a group is all surviving coins of one
//! transaction in the form of a UTXO snapshot. However many runs there are, at most
//! [`MergeBudget::fan_in`] are open at once: more are first merged into longer ones. Every run is
//! compared with the SHA-256 that was noted when it was written.

mod form;
mod group;
mod reader;
mod writer;

pub(crate) use form::{Answers, Coins, Form, Made, Places, Spent};
pub(crate) use group::Group;
pub(crate) use writer::RunWriter;

use crate::error::{InvalidError, IoError, StorageResult, SyncError};
use crate::workdir::RunInfo;
use crate::workdir::names::MERGE;
use apus_chain::Txid;
use apus_storage::Storage;
use reader::RunReader;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// Records merged between two looks at progress and interruption: some milliseconds.
pub(crate) const RECORDS_BETWEEN_NEWS: u64 = 1024;

/// Takes a record.
pub(crate) type EachRecord<'a> = dyn FnMut(&[u8]) -> Result<(), SyncError> + 'a;

/// The records that follow one another in `bytes`, which a merge gave, as txid and group.
pub(crate) fn records(bytes: &[u8]) -> impl Iterator<Item = (Txid, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (txid, after) = rest.split_first_chunk::<32>()?;
        let (length, after) = after.split_first_chunk::<4>()?;
        let (group, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rest = after;
        Some((Txid(*txid), group))
    })
}

/// How much a merge may use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MergeBudget {
    /// Runs open at once, at least 2.
    pub fan_in: usize,
    /// Buffer of each.
    pub buffer_bytes: usize,
}

impl MergeBudget {
    /// Divides `bytes` of memory over as many runs as sensible buffers allow.
    pub(crate) fn new(bytes: u64) -> Self {
        let buffer_bytes = 128 << 10;
        let fan_in = (bytes / buffer_bytes as u64).clamp(2, 512) as usize;
        Self { fan_in, buffer_bytes }
    }
}

/// Gives the records of all runs to `each` by ascending key.
///
/// The names of runs made on the way begin with [`MERGE`]; they are removed at the end, and by
/// [`Workdir`](crate::workdir::Workdir) after a crash. While they are made, `go_on` is asked every
/// now and then.
pub(crate) fn merge_runs<F: Form>(
    storage: &dyn Storage,
    runs: Vec<RunInfo>,
    budget: MergeBudget,
    go_on: &dyn Fn() -> Result<(), SyncError>,
    each: &mut EachRecord<'_>,
) -> Result<(), SyncError> {
    let mut merging = Merging::<F>::open(storage, runs, budget, go_on)?;
    let merged = merging.give(each);
    merged.map_err(|error| merging.cause(error))?;
    merging.close()
}

/// As many runs as may be open at once, with the same records.
fn merge_to_fan_in<F: Form>(
    storage: &dyn Storage,
    runs: Vec<RunInfo>,
    budget: MergeBudget,
    go_on: &dyn Fn() -> Result<(), SyncError>,
) -> Result<Vec<RunInfo>, SyncError> {
    let mut runs = runs;
    let mut made = 0;
    while runs.len() > budget.fan_in {
        let mut longer = Vec::with_capacity(runs.len().div_ceil(budget.fan_in));
        for group in runs.chunks(budget.fan_in) {
            let name = format!("{MERGE}{}{made}.run", F::NAME);
            made += 1;
            longer.push(merge_into_run::<F>(storage, group, budget, name, go_on)?);
            remove_merged(storage, group)?;
        }
        runs = longer;
    }
    Ok(runs)
}

fn remove_merged(storage: &dyn Storage, runs: &[RunInfo]) -> Result<(), SyncError> {
    let mut merged = runs.iter().filter(|run| run.name.starts_with(MERGE));
    merged.try_for_each(|run| storage.remove(&run.name).at(storage, &run.name))
}

/// Merges runs into a longer one.
fn merge_into_run<F: Form>(
    storage: &dyn Storage,
    runs: &[RunInfo],
    budget: MergeBudget,
    name: String,
    go_on: &dyn Fn() -> Result<(), SyncError>,
) -> Result<RunInfo, SyncError> {
    let mut out = RunWriter::create(storage, name, budget.buffer_bytes)?;
    let mut records = 0u64;
    let mut merging = Merging::<F>::open_few(storage, runs.to_vec(), budget)?;
    let merged = merging.give(&mut |record| {
        records += 1;
        if records.is_multiple_of(RECORDS_BETWEEN_NEWS) {
            go_on()?;
        }
        out.write(record)
    });
    merged.map_err(|error| merging.cause(error))?;
    out.finish()
}

/// The first record of a run: by its key, of which eight bytes nearly always decide.
type Head<F> = Reverse<(u64, <F as Form>::Key, usize)>;

fn head<F: Form>(key: F::Key, index: usize) -> Head<F> {
    let prefix = key.as_ref().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    Reverse((prefix, key, index))
}

/// The records of several runs on their way, by ascending key.
pub(crate) struct Merging<'s, F: Form> {
    storage: &'s dyn Storage,
    runs: Vec<RunInfo>,
    readers: Vec<RunReader<F>>,
    heads: BinaryHeap<Head<F>>,
    /// The key of the record that was given last, which is still the first one of its run.
    last: Option<F::Key>,
}

impl<'s, F: Form> Merging<'s, F> {
    /// Of however many runs. While longer ones are made of them, `go_on` is asked every now and then.
    pub(crate) fn open(
        storage: &'s dyn Storage,
        runs: Vec<RunInfo>,
        budget: MergeBudget,
        go_on: &dyn Fn() -> Result<(), SyncError>,
    ) -> Result<Self, SyncError> {
        Self::open_few(storage, merge_to_fan_in::<F>(storage, runs, budget, go_on)?, budget)
    }

    fn open_few(
        storage: &'s dyn Storage,
        runs: Vec<RunInfo>,
        budget: MergeBudget,
    ) -> Result<Self, SyncError> {
        let mut readers = Vec::with_capacity(runs.len());
        let mut heads = BinaryHeap::with_capacity(runs.len());
        for (index, run) in runs.iter().enumerate() {
            let mut reader = RunReader::open(storage, run, budget)?;
            if reader.next(storage)? {
                heads.push(head::<F>(reader.key(), index));
            }
            readers.push(reader);
        }
        Ok(Self { storage, runs, readers, heads, last: None })
    }

    /// Gives all that are left to `each`.
    fn give(&mut self, each: &mut EachRecord<'_>) -> Result<(), SyncError> {
        while let Some(record) = self.next()? {
            each(record)?;
        }
        Ok(())
    }

    /// Removes what was made on the way.
    pub(crate) fn close(self) -> Result<(), SyncError> {
        remove_merged(self.storage, &self.runs)
    }

    /// The record that [`next`](Self::next) gave last; none before the first and after the last.
    pub(crate) fn current(&self) -> Option<&[u8]> {
        let Reverse((_, _, index)) = self.heads.peek().filter(|_| self.last.is_some())?;
        Some(self.readers[*index].record())
    }

    /// The next record; none after the last, once all runs proved intact.
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, SyncError> {
        if self.last.is_some()
            && let Some(mut first) = self.heads.peek_mut()
        {
            let Reverse((_, _, index)) = *first;
            let reader = &mut self.readers[index];
            match reader.next(self.storage)? {
                true => *first = head::<F>(reader.key(), index),
                false => drop(PeekMut::pop(first)),
            }
        }
        let Some(Reverse((_, key, index))) = self.heads.peek() else { return Ok(None) };
        if self.last == Some(*key)
            && let Some(error) = F::repeated(key)
        {
            return Err(error);
        }
        self.last = Some(*key);
        Ok(Some(self.readers[*index].record()))
    }

    /// What an error comes of. Bytes that make no sense are most likely those of a damaged run, which
    /// shows at its end.
    pub(crate) fn cause(&mut self, error: SyncError) -> SyncError {
        match error {
            SyncError::Io(IoError::Group { .. } | IoError::WorkdirDamaged { .. })
            | SyncError::Snapshot { .. }
            | SyncError::Invalid(InvalidError::DuplicateTransaction { .. }) => self
                .readers
                .iter_mut()
                .filter_map(|reader| reader.expect_rest_intact(self.storage).err())
                .find(|found| matches!(found, SyncError::Io(IoError::RunDamaged { .. })))
                .unwrap_or(error),
            error => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::form::GROUP_BYTES_MAX;
    use super::*;
    use apus_testkit::rng::Rng;
    use apus_testkit::storage::{CrashStorage, FaultStorage, Operation};
    use proptest::prelude::*;
    use std::io;
    use std::sync::Arc;

    type Records = Vec<([u8; 32], Vec<u8>)>;

    const BUDGET: MergeBudget = MergeBudget { fan_in: 2, buffer_bytes: 16 };

    fn bytes(records: &Records) -> Vec<u8> {
        let record = |(txid, group): &([u8; 32], Vec<u8>)| {
            [&txid[..], &(group.len() as u32).to_le_bytes(), group].concat()
        };
        records.iter().flat_map(record).collect()
    }

    /// Writes a run, and says of it what is true.
    fn write(storage: &dyn Storage, name: &str, bytes: &[u8]) -> RunInfo {
        storage.create(name).unwrap().write_all(bytes).unwrap();
        let sha256 = apus_hash::sha256(bytes);
        RunInfo { name: name.to_owned(), bytes: bytes.len() as u64, sha256, held: None }
    }

    /// A run that no file has.
    fn held(name: &str, bytes: &[u8]) -> RunInfo {
        let held = Some(Arc::new(bytes.to_vec()));
        RunInfo { name: name.to_owned(), bytes: bytes.len() as u64, sha256: [0; 32], held }
    }

    fn merged(
        storage: &dyn Storage,
        runs: &[RunInfo],
        budget: MergeBudget,
    ) -> Result<Records, SyncError> {
        let mut all = Vec::new();
        merge_runs::<Coins>(storage, runs.to_vec(), budget, &|| Ok(()), &mut |record| {
            all.extend(records(record).map(|(txid, group)| (txid.0, group.to_vec())));
            Ok(())
        })?;
        Ok(all)
    }

    fn is_damage(error: &SyncError, name: &str) -> bool {
        matches!(error, SyncError::Io(IoError::RunDamaged { run, .. }) if run == name)
    }

    fn record(txid: u8, length: usize) -> ([u8; 32], Vec<u8>) {
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
            buffer_bytes in 1usize..100,
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
            // One transaction in two runs is told, wherever the two meet.
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
            match (merged(&storage, &infos, MergeBudget { fan_in, buffer_bytes }), again) {
                (Ok(all), None) => {
                    prop_assert_eq!(all, expected);
                    prop_assert_eq!(storage.names().unwrap().len(), written, "merged runs stay");
                }
                (Err(SyncError::Invalid(InvalidError::DuplicateTransaction { txid })), Some(again)) => {
                    prop_assert_eq!(txid.0, again);
                }
                (other, _) => prop_assert!(false, "{other:?}"),
            }
        }

        #[test]
        fn any_flipped_bit_is_damage(
            place: prop::sample::Index,
            bit in 0u8..8,
            in_second: bool,
            judge: bool,
        ) {
            let storage = CrashStorage::new();
            let runs = [vec![record(1, 9), record(3, 40), record(9, 1)], vec![record(2, 5)]];
            let infos = [0, 1].map(|i| write(&storage, &format!("run-{i}"), &bytes(&runs[i])));
            let damaged = usize::from(in_second);
            let mut copy = bytes(&runs[damaged]);
            let place = place.index(copy.len());
            copy[place] ^= 1 << bit;
            write(&storage, &infos[damaged].name, &copy);
            // What takes the groups may see before the end that they make no sense.
            let error = merge_runs::<Coins>(&storage, infos.to_vec(), BUDGET, &|| Ok(()), &mut |record| {
                let (txid, group) = records(record).next().unwrap();
                let right = runs.concat().contains(&(txid.0, group.to_vec()));
                if judge && !right { Err(unreadable(txid)) } else { Ok(()) }
            });
            let error = error.unwrap_err();
            prop_assert!(is_damage(&error, &infos[damaged].name), "{error}");
        }
    }

    fn unreadable(txid: Txid) -> SyncError {
        let error = apus_chain::read_coin(&mut apus_chain::Reader::new(&[])).unwrap_err();
        SyncError::Io(IoError::Group { txid, error })
    }

    /// Wrong although written so: what the SHA-256 cannot tell.
    #[test]
    fn runs_that_no_segment_writes() {
        let long = |length: u32| [&[1; 32][..], &length.to_le_bytes(), &[0; 50]].concat();
        for content in [
            bytes(&vec![record(2, 3), record(1, 3)]),
            bytes(&vec![record(2, 3), record(2, 3)]),
            bytes(&vec![record(2, 0), record(3, 3)]),
            bytes(&vec![record(2, 3)])[..38].to_vec(),
            vec![1; 35],
            long(51),
            long(49),
            long(GROUP_BYTES_MAX + 1),
            long(u32::MAX),
        ] {
            let storage = CrashStorage::new();
            let run = write(&storage, "run", &content);
            let error = merged(&storage, &[run], BUDGET).unwrap_err();
            assert!(is_damage(&error, "run"), "{error}");
        }
    }

    #[test]
    fn a_run_that_changed_after_it_was_looked_at() {
        let storage = CrashStorage::new();
        let content = bytes(&vec![record(1, 60), record(2, 60)]);
        let run = write(&storage, "run", &content);
        for length in [0, 1, 36, 96, content.len() - 1] {
            write(&storage, "run", &content[..length]);
            let error = merged(&storage, std::slice::from_ref(&run), BUDGET).unwrap_err();
            assert!(is_damage(&error, "run"), "{length}: {error}");
        }
        storage.remove("run").unwrap();
        let error = merged(&storage, &[run], BUDGET).unwrap_err();
        assert!(matches!(error, SyncError::Io(IoError::Storage { .. })), "{error}");
    }

    /// A repeated transaction is the chain's fault only if the runs are whole.
    #[test]
    fn a_repeated_transaction_or_a_damaged_run() {
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
    fn errors_of_the_taker_of_groups_are_passed_on() {
        let storage = CrashStorage::new();
        let run = write(&storage, "run", &bytes(&vec![record(1, 3), record(2, 3)]));
        let fails = |error: fn() -> SyncError| {
            let run = vec![run.clone()];
            merge_runs::<Coins>(&storage, run, BUDGET, &|| Ok(()), &mut |_| Err(error()))
                .unwrap_err()
        };
        assert!(matches!(
            fails(|| unreadable(Txid([1; 32]))),
            SyncError::Io(IoError::Group { .. })
        ));
        assert!(matches!(fails(|| SyncError::Interrupted), SyncError::Interrupted));
    }

    #[test]
    fn the_disks_own_errors_are_told_as_such() {
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
