//! Accepting blocks: the work of Core's `ProcessNewBlock` and `AcceptBlock` (`validation.cpp`).
//!
//! The order of checks is Core's: first the checks without context, which never count against the header; then
//! the header among its ancestors; then the block at its place, where a failure marks the block as failed
//! permanently, unless only this copy is damaged.

use super::log::LogKind;
use super::orphans::Orphan;
use super::{
    ActivationFailure, ChainManager, ChainManagerError, Submission, SubmitOutcome, TipCoinsError,
};
use apus_chain::{
    BlockContext, BlockError, BlockHash, CheckedBlock, DecodeError, Header, HeaderId, ReadError,
    check_proof_of_work,
};
use std::collections::VecDeque;

/// The result for a single block, before its waiting descendants are submitted.
enum AcceptedHeader {
    /// The outcome is final.
    Settled(SubmitOutcome),
    /// The block is kept; activating the best chain decides its outcome.
    Kept(HeaderId),
}

fn rejected(reason: impl Into<String>) -> AcceptedHeader {
    AcceptedHeader::Settled(SubmitOutcome::Rejected { reason: reason.into() })
}

/// Returns whether an error depends on the block's place in the chain (Core `validation.cpp`,
/// `ContextualCheckBlock`); the others come from `CheckBlock` or from decoding.
const fn is_contextual(error: &BlockError) -> bool {
    matches!(
        error,
        BlockError::NonFinal { .. }
            | BlockError::CoinbaseHeight
            | BlockError::WitnessNonceSize
            | BlockError::WitnessMerkleMatch
            | BlockError::UnexpectedWitness { .. }
            | BlockError::Weight { .. }
    )
}

impl ChainManager {
    /// Submits a block, and then its descendants that waited for it.
    pub fn submit(&mut self, raw: Vec<u8>) -> Result<Submission, ChainManagerError> {
        self.failures.clear();
        let hash = raw.first_chunk().map(|header| Header::parse(header).hash());
        let taken = self.take(raw)?;
        if let Some(hash) = hash {
            self.take_orphans_of(hash)?;
        }
        let outcome = match taken {
            AcceptedHeader::Settled(outcome) => outcome,
            AcceptedHeader::Kept(id) => self.outcome_of(id),
        };
        Ok(Submission { hash, outcome })
    }

    /// Returns the outcome of a kept block after the best chain was activated.
    fn outcome_of(&self, id: HeaderId) -> SubmitOutcome {
        if self.tree.is_active(id) {
            return SubmitOutcome::Accepted;
        }
        let mut failures = self.failures.iter();
        match failures.find(|failure| self.tree.descends(id, failure.id)) {
            Some(failure) => SubmitOutcome::Rejected { reason: failure.reason.clone() },
            None => SubmitOutcome::Inconclusive,
        }
    }

    /// If a block is known now, accepts its waiting children, then their waiting children, and so on.
    pub(super) fn take_orphans_of(&mut self, hash: BlockHash) -> Result<(), ChainManagerError> {
        let mut parents = VecDeque::from([hash]);
        while let Some(parent) = parents.pop_front() {
            if self.tree.find(&parent).is_none() {
                continue;
            }
            for orphan in self.orphans.take_children(&parent) {
                let adopted = orphan.name();
                self.take(orphan.raw)?;
                self.blocks.note(LogKind::Adopted, &adopted)?;
                parents.push_back(orphan.hash);
            }
        }
        Ok(())
    }

    fn take(&mut self, raw: Vec<u8>) -> Result<AcceptedHeader, ChainManagerError> {
        let Some(first) = raw.first_chunk::<{ Header::SIZE }>().copied() else {
            let error = DecodeError::Read(ReadError::End { offset: 0, needed: Header::SIZE });
            return Ok(rejected(error.reason()));
        };
        let header = Header::parse(&first);
        let hash = header.hash();
        let Some(parent) = self.tree.find(&header.prev) else {
            return self.take_orphan(raw, &header, hash);
        };
        let checked = self.check(raw, hash, parent);
        let error = checked.as_ref().err().map(|(_, error)| error);
        if let Some(reason) = self.context_free_reason(&header, hash, error) {
            return Ok(rejected(reason));
        }
        let known = self.tree.find(&hash);
        if let Some(id) = known {
            if self.tree.is_failed(id) {
                return Ok(rejected("duplicate-invalid"));
            }
            if self.tree.has_block(id) {
                return Ok(AcceptedHeader::Settled(SubmitOutcome::Duplicate));
            }
        }
        if self.tree.is_failed(parent) {
            return Ok(rejected("bad-prevblk"));
        }
        let now = self.now();
        let id = match self.tree.accept_header(&first, now) {
            Ok(id) => id,
            Err(error) => return Ok(rejected(error.reason())),
        };
        match checked {
            Ok(block) => self.keep(id, block).map(|()| AcceptedHeader::Kept(id)),
            Err((_, error)) => {
                if known.is_none() {
                    self.blocks.note(LogKind::Header, &first)?;
                }
                if !error.is_damage() {
                    self.fail(id, error.reject_reason())?;
                }
                Ok(rejected(error.reject_reason()))
            }
        }
    }

    /// Keeps a block that passed every rule that needs no coins, and activates the best chain.
    fn keep(&mut self, id: HeaderId, block: CheckedBlock) -> Result<(), ChainManagerError> {
        self.blocks.put(id, block.bytes().view().raw())?;
        self.tree.add_block(id);
        self.activate_best_chain(Some(block))
    }

    /// Keeps a block until its parent arrives, if these bytes can be valid at some place. That bounds the bytes
    /// that one proof of work can make this program store: see [`BlockChecker::check_anywhere`].
    ///
    /// [`BlockChecker::check_anywhere`]: apus_chain::BlockChecker::check_anywhere
    fn take_orphan(
        &mut self,
        mut raw: Vec<u8>,
        header: &Header,
        hash: BlockHash,
    ) -> Result<AcceptedHeader, ChainManagerError> {
        let Self { tree, checker, verifier, .. } = self;
        let context = BlockContext {
            params: tree.params(),
            height: 0,
            hash,
            median_time_past: 0,
            verifier: verifier.as_deref(),
        };
        let checked = checker.check_anywhere(&raw, &context);
        if let Some(reason) = self.context_free_reason(header, hash, checked.as_ref().err()) {
            return Ok(rejected(reason));
        }
        if self.tree.find(&hash).is_some() {
            return Ok(AcceptedHeader::Settled(SubmitOutcome::Duplicate));
        }
        match checked {
            Ok(length) => raw.truncate(length),
            // The copy is damaged, or too heavy at any place.
            Err(error) => return Ok(rejected(error.reject_reason())),
        }
        let orphan = Orphan { hash, prev: header.prev, raw };
        if self.orphans.contains(&orphan) {
            return Ok(AcceptedHeader::Settled(SubmitOutcome::Orphan));
        }
        // Another chain's genesis block, whose parent will never arrive; or a block that already waited once.
        if header.prev == BlockHash::ZERO || self.orphans.is_forgotten(&orphan) {
            return Ok(rejected("prev-blk-not-found"));
        }
        self.blocks.note(LogKind::Orphan, &orphan.raw)?;
        self.orphans.add(orphan);
        Ok(AcceptedHeader::Settled(SubmitOutcome::Orphan))
    }

    /// Returns Core's reason if a block fails a check that needs no context (`validation.cpp`, `CheckBlock`).
    /// Such a failure never counts against the header, since Core cannot be sure that the header commits to the
    /// invalid part.
    fn context_free_reason(
        &self,
        header: &Header,
        hash: BlockHash,
        error: Option<&BlockError>,
    ) -> Option<String> {
        if let Some(error @ BlockError::Decode(_)) = error {
            return Some(error.reject_reason());
        }
        if !check_proof_of_work(&hash, header.bits, self.tree.params().pow_limit) {
            return Some("high-hash".to_owned());
        }
        error.filter(|error| !is_contextual(error)).map(BlockError::reject_reason)
    }

    /// Checks a block against the rules that depend on its ancestors.
    pub(super) fn check(
        &mut self,
        raw: Vec<u8>,
        hash: BlockHash,
        parent: HeaderId,
    ) -> Result<CheckedBlock, (Vec<u8>, BlockError)> {
        let Self { tree, checker, verifier, .. } = self;
        let context = BlockContext {
            params: tree.params(),
            height: tree.header(parent).height + 1,
            hash,
            median_time_past: tree.median_time_past(parent),
            verifier: verifier.as_deref(),
        };
        checker.check_owned(raw, &context)
    }
}

impl ChainManager {
    /// Marks a block and its descendants as invalid, as if the block broke a rule (Core's `invalidateblock`).
    /// Returns false if the block is unknown. The genesis block cannot be marked.
    pub fn invalidate(&mut self, hash: &BlockHash) -> Result<bool, ChainManagerError> {
        self.failures.clear();
        let Some(id) = self.tree.find(hash) else { return Ok(false) };
        self.note_failed(id)?;
        self.activate_best_chain(None)?;
        Ok(true)
    }

    /// Clears the marks of a block, its ancestors and its descendants, and validates them again (Core's
    /// `reconsiderblock`). Returns false if the block is unknown.
    pub fn reconsider(&mut self, hash: &BlockHash) -> Result<bool, ChainManagerError> {
        self.failures.clear();
        let Some(id) = self.tree.find(hash) else { return Ok(false) };
        self.blocks.note(LogKind::Reconsidered, hash.as_bytes())?;
        self.tree.clear_failed(id);
        self.activate_best_chain(None)?;
        Ok(true)
    }

    /// Records that a block broke a rule.
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

    /// Connects and disconnects blocks until the active chain is the best one. `fresh` is a block that is still
    /// in memory.
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

    /// Reads a stored block, and checks that it is unchanged.
    fn load(&mut self, id: HeaderId) -> Result<CheckedBlock, ChainManagerError> {
        let hash = self.tree.hash(id);
        let damaged = |what: String| ChainManagerError::BlockDamaged { hash, what };
        let raw = self.blocks.get(id)?.ok_or_else(|| damaged("it is missing".to_owned()))?;
        // The genesis block is never read, because it is always connected.
        let parent =
            self.tree.header(id).parent.ok_or_else(|| damaged("it has no parent".into()))?;
        self.check(raw, hash, parent).map_err(|(_, error)| damaged(error.to_string()))
    }
}
