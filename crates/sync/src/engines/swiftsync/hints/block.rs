//! The common basis of all encodings of hints: indices of unspent outputs, block by block.
//!
//! Encodings differ in what an index counts ([`IndexSpace`]); converting between them needs the blocks, which
//! these modules do not have.

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

/// What an index counts, from 0, in block order: over transactions, and within each over its outputs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IndexSpace {
    /// Outputs that can be coins: all except scripts of more than 10,000 bytes, scripts that begin with
    /// OP_RETURN, and the two coinbases that BIP-30 made unspendable (BIP-457).
    Spendable,
    /// All outputs.
    AllOutputs,
}

/// The place of a block's hints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockElement {
    /// The block's height.
    pub height: Height,
    /// Offset of its hints: in the file, or in the uncompressed data.
    pub offset: u64,
    /// The block's number of outputs, if the encoding states it. Compare it with the block: the encoding may
    /// be unable to represent the true number.
    pub outputs: Option<u32>,
}

/// A reader of hints in any encoding, block by block, in ascending height without gaps.
pub trait HintsDecoder {
    /// Returns the last height, if the encoding states it. If not, the hints end at the end of the file, and
    /// only the chain shows whether that is too early.
    fn stop_height(&self) -> Option<Height> {
        None
    }
    /// Returns the block for which the hints are true, if the encoding states it.
    fn stop_block(&self) -> Option<BlockHash> {
        None
    }
    /// Replaces `indices` with the next block's. Returns `None` after the last one, once it has checked that
    /// the data ends there. After an error the decoder must not be used any more.
    fn next_block(&mut self, indices: &mut Vec<u32>) -> Result<Option<BlockElement>, HintsError>;
}

/// A writer of hints in any encoding, block by block, in ascending height without gaps.
pub trait HintsEncoder {
    /// Writes the hints of the next block, which has `outputs` outputs in the encoding's
    /// [`IndexSpace`].
    fn put_block(&mut self, indices: &[u32], outputs: u32) -> Result<(), HintsError>;
    /// Writes the end of the file and checks that as many blocks were written as announced.
    fn finish(self: Box<Self>) -> Result<(), HintsError>;
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::engines::swiftsync::hints::{Format, HintsFault};

    /// The index sets of all blocks; checks that heights are consecutive, from the format's first.
    pub(in crate::engines::swiftsync::hints) fn collect(
        format: Format,
        decoder: &mut dyn HintsDecoder,
    ) -> Result<Vec<Vec<u32>>, HintsError> {
        let (mut blocks, mut indices) = (Vec::new(), vec![99]);
        while let Some(element) = decoder.next_block(&mut indices)? {
            assert_eq!(element.height, format.start_height() + blocks.len() as u32);
            blocks.push(indices.clone());
        }
        assert!(decoder.next_block(&mut indices)?.is_none(), "the end is final");
        Ok(blocks)
    }

    /// The fault of a block.
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
