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

mod coin_hashes;
mod connect;
mod disk;
mod first_pass;
mod join;
mod join_result;
mod join_runs;
mod merged;
mod own;
mod prevouts_in_order;
mod record;
mod seen;
mod segment_index;
mod spend_summary;
mod spill;
mod stripped;
mod walk;

pub use coin_hashes::{HashKeys, WantedHashes};
pub use connect::Bip30Outputs;
pub use connect::{BlockConnector, BlockUndoData, ConnectFailure, RefusedBlock, ValidatedBlock};
pub use first_pass::{FirstPass, FirstPassError, FirstPassSegment};
pub use first_pass::{Overlap, SegmentSummary};
pub use join::{Join, JoinSink};
pub use prevouts_in_order::SegmentPrevouts;
pub use record::{OutputCoin, OutputRecord, PrevoutRecord, SpendRecord};
pub use seen::SeenBlock;
pub use seen::{Fingerprint, FingerprintKey};
pub use spend_summary::SpendSummary;
pub use stripped::IndexedCoin;
pub use stripped::StrippedCoin;

use crate::best_chain::{CHAINS_LEFT_MAX, other_chain};
use crate::chain_index::{ChainIndex, IndexWriter};
use crate::engines::in_order::BaseCoins;
use crate::engines::in_order::chains::{begin_anew, is_under_way};
use crate::engines::in_order::datadir_writer::DatadirWriter;
use crate::engines::pass::{Counts, PartialResult, Pass};
use crate::engines::swiftsync::aggregate::AggregateKind;
use crate::error::{InvalidBlock, SyncError, UsageError};
use crate::folder::{DatadirBlocks, FolderKind, FolderOutput, expect_room};
use crate::machines::Machines;
use crate::pass::{self, PassJob, Threads, expect_same};
use crate::progress::{DiskUse, Event, Phase, Progress};
use crate::request::{ConnectOptions, Request, ScriptCounts, Source, Task, first_of_last};
use crate::sink::SetInfo;
use crate::sink::datadir::DraftWithBlocks;
use crate::sink::put::forget_damaged;
use crate::sink::set_hash::SetHash;
use crate::source::{ChainSource, without_undo};
use crate::workdir::plan::{NO_HINTS, Plan, RunIdentity};
use crate::workdir::record::Record as ConnectedBlock;
use crate::workdir::{FinishedRange, SegmentsOf, Workdir};
use apus_chain::{CoinSumKey, Height, HeightRange, KnownBlock, ScriptChecks};
use apus_engine::script::ScriptPool;
use apus_storage::Storage;
use coin_hashes::OutputCount;
pub use disk::disk_bytes;
pub use join_result::JoinResult;
use join_result::Record;
use join_runs::{JOINED_RUNS, join};
pub use join_runs::{JoinOptions, join_keys};
pub(crate) use merged::MergedSet;
pub use merged::hash_beside;
use std::sync::Arc;
use std::time::Instant;
pub use walk::refusal;
use walk::{BlockTakers, ConnectProgress, ConnectWalk};

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
    } else if matches!(request.task, Task::MergeSync(_)) {
        expect_disk(request, &*dir)?;
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
            Ok(merged) if connects_above(request) => return Ok(merged.into()),
            Ok(merged) => return Ok(MergeOutcome::Whole(Box::new(merged))),
            Err(error) => error,
        };
        left += 1;
        if connects_above(request) && left > CHAINS_LEFT_MAX {
            return Err(error);
        }
        dir = other_chain(request, &*dir, genesis, error)?;
    }
}

impl<'a> From<MergedSet<'a>> for MergeOutcome<'a> {
    fn from(merged: MergedSet<'a>) -> Self {
        let MergedSet { dir, set, counts, validated, unseen, joined, .. } = merged;
        let base = BaseCoins {
            at: KnownBlock { height: set.height, hash: set.base },
            runs: joined.coins,
            coins: set.coins,
            counts,
            aggregate: None,
            scripts: validated.scripts.run,
            unseen,
        };
        Self::Below(dir, Some(base))
    }
}

/// Returns the last block to join. Peers may offer another chain later, so the in-order engine, which can
/// disconnect blocks, connects the last ones; it keeps the blocks that an earlier start left to it.
///
/// # Errors
/// If peers would have to send each block twice because none is kept, or if the output is a data directory with
/// all blocks, which would get only the joined ones.
fn last_joined(request: &Request<'_>, dir: &dyn ChainSource) -> Result<Height, SyncError> {
    let end = request.stop.end_in(dir)?;
    if !connects_above(request) {
        return Ok(end);
    }
    let holds_all = |output: &FolderOutput| output.kind == FolderKind::Datadir(DatadirBlocks::All);
    if dir.archive().is_none() || request.folders.iter().any(holds_all) {
        return Err(SyncError::usage(
            "mergesync reads the blocks twice, so peers would have to send all blocks twice: keep the blocks with \
             --blocks keep --out chainstate:DIR, or download them first and add --blocksdir DIR",
        ));
    }
    let connected = has_continued_from(request, dir)?;
    Ok(match Workdir::read_plan(request.env.workdir)? {
        Some(plan) if connected => plan.identity.stop,
        None if connected => 0,
        _ => first_of_last(end) - 1,
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

/// Whether blocks above the joined ones are connected in order.
fn connects_above(request: &Request<'_>) -> bool {
    matches!(request.source, Source::Peers(_))
}

/// Whether the join produces the hashes of a commitment. If blocks are connected above the joined ones, these
/// hashes would not describe the final set.
fn makes_hashes(request: &Request<'_>) -> bool {
    request.wants_commitment() && !connects_above(request)
}

/// Reports how much disk space a new sync's records will take.
///
/// # Errors
/// [`NoRoom`](crate::error::IoError::NoRoom) if the disk has less free.
pub(crate) fn expect_disk(request: &Request<'_>, dir: &dyn ChainSource) -> Result<(), SyncError> {
    let folder = request.connect().and_then(|options| options.positions.parent());
    let Some(folder) = folder.filter(|folder| folder.is_dir()) else { return Ok(()) };
    if Workdir::read_plan(request.env.workdir)?.is_some() {
        return Ok(());
    }
    let end = request.stop.end_in(dir)?;
    let block_bytes: u64 = (1..=end).map(|height| dir.block_bytes(height)).sum();
    let percent = request.index().map_or(0, |index| index.disk_percent());
    let records = disk_bytes(block_bytes, request.env.memory_bytes, request.env.threads);
    let (what, bytes) = (DiskUse::Progress, records + block_bytes / 100 * percent);
    let free = expect_room(folder, bytes)?;
    request.env.observer.event(Event::DiskNeeded { what, bytes, free });
    match request.index() {
        Some(index) => index.tell_disk(request, dir, end),
        None => Ok(()),
    }
}

/// Computes the set of a chain at height `end`.
fn on_chain<'a>(
    request: &'a Request<'_>,
    dir: Arc<dyn ChainSource + 'a>,
    end: Height,
    machines: Option<&dyn Machines>,
) -> Result<MergedSet<'a>, SyncError> {
    let options = request.expect_connect()?;
    let checks = ScriptChecks::new(request.env.params, dir.chain(), options.assume_valid);
    // If other machines share the work, they run the scripts.
    let any_scripts = !request.env.is_shared && (1..=end).any(|height| checks.needed(height));
    // If this build cannot run scripts, fail now, before writing anything.
    let pool = any_scripts.then(|| ScriptPool::new(request.env.threads)).transpose()?;
    let work = MergeWork { request, options, dir: &*dir, checks, pool };
    let begun = Workdir::read_plan(request.env.workdir)?.is_some();
    let open = |index: &'a dyn ChainIndex| index.open(request, &*dir, end, begun);
    let mut index = request.index().map(open).transpose()?;
    let started = Instant::now();
    let (workdir, plan, done) = work.plan(end)?;
    if let Some(machines) = machines {
        let whole = machines.merge(&work, &workdir, &plan)?;
        drop(work);
        let SharedResult { joined, counts, validated } = whole;
        let set = set_of(request, &*dir, end, &joined, counts);
        let unseen = u64::from(plan.identity.unseen.min(end));
        return Ok(MergedSet { dir, set, counts, unseen, joined, validated, numbered: None });
    }
    let resumed = !done.is_empty();
    let gathered = work.gather(&workdir, &plan, &plan.segments, done);
    let (done, counts) = match gathered {
        Err(error) => {
            let error = work.lowest(&workdir, &plan, error);
            forget_damaged(request.env.workdir, &error);
            return Err(error);
        }
        Ok(gathered) => gathered,
    };
    let is_long = resumed || started.elapsed() >= request.env.checkpoint_interval;
    // Running scripts takes many times as long as all work before it, and connecting starts from the joined
    // coins.
    let durable = is_long || work.pool.is_some() || connects_above(request);
    let count = || OutputCount::read(&workdir, &done, dir.chain());
    let count = makes_hashes(request).then(count).transpose();
    let count = count.inspect_err(|error| forget_damaged(request.env.workdir, error))?;
    let numbered = count.as_ref().map(OutputCount::total);
    let validated =
        work.join_and_validate(&workdir, &plan, done, count, durable, index.as_deref_mut());
    let (joined, validated) =
        validated.inspect_err(|error| forget_damaged(request.env.workdir, error))?;
    let set = set_of(request, &*dir, end, &joined, counts);
    drop(work);
    let unseen = u64::from(plan.identity.unseen.min(end));
    Ok(MergedSet { dir, set, counts, unseen, joined, validated, numbered })
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

type MergePlan<'a> = (Workdir<'a>, Plan, SegmentsOf<FirstPass>);

impl<'a> MergeWork<'a> {
    /// Continues the plan in the work folder, or makes one. If that plan had another end, reuses its results
    /// for this chain.
    fn plan(&self, end: Height) -> Result<MergePlan<'a>, SyncError> {
        let (request, dir) = (self.request, self.dir);
        let earlier = Workdir::read_plan(request.env.workdir)?;
        if earlier.is_none() && ConnectedBlock::read(request.env.workdir)?.is_some() {
            return Err(request.env.other_run("by another engine"));
        }
        let identity = RunIdentity {
            network: request.env.params.network,
            stop: end,
            stop_hash: dir.chain().hash(end).copied().unwrap_or_default(),
            hints: NO_HINTS,
            aggregate: AggregateKind::None,
            // Part of the plan, because the machines' answers depend on it.
            assumed: if request.env.is_shared { pass::last_assumed(request, dir, end) } else { 0 },
            unseen: pass::leave_witnesses(
                request,
                dir,
                earlier.as_ref().map(|plan| plan.identity.unseen),
            ),
            // An earlier start's choice to number coins holds until the end.
            numbered: request.index().is_some()
                || makes_hashes(request)
                || earlier.as_ref().is_some_and(|plan| plan.identity.numbered),
            muhash: request.muhash || earlier.as_ref().is_some_and(|plan| plan.identity.muhash),
        };
        // On another chain, or a shorter one, fewer witnesses may be skipped.
        let may_leave_witnesses = pass::may_leave_witnesses(request, dir);
        let of_other_end = |earlier: &Plan| {
            let RunIdentity { stop, stop_hash, assumed, unseen, .. } = earlier.identity;
            let unseen = if may_leave_witnesses { unseen } else { identity.unseen };
            RunIdentity { stop, stop_hash, assumed, unseen, ..identity.clone() }
        };
        if let Some(earlier) = &earlier {
            expect_same(request, Some(earlier), &of_other_end(earlier))?;
        }
        match earlier {
            Some(earlier) if earlier.identity != identity => {
                if ConnectedBlock::read(request.env.workdir)?.is_some() {
                    // A later phase already continued from its coins.
                    expect_same(request, Some(&earlier), &identity)?;
                }
                self.change(&earlier, identity)
            }
            earlier => {
                let segments =
                    pass::segments(request, dir, earlier.as_ref(), end, self.under_way());
                pass::begin_or_resume::<FirstPass>(request, earlier, identity, segments)
            }
        }
    }

    /// Number of segments in memory at a time, including those whose blocks are still being read.
    fn under_way(&self) -> usize {
        self.dir.fetchers(self.request.env.threads)
    }

    /// Makes a plan for another end. It keeps the earlier plan's segments that are on this chain and skipped as
    /// many witnesses as this sync does.
    fn change(&self, earlier: &Plan, identity: RunIdentity) -> Result<MergePlan<'a>, SyncError> {
        let (request, dir) = (self.request, self.dir);
        let (_, mut done) = Workdir::resume::<FirstPass>(request.env.workdir, earlier)?;
        let (unseen, before) = (identity.unseen, earlier.identity.unseen);
        let as_now = |range: HeightRange| range.end <= unseen + 1 || range.start > before;
        done.retain(|done| {
            let is_within = done.range.end <= identity.stop + 1;
            is_within && as_now(done.range) && done.partial.is_of(dir.chain())
        });
        let (mut segments, mut next) = (Vec::new(), 1);
        let kept = done.iter().map(|done| done.range);
        for range in kept.chain([HeightRange::new(identity.stop + 1, identity.stop + 1)]) {
            let below = HeightRange::new(next, range.start);
            segments.extend(pass::divided(request, dir, below, self.under_way()));
            segments.extend((!range.is_empty()).then_some(range));
            next = range.end;
        }
        let plan = Plan { identity, secret: earlier.secret.clone(), segments };
        let workdir = Workdir::change(request.env.workdir, &plan, &done)?;
        if !done.is_empty() {
            let (segments, of) = (done.len(), plan.segments.len());
            request.env.observer.event(Event::Resumed { segments, of });
        }
        Ok((workdir, plan, done))
    }

    /// The last block whose spend summary is kept: up to it, the second walk may not have to read blocks.
    fn claimed(&self) -> Height {
        let Self { request, dir, ref checks, .. } = *self;
        match pass::needs_blocks(request, dir) {
            true => 0,
            false => checks.last_assumed().unwrap_or_default(),
        }
    }

    /// Runs the first walk.
    fn gather(
        &self,
        workdir: &Workdir<'_>,
        plan: &Plan,
        segments: &[HeightRange],
        done: SegmentsOf<FirstPass>,
    ) -> Result<(SegmentsOf<FirstPass>, Counts), SyncError> {
        let (request, dir) = (self.request, self.dir);
        let pass = FirstPass::new(request.env.params, dir.chain(), fingerprint_key(plan))
            .with_numbers(plan.identity.numbered)
            .with_claims(self.claimed())
            .with_bare_coins(bare_up_to(plan));
        let unseen = plan.identity.unseen;
        let job = PassJob { request, source: dir, pass: &pass, input: &|range| Ok(range), unseen };
        request.env.observer.event(Event::Started(Phase::Blocks));
        let before: u64 = done.iter().map(|done| done.partial.done().bytes).sum();
        let done = pass::run(&job, &Threads, workdir, segments, done)?;
        let whole = pass::whole(&pass, workdir, &done)?;
        let stop = segments.last().map_or(0, |last| last.end - 1);
        let SegmentSummary { counts, .. } = pass.conclude(&whole, stop)?;
        drop_in_background(request, pass);
        request
            .env
            .observer
            .event(Event::Ended { phase: Phase::Blocks, bytes: counts.bytes - before });
        Ok((done, counts))
    }

    /// Runs the join and the second walk, without repeating the work of earlier starts.
    fn join_and_validate(
        &self,
        workdir: &Workdir<'_>,
        plan: &Plan,
        mut done: SegmentsOf<FirstPass>,
        count: Option<OutputCount<'_>>,
        durable: bool,
        index: Option<&mut (dyn IndexWriter + '_)>,
    ) -> Result<(JoinResult, WalkOutcome), SyncError> {
        let (request, assumed) = (self.request, self.checks.last_assumed().unwrap_or_default());
        let has_hashes = |record: &Record| count.is_none() || record.joined.hashes.is_some();
        let earlier = Record::read(workdir)?.filter(has_hashes);
        let keep = earlier.iter().flat_map(Record::names).collect();
        workdir.clear_scratch_but(&keep)?;
        let durable = durable || earlier.is_some();
        let mut record = match earlier {
            Some(record) => record,
            None => {
                let (numbered, bare) = (plan.identity.numbered, bare_up_to(plan));
                let muhash = plan.identity.muhash;
                let by = count.as_ref().map(HashKeys::Places);
                let hashes = request.hasher().zip(by);
                let hashes = hashes.map(|(hasher, by)| WantedHashes { hasher, by });
                let options = JoinOptions { numbered, hashes, muhash, bare, durable };
                let joined = join(&request.env, &done, options)?;
                let record = Record { joined, validated: 0, assumed };
                if durable {
                    record.write(workdir)?;
                }
                record
            }
        };
        let coins_total = record.joined.totals.coins;
        let coins = Progress { coins_total, ..Progress::default() };
        request.env.observer.event(Event::Ahead(Phase::Coins, coins));
        let joined: Vec<_> = done.iter_mut().map(|done| done.take_runs(&JOINED_RUNS)).collect();
        drop_in_background(request, joined);
        let validated = HeightRange::new(1, record.validated + 1);
        if !without_undo(self.dir, validated).is_empty() {
            record.validated = 0;
        }
        record.assume_up_to(assumed);
        if let Some(index) = &index {
            record.validated = record.validated.min(index.best_block());
        }
        let sum_key = sum_key(plan);
        let mut keeper = self.keeper(&mut record, plan.last(), sum_key)?;
        let mut progress = ConnectProgress { record, durable, saved_at: Instant::now() };
        let takers = BlockTakers { keeper: keeper.as_mut(), index };
        let scripts = self.walk(workdir, plan, &done, &mut progress, takers)?;
        let with_blocks = keeper.map(DatadirWriter::end).transpose()?;
        Ok((progress.record.joined, WalkOutcome { scripts, hashed: None, with_blocks }))
    }

    /// Returns the writer for kept blocks, if blocks are kept. If it lacks blocks that were validated, they are
    /// validated again.
    fn keeper(
        &self,
        record: &mut Record,
        end: Height,
        sum_key: CoinSumKey,
    ) -> Result<Option<DatadirWriter>, SyncError> {
        let (request, options, dir) = (self.request, self.options, self.dir);
        if connects_above(request) {
            return Ok(None);
        }
        let start = |height: Height| {
            let hash = dir.chain().hash(height).copied().unwrap_or_default();
            let tip = KnownBlock { height, hash };
            DatadirWriter::start(request, options, dir, 1, tip, end, sum_key)
        };
        let validated = record.validated;
        if validated > 0 {
            match start(validated) {
                Ok(Some(keeper)) if !keeper.lacks_some(validated, end) => return Ok(Some(keeper)),
                Ok(None) => return Ok(None),
                Ok(Some(_)) | Err(SyncError::Usage(UsageError::OtherRun { .. })) => {}
                Err(error) => return Err(error),
            }
            record.validated = 0;
        }
        start(0)
    }

    fn walk(
        &self,
        workdir: &Workdir<'_>,
        plan: &Plan,
        done: &[FinishedRange<SegmentSummary>],
        progress: &mut ConnectProgress,
        takers: BlockTakers<'_, '_>,
    ) -> Result<ScriptCounts, SyncError> {
        let (key, sum_key) = (fingerprint_key(plan), sum_key(plan));
        let end = done.last().map_or(0, |last| last.range.end - 1);
        let (numbered, unseen) = (plan.identity.numbered, plan.identity.unseen);
        let bare = bare_up_to(plan);
        ConnectWalk { work: self, workdir, key, done, sum_key, numbered, unseen, bare, end }
            .validate(progress, takers)
    }

    /// Finds the lowest refused block and returns its error. `error` may be about a block that the first walk
    /// refused: the blocks below it must be validated first.
    fn lowest(&self, workdir: &Workdir<'_>, plan: &Plan, error: SyncError) -> SyncError {
        let mut error = error;
        loop {
            let refused = InvalidBlock::of(&error).map(|refused| refused.block.height);
            let Some(end) = refused.map(|height| height - 1).filter(|end| *end > 0) else {
                return error;
            };
            match self.gather_below(workdir, plan, end) {
                // This block is lower, but perhaps not the lowest.
                Err(lower) if InvalidBlock::of(&lower).is_some() => error = lower,
                Err(other) => return other,
                Ok(done) => {
                    let validated = self.validate_all(workdir, plan, &done);
                    return validated.err().unwrap_or(error);
                }
            }
        }
    }

    /// Runs the first walk up to a height, reusing finished segments.
    fn gather_below(
        &self,
        workdir: &Workdir<'_>,
        plan: &Plan,
        end: Height,
    ) -> Result<SegmentsOf<FirstPass>, SyncError> {
        let cut = |range: &HeightRange| HeightRange::new(range.start, range.end.min(end + 1));
        let below = plan.segments.iter().filter(|range| range.start <= end).map(cut);
        let segments: Vec<HeightRange> = below.collect();
        let (_, mut done) = Workdir::resume::<FirstPass>(self.request.env.workdir, plan)?;
        done.retain(|done| segments.contains(&done.range));
        Ok(self.gather(workdir, plan, &segments, done)?.0)
    }

    /// Validates the blocks of some segments, from the first block on, only to find out whether they pass.
    fn validate_all(
        &self,
        workdir: &Workdir<'_>,
        plan: &Plan,
        done: &[FinishedRange<SegmentSummary>],
    ) -> Result<(), SyncError> {
        let (numbered, muhash, bare) =
            (plan.identity.numbered, plan.identity.muhash, bare_up_to(plan));
        let options = JoinOptions { numbered, hashes: None, muhash, bare, durable: false };
        let joined = join(&self.request.env, done, options)?;
        let record = Record { joined, validated: 0, assumed: 0 };
        let mut progress = ConnectProgress { record, durable: false, saved_at: Instant::now() };
        self.walk(workdir, plan, done, &mut progress, BlockTakers::default()).map(|_| ())
    }
}

/// Drops a value on another thread. Returning hundreds of megabytes to the kernel takes time, which overlaps
/// with the next step.
fn drop_in_background<T: Send + 'static>(request: &Request<'_>, value: T) {
    if request.env.threads > 1 {
        // If no thread can be started, this drops the value on the calling thread.
        let _ = std::thread::Builder::new().spawn(move || drop(value));
    }
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
