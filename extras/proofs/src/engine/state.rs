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
//! No set of coins is kept. How many there are, and how much they hold, follows from what was made and spent.

use super::block::BlockScratch;
use super::{AmountSums, Partial, ProofRange, ProvenError, RootsDiffer};
use apus_chain::{BlockBytes, HeaderChain, Height, HeightRange, KnownBlock, Params};
use apus_engine::script::ScriptPool;
use apus_sync::engines::bip30::{Bip30, first_repeated};
use apus_sync::engines::pass::{Counts, FinishedSegment, Pass, RunKind, Uncovered};
use apus_utreexo::Roots;

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

pub(super) fn known(block: &BlockBytes<'_>) -> KnownBlock {
    KnownBlock { height: block.height(), hash: block.hash() }
}
