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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use apus_chain::{ANY_TIME, Network, Params};
    use apus_testkit::chain::ChainBuilder;
    use bitcoin::consensus::serialize;

    /// The headers of a chain of so many blocks above genesis.
    pub(crate) fn headers(count: usize) -> HeaderChain {
        let mut chain = ChainBuilder::new(1);
        chain.empty_blocks(count);
        let raw: Vec<Vec<u8>> = chain.blocks().iter().map(|it| serialize(&it.header)).collect();
        let raw = raw.iter().map(|it| it.as_slice().try_into().unwrap());
        HeaderChain::from_headers(Params::of(Network::Regtest), ANY_TIME, raw).unwrap()
    }

    #[test]
    fn a_locator_goes_back_in_growing_steps() {
        let headers = headers(40);
        let located = locator(&headers);
        assert_eq!(located[..5], [0x80, 0x11, 1, 0, 16]);
        let heights = [40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 30, 29, 27, 23, 15, 0];
        let found: Vec<Height> = (located[5..].as_chunks::<32>().0.iter())
            .map(|hash| headers.height_of(&apus_chain::BlockHash(*hash)).unwrap())
            .collect();
        assert_eq!(found, heights);
    }

    #[test]
    fn numbers_are_ordered_like_their_bytes() {
        let order = [0, 127, 128, 255, 16_512, 256, 16_511];
        assert!(order.map(number_order).is_sorted());
    }
}
