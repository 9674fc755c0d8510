//! [`PrevoutsInOrder`]: coins and records of blocks to validate, for threads that take ranges of blocks.
//!
//! Coins come from the join and from [the segments themselves](OwnRuns). Threads claim ranges in the order of
//! the chain, and [follow each other](SharedScan) through the join's runs, each of which has that order.

use crate::engines::mergesync::join_runs::memory_bytes;
use crate::engines::mergesync::own::{BlockRecords, OwnRuns};
use crate::engines::mergesync::record::PrevoutRecord;
use crate::engines::mergesync::{Fingerprint, SegmentSummary, SpendSummary};
use crate::error::SyncError;
use crate::progress::stop_if_interrupted;
use crate::request::RunEnv;
use crate::runs::{KeyRange, Lot, MergeBudget, PrevoutForm, Runs, ScanChunk, SharedScan};
use crate::workdir::{FinishedRange, RunInfo, Workdir};
use apus_chain::{Height, HeightRange};

/// Supplies the coins and records of blocks, range by range.
pub(super) struct PrevoutsInOrder<'a> {
    workdir: &'a Workdir<'a>,
    joined: SharedScan<'a, PrevoutForm>,
    own: OwnRuns<'a>,
}

/// The coins and records of a range's blocks.
pub(super) struct RangePrevouts<'a> {
    range: HeightRange,
    /// Coins that the join found.
    joined: Vec<Lot>,
    /// The records of the blocks' own segments.
    own: Vec<BlockRecords<'a>>,
}

impl RangePrevouts<'_> {
    /// The coins; `None` if the records are invalid.
    pub(super) fn answers(&self) -> Option<SegmentPrevouts<'_>> {
        let joined = self.joined.iter().flat_map(Lot::pieces).map(ScanChunk::bytes);
        let runs: Vec<&[u8]> = joined.chain(self.own.iter().map(BlockRecords::answers)).collect();
        SegmentPrevouts::read(self.range, &runs)
    }

    /// The spend summary of each block, if it was kept.
    pub(super) fn claims(&self) -> impl Iterator<Item = (Height, Option<SpendSummary<'_>>)> {
        self.own.iter().flat_map(BlockRecords::claims)
    }

    /// The bytes of a block, if it waits.
    pub(super) fn waiting(&self, height: Height) -> Option<&[u8]> {
        self.own.iter().find_map(|own| own.waiting(height))
    }

    pub(super) fn fingerprint(&self, height: Height) -> Option<Fingerprint> {
        self.own.iter().find_map(|own| own.fingerprint(height))
    }
}

/// The first key of a height; the place follows it.
fn key_of(height: Height) -> u64 {
    u64::from(height) << 32
}

impl<'a> PrevoutsInOrder<'a> {
    /// Opens a join's answers for the blocks from a height on.
    pub(super) fn open(
        env: &RunEnv<'a>,
        workdir: &'a Workdir<'a>,
        done: &'a [FinishedRange<SegmentSummary>],
        joined: Vec<RunInfo>,
        from: Height,
    ) -> Result<Self, SyncError> {
        let budget = MergeBudget::new(memory_bytes(env) / 4).by(env.threads);
        let go_on = |_| stop_if_interrupted(env.interrupt);
        let runs = Runs::<PrevoutForm>::open(env.workdir, joined, budget, &go_on)?;
        let joined = SharedScan::open(runs, key_of(from), env.threads)?;
        Ok(Self { workdir, joined, own: OwnRuns::new(workdir, done, from) })
    }

    /// Takes the coins and records of a range's blocks, once all lower ranges were taken.
    pub(super) fn take(&self, range: HeightRange) -> Result<RangePrevouts<'a>, SyncError> {
        let keys = KeyRange { from: key_of(range.start), until: Some(key_of(range.end)) };
        Ok(RangePrevouts { range, joined: self.joined.take(keys)?, own: self.own.take(range)? })
    }

    /// Checks that all records were used.
    pub(super) fn expect_end(mut self) -> Result<(), SyncError> {
        match self.joined.is_at_end()? {
            true => self.joined.close(),
            false => Err(self.workdir.damaged()),
        }
    }
}

// [`SegmentPrevouts`]: the coins that a segment's blocks spend, by block and input.
//
// Records come in many sorted runs. They need not be merged: most blocks have a coin for each input, so that
// the counts alone give a record's index within its block.

/// The coins that a segment's blocks spend, by block and input.
#[derive(Debug, Default)]
pub struct SegmentPrevouts<'r> {
    first: Height,
    /// Index of each block's first coin, then the end of the last block's coins.
    starts: Vec<usize>,
    /// The coins, by block and place.
    coins: Vec<Option<&'r [u8]>>,
}

impl<'r> SegmentPrevouts<'r> {
    /// Reads the coins for the blocks of `range` from runs. `None` if the runs are invalid, have coins for
    /// other blocks, or give two coins to one place.
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
        for PrevoutRecord { height, place, coin } in
            runs.iter().flat_map(|run| records(run)).flatten()
        {
            let block = index(height)?;
            match coins[starts[block]..starts[block + 1]].get_mut(place as usize) {
                Some(Some(_)) => return None,
                Some(none) => *none = Some(coin),
                // The block has fewer coins, so a lower input has none, and this one is not needed.
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

/// The records of a run; the last item is `None` if the rest is invalid.
fn records(run: &[u8]) -> impl Iterator<Item = Option<PrevoutRecord<'_>>> {
    let mut rest = run;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some((record, after)) = PrevoutRecord::read(rest) else {
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

    /// Each coin contains its place.
    fn run(places: &[(Height, u32)]) -> Vec<u8> {
        let mut out = Vec::new();
        for &(height, place) in places {
            let amount = u64::from(place);
            let coin = CoinBytes::new(CoinRef { height, coinbase: false, amount, script: &[0x51] });
            PrevoutRecord { height, place, coin: coin.as_bytes() }.write(&mut out);
        }
        out
    }

    #[test]
    fn each_place_of_the_segment_has_one_answer() {
        let range = HeightRange::new(5, 8);
        // The number of coins, for each block, up to the first input without one.
        let read = |runs: &[&[(Height, u32)]]| {
            let runs: Vec<Vec<u8>> = runs.iter().map(|places| run(places)).collect();
            let answers =
                SegmentPrevouts::read(range, &runs.iter().map(Vec::as_slice).collect::<Vec<_>>());
            answers.map(|answers| [5, 6, 7].map(|height| answers.of_block(height).count()))
        };
        assert_eq!(read(&[&[(7, 0), (5, 1)], &[], &[(5, 0), (5, 3), (7, 1)]]), Some([2, 0, 2]));
        assert_eq!(read(&[&[(6, 1), (6, 2)]]), Some([0, 0, 0]), "the first input has no coin");
        assert_eq!(read(&[&[(5, 2)], &[(5, 2)]]), None, "two coins for one place");
        assert_eq!(read(&[&[(5, 0)], &[(5, 0)]]), None, "two coins for one place");
        assert_eq!(read(&[&[(4, 0)]]), None, "another segment");
        assert_eq!(read(&[&[(8, 0)]]), None, "another segment");
        assert_eq!(read(&[&[(5, u32::MAX)]]), Some([0, 0, 0]), "no memory is taken for it");
        let whole = run(&[(5, 0)]);
        for length in 1..whole.len() {
            assert!(SegmentPrevouts::read(range, &[&whole[..length]]).is_none(), "{length}");
        }
        let none = SegmentPrevouts::default();
        assert_eq!(none.of_block(0).count() + none.of_block(5).count(), 0);
    }

    proptest! {
        /// The result equals a map of all records.
        #[test]
        fn a_block_has_its_coins_in_order(
            runs in vec(vec((5u32..8, 0u32..6), 0..5), 0..5),
        ) {
            let range = HeightRange::new(5, 8);
            let written: Vec<Vec<u8>> = runs.iter().map(|places| run(places)).collect();
            let answers = SegmentPrevouts::read(range, &written.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let mut all: BTreeMap<(Height, u32), Vec<u8>> = BTreeMap::new();
            let mut twice = false;
            for at in runs.into_iter().flatten() {
                let coin = PrevoutRecord::read(&run(&[at])).unwrap().0.coin.to_vec();
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
