//! [`Gather`]: the pass that writes down which coins blocks make and want.
//!
//! What a block spends of itself is left to the one who judges the block. Spends of what an earlier block
//! of the same segment made are answered at the end of the segment, so that only what crosses segments
//! has to be joined. That is right as long as no transaction is repeated: a coin that is there already
//! when it is made again would not be seen. Where a valid block may repeat one (BIP-30), nothing is
//! answered ahead.

use super::partial::Gathered;
use super::pile::Pile;
use super::record::{MadeRecord, OUTPOINT, SpentRecord};
use crate::connect::rules::may_repeat;
use crate::connect::{Place, coins_of, wanted_of};
use crate::pass::{Covered, FinishedSegment, Pass, RunKind, Seen, Uncovered};
use apus_chain::{
    BlockBytes, BlockHash, HeaderChain, Height, HeightRange, OutPoint, Params, write_coin,
};
use core::iter::Peekable;
use core::ops::Range;
use std::collections::HashSet;

/// Why blocks were not gathered: mistakes of the caller, not of the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GatherError {
    /// A block that is not of the segment, or came before.
    #[error("block {0} was not asked for, or came twice")]
    Unexpected(Height),
    /// A block did not come.
    #[error("block {0} is missing")]
    Missing(Height),
}

/// The pass. See the module.
pub struct Gather {
    params: Params,
    /// The block at BIP-34's height, if the chain has one.
    at_bip34_height: Option<BlockHash>,
}

impl Gather {
    /// For the blocks of this chain.
    pub fn new(params: &Params, chain: &HeaderChain) -> Self {
        let at_bip34_height = chain.hash(params.bip34_height).copied();
        Self { params: params.clone(), at_bip34_height }
    }

    /// Whether a valid block of this name may have an output of one before it, or is one of the two
    /// that may even where it is unspent (Core `validation.cpp`, `ConnectBlock`).
    fn may_repeat(&self, height: Height, hash: &BlockHash) -> bool {
        let below = self.at_bip34_height.filter(|_| self.params.bip34_height < height);
        may_repeat(&self.params)
            && (self.params.is_bip30_repeat(height, hash)
                || self.params.enforces_bip30(height, hash, below.as_ref()))
    }
}

/// A segment under way.
pub struct GatherSegment {
    seen: Seen,
    gathered: Gathered,
    made: Pile,
    spent: Pile,
    /// Blocks whose coins are not given to spends ahead.
    unpaired: HashSet<Height>,
    wanted: Vec<OutPoint>,
    places: Vec<Place>,
    /// Outputs that the block spends itself, by transaction and output.
    own: Vec<(u32, u32)>,
    coin: Vec<u8>,
}

impl Pass for Gather {
    type Input = HeightRange;
    type Segment = GatherSegment;
    type Partial = Gathered;
    type Verdict = Gathered;
    type Error = GatherError;

    const RUNS: &'static [RunKind] = &[RunKind::Made, RunKind::Spent, RunKind::Answers];

    fn begin(&self, range: HeightRange) -> Result<GatherSegment, GatherError> {
        Ok(GatherSegment {
            seen: Seen::none_of(range),
            gathered: Gathered { covered: Covered::of(range), ..Gathered::default() },
            made: Pile::default(),
            spent: Pile::default(),
            unpaired: HashSet::new(),
            wanted: Vec::new(),
            places: Vec::new(),
            own: Vec::new(),
            coin: Vec::new(),
        })
    }

    fn block(
        &self,
        segment: &mut GatherSegment,
        block: &BlockBytes<'_>,
    ) -> Result<(), GatherError> {
        let height = block.height();
        if !segment.seen.take(height) {
            return Err(GatherError::Unexpected(height));
        }
        segment.gathered.counts.add_block(&block.view());
        let may_repeat = self.may_repeat(height, &block.hash());
        if may_repeat {
            segment.unpaired.insert(height);
        }
        segment.spends(block);
        segment.makes(block, may_repeat);
        Ok(())
    }

    fn finish(&self, segment: GatherSegment) -> Result<FinishedSegment<Gathered>, GatherError> {
        if let Some(missing) = segment.seen.missing() {
            return Err(GatherError::Missing(missing));
        }
        let GatherSegment { gathered, made, spent, unpaired, .. } = segment;
        let runs = pair(made, spent, |height| !unpaired.contains(&height));
        Ok(FinishedSegment { partial: gathered, runs: runs.into() })
    }

    fn nothing(&self) -> Gathered {
        Gathered::default()
    }

    fn conclude(&self, whole: &Gathered, stop: Height) -> Result<Gathered, GatherError> {
        match whole.covered.expect_up_to(stop) {
            Ok(()) => Ok(whole.clone()),
            Err(Uncovered::Missing(range)) => Err(GatherError::Missing(range.start)),
            Err(Uncovered::Surplus(range)) => Err(GatherError::Unexpected(range.start)),
        }
    }
}

impl GatherSegment {
    /// Notes what a block wants from those below it.
    fn spends(&mut self, block: &BlockBytes<'_>) {
        let height = block.height();
        wanted_of(block, &mut self.wanted, &mut self.places);
        for (place, outpoint) in (0..).zip(&self.wanted) {
            let record = SpentRecord { outpoint: *outpoint, height, place };
            self.spent.push(|out| record.write(out));
        }
    }

    /// Notes what a block makes. What it spends itself is noted only where BIP-30 may ask whether it was
    /// there before.
    fn makes(&mut self, block: &BlockBytes<'_>, with_own: bool) {
        let height = block.height();
        self.own.clear();
        self.own.extend(self.places.iter().filter_map(|place| match place {
            Place::Created { tx, vout } => Some((*tx, *vout)),
            Place::Wanted(_) => None,
        }));
        self.own.sort_unstable();
        let mut index = 0;
        for (number, (txid, tx)) in (0..).zip(block.txs()) {
            for (outpoint, coin) in coins_of(height, txid, &tx, number == 0) {
                let own = self.own.binary_search(&(number, outpoint.vout)).is_ok();
                if !own || with_own {
                    self.coin.clear();
                    if !own {
                        write_coin(&mut self.coin, coin);
                    }
                    let record = MadeRecord { outpoint, height, index, coin: &self.coin };
                    self.made.push(|out| record.write(out));
                }
                index += 1;
            }
        }
    }
}

const HEIGHT: Range<usize> = OUTPOINT..OUTPOINT + 4;

/// The first bytes of a record of either kind.
fn outpoint(record: &[u8]) -> &[u8] {
    &record[..OUTPOINT]
}

fn height(record: &[u8]) -> Height {
    record[HEIGHT].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// The records of one outpoint, if the next ones are of it.
fn take_same<'p>(
    records: &mut Peekable<impl Iterator<Item = &'p [u8]>>,
    name: &[u8],
    same: &mut Vec<&'p [u8]>,
) {
    same.clear();
    while let Some(record) = records.next_if(|record| outpoint(record) == name) {
        same.push(record);
    }
}

/// Gives coins of the segment to spends of the segment. What is left, and the answers, as runs.
fn pair(mut made: Pile, mut spent: Pile, pairs: impl Fn(Height) -> bool) -> [Vec<u8>; 3] {
    made.sort();
    spent.sort();
    let (mut made, mut spent) = (made.iter().peekable(), spent.iter().peekable());
    let (mut coins, mut spends) = (Vec::new(), Vec::new());
    let (mut made_left, mut spent_left, mut answers) = (Vec::new(), Vec::new(), Pile::default());
    loop {
        let name = match (made.peek(), spent.peek()) {
            (Some(made), Some(spent)) => outpoint(made).min(outpoint(spent)),
            (Some(record), None) | (None, Some(record)) => outpoint(record),
            (None, None) => break,
        };
        take_same(&mut made, name, &mut coins);
        take_same(&mut spent, name, &mut spends);
        if let &[coin] = &coins[..]
            && pairs(height(coin))
            && let Some(first) = spends.iter().position(|spend| height(spend) > height(coin))
        {
            answer(coin, spends.remove(first), &mut answers);
            coins.clear();
        }
        coins.iter().for_each(|record| made_left.extend_from_slice(record));
        spends.iter().for_each(|record| spent_left.extend_from_slice(record));
    }
    [made_left, spent_left, answers.into_run()]
}

/// Gives a coin to a spend: an answer is the one's end behind the other's.
fn answer(coin: &[u8], spend: &[u8], answers: &mut Pile) {
    answers.push(|out| {
        out.extend_from_slice(&spend[OUTPOINT..]);
        out.extend_from_slice(&coin[MadeRecord::LENGTH_AT..]);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coin::CoinBytes;
    use apus_chain::{CoinRef, Txid};

    fn name(vout: u32) -> OutPoint {
        OutPoint { txid: Txid([7; 32]), vout }
    }

    /// Coins by output and height, spends likewise; what is left of both, and how many answers there are.
    fn paired(made: &[(u32, Height)], spent: &[(u32, Height)]) -> (usize, usize, usize) {
        let (mut coins, mut spends) = (Pile::default(), Pile::default());
        for &(vout, height) in made {
            let coin = CoinRef { height, coinbase: false, amount: 5, script: &[0x51] };
            let coin = CoinBytes::new(coin);
            let record =
                MadeRecord { outpoint: name(vout), height, index: 0, coin: coin.as_bytes() };
            coins.push(|out| record.write(out));
        }
        for (place, &(vout, height)) in (0..).zip(spent) {
            let record = SpentRecord { outpoint: name(vout), height, place };
            spends.push(|out| record.write(out));
        }
        let [made, spent, answers] = pair(coins, spends, |height| height < 50);
        let length = MadeRecord::LENGTH_AT + 2 + 4;
        (made.len() / length, spent.len() / SpentRecord::SIZE, answers.len() / (8 + 2 + 4))
    }

    #[test]
    fn a_coin_goes_to_the_first_spend_above_it() {
        assert_eq!(paired(&[(1, 5)], &[(1, 6)]), (0, 0, 1));
        assert_eq!(paired(&[(1, 5)], &[(1, 9), (1, 6), (1, 4)]), (0, 2, 1));
        assert_eq!(paired(&[(1, 5), (2, 5)], &[(2, 6), (3, 6)]), (1, 1, 1));
        // In its own block, or below it, there is no spend of it.
        assert_eq!(paired(&[(1, 5)], &[(1, 5), (1, 4)]), (1, 2, 0));
    }

    /// Of two coins of one name, and of one that a valid block may make again, the join decides.
    #[test]
    fn what_may_be_repeated_is_left_to_the_join() {
        assert_eq!(paired(&[(1, 5), (1, 8)], &[(1, 6)]), (2, 1, 0));
        assert_eq!(paired(&[(1, 49)], &[(1, 60)]), (0, 0, 1));
        assert_eq!(paired(&[(1, 50)], &[(1, 60)]), (1, 1, 0));
    }
}
