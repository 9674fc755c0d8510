//! Which outputs each block of a chain has, in ascending height: what it takes to translate
//! between hints that count all outputs and hints that count spendable ones.

use super::in_order::{InOrder, by_checking};
use super::{Permits, Supply};
use crate::error::SyncError;
use crate::source::BlockSource;
use apus_chain::{
    BlockBytes, CheckedBlock, HeaderChain, Height, HeightRange, Params, ScriptVerifier,
    is_unspendable,
};
use std::sync::atomic::AtomicBool;

/// Blocks read before they are wanted, in bytes.
const BYTES_AHEAD: u64 = 16 << 20;

/// The outputs of one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputsOfBlock {
    /// The block's height.
    pub height: Height,
    /// In block order, whether each output can be a coin.
    pub spendable: Vec<bool>,
    /// Whether the coinbase is one of the two that a later one overwrote (BIP-30).
    pub coinbase_overwritten: bool,
}

/// Gives the outputs of the blocks of `heights` to `each`, in ascending height. Every block is
/// checked on the way.
pub fn walk_outputs(
    params: &Params,
    chain: &HeaderChain,
    source: &dyn BlockSource,
    verifier: Option<&dyn ScriptVerifier>,
    heights: HeightRange,
    each: &mut dyn FnMut(OutputsOfBlock) -> Result<(), SyncError>,
) -> Result<(), SyncError> {
    let never = AtomicBool::new(false);
    let (interrupt, permits) = (&never, Permits::new(1));
    let supply = Supply { params, chain, verifier, source, interrupt, permits, unseen: 0 };
    let of = |block: CheckedBlock| {
        let bytes = block.bytes().view().raw().len() as u64;
        (outputs(params, &block.bytes()), bytes)
    };
    InOrder::new(heights, BYTES_AHEAD).run(&supply, 1, &by_checking(&of), |ahead| {
        while let Some((_, (outputs, _))) = ahead.next()? {
            each(outputs)?;
        }
        Ok(())
    })
}

fn outputs(params: &Params, block: &BlockBytes<'_>) -> OutputsOfBlock {
    let overwritten = params.is_bip30_unspendable(block.height(), &block.hash());
    let spendable = block
        .view()
        .txs()
        .enumerate()
        .flat_map(|(place, tx)| {
            let lost = place == 0 && overwritten;
            tx.outputs().map(move |output| !lost && !is_unspendable(output.script()))
        })
        .collect();
    OutputsOfBlock { height: block.height(), spendable, coinbase_overwritten: overwritten }
}
