//! Blocks in ascending height through the `utxo` engine: every rule, on coins that are looked up.
//!
//! Worker threads read, check and prepare blocks [ahead](crate::ahead); the calling thread connects
//! them. Coins become durable in flushes, each of which leaves the store at a block; the
//! [record] beside it knows the totals there. A start goes on from the block where the
//! store is, and goes back first where the chain has changed since. Which chain is the best one is
//! settled elsewhere; where a block of it proves invalid, or cannot be had, the run goes on with
//! another one if there is one to go for.

mod coins;
mod hints;
mod keeper;
mod record;

pub use record::RECORD;
pub(crate) use record::Record;

use crate::again::take_again;
use crate::ahead::{Ahead, take_ahead};
use crate::coins::{Put, SetMuHash, merge_all, put_set};
use crate::error::{ErrorKind, SyncError};
use crate::folder::FolderDraft;
use crate::outputs::context;
use crate::plan::Plan;
use crate::progress::{Event, Phase, Progress};
use crate::run::{Outcome, OutputKind, Request, Stop, better_chain, other_chain};
use crate::runs::RunInfo;
use crate::sink::{SetInfo, SnapshotSink, each_coin, folders};
use crate::source::ChainSource;
use crate::undo::warn_of_missing;
use crate::workdir::{Done, Workdir};
use apus_chain::{BlockHash, Height, HeightRange, KnownBlock, ScriptChecks, Txid};
use apus_engine::script::ScriptPool;
use apus_engine::swiftsync::{CoinTotals, Counts, Verdict};
use apus_engine::utxo::store::EachChange;
use apus_engine::utxo::{
    Chainstate, ChainstateError, ChainstateOptions, Changes, CoinBytes, CoinsStore, ConnectContext,
    Connected, Flush, PreparedBlock, StoreError, Totals,
};
use keeper::Keeper;
use record::{At, Identity};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often progress is told.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// A flush writes coins that would have been spent in memory, so it waits longer than the segments
/// of a run in any order: so many checkpoint intervals.
const INTERVALS_BETWEEN_FLUSHES: u32 = 30;

/// After so many chains that were left without one being connected to its end, the run ends.
const CHAINS_LEFT_MAX: u32 = 16;

/// Undo data is kept for so many blocks below the end: a week's, and more than any reorganisation
/// of the main chain took.
const UNDO_BLOCKS: Height = 1008;

/// More than a coin takes on average, to know whether a disk has room: most have a script of 20 to 34
/// bytes, and some eight bytes beside.
const COIN_BYTES: u64 = 64;

/// Opens the coins of a run.
pub type OpenStore<'a> = dyn Fn() -> Result<Arc<dyn CoinsStore>, StoreError> + Sync + 'a;

/// How blocks are connected.
#[derive(Clone)]
pub struct ConnectOptions<'a> {
    /// The block up to which scripts are taken for valid, under Core's conditions; none where all
    /// are to be run.
    pub assume_valid: Option<BlockHash>,
    /// Threads that fetch coins; 0 to look them up where they are needed.
    pub prevout_threads: usize,
    /// Memory for coins, in bytes.
    pub cache_bytes: u64,
    /// Opens the folder of this run's coins, which goes with its progress.
    pub store: &'a OpenStore<'a>,
    /// Where a second pass over the blocks works, which is there if hints are to be written. Goes
    /// with the progress, too.
    pub hints_folder: PathBuf,
    /// The file that notes where blocks lie which go into a data directory. Goes with the progress,
    /// too.
    pub positions: PathBuf,
}

/// Which scripts of connected blocks were run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scripts {
    /// Blocks whose scripts were run.
    pub run: u64,
    /// Blocks whose scripts were taken for valid.
    pub assumed: u64,
}

/// Coins to start from: those that hints led to.
pub(crate) struct Base<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) done: Vec<Done>,
    pub(crate) verdict: Verdict,
}

/// A run that connects blocks.
struct Connecting<'a> {
    request: &'a Request<'a>,
    dir: Arc<dyn ChainSource + 'a>,
    checks: ScriptChecks,
    end: Height,
    record: Record,
    state: Chainstate,
    flushed_at: Instant,
    keeper: Option<Keeper>,
}

/// Connects the blocks above `base`, or all of them, and writes out the set.
pub(crate) fn run<'a>(
    request: &'a Request<'a>,
    dir: Arc<dyn ChainSource + 'a>,
    base: Option<Base<'_>>,
) -> Result<Outcome, SyncError> {
    let options = request.connect.as_ref().ok_or(SyncError::NothingToConnect)?;
    let aggregate = base.as_ref().map(|base| base.verdict.aggregate);
    let mut connecting = Connecting::open(request, options, dir, base)?;
    request.observer.event(Event::Started(Phase::Connect));
    connecting.connect_all()?;
    let totals = *connecting.state.totals();
    request.observer.event(Event::Ended { phase: Phase::Connect, bytes: totals.bytes });
    let (end, from) = (connecting.end, connecting.record.identity.from);
    let stop_hash = connecting.state.tip().hash;
    let with_blocks = connecting.keeper.map(Keeper::end).transpose()?;
    let (store, dir) = (connecting.state.into_store(), connecting.dir);
    let set = SetInfo {
        network: request.params.network,
        height: end,
        base: stop_hash,
        coins: totals.coins,
        coin_bytes: totals.coins.saturating_mul(COIN_BYTES),
    };
    let (put, coins) = write_set(request, &*dir, &*store, set, with_blocks)?;
    hints::write(request, options, &*store, set, &put)?;
    take_again(request, &*dir, &dir.not_kept(end))?;
    dir.complete(end)?;
    Ok(Outcome {
        stop_height: end,
        stop_hash,
        tip_height: dir.chain().tip_height(),
        enough_work: dir.chain().chain_work() >= request.params.minimum_chain_work,
        counts: Counts {
            blocks: totals.blocks,
            bytes: totals.bytes,
            transactions: totals.transactions,
            inputs: totals.inputs,
            outputs: totals.outputs,
        },
        coins,
        muhash: put.muhash,
        hash_serialized_3: put.hash_serialized_3,
        aggregate,
        connected_from: Some(from),
        scripts: Scripts {
            run: totals.scripts,
            assumed: u64::from(end + 1 - from) - totals.scripts,
        },
        in_assumeutxo_table: request.params.assumeutxo_for(&stop_hash).is_some(),
        hints: None,
        folders: put.folders,
    })
}

impl<'a> Connecting<'a> {
    /// Opens the coins of an earlier start, or fills them from `base`.
    fn open(
        request: &'a Request<'a>,
        options: &'a ConnectOptions<'a>,
        dir: Arc<dyn ChainSource + 'a>,
        base: Option<Base<'_>>,
    ) -> Result<Self, SyncError> {
        let chain = dir.chain();
        let end = match request.stop {
            Stop::At(height) => height,
            Stop::AtTip | Stop::AtHints => chain.tip_height(),
        };
        if end > chain.tip_height() {
            let (tip, gap) = (chain.tip_height(), dir.gap().clone());
            return Err(SyncError::StopAboveTip { stop: end, tip, gap });
        }
        if end == 0 {
            return Err(SyncError::NothingToDo);
        }
        let from = base.as_ref().map_or(1, |base| base.plan.identity.stop + 1);
        let identity =
            Identity { network: request.params.network, assume_valid: options.assume_valid, from };
        if base.is_none() && Workdir::read_plan(request.workdir)?.is_some() {
            let what = "with hints".to_owned();
            return Err(SyncError::OtherRun { folder: request.workdir.describe(""), what });
        }
        let earlier = Record::read(request.workdir)?;
        if let Some(what) = earlier.as_ref().and_then(|it| it.identity.difference(&identity)) {
            return Err(SyncError::OtherRun { folder: request.workdir.describe(""), what });
        }
        let checks = ScriptChecks::new(request.params, chain, options.assume_valid);
        let pool_above = |height: Height| {
            let any_scripts = (height + 1..=end).any(|height| checks.needed(height));
            any_scripts.then(|| ScriptPool::new(request.threads)).transpose()
        };
        // A build that cannot run scripts leaves nothing behind.
        let mut scripts = if earlier.is_none() { pool_above(from - 1)? } else { None };
        let store = (options.store)()?;
        let genesis = KnownBlock { height: 0, hash: request.params.genesis_hash };
        let is_new = earlier.is_none();
        let mut record = earlier.unwrap_or(Record { identity, at: Vec::new() });
        if store.tip()?.is_none() {
            record.at = vec![match base {
                Some(base) => fill(request, &*store, base, &record)?,
                None => At { block: genesis, totals: Totals::default() },
            }];
            record.write(request.workdir)?;
        }
        let tip = store.tip()?.unwrap_or(genesis);
        let damaged = || SyncError::WorkdirDamaged { file: request.workdir.describe(RECORD) };
        let totals = record.found_at(&tip).ok_or_else(damaged)?;
        if tip.height > end {
            let what = format!("it is at block {} already", tip.height);
            return Err(SyncError::OtherRun { folder: request.workdir.describe(""), what });
        }
        if !is_new {
            // Where the chain has changed, blocks below the tip are connected anew.
            let stays = chain.hash(tip.height) == Some(&tip.hash);
            scripts = pool_above(if stays { tip.height } else { from - 1 })?;
        }
        let mut state = Chainstate::open(
            request.params,
            store,
            ChainstateOptions {
                cache_bytes: options.cache_bytes,
                prevout_threads: options.prevout_threads,
                scripts,
            },
        )?;
        state.set_totals(totals);
        state.set_undo_from(end.saturating_sub(UNDO_BLOCKS));
        warn_of_missing(request, &*dir, HeightRange::new(from, tip.height + 1));
        if tip.height > from {
            let of = (end + 1 - from) as usize;
            let segments = (tip.height + 1 - from) as usize;
            request.observer.event(Event::Resumed { segments, of });
        }
        let keeper = Keeper::start(request, options, &*dir, from, tip, end)?;
        if keeper.is_some() || dir.keeps_undo() {
            state.keep_connected();
        }
        let flushed_at = Instant::now();
        Ok(Self { request, dir, checks, end, record, state, flushed_at, keeper })
    }

    /// Connects everything up to the end, and goes on where the source has learnt of more, or where
    /// another chain is to be gone for.
    fn connect_all(&mut self) -> Result<(), SyncError> {
        let (mut reached, mut left) = (false, 0);
        loop {
            self.dir.may_be_left(self.request.follow);
            let connected = self.connect();
            // Also what came before an invalid block or an interruption is worth keeping; the error
            // to tell is the first.
            let kept = self.flush();
            let next = match connected {
                Err(error) => {
                    left += 1;
                    match self.leave(error, left) {
                        // Who follows the tip ends where he is.
                        Err(error)
                            if error.kind() == ErrorKind::Interrupted
                                && reached
                                && self.is_on_chain() =>
                        {
                            self.request.interrupt.store(false, Ordering::Relaxed);
                            self.end = self.state.tip().height;
                            return kept.or_else(|error| self.without_invalid_end(error));
                        }
                        other => {
                            let other = other?;
                            kept?;
                            Some(other)
                        }
                    }
                }
                Ok(()) => {
                    kept?;
                    (reached, left) = (true, 0);
                    self.dir.reached_tip();
                    better_chain(self.request, self.dir.chain())?
                }
            };
            match next {
                Some(dir) => self.go_on(dir)?,
                None => return Ok(()),
            }
        }
    }

    /// What a flush failed with is no error where one ends in any case, if it is an invalid block:
    /// the one before it is the tip then, and is durable.
    fn without_invalid_end(&self, error: SyncError) -> Result<(), SyncError> {
        let is_of_block =
            |error: &ChainstateError| matches!(error, ChainstateError::Invalid { .. });
        if !matches!(&error, SyncError::Chainstate { error } if is_of_block(error)) {
            return Err(error);
        }
        let (height, hash) = (self.end, self.state.tip().hash);
        let warning = format!("{error}. The run ends at block {height} ({hash})");
        self.request.observer.event(Event::Warning(warning));
        Ok(())
    }

    /// Another chain, where the one that is gone for fails with `error`. The error, if there is none.
    fn leave(&self, error: SyncError, left: u32) -> Result<Arc<dyn ChainSource + 'a>, SyncError> {
        if left > CHAINS_LEFT_MAX {
            return Err(error);
        }
        let other = other_chain(self.request, self.dir.chain(), &error)?;
        let Some(other) = other else { return Err(error) };
        let (tip, height) = (other.chain().tip_hash(), other.chain().tip_height());
        let warning = format!("{error}. The run goes on to block {height} ({tip})");
        self.request.observer.event(Event::Warning(warning));
        Ok(other)
    }

    /// Whether a run that follows the tip may end where it is.
    fn is_on_chain(&self) -> bool {
        let tip = self.state.tip();
        self.request.follow && self.dir.chain().hash(tip.height) == Some(&tip.hash)
    }

    /// Goes on with another chain, of more work or less.
    fn go_on(&mut self, dir: Arc<dyn ChainSource + 'a>) -> Result<(), SyncError> {
        let (chain, request) = (dir.chain(), self.request);
        if let Stop::At(stop) = request.stop
            && stop > chain.tip_height()
        {
            let (tip, gap) = (chain.tip_height(), dir.gap().clone());
            return Err(SyncError::StopAboveTip { stop, tip, gap });
        }
        self.end = match request.stop {
            Stop::At(height) => height,
            Stop::AtTip | Stop::AtHints => chain.tip_height(),
        };
        self.checks = ScriptChecks::new(request.params, chain, self.record.identity.assume_valid);
        let first = self.record.identity.from;
        if !self.state.has_scripts() && (first..=self.end).any(|height| self.checks.needed(height))
        {
            self.state.set_scripts(ScriptPool::new(request.threads)?);
        }
        self.state.set_undo_from(self.end.saturating_sub(UNDO_BLOCKS));
        let tip = *chain.tip_hash();
        request.observer.event(Event::Tip { height: self.end, tip });
        self.dir = dir;
        Ok(())
    }

    /// Connects everything up to the end.
    fn connect(&mut self) -> Result<(), SyncError> {
        self.go_back()?;
        let (request, dir) = (self.request, Arc::clone(&self.dir));
        let prepare = |block| Arc::new(PreparedBlock::new(request.params, block));
        let range = HeightRange::new(self.state.tip().height + 1, self.end + 1);
        take_ahead(request, &*dir, range, &prepare, |ahead| self.take_all(ahead))
    }

    fn take_all(&mut self, ahead: &Ahead<Arc<PreparedBlock>>) -> Result<(), SyncError> {
        let total = self.total();
        let mut told_at = Instant::now();
        loop {
            let next = ahead.next();
            if next.is_err() {
                // A block below that proves invalid is the one to tell of.
                self.state.settle()?;
            }
            let Some((height, block)) = next? else { break };
            if self.request.interrupt.load(Ordering::Relaxed) {
                return Err(SyncError::Interrupted);
            }
            if let Some(following) = ahead.peek(Arc::clone) {
                self.state.prefetch(&following);
            }
            let context = ConnectContext {
                ancestry: self.dir.chain(),
                check_scripts: self.checks.needed(height),
            };
            self.state.begin(block, &context)?;
            self.keep()?;
            self.flush_if_due()?;
            if told_at.elapsed() >= PROGRESS_INTERVAL {
                told_at = Instant::now();
                self.tell(total);
            }
        }
        self.state.settle()?;
        self.tell(total);
        Ok(())
    }

    /// Disconnects blocks until the tip is one of the chain.
    fn go_back(&mut self) -> Result<(), SyncError> {
        let (dir, from) = (Arc::clone(&self.dir), *self.state.tip());
        let chain = dir.chain();
        loop {
            let KnownBlock { height, hash } = *self.state.tip();
            if chain.hash(height) == Some(&hash) {
                break;
            }
            // It was checked when it was connected, and lock times against another chain's times.
            let context = apus_chain::BlockContext {
                hash,
                median_time_past: u32::MAX,
                ..context(self.request.params, chain, self.request.verifier, height)
            };
            let (mut checker, mut block) = (apus_chain::BlockChecker::new(), None);
            self.dir.block_by_hash(&hash, &mut |raw| {
                block = checker.check_owned(raw.to_vec(), &context).ok();
                block.is_some()
            })?;
            let block = block.ok_or(SyncError::StaleBlock { height, hash })?;
            self.state.disconnect(&block)?;
        }
        let to = *self.state.tip();
        if self.keeper.is_some() && to != from {
            // The coins first: a start finds at least the blocks that they came of.
            self.flush()?;
            if let Some(keeper) = &mut self.keeper {
                keeper.keep_only(to.height)?;
            }
        }
        Ok(())
    }

    /// Hands the blocks that are connected to whoever keeps them.
    fn keep(&mut self) -> Result<(), SyncError> {
        match &mut self.keeper {
            Some(keeper) => keeper.put(self.state.take_connected()),
            None if self.dir.keeps_undo() => {
                self.state.take_connected().iter().try_for_each(|Connected { block, undo }| {
                    let view = block.block().bytes();
                    let header = apus_chain::Header::parse(view.view().header());
                    self.dir.put_undo(&block.id().hash, &header.prev, undo)
                })
            }
            None => Ok(()),
        }
    }

    fn flush_if_due(&mut self) -> Result<(), SyncError> {
        let interval = self.request.checkpoint_interval * INTERVALS_BETWEEN_FLUSHES;
        if self.state.flush_due() || self.flushed_at.elapsed() >= interval {
            self.note_flush()?;
            self.state.begin_flush()?;
            self.flushed_at = Instant::now();
        }
        Ok(())
    }

    /// Makes everything durable that is connected.
    fn flush(&mut self) -> Result<(), SyncError> {
        // Blocks that still wait for a verdict would move the tip behind what is noted.
        let settled = self.state.settle();
        self.note_flush()?;
        self.state.flush()?;
        Ok(settled?)
    }

    /// Writes down where the store is and where it goes. What is under way must have arrived.
    fn note_flush(&mut self) -> Result<(), SyncError> {
        self.state.finish_flush()?;
        self.keep()?;
        if let Some(keeper) = &mut self.keeper {
            keeper.sync()?;
        }
        self.dir.sync()?;
        let at = At { block: *self.state.tip(), totals: *self.state.totals() };
        let last = self.record.at.pop();
        self.record.at = last.into_iter().filter(|last| last.block != at.block).collect();
        self.record.at.push(at);
        self.record.write(self.request.workdir)
    }

    fn total(&self) -> Progress {
        let heights = (1..=self.end).filter(|_| self.dir.knows_sizes());
        let bytes_total = heights.map(|height| self.dir.block_bytes(height)).sum();
        Progress { blocks_total: u64::from(self.end), bytes_total, ..Progress::default() }
    }

    fn tell(&self, total: Progress) {
        let totals = self.state.totals();
        let (blocks, bytes, coins) = (totals.blocks, totals.bytes, totals.coins);
        let progress = Progress { blocks, bytes, coins, ..total };
        self.request.observer.event(Event::Progress(Phase::Connect, progress));
    }
}

/// Fills an empty store with the coins that hints led to.
fn fill(
    request: &Request<'_>,
    store: &dyn CoinsStore,
    base: Base<'_>,
    record: &Record,
) -> Result<At, SyncError> {
    let Base { plan, done, verdict } = base;
    let counts = verdict.counts;
    let totals = Totals {
        blocks: counts.blocks,
        bytes: counts.bytes,
        transactions: counts.transactions,
        inputs: counts.inputs,
        outputs: counts.outputs,
        scripts: 0,
        coins: verdict.coins.coins,
    };
    let tip = KnownBlock { height: plan.identity.stop, hash: plan.identity.stop_hash };
    let at = At { block: tip, totals };
    Record { at: vec![at], ..record.clone() }.write(request.workdir)?;
    let runs: Vec<RunInfo> = done.into_iter().map(|done| done.run).collect();
    let changes = Merged { request, runs, failure: std::sync::Mutex::new(None) };
    let written = store.write(&Flush { tip, changes: &changes, undo: &[], undo_from: tip.height });
    let failure = changes.failure.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    match failure {
        Some(error) => Err(error),
        None => Ok(written.map(|()| at)?),
    }
}

/// The coins of all runs, as changes of an empty store.
struct Merged<'a> {
    request: &'a Request<'a>,
    runs: Vec<RunInfo>,
    /// What is none of the store's errors.
    failure: std::sync::Mutex<Option<SyncError>>,
}

impl Changes for Merged<'_> {
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        let mut stored = Ok(());
        let merged = merge_all(self.request, self.runs.clone(), &mut |record| {
            for (txid, group) in crate::runs::records(record) {
                put_group(txid, group, each, &mut stored)?;
            }
            match &stored {
                Ok(()) => Ok(()),
                Err(error) => Err(SyncError::Coins(error.clone())),
            }
        });
        stored?;
        merged.map_err(|error| {
            let mut failure =
                self.failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            *failure = Some(error);
            StoreError::Stopped
        })
    }
}

/// Gives the coins of one transaction away, in ascending order of vouts.
fn put_group(
    txid: Txid,
    group: &[u8],
    each: &mut EachChange<'_>,
    stored: &mut Result<(), StoreError>,
) -> Result<(), SyncError> {
    let mut coins = Vec::new();
    each_coin(txid, group, |outpoint, coin| coins.push((outpoint, CoinBytes::new(coin))))
        .map_err(|error| SyncError::Group { txid, error })?;
    coins.sort_unstable_by_key(|(outpoint, _)| outpoint.vout);
    for (outpoint, coin) in &coins {
        if stored.is_ok() {
            *stored = each(outpoint, Some(coin));
        }
    }
    Ok(())
}

/// Hands the coins of a store to the set's hashes and the sinks. `with_blocks` is the data directory
/// where the blocks are already.
fn write_set(
    request: &Request<'_>,
    dir: &dyn ChainSource,
    store: &dyn CoinsStore,
    set: SetInfo,
    with_blocks: Option<FolderDraft>,
) -> Result<(Put, CoinTotals), SyncError> {
    let places = folders::places(request);
    let mut sinks = folders::sinks(request, dir, set, &places, with_blocks)?;
    for output in request.outputs.iter().filter(|output| output.kind == OutputKind::Snapshot) {
        sinks.push(Box::new(SnapshotSink::create(&*output.storage, &output.name, set)?));
    }
    let put = put_set(request, set, sinks, SetMuHash::Compute, 0, |each| {
        coins::store_records(store, each)
    })?;
    let stats = put.stats.unwrap_or_default();
    let coins = CoinTotals {
        coins: stats.coins,
        transactions: stats.transactions,
        amount: stats.total_amount,
        bogosize: stats.bogosize,
    };
    Ok((put, coins))
}

fn write_draft_error(path: &Path, error: std::io::Error) -> SyncError {
    SyncError::Storage { file: path.display().to_string(), error }
}

impl From<ChainstateError> for SyncError {
    fn from(error: ChainstateError) -> Self {
        Self::Chainstate { error: Box::new(error) }
    }
}
