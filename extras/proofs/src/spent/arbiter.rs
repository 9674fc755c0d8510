//! [`Arbiter`]: decides whether a claim about a coin is right, by the block that created the coin.

use apus_chain::{BlockBytes, BlockChecker, Height, OutPoint, Params, ScriptVerifier};
use apus_sync::engines::swiftsync::UndoPassError;
use apus_sync::source::ChainSource;
use apus_sync::supply::context;
use apus_sync::{SourceError, SyncError};
use apus_utreexo::CompactLeaf;
use std::sync::Arc;

/// Decides between claims about a coin.
pub(super) struct Arbiter<'a> {
    pub(super) params: &'a Params,
    pub(super) verifier: Option<&'a dyn ScriptVerifier>,
    pub(super) chain: Arc<dyn ChainSource + 'a>,
}

impl Arbiter<'_> {
    /// Whether the block that a claim names has created exactly this coin, below the block at a height.
    pub(super) fn is_right(
        &self,
        outpoint: &OutPoint,
        claim: &CompactLeaf<'_>,
        below: Height,
    ) -> Result<bool, UndoPassError> {
        let away = |error| UndoPassError::Away(Box::new(error));
        let chain = self.chain.chain();
        let Some(hash) = chain.hash(claim.height).filter(|_| (1..below).contains(&claim.height))
        else {
            return Ok(false);
        };
        let context = context(self.params, chain, self.verifier, claim.height);
        let mut checker = BlockChecker::new();
        let mut is_right = false;
        let found = self.chain.block_by_hash(hash, &mut |raw| match checker.check(raw, &context) {
            Ok(block) => {
                is_right = creates(&block, outpoint, claim);
                true
            }
            Err(_) => false,
        });
        match found {
            Ok(true) => Ok(is_right),
            Ok(false) => {
                let (start, end) = (claim.height, claim.height + 1);
                let range = apus_chain::HeightRange::new(start, end);
                Err(away(SyncError::from(SourceError::Incomplete { range })))
            }
            Err(error) => Err(away(error.into())),
        }
    }
}

fn creates(block: &BlockBytes<'_>, outpoint: &OutPoint, claim: &CompactLeaf<'_>) -> bool {
    let Some(tx) = block.txids().iter().position(|txid| *txid == outpoint.txid.0) else {
        return false;
    };
    let output = block.view().tx(tx).and_then(|tx| tx.outputs().nth(outpoint.vout as usize));
    let coin = claim.coin();
    output.is_some_and(|output| {
        coin.coinbase == (tx == 0)
            && coin.amount == output.value().unsigned_abs()
            && coin.script == output.script()
    })
}
