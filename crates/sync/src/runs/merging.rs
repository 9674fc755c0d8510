//! [`Merging`]: the records of several runs on their way, by ascending key.
//!
//! Runs are in a tournament, a tree of losers (Knuth, *The Art of Computer Programming*, volume 3, 5.4.1): when the record
//! that comes first is taken, its run plays against those alone that lost on its way up, one for each level. A heap compares
//! twice as often, and moves whole keys.

use super::EachRecord;
use super::form::RunForm;
use super::reader::RunReader;
use crate::error::SyncError;
use crate::workdir::index::prefix;
use apus_storage::Storage;
use core::cmp::Ordering;

/// See the module.
pub struct Merging<'s, F: RunForm> {
    storage: &'s dyn Storage,
    readers: Vec<RunReader<F>>,
    order: Tournament,
    /// Whether there was a first record. Then the one that was given last is still the first one of its run.
    begun: bool,
}

impl<'s, F: RunForm> Merging<'s, F> {
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

    /// Gives all that are left to `each`.
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

    /// The record that [`next`](Self::next) gave last; none before the first and after the last.
    pub fn current(&self) -> Option<&[u8]> {
        self.first().filter(|_| self.begun).map(RunReader::record)
    }

    /// The next record; none after the last.
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

/// Whether one run's record comes before that of another one, which begins with the same bytes, or one of them is over.
fn comes_before<F: RunForm>(readers: &[RunReader<F>], one: usize, other: usize) -> bool {
    let place = |run: usize| (readers[run].is_over(), readers[run].key(), run);
    place(one) < place(other)
}

/// Which of some runs has the first record, by the numbers that records begin with.
struct Tournament {
    /// That of each run's record; the greatest one where it is over.
    prefixes: Vec<u64>,
    /// The run that won, and from 1 on those that lost: at each place the loser between the winners of places twice as far
    /// and one after that. A run itself is as far behind as there are runs.
    places: Vec<u32>,
}

impl Tournament {
    /// `before` says which of two runs comes first whose numbers are the same.
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

    /// The run whose record is the first, or any if all are over; 0 where there are no runs.
    fn first(&self) -> usize {
        self.places.first().map_or(0, |run| *run as usize)
    }

    /// The first run has another record now, or none more. `before` as in [`new`](Self::new).
    fn first_is_now(&mut self, prefix: Option<u64>, before: impl Fn(usize, usize) -> bool) {
        let mut winner = self.places[0];
        let mut least = prefix.unwrap_or(u64::MAX);
        self.prefixes[winner as usize] = least;
        let mut place = (self.places.len() + winner as usize) / 2;
        while place > 0 {
            let other = self.places[place];
            let its = self.prefixes[other as usize];
            // Which one wins is chance: the processor is to choose without a jump. Equal ones are rare.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        /// Also where numbers are the same, or as great as they can be, and for any number of runs.
        #[test]
        fn the_first_of_all_comes_next(
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
