//! [`IndexedChain`]: the blocks that an index has, and where the node has them.

use crate::block::BlockPlace;
use crate::locator::locator;
use apus_chain::{HeaderChain, Height, write_varint};

/// The chain of blocks that indexes are made from.
pub(crate) struct IndexedChain<'a> {
    /// Its headers.
    pub(crate) headers: &'a HeaderChain,
    /// Its last block, as indexes name it.
    pub(crate) locator: Vec<u8>,
    /// The places of its blocks, by height.
    places: Vec<BlockPlace>,
}

impl<'a> IndexedChain<'a> {
    /// `place` gives the place of each block but genesis, whose place no index has.
    pub(crate) fn new(
        headers: &'a HeaderChain,
        place: impl Fn(Height) -> Option<BlockPlace>,
    ) -> Self {
        let nowhere = BlockPlace { file: 0, offset: 0 };
        let places = (0..=headers.tip_height()).map(|height| place(height).unwrap_or(nowhere));
        Self { headers, locator: locator(headers), places: places.collect() }
    }

    /// Returns the place of the block at a height.
    #[inline]
    pub(crate) fn place(&self, height: Height) -> BlockPlace {
        self.places[height as usize]
    }
}

/// Returns what orders numbers like the bytes of their VARINTs.
pub(crate) fn number_order(number: u32) -> [u8; 5] {
    let mut bytes = Vec::with_capacity(5);
    write_varint(&mut bytes, u64::from(number));
    let mut order = [0; 5];
    order[..bytes.len()].copy_from_slice(&bytes);
    order
}
