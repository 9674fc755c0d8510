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

    /// The surviving coins of one transaction, by ascending vout.
    pub fn transaction(&self, txid: Txid) -> &[OutPoint] {
        let start = self.outpoints.partition_point(|o| o.txid < txid);
        let count = self.outpoints[start..].iter().take_while(|o| o.txid == txid).count();
        &self.outpoints[start..start + count]
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
        "the snapshot names {missing} coins of blocks {range} that these blocks do not create: it \
         was made for another chain or is damaged"
    )]
    CoinsMissing {
        /// The heights looked at.
        range: HeightRange,
        /// How many coins were not found.
        missing: u64,
    },
}
