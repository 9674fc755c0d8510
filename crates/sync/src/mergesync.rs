//! The work of mergesync: every rule, with blocks gone over twice, without hints and without look-ups.
//!
//! [Segments](crate::pass) write down, in any order, which coins their blocks make and want; a
//! [join](mod@join) of all of them finds the coin for each spend; then the blocks come once more and are
//! [judged](mod@judge). The coins that no spend took are the set, and their places are the hints.
//!
//! Segments are kept in the work folder, and so is what came of the join, and how far blocks were judged, where
//! it took long enough to get there. A start for another end of the chain takes over the segments that are of
//! it.

mod answers;
mod join;
mod joined;
mod judge;
mod parts;
mod pile;
mod spill;

use crate::best_chain::other_chain;
use crate::connect::keeper::Keeper;
use crate::error::{InvalidBlock, StorageResult, SyncError, UsageError};
use crate::folder::expect_room;
use crate::pass::{self, Job, Threads, expect_same};
use crate::progress::{Event, Phase};
use crate::request::{ConnectOptions, Output, OutputKind, Request, Scripts, Source};
use crate::runs::{MergeBudget, Merging, Places};
use crate::sink::datadir::DraftWithBlocks;
use crate::sink::put::{Put, SetMuHash, forget_damaged, merge_all, put_set};
use crate::sink::{Draft, SetInfo, SnapshotSink, folders};
use crate::source::ChainSource;
use crate::workdir::plan::{Plan, RunIdentity};
use crate::workdir::record::Record as Connected;
use crate::workdir::{Done, SegmentsOf, Workdir};
use apus_chain::{CoinSumKey, Height, HeightRange, KnownBlock, ScriptChecks};
use apus_engine::mergesync::{FingerprintKey, Gather, GatherError, Gathered};
use apus_engine::pass::{Counts, Pass};
use apus_engine::script::ScriptPool;
use apus_engine::swiftsync::CoinTotals;
use apus_engine::swiftsync::aggregate::AggregateKind;
use apus_engine::swiftsync::hints::HintsWriter;
use apus_storage::StorageFile;
use join::join;
use joined::{Joined, Record};
use judge::{Judging, Walk};
use std::io::BufWriter;
use std::sync::Arc;
use std::time::Instant;

/// Disk that records take, in percent of the blocks' bytes: measured where most coins are spent far above
/// their blocks and transactions are small. On the main chain half of it is to be expected.
const DISK_PERCENT: u64 = 60;

/// The set that joining led to.
pub(crate) struct Merged<'a> {
    pub(crate) dir: Arc<dyn ChainSource + 'a>,
    pub(crate) set: SetInfo,
    pub(crate) counts: Counts,
    pub(crate) scripts: Scripts,
    joined: Joined,
    with_blocks: Option<DraftWithBlocks>,
}

/// Goes over all blocks twice, under every rule. Where a block is invalid, over those of another chain,
/// if there is one.
pub(crate) fn run<'a>(
    request: &'a Request<'_>,
    dir: Arc<dyn ChainSource + 'a>,
) -> Result<Merged<'a>, SyncError> {
    if matches!(request.source, Source::Peers(_)) {
        return Err(SyncError::Usage(UsageError::BlocksTwice));
    }
    if request.engine.is_some() {
        expect_disk(request, &*dir)?;
    }
    let genesis = KnownBlock { height: 0, hash: request.params.genesis_hash };
    let mut dir = dir;
    loop {
        let error = match on_chain(request, Arc::clone(&dir)) {
            Err(error) if InvalidBlock::of(&error).is_some() => error,
            other => return other,
        };
        dir = other_chain(request, &*dir, genesis, error)?;
    }
}

/// Says how much disk the records of a run will take that has none yet.
///
/// # Errors
/// [`NoRoom`](crate::error::IoError::NoRoom) where that is not free.
pub(crate) fn expect_disk(request: &Request<'_>, dir: &dyn ChainSource) -> Result<(), SyncError> {
    let folder = request.connect.as_ref().and_then(|options| options.positions.parent());
    let Some(folder) = folder.filter(|folder| folder.is_dir()) else { return Ok(()) };
    if Workdir::read_plan(request.workdir)?.is_some() {
        return Ok(());
    }
    let end = request.stop.end_in(dir)?;
    let block_bytes: u64 = (1..=end).map(|height| dir.block_bytes(height)).sum();
    let bytes = block_bytes / 100 * DISK_PERCENT;
    let free = expect_room(folder, bytes)?;
    request.observer.event(Event::DiskNeeded { bytes, free });
    Ok(())
}

/// The set of a chain.
fn on_chain<'a>(
    request: &'a Request<'_>,
    dir: Arc<dyn ChainSource + 'a>,
) -> Result<Merged<'a>, SyncError> {
    let options = request.connect.as_ref().ok_or(SyncError::Usage(UsageError::NothingToConnect))?;
    let end = request.stop.end_in(&*dir)?;
    if end == 0 {
        return Err(SyncError::Usage(UsageError::NothingToDo));
    }
    let checks = ScriptChecks::new(request.params, dir.chain(), options.assume_valid);
    let any_scripts = (1..=end).any(|height| checks.needed(height));
    // A build that cannot run scripts leaves nothing behind.
    let pool = any_scripts.then(|| ScriptPool::new(request.threads)).transpose()?;
    let work = Work { request, options, dir: &*dir, checks, pool };
    let started = Instant::now();
    let (workdir, plan, done) = work.plan(end)?;
    let resumed = !done.is_empty();
    let gathered = work.gather(&workdir, &plan, &plan.segments, done);
    let (done, counts) = match gathered {
        Err(error) => {
            let error = work.lowest(&workdir, &plan, error);
            forget_damaged(&workdir, &error);
            return Err(error);
        }
        Ok(gathered) => gathered,
    };
    let durable = resumed || started.elapsed() >= request.checkpoint_interval;
    let judged = work.join_and_judge(&workdir, &plan, &done, durable);
    let (joined, scripts, with_blocks) =
        judged.inspect_err(|error| forget_damaged(&workdir, error))?;
    let base = dir.chain().hash(end).copied().unwrap_or_default();
    let set = SetInfo {
        network: request.params.network,
        height: end,
        base,
        coins: joined.coin_count,
        coin_bytes: joined.coin_bytes(),
        transactions: counts.transactions,
    };
    drop(work);
    Ok(Merged { dir, set, counts, scripts, joined, with_blocks })
}

/// A run on its way.
struct Work<'a> {
    request: &'a Request<'a>,
    options: &'a ConnectOptions<'a>,
    dir: &'a dyn ChainSource,
    checks: ScriptChecks,
    pool: Option<ScriptPool>,
}

type Planned<'a> = (Workdir<'a>, Plan, SegmentsOf<Gather>);

impl<'a> Work<'a> {
    /// Goes on with the plan in the work folder, or makes one. Where that was for another end, what it
    /// did of this chain is taken over.
    fn plan(&self, end: Height) -> Result<Planned<'a>, SyncError> {
        let (request, dir) = (self.request, self.dir);
        let earlier = Workdir::read_plan(request.workdir)?;
        if earlier.is_none() && Connected::read(request.workdir)?.is_some() {
            return Err(request.other_run("by another engine"));
        }
        let identity = RunIdentity {
            network: request.params.network,
            stop: end,
            stop_hash: dir.chain().hash(end).copied().unwrap_or_default(),
            // There are none, which no hints have as their hash.
            hints: [0; 32],
            aggregate: AggregateKind::None,
        };
        let of_other_end = |earlier: &Plan| {
            let RunIdentity { stop, stop_hash, .. } = earlier.identity;
            RunIdentity { stop, stop_hash, ..identity.clone() }
        };
        if let Some(earlier) = &earlier {
            expect_same(request, Some(earlier), &of_other_end(earlier))?;
        }
        match earlier {
            Some(earlier) if earlier.identity != identity => self.change(&earlier, identity),
            earlier => {
                let segments = pass::segments(request, dir, earlier.as_ref(), end);
                pass::begin_or_go_on::<Gather>(request, earlier, identity, segments)
            }
        }
    }

    /// A plan for another end, with those segments of the earlier one that are of this chain.
    fn change(&self, earlier: &Plan, identity: RunIdentity) -> Result<Planned<'a>, SyncError> {
        let (request, dir) = (self.request, self.dir);
        let (_, mut done) = Workdir::resume::<Gather>(request.workdir, earlier)?;
        done.retain(|done| done.range.end <= identity.stop + 1 && done.partial.is_of(dir.chain()));
        let (mut segments, mut next) = (Vec::new(), 1);
        let kept = done.iter().map(|done| done.range);
        for range in kept.chain([HeightRange::new(identity.stop + 1, identity.stop + 1)]) {
            segments.extend(pass::divided(request, dir, HeightRange::new(next, range.start)));
            segments.extend((!range.is_empty()).then_some(range));
            next = range.end;
        }
        let plan = Plan { identity, secret: earlier.secret.clone(), segments };
        let workdir = Workdir::change(request.workdir, &plan, &done)?;
        if !done.is_empty() {
            let (segments, of) = (done.len(), plan.segments.len());
            request.observer.event(Event::Resumed { segments, of });
        }
        Ok((workdir, plan, done))
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
        let pass = Gather::new(request.params, dir.chain(), fingerprint_key(plan));
        let job = Job { request, source: dir, pass: &pass, input: &|range| Ok(range) };
        request.observer.event(Event::Started(Phase::Blocks));
        let done = pass::run(&job, &Threads, workdir, segments, done)?;
        let whole = pass::whole(&pass, workdir, &done)?;
        let stop = segments.last().map_or(0, |last| last.end - 1);
        let Gathered { counts, .. } = pass.conclude(&whole, stop)?;
        request.observer.event(Event::Ended { phase: Phase::Blocks, bytes: counts.bytes });
        Ok((done, counts))
    }

    /// The join and the second walk, as far as no earlier start did them.
    fn join_and_judge(
        &self,
        workdir: &Workdir<'_>,
        plan: &Plan,
        done: &[Done<Gathered>],
        durable: bool,
    ) -> Result<(Joined, Scripts, Option<DraftWithBlocks>), SyncError> {
        let (request, assume_valid) = (self.request, self.options.assume_valid);
        let earlier = Record::read(workdir)?;
        let keep = earlier.iter().flat_map(Record::names).collect();
        workdir.clear_scratch_but(&keep)?;
        let durable = durable || earlier.is_some();
        let mut record = match earlier {
            Some(record) => record,
            None => {
                let joined = join(request, done, durable)?;
                let record = Record { joined, judged: 0, assume_valid };
                if durable {
                    record.write(workdir)?;
                }
                record
            }
        };
        if record.assume_valid != assume_valid {
            (record.judged, record.assume_valid) = (0, assume_valid);
        }
        let sum_key = sum_key(plan);
        let mut keeper = self.keeper(&mut record, plan.last(), sum_key)?;
        let mut progress = Judging { record, durable, saved_at: Instant::now() };
        let scripts = self.walk(workdir, plan, done, &mut progress, keeper.as_mut())?;
        let with_blocks = keeper.map(Keeper::end).transpose()?;
        Ok((progress.record.joined, scripts, with_blocks))
    }

    /// What keeps blocks, if they are to be. Where it lacks some that were judged, they are judged anew.
    fn keeper(
        &self,
        record: &mut Record,
        end: Height,
        sum_key: CoinSumKey,
    ) -> Result<Option<Keeper>, SyncError> {
        let (request, options, dir) = (self.request, self.options, self.dir);
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
        done: &[Done<Gathered>],
        progress: &mut Judging,
        keeper: Option<&mut Keeper>,
    ) -> Result<Scripts, SyncError> {
        let (key, sum_key) = (fingerprint_key(plan), sum_key(plan));
        let end = done.last().map_or(0, |last| last.range.end - 1);
        Walk { work: self, workdir, key, done, sum_key, end }.judge(progress, keeper)
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
        let (_, mut done) = Workdir::resume::<Gather>(self.request.workdir, plan)?;
        done.retain(|done| segments.contains(&done.range));
        Ok(self.gather(workdir, plan, &segments, done)?.0)
    }

    /// Judges the blocks of some segments, from the first block on, only to know whether they pass.
    fn judge_all(
        &self,
        workdir: &Workdir<'_>,
        plan: &Plan,
        done: &[Done<Gathered>],
    ) -> Result<(), SyncError> {
        let joined = join(self.request, done, false)?;
        let record = Record { joined, judged: 0, assume_valid: None };
        let mut progress = Judging { record, durable: false, saved_at: Instant::now() };
        self.walk(workdir, plan, done, &mut progress, None).map(|_| ())
    }
}

impl Merged<'_> {
    /// Hands the coins to the set's hashes and the sinks, and their places to the hints.
    pub(crate) fn write_out(
        &mut self,
        request: &Request<'_>,
    ) -> Result<(Put, CoinTotals), SyncError> {
        let set = self.set;
        let places = folders::places(request);
        let with_blocks = self.with_blocks.take();
        let mut sinks = folders::sinks(request, &*self.dir, set, &places, with_blocks)?;
        let mut drafts = Vec::new();
        for output in request.outputs {
            match output.kind {
                OutputKind::Snapshot => {
                    sinks.push(Box::new(SnapshotSink::create(
                        &*output.storage,
                        &output.name,
                        set,
                    )?));
                }
                OutputKind::Hints => drafts.push(self.draft_hints(request, output)?),
            }
        }
        let (coins, bytes) = (self.joined.coins.clone(), self.joined.coin_bytes());
        let put = put_set(request, set, sinks, SetMuHash::Compute, bytes, |each| {
            merge_all(request, coins, each)
        })?;
        drafts.into_iter().try_for_each(|(draft, file)| draft.publish(file))?;
        let coins = put.totals();
        Ok((put, coins))
    }

    /// Writes a hintsfile that has no name yet.
    fn draft_hints<'o>(
        &self,
        request: &Request<'_>,
        output: &'o Output,
    ) -> Result<(Draft<'o>, Box<dyn StorageFile>), SyncError> {
        let Output { storage, name, .. } = output;
        let (draft, file) = Draft::create(&**storage, name)?;
        let failed = |error| SyncError::Hints { file: storage.describe(name), error };
        let out = BufWriter::with_capacity(1 << 18, file);
        let mut writer = HintsWriter::new(out, self.set.height).map_err(failed)?;
        let budget = MergeBudget::new(request.memory_bytes / 4);
        let runs = self.joined.places.clone();
        let mut places = Merging::<Places>::open(request.workdir, runs, budget, &|| Ok(()))?;
        places.next()?;
        let mut indices = Vec::new();
        for height in 1..=self.set.height {
            indices.clear();
            while let Some((_, index)) = places.current().map(place).filter(|it| it.0 == height) {
                indices.push(index);
                places.next()?;
            }
            writer.put(&indices).map_err(failed)?;
        }
        places.close()?;
        let out = writer.finish().map_err(failed)?;
        let file = out.into_inner().map_err(std::io::IntoInnerError::into_error);
        Ok((draft, file.at(&**storage, name)?))
    }
}

/// The key of the run's fingerprints, a part of what is secret in the plan.
fn fingerprint_key(plan: &Plan) -> FingerprintKey {
    FingerprintKey::new(*plan.secret.0.first_chunk().expect("there are more bytes"))
}

/// The key of its sums of coins, another part.
fn sum_key(plan: &Plan) -> CoinSumKey {
    CoinSumKey::new(*plan.secret.0.last_chunk().expect("there are more bytes"))
}

/// Height and index of a place.
fn place(record: &[u8]) -> (Height, u32) {
    let number = |at: usize| record[at..].first_chunk().map_or(0, |it| u32::from_be_bytes(*it));
    (number(0), number(4))
}

impl From<GatherError> for SyncError {
    /// The walk over blocks gives each once, so what is told is that it did not.
    fn from(error: GatherError) -> Self {
        let (GatherError::Unexpected(height) | GatherError::Missing(height)) = error;
        let range = HeightRange::new(height, height + 1);
        crate::error::SourceError::Incomplete { range }.into()
    }
}
