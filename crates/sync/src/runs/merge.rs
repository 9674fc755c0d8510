//! [`RunMerger`]: iterates over the records of several runs by ascending key.
//!
//! The runs play a tournament, a tree of losers (Knuth, *The Art of Computer Programming*, volume 3, 5.4.1):
//! after the first record is taken, its run plays only against the losers on its path to the root, one for each
//! level. A heap would compare twice as often, and move whole keys.

use crate::error::{StorageResult, SyncError};
use crate::runs::form::RunForm;
use crate::runs::reader::RunReader;
use crate::runs::{EachRecord, KeyRange};
use crate::workdir::RunInfo;
use crate::workdir::index::{RunIndex, Section, checksum, prefix};
use apus_storage::{Storage, StorageFile};
use core::cmp::Ordering;

/// Iterates over the records of several runs by ascending key.
pub struct RunMerger<'s, F: RunForm> {
    storage: &'s dyn Storage,
    readers: Vec<RunReader<F>>,
    order: Tournament,
    /// Whether there was a first record. Then the last record returned is still the first one of its run.
    begun: bool,
}

impl<'s, F: RunForm> RunMerger<'s, F> {
    pub(super) fn of(
        storage: &'s dyn Storage,
        runs: impl ExactSizeIterator<Item = RunReader<F>>,
    ) -> Result<Self, SyncError> {
        let mut readers = Vec::with_capacity(runs.len());
        for mut reader in runs {
            if reader.next(storage)? {
                readers.push(reader);
            }
        }
        let prefixes = readers.iter().map(|reader| prefix(reader.record())).collect();
        let order = Tournament::new(prefixes, |a, b| comes_before(&readers, a, b));
        Ok(Self { storage, readers, order, begun: false })
    }

    /// Passes all remaining records to `each`.
    pub(super) fn give(&mut self, each: &mut EachRecord<'_>) -> Result<(), SyncError> {
        while let Some(record) = self.next()? {
            each(record)?;
        }
        Ok(())
    }

    /// The run with the first record, while there is one.
    fn first(&self) -> Option<&RunReader<F>> {
        self.readers.get(self.order.first()).filter(|reader| !reader.is_over())
    }

    /// The record that [`next`](Self::next) returned last; `None` before the first and after the last.
    pub fn current(&self) -> Option<&[u8]> {
        self.first().filter(|_| self.begun).map(RunReader::record)
    }

    /// The next record; `None` after the last.
    #[allow(
        clippy::should_implement_trait,
        reason = "it returns a borrowed record, as no iterator can"
    )]
    pub fn next(&mut self) -> Result<Option<&[u8]>, SyncError> {
        let last = self.order.first();
        if self.begun && self.first().is_some() {
            let is_there = self.readers[last].next(self.storage)?;
            let record = is_there.then(|| prefix(self.readers[last].record()));
            let readers = &self.readers;
            self.order.first_is_now(record, |a, b| comes_before(readers, a, b));
            if let Some(repeated) = F::REPEATED
                && let Some(next) = self.first()
                && self.readers[last].passed() == Some(next.key())
            {
                return Err(repeated(next.key()));
            }
        }
        self.begun = true;
        Ok(self.first().map(RunReader::record))
    }
}

/// Whether the record of run `one` comes before that of run `other`, given that their first bytes are equal
/// or one run is over.
fn comes_before<F: RunForm>(readers: &[RunReader<F>], one: usize, other: usize) -> bool {
    let place = |run: usize| (readers[run].is_over(), readers[run].key(), run);
    place(one) < place(other)
}

/// Finds the run with the first record, by the numbers that records begin with.
struct Tournament {
    /// The number of each run's current record; the largest number if the run is over.
    prefixes: Vec<u64>,
    /// At index 0 the winner, from 1 on losers: each index has the loser of the match between the winners at
    /// twice the index and one after that. The run with index r starts at r plus the number of runs.
    places: Vec<u32>,
}

impl Tournament {
    /// Starts the tournament; `before` says which of two runs with equal numbers comes first.
    fn new(prefixes: Vec<u64>, before: impl Fn(usize, usize) -> bool) -> Self {
        let runs = prefixes.len();
        let mut winners: Vec<u32> =
            (0..2 * runs).map(|at| at.saturating_sub(runs) as u32).collect();
        let mut places = vec![0; runs];
        for place in (1..runs).rev() {
            let (one, other) = (winners[2 * place], winners[2 * place + 1]);
            let of = |run: u32| prefixes[run as usize];
            let is_first = match of(one).cmp(&of(other)) {
                Ordering::Equal => before(one as usize, other as usize),
                order => order.is_lt(),
            };
            let (winner, loser) = if is_first { (one, other) } else { (other, one) };
            (winners[place], places[place]) = (winner, loser);
        }
        if let Some(first) = places.first_mut() {
            *first = winners[1];
        }
        Self { prefixes, places }
    }

    /// The run with the first record, or any run if all are over; 0 if there are no runs.
    fn first(&self) -> usize {
        self.places.first().map_or(0, |run| *run as usize)
    }

    /// Updates the tournament after the first run advanced to another record or ended. `before` is the same as
    /// in [`new`](Self::new).
    fn first_is_now(&mut self, prefix: Option<u64>, before: impl Fn(usize, usize) -> bool) {
        let mut winner = self.places[0];
        let mut least = prefix.unwrap_or(u64::MAX);
        self.prefixes[winner as usize] = least;
        let mut place = (self.places.len() + winner as usize) / 2;
        while place > 0 {
            let other = self.places[place];
            let its = self.prefixes[other as usize];
            // The winner is unpredictable, so the code must be branchless. Equal numbers are rare.
            let mut is_beaten = its < least;
            if its == least {
                is_beaten = before(other as usize, winner as usize);
            }
            self.places[place] = if is_beaten { winner } else { other };
            winner = if is_beaten { other } else { winner };
            least = if is_beaten { its } else { least };
            place /= 2;
        }
        self.places[0] = winner;
    }
}

// [`RunWriter`]: writes a run, and computes the checksums that a reader compares.

/// A run being written to a file.
pub struct RunWriter<'s> {
    storage: &'s dyn Storage,
    name: String,
    file: Box<dyn StorageFile>,
    section_bytes: usize,
    /// Records that are not in the file yet.
    section: Vec<u8>,
    index: RunIndex,
}

impl<'s> RunWriter<'s> {
    /// Creates a run whose sections have about `section_bytes`.
    pub fn create(
        storage: &'s dyn Storage,
        name: String,
        section_bytes: usize,
    ) -> Result<Self, SyncError> {
        let file = storage.create(&name).at(storage, &name)?;
        let (section, index) = (Vec::with_capacity(section_bytes), RunIndex::default());
        Ok(Self { storage, name, file, section_bytes, section, index })
    }

    pub fn write(&mut self, record: &[u8]) -> Result<(), SyncError> {
        if self.section.len() + record.len() > self.section_bytes {
            self.end_section()?;
        }
        self.section.extend_from_slice(record);
        Ok(())
    }

    fn end_section(&mut self) -> Result<(), SyncError> {
        if self.section.is_empty() {
            return Ok(());
        }
        self.index.sections.push(Section::of(&self.section));
        self.file.write_all(&self.section).at(self.storage, &self.name)?;
        self.section.clear();
        Ok(())
    }

    /// Ends the run. If it must be `durable`, everything except its name is.
    pub fn finish(mut self, durable: bool) -> Result<RunInfo, SyncError> {
        self.end_section()?;
        let index = self.index.to_bytes();
        self.file.write_all(&index).at(self.storage, &self.name)?;
        self.file.flush().at(self.storage, &self.name)?;
        if durable {
            self.file.sync().at(self.storage, &self.name)?;
        }
        Ok(RunInfo {
            name: self.name,
            bytes: self.index.run_bytes(),
            sections: self.index.sections.len() as u32,
            checksum: checksum(&index),
            held: None,
        })
    }
}

// [`divide`]: divides keys into partitions of about equal bytes.

/// Divides all keys into at most `parts` partitions, by the sizes of the sections. The distribution of the
/// keys does not matter: the author of a transaction can choose how their ids begin.
pub fn divide<'s>(sections: impl Iterator<Item = &'s Section>, parts: u64) -> Vec<KeyRange> {
    divide_sizes(sections.map(|section| (section.prefix, section.bytes)), parts)
}

/// Like [`divide`], but takes only the first bytes and the length of each section.
pub fn divide_sizes(sections: impl Iterator<Item = (u64, u32)>, parts: u64) -> Vec<KeyRange> {
    let mut sections: Vec<(u64, u32)> = sections.collect();
    sections.sort_unstable();
    let total: u64 = sections.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
    let each = (total / parts.max(1)).max(1);
    let (mut divided, mut from, mut bytes) = (Vec::new(), 0, 0);
    for (prefix, more) in sections {
        if bytes >= each && prefix > from {
            divided.push(KeyRange { from, until: Some(prefix) });
            (from, bytes) = (prefix, 0);
        }
        bytes += u64::from(more);
    }
    divided.push(KeyRange { from, until: None });
    divided
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        /// Holds even if numbers are equal, or at their maximum, and for any number of runs.
        #[test]
        fn the_lowest_record_comes_next(
            runs in vec(vec(prop_oneof![0u64..9, u64::MAX - 2..=u64::MAX], 1..5), 0..12),
        ) {
            let mut runs: Vec<Vec<u64>> = runs;
            runs.iter_mut().for_each(|run| run.sort_unstable());
            let mut expected: Vec<(u64, usize)> = Vec::new();
            for (run, numbers) in runs.iter().enumerate() {
                expected.extend(numbers.iter().map(|number| (*number, run)));
            }
            expected.sort_unstable();
            let mut at = vec![0; runs.len()];
            fn before(runs: &[Vec<u64>], at: &[usize], one: usize, other: usize) -> bool {
                let place = |run: usize| (at[run] == runs[run].len(), run);
                place(one) < place(other)
            }
            let prefixes = runs.iter().map(|run| run[0]).collect();
            let mut order = Tournament::new(prefixes, |a, b| before(&runs, &at, a, b));
            for (number, run) in expected {
                prop_assert_eq!(order.first(), run);
                prop_assert_eq!(runs[run][at[run]], number);
                at[run] += 1;
                order.first_is_now(runs[run].get(at[run]).copied(), |a, b| before(&runs, &at, a, b));
            }
            prop_assert!(runs.is_empty() || at[order.first()] == runs[order.first()].len());
        }
    }
}

#[cfg(test)]
mod parts_tests {
    use super::*;
    use apus_testkit::rng::Rng;

    /// Sections of records with keys from `key`.
    fn sections(count: usize, mut key: impl FnMut() -> u64) -> Vec<Section> {
        let section = |key: u64| Section::of(&[&key.to_be_bytes()[..], &[0; 1000]].concat());
        (0..count).map(|_| section(key())).collect()
    }

    #[test]
    fn parts_cover_all_keys_and_are_about_equal() {
        let mut rng = Rng::new(31);
        let spread = sections(400, || rng.next_u64());
        // As if an attacker had ground all ids.
        let ground = sections(400, || 0xabcd_ef00_0000_0000 | rng.next_u64() >> 40);
        for sections in [spread, ground] {
            for parts in [1, 2, 7, 16] {
                let divided = divide(sections.iter(), parts);
                assert_eq!(divided.len() as u64, parts);
                let mut next = Some(0);
                for keys in &divided {
                    assert_eq!(Some(keys.from), next);
                    let is_of = |section: &&Section| {
                        section.prefix >= keys.from
                            && keys.until.is_none_or(|until| section.prefix < until)
                    };
                    let count = sections.iter().filter(is_of).count() as u64;
                    assert!(count.abs_diff(400 / parts) <= 400 / parts / 8 + parts, "{count}");
                    next = keys.until;
                }
                assert_eq!(next, None);
            }
        }
        assert_eq!(divide([].iter(), 9), [KeyRange::ALL]);
    }

    /// Records with one prefix are in one partition.
    #[test]
    fn equal_keys_stay_together() {
        let same = sections(50, || 7);
        assert_eq!(divide(same.iter(), 4).len(), 2);
        assert_eq!(divide(same.iter(), 4)[0], KeyRange { from: 0, until: Some(7) });
    }
}
