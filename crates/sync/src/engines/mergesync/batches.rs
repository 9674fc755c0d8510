//! [`Batches`]: processes a chain in batches of consecutive segments, so that the records of all blocks need not be
//! on disk at once.
//!
//! A batch is gathered, joined with its [base](BaseSet) and validated; the coins that it leaves are the next base.
//! A chain whose records fit is one batch without a base.

use super::base_set::BaseSet;
use super::coin_hashes::{HashKeys, OutputCount, WantedHashes};
use super::join_result::{JoinResult, Record, division_of};
use super::join_runs::{BatchSpan, JOINED_RUNS, JoinOptions, join};
use super::merge_plan::MergePlan;
use super::scratch::ScratchUse;
use super::walk::{BlockTakers, ConnectProgress, ConnectWalk};
use super::{
    FirstPass, MergeWork, SegmentSummary, WalkOutcome, bare_up_to, connects_above, fingerprint_key,
    makes_hashes, sum_key,
};
use crate::chain_index::IndexWriter;
use crate::engines::in_order::datadir_writer::DatadirWriter;
use crate::engines::pass::{Counts, PartialResult, Pass};
use crate::error::{SyncError, UsageError};
use crate::folder::FolderOutput;
use crate::pass::{self, PassJob, PassLimit, Threads};
use crate::progress::{Event, Phase, Progress};
use crate::request::{Request, ScriptCounts, first_of_last};
use crate::sink::put::forget_damaged;
use crate::source::without_undo;
use crate::supply::bytes_of;
use crate::workdir::plan::Plan;
use crate::workdir::record::Record as ConnectedBlock;
use crate::workdir::{FinishedRange, SegmentsOf, Workdir};
use apus_chain::{Height, HeightRange, KnownBlock};
use std::collections::HashSet;
use std::time::Instant;

pub(super) mod blame;

type Segments = SegmentsOf<FirstPass>;

/// The set at the end of the last batch.
pub(super) struct LastBatch {
    pub(super) joined: JoinResult,
    pub(super) validated: WalkOutcome,
    pub(super) counts: Counts,
    /// The number of outputs numbered in all blocks, if the set's hashes are wanted.
    pub(super) numbered: Option<u64>,
}

/// The batches of a sync.
pub(super) struct Batches<'w, 'a> {
    work: &'w MergeWork<'a>,
    workdir: &'w Workdir<'a>,
    plan: &'w Plan,
    base: BaseSet,
    /// The writer of blocks that are kept with the result, once it was started.
    keeper: Option<Option<DatadirWriter>>,
}

/// Which coins a join makes.
#[derive(Clone, Copy)]
enum JoinFor<'c> {
    /// The next base.
    Base,
    /// The set, with the hashes of its coins if they are wanted.
    Set(Option<&'c OutputCount<'c>>),
}

impl<'w, 'a> Batches<'w, 'a> {
    pub(super) fn new(work: &'w MergeWork<'a>, found: &'w MergePlan<'a>) -> Self {
        let (workdir, plan, base) = (&found.workdir, &found.plan, found.base.clone());
        Self { work, workdir, plan, base, keeper: None }
    }

    /// Processes all batches; the last one makes the set.
    pub(super) fn run(
        mut self,
        done: Segments,
        index: Option<&mut (dyn IndexWriter + '_)>,
    ) -> Result<LastBatch, SyncError> {
        let (batch, is_long) = self.below_last(done)?;
        self.last(batch, is_long, index)
    }

    /// Processes all batches; the last one makes a base, too, for an engine that continues above.
    pub(super) fn run_below(mut self, done: Segments) -> Result<BaseSet, SyncError> {
        let (batch, _) = self.below_last(done)?;
        if self.base.at.height < self.plan.last() {
            self.pass_on(batch)?;
        }
        Ok(self.base)
    }

    /// Processes all batches but the last. Returns the segments of that one, and whether it was long.
    fn below_last(&mut self, done: Segments) -> Result<(Segments, bool), SyncError> {
        let mut done = done;
        let mut may_divide = true;
        loop {
            let (started, resumed) = (Instant::now(), !done.is_empty());
            let count = match self.joined_already(&done)? {
                Some(count) => count,
                None => {
                    done = self.gather_batch(done, may_divide)?;
                    self.batch_of(&done, may_divide)?
                }
            };
            let rest = done.split_off(count);
            // A chain that became shorter may end at the base.
            let end = done.last().map_or(self.base.at.height, |last| last.range.end - 1);
            if end == self.plan.last() {
                let is_long =
                    resumed || started.elapsed() >= self.work.request.env.checkpoint_interval;
                return Ok((done, is_long));
            }
            // If no batch may end here, the rest is one.
            may_divide = count > 0;
            if may_divide {
                self.pass_on(done)?;
                done = Vec::new();
            }
            done.extend(rest);
        }
    }

    /// The join of an earlier start that continues from this base.
    fn earlier_join(&self) -> Result<Option<Record>, SyncError> {
        Ok(Record::read(self.workdir)?.filter(|record| record.base == self.base.at.height))
    }

    /// How many of the finished segments an earlier start joined to make the next base.
    fn joined_already(&self, done: &Segments) -> Result<Option<usize>, SyncError> {
        let joined = self.earlier_join()?.filter(|record| !record.joined.base.is_empty());
        let is_end = |(count, end): &(usize, Height)| {
            let is_of = |record: &Record| {
                record.end + 1 == *end && record.division == division_of(&done[..*count])
            };
            joined.as_ref().is_some_and(is_of)
        };
        Ok(self.in_sequence(done).find(is_end).map(|(count, _)| count))
    }

    /// The finished segments that follow the base without a gap: their number up to each, and the height after it.
    fn in_sequence<'d>(&self, done: &'d Segments) -> impl Iterator<Item = (usize, Height)> + 'd {
        let mut next = self.base.at.height + 1;
        let ends = done.iter().map_while(move |done| {
            (done.range.start == next).then(|| {
                next = done.range.end;
                next
            })
        });
        (1..).zip(ends)
    }

    /// Whether the finished segments reach the last block without a gap.
    fn reaches_end(&self, done: &Segments) -> bool {
        self.in_sequence(done).last().is_some_and(|(_, end)| end == self.plan.last() + 1)
    }

    /// Runs the first walk until the batch is long enough.
    fn gather_batch(&self, done: Segments, may_divide: bool) -> Result<Segments, SyncError> {
        if self.base.at.height > 0 && self.reaches_end(&done) {
            return Ok(done);
        }
        let used = ScratchUse::new(self.work, &self.base, bare_up_to(self.plan));
        let is_reached = |done: &FinishedRange<SegmentSummary>| used.take(done);
        let limit = PassLimit::new(self.base.at.height + 1, &is_reached);
        let limit = (may_divide && used.is_limited()).then_some(&limit);
        let gathered = self.work.gather(self.workdir, self.plan, &self.base, None, done, limit);
        gathered.map_err(|error| {
            let error = self.lowest(error);
            forget_damaged(self.work.request.env.workdir, &error);
            error
        })
    }

    /// How many of the finished segments make the next batch: all of a chain's last ones, or as many as the disk
    /// allows to join; 0 if no batch may end below the last block.
    fn batch_of(&self, done: &Segments, may_divide: bool) -> Result<usize, SyncError> {
        let first = self.base.at.height + 1;
        let (mut count, next) = self.in_sequence(done).last().unwrap_or((0, first));
        let end = self.plan.last();
        let used = ScratchUse::new(self.work, &self.base, bare_up_to(self.plan));
        if next == end + 1 && connects_above(self.work.request) {
            used.expect_store_room(done)?;
        }
        if next == end + 1 && (!may_divide || used.fits(done, count)) {
            return Ok(count);
        }
        // A reorganisation that nodes must expect never goes below a base.
        while count > 0 && !used.may_end(done[count - 1].range.end, first_of_last(end)) {
            count -= 1;
        }
        while count > 1 && !used.fits(done, count) {
            count -= 1;
        }
        if count == 1 {
            used.expect_room(done)?;
        }
        if count == 0 && next == end + 1 {
            return Ok(done.len());
        }
        Ok(count)
    }

    /// Joins and validates a batch that is not the last, and makes its coins the base.
    fn pass_on(&mut self, batch: Segments) -> Result<(), SyncError> {
        let MergeWork { request, dir, ref checks, .. } = *self.work;
        let mut next = self.base.clone();
        next.numbered = self.plan.identity.numbered;
        next.add_segments(self.workdir, &batch)
            .inspect_err(|error| forget_damaged(request.env.workdir, error))?;
        let end = next.at.height;
        let runs_scripts =
            (self.base.at.height + 1..=end).any(|height| self.work.runs_scripts(height));
        let durable = runs_scripts || self.work.passes_blocks_on();
        let files: Vec<String> = batch.iter().flat_map(FinishedRange::names).collect();
        let (record, _) = self
            .join_and_validate(batch, JoinFor::Base, durable, None)
            .or_else(|error| self.refuse(error))
            .inspect_err(|error| forget_damaged(request.env.workdir, error))?;
        if let Some(Some(keeper)) = &mut self.keeper {
            keeper.sync()?;
        }
        dir.sync()?;
        let JoinResult { answers, base, overwritten, balance, .. } = record.joined;
        (next.runs, next.coins) = (base, balance.left);
        next.overwritten.extend(overwritten);
        next.assumed = checks.last_assumed().unwrap_or_default().min(end);
        next.unseen = self.plan.identity.unseen.min(end);
        next.options = BaseSet::options_of(request);
        next.write(request.env.workdir)?;
        let old = std::mem::replace(&mut self.base, next);
        let gone = old.runs.iter().chain(&answers).map(|run| run.name.as_str());
        let gone: HashSet<&str> = gone.chain(files.iter().map(String::as_str)).collect();
        Record::remove(self.workdir)?;
        self.workdir.remove_files(&gone)?;
        // Otherwise the allocator keeps free pages beside the pages that the next batch maps.
        request.env.observer.event(Event::MemoryFreed);
        Ok(())
    }

    /// Joins and validates the last batch.
    fn last(
        mut self,
        batch: Segments,
        is_long: bool,
        index: Option<&mut (dyn IndexWriter + '_)>,
    ) -> Result<LastBatch, SyncError> {
        let (request, dir) = (self.work.request, self.work.dir);
        let counts = self.counts(&batch)?;
        // Running scripts takes many times as long as all work before it.
        let durable = is_long || self.work.pool.is_some();
        let count = || OutputCount::read(self.workdir, &self.base, &batch, dir.chain());
        let count = makes_hashes(request).then(count).transpose();
        let count = count.inspect_err(|error| forget_damaged(request.env.workdir, error))?;
        let what = JoinFor::Set(count.as_ref());
        let (record, scripts) = self
            .join_and_validate(batch, what, durable, index)
            .or_else(|error| self.refuse(error))
            .inspect_err(|error| forget_damaged(request.env.workdir, error))?;
        let with_blocks = self.keeper.flatten().map(DatadirWriter::end).transpose()?;
        let validated = WalkOutcome { scripts, hashed: None, with_blocks };
        let numbered = count.as_ref().map(OutputCount::total);
        Ok(LastBatch { joined: record.joined, validated, counts, numbered })
    }

    /// How much was processed, over all batches.
    fn counts(&self, batch: &Segments) -> Result<Counts, SyncError> {
        let pass = self.work.first_pass(self.plan);
        let whole = pass::whole(&pass, self.workdir, Some(&self.base.summary), batch)?;
        Ok(pass.conclude(&whole, self.plan.last())?.counts)
    }

    /// Runs the join and the second walk, without repeating the work of earlier starts.
    fn join_and_validate(
        &mut self,
        batch: Segments,
        what: JoinFor<'_>,
        durable: bool,
        index: Option<&mut (dyn IndexWriter + '_)>,
    ) -> Result<(Record, ScriptCounts), SyncError> {
        let (request, mut batch) = (self.work.request, batch);
        let assumed = self.work.checks.last_assumed().unwrap_or_default();
        let base = self.base.at.height;
        let end = batch.last().map_or(base, |last| last.range.end - 1);
        let division = division_of(&batch);
        let is_wanted = |record: &Record| {
            let JoinResult { base, coins, hashes, .. } = &record.joined;
            let has_all = match what {
                JoinFor::Base => !base.is_empty(),
                JoinFor::Set(count) => !coins.is_empty() && (count.is_none() || hashes.is_some()),
            };
            has_all && record.end == end && record.division == division
        };
        let earlier = self.earlier_join()?.filter(is_wanted);
        let keep = earlier.iter().flat_map(Record::names).chain(self.base.names()).collect();
        self.workdir.clear_scratch_but(&keep)?;
        let durable = durable || earlier.is_some();
        let is_new = earlier.is_none();
        let mut record = match earlier {
            Some(record) => record,
            None => {
                let joined = self.join(&batch, what, durable)?;
                Record { joined, base, end, division, validated: base, assumed }
            }
        };
        if durable {
            // Otherwise a later start would process these blocks again, could divide them differently, and would
            // then lose the join.
            self.work.dir.sync()?;
            self.workdir.store(&mut batch)?;
            if is_new {
                record.write(self.workdir)?;
            }
        }
        let coins_total = record.joined.balance.left;
        let coins = Progress { coins_total, ..Progress::default() };
        request.env.observer.event(Event::Ahead(Phase::Coins, coins));
        let joined: Vec<_> = batch.iter_mut().map(|done| done.take_runs(&JOINED_RUNS)).collect();
        drop_in_background(request, joined);
        let validated = HeightRange::new(base + 1, record.validated + 1);
        if !without_undo(self.work.dir, validated).is_empty() {
            record.validated = base;
        }
        record.assume_up_to(assumed);
        if let Some(index) = &index {
            record.validated = record.validated.min(index.best_block());
        }
        record.validated = record.validated.max(base);
        self.start_keeper(&mut record)?;
        let keeper = self.keeper.as_mut().and_then(Option::as_mut);
        let mut progress = ConnectProgress { record, durable, saved_at: Instant::now() };
        let takers = BlockTakers { keeper, index };
        let (work, workdir, plan) = (self.work, self.workdir, self.plan);
        let walk = ConnectWalk { work, workdir, plan, done: &batch };
        let scripts = walk.validate(&mut progress, takers)?;
        Ok((progress.record, scripts))
    }

    fn join(
        &self,
        batch: &Segments,
        what: JoinFor<'_>,
        durable: bool,
    ) -> Result<JoinResult, SyncError> {
        let request = self.work.request;
        let by = match what {
            JoinFor::Set(count) => count.map(HashKeys::Places),
            JoinFor::Base => None,
        };
        let hashes = request.hasher().zip(by);
        let end = batch.last().map_or(0, |last| last.range.end - 1);
        let options = JoinOptions {
            numbered: self.plan.identity.numbered,
            hashes: hashes.map(|(hasher, by)| WantedHashes { hasher, by }),
            muhash: self.plan.identity.muhash,
            bare: bare_up_to(self.plan),
            durable,
            span: self.span(batch),
            next_base: matches!(what, JoinFor::Base).then_some(end),
            overwritten: &self.base.overwritten,
        };
        join(&request.env, &self.base, batch, options)
    }

    /// The part of the chain that a batch covers.
    fn span(&self, batch: &Segments) -> BatchSpan {
        // Sizes of blocks to come may be estimates, so take estimates for the others, too.
        let bytes = |start, end| bytes_of(self.work.dir, HeightRange::new(start, end));
        let (first, all) = (self.base.at.height + 1, self.plan.last() + 1);
        let end = batch.last().map_or(all, |done| done.range.end);
        BatchSpan {
            below: bytes(1, first),
            joined: bytes(first, end),
            all: bytes(1, all),
            is_last: end == all,
        }
    }

    /// Starts the writer for kept blocks, if blocks are kept. If it lacks blocks of this batch that were validated,
    /// they are validated again.
    ///
    /// # Errors
    /// If it lacks blocks below the base.
    fn start_keeper(&mut self, record: &mut Record) -> Result<(), SyncError> {
        let MergeWork { request, options, dir, .. } = *self.work;
        if self.keeper.is_some() {
            return Ok(());
        }
        // Once blocks above are connected, the directory has all joined ones, and blocks above them.
        let is_left = || Ok::<_, SyncError>(ConnectedBlock::read(request.env.workdir)?.is_some());
        if connects_above(request) && (!keeps_joined(request) || is_left()?) {
            self.keeper = Some(None);
            return Ok(());
        }
        let (end, sum_key) = (self.plan.last(), sum_key(self.plan));
        let start = |height: Height| {
            let hash = dir.chain().hash(height).copied().unwrap_or_default();
            let tip = KnownBlock { height, hash };
            DatadirWriter::start(request, options, dir, 1, tip, end, sum_key)
        };
        let base = self.base.at.height;
        for height in [record.validated, base] {
            let keeper = match start(height) {
                Ok(None) => None,
                Ok(Some(keeper)) if height == 0 || !keeper.lacks_some(height, end) => Some(keeper),
                Ok(Some(_)) if height > base => continue,
                Err(SyncError::Usage(UsageError::OtherRun { .. })) if height > base => continue,
                Ok(Some(_)) => return Err(request.env.other_run("that did not keep all blocks")),
                Err(error) => return Err(error),
            };
            self.keeper = Some(keeper);
            record.validated = height;
            break;
        }
        Ok(())
    }
}

/// Whether a data directory gets the joined blocks of peers. A pruned one gets blocks that are connected in order.
fn keeps_joined(request: &Request<'_>) -> bool {
    request.folders.iter().any(FolderOutput::has_all_undo)
}

impl MergeWork<'_> {
    /// Whether this machine runs a block's scripts.
    fn runs_scripts(&self, height: Height) -> bool {
        self.pool.is_some() && self.checks.needed(height)
    }

    /// The first walk's pass.
    fn first_pass(&self, plan: &Plan) -> FirstPass {
        FirstPass::new(self.request.env.params, self.dir.chain(), fingerprint_key(plan))
            .with_numbers(plan.identity.numbered)
            .with_claims(self.claimed())
            .with_waiting_above(self.passed())
            .with_bare_coins(bare_up_to(plan))
    }

    /// The last block whose spend summary is kept: up to it, the second walk may not have to read blocks.
    fn claimed(&self) -> Height {
        match self.passes_blocks_on() {
            true => 0,
            false => self.checks.last_assumed().unwrap_or_default(),
        }
    }

    /// Whether the second walk passes all blocks on, to a data directory, an index or the source. The last ones,
    /// which a pruned directory keeps, may be connected in order.
    fn passes_blocks_on(&self) -> bool {
        let Self { request, dir, .. } = *self;
        match connects_above(request) {
            true => dir.archive().is_some() || keeps_joined(request),
            false => pass::needs_blocks(request, dir),
        }
    }

    /// The last block that does not wait in the work folder for the second walk. Peers would have to send it again.
    fn passed(&self) -> Height {
        match connects_above(self.request) && self.dir.archive().is_none() {
            true => self.claimed(),
            false => Height::MAX,
        }
    }

    /// Runs the first walk over these segments, or all of the plan, above a base.
    fn gather(
        &self,
        workdir: &Workdir<'_>,
        plan: &Plan,
        base: &BaseSet,
        segments: Option<&[HeightRange]>,
        done: Segments,
        limit: Option<&PassLimit<'_, SegmentSummary>>,
    ) -> Result<Segments, SyncError> {
        let (request, dir) = (self.request, self.dir);
        let pass = self.first_pass(plan);
        let job = PassJob {
            request,
            source: dir,
            pass: &pass,
            input: &|range| Ok(range),
            unseen: plan.identity.unseen,
            below: Some(&base.summary),
            limit,
        };
        request.env.observer.event(Event::Started(Phase::Blocks));
        let bytes_of =
            |done: &Segments| done.iter().map(|done| done.partial.done().bytes).sum::<u64>();
        let before = bytes_of(&done);
        let segments = segments.unwrap_or(&plan.segments);
        let done = pass::run(&job, &Threads, workdir, segments, done)?;
        drop_in_background(request, pass);
        let (phase, bytes) = (Phase::Blocks, bytes_of(&done) - before);
        let blocks: u32 = done.iter().map(|done| done.range.count()).sum();
        let is_all = limit.is_none() || base.at.height + blocks == plan.last();
        request.env.observer.event(match is_all {
            true => Event::Ended { phase, bytes },
            false => Event::Paused { phase, bytes },
        });
        Ok(done)
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
