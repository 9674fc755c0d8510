//! The hints of one segment, in a form that can be queried block by block in any order.

use apus_chain::{BlockHash, Height, HeightRange, OutPoint, Txid};

/// The outputs of a segment's blocks that survive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SegmentHints {
    /// By index: for each block the indices among its spendable outputs (BIP-456).
    Indices(IndexHints),
    /// By outpoint: the coins themselves, from a UTXO snapshot.
    Coins(CoinHints),
}

/// Ascending indices for each height of a range.
pub type IndexHints = ByBlock<u32>;

/// The outpoints of a segment's surviving coins, by the block that created them; each block's ascend.
pub type CoinHints = ByBlock<OutPoint>;

/// The items of each block in a range, ascending in each block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ByBlock<T> {
    start: Height,
    /// The end of each block's items in `all`.
    ends: Vec<usize>,
    all: Vec<T>,
}

impl<T: Ord> ByBlock<T> {
    /// Creates empty hints; the first block added is the one at `start`.
    pub fn new(start: Height) -> Self {
        Self { start, ends: Vec::new(), all: Vec::new() }
    }

    /// The heights covered.
    pub fn range(&self) -> HeightRange {
        HeightRange::new(self.start, self.start + self.ends.len() as u32)
    }

    /// Adds the next block's items, in any order.
    pub fn push(&mut self, own: impl IntoIterator<Item = T>) {
        let first = self.all.len();
        self.all.extend(own);
        self.ends.push(self.all.len());
        sort(&mut self.all[first..]);
    }

    /// The items of a block, ascending; `None` outside the range.
    pub fn block(&self, height: Height) -> Option<&[T]> {
        let index = height.checked_sub(self.start)? as usize;
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.all[start..end])
    }
}

impl CoinHints {
    /// Takes the coins of some blocks in any order, each with the height of its block; `None` if one of them
    /// is outside `range`. It iterates twice, so that the coins need not be in memory twice.
    pub fn of(
        range: HeightRange,
        coins: impl Iterator<Item = (Height, OutPoint)> + Clone,
    ) -> Option<Self> {
        let mut ends = vec![0; range.count() as usize];
        for (height, _) in coins.clone() {
            *ends.get_mut(height.checked_sub(range.start)? as usize)? += 1;
        }
        let mut before = 0;
        for end in &mut ends {
            // The start of the block's coins, for now.
            before += core::mem::replace(end, before);
        }
        let mut all = vec![OutPoint { txid: Txid::ZERO, vout: 0 }; before];
        for (height, outpoint) in coins {
            let next = &mut ends[(height - range.start) as usize];
            all[*next] = outpoint;
            *next += 1;
        }
        let mut first = 0;
        for end in &ends {
            sort(&mut all[first..*end]);
            first = *end;
        }
        Some(Self { start: range.start, ends, all })
    }

    /// Number of coins.
    pub fn count(&self) -> usize {
        self.all.len()
    }
}

/// Hints and a snapshot's coins are already in order.
fn sort<T: Ord>(items: &mut [T]) {
    if !items.is_sorted() {
        items.sort_unstable();
    }
}

impl SegmentHints {
    /// The heights covered.
    pub fn range(&self) -> HeightRange {
        match self {
            Self::Indices(hints) => hints.range(),
            Self::Coins(hints) => hints.range(),
        }
    }
}

/// The hints name something that the chain does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HintError {
    /// An index past the block's outputs.
    #[error(
        "the hints for block {height} ({hash}) name output {index}, but the block has only \
         {spendable} spendable outputs: the hints were made for another chain or are damaged"
    )]
    IndexOutOfRange {
        /// The block's height.
        height: Height,
        /// The block's hash.
        hash: BlockHash,
        /// The index among spendable outputs.
        index: u32,
        /// The block's number of spendable outputs.
        spendable: u32,
    },
    /// Coins that no block of the range creates.
    #[error(
        "the snapshot names {missing} coin(s) of blocks {} to {} that these blocks do not create: the snapshot was \
         made for another chain or is damaged",
        .range.start,
        .range.end.saturating_sub(1)
    )]
    CoinsMissing {
        /// The heights searched.
        range: HeightRange,
        /// Number of coins not found.
        missing: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    proptest! {
        /// Holds for coins in any order.
        #[test]
        fn each_block_has_the_coins_it_created(
            coins in btree_set((4u32..9, any::<u8>(), 0u32..3), 0..100),
            seed in any::<u64>(),
            outside in prop_oneof![Just(3u32), Just(9), any::<u32>().prop_filter("inside", |it| !(4..9).contains(it))],
        ) {
            let coin = |(height, byte, vout): &(u32, u8, u32)| {
                (*height, OutPoint { txid: Txid([*byte; 32]), vout: *vout })
            };
            let ascending: Vec<(Height, OutPoint)> = coins.iter().map(coin).collect();
            let mut given = ascending.clone();
            apus_testkit::rng::Rng::new(seed).shuffle(&mut given);
            let range = HeightRange::new(4, 9);
            let hints = CoinHints::of(range, given.iter().copied()).unwrap();
            let mut pushed = CoinHints::new(4);
            for height in range.heights() {
                pushed.push(given.iter().filter(|coin| coin.0 == height).map(|coin| coin.1));
            }
            prop_assert_eq!(&pushed, &hints);
            prop_assert_eq!((hints.range(), hints.count()), (range, ascending.len()));
            for height in range.heights() {
                let own: Vec<OutPoint> =
                    ascending.iter().filter(|coin| coin.0 == height).map(|coin| coin.1).collect();
                prop_assert_eq!(hints.block(height), Some(&own[..]));
            }
            prop_assert_eq!(hints.block(3), None);
            prop_assert_eq!(hints.block(9), None);
            given.push((outside, OutPoint { txid: Txid::ZERO, vout: 0 }));
            prop_assert_eq!(CoinHints::of(range, given.iter().copied()), None);
        }

        #[test]
        fn each_block_has_the_indices_it_was_given(
            start in 0u32..1_000_000,
            blocks in vec(btree_set(any::<u32>(), 0..5), 0..10),
        ) {
            let mut hints = IndexHints::new(start);
            let blocks: Vec<Vec<u32>> =
                blocks.into_iter().map(|block| block.into_iter().collect()).collect();
            blocks.iter().for_each(|block| hints.push(block.iter().copied()));
            let range = hints.range();
            prop_assert_eq!(range, HeightRange::new(start, start + blocks.len() as u32));
            for (height, block) in (start..).zip(&blocks) {
                prop_assert_eq!(hints.block(height), Some(&block[..]));
            }
            prop_assert_eq!(hints.block(range.end), None);
            prop_assert_eq!(start.checked_sub(1).and_then(|before| hints.block(before)), None);
            prop_assert_eq!(SegmentHints::Indices(hints).range(), range);
        }
    }
}
