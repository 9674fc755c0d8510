//! Blocks in ascending height through the `utxo` engine: every rule, on coins that are looked up.
//!
//! Worker threads read, check and prepare blocks [ahead](crate::supply::in_order); the calling thread connects
//! them. Coins become durable in flushes, each of which leaves the store at a block; the
//! [record](crate::workdir::record) beside it knows the totals there. A start goes on from the block where the
//! store is, and goes back first where the chain has changed since. Which chain is the best one is
//! settled elsewhere; where a block of it proves invalid, or cannot be had, the run goes on with
//! another one if there is one to go for.

pub(crate) mod chains;
mod chainstate;
mod coins;
mod fill;
pub(crate) mod keeper;
mod layers;
mod totals;

pub use chainstate::{Chainstate, ChainstateOptions};
pub use totals::ChainstateError;
pub use totals::Totals;

use crate::engines::swiftsync::Counts;
use crate::engines::swiftsync::aggregate::AggregateKind;
use crate::error::{IoError, SyncError, UsageError};
use crate::pass::{leave_witnesses, may_leave_witnesses};
use crate::progress::{Event, PROGRESS_INTERVAL, Phase, Progress, stop_if_interrupted};
use crate::request::{
    ConnectOptions, Engine, HintsProof, Request, ScriptCounts, Validation, first_of_last,
};
use crate::sink::SetInfo;
use crate::sink::datadir::DraftWithBlocks;
use crate::source::ChainSource;
use crate::supply::in_order::{InOrder, take_in_order};
use crate::supply::{total, weight_of};
use crate::workdir::names::RECORD;
use crate::workdir::record::{ConnectedAt, Identity, Record};
use crate::workdir::{RunInfo, Workdir};
use apus_chain::{CoinSum, CoinSumKey, Height, HeightRange, KnownBlock, ScriptChecks};
use apus_engine::script::ScriptPool;
use apus_engine::utxo::{CoinsStore, ConnectContext, PreparedBlock};
use fill::{fill, sum_of_base};
pub use keeper::{Keeper, KeptBlock};
use keeper::{put_undo, warn_of_missing};
use std::sync::Arc;
use std::time::Instant;

/// A flush writes coins that would have been spent in memory, so it waits longer than the segments
/// of a run in any order: so many checkpoint intervals.
const INTERVALS_BETWEEN_FLUSHES: u32 = 30;

/// Undo data is kept for so many blocks below the end: a week's, and more than any reorganisation
/// of the main chain took. For others it is kept where the source knows of a chain to go back to.
const UNDO_BLOCKS: Height = 1008;

/// More than a coin takes on average, to know whether a disk has room: most have a script of 20 to 34
/// bytes, and some eight bytes beside.
const COIN_BYTES: u64 = 64;

/// Coins to start from: those that hints led to, or joining.
pub(crate) struct BaseCoins {
    /// The block whose coins they are.
    pub(crate) at: KnownBlock,
    /// Their runs.
    pub(crate) runs: Vec<RunInfo>,
    /// How many they are.
    pub(crate) coins: u64,
    /// How much was processed up to there.
    pub(crate) counts: Counts,
    /// By which they were proven; none where every block was judged by every rule.
    pub(crate) aggregate: Option<AggregateKind>,
    /// Blocks up to there whose scripts were run.
    pub(crate) scripts: u64,
    /// Blocks up to there whose witnesses were left alone.
    pub(crate) unseen: u64,
}

/// A run that connects blocks.
struct Connecting<'a> {
    request: &'a Request<'a>,
    dir: Arc<dyn ChainSource + 'a>,
    checks: ScriptChecks,
    /// The last block of this chain whose witnesses are left alone: no more than the record says.
    unseen: Height,
    end: Height,
    record: Record,
    state: Chainstate,
    flushed_at: Instant,
    keeper: Option<Keeper>,
    /// Up to which height blocks are weighed, and what they come to.
    weighed: (Height, u64),
}

/// The set that connecting led to, in its store.
pub(crate) struct ConnectedSet<'a> {
    pub(crate) dir: Arc<dyn ChainSource + 'a>,
    pub(crate) store: Arc<dyn CoinsStore>,
    pub(crate) set: SetInfo,
    pub(crate) counts: Counts,
    /// How they were validated, and the blocks below that the run began with.
    pub(crate) validation: Validation,
    /// Under which the coins were added up, and their sum.
    key: CoinSumKey,
    sum: Option<CoinSum>,
    /// The data directory where the blocks are already.
    with_blocks: Option<DraftWithBlocks>,
}

/// Connects the blocks above `base`, or all of them.
pub(crate) fn run<'a>(
    request: &'a Request<'a>,
    dir: Arc<dyn ChainSource + 'a>,
    base: Option<BaseCoins>,
) -> Result<ConnectedSet<'a>, SyncError> {
    let options = request.expect_connect()?;
    let aggregate = base.as_ref().and_then(|base| base.aggregate);
    let unseen_below = base.as_ref().map_or(0, |base| base.unseen);
    let mut connecting = Connecting::open(request, options, dir, base)?;
    request.env.observer.event(Event::Started(Phase::Connect));
    let before = connecting.state.totals().bytes;
    connecting.connect_all()?;
    let totals = *connecting.state.totals();
    let bytes = totals.bytes.saturating_sub(before);
    request.env.observer.event(Event::Ended { phase: Phase::Connect, bytes });
    let Identity { unseen, from: first, .. } = connecting.record.identity;
    let unseen = u64::from((unseen.min(connecting.end) + 1).saturating_sub(first)) + unseen_below;
    // What was judged without being connected is as good.
    let from = aggregate.map_or(1, |_| connecting.record.identity.from);
    let end = connecting.end;
    let (key, sum) = (connecting.record.key, connecting.state.sum());
    let base = connecting.state.tip().hash;
    let with_blocks = connecting.keeper.map(Keeper::end).transpose()?;
    let (store, dir) = (connecting.state.into_store(), connecting.dir);
    request.env.observer.event(Event::MemoryFreed);
    let set = SetInfo {
        network: request.env.params.network,
        height: end,
        base,
        coins: totals.coins,
        coin_bytes: totals.coins.saturating_mul(COIN_BYTES),
        transactions: totals.transactions,
    };
    let counts = Counts {
        blocks: totals.blocks,
        bytes: totals.bytes,
        transactions: totals.transactions,
        inputs: totals.inputs,
        outputs: totals.outputs,
    };
    let assumed = u64::from(end + 1 - from) - totals.scripts;
    let validation = Validation {
        engine: Engine::Utxo,
        hints: HintsProof { aggregate, ..HintsProof::default() },
        connected_from: Some(from),
        scripts: ScriptCounts { run: totals.scripts, assumed },
        unseen_witnesses: unseen,
    };
    Ok(ConnectedSet { dir, store, set, counts, validation, key, sum, with_blocks })
}

impl<'a> Connecting<'a> {
    /// Opens the coins of an earlier start, or fills them from `base`.
    fn open(
        request: &'a Request<'a>,
        options: &'a ConnectOptions<'a>,
        dir: Arc<dyn ChainSource + 'a>,
        base: Option<BaseCoins>,
    ) -> Result<Self, SyncError> {
        let chain = dir.chain();
        let end = request.stop.end_in(&*dir)?;
        if end == 0 {
            return Err(SyncError::Usage(UsageError::NothingToDo));
        }
        let from = base.as_ref().map_or(1, |base| base.at.height + 1);
        let earlier = Record::read(request.env.workdir)?;
        let before = earlier.as_ref().map(|it| it.identity.unseen);
        let unseen = leave_witnesses(request, &*dir, before);
        let (network, assume_valid) = (request.env.params.network, options.assume_valid);
        // On the chain of now they may be fewer, and on the next one more again.
        let most = before.filter(|_| may_leave_witnesses(request, &*dir)).unwrap_or(unseen);
        let identity = Identity { network, assume_valid, unseen: most, from };
        if base.is_none() && Workdir::read_plan(request.env.workdir)?.is_some() {
            return Err(request.env.other_run("with hints, or by mergesync"));
        }
        if let Some(what) = earlier.as_ref().and_then(|it| it.identity.difference(&identity)) {
            return Err(request.env.other_run(what));
        }
        let checks = ScriptChecks::new(request.env.params, chain, options.assume_valid);
        let pool_above = |height: Height| {
            let any_scripts = (height + 1..=end).any(|height| checks.needed(height));
            any_scripts.then(|| ScriptPool::new(request.env.threads)).transpose()
        };
        // A build that cannot run scripts leaves nothing behind.
        let mut scripts = if earlier.is_none() { pool_above(from - 1)? } else { None };
        let store = (options.store)()?;
        let genesis = KnownBlock { height: 0, hash: request.env.params.genesis_hash };
        let is_new = earlier.is_none();
        let mut record = earlier.map_or_else(|| Record::new(identity), Ok)?;
        let mut base = base;
        // One whose coins were given up is at the genesis block, and has none.
        let is_empty = |at: KnownBlock| at == genesis && base.is_some() && is_new;
        if store.tip()?.is_none_or(is_empty) {
            record.at = vec![match base.take() {
                Some(base) => fill(&request.env, &*store, base, &record)?,
                None => ConnectedAt {
                    block: genesis,
                    totals: Totals::default(),
                    sum: Some(CoinSum::default()),
                },
            }];
            record.write(request.env.workdir)?;
        }
        let tip = store.tip()?.unwrap_or(genesis);
        let damaged = || match &options.beyond {
            Some(place) => {
                SyncError::Usage(UsageError::CoinsOfOtherRun { place: place.clone(), at: tip })
            }
            None => SyncError::Io(IoError::WorkdirDamaged {
                file: request.env.workdir.describe(RECORD),
            }),
        };
        let ConnectedAt { totals, sum, .. } = record.found_at(&tip).ok_or_else(damaged)?;
        let sum = match (sum, base) {
            (Some(sum), _) => sum,
            (None, Some(base)) => sum_of_base(&request.env, base, record.key)?,
            (None, None) => return Err(damaged()),
        };
        if tip.height > end {
            return Err(request.env.other_run(format!("it is at block {} already", tip.height)));
        }
        if !is_new {
            // Where the chain has changed, blocks below the tip are connected anew.
            let stays = chain.hash(tip.height) == Some(&tip.hash);
            scripts = pool_above(if stays { tip.height } else { from - 1 })?;
        }
        let mut state = Chainstate::open(
            request.env.params,
            store,
            ChainstateOptions {
                cache_bytes: options.cache_bytes,
                prevout_threads: options.prevout_threads,
                scripts,
            },
        )?;
        state.set_totals(totals);
        state.keep_sum(record.key, sum);
        let below_last = first_of_last(end).min(tip.height + 1).max(from);
        warn_of_missing(&request.env, &*dir, HeightRange::new(from, below_last));
        if tip.height > from {
            let of = (end + 1 - from) as usize;
            let segments = (tip.height + 1 - from) as usize;
            request.env.observer.event(Event::Resumed { segments, of });
        }
        let keeper = Keeper::start(request, options, &*dir, from, tip, end, record.key)?;
        if keeper.is_some() || dir.archive().is_some() {
            state.keep_connected();
        }
        let flushed_at = Instant::now();
        let weighed = (0, 0);
        let mut connecting =
            Self { request, dir, checks, unseen, end, record, state, flushed_at, keeper, weighed };
        connecting.keep_undo_for(tip.height);
        Ok(connecting)
    }

    /// Says which undo data is kept while the block at a height is connected, or gone back to.
    fn keep_undo_for(&mut self, height: Height) {
        let always = self.end.saturating_sub(UNDO_BLOCKS);
        let tip = self.state.tip().height;
        let needed = [tip, height].into_iter().filter_map(|tip| self.dir.undo_needed(tip)).min();
        self.state.set_undo_from(needed.map_or(always, |needed| needed.min(always)));
    }

    /// Connects everything up to the end.
    fn connect(&mut self) -> Result<(), SyncError> {
        self.go_back()?;
        let (request, dir) = (self.request, Arc::clone(&self.dir));
        let key = self.record.key;
        let prepare = |block| Arc::new(PreparedBlock::with_sums(request.env.params, block, &key));
        let range = HeightRange::new(self.state.tip().height + 1, self.end + 1);
        take_in_order(&request.env, &*dir, (range, self.unseen), &prepare, |ahead| {
            self.take_all(ahead)
        })
    }

    fn take_all(&mut self, ahead: &InOrder<Arc<PreparedBlock>>) -> Result<(), SyncError> {
        let total = total(&*self.dir, 1..=self.end);
        let mut told_at = Instant::now();
        loop {
            let next = ahead.next();
            if next.is_err() {
                // A block below that proves invalid is the one to tell of.
                self.state.settle()?;
            }
            let Some((height, block)) = next? else { break };
            stop_if_interrupted(self.request.env.interrupt)?;
            if let Some(following) = ahead.peek(Arc::clone) {
                self.state.prefetch(&following);
            }
            self.keep_undo_for(height);
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

    /// Hands the blocks that are connected to what keeps them.
    fn keep(&mut self) -> Result<(), SyncError> {
        let connected = self.state.take_connected();
        let mut connected = connected.into_iter().map(KeptBlock::from);
        match (&mut self.keeper, self.dir.archive()) {
            (Some(keeper), _) => connected.try_for_each(|block| keeper.put(block)),
            (None, Some(to)) => {
                connected.try_for_each(|block| put_undo(to, &block, self.record.key))
            }
            (None, None) => Ok(()),
        }
    }

    fn flush_if_due(&mut self) -> Result<(), SyncError> {
        let interval = self.request.env.checkpoint_interval * INTERVALS_BETWEEN_FLUSHES;
        if self.state.flush_due() || self.flushed_at.elapsed() >= interval {
            self.note_flush()?;
            self.state.begin_flush()?;
            // The generation before is gone, and the next one only begins to grow.
            self.request.env.observer.event(Event::MemoryFreed);
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
        let (block, totals, sum) = (*self.state.tip(), *self.state.totals(), self.state.sum());
        let at = ConnectedAt { block, totals, sum };
        let last = self.record.at.pop();
        self.record.at = last.into_iter().filter(|last| last.block != at.block).collect();
        self.record.at.push(at);
        self.record.write(self.request.env.workdir)
    }

    fn tell(&mut self, total: Progress) {
        let tip = self.state.tip().height;
        if self.weighed.0 > tip {
            self.weighed = (0, 0);
        }
        let above = HeightRange::new(self.weighed.0 + 1, tip + 1);
        self.weighed = (tip, self.weighed.1 + weight_of(&*self.dir, above));
        let weight = self.weighed.1;
        let totals = self.state.totals();
        let (blocks, bytes, coins) = (totals.blocks, totals.bytes, totals.coins);
        let progress = Progress { blocks, bytes, coins, weight, ..total };
        self.request.env.observer.event(Event::Progress(Phase::Connect, progress));
    }
}

impl From<ChainstateError> for SyncError {
    fn from(error: ChainstateError) -> Self {
        Self::Chainstate { error: Box::new(error) }
    }
}
