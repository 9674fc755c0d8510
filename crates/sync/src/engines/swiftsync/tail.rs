//! The last blocks of a folder that a node starts on.
//!
//! A node must be able to disconnect its last 288 blocks, wherever it got them from: it always keeps them with
//! their undo data (Core `validation.h`, `MIN_BLOCKS_TO_KEEP`), and cannot recover if the undo data of a block
//! that it must disconnect is missing. So everything that a sync writes for a node has them. Connecting a block
//! produces its undo data, and hints do not contain it; so hints are followed only to the block below the last
//! 288, and those are connected to the set at that block. The hints say which coins survive to the block where
//! they stop; coins that exist below and do not survive are spent by the blocks in between. One pass over these
//! blocks, in any order, finds them ([`spent_later`]).

use crate::engines::swiftsync::{SPENT_LATER_KEY, SpentByBlock, SpentLater, SpentLaterBuilder};
use crate::error::{NotAnchored, SyncError, UsageError};
use crate::folder::FolderOutput;
use crate::progress::{Event, Phase};
use crate::request::{HintedTask, HintedValidity, Request, first_of_last};
use crate::source::ChainSource;
use crate::supply::ranges::take_each;
use crate::system::random_bytes;
use crate::warning::UnanchoredBlocks;
use crate::workdir::Workdir;
use crate::workdir::record::Record;
use apus_chain::{
    CheckedBlock, HeaderChain, Height, HeightRange, KnownBlock, Params, ScriptChecks,
};
use apus_engine::script::{ScriptPoolError, script_verifier};

/// Whether the sync writes blocks that a node starts on. If it cannot connect any, this does not apply.
fn writes_blocks(request: &Request<'_>, dir: &dyn ChainSource) -> bool {
    let writes = dir.archive().is_some() || request.folders.iter().any(FolderOutput::is_pruned);
    writes && request.connect().is_some()
}

/// The last block processed with hints that stop at `hinted`; 0 if all blocks must be connected. An earlier
/// start's choice stays if it is low enough.
pub(crate) fn last_under_hints(
    request: &Request<'_>,
    dir: &dyn ChainSource,
    hinted: KnownBlock,
) -> Result<Height, SyncError> {
    let wanted = match writes_blocks(request, dir) {
        true => hinted.height.min(first_of_last(request.stop.end(hinted.height, dir.chain())) - 1),
        false => hinted.height,
    };
    Ok(match Workdir::read_plan(request.env.workdir)? {
        Some(plan) if plan.identity.stop_hash == hinted.hash && plan.last() > wanted => {
            let what = format!(
                "with hints up to block {}, while a node that starts on these blocks needs all blocks above \
                 {wanted} connected",
                plan.last()
            );
            return Err(request.env.other_run(what));
        }
        Some(plan) if plan.identity.stop_hash == hinted.hash => plan.last(),
        // Blocks that an earlier start connected from the first one on stay connected: the chain was shorter
        // then.
        None if wanted < hinted.height && Record::read(request.env.workdir)?.is_some() => 0,
        _ => wanted,
    })
}

/// Fails early if blocks above `under_hints` need their scripts run and this build cannot run scripts.
pub(crate) fn expect_scripts(
    request: &Request<'_>,
    dir: &dyn ChainSource,
    under_hints: Height,
    end: Height,
) -> Result<(), SyncError> {
    let assumed = request.assume_valid();
    let checks = ScriptChecks::new(request.env.params, dir.chain(), assumed);
    match (under_hints + 1..=end).any(|height| checks.needed(height)) {
        true => script_verifier()
            .map(drop)
            .map_err(|error| SyncError::Scripts(ScriptPoolError::NoInterpreter(error))),
        false => Ok(()),
    }
}

/// Collects the coins that the blocks of `range` spend.
pub(crate) fn spent_later(
    request: &Request<'_>,
    dir: &dyn ChainSource,
    range: HeightRange,
) -> Result<SpentLater, SyncError> {
    let phase = Phase::Spends;
    request.env.observer.event(Event::Started(phase));
    let key: [u8; SPENT_LATER_KEY] = random_bytes()?;
    let mut builder = SpentLaterBuilder::new(key);
    let spent_by = |block: CheckedBlock| SpentByBlock::new(&block.bytes(), &key);
    let add = &mut |block| builder.add(&block);
    let bytes = take_each(phase, &request.env, dir, &[range], &spent_by, add)?;
    request.env.observer.event(Event::Ended { phase, bytes });
    Ok(builder.finish())
}

// Where hints must be anchored: which blocks may be processed with them.
//
// The sums of a sync with hints prove that hints and blocks fit each other, not that the blocks are valid. So
// blocks processed with hints must not include any whose scripts Core would run: they end at or below the
// assumed-valid block, on a chain that contains it, under Core's other conditions ([`ScriptChecks`]). Core,
// unlike SwiftSync, also checks amounts, maturity and order below that block; that makes no difference,
// because valid blocks pass these checks, and the assumed-valid block vouches for validity.

/// Checks whether the blocks of `chain` up to `last` may be processed with hints. Returns the blocks that the
/// user declared valid.
///
/// Only the last block is checked: if its scripts would not be run, neither would any lower block's
/// ([`ScriptChecks::last_assumed`]).
pub(crate) fn expect_anchored(
    params: &Params,
    task: &HintedTask<'_>,
    chain: &HeaderChain,
    last: KnownBlock,
) -> Result<Option<UnanchoredBlocks>, SyncError> {
    let assumed = match &task.connect {
        Some(connect) => connect.assume_valid,
        None => params.default_assume_valid,
    };
    let checks = ScriptChecks::new(params, chain, assumed);
    // The genesis block is in every chain, and no sync processes it.
    let Some(reason) = checks.reason(last.height).filter(|_| last.height > 0) else {
        return Ok(None);
    };
    let last_assumed = checks.last_assumed().filter(|height| *height > 0);
    match task.validity {
        HintedValidity::NotAsked | HintedValidity::Checked => Ok(None),
        HintedValidity::Assumed => {
            let first = last_assumed.map_or(1, |height| height + 1);
            Ok(Some(UnanchoredBlocks { first, last: last.height, reason }))
        }
        HintedValidity::Anchored => {
            let assuming_it = ScriptChecks::new(params, chain, Some(last.hash));
            let could_be_assumed = !assuming_it.needed(last.height);
            let refused = NotAnchored { last, reason, last_assumed, could_be_assumed };
            Err(SyncError::Usage(UsageError::NotAnchored(Box::new(refused))))
        }
    }
}
