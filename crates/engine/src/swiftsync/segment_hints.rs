//! The hints of one segment, ready to be asked block by block in any order.

use apus_chain::{BlockHash, Height, HeightRange, OutPoint, Txid};

/// Which outputs of a segment's blocks survive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SegmentHints {
    /// By place: for each block the indices among its spendable outputs (BIP-456).
    Indices(IndexHints),
    /// By name: the coins themselves, from a UTXO snapshot.
    Coins(CoinHints),
}

/// Ascending indices for each height of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexHints {
    start: Height,
    /// Where each block's indices end in `indices`.
    ends: Vec<usize>,
    indices: Vec<u32>,
}

impl IndexHints {
    /// Starts before the block at `start`.
    pub fn new(start: Height) -> Self {
        Self { start, ends: Vec::new(), indices: Vec::new() }
    }

    /// Adds the next block's indices, which must ascend.
    pub fn push(&mut self, indices: &[u32]) {
        debug_assert!(indices.is_sorted_by(|a, b| a < b));
        self.indices.extend_from_slice(indices);
        self.ends.push(self.indices.len());
    }

    /// The heights covered.
    pub fn range(&self) -> HeightRange {
        HeightRange::new(self.start, self.start + self.ends.len() as u32)
    }

    /// The indices of a block; none outside the range.
    pub fn block(&self, height: Height) -> Option<&[u32]> {
        let index = height.checked_sub(self.start)? as usize;
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.indices[start..end])
    }
}

/// The names of a segment's surviving coins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoinHints {
    range: HeightRange,
    /// Sorted.
    outpoints: Vec<OutPoint>,
}

impl CoinHints {
    /// Takes the coins in any order.
    pub fn new(range: HeightRange, mut outpoints: Vec<OutPoint>) -> Self {
        outpoints.sort_unstable();
        Self { range, outpoints }
    }

    /// The heights covered.
    pub fn range(&self) -> HeightRange {
        self.range
    }

    /// How many coins.
    pub fn count(&self) -> usize {
        self.outpoints.len()
    }

    /// The surviving coins of one transaction, by ascending vout, and how many coins of other
    /// transactions come before them.
    pub fn transaction(&self, txid: Txid) -> (usize, &[OutPoint]) {
        let start = self.outpoints.partition_point(|o| o.txid < txid);
        let count = self.outpoints[start..].iter().take_while(|o| o.txid == txid).count();
        (start, &self.outpoints[start..start + count])
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
        /// The index, among spendable outputs.
        index: u32,
        /// How many spendable outputs the block has.
        spendable: u32,
    },
    /// Coins that no block of the range creates.
    #[error(
        "the snapshot names {missing} coin(s) of blocks {} to {} that these blocks do not create: \
         it was made for another chain or is damaged",
        .range.start,
        .range.end.saturating_sub(1)
    )]
    CoinsMissing {
        /// The heights looked at.
        range: HeightRange,
        /// How many coins were not found.
        missing: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    #[test]
    fn coins_of_a_transaction_and_their_place() {
        let txid = |byte| Txid([byte; 32]);
        let coin = |byte, vout| OutPoint { txid: txid(byte), vout };
        let coins = vec![coin(3, 1), coin(1, 300), coin(3, 0), coin(1, 2), coin(5, 0)];
        let hints = CoinHints::new(HeightRange::new(4, 9), coins);
        assert_eq!((hints.range(), hints.count()), (HeightRange::new(4, 9), 5));
        assert_eq!(hints.transaction(txid(1)), (0, &[coin(1, 2), coin(1, 300)][..]));
        assert_eq!(hints.transaction(txid(3)), (2, &[coin(3, 0), coin(3, 1)][..]));
        assert_eq!(hints.transaction(txid(5)), (4, &[coin(5, 0)][..]));
        for absent in [0, 2, 4, 6] {
            assert_eq!(hints.transaction(txid(absent)).1, []);
        }
    }

    proptest! {
        #[test]
        fn each_block_has_the_indices_it_was_given(
            start in 0u32..1_000_000,
            blocks in vec(btree_set(any::<u32>(), 0..5), 0..10),
        ) {
            let mut hints = IndexHints::new(start);
            let blocks: Vec<Vec<u32>> =
                blocks.into_iter().map(|block| block.into_iter().collect()).collect();
            blocks.iter().for_each(|block| hints.push(block));
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
