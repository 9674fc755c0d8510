//! What every encoding of hints has in common: indices of unspent outputs, block after block.
//!
//! Encodings differ in what an index counts ([`IndexSpace`]); converting one into another takes the
//! blocks, which nothing here has.

use super::error::HintsError;
use apus_chain::{BlockHash, Height};

/// The hints of one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHints<'a> {
    /// The block's height.
    pub height: Height,
    /// Which of the block's spendable outputs are unspent at the stop height, ascending.
    pub indices: &'a [u32],
}

/// What an index counts, from 0, in block order: transactions, and in each its outputs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IndexSpace {
    /// Outputs that can be coins. Not counted are scripts of more than 10,000 bytes, scripts that
    /// begin with OP_RETURN, and the two coinbases that BIP-30 made unspendable (BIP-457).
    Spendable,
    /// All outputs.
    AllOutputs,
}

/// Where the hints of a block were read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockElement {
    /// The block's height.
    pub height: Height,
    /// Where its hints begin, in the file or, where that is compressed, in what it holds.
    pub offset: u64,
    /// How many outputs the block is said to have, where the encoding says so. To be compared
    /// with the block: the encoding may not be able to say the truth.
    pub outputs: Option<u32>,
}

/// Reads hints in any encoding, block by block, in ascending height without gaps.
pub trait HintsDecoder {
    /// What the indices count.
    fn index_space(&self) -> IndexSpace;
    /// The first height.
    fn start_height(&self) -> Height;
    /// The last height, where the encoding states it. Where it does not, the end of the file is
    /// the end of the hints, and only the chain can tell whether that is too early.
    fn stop_height(&self) -> Option<Height>;
    /// The block after which the hints are true, where the encoding states it.
    fn stop_block(&self) -> Option<BlockHash> {
        None
    }
    /// Replaces `indices` by those of the next block; none after the last, once the end of the
    /// data was found to be where it must be. After an error the decoder is of no more use.
    fn next_block(&mut self, indices: &mut Vec<u32>) -> Result<Option<BlockElement>, HintsError>;
}

/// Writes hints in any encoding, block by block, in ascending height without gaps.
pub trait HintsEncoder {
    /// What the indices must count.
    fn index_space(&self) -> IndexSpace;
    /// The first height that must be given.
    fn start_height(&self) -> Height;
    /// Writes the hints of the next block, which has `outputs` outputs in the encoding's
    /// [`IndexSpace`].
    fn put_block(&mut self, indices: &[u32], outputs: u32) -> Result<(), HintsError>;
    /// Writes what follows the last block and checks that there are as many as announced.
    fn finish(self: Box<Self>) -> Result<(), HintsError>;
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::engines::swiftsync::hints::error::HintsFault;

    /// The sets of all blocks; heights must follow one another.
    pub(in crate::engines::swiftsync::hints) fn collect(
        decoder: &mut dyn HintsDecoder,
    ) -> Result<Vec<Vec<u32>>, HintsError> {
        let (mut blocks, mut indices) = (Vec::new(), vec![99]);
        while let Some(element) = decoder.next_block(&mut indices)? {
            assert_eq!(element.height, decoder.start_height() + blocks.len() as u32);
            blocks.push(indices.clone());
        }
        assert!(decoder.next_block(&mut indices)?.is_none(), "the end is final");
        Ok(blocks)
    }

    /// What is wrong with a block.
    pub(in crate::engines::swiftsync::hints) fn fault<T>(
        result: Result<T, HintsError>,
    ) -> HintsFault {
        match result {
            Err(HintsError::Block { fault, .. }) => fault,
            Err(other) => panic!("another error: {other}"),
            Ok(_) => panic!("no error"),
        }
    }
}
