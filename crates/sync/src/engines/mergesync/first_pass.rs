//! [`FirstPass`]: records which coins blocks create and which they spend.
//!
//! Spends of coins from the same segment are answered at the segment's end, so that only spends across segments
//! must be joined. This is correct only while no transaction is repeated: otherwise the pass would miss that a
//! coin already exists when it is created again. Where a valid block may repeat one (BIP-30), only the block's
//! own spends are answered here.
//!
//! A block's spend summary is kept if it may save the second walk from reading the block; for any other block
//! a fingerprint is kept, so that the second walk need not repeat the checks made here.

use crate::engines::mergesync::seen::{Fingerprint, FingerprintKey};
use crate::engines::mergesync::segment_index::{BlockOptions, SegmentIndex};
use crate::engines::pass::{
    Counts, CoverageGap, FinishedSegment, HeightCoverage, PartialResult, Pass, RunKind,
    SeenHeights, Work,
};
use crate::runs::{OutputForm, PrevoutForm, SpendForm, cut};
use apus_chain::{
    BlockBytes, BlockHash, HeaderChain, Height, HeightRange, KnownBlock, Params, Reader,
    write_compact_size,
};
use apus_engine::connect::rules::may_repeat;
use parking_lot::Mutex;

/// An error in how the caller passed blocks, not in the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FirstPassError {
    /// A block outside the segment, or a repeated block.
    #[error("block {0} is outside the segment, or came twice")]
    Unexpected(Height),
    /// A block is missing.
    #[error("block {0} is missing")]
    Missing(Height),
}

/// The pass that records which coins blocks create and spend.
pub struct FirstPass {
    params: Params,
    /// The block at BIP-34's height, if the chain has one.
    at_bip34_height: Option<BlockHash>,
    key: FingerprintKey,
    numbered: bool,
    /// The last block whose spend summary is kept.
    claims: Height,
    /// The last block that gets stripped coins.
    bare: Height,
    /// The last block that does not wait for the second walk.
    passed: Height,
    /// Indexes of finished segments, whose memory the next ones reuse; `None` if no further segment begins.
    spare: Mutex<Option<Vec<SegmentIndex>>>,
}

impl FirstPass {
    /// Coins that segments create and do not spend, by transaction ([`OutputRecord`](super::OutputRecord)).
    pub(super) const MADE: RunKind = RunKind::new(".made", cut::<OutputForm>);
    /// Coins that segments spend from blocks below them, by outpoint ([`SpendRecord`](super::SpendRecord)).
    pub(super) const SPENT: RunKind = RunKind::new(".spent", cut::<SpendForm>);
    /// Coins spent within their segment, by the inputs' places ([`PrevoutRecord`](super::PrevoutRecord)).
    pub(super) const ANSWERS: RunKind = RunKind::new(".answers", cut::<PrevoutForm>);
    /// Fingerprints that let a second walk recognise blocks, by ascending height ([`Fingerprint`]).
    pub(super) const FINGERPRINTS: RunKind = RunKind::in_sequence(".prints");
    /// The number of outputs that each block numbers, where the sync needs it: 4 bytes each, big-endian, by
    /// ascending height.
    pub(super) const ADDED: RunKind = RunKind::in_sequence(".added");
    /// Summaries of the coins that blocks spend, by ascending height ([`SpendSummary`](super::SpendSummary)).
    pub(super) const CLAIMS: RunKind = RunKind::in_sequence(".claims");
    /// Blocks that wait for the second walk, in any order ([`WaitingBlock`](super::own::WaitingBlock)).
    pub(super) const BLOCKS: RunKind = RunKind::in_sequence(".blocks");

    /// Creates the pass for the blocks of this chain. All segments of a sync must use the same key.
    pub fn new(params: &Params, chain: &HeaderChain, key: FingerprintKey) -> Self {
        let at_bip34_height = chain.hash(params.bip34_height).copied();
        Self {
            params: params.clone(),
            at_bip34_height,
            key,
            numbered: false,
            claims: 0,
            bare: 0,
            passed: Height::MAX,
            spare: Mutex::new(Some(Vec::new())),
        }
    }

    /// Stores each coin's number after it, if `numbered` ([`IndexedCoin`](super::IndexedCoin)).
    #[must_use]
    pub fn with_numbers(self, numbered: bool) -> Self {
        Self { numbered, ..self }
    }

    /// Keeps the spend summaries of blocks up to a height ([`SpendSummary`](super::SpendSummary)).
    #[must_use]
    pub fn with_claims(self, up_to: Height) -> Self {
        Self { claims: up_to, ..self }
    }

    /// Answers blocks up to a height with [stripped coins](super::StrippedCoin): their scripts are not run.
    #[must_use]
    pub fn with_bare_coins(self, up_to: Height) -> Self {
        Self { bare: up_to, ..self }
    }

    /// Stores the blocks above a height for the second walk: the source would have to get them again.
    #[must_use]
    pub fn with_waiting_above(self, passed: Height) -> Self {
        Self { passed, ..self }
    }

    /// Whether a valid block with this hash may create an output that an earlier block created: after that
    /// output was spent, or, for two blocks, even while it is unspent (Core `validation.cpp`, `ConnectBlock`).
    fn may_repeat(&self, height: Height, hash: &BlockHash) -> bool {
        let below = self.at_bip34_height.filter(|_| self.params.bip34_height < height);
        may_repeat(&self.params)
            && (self.params.is_bip30_repeat(height, hash)
                || self.params.enforces_bip30(height, hash, below.as_ref()))
    }
}

/// A segment in progress.
pub struct FirstPassSegment {
    seen: SeenHeights,
    counts: Counts,
    /// The highest block so far.
    last: KnownBlock,
    index: SegmentIndex,
}

impl Pass for FirstPass {
    type Input = HeightRange;
    type Segment = FirstPassSegment;
    type Partial = SegmentSummary;
    type Verdict = SegmentSummary;
    type Error = FirstPassError;

    const RUNS: &'static [RunKind] = &[
        Self::MADE,
        Self::SPENT,
        Self::ANSWERS,
        Self::FINGERPRINTS,
        Self::ADDED,
        Self::CLAIMS,
        Self::BLOCKS,
    ];

    const CAN_END_EARLY: bool = true;

    fn begin(&self, range: HeightRange) -> Result<FirstPassSegment, FirstPassError> {
        Ok(FirstPassSegment {
            seen: SeenHeights::none_of(range),
            counts: Counts::default(),
            last: KnownBlock { height: 0, hash: BlockHash::ZERO },
            index: self.spare.lock().as_mut().and_then(Vec::pop).unwrap_or_default(),
        })
    }

    fn block(
        &self,
        segment: &mut FirstPassSegment,
        block: &BlockBytes<'_>,
    ) -> Result<(), FirstPassError> {
        let height = block.height();
        if !segment.seen.take(height) {
            return Err(FirstPassError::Unexpected(height));
        }
        let view = block.view();
        segment.counts.add_block(&view);
        if height >= segment.last.height {
            segment.last = KnownBlock { height, hash: block.hash() };
        }
        let claims = height <= self.claims;
        let options = BlockOptions {
            may_repeat: self.may_repeat(height, &block.hash()),
            coinbase_uncounted: self.params.is_bip30_unspendable(height, &block.hash()),
            // If a block's summary does not decide, the second walk checks the block again from scratch. That
            // is rare, except when a later start runs scripts or keeps blocks.
            fingerprint: match claims {
                true => Fingerprint::NONE,
                false => self.key.of(&view),
            },
            numbered: self.numbered,
            claims,
            bare: height <= self.bare,
            waits: height > self.passed,
        };
        segment.index.add(block, options);
        Ok(())
    }

    fn has_begun_all(&self) {
        self.spare.lock().take();
    }

    fn memory_bytes(&self, segment: &FirstPassSegment) -> u64 {
        segment.index.memory_bytes() as u64
    }

    fn cut(&self, segment: &mut FirstPassSegment, end: Height) {
        segment.seen.cut(end);
    }

    fn finish(
        &self,
        segment: FirstPassSegment,
    ) -> Result<FinishedSegment<SegmentSummary>, FirstPassError> {
        if let Some(missing) = segment.seen.missing() {
            return Err(FirstPassError::Missing(missing));
        }
        let FirstPassSegment { seen, counts, last, mut index } = segment;
        let runs = index.close().into();
        if let Some(spare) = &mut *self.spare.lock() {
            spare.push(index);
        }
        let covered = HeightCoverage::of(seen.range());
        Ok(FinishedSegment { partial: SegmentSummary { covered, counts, ends: vec![last] }, runs })
    }

    fn nothing(&self) -> SegmentSummary {
        SegmentSummary::default()
    }

    fn conclude(
        &self,
        whole: &SegmentSummary,
        stop: Height,
    ) -> Result<SegmentSummary, FirstPassError> {
        match whole.covered.expect(HeightRange::new(1, stop + 1)) {
            Ok(()) => Ok(whole.clone()),
            Err(CoverageGap::Missing(range)) => Err(FirstPassError::Missing(range.start)),
            Err(CoverageGap::Surplus(range)) => Err(FirstPassError::Unexpected(range.start)),
        }
    }
}

// [`SegmentSummary`]: how much of which chain was recorded.

/// A segment's partial result, without its runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SegmentSummary {
    pub(super) covered: HeightCoverage,
    /// How much was processed.
    pub counts: Counts,
    /// The last block of each segment, ascending.
    pub(super) ends: Vec<KnownBlock>,
}

impl SegmentSummary {
    /// Whether the recorded blocks are on this chain.
    pub fn is_of(&self, chain: &HeaderChain) -> bool {
        self.ends.iter().all(|end| chain.hash(end.height) == Some(&end.hash))
    }
}

/// Both parts cover some height.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("both parts cover height {0}")]
pub struct Overlap(pub Height);

impl PartialResult for SegmentSummary {
    type MergeError = Overlap;

    fn ranges(&self) -> &[HeightRange] {
        self.covered.ranges()
    }

    fn merge(&mut self, other: &Self) -> Result<(), Overlap> {
        self.covered.add(&other.covered).map_err(Overlap)?;
        self.counts.add(&other.counts);
        // There are tens of thousands of parts, and most arrive in order.
        let [last, next] =
            [self.ends.last(), other.ends.first()].map(|end| end.map(|it| it.height));
        self.ends.extend_from_slice(&other.ends);
        if last > next {
            self.ends.sort_unstable_by_key(|end| end.height);
        }
        Ok(())
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.covered.write(out);
        self.counts.write(out);
        write_compact_size(out, self.ends.len() as u64);
        for KnownBlock { height, hash } in &self.ends {
            out.extend_from_slice(&height.to_le_bytes());
            out.extend_from_slice(&hash.0);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (covered, counts) = (HeightCoverage::read(reader)?, Counts::read(reader)?);
        let mut ends = Vec::new();
        for _ in 0..reader.compact_size().ok()? {
            let height = reader.u32().ok()?;
            ends.push(KnownBlock { height, hash: BlockHash(*reader.array().ok()?) });
        }
        Some(Self { covered, counts, ends })
    }

    fn done(&self) -> Work {
        Work { blocks: self.counts.blocks, bytes: self.counts.bytes, coins: 0 }
    }

    /// The number of surviving coins is known only after the join; until then outputs that can never be spent
    /// are included.
    fn coins_about(&self) -> i64 {
        self.counts.outputs.wrapping_sub(self.counts.inputs) as i64
    }
}
