//! Taking blocks in: what Core's `ProcessNewBlock` and `AcceptBlock` do (`validation.cpp`).
//!
//! The order of checks is Core's: first those that need no context, which never count against the
//! header; then the header among its ancestors; then the block at its place, where a failure that
//! is no damage of this copy marks the block as failed for good.

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

/// What became of a block in itself, before those that waited for it.
enum AcceptedHeader {
    /// There is nothing more to say.
    Settled(SubmitOutcome),
    /// It is kept, and what it is depends on the chains.
    Kept(HeaderId),
}

fn rejected(reason: impl Into<String>) -> AcceptedHeader {
    AcceptedHeader::Settled(SubmitOutcome::Rejected { reason: reason.into() })
}

/// Whether an error depends on the block's place in the chain (Core `validation.cpp`,
/// `ContextualCheckBlock`); the others are of `CheckBlock`, or of reading the bytes.
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
    /// Takes a block, and with it those that waited for it.
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

    /// What is to be said of a block that is kept, now that all chains were tried.
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

    /// Takes the blocks that waited for one that may be known now, and those that waited for them.
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

    /// Keeps a block that passed every rule without coins, and tries the chains.
    fn keep(&mut self, id: HeaderId, block: CheckedBlock) -> Result<(), ChainManagerError> {
        self.blocks.put(id, block.bytes().view().raw())?;
        self.tree.add_block(id);
        self.activate_best_chain(Some(block))
    }

    /// Lets a block wait for its parent, if these bytes can be it at some place. What one proof of work
    /// can have kept is bounded by that: see [`BlockChecker::check_anywhere`].
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
            // Damage, or too heavy wherever it stands.
            Err(error) => return Ok(rejected(error.reject_reason())),
        }
        let orphan = Orphan { hash, prev: header.prev, raw };
        if self.orphans.contains(&orphan) {
            return Ok(AcceptedHeader::Settled(SubmitOutcome::Orphan));
        }
        // Another chain's genesis block, whose parent will never come; or one that waited already.
        if header.prev == BlockHash::ZERO || self.orphans.is_forgotten(&orphan) {
            return Ok(rejected("prev-blk-not-found"));
        }
        self.blocks.note(LogKind::Orphan, &orphan.raw)?;
        self.orphans.add(orphan);
        Ok(AcceptedHeader::Settled(SubmitOutcome::Orphan))
    }

    /// Core's reason where a block fails a check that needs no context (`validation.cpp`,
    /// `CheckBlock`). Such a failure never counts against the header, since Core cannot be sure
    /// that the header commits to what is wrong.
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

    /// Checks a block at its place.
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
