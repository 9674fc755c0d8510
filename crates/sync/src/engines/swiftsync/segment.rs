//! A segment in progress: collects the results of its blocks, which arrive in any order.
//!
//! It keeps outputs that survive according to the hints, or that a later block spends; everything else goes
//! into the aggregate. Each block of the range counts exactly once. Whether the sums balance is only checked
//! over all segments together.

use super::aggregate::{OutpointBatch, Sums};
use super::coin_hashes::SegmentHashes;
use super::error::{MISSING, PREMATURE, SwiftSyncError};
use super::survivors::Survivors;
use super::{CoinbaseId, HintError, IndexHints, Partial, SegmentHints, SpentLater};
use crate::commitment::NewHasher;
use crate::engines::pass::SeenHeights;
use apus_chain::{
    BlockBytes, CoinRef, Height, HeightRange, MuHashBatch, OutPoint, TxView, Txid, is_unspendable,
    write_utxo_element,
};
use apus_engine::connect::coins_of;
use apus_engine::tx_table::TxTable;
use core::ops::Range;

/// A segment in progress.
pub struct Segment {
    partial: Partial,
    hints: SegmentHints,
    /// Each block counts only once.
    seen: SeenHeights,
    /// Number of the snapshot's coins found so far.
    found: usize,
    kept: SurvivorsSoFar,
    adding: OutpointBatch,
    /// For each complete block the range of its own indices in `kept.indices`.
    blocks: Vec<(Height, Range<usize>)>,
}

/// The result of a finished segment.
pub struct SegmentOutput {
    /// The partial result.
    pub partial: Partial,
    /// The surviving coins: records `txid ‖ u32le length ‖ group`, sorted by txid.
    pub run: Vec<u8>,
    /// The places of the surviving coins in their blocks: the segment's hints, in whatever form the input
    /// hints were.
    pub hints: IndexHints,
    /// Hashes of the surviving coins by ascending place, if they were requested
    /// ([`write_placed`](crate::commitment::write_placed)).
    pub hashes: Vec<u8>,
}

/// The additional results that a segment computes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SegmentFacts {
    /// Whether to compute the coins' MuHash.
    pub(super) muhash: bool,
    /// Makes the hasher, if outputs must be numbered and coins hashed.
    pub(super) hashes: Option<NewHasher>,
}

/// The survivors so far.
#[derive(Default)]
struct SurvivorsSoFar {
    coins: Survivors,
    /// Their MuHash, if it was requested.
    set: Option<Box<MuHashBatch>>,
    /// Their indices among their blocks' spendable outputs.
    indices: Vec<u32>,
    /// Their hashes, if they were requested.
    hashes: Option<SegmentHashes>,
}

impl Segment {
    /// Creates a segment for the range of `hints`; `zero` are the aggregate's empty sums.
    pub(super) fn new(
        hints: SegmentHints,
        zero: Sums,
        adding: OutpointBatch,
        facts: SegmentFacts,
    ) -> Self {
        let range = hints.range();
        Self {
            partial: Partial::new(range, zero),
            seen: SeenHeights::none_of(range),
            found: 0,
            hints,
            kept: SurvivorsSoFar {
                set: facts.muhash.then(Box::default),
                hashes: facts.hashes.map(SegmentHashes::new),
                ..SurvivorsSoFar::default()
            },
            adding,
            blocks: Vec::new(),
        }
    }

    /// Processes a block that spends these coins, given in stored form and in the order of its inputs. `spent`
    /// is empty if only outpoints are summed.
    pub(super) fn block(
        &mut self,
        block: &BlockBytes<'_>,
        spent: &[&[u8]],
        facts: &BlockFacts<'_>,
    ) -> Result<(), SwiftSyncError> {
        let &BlockFacts { unspendable, unique, spent_later } = facts;
        let height = block.height();
        self.expect(height)?;
        let mut txs = TxTable::new(block.view().tx_count());
        let own = inputs(block, spent, &mut txs, &mut self.adding)?;
        self.partial.counts.add_block(&block.view());
        let Self { partial, hints, found, kept, adding, .. } = self;
        let first = kept.indices.len();
        if let Some(hashes) = &mut kept.hashes {
            hashes.begin_block(block.hash(), own);
        }
        let mut surviving =
            BlockSurvivors { hinted: BlockHints::of(hints, height, &txs), spent_later };
        let mut index = 0;
        // Ids are borrowed and not copied: a copy costs some ten nanoseconds each.
        for (place, (txid, tx)) in (0..).zip(block.txids().iter().zip(block.view().txs())) {
            let coinbase = place == 0;
            if coinbase && unspendable {
                kept.leave_overwritten(height, Txid(*txid), &tx);
                let amount: u128 = tx.outputs().map(|o| u128::from(o.value().unsigned_abs())).sum();
                partial.unspendable_amount += amount;
                continue;
            }
            if coinbase && unique {
                partial.coinbases.push(CoinbaseId { txid: Txid(*txid), height });
            }
            surviving.hinted.transaction(place);
            let made = SegmentTx { height, place, txid };
            outputs(made, &tx, &mut index, &mut surviving, partial, kept, adding);
            partial.survivors.transactions += u64::from(kept.coins.end_transaction());
        }
        *found += surviving.hinted.found();
        if let Some(hashes) = &mut kept.hashes {
            hashes.end_block(height);
        }
        self.expect_no_more_indices(block, index)?;
        self.blocks.push((height, first..self.kept.indices.len()));
        Ok(())
    }

    /// Ends the segment after all of its blocks were processed.
    pub(super) fn finish(mut self) -> Result<SegmentOutput, SwiftSyncError> {
        let range = self.hints.range();
        self.blocks.sort_unstable_by_key(|(height, _)| *height);
        // A block that failed halfway was seen, but is not complete.
        let taken = |index: usize| self.blocks.get(index).map(|(height, _)| *height);
        if let Some((_, missing)) =
            (0..).zip(range.heights()).find(|&(index, height)| taken(index) != Some(height))
        {
            return Err(SwiftSyncError::Incomplete {
                missing: HeightRange::new(missing, missing + 1),
                stop: range.end - 1,
            });
        }
        if let SegmentHints::Coins(coins) = &self.hints
            && self.found < coins.count()
        {
            let missing = (coins.count() - self.found) as u64;
            return Err(HintError::CoinsMissing { range, missing }.into());
        }
        let hints = self.found_hints();
        let Self { mut partial, kept, adding, .. } = self;
        partial.coinbases.sort_unstable();
        partial.sums = adding.finish();
        let SurvivorsSoFar { coins, set, hashes, .. } = kept;
        if let Some(set) = set {
            partial.muhash = set.finish();
        }
        let (numbered, hashes) = hashes.map(SegmentHashes::finish).unwrap_or_default();
        partial.numbered = numbered;
        Ok(SegmentOutput { partial, run: coins.into_run(), hints, hashes })
    }

    /// Marks the block as seen, or fails if the segment does not expect it.
    fn expect(&mut self, height: Height) -> Result<(), SwiftSyncError> {
        match self.seen.take(height) {
            true => Ok(()),
            false => Err(SwiftSyncError::Unexpected(height)),
        }
    }

    /// Builds the hints from the survivors of all blocks, which are now in order.
    fn found_hints(&self) -> IndexHints {
        let mut hints = IndexHints::new(self.hints.range().start);
        for (_, range) in &self.blocks {
            let indices = &self.kept.indices[range.clone()];
            debug_assert!(indices.is_sorted_by(|a, b| a < b));
            hints.push(indices.iter().copied());
        }
        hints
    }

    /// Checks that the hints name only outputs that the block has.
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

/// Adds the coins that the inputs spend to the sums, from `spent` or by outpoint alone. Returns the spent
/// outputs that the block itself creates, as (transaction, output). Adds all its transactions to `txs`, which
/// starts empty.
///
/// A block's transactions are applied in order (Core `validation.cpp`, `ConnectBlock`), so each can spend
/// only outputs of earlier transactions in the block, and none of the coinbase's.
fn inputs(
    block: &BlockBytes<'_>,
    spent: &[&[u8]],
    txs: &mut TxTable,
    adding: &mut OutpointBatch,
) -> Result<Vec<(u32, u32)>, SwiftSyncError> {
    let (view, mut spent, mut own) = (block.view(), spent.iter(), Vec::new());
    for &txid in block.txids() {
        txs.add(Txid(txid));
    }
    // One loop over the inputs of all transactions: a separate loop over each transaction's one or two would end on
    // a branch that the processor mispredicts.
    let coinbase = view.tx(0).map_or(0, |tx| tx.inputs().len());
    for (place, input) in view.inputs().enumerate().skip(coinbase) {
        let bytes = input.outpoint();
        if let Some(creator) = txs.find_spent(bytes) {
            let (tx, outpoint) = (view.tx_of_input(place) as u32, OutPoint::from_bytes(bytes));
            if creator == 0 || creator >= tx {
                let reason = if creator == 0 { PREMATURE } else { MISSING };
                let (height, hash) = (block.height(), block.hash());
                return Err(SwiftSyncError::Order { height, hash, tx, outpoint, reason });
            }
            own.push((creator, outpoint.vout));
        }
        match spent.next() {
            Some(coin) => adding.spend_coin(bytes, coin),
            None => adding.spend(bytes),
        }
    }
    Ok(own)
}

/// Properties shared by the outputs of one transaction.
#[derive(Clone, Copy)]
struct SegmentTx<'a> {
    height: Height,
    /// Index in its block; the coinbase is 0.
    place: u32,
    txid: &'a [u8; 32],
}

/// Keeps the outputs that survive and adds the others to the sum of created outputs. `index` counts the block's
/// spendable outputs.
fn outputs(
    made: SegmentTx<'_>,
    tx: &TxView<'_>,
    index: &mut u32,
    surviving: &mut BlockSurvivors<'_>,
    partial: &mut Partial,
    kept: &mut SurvivorsSoFar,
    adding: &mut OutpointBatch,
) {
    let SegmentTx { height, place, txid } = made;
    let coinbase = place == 0;
    for (vout, output) in (0..).zip(tx.outputs()) {
        let (amount, script) = (output.value().unsigned_abs(), output.script());
        if is_unspendable(script) {
            partial.unspendable_amount += u128::from(amount);
            continue;
        }
        let outpoint = || OutPoint { txid: Txid(*txid), vout };
        let coin = CoinRef { height, coinbase, amount, script };
        let survives = surviving.next_is(*index, vout, outpoint);
        if let Some(hashes) = &mut kept.hashes {
            hashes.output(place, &outpoint(), coin, survives);
        }
        if survives {
            let totals = &mut partial.survivors;
            totals.coins += 1;
            totals.amount += u128::from(amount);
            totals.bogosize += apus_chain::bogosize(script.len());
            kept.push(outpoint(), *index, coin);
        } else {
            partial.created += 1;
            adding.create_coin(txid, vout, coin);
        }
        *index += 1;
    }
}

impl SurvivorsSoFar {
    fn push(&mut self, outpoint: OutPoint, index: u32, coin: CoinRef<'_>) {
        if let Some(set) = &mut self.set {
            set.insert_written(|out| write_utxo_element(out, &outpoint, coin));
        }
        self.coins.push(outpoint, coin);
        self.indices.push(index);
    }

    /// Numbers the outputs of a coinbase that history overwrote; no spend takes them.
    fn leave_overwritten(&mut self, height: Height, txid: Txid, tx: &TxView<'_>) {
        let Some(hashes) = &mut self.hashes else { return };
        for (outpoint, coin) in coins_of(height, txid, tx, true) {
            hashes.output(0, &outpoint, coin, true);
        }
    }
}

/// Facts about a block that the caller supplies.
pub(super) struct BlockFacts<'a> {
    /// Whether its coinbase is one of the two that BIP-30's history made unspendable.
    pub(super) unspendable: bool,
    /// Whether BIP-30 applies to its coinbase.
    pub(super) unique: bool,
    /// The coins spent by blocks that the hints cover and this sync does not process.
    pub(super) spent_later: Option<&'a SpentLater>,
}

/// The remaining survivors of one block.
struct BlockSurvivors<'a> {
    hinted: BlockHints<'a>,
    spent_later: Option<&'a SpentLater>,
}

impl BlockSurvivors<'_> {
    /// Whether the output survives; call it in ascending order.
    #[inline]
    fn next_is(&mut self, index: u32, vout: u32, outpoint: impl Fn() -> OutPoint) -> bool {
        self.hinted.next_is(index, vout)
            || self.spent_later.is_some_and(|spent| spent.contains(&outpoint().to_bytes()))
    }
}

/// The survivors that the hints name.
enum BlockHints<'a> {
    /// Indices of the block not reached yet.
    Indices(&'a [u32]),
    /// A snapshot's coins of the block.
    Coins {
        coins: &'a [OutPoint],
        /// The range of coins of each of the block's transactions.
        places: Vec<Range<u32>>,
        /// The current transaction's coins not reached yet.
        rest: Range<u32>,
        /// Number of coins found.
        found: usize,
    },
}

impl<'a> BlockHints<'a> {
    /// The survivors of a block, whose transactions are `txs`.
    fn of(hints: &'a SegmentHints, height: Height, txs: &TxTable) -> Self {
        match hints {
            SegmentHints::Indices(hints) => Self::Indices(hints.block(height).unwrap_or_default()),
            SegmentHints::Coins(hints) => {
                let coins = hints.block(height).unwrap_or_default();
                Self::Coins { coins, places: places_of(coins, txs), rest: 0..0, found: 0 }
            }
        }
    }

    /// Advances to a transaction.
    fn transaction(&mut self, place: u32) {
        if let Self::Coins { places, rest, .. } = self {
            *rest = places[place as usize].clone();
        }
    }

    /// Whether the output survives; call it in ascending order.
    fn next_is(&mut self, index: u32, vout: u32) -> bool {
        match self {
            Self::Indices(rest) => match rest.split_first() {
                Some((next, after)) if *next == index => {
                    *rest = after;
                    true
                }
                _ => false,
            },
            Self::Coins { coins, rest, found, .. } => {
                let is_next = rest.start < rest.end && coins[rest.start as usize].vout == vout;
                rest.start += u32::from(is_next);
                *found += usize::from(is_next);
                is_next
            }
        }
    }

    /// How many of a snapshot's coins were found in the block so far.
    fn found(&self) -> usize {
        if let Self::Coins { found, .. } = self { *found } else { 0 }
    }
}

/// The range of each transaction's coins among the ascending coins. Coins of a transaction that is not among
/// `txs` are dropped. If two transactions have one id, which BIP-30 forbids, the last one gets them.
fn places_of(coins: &[OutPoint], txs: &TxTable) -> Vec<Range<u32>> {
    let mut places = vec![0..0; txs.count()];
    let mut start = 0;
    for own in coins.chunk_by(|one, next| one.txid == next.txid) {
        let end = start + own.len() as u32;
        if let Some(tx) = txs.find(&own[0].txid) {
            places[tx as usize] = start..end;
        }
        start = end;
    }
    places
}
