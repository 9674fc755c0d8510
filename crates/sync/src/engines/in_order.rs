//! The in-order engine: connects blocks by ascending height through the `utxo` engine, which looks up each
//! coin and checks every rule.
//!
//! Worker threads read, check and prepare blocks [ahead](crate::supply::in_order); the calling thread connects
//! them. Coins become durable in flushes. After each flush the store is at a block, and the
//! [record](crate::workdir::record) in the work folder has the totals at that block. A later start resumes at
//! the store's block, and first disconnects blocks if the chain has changed since. The source chooses the best
//! chain; if one of its blocks proves invalid or is unavailable, the sync continues along another chain if
//! there is one.

pub(crate) mod chains;
mod chainstate;
mod coins;
pub(crate) mod datadir_writer;
mod fill;
mod layers;
mod taken_up;
mod totals;

pub use chainstate::{Chainstate, ChainstateOptions};
pub use taken_up::record_of_set;
pub use totals::ChainstateError;
pub use totals::Totals;

use crate::engines::swiftsync::Counts;
use crate::engines::swiftsync::aggregate::AggregateKind;
use crate::error::{IoError, SyncError, UsageError};
use crate::pass::{leave_witnesses, may_leave_witnesses, needs_blocks};
use crate::progress::{Event, PROGRESS_INTERVAL, Phase, Progress, stop_if_interrupted};
use crate::request::{
    ConnectOptions, Engine, HintsProof, Request, ScriptCounts, Validation, first_of_last,
};
use crate::sink::SetInfo;
use crate::sink::datadir::DraftWithBlocks;
use crate::source::ChainSource;
use crate::supply::in_order::{InOrder, take_in_order};
use crate::supply::{total, weight_of};
use crate::workdir::Workdir;
use crate::workdir::names::RECORD;
use crate::workdir::record::{ConnectedAt, Identity, Record};
use apus_chain::{CoinSum, CoinSumKey, Height, HeightRange, KnownBlock, ScriptChecks};
use apus_engine::utxo::{CoinsStore, ConnectContext, PreparedBlock};
pub use datadir_writer::{BlockWithUndo, DatadirWriter};
use datadir_writer::{put_undo, warn_of_missing};
pub(crate) use fill::BaseRuns;
use fill::{fill, sum_of_base};
use std::sync::Arc;
use std::time::Instant;
use taken_up::{expect_no_folders, own_record, take_up, warn_of_record};

/// Number of checkpoint intervals between flushes. A flush writes coins that would otherwise be spent in
/// memory, so it waits longer than the segments of the other engines.
const INTERVALS_BETWEEN_FLUSHES: u32 = 30;

/// Undo data is kept for this many blocks below the end: one week, longer than any reorganisation of the main
/// chain so far. For lower blocks it is kept only if the source knows a chain that forks off there.
const UNDO_BLOCKS: Height = 1008;

/// Upper estimate of a coin's average size, to check for free disk space: most have a script of 20 to 34
/// bytes, and about eight more bytes.
const COIN_BYTES: u64 = 64;

/// Coins to start from, produced with hints or by joining.
pub(crate) struct BaseCoins {
    /// The block after which these coins are unspent.
    pub(crate) at: KnownBlock,
    /// The runs with the coins.
    pub(crate) runs: BaseRuns,
    /// Number of coins.
    pub(crate) coins: u64,
    /// How much was processed up to that block.
    pub(crate) counts: Counts,
    /// The aggregate that proved them; `None` if every block was validated under every rule.
    pub(crate) aggregate: Option<AggregateKind>,
    /// Number of blocks up to that block whose scripts were run.
    pub(crate) scripts: u64,
    /// Number of blocks up to that block whose witnesses were not read.
    pub(crate) unseen: u64,
}

/// A sync that connects blocks.
struct InOrderSync<'a> {
    request: &'a Request<'a>,
    dir: Arc<dyn ChainSource + 'a>,
    checks: ScriptChecks,
    /// The last block of this chain whose witnesses are not read: never above the height in the record.
    unseen: Height,
    end: Height,
    record: Record,
    state: Chainstate,
    flushed_at: Instant,
    keeper: Option<DatadirWriter>,
    /// The height up to which blocks were weighed, and their total weight.
    weighed: (Height, u64),
}

/// The set that the connected blocks produced, in its store.
pub(crate) struct ConnectedSet<'a> {
    pub(crate) dir: Arc<dyn ChainSource + 'a>,
    pub(crate) store: Arc<dyn CoinsStore>,
    pub(crate) set: SetInfo,
    pub(crate) counts: Counts,
    /// How the connected blocks were validated, and the blocks below them that the sync started from.
    pub(crate) validation: Validation,
    /// The key of the coins' sum, and the sum.
    key: CoinSumKey,
    sum: Option<CoinSum>,
    /// The data directory, if it already has the blocks.
    with_blocks: Option<DraftWithBlocks>,
}

/// Connects the blocks above `base`, or all of them.
pub(crate) fn run<'a>(
    request: &'a Request<'a>,
    dir: Arc<dyn ChainSource + 'a>,
    base: Option<BaseCoins>,
) -> Result<ConnectedSet<'a>, SyncError> {
    let options = request.expect_connect()?;
    // Blocks that were validated without being connected count as connected.
    let is_joined = base.as_ref().is_some_and(|base| base.aggregate.is_none());
    let aggregate = base.as_ref().and_then(|base| base.aggregate);
    let unseen_below = base.as_ref().map_or(0, |base| base.unseen);
    let has_base = base.is_some();
    let mut connecting = InOrderSync::open(request, options, dir, base)?;
    request.env.observer.event(Event::Started(Phase::Connect));
    let before = connecting.state.totals().counts.bytes;
    connecting.connect_all()?;
    let totals = *connecting.state.totals();
    let counts = totals.counts;
    let bytes = counts.bytes.saturating_sub(before);
    request.env.observer.event(Event::Ended { phase: Phase::Connect, bytes });
    let Identity { unseen, from: first, .. } = connecting.record.identity;
    let unseen = u64::from((unseen.min(connecting.end) + 1).saturating_sub(first)) + unseen_below;
    let from = if is_joined { 1 } else { connecting.record.identity.from };
    let end = connecting.end;
    let (key, sum) = (connecting.record.key, connecting.state.sum());
    let base = connecting.state.tip().hash;
    let with_blocks = connecting.keeper.map(DatadirWriter::end).transpose()?;
    let (store, dir) = (connecting.state.into_store(), connecting.dir);
    request.env.observer.event(Event::MemoryFreed);
    let set = SetInfo {
        network: request.env.params.network,
        height: end,
        base,
        coins: totals.coins,
        coin_bytes: totals.coins.saturating_mul(COIN_BYTES),
        transactions: counts.transactions,
    };
    let assumed = u64::from(end + 1 - from) - totals.scripts;
    let below = (from > 1).then(|| {
        let height = from - 1;
        KnownBlock { height, hash: dir.chain().hash(height).copied().unwrap_or_default() }
    });
    let validation = Validation {
        engine: Engine::Utxo,
        hints: HintsProof { aggregate, ..HintsProof::default() },
        connected_from: Some(from),
        // Coins that no earlier blocks of this sync produced were found in the store.
        trusted: below.filter(|_| !has_base),
        scripts: ScriptCounts { run: totals.scripts, assumed },
        unseen_witnesses: unseen,
    };
    Ok(ConnectedSet { dir, store, set, counts, validation, key, sum, with_blocks })
}

impl<'a> InOrderSync<'a> {
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
        let (mut store, mut earlier) = (None, Record::read(request.env.workdir)?);
        let mut is_taken_up = false;
        if let (Some(place), None) = (&options.beyond, &base) {
            let opened = (options.store)()?;
            match (opened.tip()?, &earlier) {
                // The coins of an earlier start are gone, so this one connects all blocks itself.
                (None, _) => earlier = None,
                (Some(tip), None) => {
                    earlier = Some(take_up(request, options, place, (&*opened, tip), &*dir)?);
                    is_taken_up = true;
                }
                (Some(_), Some(_)) => {}
            }
            store = Some(opened);
        }
        let from = match (&base, &earlier, &options.beyond) {
            (Some(base), _, _) => base.at.height + 1,
            (None, Some(record), Some(place)) => {
                expect_no_folders(request, place, record)?;
                if record.taken_up {
                    warn_of_record(request, place);
                }
                record.identity.from
            }
            _ => 1,
        };
        let before = earlier.as_ref().map(|it| it.identity.unseen);
        let unseen = leave_witnesses(request, &*dir, before);
        let (network, assume_valid) = (request.env.params.network, options.assume_valid);
        // Keep the earlier start's height: this chain may skip fewer witnesses, and the next one more.
        let most = before.filter(|_| may_leave_witnesses(request, &*dir)).unwrap_or(unseen);
        let identity = Identity { network, assume_valid, unseen: most, from };
        if base.is_none() && Workdir::read_plan(request.env.workdir)?.is_some() {
            return Err(request.env.other_run("with hints, or with mergesync"));
        }
        if let Some(what) = earlier.as_ref().and_then(|it| it.identity.difference(&identity)) {
            return Err(match &options.beyond {
                Some(place) if is_taken_up => SyncError::usage(format!(
                    "{place} was made by a sync of {what}: continue with the options of that sync, or use another \
                     name after the slash"
                )),
                _ => request.env.other_run(what),
            });
        }
        let checks = ScriptChecks::new(request.env.params, chain, options.assume_valid);
        let pool_above = |height: Height| {
            let any_scripts = (height + 1..=end).any(|height| checks.needed(height));
            any_scripts.then(|| request.env.signatures.pool(request.env.threads)).transpose()
        };
        // If this build cannot run scripts, fail now, before writing anything.
        let mut scripts = if earlier.is_none() { pool_above(from - 1)? } else { None };
        let store = store.map_or_else(|| (options.store)(), Ok)?;
        let genesis = KnownBlock { height: 0, hash: request.env.params.genesis_hash };
        let is_new = earlier.is_none();
        let mut record = earlier.map_or_else(|| Record::new(identity), Ok)?;
        let mut base = base;
        // A store whose coins were discarded is at the genesis block and has no coins. An earlier start may have
        // recorded that it would fill it.
        let waits = record
            .at
            .iter()
            .all(|it| it.sum.is_none() && base.as_ref().is_some_and(|base| it.block == base.at));
        let is_empty = |at: KnownBlock| at == genesis && base.is_some() && waits;
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
            Some(place) => SyncError::usage(format!(
                "{place} was written by another sync (tip {} at height {}): use the --workdir of that sync, a new \
                 --workdir to take the coins up where they are, or another name after the slash",
                tip.hash, tip.height
            )),
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
            return Err(match &options.beyond {
                Some(place) => SyncError::usage(format!(
                    "{place} is already at block {}, above block {end}, where this sync would end: leave out \
                     --stopatheight or give a higher one, or use another name after the slash for a new store",
                    tip.height
                )),
                None => request.env.other_run(format!("it is already at block {}", tip.height)),
            });
        }
        if !is_new {
            // If the chain has changed, or a node's folder needs the last blocks, blocks below the tip are connected
            // again.
            let again = match chain.hash(tip.height) == Some(&tip.hash) {
                true if needs_blocks(request, &*dir) => first_of_last(end).min(tip.height + 1),
                true => tip.height + 1,
                false => from,
            };
            scripts = pool_above(again.max(from) - 1)?;
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
        let keeper = DatadirWriter::start(request, options, &*dir, from, tip, end, record.key)?;
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

    /// Selects the undo data to keep while the block at a height is connected or disconnected.
    fn keep_undo_for(&mut self, height: Height) {
        let always = self.end.saturating_sub(UNDO_BLOCKS);
        let tip = self.state.tip().height;
        let needed = [tip, height].into_iter().filter_map(|tip| self.dir.undo_needed(tip)).min();
        self.state.set_undo_from(needed.map_or(always, |needed| needed.min(always)));
    }

    /// Connects all blocks up to the end.
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
        let mut reported_at = Instant::now();
        loop {
            let next = ahead.next();
            if next.is_err() {
                // If a block below proves invalid, report that one.
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
            if reported_at.elapsed() >= PROGRESS_INTERVAL {
                reported_at = Instant::now();
                self.tell(total);
            }
        }
        self.state.settle()?;
        self.tell(total);
        Ok(())
    }

    /// Passes the connected blocks to the writer that keeps them.
    fn keep(&mut self) -> Result<(), SyncError> {
        let connected = self.state.take_connected();
        let mut connected = connected.into_iter().map(BlockWithUndo::from);
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
            // The previous cache generation is freed, and the next one is still small.
            self.request.env.observer.event(Event::MemoryFreed);
            self.flushed_at = Instant::now();
        }
        Ok(())
    }

    /// Makes all connected blocks durable.
    fn flush(&mut self) -> Result<(), SyncError> {
        // Blocks that still wait for a verdict would move the tip past the recorded one.
        let settled = self.state.settle();
        self.note_flush()?;
        self.state.flush()?;
        Ok(settled?)
    }

    /// Records the store's current block and its block after the flush. The previous flush must have finished.
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
        if self.request.connect().is_some_and(|connect| connect.beyond.is_some()) {
            self.state.keep_with_coins(own_record(&self.record, at));
        }
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
        let Totals { counts: Counts { blocks, bytes, .. }, coins, .. } = *self.state.totals();
        let progress = Progress { blocks, bytes, coins, weight, ..total };
        self.request.env.observer.event(Event::Progress(Phase::Connect, progress));
    }
}

impl From<ChainstateError> for SyncError {
    fn from(error: ChainstateError) -> Self {
        Self::Chainstate { error: Box::new(error) }
    }
}
