//! Switches chains: when the source learns of a chain with more work, and when a block of the current chain
//! proves invalid or is unavailable.
//!
//! The source chooses the chain. Blocks that are only on the old chain are disconnected with their undo data.

use crate::best_chain::{CHAINS_LEFT_MAX, better_chain, other_chain};
use crate::engines::in_order::{ChainstateError, InOrderSync, Totals};
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
use apus_engine::utxo::store::EachChange;
use apus_engine::utxo::{Changes, CoinsStore, Flush, StoreError};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Whether an error says that a block is invalid because of the coins it spends. Faults that do not depend on
/// coins are found before the block is connected.
fn rests_on_coins(error: &SyncError) -> bool {
    let SyncError::Chainstate { error } = error else { return false };
    matches!(**error, ChainstateError::Invalid { .. })
}

impl<'a> InOrderSync<'a> {
    /// Connects all blocks up to the end, and continues if the source learns of more blocks or offers another
    /// chain.
    pub(super) fn connect_all(&mut self) -> Result<(), SyncError> {
        let (mut reached, mut left) = (false, 0);
        loop {
            self.dir.may_be_left(self.request.follow);
            let connected = self.connect();
            // Keep the blocks below an invalid block or an interruption, too; report the first error.
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
                        // A sync that follows the tip stops at its current block.
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
                Some(dir) => self.continue_along(dir)?,
                None => return Ok(()),
            }
        }
    }

    /// Drops a flush's error that reports an invalid block, where the sync ends anyway: the flush did not fail,
    /// because the block before the invalid one is then the tip, and is durable.
    fn without_invalid_end(&self, error: SyncError) -> Result<(), SyncError> {
        if !rests_on_coins(&error) {
            return Err(error);
        }
        let (why, tip) = (error.to_string(), *self.state.tip());
        self.request.env.observer.event(Event::Warning(Warning::EndsBelow { why, tip }));
        Ok(())
    }

    /// Finds another chain after the current one failed with `error`. Fails with that error if there is none.
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
            // The source reads all headers again, and the coins of the last flush are rolled back to match.
            self.flush()?;
        }
        let below = self.record.identity.from - 1;
        let hash = self.dir.chain().hash(below).copied().unwrap_or_default();
        other_chain(self.request, &*self.dir, KnownBlock { height: below, hash }, error)
    }

    /// Whether a sync that follows the tip may end at its current block.
    fn is_on_chain(&self) -> bool {
        let tip = self.state.tip();
        self.request.follow && self.dir.chain().hash(tip.height) == Some(&tip.hash)
    }

    /// Continues along another chain, whether it has more work or less.
    fn continue_along(&mut self, dir: Arc<dyn ChainSource + 'a>) -> Result<(), SyncError> {
        let (chain, request) = (dir.chain(), self.request);
        self.end = request.stop.end_in(&*dir)?;
        self.checks =
            ScriptChecks::new(request.env.params, chain, self.record.identity.assume_valid);
        // Running scripts needs the witnesses.
        self.unseen = leave_witnesses(request, &*dir, Some(self.record.identity.unseen));
        let first = self.record.identity.from;
        if !self.state.has_scripts() && (first..=self.end).any(|height| self.checks.needed(height))
        {
            self.state.set_scripts(request.env.signatures.pool(request.env.threads)?);
        }
        let tip = *chain.tip_hash();
        request.env.observer.event(Event::Tip { height: self.end, tip });
        self.dir = dir;
        Ok(())
    }

    /// Returns the height above which all of the last blocks are kept, whether already connected or not.
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

    /// Disconnects blocks until the tip is on the chain and, if the user requested it, all of the last blocks
    /// above it are kept.
    pub(super) fn go_back(&mut self) -> Result<(), SyncError> {
        let (dir, from) = (Arc::clone(&self.dir), *self.state.tip());
        let (chain, kept_above) = (dir.chain(), self.kept_above());
        // Keep all undo data while disconnecting.
        self.state.set_undo_from(0);
        loop {
            let KnownBlock { height, hash } = *self.state.tip();
            if height <= kept_above && chain.hash(height) == Some(&hash) {
                break;
            }
            // The block passed all checks when it was connected. Its lock times depend on its own chain's
            // times, so let them all pass here.
            let context = apus_chain::BlockContext {
                hash,
                median_time_past: u32::MAX,
                ..context(self.request.env.params, chain, self.request.env.verifier, height)
            };
            let (mut checker, mut block) = (apus_chain::BlockChecker::new(), None);
            // The source may supply the block without witnesses, or with other ones.
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
            // Flush the coins first: the next start then finds at least the blocks that produced them.
            self.flush()?;
        }
        if let Some(keeper) = &mut self.keeper {
            keeper.continue_from(to, self.end)?;
        }
        self.warn_of_few();
        Ok(())
    }

    /// The error for missing undo data when a sync disconnects blocks in order to keep them.
    fn without_undo(&self, error: ChainstateError, is_for_kept: bool) -> SyncError {
        if !is_for_kept || !matches!(error, ChainstateError::Undo { .. }) {
            return error.into();
        }
        let what = "it connected blocks without keeping them, as a node needs, and can no longer \
                    disconnect them";
        self.request.env.other_run(what)
    }

    /// Warns if fewer of the last blocks will be kept than a node wants, because hints cover some of them.
    fn warn_of_few(&self) {
        let (first, from) = (first_of_last(self.end), self.record.identity.from);
        let keeps = match &self.keeper {
            Some(keeper) => !keeper.has_all(),
            None => self.dir.archive().is_some(),
        };
        if keeps && from > first {
            let (end, hinted) = (self.end, from - 1);
            self.request.env.observer.event(Event::Warning(Warning::FewWithUndo { end, hinted }));
        }
    }
}

// Starts over: discards the coins that a sync resumed from, if the new chain forks off below them.
//
// Joined blocks have no undo data. Segments keep their results for blocks that are on both chains.

/// Number of coins to remove in one write.
const AT_ONCE: usize = 1 << 20;

/// The coins to remove.
struct ForgottenCoins(Vec<OutPoint>);

impl Changes for ForgottenCoins {
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        self.0.iter().try_for_each(|outpoint| each(outpoint, None))
    }
}

/// Whether an earlier start was stopped while it discarded the coins.
pub(crate) fn is_under_way(record: &Record) -> bool {
    record.identity.from > 1 && record.at.last().is_some_and(|at| at.block.height == 0)
}

/// Discards the coins of an earlier start, with the record of its progress. If it is interrupted, the record
/// makes the next start continue it.
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
        let changes = ForgottenCoins(first_coins(&*store)?);
        store.write(&Flush { tip, changes: &changes, undo: &[], undo_from: u32::MAX })?;
        if changes.0.is_empty() {
            break;
        }
    }
    request.env.workdir.remove(RECORD).at(request.env.workdir, RECORD)?;
    request.env.workdir.sync_names().at(request.env.workdir, "")
}

/// Returns the first coins of a store; none if the store is empty.
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
