//! The pass of the engine utreexo: validates blocks by all rules, range by range in any order, with data
//! about the coins that blocks spend.
//!
//! A range begins with the roots of the forest after the block before it, which files or peers provide. For
//! each block of the range they also provide the coins that it spends, with a proof that the coins are in the
//! forest. A coin without a proof does not exist; a proved coin is deleted, and the coins that the block
//! creates are added. So a range leads from the roots before it to the roots after it, validated by all
//! rules, including scripts. Two ranges fit together if one ends with exactly the roots with which the next
//! begins; the first must begin with an empty forest. Then all blocks are valid, regardless of the source of
//! roots, proofs and coins: wrong data can only make the job fail. If the user trusts the roots of a block, the first
//! range begins above it with these [instead](super::ForestStart), and nothing is known about the blocks below.
//!
//! A forest does not show whether an output already exists (BIP-30), since a leaf names the block that
//! created it. Instead, coinbases must be unique, as in [SwiftSync](apus_sync::engines::swiftsync). The two
//! historical coinbases that were overwritten stay in the forest, and no transaction can spend them.
//!
//! Within a block, proofs are checked first. So an error about a broken rule always concerns coins that are
//! in the forest with which the range began.
//!
//! The engine keeps no UTXO set. The number and total amount of the coins follow from those created and
//! spent.

use super::coins::{BlockCoins, EntryReading, spends_max};
use super::{AmountSums, ForestStart, Partial, ProofRange, ProofReader, ProvenError, RootsDiffer};
use apus_chain::{
    BlockBytes, CoinRef, HeaderChain, Height, HeightRange, KnownBlock, Params, TxView,
};
use apus_engine::coin::CoinBytes;
use apus_engine::connect::rules::check_with_coins;
use apus_engine::connect::{ConnectContext, ConnectError};
use apus_engine::script::{NoInterpreter, RawTx, ScriptBatch, ScriptPool};
use apus_engine::tx_table::TxTable;
use apus_sync::engines::bip30::{Bip30, CoinbaseId, first_repeated};
use apus_sync::engines::pass::{Counts, CoverageGap, FinishedSegment, Pass, RunKind};
use apus_utreexo::{NodeHash, Roots, leaf_hashes};
use core::ops::Range;
use std::sync::Arc;

/// The pass, shared by all threads. All mutable state is in segments.
pub struct Utreexo<'a> {
    pub(super) params: &'a Params,
    pub(super) chain: &'a HeaderChain,
    pub(super) start: ForestStart,
    pub(super) bip30: Bip30,
    /// The last block whose scripts are assumed valid; 0 for none.
    pub(super) assumed: Height,
    pub(super) scripts: Option<ScriptPool>,
}

/// A range in progress.
pub struct Segment<'a> {
    pub(super) range: ProofRange<'a>,
    /// The roots before the next block.
    pub(super) roots: Roots,
    /// The next block.
    pub(super) next: Height,
    pub(super) partial: Partial,
    pub(super) scratch: BlockScratch,
}

/// Buffers reused for each block.
pub(super) struct BlockScratch {
    /// The entry of the block of this height.
    entry: Vec<u8>,
    of: Option<Height>,
    hashes: Vec<NodeHash>,
    table: TxTable,
}

impl Default for BlockScratch {
    fn default() -> Self {
        Self { entry: Vec::new(), of: None, hashes: Vec::new(), table: TxTable::new(0) }
    }
}

/// The result if all blocks are valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Totals of what was processed.
    pub counts: Counts,
    /// The unspent coins; `None` if those before the first block are unknown.
    pub coins: Option<AmountSums>,
    /// The forest after the last block.
    pub roots: Roots,
}

impl<'a> Utreexo<'a> {
    /// Creates the pass for a chain. Scripts up to block `assumed` are assumed valid; `scripts` runs the
    /// others. Each thread waits for the scripts of its block, so `scripts` needs no threads of its own.
    pub fn new(
        params: &'a Params,
        chain: &'a HeaderChain,
        assumed: Height,
        scripts: Option<ScriptPool>,
    ) -> Self {
        let (start, bip30) = (ForestStart::genesis(chain), Bip30::new(params, chain));
        Self { params, chain, start, bip30, assumed, scripts }
    }

    /// Lets the first range begin with this forest.
    #[must_use]
    pub fn starting_with(self, start: ForestStart) -> Self {
        Self { start, ..self }
    }
}

impl<'a> Pass for Utreexo<'a> {
    type Input = ProofRange<'a>;
    type Segment = Segment<'a>;
    type Partial = Partial;
    type Verdict = Verdict;
    type Error = ProvenError;

    const RUNS: &'static [RunKind] = &[];
    const FETCHES: bool = true;

    fn blocks_ascend(&self) -> bool {
        true
    }

    fn begin(&self, range: ProofRange<'a>) -> Result<Segment<'a>, ProvenError> {
        let roots = range.before.clone();
        let partial = Partial::of(range.heights, roots.clone());
        let (next, scratch) = (range.heights.start, BlockScratch::default());
        Ok(Segment { range, roots, next, partial, scratch })
    }

    /// Reads the next block's entry.
    fn fetch(&self, segment: &mut Segment<'a>, block: &BlockBytes<'_>) -> Result<(), ProvenError> {
        let id = known(block);
        if id.height != segment.next || !segment.range.heights.contains(id.height) {
            return Err(ProvenError::Unexpected(id.height));
        }
        let Segment { range, scratch, .. } = segment;
        scratch.of = None;
        let read = range.reader.read(&id, spends_max(&block.view()), &mut scratch.entry);
        read.map_err(|what| ProvenError::NotThere { block: id, what })?;
        scratch.of = Some(id.height);
        Ok(())
    }

    fn block(&self, segment: &mut Segment<'a>, block: &BlockBytes<'_>) -> Result<(), ProvenError> {
        let height = block.height();
        if segment.scratch.of.take() != Some(height) {
            self.fetch(segment, block)?;
            segment.scratch.of = None;
        }
        self.connect(segment, block)?;
        segment.next = height + 1;
        Ok(())
    }

    fn finish(&self, segment: Segment<'a>) -> Result<FinishedSegment<Partial>, ProvenError> {
        let Segment { range, roots, next, mut partial, .. } = segment;
        let heights = range.heights;
        if next < heights.end {
            let missing = HeightRange::new(next, heights.end);
            return Err(ProvenError::Incomplete { missing, stop: heights.end - 1 });
        }
        if roots != range.after {
            let differ = RootsDiffer::between(&roots, &range.after);
            let origin = range.reader.origin();
            return Err(ProvenError::After { range: heights, origin, differ });
        }
        partial.end_with(roots);
        Ok(FinishedSegment { partial, runs: Vec::new() })
    }

    fn nothing(&self) -> Partial {
        Partial::default()
    }

    fn conclude(&self, whole: &Partial, stop: Height) -> Result<Verdict, ProvenError> {
        let ForestStart { roots: begins, .. } = &self.start;
        let first = self.start.first();
        whole.expect(HeightRange::new(first, first.max(stop + 1))).map_err(|difference| {
            match difference {
                CoverageGap::Missing(missing) => ProvenError::Incomplete { missing, stop },
                CoverageGap::Surplus(surplus) => ProvenError::Surplus { surplus, stop },
            }
        })?;
        // The merged result is one range, unless there are no blocks.
        let (before, roots) = whole.ends().unwrap_or_else(|| (begins.clone(), begins.clone()));
        if before != *begins {
            let differ = RootsDiffer::between(&before, begins);
            return Err(ProvenError::Before { first, differ });
        }
        if let Some((first, second)) = first_repeated(whole.coinbases()) {
            let (txid, first, second) = (first.txid, first.height, second.height);
            return Err(ProvenError::DuplicateCoinbase { txid, first, second });
        }
        let coins = self.start.trusted().is_none().then(|| whole.coins());
        Ok(Verdict { counts: whole.counts, coins, roots })
    }
}

fn known(block: &BlockBytes<'_>) -> KnownBlock {
    KnownBlock { height: block.height(), hash: block.hash() }
}

impl Utreexo<'_> {
    /// Verifies the fetched proof of the next block of a range, validates the block and applies it.
    pub(super) fn connect(
        &self,
        segment: &mut Segment<'_>,
        block: &BlockBytes<'_>,
    ) -> Result<(), ProvenError> {
        let id = known(block);
        let Segment { range, roots, partial, scratch, .. } = segment;
        let BlockScratch { entry, hashes, table, .. } = scratch;
        let reader = &range.reader;
        let invalid_entry = |error| ProvenError::Entry {
            block: id,
            origin: reader.origin(),
            error: Box::new(error),
        };
        let reading = EntryReading { params: self.params, chain: self.chain, block, table };
        let (proof, coins) = BlockCoins::read(entry, reading).map_err(invalid_entry)?;
        let (leaves, deleted) = coins.leaves(self.chain);
        hashes.clear();
        leaf_hashes(&leaves, hashes);
        let (spent, added) = hashes.split_at(deleted);
        roots.update(&proof, spent, added).map_err(|error| invalid_entry(error.into()))?;
        self.validate(block, id, &coins.spent(), &**reader)?;
        partial.counts.add_block(&block.view());
        let overwritten = self.params.is_bip30_unspendable(id.height, &id.hash);
        let kept = |coin: &CoinRef<'_>| !(overwritten && coin.coinbase);
        leaves[..deleted].iter().for_each(|leaf| partial.spent.add_coin(leaf.coin));
        let made = leaves[deleted..].iter().map(|leaf| leaf.coin).filter(kept);
        made.for_each(|coin| partial.made.add_coin(coin));
        if self.bip30.looks_at(id.height)
            && !overwritten
            && let Some((txid, _)) = block.txs().next()
        {
            partial.push_coinbase(CoinbaseId { txid, height: id.height });
        }
        Ok(())
    }

    /// Validates a block that spends these coins; they may end at the first input without a coin.
    fn validate(
        &self,
        block: &BlockBytes<'_>,
        id: KnownBlock,
        coins: &[CoinRef<'_>],
        reader: &dyn ProofReader,
    ) -> Result<(), ProvenError> {
        let refused = |error| ProvenError::Refused {
            block: id,
            origin: reader.origin(),
            error: Box::new(error),
        };
        let check_scripts = id.height > self.assumed;
        let context = ConnectContext { ancestry: self.chain, check_scripts };
        let mut batch = match (&self.scripts, check_scripts) {
            (_, false) => None,
            (Some(pool), true) => {
                Some(pool.begin(id, self.params.block_script_flags(id.height, &id.hash)))
            }
            (None, true) => return Err(NoInterpreter.into()),
        };
        let raw = batch.is_some().then(|| Arc::new(block.view().raw().to_vec()));
        let passed = |index: usize, tx: &TxView<'_>, spends: Range<usize>| {
            if let (Some(batch), Some(raw)) = (&mut batch, &raw) {
                let raw =
                    RawTx::new(Arc::clone(raw) as _, tx.offset()..tx.offset() + tx.raw().len());
                batch.add(index, raw, coins[spends].iter().map(|it| CoinBytes::new(*it)).collect());
            }
        };
        check_with_coins(self.params, id, block.txs(), &context, coins, passed).map_err(refused)?;
        let Some(Err(failure)) = batch.map(|batch| ScriptBatch::finish(batch).wait()) else {
            return Ok(());
        };
        Err(match ConnectError::of_script(block.view(), &failure) {
            Some(error) => refused(error),
            None => ProvenError::Script { block: id, what: failure.reason() },
        })
    }
}
