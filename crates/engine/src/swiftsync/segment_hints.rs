//! The hints of one segment, ready to be asked block by block in any order.

use apus_chain::{BlockHash, Height, HeightRange, OutPoint, Txid};
use apus_hash::prefetch;

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
    /// Where those begin whose txids begin with each number of `bits` bits, and the end of the last.
    starts: Vec<u32>,
    bits: u32,
    /// A bit for each number of `mark_bits` bits: whether some coin's txid begins with it. Each transaction of a
    /// block is looked up, and most have no coin left: this ends it, in memory that the processor has at hand.
    marks: Vec<u64>,
    mark_bits: u32,
}

/// As many coins share a place in [`CoinHints::starts`], on average.
const COINS_AT_A_START: usize = 4;

/// At least as many marks as this are there for each coin, so that few others hit one.
const MARKS_OF_A_COIN: usize = 8;

/// The first bits of a txid as a number.
fn first_bits(txid: &Txid, bits: u32) -> usize {
    let [b0, b1, b2, b3, ..] = txid.0;
    (u64::from(u32::from_be_bytes([b0, b1, b2, b3])) >> (32 - bits)) as usize
}

/// The first bytes of a txid, which nearly always decide what a comparison would.
fn first_bytes(txid: &Txid) -> u64 {
    txid.0.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

impl CoinHints {
    /// Takes the coins in any order.
    pub fn new(range: HeightRange, mut outpoints: Vec<OutPoint>) -> Self {
        // Those of a snapshot are in order but for outputs of one transaction, of which few are left.
        if !outpoints.is_sorted_by(|a, b| (first_bytes(&a.txid), a) <= (first_bytes(&b.txid), b)) {
            outpoints.sort_unstable();
        }
        let bits = (outpoints.len() / COINS_AT_A_START).max(1).ilog2().min(24);
        let mut starts = vec![0_u32; (1 << bits) + 1];
        let mark_bits = (outpoints.len() * MARKS_OF_A_COIN).max(64).ilog2().min(29) + 1;
        let mut marks = vec![0_u64; 1 << (mark_bits - 6)];
        for OutPoint { txid, .. } in &outpoints {
            starts[first_bits(txid, bits) + 1] += 1;
            let mark = first_bits(txid, mark_bits);
            marks[mark / 64] |= 1 << (mark % 64);
        }
        let mut end = 0;
        for start in &mut starts {
            end += *start;
            *start = end;
        }
        Self { range, outpoints, starts, bits, marks, mark_bits }
    }

    /// The heights covered.
    pub fn range(&self) -> HeightRange {
        self.range
    }

    /// How many coins.
    pub fn count(&self) -> usize {
        self.outpoints.len()
    }

    /// The coins, ascending.
    pub fn outpoints(&self) -> &[OutPoint] {
        &self.outpoints
    }

    /// Whether the transaction may have a coin. For one that has none the answer is seldom yes.
    fn may_have(&self, txid: &Txid) -> bool {
        let mark = first_bits(txid, self.mark_bits);
        self.marks[mark / 64] >> (mark % 64) & 1 == 1
    }

    /// The surviving coins of one transaction, by ascending vout, and how many coins of other
    /// transactions come before them; 0 where there are none.
    #[inline]
    pub fn transaction(&self, txid: Txid) -> (usize, &[OutPoint]) {
        if self.may_have(&txid) { self.find(txid) } else { (0, &[]) }
    }

    fn find(&self, txid: Txid) -> (usize, &[OutPoint]) {
        let place = first_bits(&txid, self.bits);
        let (from, to) = (self.starts[place] as usize, self.starts[place + 1] as usize);
        let first = first_bytes(&txid);
        let is_below = |it: &OutPoint| (first_bytes(&it.txid), &it.txid) < (first, &txid);
        let start = from + self.outpoints[from..to].partition_point(is_below);
        let is_its = |it: &&OutPoint| first_bytes(&it.txid) == first && it.txid == txid;
        match self.outpoints[start..].iter().take_while(is_its).count() {
            0 => (0, &[]),
            count => (start, &self.outpoints[start..start + count]),
        }
    }

    /// Has the processor fetch where the coins of a transaction begin, which will be asked soon.
    pub(super) fn prefetch_start(&self, txid: &Txid) {
        if self.may_have(txid) {
            prefetch(&self.starts[first_bits(txid, self.bits)]);
        }
    }

    /// Has it fetch those coins, sooner.
    pub(super) fn prefetch_coins(&self, txid: &Txid) {
        if self.may_have(txid) {
            let start = self.starts[first_bits(txid, self.bits)] as usize;
            self.outpoints.get(start).inspect(|coin| prefetch(*coin));
        }
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
            assert_eq!(hints.transaction(txid(absent)), (0, &[][..]));
        }
    }

    proptest! {
        /// However txids begin: all alike, too.
        #[test]
        fn each_transaction_is_found_where_it_is_in_order(
            names in btree_set((vec(0u8..4, 2), any::<u8>(), 0u32..3), 0..200),
        ) {
            let outpoint = |(first, last, vout): &(Vec<u8>, u8, u32)| {
                let mut txid = [0; 32];
                // Bytes that count, and bytes that don't, where there are few.
                (txid[0], txid[1], txid[31]) = (first[0] * 85, first[1], *last);
                OutPoint { txid: Txid(txid), vout: *vout }
            };
            let coins: Vec<OutPoint> = names.iter().map(outpoint).collect();
            let hints = CoinHints::new(HeightRange::new(1, 2), coins.iter().rev().copied().collect());
            let absent = Txid([7; 32]);
            for txid in coins.iter().map(|coin| coin.txid).chain([absent]) {
                let its: Vec<OutPoint> =
                    coins.iter().filter(|coin| coin.txid == txid).copied().collect();
                let below = coins.iter().filter(|coin| coin.txid < txid).count();
                let before = if its.is_empty() { 0 } else { below };
                prop_assert_eq!(hints.transaction(txid), (before, &its[..]));
            }
        }

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
