//! [`SegmentHashes`]: the numbered outputs of a segment's blocks, and the hashes of the survivors.
//!
//! [`commitment`](crate::commitment) says which outputs have numbers and which hashes are needed.

use crate::commitment::{CoinHash, CoinHasher, NewHasher, PlacedHash, write_placed};
use apus_chain::{BlockHash, CoinRef, Height, OutPoint};
use core::ops::Range;

/// The numbered outputs of a segment, and the hashes of the survivors.
pub(super) struct SegmentHashes {
    under_way: CurrentBlock,
    /// The numbers of the surviving outputs, each within its block.
    numbers: Vec<u64>,
    /// Their hashes, except those still in the hasher.
    hashes: Vec<CoinHash>,
    hasher: Box<dyn CoinHasher>,
    blocks: Vec<BlockNumbers>,
}

/// The block being processed.
#[derive(Default)]
struct CurrentBlock {
    hash: BlockHash,
    /// The outputs that it spends itself: transaction and output, ascending.
    own: Vec<(u32, u32)>,
    /// How many of these come before the current output.
    passed: usize,
    numbered: u64,
    /// Index of its first surviving output.
    first: usize,
}

struct BlockNumbers {
    height: Height,
    numbered: u64,
    surviving: Range<usize>,
}

impl SegmentHashes {
    pub(super) fn new(hasher: NewHasher) -> Self {
        Self {
            under_way: CurrentBlock::default(),
            numbers: Vec::new(),
            hashes: Vec::new(),
            hasher: hasher(),
            blocks: Vec::new(),
        }
    }

    /// Begins a block; `own` are the outputs that it spends itself, each with its transaction's index.
    pub(super) fn begin_block(&mut self, hash: BlockHash, mut own: Vec<(u32, u32)>) {
        own.sort_unstable();
        self.under_way =
            CurrentBlock { hash, own, first: self.numbers.len(), ..CurrentBlock::default() };
    }

    /// Takes the next spendable output, of the transaction at this index in the block.
    pub(super) fn output(
        &mut self,
        tx: u32,
        outpoint: &OutPoint,
        coin: CoinRef<'_>,
        survives: bool,
    ) {
        let under_way = &mut self.under_way;
        let this = (tx, outpoint.vout);
        let before = under_way.own[under_way.passed..].iter().take_while(|own| **own < this);
        under_way.passed += before.count();
        if under_way.own.get(under_way.passed) == Some(&this) {
            return;
        }
        if survives {
            self.numbers.push(under_way.numbered);
            self.hasher.push(&under_way.hash, outpoint, coin, &mut self.hashes);
        }
        under_way.numbered += 1;
    }

    /// Ends the block.
    pub(super) fn end_block(&mut self, height: Height) {
        let CurrentBlock { numbered, first, .. } = self.under_way;
        self.blocks.push(BlockNumbers { height, numbered, surviving: first..self.numbers.len() });
    }

    /// Returns the number of numbered outputs in the segment, and the run of hashes.
    pub(super) fn finish(mut self) -> (u64, Vec<u8>) {
        self.hasher.flush(&mut self.hashes);
        self.blocks.sort_unstable_by_key(|block| block.height);
        // Nearly all gaps take one byte.
        let (mut numbered, mut run) = (0, Vec::with_capacity(self.numbers.len() * 34));
        let mut first = Vec::with_capacity(self.blocks.len());
        for block in &self.blocks {
            first.push(numbered);
            numbered += block.numbered;
        }
        let blocks = self.blocks.iter().zip(first);
        let placed = blocks.flat_map(|(block, first)| {
            let hashes = self.hashes[block.surviving.clone()].iter();
            let surviving = self.numbers[block.surviving.clone()].iter().zip(hashes);
            surviving.map(move |(number, hash)| PlacedHash { place: first + number, hash: *hash })
        });
        write_placed(placed, &mut run);
        (numbered, run)
    }
}
