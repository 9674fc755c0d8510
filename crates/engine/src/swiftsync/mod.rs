//! SwiftSync: blocks in any order, told by hints which of their coins survive (BIP-457).
//!
//! A coin that the hints say survives is kept; every other one only goes into the
//! [aggregate](aggregate::Sums), and so does every spend. When all blocks were seen and the two
//! sums are equal, the hints were right and what was kept is the UTXO set. Wrong hints can only
//! make the run fail, never make it end in a wrong set.
//!
//! This is the *assumevalid* kind: like Core below its assumed-valid block, it runs no scripts; and
//! having no coins at hand it cannot see amounts spent, the order of creation and spending,
//! maturity or relative lock times. It does check every rule that needs no coins (by taking only
//! [`BlockBytes`]), that every coin spent existed and was spent once, BIP-30, and that no more
//! bitcoins came out than subsidies allow. The report says all this.

pub mod aggregate;
pub mod hints;
mod partial;
mod segment_hints;
mod survivors;

pub use partial::{CoinTotals, CoinbaseId, Counts, MergeError, Partial};
pub use segment_hints::{CoinHints, HintError, IndexHints, SegmentHints};

use aggregate::Aggregator;
use apus_chain::{
    BIP34_IMPLIES_BIP30_LIMIT, BlockBytes, CoinRef, HeaderChain, Height, HeightRange, MuHash,
    OutPoint, Params, TxView, Txid, is_unspendable, max_supply, write_utxo_element,
};
use survivors::Survivors;

/// Heights whose coinbases BIP-30 has to look at, and the coinbases that it excepts.
#[derive(Debug, Clone)]
struct Bip30 {
    /// BIP-34 makes coinbases unique from here on; `None` where this chain is not the one whose
    /// BIP-34 history is known, so that all are looked at.
    unique_from: Option<Height>,
}

impl Bip30 {
    /// Core `validation.cpp`, `ConnectBlock`: BIP-30 is enforced up to the activation of BIP-34 on
    /// the known chain, and again from [`BIP34_IMPLIES_BIP30_LIMIT`] on, where early
    /// coinbases hold numbers that are heights to come.
    fn new(params: &Params, chain: &HeaderChain) -> Self {
        let known = match params.bip34_hash {
            Some(hash) => chain.hash(params.bip34_height) == Some(&hash),
            // No coinbase came before BIP-34 that a later one could repeat.
            None => params.bip34_height <= 1,
        };
        Self { unique_from: known.then_some(params.bip34_height) }
    }

    fn looks_at(&self, height: Height) -> bool {
        height >= BIP34_IMPLIES_BIP30_LIMIT || self.unique_from.is_none_or(|unique| height < unique)
    }
}

/// The engine. Shared by all threads; what changes is in [`Segment`]s.
pub struct SwiftSync {
    params: Params,
    aggregator: Aggregator,
    bip30: Bip30,
}

/// A segment under way.
pub struct Segment {
    partial: Partial,
    hints: SegmentHints,
    /// Heights of the segment that were given already, so that none counts twice.
    seen: Vec<bool>,
    /// Which coins of a snapshot were found; empty where hints go by place.
    found: Vec<bool>,
    survivors: Survivors,
    /// Indices of the survivors, and for each block that was taken whole where its own begin and
    /// end.
    indices: Vec<u32>,
    blocks: Vec<(Height, core::ops::Range<usize>)>,
    created: Vec<[u8; OutPoint::SIZE]>,
    spent: Vec<[u8; OutPoint::SIZE]>,
    element: Vec<u8>,
}

/// What a finished segment leaves behind.
pub struct Finished {
    /// The partial result.
    pub partial: Partial,
    /// The surviving coins: records `txid ‖ u32le length ‖ group`, sorted by txid.
    pub run: Vec<u8>,
    /// Where the surviving coins are in their blocks: the segment's hints, whatever told them.
    pub hints: IndexHints,
}

/// Why a segment or a whole run failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SwiftSyncError {
    /// The hints and the blocks do not fit together.
    #[error(transparent)]
    Hints(#[from] HintError),
    /// A block came twice or does not belong to the segment: a mistake of the caller's.
    #[error("block {0} is not one that this segment still waits for")]
    Unexpected(Height),
    /// Blocks are missing.
    #[error("the blocks {missing} of the chain up to {stop} were not processed")]
    Incomplete {
        /// The first gap.
        missing: HeightRange,
        /// The stop height.
        stop: Height,
    },
    /// Blocks are there that do not belong to the run: a mistake of the caller's.
    #[error("the blocks {surplus} were processed, but a run covers the heights 1 to {stop} alone")]
    Surplus {
        /// The first of them.
        surplus: HeightRange,
        /// The stop height.
        stop: Height,
    },
    /// The sums differ.
    #[error(
        "the aggregate does not balance: the hints leave {created} coins to be spent and the \
         blocks spend {spent}{}: the hints are wrong for this chain (made for another stop block \
         or a stale fork, or damaged), or the chain spends a coin twice or one that never was. Get \
         other hints",
        if created == spent { ", as many, but not the same ones" } else { "" }
    )]
    Unbalanced {
        /// Outpoints that were created and do not survive.
        created: u64,
        /// Outpoints that were spent.
        spent: u64,
    },
    /// More bitcoins than subsidies allow.
    #[error(
        "the outputs that were never spent add up to {amount} satoshis, more than the {supply} \
         that all subsidies up to height {stop} allow: the chain creates money"
    )]
    Supply {
        /// Satoshis in coins and unspendable outputs.
        amount: u128,
        /// The bound.
        supply: u64,
        /// The stop height.
        stop: Height,
    },
    /// Two coinbases with one txid.
    #[error(
        "the coinbases of blocks {first} and {second} have the same id {txid}: BIP-30 allows that \
         only if the first was spent before the second, which cannot be known out of order"
    )]
    DuplicateCoinbase {
        /// The id.
        txid: Txid,
        /// The earlier block.
        first: Height,
        /// The later block.
        second: Height,
    },
}

/// A run whose sums balance: the set of surviving coins is the UTXO set at the stop height.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// How much was processed.
    pub counts: Counts,
    /// The UTXO set's totals.
    pub coins: CoinTotals,
    /// MuHash of the set in internal order, as `gettxoutsetinfo muhash` shows it reversed.
    pub muhash: [u8; 32],
}

impl SwiftSync {
    /// An engine for the chain given.
    pub fn new(params: &Params, chain: &HeaderChain, aggregator: Aggregator) -> Self {
        Self { params: params.clone(), aggregator, bip30: Bip30::new(params, chain) }
    }

    /// Starts a segment, which covers the range of its hints.
    pub fn begin(&self, hints: SegmentHints) -> Segment {
        let range = hints.range();
        let coins = if let SegmentHints::Coins(coins) = &hints { coins.count() } else { 0 };
        Segment {
            partial: Partial::new(range, self.aggregator.zero()),
            seen: vec![false; range.count() as usize],
            found: vec![false; coins],
            hints,
            survivors: Survivors::default(),
            indices: Vec::new(),
            blocks: Vec::new(),
            created: Vec::new(),
            spent: Vec::new(),
            element: Vec::new(),
        }
    }

    /// Takes one block of the segment. Blocks may come in any order, each once. After an error the
    /// segment is of no use any more and cannot be finished.
    pub fn block(
        &self,
        segment: &mut Segment,
        block: &BlockBytes<'_>,
    ) -> Result<(), SwiftSyncError> {
        segment.expect(block.height())?;
        let view = block.view();
        let counts = &mut segment.partial.counts;
        counts.blocks += 1;
        counts.bytes += view.raw().len() as u64;
        counts.transactions += view.tx_count() as u64;
        counts.inputs += view.input_count() as u64 - 1;
        counts.outputs += view.output_count() as u64;

        segment.created.clear();
        segment.spent.clear();
        let unspendable = self.params.is_bip30_unspendable(block.height(), &block.hash());
        let mut index = 0;
        let first = segment.indices.len();
        for (place, (txid, tx)) in block.txs().enumerate() {
            let coinbase = place == 0;
            if coinbase && unspendable {
                let amount: u128 = tx.outputs().map(|o| u128::from(o.value().unsigned_abs())).sum();
                segment.partial.unspendable_amount += amount;
                continue;
            }
            if coinbase && self.bip30.looks_at(block.height()) {
                segment.partial.coinbases.push(CoinbaseId { txid, height: block.height() });
            }
            if !coinbase {
                segment.spent.extend(tx.inputs().map(|input| *input.outpoint()));
            }
            segment.outputs(block.height(), coinbase, txid, &tx, &mut index);
        }
        segment.expect_no_more_indices(block, index)?;
        segment.blocks.push((block.height(), first..segment.indices.len()));
        segment.partial.created += segment.created.len() as u64;
        self.aggregator.create(&mut segment.partial.sums, &segment.created);
        self.aggregator.spend(&mut segment.partial.sums, &segment.spent);
        Ok(())
    }

    /// Ends a segment, all of whose blocks must have been given.
    pub fn finish(&self, mut segment: Segment) -> Result<Finished, SwiftSyncError> {
        let range = segment.hints.range();
        segment.blocks.sort_unstable_by_key(|(height, _)| *height);
        let taken = |index: usize| segment.blocks.get(index).map(|(height, _)| *height);
        if let Some((_, missing)) =
            (0..).zip(range.heights()).find(|&(index, height)| taken(index) != Some(height))
        {
            return Err(SwiftSyncError::Incomplete {
                missing: HeightRange::new(missing, missing + 1),
                stop: range.end - 1,
            });
        }
        let missing = segment.found.iter().filter(|found| !**found).count() as u64;
        if missing > 0 {
            return Err(HintError::CoinsMissing { range, missing }.into());
        }
        segment.partial.coinbases.sort_unstable();
        let hints = segment.found_hints();
        Ok(Finished { partial: segment.partial, run: segment.survivors.into_run(), hints })
    }

    /// A partial result of nothing, to merge others into.
    pub fn nothing(&self) -> Partial {
        Partial::new(HeightRange::new(0, 0), self.aggregator.zero())
    }

    /// Decides over a whole run: the merged result of heights 1 to `stop`.
    pub fn conclude(&self, whole: &Partial, stop: Height) -> Result<Verdict, SwiftSyncError> {
        expect_whole(whole, stop)?;
        if !whole.sums.is_balanced() {
            let (created, spent) = (whole.created, whole.counts.inputs);
            return Err(SwiftSyncError::Unbalanced { created, spent });
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
            muhash: whole.muhash.finalize(),
        })
    }
}

/// All heights from 1 to `stop` and no others.
fn expect_whole(whole: &Partial, stop: Height) -> Result<(), SwiftSyncError> {
    let wanted = HeightRange::new(1, stop + 1);
    let mut next = wanted.start;
    for range in whole.ranges() {
        if range.start < wanted.start {
            let surplus = HeightRange::new(range.start, wanted.start.min(range.end));
            return Err(SwiftSyncError::Surplus { surplus, stop });
        }
        if range.end > wanted.end {
            let surplus = HeightRange::new(wanted.end.max(range.start), range.end);
            return Err(SwiftSyncError::Surplus { surplus, stop });
        }
        if range.start > next {
            let missing = HeightRange::new(next, range.start);
            return Err(SwiftSyncError::Incomplete { missing, stop });
        }
        next = range.end;
    }
    if next < wanted.end {
        let missing = HeightRange::new(next, wanted.end);
        return Err(SwiftSyncError::Incomplete { missing, stop });
    }
    Ok(())
}

/// BIP-30 by the uniqueness of coinbases, from which that of all transactions follows: a later
/// transaction repeats an earlier one only if it spends the same coins.
fn expect_unique(coinbases: &[CoinbaseId]) -> Result<(), SwiftSyncError> {
    let mut sorted = coinbases.to_vec();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0].txid == pair[1].txid) {
        Some(pair) => Err(SwiftSyncError::DuplicateCoinbase {
            txid: pair[0].txid,
            first: pair[0].height,
            second: pair[1].height,
        }),
        None => Ok(()),
    }
}

impl Segment {
    /// Notes that the block came, or says that it should not have.
    fn expect(&mut self, height: Height) -> Result<(), SwiftSyncError> {
        let range = self.hints.range();
        let index = height.checked_sub(range.start).map(|index| index as usize);
        match index.and_then(|index| self.seen.get_mut(index)) {
            Some(seen) if !*seen => {
                *seen = true;
                Ok(())
            }
            _ => Err(SwiftSyncError::Unexpected(height)),
        }
    }

    /// Keeps the outputs that survive and notes the others as created. `index` counts the block's
    /// spendable outputs.
    fn outputs(
        &mut self,
        height: Height,
        coinbase: bool,
        txid: Txid,
        tx: &TxView<'_>,
        index: &mut u32,
    ) {
        let Self { hints, found, survivors, partial, created, element, indices, .. } = self;
        let mut surviving = Surviving::of(hints, height, txid, *index);
        for (vout, output) in tx.outputs().enumerate() {
            let (vout, script) = (vout as u32, output.script());
            let amount = output.value().unsigned_abs();
            if is_unspendable(script) {
                partial.unspendable_amount += u128::from(amount);
                continue;
            }
            let outpoint = OutPoint { txid, vout };
            if surviving.next_is(*index, vout) {
                let coin = CoinRef { height, coinbase, amount, script };
                add_survivor(&mut partial.survivors, &mut partial.muhash, element, outpoint, coin);
                survivors.push(vout, coin);
                indices.push(*index);
            } else {
                created.push(outpoint.to_bytes());
            }
            *index += 1;
        }
        surviving.note_found(found);
        let before = survivors.records();
        survivors.end_transaction(txid);
        partial.survivors.transactions += (survivors.records() - before) as u64;
    }

    /// The hints that the blocks, now all known and in order, turned out to need.
    fn found_hints(&self) -> IndexHints {
        let mut hints = IndexHints::new(self.hints.range().start);
        for (_, range) in &self.blocks {
            hints.push(&self.indices[range.clone()]);
        }
        hints
    }

    /// The hints must not name an output that the block does not have.
    fn expect_no_more_indices(
        &self,
        block: &BlockBytes<'_>,
        spendable: u32,
    ) -> Result<(), HintError> {
        let SegmentHints::Indices(hints) = &self.hints else { return Ok(()) };
        match hints.block(block.height()).and_then(<[u32]>::last) {
            Some(&index) if index >= spendable => Err(HintError::IndexOutOfRange {
                height: block.height(),
                hash: block.hash(),
                index,
                spendable,
            }),
            _ => Ok(()),
        }
    }
}

fn add_survivor(
    totals: &mut CoinTotals,
    muhash: &mut MuHash,
    element: &mut Vec<u8>,
    outpoint: OutPoint,
    coin: CoinRef<'_>,
) {
    totals.coins += 1;
    totals.amount += u128::from(coin.amount);
    totals.bogosize += apus_chain::bogosize(coin.script.len());
    element.clear();
    write_utxo_element(element, &outpoint, coin);
    muhash.insert(element);
}

/// The survivors still to come in one transaction.
enum Surviving<'a> {
    Indices(&'a [u32]),
    Coins {
        /// Where the transaction's coins begin among the snapshot's, and how many came already.
        start: usize,
        passed: usize,
        coins: &'a [OutPoint],
    },
}

impl<'a> Surviving<'a> {
    /// `index` is that of the transaction's first spendable output in its block.
    fn of(hints: &'a SegmentHints, height: Height, txid: Txid, index: u32) -> Self {
        match hints {
            SegmentHints::Indices(hints) => {
                let indices = hints.block(height).unwrap_or_default();
                Self::Indices(&indices[indices.partition_point(|&i| i < index)..])
            }
            SegmentHints::Coins(hints) => {
                let (start, coins) = hints.transaction(txid);
                Self::Coins { start, passed: 0, coins }
            }
        }
    }

    /// Whether the output survives; asked in ascending order.
    fn next_is(&mut self, index: u32, vout: u32) -> bool {
        match self {
            Self::Indices(rest) => match rest.split_first() {
                Some((next, after)) if *next == index => {
                    *rest = after;
                    true
                }
                _ => false,
            },
            Self::Coins { passed, coins, .. } => {
                let is_next = coins.get(*passed).is_some_and(|next| next.vout == vout);
                *passed += usize::from(is_next);
                is_next
            }
        }
    }

    /// Marks the coins that came. A snapshot names each once, although two transactions of one id
    /// may match; those are BIP-30's business.
    fn note_found(&self, found: &mut [bool]) {
        if let Self::Coins { start, passed, .. } = *self {
            found[start..start + passed].fill(true);
        }
    }
}
