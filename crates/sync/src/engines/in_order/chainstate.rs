//! [`Chainstate`]: the set of coins at a block, moved from block to block.
//!
//! A block is connected in two steps. [`Chainstate::begin`] checks everything but scripts and
//! leaves the block *pending*: its effect is a layer over the cache, which the next block already
//! sees, while the cache itself is as it was. Once the scripts' verdict is there the effect goes
//! into the cache; if it is against the block, the layer goes, and with it those above. So an
//! invalid block leaves no trace.
//!
//! Which block comes next, and whether its scripts are to be run, is for the caller to say.

use super::totals::ChainstateError;
use apus_engine::utxo::cache::CoinsCache;
use apus_engine::utxo::fetch::{Fetching, PrevoutFetcher};
use apus_engine::utxo::store::{CoinsStore, StoreError, UndoRecord};

use super::layers::{Layer, Layers};
use super::totals::Totals;
use apus_chain::{
    BlockHash, CheckedBlock, CoinSum, CoinSumKey, Height, KnownBlock, OutPoint, Params,
};
use apus_engine::coin::CoinBytes;
use apus_engine::connect::rules::{
    Spent, asks_for_bip30, bip30_error, check, may_repeat, outputs_of,
};
use apus_engine::connect::undo::{coins_added, shared_undo, undo_delta};
use apus_engine::connect::{BlockChange, RunningSum, created};
use apus_engine::connect::{
    CoinChange, CoinsDelta, ConnectContext, ConnectError, Connected, PreparedBlock, UndoBytes,
};
use apus_engine::script::{ScriptFailure, ScriptPool, Verdict};
use apus_engine::utxo::view::CoinsView;
use std::collections::VecDeque;
use std::sync::Arc;

/// Blocks that may wait for the verdict on their scripts: enough that no thread runs out of work
/// where a large block follows small ones.
const PENDING_MAX: usize = 4;

/// Blocks whose coins may be on their way at once.
const PREFETCHES_MAX: usize = 2;

/// Memory for coins with long scripts that were fetched before they are needed, in bytes: half of that
/// for changed coins, and not less or more than these.
const AHEAD_BYTES_MIN: u64 = 4 << 20;
const AHEAD_BYTES_MAX: u64 = 64 << 20;

/// Of coins with long scripts that a block spends, room is made for so much at a time, in bytes. Few blocks spend as
/// much.
const HEAVY_STEP: u64 = 8 << 20;

/// How a chain state works.
#[derive(Debug)]
pub struct ChainstateOptions {
    /// Memory for coins, and for undo data until it is flushed, in bytes.
    pub cache_bytes: u64,
    /// Threads that fetch coins; 0 to look each up where it is needed.
    pub prevout_threads: usize,
    /// Runs scripts; none where none are to be run.
    pub scripts: Option<ScriptPool>,
}

/// A block whose scripts are still running, or that waits behind one.
struct PendingBlock {
    layer: Layer,
    block: Arc<PreparedBlock>,
    undo: UndoBytes,
    /// None where no scripts are run.
    verdict: Option<Verdict>,
    /// Memory that it holds for its scripts and its undo data, beside the block.
    held: u64,
    /// Coins more after it than before.
    coins: i64,
    /// What it comes to, where the sum of coins is kept.
    change: BlockChange,
}

/// Memory of the coins with long scripts that are gathered for a block, beside what pending blocks hold, for which the
/// cache makes room.
struct Heavy {
    held: u64,
    /// Room is there for less than this of the block's own.
    next: u64,
}

impl Heavy {
    fn add(&mut self, bytes: usize, cache: &CoinsCache) -> Result<(), StoreError> {
        self.held += bytes as u64;
        if self.held < self.next {
            return Ok(());
        }
        self.next = self.held + HEAVY_STEP;
        cache.make_room_beside(self.next)
    }
}

/// Coins that a block overwrites (BIP-30).
#[derive(Default)]
struct Overwritten {
    coins: i64,
    sum: CoinSum,
}

/// A block's coins on their way, and the blocks that were known when that began.
struct Prefetch {
    hash: BlockHash,
    fetching: Fetching,
    from: u64,
}

/// The set of coins at a block.
pub struct Chainstate {
    params: Params,
    store: Arc<dyn CoinsStore>,
    cache: Arc<CoinsCache>,
    fetcher: PrevoutFetcher,
    /// What may be fetched ahead, and what pending blocks may hold if they are several, in bytes.
    ahead_bytes: u64,
    scripts: Option<ScriptPool>,
    tip: KnownBlock,
    totals: Totals,
    /// The sum of the coins at the tip, where the caller wants it.
    sum: Option<RunningSum>,
    pending: VecDeque<PendingBlock>,
    /// Effects that a fetch under way may not have seen; they are in the cache, or pending.
    recent: VecDeque<Layer>,
    /// How many blocks were connected, to number their layers.
    number: u64,
    prefetches: VecDeque<Prefetch>,
    undo: Vec<UndoRecord>,
    undo_bytes: usize,
    undo_from: Height,
    /// Blocks connected and not taken yet, where the caller wants them.
    connected: Option<Vec<Connected>>,
}

impl Chainstate {
    /// Opens the state that `store` has; a new one is at the genesis block.
    pub fn open(
        params: &Params,
        store: Arc<dyn CoinsStore>,
        options: ChainstateOptions,
    ) -> Result<Self, ChainstateError> {
        let genesis = KnownBlock { height: 0, hash: params.genesis_hash };
        let tip = store.tip()?.unwrap_or(genesis);
        let ahead = (options.cache_bytes / 2).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX);
        let fetcher = PrevoutFetcher::new(options.prevout_threads, ahead)
            .map_err(|error| ChainstateError::Threads(error.to_string()))?;
        Ok(Self {
            params: params.clone(),
            cache: Arc::new(CoinsCache::new(Arc::clone(&store), options.cache_bytes)),
            store,
            fetcher,
            ahead_bytes: ahead,
            scripts: options.scripts,
            tip,
            totals: Totals::default(),
            sum: None,
            pending: VecDeque::new(),
            recent: VecDeque::new(),
            number: 0,
            prefetches: VecDeque::new(),
            undo: Vec::new(),
            undo_bytes: 0,
            undo_from: 0,
            connected: None,
        })
    }

    /// The block that the set is at; blocks that are pending do not count yet.
    pub fn tip(&self) -> &KnownBlock {
        &self.tip
    }

    /// What was processed up to the tip.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Says what was processed up to the tip by others.
    pub fn set_totals(&mut self, totals: Totals) {
        self.totals = totals;
    }

    /// From now on the sum of all coins is kept, which is `sum` at the tip.
    pub fn keep_sum(&mut self, key: CoinSumKey, sum: CoinSum) {
        self.sum = Some(RunningSum { key, sum });
    }

    /// The sum of the coins at the tip, where it is kept: what the store has to have once all is written.
    pub fn sum(&self) -> Option<CoinSum> {
        self.sum.map(|sum| sum.sum)
    }

    /// Whether there is a pool that runs scripts.
    pub fn has_scripts(&self) -> bool {
        self.scripts.is_some()
    }

    /// Sets the pool that runs scripts, where blocks to come need one.
    pub fn set_scripts(&mut self, pool: ScriptPool) {
        self.scripts = Some(pool);
    }

    /// From which height on undo data is kept; before this is called, all is.
    pub fn set_undo_from(&mut self, height: Height) {
        self.undo_from = height;
    }

    /// From now on every connected block is kept for [`take_connected`](Self::take_connected),
    /// which the caller asks often enough to bound what that holds.
    pub fn keep_connected(&mut self) {
        self.connected = Some(Vec::new());
    }

    /// The blocks connected since this was last asked, in their order. Those that are pending come
    /// later, or never.
    pub fn take_connected(&mut self) -> Vec<Connected> {
        self.connected.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The cache, to look at.
    pub fn cache(&self) -> &CoinsCache {
        &self.cache
    }

    /// Begins to fetch what a block spends, before the blocks below it are all connected. It should
    /// be the next one to be connected, or the one after that.
    pub fn prefetch(&mut self, block: &Arc<PreparedBlock>) {
        let hash = block.id().hash;
        if self.prefetches.iter().any(|prefetch| prefetch.hash == hash) {
            return;
        }
        let fetch = self.fetch(block);
        self.prefetches.push_back(fetch);
        if self.prefetches.len() > PREFETCHES_MAX {
            self.prefetches.pop_front();
        }
    }

    fn fetch(&self, block: &PreparedBlock) -> Prefetch {
        let view = Arc::new(Layers::new(&self.pending_layers(), &self.cache));
        let fetching = self.fetcher.start(view, block.wanted().to_vec());
        Prefetch { hash: block.id().hash, fetching, from: self.number }
    }

    fn pending_layers(&self) -> Vec<Layer> {
        self.pending.iter().map(|pending| pending.layer.clone()).collect()
    }

    /// Connects a block and waits for its verdict. A block that was given before and is pending is
    /// judged first.
    pub fn connect(
        &mut self,
        block: CheckedBlock,
        context: &ConnectContext<'_>,
    ) -> Result<(), ChainstateError> {
        self.begin(Arc::new(PreparedBlock::new(&self.params, block)), context)?;
        self.settle()
    }

    /// Begins to connect the block after the tip, or after the last one that is pending. On an error
    /// no block is pending any more, and the tip is the last valid one.
    pub fn begin(
        &mut self,
        block: Arc<PreparedBlock>,
        context: &ConnectContext<'_>,
    ) -> Result<(), ChainstateError> {
        let begun = self.try_begin(block, context);
        match begun {
            Ok(()) => {
                self.settle_to(PENDING_MAX)?;
                // Who holds much is waited for: what is left of it then is undo data, which makes a flush due.
                while self.held() > self.ahead_bytes {
                    self.settle_one()?;
                }
                Ok(())
            }
            Err(error) => {
                // A block below that proves invalid is the one to tell of.
                self.prefetches.clear();
                self.settle()?;
                Err(error)
            }
        }
    }

    /// What the pending blocks hold.
    fn held(&self) -> u64 {
        self.pending.iter().map(|pending| pending.held).sum()
    }

    fn try_begin(
        &mut self,
        block: Arc<PreparedBlock>,
        context: &ConnectContext<'_>,
    ) -> Result<(), ChainstateError> {
        let id = block.id();
        self.expect_next(&block)?;
        let invalid = |error: ConnectError| ChainstateError::Invalid { block: id, error };
        let overwritten = match may_repeat(&self.params) {
            true => self.look_for_bip30(&block, context)?,
            false => Overwritten::default(),
        };
        let keeps_undo = id.height >= self.undo_from || self.connected.is_some();
        // Long scripts are for those who run them, and for undo data. A block that may spend a quarter of
        // a gigabyte of them would hold them all.
        let (spent, taken) = self.gather(&block, keeps_undo || context.check_scripts)?;
        let mut batch = match (&self.scripts, context.check_scripts) {
            (_, false) => None,
            (Some(scripts), true) => {
                Some(scripts.begin(self.params.block_script_flags(id.height, &id.hash)))
            }
            (None, true) => return Err(apus_engine::script::NoInterpreter.into()),
        };
        if let Err(error) = check(&self.params, &block, context, &spent, batch.as_mut()) {
            // Where this was not asked yet: Core asks it first, so it comes before that error.
            self.look_for_bip30(&block, context)?;
            return Err(invalid(error));
        }
        let undo = match keeps_undo {
            true => shared_undo(block.block().bytes().view(), &spent.coins),
            false => UndoBytes::default(),
        };
        self.number += 1;
        let layer = Layer { number: self.number, delta: Arc::clone(block.delta()) };
        if !self.prefetches.is_empty() {
            self.recent.push_back(layer.clone());
        }
        let coins = coins_added(block.delta()) - overwritten.coins;
        let mut change = self.sum.map(|sum| sum.change(&block, taken)).unwrap_or_default();
        change.set.sub(overwritten.sum);
        let verdict = batch.map(apus_engine::script::ScriptBatch::finish);
        let heavy: usize = spent.coins.iter().map(CoinBytes::heap_bytes).sum();
        // What undo data shares is shared with these coins.
        let held = (undo.own_bytes() + heavy) as u64;
        self.pending.push_back(PendingBlock { layer, block, undo, verdict, held, coins, change });
        // What needs no verdict, and waits behind none, is decided.
        while self.pending.front().is_some_and(|pending| pending.verdict.is_none()) {
            self.settle_one()?;
        }
        Ok(())
    }

    /// Refuses a block that does not follow the last one.
    fn expect_next(&self, block: &PreparedBlock) -> Result<(), ChainstateError> {
        let last = self.pending.back().map_or(self.tip, |pending| pending.block.id());
        let id = block.id();
        let follows = block.block().bytes().view().prev() == last.hash;
        match follows && id.height == last.height + 1 {
            true => Ok(()),
            false => Err(ChainstateError::NotAtTip { block: id.hash, tip: last }),
        }
    }

    /// Looks whether an output exists already, where BIP-30 asks for it. In one of the two blocks
    /// that may overwrite, says which coins are.
    fn look_for_bip30(
        &self,
        block: &Arc<PreparedBlock>,
        context: &ConnectContext<'_>,
    ) -> Result<Overwritten, ChainstateError> {
        let id = block.id();
        let mut found = Overwritten::default();
        let repeats = self.params.is_bip30_repeat(id.height, &id.hash);
        if !repeats && !asks_for_bip30(&self.params, id, context) {
            return Ok(found);
        }
        let outputs = outputs_of(block.block().bytes().txs());
        let view = Arc::new(Layers::new(&self.pending_layers(), &self.cache));
        let mut fetching =
            self.fetcher.start(view, outputs.iter().map(|output| output.1).collect());
        for (index, output) in outputs.into_iter().enumerate() {
            let Some(coin) = fetching.take(index)? else { continue };
            if !repeats {
                let error = bip30_error(output);
                return Err(ChainstateError::Invalid { block: id, error });
            }
            found.coins += 1;
            if let Some(sum) = &self.sum {
                found.sum.add(sum.key.coin(&output.1, coin.as_bytes()));
            }
        }
        Ok(found)
    }

    /// The coins that a block spends, `whole` or without long scripts, and what those of the set come to
    /// where its sum is kept.
    fn gather(
        &mut self,
        block: &PreparedBlock,
        whole: bool,
    ) -> Result<(Spent, CoinSum), ChainstateError> {
        let hash = block.id().hash;
        let at = self.prefetches.iter().position(|prefetch| prefetch.hash == hash);
        let prefetched = at.and_then(|at| self.prefetches.remove(at));
        let Prefetch { mut fetching, from, .. } = match prefetched {
            Some(prefetch) => prefetch,
            None => self.fetch(block),
        };
        // What came after the fetch began knows better.
        let newer: Vec<&Layer> =
            self.recent.iter().rev().filter(|layer| layer.number > from).collect();
        let wanted = block.wanted();
        let mut taken = self.sum.as_ref().map(RunningSum::taken);
        let mut heavy = Heavy { held: self.held(), next: HEAVY_STEP };
        let spent = Spent::gather(block, |index| {
            let known = newer.iter().find_map(|layer| layer.delta.get(&wanted[index]));
            let coin = match known {
                Some(coin) => coin.cloned(),
                None => fetching.take(index)?,
            };
            if let (Some(taken), Some(coin)) = (&mut taken, &coin) {
                taken.add(&wanted[index], coin.as_bytes());
            }
            let coin = coin.map(|coin| if whole { coin } else { coin.without_long_script() });
            heavy.add(coin.as_ref().map_or(0, CoinBytes::heap_bytes), &self.cache)?;
            Ok::<_, StoreError>(coin)
        })?;
        let oldest = self.prefetches.iter().map(|prefetch| prefetch.from).min();
        self.recent.retain(|layer| oldest.is_some_and(|oldest| layer.number > oldest));
        Ok((spent, taken.map(|taken| taken.sum()).unwrap_or_default()))
    }

    /// Waits for the verdicts on all pending blocks. The first invalid one is the error; the tip is
    /// then the block before it, and nothing is pending.
    pub fn settle(&mut self) -> Result<(), ChainstateError> {
        self.settle_to(0)
    }

    fn settle_to(&mut self, pending_max: usize) -> Result<(), ChainstateError> {
        while self.pending.len() > pending_max {
            self.settle_one()?;
        }
        Ok(())
    }

    fn settle_one(&mut self) -> Result<(), ChainstateError> {
        let Some(pending) = self.pending.pop_front() else { return Ok(()) };
        let PendingBlock { layer, block, undo, verdict, held: _, coins, change } = pending;
        let id = block.id();
        let run = verdict.is_some();
        let connected = self.connected.as_ref().map(|_| undo.clone());
        let undo = self.way_back(id, undo, &change);
        let settled = match verdict.map_or(Ok(()), Verdict::wait) {
            Ok(()) => self.apply(&layer, undo.as_ref()),
            Err(failure) => Err(script_error(&block, &failure)),
        };
        if let Err(error) = settled {
            // The blocks above stand on this one.
            self.pending.clear();
            self.recent.clear();
            self.prefetches.clear();
            return Err(error);
        }
        self.tip = id;
        self.totals.add(block.counts(), coins, run);
        if let Some(running) = &mut self.sum {
            running.sum.add(change.set);
        }
        if let (Some(all), Some(undo)) = (&mut self.connected, connected) {
            all.push(Connected { block, undo, spent: change.spent });
        }
        self.undo.extend(undo.map(|bytes| UndoRecord { block: id, bytes }));
        Ok(())
    }

    /// What is kept of a block, if it is to be undone: its undo data, and behind them the sum of the coins that they
    /// bring back, where sums are kept. A store that changes one of these coins is then found out where it
    /// matters, and not after blocks were judged by it: the sum of the set would take what came back for right.
    fn way_back(&self, id: KnownBlock, undo: UndoBytes, change: &BlockChange) -> Option<UndoBytes> {
        // What was begun when none was wanted has none.
        if id.height < self.undo_from || undo.is_empty() {
            return None;
        }
        Some(match &self.sum {
            Some(_) => undo.followed_by(&change.taken.to_bytes()),
            None => undo,
        })
    }

    /// Puts a block's effect into the cache, which makes room for its undo data too.
    fn apply(&mut self, layer: &Layer, undo: Option<&UndoBytes>) -> Result<(), ChainstateError> {
        let held = undo.map_or(0, UndoBytes::heap_bytes) as isize;
        self.add_undo_bytes(held);
        let applied = self.cache.apply(&layer.delta);
        if applied.is_err() {
            self.add_undo_bytes(-held);
        }
        Ok(applied?)
    }

    /// Goes back from the tip, `block`, to the block before it (Core `validation.cpp`,
    /// `DisconnectBlock`).
    pub fn disconnect(&mut self, block: &CheckedBlock) -> Result<(), ChainstateError> {
        self.settle()?;
        self.prefetches.clear();
        self.recent.clear();
        let id = KnownBlock { height: block.height(), hash: block.hash() };
        if id != self.tip || id.height == 0 {
            return Err(ChainstateError::NotAtTip { block: id.hash, tip: self.tip });
        }
        let held = self.undo.iter().rposition(|record| record.block == id);
        let bytes = match held {
            Some(at) => self.undo[at].bytes.whole().into_owned(),
            None => {
                // It may be on its way to the store.
                self.finish_flush()?;
                self.store.undo(&id.hash)?.ok_or_else(|| ChainstateError::Undo {
                    block: id,
                    what: "is not there".to_owned(),
                })?
            }
        };
        let wrong = |what| ChainstateError::Undo { block: id, what };
        let (delta, taken) = undone(block, &bytes, self.sum.as_ref()).map_err(wrong)?;
        let lost = self.lost_before(id, &delta)?;
        let coins = coins_added(&delta) + lost.len() as i64;
        self.cache.apply(&delta)?;
        if let Some(running) = &mut self.sum {
            running.sum.add(running.back(block, &delta, taken, &lost));
        }
        if let Some(at) = held {
            let bytes = self.undo.remove(at).bytes.heap_bytes();
            self.add_undo_bytes(-(bytes as isize));
        }
        let view = block.bytes().view();
        self.tip = KnownBlock { height: id.height - 1, hash: view.prev() };
        self.totals.take_back(block, coins);
        Ok(())
    }

    /// Which of the coins that are to go are gone: those of a coinbase that was overwritten, once
    /// the block that did it is disconnected (BIP-30; Core `validation.cpp`, `DisconnectBlock`).
    fn lost_before(
        &self,
        id: KnownBlock,
        undo: &CoinsDelta,
    ) -> Result<Vec<OutPoint>, ChainstateError> {
        let mut lost = Vec::new();
        if self.params.is_bip30_unspendable(id.height, &id.hash) {
            for (outpoint, change) in undo.iter() {
                let goes = *change == CoinChange::Spent;
                if goes && self.cache.coin(outpoint)?.is_none() {
                    lost.push(*outpoint);
                }
            }
        }
        Ok(lost)
    }

    /// Whether memory asks for a flush.
    pub fn flush_due(&self) -> bool {
        self.cache.flush_due()
    }

    /// Has undo data that came, or that went, counted with the coins.
    fn add_undo_bytes(&mut self, bytes: isize) {
        self.undo_bytes = self.undo_bytes.saturating_add_signed(bytes);
        self.cache.set_undo_bytes(self.undo_bytes as u64);
    }

    /// Begins to make everything up to the tip durable, in the background.
    pub fn begin_flush(&mut self) -> Result<(), ChainstateError> {
        self.undo_bytes = 0;
        let undo = std::mem::take(&mut self.undo);
        Ok(self.cache.begin_flush(self.tip, undo, self.undo_from)?)
    }

    /// Waits for the flush under way, if there is one.
    pub fn finish_flush(&mut self) -> Result<(), ChainstateError> {
        Ok(self.cache.finish_flush()?)
    }

    /// Makes everything durable, pending blocks included once their verdicts are there.
    pub fn flush(&mut self) -> Result<(), ChainstateError> {
        self.settle()?;
        self.begin_flush()?;
        self.finish_flush()
    }

    /// The store, which has what was flushed.
    pub fn store(&self) -> &dyn CoinsStore {
        &*self.store
    }

    /// Ends all threads and memory, and gives back the store, which has what was flushed.
    pub fn into_store(self) -> Arc<dyn CoinsStore> {
        self.store
    }
}

/// What it does to the coins to disconnect a block by what was kept of it (see [`Chainstate::way_back`]), and
/// the sum of the coins that come back, where sums are kept.
fn undone(
    block: &CheckedBlock,
    kept: &[u8],
    sum: Option<&RunningSum>,
) -> Result<(CoinsDelta, CoinSum), String> {
    let Some(running) = sum else {
        return Ok((undo_delta(block, kept)?, CoinSum::default()));
    };
    let (undo, taken) = kept.split_last_chunk().ok_or("cannot be read: it is cut short")?;
    let (delta, taken) = (undo_delta(block, undo)?, CoinSum::from_bytes(*taken));
    match created(&running.key, &delta) == taken {
        true => Ok((delta, taken)),
        false => Err("has other coins than those that the block spent".to_owned()),
    }
}

/// What a verdict against a block means.
fn script_error(block: &PreparedBlock, failure: &ScriptFailure) -> ChainstateError {
    let id = block.id();
    match ConnectError::of_script(block.block().bytes().view(), failure) {
        Some(error) => ChainstateError::Invalid { block: id, error },
        None => ChainstateError::Script { block: id, what: failure.reason() },
    }
}
