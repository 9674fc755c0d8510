//! mergesync: every rule, with blocks in any order, without hints and without trust.
//!
//! Three steps. [`Gather`] goes over the blocks, in any order, and writes down which coins each one makes
//! and which it wants from blocks below, sorted by outpoint. A [`Join`] of both kinds pairs each spend
//! with the coin that was there: this is where double spends, spends of nothing and repeated
//! transactions come out, in the order of the chain, whatever the order of the blocks was. With its
//! answers a block can be [judged](BlockJudge::block) on its own, by the very rules that connect blocks one
//! after the other. Where no script is run, what the block [claims](Claims) of its coins is mostly enough, and so are
//! coins [without scripts](BareCoin). The coins that no spend took are the set.
//!
//! What is true of a block depends on blocks below it alone, also where some block above is
//! invalid. So the lowest block that is refused is the one that a node would have stopped at, and the
//! reason is the one that the node gives.
//!
//! On request each coin carries its number among the outputs of its block ([`NumberedCoin`]), for a
//! [commitment](crate::commitment) to the set and an [index](crate::chain_index) that follows the blocks.
//!
//! Nothing here is keyed and nothing is left to chance: outpoints are compared whole. Where records
//! lie, who does the segments, and in how much memory runs are merged, is the driver's business.

mod answers_in_turn;
mod bare;
mod claims;
mod coin_hashes;
mod disk;
mod gather;
mod join;
mod join_runs;
mod joined;
mod judge;
mod ledger;
mod merged;
mod own;
mod record;
mod seen;
mod spill;
mod walk;

pub use answers_in_turn::Answers;
pub use bare::BareCoin;
pub use bare::NumberedCoin;
pub use claims::Claims;
pub use coin_hashes::{HashKeys, WantedHashes};
pub use gather::{Gather, GatherError, GatherSegment};
pub use gather::{Gathered, Overlap};
pub use join::{Join, JoinSink};
pub use judge::AskedOutputs;
pub use judge::{BlockJudge, JudgeError, Judged, Kept, RefusedBlock};
pub use record::{AnswerRecord, MadeCoin, MadeRecord, SpentRecord};
pub use seen::SeenBlock;
pub use seen::{Fingerprint, FingerprintKey};

use crate::best_chain::{CHAINS_LEFT_MAX, other_chain};
use crate::chain_index::{ChainIndex, IndexWriter};
use crate::engines::in_order::BaseCoins;
use crate::engines::in_order::chains::{begin_anew, is_under_way};
use crate::engines::in_order::keeper::Keeper;
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
use crate::workdir::record::Record as Connected;
use crate::workdir::{FinishedRange, SegmentsOf, Workdir};
use apus_chain::{CoinSumKey, Height, HeightRange, KnownBlock, ScriptChecks};
use apus_engine::script::ScriptPool;
use apus_storage::Storage;
use coin_hashes::OutputCount;
pub use disk::disk_bytes;
use join_runs::{JOINED_RUNS, join};
pub use join_runs::{JoinOptions, join_keys};
pub use joined::Joined;
use joined::Record;
pub(crate) use merged::MergedSet;
pub use merged::hash_beside;
use std::sync::Arc;
use std::time::Instant;
pub use walk::refusal;
use walk::{JudgeWalk, Judging, Takers};

/// What became of a chain.
pub(crate) enum MergeOutcome<'a> {
    /// The set at its end.
    Whole(Box<MergedSet<'a>>),
    /// The set below the blocks that are to be connected; none where these are all.
    Below(Arc<dyn ChainSource + 'a>, Option<BaseCoins>),
}

/// Goes over the blocks twice, under every rule. Where a block is invalid, over those of another chain,
/// if there is one.
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
            Ok(merged) if goes_on(request) => return Ok(merged.into()),
            Ok(merged) => return Ok(MergeOutcome::Whole(Box::new(merged))),
            Err(error) => error,
        };
        left += 1;
        if goes_on(request) && left > CHAINS_LEFT_MAX {
            return Err(error);
        }
        dir = other_chain(request, &*dir, genesis, error)?;
    }
}

impl<'a> From<MergedSet<'a>> for MergeOutcome<'a> {
    fn from(merged: MergedSet<'a>) -> Self {
        let MergedSet { dir, set, counts, judged, unseen, joined, .. } = merged;
        let base = BaseCoins {
            at: KnownBlock { height: set.height, hash: set.base },
            runs: joined.coins,
            coins: set.coins,
            counts,
            aggregate: None,
            scripts: judged.scripts.run,
            unseen,
        };
        Self::Below(dir, Some(base))
    }
}

/// The last block that is joined. Peers may tell of another chain later on, so of theirs the last blocks are
/// left for the engine that can go back; what an earlier start left for it stays.
///
/// # Errors
/// Where peers would have to send each block twice, since none is kept; and where all blocks are to go into a
/// data directory, which would get only those that are joined.
fn last_joined(request: &Request<'_>, dir: &dyn ChainSource) -> Result<Height, SyncError> {
    let end = request.stop.end_in(dir)?;
    if !goes_on(request) {
        return Ok(end);
    }
    let holds_all = |output: &FolderOutput| output.kind == FolderKind::Datadir(DatadirBlocks::All);
    if dir.archive().is_none() || request.folders.iter().any(holds_all) {
        return Err(SyncError::usage(
            "mergesync goes over the blocks twice, and peers would send all of them again: have the run keep \
             them, for a chainstate beside them, or get them first and name their folder",
        ));
    }
    let connected = is_gone_on_from(request, dir)?;
    Ok(match Workdir::read_plan(request.env.workdir)? {
        Some(plan) if connected => plan.identity.stop,
        None if connected => 0,
        _ => first_of_last(end) - 1,
    })
}

/// Whether an earlier start went on from coins that blocks of this chain led to. Those of another chain are given up.
fn is_gone_on_from(request: &Request<'_>, dir: &dyn ChainSource) -> Result<bool, SyncError> {
    let Some(connected) = Connected::read(request.env.workdir)? else { return Ok(false) };
    let plan = Workdir::read_plan(request.env.workdir)?;
    let is_of_chain = plan.is_none_or(|plan| {
        let RunIdentity { stop, stop_hash, hints, .. } = plan.identity;
        // One with hints is told of as another run.
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

/// Whether blocks above those that are joined are connected one after the other.
fn goes_on(request: &Request<'_>) -> bool {
    matches!(request.source, Source::Peers(_))
}

/// Whether the hashes of a commitment come out of the join. Where blocks are connected above, they would not be those of
/// the end.
fn makes_hashes(request: &Request<'_>) -> bool {
    request.wants_commitment() && !goes_on(request)
}

/// Says how much disk the records of a run will take that has none yet.
///
/// # Errors
/// [`NoRoom`](crate::error::IoError::NoRoom) where that is not free.
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

/// The set of a chain at the block of height `end`.
fn on_chain<'a>(
    request: &'a Request<'_>,
    dir: Arc<dyn ChainSource + 'a>,
    end: Height,
    machines: Option<&dyn Machines>,
) -> Result<MergedSet<'a>, SyncError> {
    let options = request.expect_connect()?;
    let checks = ScriptChecks::new(request.env.params, dir.chain(), options.assume_valid);
    // Where machines share the run, they run scripts.
    let any_scripts = !request.env.is_shared && (1..=end).any(|height| checks.needed(height));
    // A build that cannot run scripts leaves nothing behind.
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
        let SharedResult { joined, counts, judged } = whole;
        let set = set_of(request, &*dir, end, &joined, counts);
        let unseen = u64::from(plan.identity.unseen.min(end));
        return Ok(MergedSet { dir, set, counts, unseen, joined, judged, numbered: None });
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
    // Scripts take many times as long as all that comes before them, and connecting takes its coins from there.
    let durable = is_long || work.pool.is_some() || goes_on(request);
    let count = || OutputCount::read(&workdir, &done, dir.chain());
    let count = makes_hashes(request).then(count).transpose();
    let count = count.inspect_err(|error| forget_damaged(request.env.workdir, error))?;
    let numbered = count.as_ref().map(OutputCount::total);
    let judged = work.join_and_judge(&workdir, &plan, done, count, durable, index.as_deref_mut());
    let (joined, judged) =
        judged.inspect_err(|error| forget_damaged(request.env.workdir, error))?;
    let set = set_of(request, &*dir, end, &joined, counts);
    drop(work);
    let unseen = u64::from(plan.identity.unseen.min(end));
    Ok(MergedSet { dir, set, counts, unseen, joined, judged, numbered })
}

/// What is known of a set before it is handed out.
fn set_of(
    request: &Request<'_>,
    dir: &dyn ChainSource,
    end: Height,
    joined: &Joined,
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

/// What came of the second walk.
pub struct WalkOutcome {
    /// Which scripts were run.
    pub scripts: ScriptCounts,
    /// The hash of the set, if it was computed meanwhile.
    pub hashed: Option<SetHash>,
    /// A data directory with its blocks, without its coins.
    pub with_blocks: Option<DraftWithBlocks>,
}

/// What came of a run that other machines did.
pub struct SharedResult {
    /// What came of the join.
    pub joined: Joined,
    /// How much was processed.
    pub counts: Counts,
    /// What came of the second walk.
    pub judged: WalkOutcome,
}

/// A run on its way.
pub struct MergeWork<'a> {
    /// What is asked for.
    pub request: &'a Request<'a>,
    /// How blocks are connected.
    pub options: &'a ConnectOptions<'a>,
    /// The chain.
    pub dir: &'a dyn ChainSource,
    checks: ScriptChecks,
    pool: Option<ScriptPool>,
}

type Planned<'a> = (Workdir<'a>, Plan, SegmentsOf<Gather>);

impl<'a> MergeWork<'a> {
    /// Goes on with the plan in the work folder, or makes one. Where that was for another end, what it
    /// did of this chain is taken over.
    fn plan(&self, end: Height) -> Result<Planned<'a>, SyncError> {
        let (request, dir) = (self.request, self.dir);
        let earlier = Workdir::read_plan(request.env.workdir)?;
        if earlier.is_none() && Connected::read(request.env.workdir)?.is_some() {
            return Err(request.env.other_run("by another engine"));
        }
        let identity = RunIdentity {
            network: request.env.params.network,
            stop: end,
            stop_hash: dir.chain().hash(end).copied().unwrap_or_default(),
            hints: NO_HINTS,
            aggregate: AggregateKind::None,
            // By the plan, since what machines answer depends on it.
            assumed: if request.env.is_shared { pass::last_assumed(request, dir, end) } else { 0 },
            unseen: pass::leave_witnesses(
                request,
                dir,
                earlier.as_ref().map(|plan| plan.identity.unseen),
            ),
            // What an earlier start has them told of is told to the end.
            numbered: request.index().is_some()
                || makes_hashes(request)
                || earlier.as_ref().is_some_and(|plan| plan.identity.numbered),
            muhash: request.muhash || earlier.as_ref().is_some_and(|plan| plan.identity.muhash),
        };
        // Of another chain, or one that grew shorter, fewer may be left alone.
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
                if Connected::read(request.env.workdir)?.is_some() {
                    // Its coins were gone on from.
                    expect_same(request, Some(&earlier), &identity)?;
                }
                self.change(&earlier, identity)
            }
            earlier => {
                let segments =
                    pass::segments(request, dir, earlier.as_ref(), end, self.under_way());
                pass::begin_or_go_on::<Gather>(request, earlier, identity, segments)
            }
        }
    }

    /// How many segments are in memory at a time: those whose blocks are on their way are among them.
    fn under_way(&self) -> usize {
        self.dir.fetchers(self.request.env.threads)
    }

    /// A plan for another end, with those segments of the earlier one that are of this chain, and in which as many
    /// blocks were taken without their witnesses as are now.
    fn change(&self, earlier: &Plan, identity: RunIdentity) -> Result<Planned<'a>, SyncError> {
        let (request, dir) = (self.request, self.dir);
        let (_, mut done) = Workdir::resume::<Gather>(request.env.workdir, earlier)?;
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

    /// The last block whose claims are noted: those that the second walk will perhaps not read.
    fn claimed(&self) -> Height {
        let Self { request, dir, ref checks, .. } = *self;
        match pass::needs_blocks(request, dir) {
            true => 0,
            false => checks.last_assumed().unwrap_or_default(),
        }
    }

    /// The first walk.
    fn gather(
        &self,
        workdir: &Workdir<'_>,
        plan: &Plan,
        segments: &[HeightRange],
        done: SegmentsOf<Gather>,
    ) -> Result<(SegmentsOf<Gather>, Counts), SyncError> {
        let (request, dir) = (self.request, self.dir);
        let pass = Gather::new(request.env.params, dir.chain(), fingerprint_key(plan))
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
        let Gathered { counts, .. } = pass.conclude(&whole, stop)?;
        drop_beside(request, pass);
        request
            .env
            .observer
            .event(Event::Ended { phase: Phase::Blocks, bytes: counts.bytes - before });
        Ok((done, counts))
    }

    /// The join and the second walk, as far as no earlier start did them.
    fn join_and_judge(
        &self,
        workdir: &Workdir<'_>,
        plan: &Plan,
        mut done: SegmentsOf<Gather>,
        count: Option<OutputCount<'_>>,
        durable: bool,
        index: Option<&mut (dyn IndexWriter + '_)>,
    ) -> Result<(Joined, WalkOutcome), SyncError> {
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
                let record = Record { joined, judged: 0, assumed };
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
        drop_beside(request, joined);
        let judged = HeightRange::new(1, record.judged + 1);
        if !without_undo(self.dir, judged).is_empty() {
            record.judged = 0;
        }
        record.go_on_with(assumed);
        if let Some(index) = &index {
            record.judged = record.judged.min(index.best_block());
        }
        let sum_key = sum_key(plan);
        let mut keeper = self.keeper(&mut record, plan.last(), sum_key)?;
        let mut progress = Judging { record, durable, saved_at: Instant::now() };
        let takers = Takers { keeper: keeper.as_mut(), index };
        let scripts = self.walk(workdir, plan, &done, &mut progress, takers)?;
        let with_blocks = keeper.map(Keeper::end).transpose()?;
        Ok((progress.record.joined, WalkOutcome { scripts, hashed: None, with_blocks }))
    }

    /// What keeps blocks, if they are to be. Where it lacks some that were judged, they are judged anew.
    fn keeper(
        &self,
        record: &mut Record,
        end: Height,
        sum_key: CoinSumKey,
    ) -> Result<Option<Keeper>, SyncError> {
        let (request, options, dir) = (self.request, self.options, self.dir);
        if goes_on(request) {
            return Ok(None);
        }
        let start = |height: Height| {
            let hash = dir.chain().hash(height).copied().unwrap_or_default();
            let tip = KnownBlock { height, hash };
            Keeper::start(request, options, dir, 1, tip, end, sum_key)
        };
        let judged = record.judged;
        if judged > 0 {
            match start(judged) {
                Ok(Some(keeper)) if !keeper.lacks_some(judged, end) => return Ok(Some(keeper)),
                Ok(None) => return Ok(None),
                Ok(Some(_)) | Err(SyncError::Usage(UsageError::OtherRun { .. })) => {}
                Err(error) => return Err(error),
            }
            record.judged = 0;
        }
        start(0)
    }

    fn walk(
        &self,
        workdir: &Workdir<'_>,
        plan: &Plan,
        done: &[FinishedRange<Gathered>],
        progress: &mut Judging,
        takers: Takers<'_, '_>,
    ) -> Result<ScriptCounts, SyncError> {
        let (key, sum_key) = (fingerprint_key(plan), sum_key(plan));
        let end = done.last().map_or(0, |last| last.range.end - 1);
        let (numbered, unseen) = (plan.identity.numbered, plan.identity.unseen);
        let bare = bare_up_to(plan);
        JudgeWalk { work: self, workdir, key, done, sum_key, numbered, unseen, bare, end }
            .judge(progress, takers)
    }

    /// Of blocks that are refused the lowest is told. `error` may be about one that the first walk
    /// refused: those below it have to be judged before.
    fn lowest(&self, workdir: &Workdir<'_>, plan: &Plan, error: SyncError) -> SyncError {
        let mut error = error;
        loop {
            let refused = InvalidBlock::of(&error).map(|refused| refused.block.height);
            let Some(end) = refused.map(|height| height - 1).filter(|end| *end > 0) else {
                return error;
            };
            match self.gather_below(workdir, plan, end) {
                // A lower one, and perhaps not the lowest.
                Err(lower) if InvalidBlock::of(&lower).is_some() => error = lower,
                Err(other) => return other,
                Ok(done) => {
                    let judged = self.judge_all(workdir, plan, &done);
                    return judged.err().unwrap_or(error);
                }
            }
        }
    }

    /// The first walk over the blocks up to a height, with what was done of it.
    fn gather_below(
        &self,
        workdir: &Workdir<'_>,
        plan: &Plan,
        end: Height,
    ) -> Result<SegmentsOf<Gather>, SyncError> {
        let cut = |range: &HeightRange| HeightRange::new(range.start, range.end.min(end + 1));
        let below = plan.segments.iter().filter(|range| range.start <= end).map(cut);
        let segments: Vec<HeightRange> = below.collect();
        let (_, mut done) = Workdir::resume::<Gather>(self.request.env.workdir, plan)?;
        done.retain(|done| segments.contains(&done.range));
        Ok(self.gather(workdir, plan, &segments, done)?.0)
    }

    /// Judges the blocks of some segments, from the first block on, only to know whether they pass.
    fn judge_all(
        &self,
        workdir: &Workdir<'_>,
        plan: &Plan,
        done: &[FinishedRange<Gathered>],
    ) -> Result<(), SyncError> {
        let (numbered, muhash, bare) =
            (plan.identity.numbered, plan.identity.muhash, bare_up_to(plan));
        let options = JoinOptions { numbered, hashes: None, muhash, bare, durable: false };
        let joined = join(&self.request.env, done, options)?;
        let record = Record { joined, judged: 0, assumed: 0 };
        let mut progress = Judging { record, durable: false, saved_at: Instant::now() };
        self.walk(workdir, plan, done, &mut progress, Takers::default()).map(|_| ())
    }
}

/// Lets go of what is of no more use. To take back hundreds of megabytes is some work for the kernel, which is done
/// beside what comes next.
fn drop_beside<T: Send + 'static>(request: &Request<'_>, value: T) {
    if request.env.threads > 1 {
        // Where there is no thread to be had, it is done here.
        let _ = std::thread::Builder::new().spawn(move || drop(value));
    }
}

/// The last block that is answered with bare coins: those whose witnesses are left alone, since their scripts are run
/// by no start of this plan, and none of them is kept.
pub fn bare_up_to(plan: &Plan) -> Height {
    plan.identity.unseen
}

/// The key of the run's fingerprints, a part of what is secret in the plan.
pub fn fingerprint_key(plan: &Plan) -> FingerprintKey {
    FingerprintKey::new(*plan.secret.0.first_chunk().expect("there are more bytes"))
}

/// The key of its sums of coins, another part.
pub fn sum_key(plan: &Plan) -> CoinSumKey {
    CoinSumKey::new(*plan.secret.0.last_chunk().expect("there are more bytes"))
}

impl From<GatherError> for SyncError {
    /// The walk over blocks gives each once, so what is told is that it did not.
    fn from(error: GatherError) -> Self {
        let (GatherError::Unexpected(height) | GatherError::Missing(height)) = error;
        let range = HeightRange::new(height, height + 1);
        crate::error::SourceError::Incomplete { range }.into()
    }
}
