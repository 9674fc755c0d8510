//! Where hints have to be anchored: which blocks may be taken under them.
//!
//! The sums of a run under hints prove that hints and blocks fit each other, not that the blocks are
//! valid. So of the blocks that are taken under hints, none may be one that Core would check by
//! running its scripts: they end at or below the assumed-valid block, on a chain that contains it,
//! under Core's other conditions ([`ScriptChecks`]). That Core, unlike SwiftSync, looks at amounts,
//! maturity and order below that block, too, is not what this is about: of valid blocks those are
//! right, and which blocks are valid the assumed-valid block says.

use crate::error::{NotAnchored, SyncError, UsageError};
use crate::request::{HintedTask, HintedValidity};
use crate::warning::Unanchored;
use apus_chain::{HeaderChain, KnownBlock, Params, ScriptChecks};

/// Asks whether the blocks of `chain` up to `last`, which is one of them, may be taken under hints.
/// Returns those that are taken for valid on the user's word.
///
/// Only the last block is asked about: where its scripts would not be run, those of no block below it
/// would ([`ScriptChecks::last_assumed`]).
pub(crate) fn expect_anchored(
    params: &Params,
    task: &HintedTask<'_>,
    chain: &HeaderChain,
    last: KnownBlock,
) -> Result<Option<Unanchored>, SyncError> {
    let assumed = match &task.connect {
        Some(connect) => connect.assume_valid,
        None => params.default_assume_valid,
    };
    let checks = ScriptChecks::new(params, chain, assumed);
    // The genesis block is in every chain, and no run takes it.
    let Some(reason) = checks.reason(last.height).filter(|_| last.height > 0) else {
        return Ok(None);
    };
    let last_assumed = checks.last_assumed().filter(|height| *height > 0);
    match task.validity {
        HintedValidity::NotAsked | HintedValidity::Checked => Ok(None),
        HintedValidity::Assumed => {
            let first = last_assumed.map_or(1, |height| height + 1);
            Ok(Some(Unanchored { first, last: last.height, reason }))
        }
        HintedValidity::Anchored => {
            let assuming_it = ScriptChecks::new(params, chain, Some(last.hash));
            let could_be_assumed = !assuming_it.needed(last.height);
            let refused = NotAnchored { last, reason, last_assumed, could_be_assumed };
            Err(SyncError::Usage(UsageError::NotAnchored(Box::new(refused))))
        }
    }
}
