//! [`SegmentLeaves`]: what the blocks of a segment add to the Utreexo forest.
//!
//! Every output that can be spent is a leaf, unless its own block spends it (BIP-182, draft). Those that
//! survive are live, all others will be deleted, so where they were is all that has to be known. The outputs of
//! the two coinbases that history overwrote (BIP-30) are live for good: their names lead to other leaves.

use apus_chain::{BlockHash, CoinRef, Height, OutPoint};
use apus_utreexo::{Leaf, LeafBatch, LiveLeaf, NodeHash, write_live};
use core::ops::Range;

/// See the module.
#[derive(Default)]
pub(super) struct SegmentLeaves {
    under_way: UnderWay,
    /// The places of the live ones in their blocks.
    places: Vec<u64>,
    /// Their hashes, but for those that are still in the batch.
    hashes: Vec<NodeHash>,
    batch: LeafBatch,
    blocks: Vec<LeavesOfBlock>,
}

/// The block that is being taken.
#[derive(Default)]
struct UnderWay {
    hash: BlockHash,
    /// Its outputs that it spends itself: transaction and output, ascending.
    own: Vec<(u32, u32)>,
    /// How many of these were passed.
    passed: usize,
    leaves: u64,
    /// Where its live leaves begin.
    first: usize,
}

struct LeavesOfBlock {
    height: Height,
    leaves: u64,
    live: Range<usize>,
}

impl SegmentLeaves {
    /// Begins a block, which spends these of its own outputs, each named by its transaction's place.
    pub(super) fn begin_block(&mut self, hash: BlockHash, mut own: Vec<(u32, u32)>) {
        own.sort_unstable();
        self.under_way = UnderWay { hash, own, first: self.places.len(), ..UnderWay::default() };
    }

    /// Takes the next output that can be spent, of the transaction at this place of the block.
    pub(super) fn output(
        &mut self,
        tx: u32,
        outpoint: &OutPoint,
        coin: CoinRef<'_>,
        is_live: bool,
    ) {
        let under_way = &mut self.under_way;
        let this = (tx, outpoint.vout);
        let before = under_way.own[under_way.passed..].iter().take_while(|own| **own < this);
        under_way.passed += before.count();
        if under_way.own.get(under_way.passed) == Some(&this) {
            return;
        }
        if is_live {
            self.places.push(under_way.leaves);
            let leaf = Leaf { block: &under_way.hash, outpoint: *outpoint, coin };
            self.batch.push(leaf, &mut self.hashes);
        }
        under_way.leaves += 1;
    }

    /// Ends the block.
    pub(super) fn end_block(&mut self, height: Height) {
        let UnderWay { leaves, first, .. } = self.under_way;
        self.blocks.push(LeavesOfBlock { height, leaves, live: first..self.places.len() });
    }

    /// How many leaves the segment adds, and the run of the live ones.
    pub(super) fn finish(mut self) -> (u64, Vec<u8>) {
        self.batch.flush(&mut self.hashes);
        self.blocks.sort_unstable_by_key(|block| block.height);
        // Nearly all gaps take one byte.
        let (mut leaves, mut run) = (0, Vec::with_capacity(self.places.len() * 34));
        let mut first = Vec::with_capacity(self.blocks.len());
        for block in &self.blocks {
            first.push(leaves);
            leaves += block.leaves;
        }
        let blocks = self.blocks.iter().zip(first);
        let live = blocks.flat_map(|(block, first)| {
            let hashes = self.hashes[block.live.clone()].iter();
            let live = self.places[block.live.clone()].iter().zip(hashes);
            live.map(move |(place, hash)| LiveLeaf { place: first + place, hash: *hash })
        });
        write_live(live, &mut run);
        (leaves, run)
    }
}
