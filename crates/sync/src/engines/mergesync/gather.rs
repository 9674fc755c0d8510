//! [`Gather`]: the pass that writes down which coins blocks make and want.
//!
//! What a segment makes and spends itself is answered at its end, so that only what crosses segments
//! has to be joined. That is right as long as no transaction is repeated: a coin that is there already
//! when it is made again would not be seen. Where a valid block may repeat one (BIP-30), only the block's
//! own spends are answered.
//!
//! What a block claims of its coins is noted where that may spare it the second walk; of any other block a fingerprint,
//! so that the walk which judges blocks need not check again what was checked here.

use crate::engines::mergesync::ledger::{BlockOptions, Ledger};
use crate::engines::mergesync::seen::{Fingerprint, FingerprintKey};
use crate::engines::pass::{
    Counts, Covered, FinishedSegment, PartialResult, Pass, RunKind, SeenHeights, Uncovered, Work,
};
use crate::runs::{Answers, MadeForm, SpentForm, cut};
use apus_chain::{
    BlockBytes, BlockHash, HeaderChain, Height, HeightRange, KnownBlock, Params, Reader,
    write_compact_size,
};
use apus_engine::connect::rules::may_repeat;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Why blocks were not gathered: mistakes of the caller, not of the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GatherError {
    /// A block that is not of the segment, or came before.
    #[error("block {0} was not asked for, or came twice")]
    Unexpected(Height),
    /// A block did not come.
    #[error("block {0} is missing")]
    Missing(Height),
}

/// The pass. See the module.
pub struct Gather {
    params: Params,
    /// The block at BIP-34's height, if the chain has one.
    at_bip34_height: Option<BlockHash>,
    key: FingerprintKey,
    numbered: bool,
    /// The last block whose claims are noted.
    claims: Height,
    /// The last block that is answered with bare coins.
    bare: Height,
    /// Ledgers of segments that have ended: their memory is good for the next ones.
    spare: Mutex<Vec<Ledger>>,
}

impl Gather {
    /// Coins that segments make and don't spend, by transaction ([`MadeRecord`](super::MadeRecord)).
    pub(super) const MADE: RunKind = RunKind::new(".made", cut::<MadeForm>);
    /// Coins that segments want from blocks below them, by outpoint ([`SpentRecord`](super::SpentRecord)).
    pub(super) const SPENT: RunKind = RunKind::new(".spent", cut::<SpentForm>);
    /// Coins that inputs of a segment take, by their places ([`AnswerRecord`](super::AnswerRecord)).
    pub(super) const ANSWERS: RunKind = RunKind::new(".answers", cut::<Answers>);
    /// By what a second walk knows blocks again, by ascending height ([`Fingerprint`]).
    pub(super) const FINGERPRINTS: RunKind = RunKind::in_sequence(".prints");
    /// How many outputs blocks number, where that is asked for: 4 bytes each, big-endian, by ascending height.
    pub(super) const ADDED: RunKind = RunKind::in_sequence(".added");
    /// What blocks claim of the coins that they spend, by ascending height ([`Claims`](super::Claims)).
    pub(super) const CLAIMS: RunKind = RunKind::in_sequence(".claims");

    /// For the blocks of this chain. All segments of a run are to have one key.
    pub fn new(params: &Params, chain: &HeaderChain, key: FingerprintKey) -> Self {
        let at_bip34_height = chain.hash(params.bip34_height).copied();
        Self {
            params: params.clone(),
            at_bip34_height,
            key,
            numbered: false,
            claims: 0,
            bare: 0,
            spare: Mutex::default(),
        }
    }

    /// The same, if `numbered` with its number behind each coin ([`NumberedCoin`](super::NumberedCoin)).
    #[must_use]
    pub fn with_numbers(self, numbered: bool) -> Self {
        Self { numbered, ..self }
    }

    /// The same, with what blocks up to a height claim of their coins ([`Claims`](super::Claims)).
    #[must_use]
    pub fn with_claims(self, up_to: Height) -> Self {
        Self { claims: up_to, ..self }
    }

    /// The same, which answers blocks up to a height with [bare coins](super::BareCoin): no scripts are run for
    /// them.
    #[must_use]
    pub fn with_bare_coins(self, up_to: Height) -> Self {
        Self { bare: up_to, ..self }
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Ledger>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a valid block of this name may have an output of one before it, or is one of the two
    /// that may even where it is unspent (Core `validation.cpp`, `ConnectBlock`).
    fn may_repeat(&self, height: Height, hash: &BlockHash) -> bool {
        let below = self.at_bip34_height.filter(|_| self.params.bip34_height < height);
        may_repeat(&self.params)
            && (self.params.is_bip30_repeat(height, hash)
                || self.params.enforces_bip30(height, hash, below.as_ref()))
    }
}

/// A segment under way.
pub struct GatherSegment {
    seen: SeenHeights,
    gathered: Gathered,
    ledger: Ledger,
}

impl Pass for Gather {
    type Input = HeightRange;
    type Segment = GatherSegment;
    type Partial = Gathered;
    type Verdict = Gathered;
    type Error = GatherError;

    const RUNS: &'static [RunKind] =
        &[Self::MADE, Self::SPENT, Self::ANSWERS, Self::FINGERPRINTS, Self::ADDED, Self::CLAIMS];

    fn begin(&self, range: HeightRange) -> Result<GatherSegment, GatherError> {
        Ok(GatherSegment {
            seen: SeenHeights::none_of(range),
            gathered: Gathered { covered: Covered::of(range), ..Gathered::default() },
            ledger: self.spare().pop().unwrap_or_default(),
        })
    }

    fn block(
        &self,
        segment: &mut GatherSegment,
        block: &BlockBytes<'_>,
    ) -> Result<(), GatherError> {
        let height = block.height();
        if !segment.seen.take(height) {
            return Err(GatherError::Unexpected(height));
        }
        let view = block.view();
        segment.gathered.counts.add_block(&view);
        if height + 1 == segment.seen.range().end {
            segment.gathered.ends.push(KnownBlock { height, hash: block.hash() });
        }
        let claims = height <= self.claims;
        let told = BlockOptions {
            may_repeat: self.may_repeat(height, &block.hash()),
            // What its claims do not decide is checked once more from the start. That is seldom, but for a later start that runs
            // scripts or keeps blocks.
            fingerprint: if claims { Fingerprint::NONE } else { self.key.of(&view) },
            numbered: self.numbered,
            claims,
            bare: height <= self.bare,
        };
        segment.ledger.add(block, told);
        Ok(())
    }

    fn finish(&self, segment: GatherSegment) -> Result<FinishedSegment<Gathered>, GatherError> {
        if let Some(missing) = segment.seen.missing() {
            return Err(GatherError::Missing(missing));
        }
        let GatherSegment { gathered, mut ledger, .. } = segment;
        let runs = ledger.close().into();
        self.spare().push(ledger);
        Ok(FinishedSegment { partial: gathered, runs })
    }

    fn nothing(&self) -> Gathered {
        Gathered::default()
    }

    fn conclude(&self, whole: &Gathered, stop: Height) -> Result<Gathered, GatherError> {
        match whole.covered.expect_up_to(stop) {
            Ok(()) => Ok(whole.clone()),
            Err(Uncovered::Missing(range)) => Err(GatherError::Missing(range.start)),
            Err(Uncovered::Surplus(range)) => Err(GatherError::Unexpected(range.start)),
        }
    }
}

// [`Gathered`]: how much of the chain was gathered, and of which chain.

/// What a segment leaves beside its runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gathered {
    pub(super) covered: Covered,
    /// How much was processed.
    pub counts: Counts,
    /// The last block of each segment, ascending.
    pub(super) ends: Vec<KnownBlock>,
}

impl Gathered {
    /// Whether what was gathered is of blocks of this chain.
    pub fn is_of(&self, chain: &HeaderChain) -> bool {
        self.ends.iter().all(|end| chain.hash(end.height) == Some(&end.hash))
    }
}

/// Both parts cover some height.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("both parts cover height {0}")]
pub struct Overlap(pub Height);

impl PartialResult for Gathered {
    type MergeError = Overlap;

    fn ranges(&self) -> &[HeightRange] {
        self.covered.ranges()
    }

    fn merge(&mut self, other: &Self) -> Result<(), Overlap> {
        self.covered.add(&other.covered).map_err(Overlap)?;
        self.counts.add(&other.counts);
        // Most parts come in order, and there are tens of thousands.
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
        let (covered, counts) = (Covered::read(reader)?, Counts::read(reader)?);
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

    /// Which coins survive shows when all are joined. Outputs that nobody can spend are among these.
    fn coins_about(&self) -> i64 {
        self.counts.outputs.wrapping_sub(self.counts.inputs) as i64
    }
}
