//! [`AnswersInTurn`]: what is known of blocks before they are judged, for threads that take ranges of them.
//!
//! Coins are what the join found, and what [segments answered themselves](OwnRuns). Ranges are claimed in the order of
//! the chain, and threads [follow one another](RunLanes) through what the join left: so many runs, each in that order.

use crate::engines::mergesync::join_runs::memory_bytes;
use crate::engines::mergesync::own::{OfBlocks, OwnRuns};
use crate::engines::mergesync::record::AnswerRecord;
use crate::engines::mergesync::{Claims, Fingerprint, Gathered};
use crate::error::SyncError;
use crate::progress::stop_if_interrupted;
use crate::request::RunEnv;
use crate::runs::{Answers as AnswersForm, KeyRange, LanePiece, Lot, MergeBudget, RunLanes, Runs};
use crate::workdir::{FinishedRange, RunInfo, Workdir};
use apus_chain::{Height, HeightRange};

/// See the module.
pub(super) struct AnswersInTurn<'a> {
    workdir: &'a Workdir<'a>,
    joined: RunLanes<'a, AnswersForm>,
    own: OwnRuns<'a>,
}

/// What is known of the blocks of a range.
pub(super) struct OfRange<'a> {
    range: HeightRange,
    /// Coins that the join found.
    joined: Vec<Lot>,
    /// What their own segments left.
    own: Vec<OfBlocks<'a>>,
}

impl OfRange<'_> {
    /// The coins; none where the records make no sense.
    pub(super) fn answers(&self) -> Option<Answers<'_>> {
        let joined = self.joined.iter().flat_map(Lot::pieces).map(LanePiece::bytes);
        let runs: Vec<&[u8]> = joined.chain(self.own.iter().map(OfBlocks::answers)).collect();
        Answers::read(self.range, &runs)
    }

    /// What each of its blocks claims, as far as it was noted.
    pub(super) fn claims(&self) -> impl Iterator<Item = (Height, Option<Claims<'_>>)> {
        self.own.iter().flat_map(OfBlocks::claims)
    }

    pub(super) fn fingerprint(&self, height: Height) -> Option<Fingerprint> {
        self.own.iter().find_map(|own| own.fingerprint(height))
    }
}

/// The first key of a height: behind it stands the place.
fn key_of(height: Height) -> u64 {
    u64::from(height) << 32
}

impl<'a> AnswersInTurn<'a> {
    /// For the blocks from a height on, out of the answers of a join.
    pub(super) fn open(
        env: &RunEnv<'a>,
        workdir: &'a Workdir<'a>,
        done: &'a [FinishedRange<Gathered>],
        joined: Vec<RunInfo>,
        from: Height,
    ) -> Result<Self, SyncError> {
        let budget = MergeBudget::new(memory_bytes(env) / 4).by(env.threads);
        let go_on = || stop_if_interrupted(env.interrupt);
        let runs = Runs::<AnswersForm>::open(env.workdir, joined, budget, &go_on)?;
        let joined = RunLanes::open(runs, key_of(from), env.threads)?;
        Ok(Self { workdir, joined, own: OwnRuns::new(workdir, done, from) })
    }

    /// What is known of the blocks of a range, once those below it were taken.
    pub(super) fn take(&self, range: HeightRange) -> Result<OfRange<'a>, SyncError> {
        let keys = KeyRange { from: key_of(range.start), until: Some(key_of(range.end)) };
        Ok(OfRange { range, joined: self.joined.take(keys)?, own: self.own.take(range)? })
    }

    /// All of them were wanted.
    pub(super) fn expect_end(mut self) -> Result<(), SyncError> {
        match self.joined.is_at_end()? {
            true => self.joined.close(),
            false => Err(self.workdir.damaged()),
        }
    }
}

// [`Answers`]: the coins that the blocks of a segment take, each by the block and the input that take it.
//
// Records come in runs, of which each is sorted, and there are many of them. They are not merged: most blocks have a coin
// for each input, so that a record's place among those of its block is known as soon as they are counted.

/// See the module.
#[derive(Debug, Default)]
pub struct Answers<'r> {
    first: Height,
    /// Where those of each block begin among all, and where the last ones end.
    starts: Vec<usize>,
    /// By block and place.
    coins: Vec<Option<&'r [u8]>>,
}

impl<'r> Answers<'r> {
    /// Those for the blocks of `range`, out of runs. `None` where these are no such runs, have others, or
    /// give two coins to one place.
    pub fn read(range: HeightRange, runs: &[&'r [u8]]) -> Option<Self> {
        let first = range.start;
        let index = |height: Height| height.checked_sub(first).map(|index| index as usize);
        let mut starts = vec![0; range.count() as usize + 1];
        for record in runs.iter().flat_map(|run| records(run)) {
            let record = record.filter(|record| range.contains(record.height))?;
            starts[index(record.height)? + 1] += 1;
        }
        for block in 1..starts.len() {
            starts[block] += starts[block - 1];
        }
        let mut coins = vec![None; *starts.last()?];
        let mut beyond = Vec::new();
        for AnswerRecord { height, place, coin } in
            runs.iter().flat_map(|run| records(run)).flatten()
        {
            let block = index(height)?;
            match coins[starts[block]..starts[block + 1]].get_mut(place as usize) {
                Some(Some(_)) => return None,
                Some(none) => *none = Some(coin),
                // The block has fewer coins, so an input below has none, and this one is not asked for.
                None => beyond.push((height, place)),
            }
        }
        beyond.sort_unstable();
        let twice = beyond.windows(2).any(|pair| pair[0] == pair[1]);
        (!twice).then_some(Self { first, starts, coins })
    }

    /// The coins of a block's inputs, up to the first that has none.
    pub fn of_block(&self, height: Height) -> impl Iterator<Item = &'r [u8]> {
        let of_block = || {
            let block = height.checked_sub(self.first)? as usize;
            self.coins.get(*self.starts.get(block)?..*self.starts.get(block + 1)?)
        };
        of_block().unwrap_or_default().iter().map_while(|coin| *coin)
    }
}

/// The records of a run; `None` as the last one where what is left is none.
fn records(run: &[u8]) -> impl Iterator<Item = Option<AnswerRecord<'_>>> {
    let mut rest = run;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some((record, after)) = AnswerRecord::read(rest) else {
            rest = &[];
            return Some(None);
        };
        rest = after;
        Some(Some(record))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::CoinRef;
    use apus_engine::coin::CoinBytes;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Each coin tells its place.
    fn run(places: &[(Height, u32)]) -> Vec<u8> {
        let mut out = Vec::new();
        for &(height, place) in places {
            let amount = u64::from(place);
            let coin = CoinBytes::new(CoinRef { height, coinbase: false, amount, script: &[0x51] });
            AnswerRecord { height, place, coin: coin.as_bytes() }.write(&mut out);
        }
        out
    }

    #[test]
    fn answers_are_of_the_segment_and_one_for_each_place() {
        let range = HeightRange::new(5, 8);
        // How many coins the first inputs of the blocks have.
        let read = |runs: &[&[(Height, u32)]]| {
            let runs: Vec<Vec<u8>> = runs.iter().map(|places| run(places)).collect();
            let answers = Answers::read(range, &runs.iter().map(Vec::as_slice).collect::<Vec<_>>());
            answers.map(|answers| [5, 6, 7].map(|height| answers.of_block(height).count()))
        };
        assert_eq!(read(&[&[(7, 0), (5, 1)], &[], &[(5, 0), (5, 3), (7, 1)]]), Some([2, 0, 2]));
        assert_eq!(read(&[&[(6, 1), (6, 2)]]), Some([0, 0, 0]), "the first input has none");
        assert_eq!(read(&[&[(5, 2)], &[(5, 2)]]), None, "two for one place");
        assert_eq!(read(&[&[(5, 0)], &[(5, 0)]]), None, "two for one place");
        assert_eq!(read(&[&[(4, 0)]]), None, "another segment");
        assert_eq!(read(&[&[(8, 0)]]), None, "another segment");
        assert_eq!(read(&[&[(5, u32::MAX)]]), Some([0, 0, 0]), "no memory is taken for it");
        let whole = run(&[(5, 0)]);
        for length in 1..whole.len() {
            assert!(Answers::read(range, &[&whole[..length]]).is_none(), "{length}");
        }
        let none = Answers::default();
        assert_eq!(none.of_block(0).count() + none.of_block(5).count(), 0);
    }

    proptest! {
        /// They are what a map of all records would give.
        #[test]
        fn a_block_has_its_coins_in_order(
            runs in vec(vec((5u32..8, 0u32..6), 0..5), 0..5),
        ) {
            let range = HeightRange::new(5, 8);
            let written: Vec<Vec<u8>> = runs.iter().map(|places| run(places)).collect();
            let answers = Answers::read(range, &written.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let mut all: BTreeMap<(Height, u32), Vec<u8>> = BTreeMap::new();
            let mut twice = false;
            for at in runs.into_iter().flatten() {
                let coin = AnswerRecord::read(&run(&[at])).unwrap().0.coin.to_vec();
                twice |= all.insert(at, coin).is_some();
            }
            prop_assert_eq!(answers.is_none(), twice);
            let Some(answers) = answers else { return Ok(()) };
            for height in 4..9 {
                let mut expected = Vec::new();
                while let Some(coin) = all.get(&(height, expected.len() as u32)) {
                    expected.push(coin.as_slice());
                }
                prop_assert_eq!(answers.of_block(height).collect::<Vec<_>>(), expected);
            }
        }
    }
}
