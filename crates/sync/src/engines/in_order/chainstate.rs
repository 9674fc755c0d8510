//! [`Chainstate`]: the set of coins at a block, moved from block to block.
//!
//! A block is connected in two steps. [`Chainstate::begin`] checks everything but scripts and leaves the block
//! *pending*: its effect is a layer over the cache, which the next block already sees, while the cache itself
//! is unchanged. Once the scripts have passed, the effect goes into the cache; if they fail, the block's layer
//! is dropped, with all layers above it. So an invalid block does not change the set.
//!
//! The caller decides which block comes next, and whether to run its scripts.

use super::totals::ChainstateError;
use apus_engine::utxo::cache::CoinsCache;
use apus_engine::utxo::fetch::{CoinsFetch, PrevoutFetcher};
use apus_engine::utxo::store::{CoinsStore, StoreError, UndoRecord};

use super::layers::{Layer, Layers};
use super::totals::Totals;
use apus_chain::{
    BlockHash, CheckedBlock, CoinSum, CoinSumKey, Height, KnownBlock, OutPoint, Params,
};
use apus_engine::coin::CoinBytes;
use apus_engine::connect::rules::{
    BlockPrevouts, asks_for_bip30, bip30_error, check, may_repeat, outputs_of,
};
use apus_engine::connect::undo::{coins_added, shared_undo, undo_delta};
use apus_engine::connect::{BlockChange, RunningSum, created};
use apus_engine::connect::{
    CoinChange, CoinsDelta, ConnectContext, ConnectError, ConnectedBlock, PreparedBlock, UndoBytes,
};
use apus_engine::script::{ScriptFailure, ScriptPool, Verdict};
use apus_engine::utxo::view::CoinsView;
use std::collections::VecDeque;
use std::sync::Arc;

/// Blocks that may wait for the verdict on their scripts: enough that no thread runs out of work when a large
/// block follows small ones.
const PENDING_MAX: usize = 4;

/// Blocks whose coins may be fetched at the same time.
const PREFETCHES_MAX: usize = 2;

/// Limits of the memory for coins with long scripts that are fetched ahead, in bytes. Within these limits it is
/// half of the memory for changed coins.
const AHEAD_BYTES_MIN: u64 = 4 << 20;
const AHEAD_BYTES_MAX: u64 = 64 << 20;

/// Step in which memory is reserved for coins with long scripts that a block spends, in bytes. Few blocks spend
/// this much.
const HEAVY_STEP: u64 = 8 << 20;

/// Options of a [`Chainstate`].
#[derive(Debug)]
pub struct ChainstateOptions {
    /// Memory for coins, and for undo data until it is flushed, in bytes.
    pub cache_bytes: u64,
    /// Threads that fetch coins; 0 to look each coin up when it is needed.
    pub prevout_threads: usize,
    /// Runs scripts; `None` if no scripts are run.
    pub scripts: Option<ScriptPool>,
}

/// A block whose scripts are still running, or that waits behind such a block.
struct PendingBlock {
    layer: Layer,
    block: Arc<PreparedBlock>,
    undo: UndoBytes,
    /// The verdict on its scripts; `None` if they are not run.
    verdict: Option<Verdict>,
    /// Memory that it holds for its scripts and its undo data, besides the block itself.
    held: u64,
    /// Change in the number of coins.
    coins: i64,
    /// Its change to the sum of coins, if that is kept.
    change: BlockChange,
}

/// Memory of the coins with long scripts gathered for a block, in addition to the memory that pending blocks
/// hold. The cache makes room for it.
struct LongScriptMemory {
    held: u64,
    /// The cache makes room again when the block's own coins reach this size.
    next: u64,
}

impl LongScriptMemory {
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

/// The fetch of a block's coins, and the blocks that were known when it began.
struct Prefetch {
    hash: BlockHash,
    fetching: CoinsFetch,
    from: u64,
}

/// The set of coins at a block.
pub struct Chainstate {
    params: Params,
    store: Arc<dyn CoinsStore>,
    cache: Arc<CoinsCache>,
    fetcher: PrevoutFetcher,
    /// Limit, in bytes, for coins fetched ahead, and for the memory that several pending blocks hold together.
    ahead_bytes: u64,
    scripts: Option<ScriptPool>,
    tip: KnownBlock,
    totals: Totals,
    /// The sum of the coins at the tip, if the caller wants it.
    sum: Option<RunningSum>,
    pending: VecDeque<PendingBlock>,
    /// Effects that a fetch in progress may not have seen; they are in the cache, or pending.
    recent: VecDeque<Layer>,
    /// Number of connected blocks, which numbers their layers.
    number: u64,
    prefetches: VecDeque<Prefetch>,
    undo: Vec<UndoRecord>,
    undo_bytes: usize,
    undo_from: Height,
    /// Connected blocks that the caller has not taken yet, if it wants them.
    connected: Option<Vec<ConnectedBlock>>,
}

impl Chainstate {
    /// Opens the state in `store`; a new store is at the genesis block.
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

    /// Returns the block that the set is at; pending blocks do not count yet.
    pub fn tip(&self) -> &KnownBlock {
        &self.tip
    }

    /// Returns the totals up to the tip.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Sets the totals up to the tip, for blocks that this value did not process.
    pub fn set_totals(&mut self, totals: Totals) {
        self.totals = totals;
    }

    /// Starts a running sum of all coins; `sum` is its value at the current tip.
    pub fn keep_sum(&mut self, key: CoinSumKey, sum: CoinSum) {
        self.sum = Some(RunningSum { key, sum });
    }

    /// Returns the sum of the coins at the tip, if it is kept: the store's coins must have this sum once
    /// everything is written.
    pub fn sum(&self) -> Option<CoinSum> {
        self.sum.map(|sum| sum.sum)
    }

    /// Whether there is a pool that runs scripts.
    pub fn has_scripts(&self) -> bool {
        self.scripts.is_some()
    }

    /// Sets the pool that runs scripts, if later blocks need one.
    pub fn set_scripts(&mut self, pool: ScriptPool) {
        self.scripts = Some(pool);
    }

    /// Sets the height from which undo data is kept; by default it is kept for every block.
    pub fn set_undo_from(&mut self, height: Height) {
        self.undo_from = height;
    }

    /// Keeps every connected block from now on for [`take_connected`](Self::take_connected). The caller must
    /// take them often enough to bound the memory.
    pub fn keep_connected(&mut self) {
        self.connected = Some(Vec::new());
    }

    /// Returns the blocks connected since the last call, in order. A later call returns pending blocks, unless
    /// they prove invalid.
    pub fn take_connected(&mut self) -> Vec<ConnectedBlock> {
        self.connected.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns the cache, read-only.
    pub fn cache(&self) -> &CoinsCache {
        &self.cache
    }

    /// Begins to fetch the coins that a block spends, before all blocks below it are connected. The block
    /// should be the next to connect, or the one after that.
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

    /// Connects a block and waits for its verdict. Waits for the verdicts on earlier pending blocks first.
    pub fn connect(
        &mut self,
        block: CheckedBlock,
        context: &ConnectContext<'_>,
    ) -> Result<(), ChainstateError> {
        self.begin(Arc::new(PreparedBlock::new(&self.params, block)), context)?;
        self.settle()
    }

    /// Begins to connect the block after the tip, or after the last pending block. On an error no block is
    /// pending any more, and the tip is the last valid block.
    pub fn begin(
        &mut self,
        block: Arc<PreparedBlock>,
        context: &ConnectContext<'_>,
    ) -> Result<(), ChainstateError> {
        let begun = self.try_begin(block, context);
        match begun {
            Ok(()) => {
                self.settle_to(PENDING_MAX)?;
                // Wait while pending blocks hold much memory: any memory still in use after that is undo data,
                // which makes a flush due.
                while self.held() > self.ahead_bytes {
                    self.settle_one()?;
                }
                Ok(())
            }
            Err(error) => {
                // If a block below proves invalid, report that one.
                self.prefetches.clear();
                self.settle()?;
                Err(error)
            }
        }
    }

    /// Memory that the pending blocks hold.
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
        // Long scripts are needed only to run scripts and for undo data. Otherwise a block that spends a
        // quarter of a gigabyte of them would hold them all.
        let (spent, taken) = self.gather(&block, keeps_undo || context.check_scripts)?;
        let mut batch = match (&self.scripts, context.check_scripts) {
            (_, false) => None,
            (Some(scripts), true) => {
                Some(scripts.begin(id, self.params.block_script_flags(id.height, &id.hash)))
            }
            (None, true) => return Err(apus_engine::script::NoInterpreter.into()),
        };
        if let Err(error) = check(&self.params, &block, context, &spent, batch.as_mut()) {
            // Check BIP-30 now, if it was not checked yet: Core checks it first, so it takes precedence over
            // this error.
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
        // Undo data shares memory with these coins.
        let held = (undo.own_bytes() + heavy) as u64;
        self.pending.push_back(PendingBlock { layer, block, undo, verdict, held, coins, change });
        // A block that needs no verdict, and does not wait behind another, can be applied now.
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

    /// Fails if an output of the block already exists, where BIP-30 forbids that. For the two blocks that may
    /// overwrite coins, returns the overwritten coins.
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

    /// Gathers the coins that a block spends, `whole` or without long scripts. If the sum is kept, also sums
    /// the coins that come from the set.
    fn gather(
        &mut self,
        block: &PreparedBlock,
        whole: bool,
    ) -> Result<(BlockPrevouts, CoinSum), ChainstateError> {
        let hash = block.id().hash;
        let at = self.prefetches.iter().position(|prefetch| prefetch.hash == hash);
        let prefetched = at.and_then(|at| self.prefetches.remove(at));
        let Prefetch { mut fetching, from, .. } = match prefetched {
            Some(prefetch) => prefetch,
            None => self.fetch(block),
        };
        // Layers newer than the fetch take precedence.
        let newer: Vec<&Layer> =
            self.recent.iter().rev().filter(|layer| layer.number > from).collect();
        let wanted = block.wanted();
        let mut taken = self.sum.as_ref().map(RunningSum::taken);
        let mut heavy = LongScriptMemory { held: self.held(), next: HEAVY_STEP };
        let spent = BlockPrevouts::gather(block, |index| {
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

    /// Waits for the verdicts on all pending blocks. Fails on the first invalid one; the tip is then the
    /// block before it, and nothing is pending.
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
            // The blocks above build on this one.
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
            all.push(ConnectedBlock { block, undo, spent: change.spent });
        }
        self.undo.extend(undo.map(|bytes| UndoRecord { block: id, bytes }));
        Ok(())
    }

    /// The data kept to undo a block, if any: its undo data, followed by the sum of the coins that it restores,
    /// if sums are kept. That sum detects a store that changed one of these coins, before blocks are validated
    /// against it; the sum of the whole set would accept any restored coins.
    fn way_back(&self, id: KnownBlock, undo: UndoBytes, change: &BlockChange) -> Option<UndoBytes> {
        // A block begun while the caller wanted no undo data has none.
        if id.height < self.undo_from || undo.is_empty() {
            return None;
        }
        Some(match &self.sum {
            Some(_) => undo.followed_by(&change.taken.to_bytes()),
            None => undo,
        })
    }

    /// Applies a block's effect to the cache, which makes room for its undo data too.
    fn apply(&mut self, layer: &Layer, undo: Option<&UndoBytes>) -> Result<(), ChainstateError> {
        let held = undo.map_or(0, UndoBytes::heap_bytes) as isize;
        self.add_undo_bytes(held);
        let applied = self.cache.apply(&layer.delta);
        if applied.is_err() {
            self.add_undo_bytes(-held);
        }
        Ok(applied?)
    }

    /// Disconnects `block`, which must be the tip (Core `validation.cpp`, `DisconnectBlock`).
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
                // A flush may still be writing the undo data to the store.
                self.finish_flush()?;
                self.store.undo(&id.hash)?.ok_or_else(|| ChainstateError::Undo {
                    block: id,
                    what: "is missing".to_owned(),
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

    /// Finds which of the coins to remove are already gone: the coins of an overwritten coinbase, once the
    /// overwriting block is disconnected (BIP-30; Core `validation.cpp`, `DisconnectBlock`).
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

    /// Whether memory use calls for a flush.
    pub fn flush_due(&self) -> bool {
        self.cache.flush_due()
    }

    /// Adds new or removed undo data to the coins' memory.
    fn add_undo_bytes(&mut self, bytes: isize) {
        self.undo_bytes = self.undo_bytes.saturating_add_signed(bytes);
        self.cache.set_undo_bytes(self.undo_bytes as u64);
    }

    /// Writes a record with the next flush, in place of an earlier one of the same name.
    pub fn keep_with_coins(&mut self, record: UndoRecord) {
        self.undo.retain(|other| other.block != record.block);
        self.undo.push(record);
    }

    /// Begins to make everything up to the tip durable, in the background.
    pub fn begin_flush(&mut self) -> Result<(), ChainstateError> {
        self.undo_bytes = 0;
        let undo = std::mem::take(&mut self.undo);
        Ok(self.cache.begin_flush(self.tip, undo, self.undo_from)?)
    }

    /// Waits for the flush in progress, if there is one.
    pub fn finish_flush(&mut self) -> Result<(), ChainstateError> {
        Ok(self.cache.finish_flush()?)
    }

    /// Makes everything durable, pending blocks included once their verdicts are in.
    pub fn flush(&mut self) -> Result<(), ChainstateError> {
        self.settle()?;
        self.begin_flush()?;
        self.finish_flush()
    }

    /// Returns the store, which has everything that was flushed.
    pub fn store(&self) -> &dyn CoinsStore {
        &*self.store
    }

    /// Ends all threads, frees the memory and returns the store, which has everything that was flushed.
    pub fn into_store(self) -> Arc<dyn CoinsStore> {
        self.store
    }
}

/// Computes the change to the coins that disconnects a block, from the data kept by [`Chainstate::way_back`],
/// and the sum of the restored coins, if sums are kept.
fn undone(
    block: &CheckedBlock,
    kept: &[u8],
    sum: Option<&RunningSum>,
) -> Result<(CoinsDelta, CoinSum), String> {
    let Some(running) = sum else {
        return Ok((undo_delta(block, kept)?, CoinSum::default()));
    };
    let (undo, taken) = kept.split_last_chunk().ok_or("is truncated")?;
    let (delta, taken) = (undo_delta(block, undo)?, CoinSum::from_bytes(*taken));
    match created(&running.key, &delta) == taken {
        true => Ok((delta, taken)),
        false => Err("does not match the coins that the block spent".to_owned()),
    }
}

/// Turns a verdict against a block into an error.
fn script_error(block: &PreparedBlock, failure: &ScriptFailure) -> ChainstateError {
    let id = block.id();
    match ConnectError::of_script(block.block().bytes().view(), failure) {
        Some(error) => ChainstateError::Invalid { block: id, error },
        None => ChainstateError::Script { block: id, what: failure.reason() },
    }
}
