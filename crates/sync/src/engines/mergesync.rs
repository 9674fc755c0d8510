//! mergesync: checks every rule, with blocks in any order, without hints and without trust.
//!
//! It works in three steps. [`FirstPass`] reads the blocks, in any order, and records which coins each block
//! creates and which it spends from blocks below, sorted by outpoint. A [`Join`] of both kinds of records pairs
//! each spend with the coin that existed at that point: this finds double spends, spends of missing coins and
//! repeated transactions, in the order of the chain, regardless of the order of the blocks. With the joined
//! coins a block can be [validated](BlockConnector::block) on its own, by the same rules that connect blocks in
//! order. If its scripts are not run, the block's [spend summary](SpendSummary) is usually enough; if not,
//! coins [without scripts](StrippedCoin) are. The coins that no spend took are the set.
//!
//! The validity of a block depends only on blocks below it, even if some block above is invalid. So the
//! lowest refused block is the one at which a node would have stopped, for the same reason.
//!
//! On request each coin carries its number among the outputs of its block ([`IndexedCoin`]), for a
//! [commitment](crate::commitment) to the set and an [index](crate::chain_index) that follows the blocks.
//!
//! Nothing here is keyed and nothing is left to chance: outpoints are compared in full. The caller decides
//! where records are stored, who processes the segments, and how much memory merging takes.

mod base_set;
mod batches;
mod coin_hashes;
mod connect;
mod first_pass;
mod join;
mod join_result;
mod join_runs;
mod merge_plan;
mod merged;
mod own;
mod part_sink;
mod prevouts_in_order;
mod record;
mod scratch;
mod seen;
mod segment_index;
mod spend_summary;
mod spill;
mod stripped;
mod walk;

pub use base_set::OverwrittenCoin;
pub use batches::blame::lowest;
pub use coin_hashes::{HashKeys, WantedHashes};
pub use connect::{BlockConnector, BlockUndoData, ConnectFailure, ValidatedBlock};
pub use first_pass::{FirstPass, FirstPassError, FirstPassSegment};
pub use first_pass::{Overlap, SegmentSummary};
pub use join::{Join, JoinInput, JoinSink};
pub use prevouts_in_order::SegmentPrevouts;
pub use record::{OutputCoin, OutputRecord, PrevoutRecord, SpendRecord};
pub use seen::SeenBlock;
pub use seen::{Fingerprint, FingerprintKey};
pub use spend_summary::SpendSummary;
pub use stripped::IndexedCoin;
pub use stripped::StrippedCoin;

use crate::best_chain::{CHAINS_LEFT_MAX, other_chain};
use crate::chain_index::ChainIndex;
use crate::engines::in_order::chains::{begin_anew, is_under_way};
use crate::engines::in_order::{BaseCoins, BaseRuns};
use crate::engines::pass::Counts;
use crate::error::{SyncError, UsageError};
use crate::folder::expect_room;
use crate::machines::Machines;
use crate::progress::{DiskUse, Event};
use crate::request::{ConnectOptions, Request, ScriptCounts, Source, first_of_last};
use crate::sink::SetInfo;
use crate::sink::datadir::DraftWithBlocks;
use crate::sink::set_hash::SetHash;
use crate::source::ChainSource;
use crate::supply::{bytes_of, predicts_sizes};
use crate::workdir::Workdir;
use crate::workdir::names::BASE;
use crate::workdir::plan::{NO_HINTS, Plan, RunIdentity};
use crate::workdir::record::Record as ConnectedBlock;
use apus_chain::{CoinSumKey, Height, HeightRange, KnownBlock, ScriptChecks};
use apus_engine::script::ScriptPool;
use apus_storage::Storage;
use base_set::BaseSet;
use batches::{Batches, LastBatch};
pub use join_result::{JoinBalance, JoinResult};
pub use join_runs::{BatchSpan, JoinOptions, join_keys};
pub(crate) use merged::MergedSet;
pub use merged::hash_beside;
use std::sync::Arc;
pub use walk::refusal;

/// The result of processing a chain.
pub(crate) enum MergeOutcome<'a> {
    /// The set at its end.
    Whole(Box<MergedSet<'a>>),
    /// The set below the blocks that the in-order engine must connect; `None` if it must connect all of them.
    Below(Arc<dyn ChainSource + 'a>, Option<BaseCoins>),
}

/// Reads the blocks twice and checks every rule. If a block is invalid, starts again with another chain, if
/// there is one.
pub(crate) fn run<'a>(
    request: &'a Request<'_>,
    dir: Arc<dyn ChainSource + 'a>,
    machines: Option<&dyn Machines>,
) -> Result<MergeOutcome<'a>, SyncError> {
    if request.env.is_shared {
        if let Some(index) = request.index() {
            return Err(SyncError::Usage(UsageError::NotOnCluster { what: index.making() }));
        }
    } else if let Some(index) = request.index() {
        if request.follow {
            let what = index.making();
            return Err(SyncError::usage(format!("{what} ends at the tip: do not follow it")));
        }
        expect_disk(request, &*dir, index)?;
    }
    let genesis = KnownBlock { height: 0, hash: request.env.params.genesis_hash };
    let (mut dir, mut left) = (dir, 0);
    loop {
        dir.may_be_left(request.follow);
        let end = last_joined(request, &*dir)?;
        if end == 0 {
            return match request.stop.end_in(&*dir)? {
                0 => Err(SyncError::Usage(UsageError::NothingToDo)),
                _ => Ok(MergeOutcome::Below(dir, None)),
            };
        }
        let error = match on_chain(request, Arc::clone(&dir), end, machines) {
            Ok(outcome) => return Ok(outcome),
            Err(error) => error,
        };
        left += 1;
        if connects_above(request) && left > CHAINS_LEFT_MAX {
            return Err(error);
        }
        dir = other_chain(request, &*dir, genesis, error)?;
    }
}

impl BaseSet {
    /// The coins, for the engine that connects the blocks above.
    fn into_coins(self, work: &MergeWork<'_>, unseen: u64) -> BaseCoins {
        let Self { at, runs, numbered, coins, summary, .. } = self;
        let scripts = (1..=at.height).filter(|&height| work.checks.needed(height)).count() as u64;
        let runs = BaseRuns::Outputs { runs, numbered };
        let counts = summary.counts;
        BaseCoins { at, runs, coins, counts, aggregate: None, scripts, unseen }
    }
}

/// Returns the last block to join. Peers may offer another chain later, so the in-order engine, which can
/// disconnect blocks, connects the last ones; it keeps the blocks that an earlier start left to it.
fn last_joined(request: &Request<'_>, dir: &dyn ChainSource) -> Result<Height, SyncError> {
    let end = request.stop.end_in(dir)?;
    if !connects_above(request) {
        return Ok(end);
    }
    let connected = has_continued_from(request, dir)?;
    Ok(match Workdir::read_plan(request.env.workdir)? {
        Some(plan) if connected => plan.identity.stop,
        None if connected => 0,
        _ => {
            let is_on_chain =
                |at: &KnownBlock| at.height <= end && dir.chain().hash(at.height) == Some(&at.hash);
            let base = BaseSet::read(request.env.workdir)?.map(|base| base.at);
            let validated = base.filter(is_on_chain).map_or(0, |base| base.height);
            validated.max(first_of_last(end) - 1)
        }
    })
}

/// Whether an earlier start continued from coins of this chain's blocks. Discards coins of another chain.
fn has_continued_from(request: &Request<'_>, dir: &dyn ChainSource) -> Result<bool, SyncError> {
    let Some(connected) = ConnectedBlock::read(request.env.workdir)? else { return Ok(false) };
    let plan = Workdir::read_plan(request.env.workdir)?;
    let is_of_chain = plan.is_none_or(|plan| {
        let RunIdentity { stop, stop_hash, hints, .. } = plan.identity;
        // A plan with hints is reported later, as another sync's.
        let is_joined = hints == NO_HINTS && dir.chain().tip_height() >= stop;
        !is_joined || dir.chain().hash(stop) == Some(&stop_hash)
    });
    if is_of_chain && !is_under_way(&connected) {
        return Ok(true);
    }
    begin_anew(request)?;
    Ok(false)
}

/// Whether an earlier start began to join blocks.
pub(crate) fn has_begun(workdir: &dyn Storage) -> Result<bool, SyncError> {
    Ok(Workdir::read_plan(workdir)?.is_some_and(|plan| plan.identity.hints == NO_HINTS))
}

/// Whether an earlier start validated some batches, whose blocks are not read again.
pub(crate) fn has_base(workdir: &dyn Storage) -> bool {
    workdir.len(BASE).is_ok()
}

/// Whether blocks above the joined ones are connected in order. An index follows the joined blocks only.
fn connects_above(request: &Request<'_>) -> bool {
    matches!(request.source, Source::Peers(_)) && request.index().is_none()
}

/// Whether the join produces the hashes of a commitment. If blocks are connected above the joined ones, these
/// hashes would not describe the final set.
fn makes_hashes(request: &Request<'_>) -> bool {
    request.wants_commitment() && !connects_above(request)
}

/// The records of all blocks and what is joined from them, at most, in percent of the blocks' bytes: measured with
/// small transactions whose coins are mostly spent far above their blocks.
pub const RECORDS_PERCENT: u64 = 60;

/// Checks the disk for a new sync with an index, which processes all blocks as one batch.
///
/// # Errors
/// [`NoRoom`](crate::error::IoError::NoRoom) if the disk has less free.
fn expect_disk(
    request: &Request<'_>,
    dir: &dyn ChainSource,
    index: &dyn ChainIndex,
) -> Result<(), SyncError> {
    let folder = request.connect().and_then(|options| options.positions.parent());
    let Some(folder) = folder.filter(|folder| folder.is_dir()) else { return Ok(()) };
    if Workdir::read_plan(request.env.workdir)?.is_some() {
        return Ok(());
    }
    let end = request.stop.end_in(dir)?;
    let block_bytes = bytes_of(dir, HeightRange::new(1, end + 1));
    let (what, percent) = (DiskUse::Progress, RECORDS_PERCENT + index.disk_percent());
    let bytes = block_bytes / 100 * percent;
    let least = if predicts_sizes(dir, request.env.params) { bytes } else { 0 };
    let free = expect_room(folder, least)?;
    request.env.observer.event(Event::DiskNeeded { what, bytes, free });
    index.tell_disk(request, dir, end)
}

/// Computes the set of a chain at height `end`, or all that the in-order engine needs to continue above.
fn on_chain<'a>(
    request: &'a Request<'_>,
    dir: Arc<dyn ChainSource + 'a>,
    end: Height,
    machines: Option<&dyn Machines>,
) -> Result<MergeOutcome<'a>, SyncError> {
    let options = request.expect_connect()?;
    let checks = ScriptChecks::new(request.env.params, dir.chain(), options.assume_valid);
    // If other machines share the work, they run the scripts.
    let any_scripts = !request.env.is_shared && (1..=end).any(|height| checks.needed(height));
    // If this build cannot run scripts, fail now, before writing anything.
    let pool = any_scripts.then(|| request.env.signatures.pool(request.env.threads)).transpose()?;
    let work = MergeWork { request, options, dir: &*dir, checks, pool };
    let begun = Workdir::read_plan(request.env.workdir)?.is_some();
    let open = |index: &'a dyn ChainIndex| index.open(request, &*dir, end, begun);
    let mut index = request.index().map(open).transpose()?;
    let mut found = work.plan(end)?;
    let unseen = u64::from(found.plan.identity.unseen.min(end));
    if let Some(machines) = machines {
        let whole = machines.merge(&work, &found.workdir, &found.plan)?;
        drop(work);
        let SharedResult { joined, counts, validated } = whole;
        let set = set_of(request, &*dir, end, &joined, counts);
        let set = MergedSet { dir, set, counts, unseen, joined, validated, numbered: None };
        return Ok(MergeOutcome::Whole(Box::new(set)));
    }
    let done = std::mem::take(&mut found.done);
    if connects_above(request) {
        let base = Batches::new(&work, &found).run_below(done)?;
        let coins = base.into_coins(&work, unseen);
        drop(work);
        return Ok(MergeOutcome::Below(dir, Some(coins)));
    }
    let last = Batches::new(&work, &found).run(done, index.as_deref_mut())?;
    drop(work);
    let LastBatch { joined, validated, counts, numbered } = last;
    let set = set_of(request, &*dir, end, &joined, counts);
    let set = MergedSet { dir, set, counts, unseen, joined, validated, numbered };
    Ok(MergeOutcome::Whole(Box::new(set)))
}

/// Describes a set before it is written out.
fn set_of(
    request: &Request<'_>,
    dir: &dyn ChainSource,
    end: Height,
    joined: &JoinResult,
    counts: Counts,
) -> SetInfo {
    SetInfo {
        network: request.env.params.network,
        height: end,
        base: dir.chain().hash(end).copied().unwrap_or_default(),
        coins: joined.totals.coins,
        coin_bytes: joined.coin_bytes(),
        transactions: counts.transactions,
    }
}

/// The result of the second walk.
pub struct WalkOutcome {
    /// How many blocks had their scripts run.
    pub scripts: ScriptCounts,
    /// The hash of the set, if it was computed during the walk.
    pub hashed: Option<SetHash>,
    /// A data directory with its blocks, but not yet its coins.
    pub with_blocks: Option<DraftWithBlocks>,
}

/// The result of a sync shared with other machines.
pub struct SharedResult {
    /// The result of the join.
    pub joined: JoinResult,
    /// How much was processed.
    pub counts: Counts,
    /// The result of the second walk.
    pub validated: WalkOutcome,
}

/// A sync in progress.
pub struct MergeWork<'a> {
    /// The user's request.
    pub request: &'a Request<'a>,
    /// How blocks are connected.
    pub options: &'a ConnectOptions<'a>,
    /// The chain.
    pub dir: &'a dyn ChainSource,
    checks: ScriptChecks,
    pool: Option<ScriptPool>,
}

/// The last block whose inputs get stripped coins: its witnesses are skipped, because no start of this plan
/// runs its scripts, and no such block is kept.
pub fn bare_up_to(plan: &Plan) -> Height {
    plan.identity.unseen
}

/// The key of the fingerprints, taken from the plan's secret.
pub fn fingerprint_key(plan: &Plan) -> FingerprintKey {
    FingerprintKey::new(*plan.secret.0.first_chunk().expect("there are more bytes"))
}

/// The key of the coin sums, taken from another part of the secret.
pub fn sum_key(plan: &Plan) -> CoinSumKey {
    CoinSumKey::new(*plan.secret.0.last_chunk().expect("there are more bytes"))
}

impl From<FirstPassError> for SyncError {
    /// The walk passes each block once, so the error means that the source did not supply it.
    fn from(error: FirstPassError) -> Self {
        let (FirstPassError::Unexpected(height) | FirstPassError::Missing(height)) = error;
        let range = HeightRange::new(height, height + 1);
        crate::error::SourceError::Incomplete { range }.into()
    }
}
