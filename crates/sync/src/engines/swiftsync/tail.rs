//! The last blocks of a folder on which a node is to start.
//!
//! A node can go back over its last 288 blocks, however it came by them: it always keeps these with their
//! undo data (Core `validation.h`, `MIN_BLOCKS_TO_KEEP`), and ends for good where it finds none of a block
//! that it has to disconnect. So whatever a run writes for a node has them. Undo data comes of connecting a
//! block, and hints don't tell it; so hints are followed only to the block below the last 288, and those are
//! connected, on the set that stands there. The hints say what survives to the block where they stop; what is
//! there below and does not survive is what the blocks between spend. One pass over those, in any order, says
//! that ([`spent_later`]).

use crate::engines::swiftsync::{SPENT_LATER_KEY, SpentByBlock, SpentLater, SpentLaterBuilder};
use crate::error::{NotAnchored, SyncError, UsageError};
use crate::folder::FolderOutput;
use crate::progress::{Event, Phase};
use crate::request::{HintedTask, HintedValidity, Request, first_of_last};
use crate::source::ChainSource;
use crate::supply::ranges::take_each;
use crate::system::random_bytes;
use crate::warning::Unanchored;
use crate::workdir::Workdir;
use crate::workdir::record::Record;
use apus_chain::{
    CheckedBlock, HeaderChain, Height, HeightRange, KnownBlock, Params, ScriptChecks,
};
use apus_engine::script::{ScriptPoolError, script_verifier};

/// Whether the run writes the blocks that a node starts on. One that cannot connect any asks something else
/// of them.
fn writes_blocks(request: &Request<'_>, dir: &dyn ChainSource) -> bool {
    let writes = dir.archive().is_some() || request.folders.iter().any(FolderOutput::is_pruned);
    writes && request.connect().is_some()
}

/// The last block that is taken under hints which stop at `hinted`; 0 where all are to be connected. What
/// an earlier start settled on stays, if it is low enough.
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
                "by hints up to block {}, where a node that is to start on the blocks needs all above \
                 block {wanted} connected",
                plan.last()
            );
            return Err(request.env.other_run(what));
        }
        Some(plan) if plan.identity.stop_hash == hinted.hash => plan.last(),
        // What an earlier start connected from the first block on stays: the chain was shorter then.
        None if wanted < hinted.height && Record::read(request.env.workdir)?.is_some() => 0,
        _ => wanted,
    })
}

/// Fails before anything is done if blocks above `under_hints` need their scripts run and this build
/// runs none.
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

/// What the blocks of `range` spend.
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

// Where hints have to be anchored: which blocks may be taken under them.
//
// The sums of a run under hints prove that hints and blocks fit each other, not that the blocks are
// valid. So of the blocks that are taken under hints, none may be one that Core would check by
// running its scripts: they end at or below the assumed-valid block, on a chain that contains it,
// under Core's other conditions ([`ScriptChecks`]). That Core, unlike SwiftSync, looks at amounts,
// maturity and order below that block, too, is not what this is about: of valid blocks those are
// right, and which blocks are valid the assumed-valid block says.

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
