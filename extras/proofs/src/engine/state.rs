//! Utreexo: every rule, range by range in any order, by what is told of the coins that blocks spend.
//!
//! A range begins with the roots of the forest after the block before it, which files or peers tell. For each of its
//! blocks they tell the coins that it spends, with a proof that they are in the forest. A coin that is not
//! proved is none; one that is proved is deleted, and what the block makes is added. So a range leads from
//! the roots before it to the roots after it, by every rule, scripts among them. Ranges fit together where one ends
//! with the very roots with which the next begins; and the first has to begin with a forest of no leaf. Then all
//! blocks are valid, wherever roots, proofs and coins came from: what is wrong can only make the run fail.
//!
//! What a forest does not show is whether an output exists already (BIP-30), since a leaf names the block
//! that made it. Coinbases are unique instead, as with [SwiftSync](apus_sync::engines::swiftsync). The two that history overwrote
//! stay in the forest, and no transaction can spend them.
//!
//! In a block proofs come first. What is said of a block that breaks a rule is then said of coins that are in the forest with
//! which its range began.
//!
//! No set of coins is kept. How many there are, and how much they hold, follows from what was made and spent.

use super::coins::{BlockCoins, EntryReading};
use super::{AmountSums, Partial, ProofRange, ProofReader, ProvenError, RootsDiffer};
use apus_chain::{
    BlockBytes, CoinRef, HeaderChain, Height, HeightRange, KnownBlock, Params, TxView,
};
use apus_engine::coin::CoinBytes;
use apus_engine::connect::rules::check_with_coins;
use apus_engine::connect::{ConnectContext, ConnectError};
use apus_engine::script::{NoInterpreter, RawTx, ScriptBatch, ScriptPool};
use apus_engine::tx_table::TxTable;
use apus_sync::engines::bip30::{Bip30, CoinbaseId, first_repeated};
use apus_sync::engines::pass::{Counts, FinishedSegment, Pass, RunKind, Uncovered};
use apus_utreexo::{NodeHash, Roots, leaf_hashes};
use core::ops::Range;
use std::sync::Arc;

/// The engine. Shared by all threads; what changes is in segments.
pub struct Utreexo<'a> {
    pub(super) params: &'a Params,
    pub(super) chain: &'a HeaderChain,
    pub(super) bip30: Bip30,
    /// The last block whose scripts are taken for valid; 0 where none are.
    pub(super) assumed: Height,
    pub(super) scripts: Option<ScriptPool>,
}

/// A range under way.
pub struct Segment<'a> {
    pub(super) range: ProofRange<'a>,
    /// Those before the next block.
    pub(super) roots: Roots,
    /// The next block.
    pub(super) next: Height,
    pub(super) partial: Partial,
    pub(super) scratch: BlockScratch,
}

/// What is used anew for each block.
pub(super) struct BlockScratch {
    entry: Vec<u8>,
    hashes: Vec<NodeHash>,
    table: TxTable,
}

impl Default for BlockScratch {
    fn default() -> Self {
        Self { entry: Vec::new(), hashes: Vec::new(), table: TxTable::new(0) }
    }
}

/// All blocks are valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// How much was processed.
    pub counts: Counts,
    /// The coins that are left.
    pub coins: AmountSums,
    /// The forest after the last block.
    pub roots: Roots,
}

impl<'a> Utreexo<'a> {
    /// An engine for a chain. Blocks up to `assumed` are taken for valid as far as their scripts go; `scripts` runs the
    /// others. Blocks wait for their verdicts where they are taken, so threads of its own would only get in the way.
    pub fn new(
        params: &'a Params,
        chain: &'a HeaderChain,
        assumed: Height,
        scripts: Option<ScriptPool>,
    ) -> Self {
        Self { params, chain, bip30: Bip30::new(params, chain), assumed, scripts }
    }
}

impl<'a> Pass for Utreexo<'a> {
    type Input = ProofRange<'a>;
    type Segment = Segment<'a>;
    type Partial = Partial;
    type Verdict = Verdict;
    type Error = ProvenError;

    const RUNS: &'static [RunKind] = &[];
    const BLOCKS_ASCEND: bool = true;

    fn begin(&self, range: ProofRange<'a>) -> Result<Segment<'a>, ProvenError> {
        let roots = range.before.clone();
        let partial = Partial::of(range.heights, roots.clone());
        let (next, scratch) = (range.heights.start, BlockScratch::default());
        Ok(Segment { range, roots, next, partial, scratch })
    }

    fn block(&self, segment: &mut Segment<'a>, block: &BlockBytes<'_>) -> Result<(), ProvenError> {
        let height = block.height();
        if height != segment.next || !segment.range.heights.contains(height) {
            return Err(ProvenError::Unexpected(height));
        }
        self.judge(segment, block)?;
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
        whole.expect_up_to(stop).map_err(|difference| match difference {
            Uncovered::Missing(missing) => ProvenError::Incomplete { missing, stop },
            Uncovered::Surplus(surplus) => ProvenError::Surplus { surplus, stop },
        })?;
        // One range is left, unless there are no blocks at all.
        let (before, roots) = whole.ends().unwrap_or_default();
        if before != Roots::default() {
            return Err(ProvenError::Before { leaves: before.leaves() });
        }
        if let Some((first, second)) = first_repeated(whole.coinbases()) {
            let (txid, first, second) = (first.txid, first.height, second.height);
            return Err(ProvenError::DuplicateCoinbase { txid, first, second });
        }
        Ok(Verdict { counts: whole.counts, coins: whole.coins(), roots })
    }
}

fn known(block: &BlockBytes<'_>) -> KnownBlock {
    KnownBlock { height: block.height(), hash: block.hash() }
}

impl Utreexo<'_> {
    /// Proves, judges and applies the next block of a range.
    pub(super) fn judge(
        &self,
        segment: &mut Segment<'_>,
        block: &BlockBytes<'_>,
    ) -> Result<(), ProvenError> {
        let id = known(block);
        let Segment { range, roots, partial, scratch, .. } = segment;
        let BlockScratch { entry, hashes, table } = scratch;
        let not_there = |what| ProvenError::NotThere { block: id, what };
        range.reader.read(&id, entry).map_err(not_there)?;
        let reader = &range.reader;
        let of_no_use = |error| ProvenError::Entry {
            block: id,
            origin: reader.origin(),
            error: Box::new(error),
        };
        let reading = EntryReading { params: self.params, chain: self.chain, block, table };
        let (proof, coins) = BlockCoins::read(entry, reading).map_err(of_no_use)?;
        let (leaves, deleted) = coins.leaves(self.chain);
        hashes.clear();
        leaf_hashes(&leaves, hashes);
        let (spent, added) = hashes.split_at(deleted);
        roots.update(&proof, spent, added).map_err(|error| of_no_use(error.into()))?;
        self.by_coins(block, id, &coins.spent(), &**reader)?;
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

    /// Judges a block that spends these coins, up to the first input that has none.
    fn by_coins(
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
                Some(pool.begin(self.params.block_script_flags(id.height, &id.hash)))
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
