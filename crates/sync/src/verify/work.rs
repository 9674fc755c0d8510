//! [`VerifyWork`]: the part of the audit after the coins and the index are read.

use super::coins::{self, CoinsSnapshot};
use super::compared::ComparedSource;
use super::finding::{FindingKind, FoundFault};
use super::heads::{Heads, is_genesis, look_at_heads};
use super::index::StoredEntry;
use super::survey::{FolderSurvey, by_chain};
use super::{JOIN, PROOF, ProvenBy, SET, VerifyOutcome};
use super::{VerifyWork, is_about_node, marked, open_store, remove};
use crate::best_chain::headers;
use crate::engines::mergesync::{self, MergeOutcome};
use crate::engines::swiftsync::aggregate::AggregateKind;
use crate::error::{InvalidBlock, InvalidError, SourceError, SyncError};
use crate::request::{HintsInput, Output, OutputKind};
use crate::run::run;
use crate::workdir::Workdir;
use apus_chain::{BlockHash, HeaderChain, KnownBlock};
use apus_datadir::BlockFiles;
use apus_storage::DirStorage;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The snapshot of the coins that the blocks produce.
const OF_BLOCKS: &str = "coins.dat";

/// Why the node's coins could not be read.
const COINS_UNREADABLE: [FindingKind; 2] =
    [FindingKind::CoinsDamaged, FindingKind::CoinsUnfinished];

impl VerifyWork<'_> {
    pub(super) fn verify(
        &self,
        taken: Option<CoinsSnapshot>,
        verified: &mut VerifyOutcome,
    ) -> Result<(), SyncError> {
        let Self { request, index, findings, .. } = *self;
        let files = BlockFiles::open(request.blocks(), request.env.params.network.magic())
            .map_err(SourceError::from)?;
        index.compare_files(&files, findings);
        self.look_at_genesis(&files);
        verified.tip = index.chain_to(&index.best).map(|chain| chain.tip());
        let base = self.base(taken.as_ref());
        let chain = index.chain_to(&base).filter(|chain| chain.tip_height() > 0);
        let at_tip = |taken: &&CoinsSnapshot| {
            chain.as_ref().is_some_and(|chain| taken.info.base_hash == *chain.tip_hash())
        };
        let coins = taken.as_ref().filter(at_tip);
        let proven = match &chain {
            Some(chain) => {
                if taken.is_none() && !findings.has(&COINS_UNREADABLE) {
                    let what = "the node has connected blocks, but has no coins: it connects these blocks again when \
                        it starts";
                    verified.add_unproven(what.to_owned());
                }
                self.verify_chain(&files, taken.as_ref(), chain, verified)?
            }
            None => {
                verified.unproven = Some("the node has not connected any block yet".to_owned());
                false
            }
        };
        self.check_off_chain(&files, chain.as_ref(), proven, coins, verified)?;
        let old = findings.old_undo.load(Ordering::Relaxed);
        if old > 0 {
            verified.add_unproven(format!(
                "Apus does not check undo data in the form of Bitcoin Core before 0.15, which Core can still read \
                 (blocks: {old})"
            ));
        }
        self.note_rejected_chain(verified);
        Ok(())
    }

    /// Audits the chain up to the coins. Returns whether its blocks were checked: they were not if the node
    /// pruned some.
    fn verify_chain(
        &self,
        files: &BlockFiles,
        taken: Option<&CoinsSnapshot>,
        chain: &HeaderChain,
        verified: &mut VerifyOutcome,
    ) -> Result<bool, SyncError> {
        let Self { request, findings, index, .. } = *self;
        let on_chain = index.on_chain(request, chain, findings)?;
        if index.pruned && on_chain.missing > 0 {
            verified.pruned_below = Some(on_chain.stored_from);
            let what = format!(
                "the node has pruned its blocks below {}, and only all blocks can prove its coins right",
                on_chain.stored_from
            );
            verified.add_unproven(what);
            return Ok(false);
        }
        if on_chain.missing == 0 && on_chain.without_undo == 0 {
            let mut blocks = self.stored_on(chain)?;
            let heads = look_at_heads(request, files, findings, &mut blocks)?;
            drop(blocks);
            let transactions = (heads == Heads::Unread).then_some(on_chain.transactions);
            self.warn_of_found();
            if heads != Heads::Wrong {
                verified.proof = self.prove(taken, chain, transactions)?;
            }
        }
        if verified.proof.is_none() {
            self.diagnose(files, taken, chain, verified)?;
        }
        Ok(true)
    }

    /// Reports the first finding now, before the rest of the audit takes hours.
    fn warn_of_found(&self) {
        if let Some(finding) = self.findings.first() {
            let kind = finding.kind.name();
            let what = format!("{kind}: {}", finding.first.what);
            self.request.warn(what);
        }
    }

    /// Returns the stored blocks of a chain.
    fn stored_on(&self, chain: &HeaderChain) -> Result<Vec<StoredEntry>, SyncError> {
        let is_on = |block: KnownBlock| chain.hash(block.height) == Some(&block.hash);
        self.index.stored(self.request, &is_on)
    }

    fn look_at_genesis(&self, files: &BlockFiles) {
        let params = self.request.env.params;
        if let Some((file, offset)) = self.index.genesis
            && !is_genesis(files, params, (file, offset))
        {
            let path = files.path(file);
            let block = KnownBlock { height: 0, hash: params.genesis_hash };
            let found = FoundFault::new("this is not the genesis block").block(block);
            self.findings.add(FindingKind::BlockDamaged, found.at(&path, offset));
        }
    }

    /// Notes in the outcome that the node marks a chain with more work as invalid, if the audit cannot decide
    /// whether that is right.
    fn note_rejected_chain(&self, verified: &mut VerifyOutcome) {
        let Some(rejected) = self.index.rejected_chain() else { return };
        let root = rejected.root;
        let confirmed = self.confirmed_marks.lock();
        if self.findings.has(&[FindingKind::MarkedInvalid]) || confirmed.contains(&root.hash) {
            return;
        }
        let what = format!(
            "the node marks block {} ({}) as invalid, and with it a chain that has more work than the node's. This \
             audit could not check that mark. To make the node check it again, start the node and run: bitcoin-cli \
             reconsiderblock {}",
            root.height, root.hash, root.hash
        );
        verified.add_unproven(what);
    }

    /// Returns the block of the node's coins or, if it is unknown, the block that the node connected last.
    fn base(&self, taken: Option<&CoinsSnapshot>) -> BlockHash {
        let Some(taken) = taken else { return self.index.best };
        let base = taken.info.base_hash;
        if self.index.tree.find(&base).is_none() {
            let what = "the coins are at this block, but the index does not have it";
            let found = FoundFault { hash: Some(base), ..FoundFault::new(what) };
            let found = found.of(&self.request.chainstate());
            self.findings.add(FindingKind::CoinsBlock, found);
            return self.index.best;
        }
        base
    }

    /// Proves everything in one pass with the node's coins and undo data; `None` if that fails. `transactions`
    /// is the total in the index, if the number of each block was not compared before.
    fn prove(
        &self,
        taken: Option<&CoinsSnapshot>,
        chain: &HeaderChain,
        transactions: Option<u64>,
    ) -> Result<Option<ProvenBy>, SyncError> {
        let request = self.request;
        let Some(taken) = taken.filter(|taken| taken.info.base_hash == *chain.tip_hash()) else {
            return Ok(None);
        };
        if self.is_beyond_hints(chain) {
            return Ok(None);
        }
        let joining = request.work.join(JOIN);
        if joining.is_dir() && mergesync::has_begun(&DirStorage::private(&joining))? {
            // The proof failed in an earlier start, which then began to locate the fault.
            return Ok(None);
        }
        let storage = request.storage(PROOF)?;
        let hints = Some(HintsInput::Snapshot(taken.path.clone()));
        let store = || open_store(request, &storage);
        let run_request = request.request(chain.tip_hash(), hints, &storage, &[], &store);
        let outcome = match run(&run_request) {
            Ok(outcome) => outcome,
            Err(error) if is_about_node(&error) => {
                remove(storage.folder())?;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let is_same = outcome.validation.hints.aggregate == Some(AggregateKind::Coins)
            && outcome.set.hash_serialized_3() == Some(taken.info.hash_serialized_3.0)
            && transactions.is_none_or(|count| outcome.counts.transactions == count);
        if !is_same {
            remove(storage.folder())?;
            return Ok(None);
        }
        Ok(Some(ProvenBy {
            at: chain.tip(),
            counts: outcome.counts,
            coins: outcome.set.totals,
            muhash: outcome.set.muhash().expect("it was asked for"),
            hash_serialized_3: taken.info.hash_serialized_3.0,
            scripts: outcome.validation.scripts,
            by_hints: true,
        }))
    }

    /// Whether coins cannot serve as hints for this chain.
    fn is_beyond_hints(&self, chain: &HeaderChain) -> bool {
        let hash = |height| chain.hash(height).copied();
        self.request.env.params.has_uncounted_coins(chain.tip_height(), hash)
    }

    /// Locates the fault after the proof failed.
    fn diagnose(
        &self,
        files: &BlockFiles,
        taken: Option<&CoinsSnapshot>,
        chain: &HeaderChain,
        verified: &mut VerifyOutcome,
    ) -> Result<(), SyncError> {
        let Self { request, findings, .. } = *self;
        let mut blocks = self.stored_on(chain)?;
        FolderSurvey::new(request, files, findings, chain, false)?.look_at(&mut blocks)?;
        verified.looked_at += blocks.len() as u64;
        drop(blocks);
        use FindingKind as Kind;
        let broken = [Kind::BlockMissing, Kind::BlockDamaged, Kind::BlockInvalid];
        if findings.has(&broken) {
            let what = "blocks are missing or wrong, so what the blocks above them do to the coins is unknown";
            verified.add_unproven(what.to_owned());
            return Ok(());
        }
        match self.join(taken, chain) {
            Ok(proof) => verified.proof = Some(proof),
            Err(error) => {
                let error = match error {
                    SyncError::NoWayOn { error, .. } => *error,
                    other => other,
                };
                let Some(invalid) = InvalidBlock::of(&error) else { return Err(error) };
                let found = FoundFault::new(&invalid.why).block(invalid.block);
                findings.add(Kind::BlockInvalid, found);
                let what =
                    "a block is invalid, so what the blocks above it do to the coins is unknown";
                verified.add_unproven(what.to_owned());
            }
        }
        let explained =
            self.is_beyond_hints(chain) || findings.old_undo.load(Ordering::Relaxed) > 0;
        if findings.is_empty() && taken.is_some() && !explained {
            let what = "the node's coins and undo data do not prove its blocks, but checking block by block found \
                no problem";
            findings.add(Kind::Unexplained, FoundFault::new(what));
        }
        Ok(())
    }

    /// Joins the blocks without hints and undo data, and compares the results with both.
    fn join(
        &self,
        taken: Option<&CoinsSnapshot>,
        chain: &HeaderChain,
    ) -> Result<ProvenBy, SyncError> {
        let Self { request, findings, .. } = *self;
        let mut storage = request.storage(JOIN)?;
        // Findings are not stored, so the blocks of an earlier start are validated again.
        Workdir::clear_scratch(&storage)?;
        if mergesync::has_base(&storage) {
            remove(storage.folder())?;
            storage = request.storage(JOIN)?;
        }
        let store = || open_store(request, &storage);
        let set = request.storage(SET)?;
        let of_blocks = set.folder().join(OF_BLOCKS);
        let (kind, name) = (OutputKind::Snapshot, OF_BLOCKS.to_owned());
        let outputs = taken.map(|_| Output { kind, storage: Arc::new(set), name });
        let base = chain.tip_hash();
        let joining = request.request(base, None, &storage, outputs.as_slice(), &store);
        let dir = headers(&joining, None)?;
        let undo = dir.undo(chain.tip_height(), &joining.env.search())?;
        let compared = Arc::new(ComparedSource { dir: &*dir, findings, undo });
        let MergeOutcome::Whole(mut merged) = mergesync::run(&joining, compared, None)? else {
            // Only a sync from peers leaves blocks to another engine.
            return Err(InvalidError::BaseNotOnChain { base: *base }.into());
        };
        let (put, coins) = merged.write_out(&joining)?;
        let (counts, scripts) = (merged.counts, merged.validated.scripts);
        if let Some(taken) = taken {
            coins::compare(request, &of_blocks, &taken.path, findings)?;
        }
        Ok(ProvenBy {
            at: chain.tip(),
            counts,
            coins,
            muhash: put.hashes.muhash.expect("it was asked for"),
            hash_serialized_3: put.hashes.hash_serialized_3,
            scripts,
            by_hints: false,
        })
    }

    /// Checks the stored blocks that are not on the chain of the coins. Unless `proven` is set, checks the
    /// blocks on that chain, too. `coins` are the node's coins at the end of that chain.
    fn check_off_chain(
        &self,
        files: &BlockFiles,
        chain: Option<&HeaderChain>,
        proven: bool,
        coins: Option<&CoinsSnapshot>,
        verified: &mut VerifyOutcome,
    ) -> Result<(), SyncError> {
        let Self { request, findings, index, .. } = *self;
        index.check_marks_off_chain(request, chain, findings)?;
        let seen = chain.filter(|_| proven);
        let is_off_chain = |block: KnownBlock| {
            seen.is_none_or(|chain| chain.hash(block.height) != Some(&block.hash))
        };
        let off_chain = index.stored(request, &is_off_chain)?;
        let chains = by_chain(off_chain.clone(), &|stored| index.chain_to(&stored.block.hash));
        for (chain, mut blocks) in chains {
            let survey = FolderSurvey::new(request, files, findings, &chain, true)?;
            survey.look_at(&mut blocks)?;
            survey.into_confirmed_marks().into_iter().for_each(|hash| self.confirm_mark(hash));
            verified.looked_at += blocks.len() as u64;
        }
        use FindingKind as Kind;
        let wrong_coins = [Kind::CoinMissing, Kind::CoinUnknown, Kind::CoinWrong];
        match (coins, chain) {
            (Some(coins), Some(chain)) if !findings.has(&wrong_coins) => {
                let left_out = marked::check(self, files, coins, chain, &off_chain)?;
                if left_out > 0 {
                    verified.add_unproven(format!(
                        "the undo data of {left_out} blocks above the node's coins or on other branches was not \
                         compared with the coins that they spend. Run the audit again once the node has stopped, which \
                         makes it write its coins"
                    ));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
