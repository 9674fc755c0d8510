//! SwiftSync: processes blocks in any order, with hints that say which coins survive (BIP-457).
//!
//! Coins that survive according to the hints are kept; all others only go into the
//! [aggregate](super::aggregate::Sums), as does every spend. If the two sums are equal after all blocks,
//! the hints were right and the kept coins are the UTXO set. Wrong hints can only make the sync fail, never
//! make it end in a wrong set.
//!
//! This is SwiftSync's *assumevalid* mode: like Core below its assumed-valid block, it runs no scripts. Without coins
//! it cannot check amounts spent, whether a coin was created in a block before the one that spends it,
//! maturity or relative lock times. It does check every rule that needs no coins (by taking only
//! [`BlockBytes`]), that every coin spent existed and was spent once, BIP-30, and that no more bitcoin was
//! created than subsidies allow. The report lists these limits.
//!
//! It can also prove the set at a block below the one where the hints stop, given what the blocks in between
//! spend ([`SpentLater`]): those can then be connected, with every rule.

use crate::commitment::NewHasher;
use crate::engines::bip30::{Bip30, CoinbaseId, first_repeated};
use crate::engines::pass::{Counts, CoverageGap, FinishedSegment, Pass, RunKind};
use crate::engines::swiftsync::aggregate::{AggregateKind, Aggregator};
use crate::engines::swiftsync::error::SwiftSyncError;
use crate::engines::swiftsync::hints::elias_fano::{BitOrder, encode};
use crate::engines::swiftsync::segment::{BlockFacts, SegmentFacts, SegmentOutput};
use crate::engines::swiftsync::{
    CoinTotals, IndexHints, Partial, Segment, SegmentHints, SpentLater,
};
use crate::runs::{CoinsForm, cut};
use apus_chain::{BlockBytes, HeaderChain, Height, HeightRange, Params, max_supply};

/// The engine. Shared by all threads; mutable state is in [`Segment`]s.
pub struct SwiftSync {
    pub(super) params: Params,
    pub(super) aggregator: Aggregator,
    pub(super) bip30: Bip30,
    pub(super) spent_later: Option<SpentLater>,
    pub(super) facts: SegmentFacts,
}

/// A sync whose sums balance: the set of surviving coins is the UTXO set at the stop height.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// How much was processed.
    pub counts: Counts,
    /// The UTXO set's totals.
    pub coins: CoinTotals,
    /// MuHash of the set in internal byte order (`gettxoutsetinfo muhash` shows it reversed), if requested
    /// ([`SwiftSync::with_muhash`]).
    pub muhash: Option<[u8; 32]>,
    /// The aggregate that proved that each coin spent existed and was spent once.
    pub aggregate: AggregateKind,
}

impl SwiftSync {
    /// Coins, one record for each transaction by ascending txid: `txid ‖ u32le length ‖ group`, with the
    /// group as in a UTXO snapshot.
    pub const COINS: RunKind = RunKind::new(".run", cut::<CoinsForm>);
    /// Which outputs survive: one BIP-456 element a block by ascending height, the most significant bit
    /// first.
    pub const HINTS: RunKind = RunKind::in_sequence(".hints");
    /// Hashes of the surviving coins, by ascending place ([`write_placed`](crate::commitment::write_placed)).
    pub const HASHES: RunKind = RunKind::in_sequence(".leaves");

    /// Undo data of blocks, if they are kept until they are proven ([`UndoPass`](super::UndoPass)).
    pub const UNDO: RunKind = RunKind::in_sequence(".undo");

    /// Creates an engine for this chain.
    pub fn new(params: &Params, chain: &HeaderChain, aggregator: Aggregator) -> Self {
        Self {
            params: params.clone(),
            aggregator,
            bip30: Bip30::new(params, chain),
            spent_later: None,
            facts: SegmentFacts::default(),
        }
    }

    /// Proves the set at a block below the one where the hints stop: `spent` has the coins that the blocks in
    /// between spend. Neither their outputs nor the hints for them are needed.
    #[must_use]
    pub fn below_hints(self, spent: SpentLater) -> Self {
        Self { spent_later: Some(spent), ..self }
    }

    /// Also numbers outputs and hashes the coins, if there is a hasher.
    #[must_use]
    pub fn with_hashes(self, hashes: Option<NewHasher>) -> Self {
        Self { facts: SegmentFacts { hashes, ..self.facts }, ..self }
    }

    /// Also computes the set's MuHash, which takes up to two microseconds a coin.
    #[must_use]
    pub fn with_muhash(self, muhash: bool) -> Self {
        Self { facts: SegmentFacts { muhash, ..self.facts }, ..self }
    }

    /// Starts a segment, which covers the range of its hints.
    pub fn begin(&self, hints: SegmentHints) -> Segment {
        Segment::new(hints, self.aggregator.zero(), self.aggregator.begin(), self.facts)
    }

    /// Processes a block with the coins that it spends, in stored form and in the order of its inputs, if the
    /// aggregate is of whole coins.
    pub(super) fn block_with_coins(
        &self,
        segment: &mut Segment,
        block: &BlockBytes<'_>,
        spent: &[&[u8]],
    ) -> Result<(), SwiftSyncError> {
        let unspendable = self.params.is_bip30_unspendable(block.height(), &block.hash());
        let facts = BlockFacts {
            unspendable,
            unique: self.bip30.looks_at(block.height()),
            spent_later: self.spent_later.as_ref(),
        };
        segment.block(block, spent, &facts)
    }

    /// Ends a segment after all of its blocks were processed.
    pub fn finish(&self, segment: Segment) -> Result<SegmentOutput, SwiftSyncError> {
        segment.finish()
    }
}

/// Fails unless the result covers exactly the heights from 1 to `stop`.
pub(super) fn expect_whole(whole: &Partial, stop: Height) -> Result<(), SwiftSyncError> {
    whole.covered.expect(HeightRange::new(1, stop + 1)).map_err(|difference| match difference {
        CoverageGap::Missing(missing) => SwiftSyncError::Incomplete { missing, stop },
        CoverageGap::Surplus(surplus) => SwiftSyncError::Surplus { surplus, stop },
    })
}

pub(super) fn expect_unique(coinbases: &[CoinbaseId]) -> Result<(), SwiftSyncError> {
    match first_repeated(coinbases) {
        Some((first, second)) => Err(SwiftSyncError::DuplicateCoinbase {
            txid: first.txid,
            first: first.height,
            second: second.height,
        }),
        None => Ok(()),
    }
}

// SwiftSync as a [`Pass`].

impl Pass for SwiftSync {
    type Input = SegmentHints;
    type Segment = Segment;
    type Partial = Partial;
    type Verdict = Verdict;
    type Error = SwiftSyncError;

    const RUNS: &'static [RunKind] = &[Self::COINS, Self::HINTS, Self::HASHES, Self::UNDO];

    fn begin(&self, hints: SegmentHints) -> Result<Segment, SwiftSyncError> {
        Ok(self.begin(hints))
    }

    fn block(&self, segment: &mut Segment, block: &BlockBytes<'_>) -> Result<(), SwiftSyncError> {
        self.block_with_coins(segment, block, &[])
    }

    fn finish(&self, segment: Segment) -> Result<FinishedSegment<Partial>, SwiftSyncError> {
        let SegmentOutput { partial, run, hints, hashes } = self.finish(segment)?;
        Ok(FinishedSegment { partial, runs: vec![run, encoded(&hints), hashes, Vec::new()] })
    }

    fn nothing(&self) -> Partial {
        Partial::new(HeightRange::new(0, 0), self.aggregator.zero())
    }

    fn conclude(&self, whole: &Partial, stop: Height) -> Result<Verdict, SwiftSyncError> {
        expect_whole(whole, stop)?;
        let (created, spent) = (whole.created, whole.counts.inputs);
        if created != spent || !whole.sums.is_balanced() {
            return Err(match whole.sums.kind() {
                AggregateKind::Coins => SwiftSyncError::CoinsUnbalanced { created, spent },
                _ => SwiftSyncError::Unbalanced { created, spent },
            });
        }
        expect_unique(&whole.coinbases)?;
        let supply = max_supply(stop, self.params.subsidy_halving_interval);
        let amount = whole.survivors.amount.saturating_add(whole.unspendable_amount);
        if amount > u128::from(supply) {
            return Err(SwiftSyncError::Supply { amount, supply, stop });
        }
        Ok(Verdict {
            counts: whole.counts,
            coins: whole.survivors,
            muhash: self.facts.muhash.then(|| whole.muhash.finalize()),
            aggregate: whole.sums.kind(),
        })
    }
}

/// Encodes the hints of a segment as in a BIP-456 file, element by element.
fn encoded(hints: &IndexHints) -> Vec<u8> {
    let mut out = Vec::new();
    for height in hints.range().heights() {
        let indices = hints.block(height).unwrap_or_default();
        encode(indices, BitOrder::MsbFirst, &mut out)
            .expect("a segment keeps ascending indices of outputs that fit in a block");
    }
    out
}
