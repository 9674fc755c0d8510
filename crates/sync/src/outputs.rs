//! Which outputs each block of a chain has, in ascending height: what it takes to translate
//! between hints that count all outputs and hints that count spendable ones.

use crate::error::SyncError;
use crate::source::{BlockSource, Taken};
use apus_chain::{
    BlockBytes, BlockChecker, BlockContext, HeaderChain, Height, HeightRange, Params,
    ScriptVerifier, is_unspendable,
};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

/// Blocks looked at before they are put in order.
const BATCH: u32 = 256;

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
    let mut fetcher = source.fetcher(&never);
    let mut checker = BlockChecker::new();
    let mut start = heights.start;
    while start < heights.end {
        let batch = HeightRange::new(start, heights.end.min(start.saturating_add(BATCH)));
        let mut blocks = BTreeMap::new();
        let mut failure = None;
        fetcher.fetch(batch, &mut |height, raw| {
            let context = context(params, chain, verifier, height);
            match checker.check(raw, &context) {
                Ok(block) => {
                    blocks.insert(height, outputs(params, &block));
                    Taken::Yes
                }
                Err(error) if error.is_damage() => Taken::Damaged(error),
                Err(error) => {
                    failure = Some(SyncError::InvalidBlock { height, hash: context.hash, error });
                    Taken::Stop
                }
            }
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
        blocks.into_values().try_for_each(&mut *each)?;
        start = batch.end;
    }
    Ok(())
}

/// What a block at `height` is checked against.
pub(crate) fn context<'a>(
    params: &'a Params,
    chain: &HeaderChain,
    verifier: Option<&'a dyn ScriptVerifier>,
    height: Height,
) -> BlockContext<'a> {
    let before = height.saturating_sub(1);
    BlockContext {
        params,
        height,
        hash: chain.hash(height).copied().unwrap_or_default(),
        median_time_past: chain.median_time_past(before).unwrap_or_default(),
        verifier,
    }
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
