//! Moving the active chain to the best one: what Core's `ActivateBestChain`, `InvalidateBlock` and
//! `ResetBlockFailureFlags` do (`validation.cpp`).
//!
//! A block that turns out invalid is marked with everything that descends from it, and the search
//! begins anew; so each round either ends at the best chain or leaves one candidate less.

use super::log::LogKind;
use super::{ActivationFailure, ChainManager, ChainManagerError, TipCoinsError};
use apus_chain::{BlockHash, CheckedBlock, HeaderId};

impl ChainManager {
    /// Marks a block as invalid as if it broke a rule, with everything that descends from it
    /// (Core's `invalidateblock`). False where no such block is known. The genesis block stays.
    pub fn invalidate(&mut self, hash: &BlockHash) -> Result<bool, ChainManagerError> {
        self.failures.clear();
        let Some(id) = self.tree.find(hash) else { return Ok(false) };
        self.note_failed(id)?;
        self.activate_best_chain(None)?;
        Ok(true)
    }

    /// Takes back every mark of a block, of its ancestors and of its descendants, and judges them
    /// again (Core's `reconsiderblock`). False where no such block is known.
    pub fn reconsider(&mut self, hash: &BlockHash) -> Result<bool, ChainManagerError> {
        self.failures.clear();
        let Some(id) = self.tree.find(hash) else { return Ok(false) };
        self.blocks.note(LogKind::Reconsidered, hash.as_bytes())?;
        self.tree.clear_failed(id);
        self.activate_best_chain(None)?;
        Ok(true)
    }

    /// Notes that a block broke a rule.
    pub(super) fn fail(&mut self, id: HeaderId, reason: String) -> Result<(), ChainManagerError> {
        self.failures.push(ActivationFailure { id, reason });
        self.note_failed(id)
    }

    fn note_failed(&mut self, id: HeaderId) -> Result<(), ChainManagerError> {
        let hash = self.tree.hash(id);
        self.blocks.note(LogKind::Failed, hash.as_bytes())?;
        self.tree.mark_failed(id);
        Ok(())
    }

    /// Connects and disconnects until the active chain is the best one. `fresh` is a block that
    /// need not be read again.
    pub(super) fn activate_best_chain(
        &mut self,
        mut fresh: Option<CheckedBlock>,
    ) -> Result<(), ChainManagerError> {
        loop {
            let best = self.tree.best();
            if best == self.tree.tip() {
                return Ok(());
            }
            let fork = self.tree.fork(best);
            while self.tree.tip() != fork {
                self.disconnect_tip()?;
            }
            for id in self.tree.path(fork, best) {
                let hash = self.tree.hash(id);
                let block = match fresh.take_if(|block| block.hash() == hash) {
                    Some(block) => block,
                    None => self.load(id)?,
                };
                match self.coins.connect(block, &self.tree) {
                    Ok(()) => self.tree.extend_active(id),
                    Err(TipCoinsError::Invalid { reason }) => {
                        self.fail(id, reason)?;
                        break;
                    }
                    Err(error) => return Err(ChainManagerError::Coins { hash, error }),
                }
            }
        }
    }

    fn disconnect_tip(&mut self) -> Result<(), ChainManagerError> {
        let id = self.tree.tip();
        let block = self.load(id)?;
        let hash = block.hash();
        self.coins.disconnect(&block).map_err(|error| ChainManagerError::Coins { hash, error })?;
        self.tree.shorten_active();
        Ok(())
    }

    /// Reads a block of ours again.
    fn load(&mut self, id: HeaderId) -> Result<CheckedBlock, ChainManagerError> {
        let hash = self.tree.hash(id);
        let damaged = |what: String| ChainManagerError::BlockDamaged { hash, what };
        let raw = self.blocks.get(id)?.ok_or_else(|| damaged("it is not here".to_owned()))?;
        // The genesis block is never read: it is always connected.
        let parent =
            self.tree.header(id).parent.ok_or_else(|| damaged("it has no parent".into()))?;
        self.check(raw, hash, parent).map_err(|(_, error)| damaged(error.to_string()))
    }
}
