//! From one chain to the next: where the source has learnt of more, and where a block of the chain that
//! is gone for proves invalid or cannot be had.
//!
//! Which chain that is says the source. What is on the old chain alone is disconnected by undo data.

use crate::best_chain::{CHAINS_LEFT_MAX, better_chain, other_chain};
use crate::engines::in_order::{ChainstateError, Connecting, Totals};
use crate::error::{ErrorKind, InvalidBlock, IoError, StorageResult, SyncError};
use crate::pass::leave_witnesses;
use crate::progress::Event;
use crate::request::{Request, Source, first_of_last};
use crate::source::{ChainSource, without_undo};
use crate::supply::context;
use crate::warning::Warning;
use crate::workdir::names::RECORD;
use crate::workdir::record::{ConnectedAt, Record};
use apus_chain::{CoinSum, Height, HeightRange, KnownBlock, OutPoint, ScriptChecks};
use apus_engine::script::ScriptPool;
use apus_engine::utxo::store::EachChange;
use apus_engine::utxo::{Changes, CoinsStore, Flush, StoreError};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Whether an error calls a block invalid by the coins that are there. What is wrong with a block whatever it spends
/// is found before it is connected.
fn rests_on_coins(error: &SyncError) -> bool {
    let SyncError::Chainstate { error } = error else { return false };
    matches!(**error, ChainstateError::Invalid { .. })
}

impl<'a> Connecting<'a> {
    /// Connects everything up to the end, and goes on where the source has learnt of more, or where
    /// another chain is to be gone for.
    pub(super) fn connect_all(&mut self) -> Result<(), SyncError> {
        let (mut reached, mut left) = (false, 0);
        loop {
            self.dir.may_be_left(self.request.follow);
            let connected = self.connect();
            // Also what came before an invalid block or an interruption is worth keeping; the error
            // to tell is the first.
            let mut kept = self.flush();
            if matches!(&connected, Err(error) if rests_on_coins(error)) {
                kept?;
                self.expect_coins()?;
                kept = Ok(());
            }
            let next = match connected {
                Err(error) => {
                    left += 1;
                    match self.leave(error, left) {
                        // A run that follows the tip ends where it is.
                        Err(error)
                            if error.kind() == ErrorKind::Interrupted
                                && reached
                                && self.is_on_chain() =>
                        {
                            self.request.env.interrupt.store(false, Ordering::Relaxed);
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
        if !rests_on_coins(&error) {
            return Err(error);
        }
        let (why, tip) = (error.to_string(), *self.state.tip());
        self.request.env.observer.event(Event::Warning(Warning::EndsBelow { why, tip }));
        Ok(())
    }

    /// Another chain, where the one that is gone for fails with `error`. The error, if there is none.
    fn leave(
        &mut self,
        error: SyncError,
        left: u32,
    ) -> Result<Arc<dyn ChainSource + 'a>, SyncError> {
        let of_files = matches!(self.request.source, Source::Files { .. });
        if !of_files && left > CHAINS_LEFT_MAX {
            return Err(error);
        }
        let invalid = InvalidBlock::of(&error);
        if of_files && invalid.is_some() {
            // All headers are looked at anew, and the coins of the last flush give way to them.
            self.flush()?;
        }
        let below = self.record.identity.from - 1;
        let hash = self.dir.chain().hash(below).copied().unwrap_or_default();
        other_chain(self.request, &*self.dir, KnownBlock { height: below, hash }, error)
    }

    /// Whether a run that follows the tip may end where it is.
    fn is_on_chain(&self) -> bool {
        let tip = self.state.tip();
        self.request.follow && self.dir.chain().hash(tip.height) == Some(&tip.hash)
    }

    /// Goes on with another chain, of more work or less.
    fn go_on(&mut self, dir: Arc<dyn ChainSource + 'a>) -> Result<(), SyncError> {
        let (chain, request) = (dir.chain(), self.request);
        self.end = request.stop.end_in(&*dir)?;
        self.checks =
            ScriptChecks::new(request.env.params, chain, self.record.identity.assume_valid);
        // Scripts that are run need them.
        self.unseen = leave_witnesses(request, &*dir, Some(self.record.identity.unseen));
        let first = self.record.identity.from;
        if !self.state.has_scripts() && (first..=self.end).any(|height| self.checks.needed(height))
        {
            self.state.set_scripts(ScriptPool::new(request.env.threads)?);
        }
        let tip = *chain.tip_hash();
        request.env.observer.event(Event::Tip { height: self.end, tip });
        self.dir = dir;
        Ok(())
    }

    /// The height from which all last blocks above are kept, those that are connected already and those
    /// to come.
    fn kept_above(&self) -> Height {
        let (tip, from) = (self.state.tip().height, self.record.identity.from);
        let first = first_of_last(self.end).max(from);
        let missing = match &self.keeper {
            Some(keeper) => keeper.lacks_some(tip, self.end).then_some(first),
            None => {
                let last = HeightRange::new(first, (tip + 1).max(first));
                without_undo(&*self.dir, last).first().map(|missing| missing.start)
            }
        };
        missing.map_or(tip, |missing| tip.min(missing - 1))
    }

    /// Disconnects blocks until the tip is one of the chain, and all last blocks above it are kept where
    /// that is asked for.
    pub(super) fn go_back(&mut self) -> Result<(), SyncError> {
        let (dir, from) = (Arc::clone(&self.dir), *self.state.tip());
        let (chain, kept_above) = (dir.chain(), self.kept_above());
        // None is forgotten on the way.
        self.state.set_undo_from(0);
        loop {
            let KnownBlock { height, hash } = *self.state.tip();
            if height <= kept_above && chain.hash(height) == Some(&hash) {
                break;
            }
            // It was checked when it was connected, and lock times against another chain's times.
            let context = apus_chain::BlockContext {
                hash,
                median_time_past: u32::MAX,
                ..context(self.request.env.params, chain, self.request.env.verifier, height)
            };
            let (mut checker, mut block) = (apus_chain::BlockChecker::new(), None);
            // It may have come without witnesses, or with others.
            checker.leave_witnesses(height);
            self.dir.block_by_hash(&hash, &mut |raw| {
                block = checker.check_owned(raw.to_vec(), &context).ok();
                block.is_some()
            })?;
            let block = block.ok_or(SyncError::Io(IoError::StaleBlock { height, hash }))?;
            let disconnected = self.state.disconnect(&block);
            disconnected.map_err(|error| self.without_undo(error, height > kept_above))?;
        }
        let to = *self.state.tip();
        self.keep_undo_for(to.height);
        if self.keeper.is_some() && to != from {
            // The coins first: a start finds at least the blocks that they came of.
            self.flush()?;
        }
        if let Some(keeper) = &mut self.keeper {
            keeper.go_on(to, self.end)?;
        }
        self.warn_of_few();
        Ok(())
    }

    /// What a missing way back means for a run that takes it to keep blocks.
    fn without_undo(&self, error: ChainstateError, is_for_kept: bool) -> SyncError {
        if !is_for_kept || !matches!(error, ChainstateError::Undo { .. }) {
            return error.into();
        }
        let what = "it connected blocks without keeping them, which a node needs, and can go back over \
                    them no more";
        self.request.env.other_run(what)
    }

    /// Warns where fewer of the last blocks will be kept than a node wants, since hints reach into them.
    fn warn_of_few(&self) {
        let (first, from) = (first_of_last(self.end), self.record.identity.from);
        let keeps = self.keeper.is_some() || self.dir.archive().is_some();
        if keeps && from > first {
            let (end, hinted) = (self.end, from - 1);
            self.request.env.observer.event(Event::Warning(Warning::FewWithUndo { end, hinted }));
        }
    }
}

// Begins anew: coins that a run went on from are given up, where the chain that it goes for now parts from theirs below them.
//
// There is no way back over blocks that were joined. What segments did of the blocks that both chains have stays.

/// Coins that are forgotten at once.
const AT_ONCE: usize = 1 << 20;

/// Coins to forget.
struct Forgotten(Vec<OutPoint>);

impl Changes for Forgotten {
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        self.0.iter().try_for_each(|outpoint| each(outpoint, None))
    }
}

/// Whether an earlier start was ended while it gave the coins up.
pub(crate) fn is_under_way(record: &Record) -> bool {
    record.identity.from > 1 && record.at.last().is_some_and(|at| at.block.height == 0)
}

/// Gives up the coins of an earlier start, with the record of how far it was. Where it is ended on the way, the record tells
/// the next start to go on with it.
pub(crate) fn begin_anew(request: &Request<'_>) -> Result<(), SyncError> {
    let Some(mut record) = Record::read(request.env.workdir)? else { return Ok(()) };
    let options = request.expect_connect()?;
    let store = (options.store)()?;
    let tip = KnownBlock { height: 0, hash: request.env.params.genesis_hash };
    if !is_under_way(&record) {
        record.at.truncate(1);
        let (totals, sum) = (Totals::default(), Some(CoinSum::default()));
        record.at.push(ConnectedAt { block: tip, totals, sum });
        record.write(request.env.workdir)?;
    }
    loop {
        let changes = Forgotten(first_coins(&*store)?);
        store.write(&Flush { tip, changes: &changes, undo: &[], undo_from: u32::MAX })?;
        if changes.0.is_empty() {
            break;
        }
    }
    request.env.workdir.remove(RECORD).at(request.env.workdir, RECORD)?;
    request.env.workdir.sync_names().at(request.env.workdir, "")
}

/// Some coins of a store, the first ones; nothing where it is empty.
fn first_coins(store: &dyn CoinsStore) -> Result<Vec<OutPoint>, StoreError> {
    let mut first = Vec::new();
    let read = store.for_each(&mut |outpoint, _| {
        first.push(*outpoint);
        if first.len() < AT_ONCE { Ok(()) } else { Err(StoreError::Stopped) }
    });
    match read {
        Ok(()) | Err(StoreError::Stopped) => Ok(first),
        Err(error) => Err(error),
    }
}
