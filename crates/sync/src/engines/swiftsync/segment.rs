//! A segment under way: what its blocks leave behind, one after the other in any order.
//!
//! Outputs that the hints say survive, or that a later block spends, are kept and everything else goes into the aggregate. Each
//! block of the range counts exactly once. Whether the sums balance is asked of all segments
//! together, not here.

use super::aggregate::{Adding, Sums};
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

/// A segment under way.
pub struct Segment {
    partial: Partial,
    hints: SegmentHints,
    /// None counts twice.
    seen: SeenHeights,
    /// How many coins of a snapshot were found.
    found: usize,
    kept: SurvivorsSoFar,
    adding: Adding,
    /// For each block that was taken whole where in `kept.indices` its own begin and end.
    blocks: Vec<(Height, Range<usize>)>,
}

/// What a finished segment leaves behind.
pub struct Finished {
    /// The partial result.
    pub partial: Partial,
    /// The surviving coins: records `txid ‖ u32le length ‖ group`, sorted by txid.
    pub run: Vec<u8>,
    /// Where the surviving coins are in their blocks: the segment's hints, whatever told them.
    pub hints: IndexHints,
    /// Hashes of the surviving coins by ascending place, if they were asked for ([`write_placed`](crate::commitment::write_placed)).
    pub hashes: Vec<u8>,
}

/// What a segment tells besides its coins.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tells {
    /// The coins' MuHash.
    pub(super) muhash: bool,
    /// The numbers of outputs, and hashes of the coins: what makes these.
    pub(super) hashes: Option<NewHasher>,
}

/// The survivors so far.
#[derive(Default)]
struct SurvivorsSoFar {
    coins: Survivors,
    /// Their MuHash, where that is asked for.
    set: Option<Box<MuHashBatch>>,
    /// Their places among their blocks' spendable outputs.
    indices: Vec<u32>,
    /// Their hashes, where these are asked for.
    hashes: Option<SegmentHashes>,
}

impl Segment {
    /// Covers the range of `hints`; `zero` is the aggregate's sums of nothing.
    pub(super) fn new(hints: SegmentHints, zero: Sums, adding: Adding, tells: Tells) -> Self {
        let range = hints.range();
        Self {
            partial: Partial::new(range, zero),
            seen: SeenHeights::none_of(range),
            found: 0,
            hints,
            kept: SurvivorsSoFar {
                set: tells.muhash.then(Box::default),
                hashes: tells.hashes.map(SegmentHashes::new),
                ..SurvivorsSoFar::default()
            },
            adding,
            blocks: Vec::new(),
        }
    }

    /// Takes a block, which spends these coins, in their stored form and in the order of its inputs. None
    /// are told where outpoints are added up.
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
        let mut surviving = Surviving { hinted: BlockHints::of(hints, height, &txs), spent_later };
        let mut index = 0;
        // Ids are referred to and not copied, which would cost some ten nanoseconds each.
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

    /// Ends the segment, all of whose blocks must have been given.
    pub(super) fn finish(mut self) -> Result<Finished, SwiftSyncError> {
        let range = self.hints.range();
        self.blocks.sort_unstable_by_key(|(height, _)| *height);
        // One that failed half-way came, and is not whole.
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
        Ok(Finished { partial, run: coins.into_run(), hints, hashes })
    }

    /// Notes that the block came, or says that it should not have.
    fn expect(&mut self, height: Height) -> Result<(), SwiftSyncError> {
        match self.seen.take(height) {
            true => Ok(()),
            false => Err(SwiftSyncError::Unexpected(height)),
        }
    }

    /// The hints that the blocks, now all known and in order, turned out to need.
    fn found_hints(&self) -> IndexHints {
        let mut hints = IndexHints::new(self.hints.range().start);
        for (_, range) in &self.blocks {
            hints.push(&self.kept.indices[range.clone()]);
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

/// Adds up what the inputs spend, as `spent` has it or by name alone, and says what that is of the block's own: transaction
/// and output of each. All its transactions go into `txs`, which is empty.
///
/// A block's transactions are applied one after the other (Core `validation.cpp`, `ConnectBlock`), so of what the block itself
/// creates each can spend only what stands before it, and nothing of the coinbase.
fn inputs(
    block: &BlockBytes<'_>,
    spent: &[&[u8]],
    txs: &mut TxTable,
    adding: &mut Adding,
) -> Result<Vec<(u32, u32)>, SwiftSyncError> {
    let (view, mut spent, mut own) = (block.view(), spent.iter(), Vec::new());
    for &txid in block.txids() {
        txs.add(Txid(txid));
    }
    // Those of all transactions in one loop: a loop over the one or two of each ends when the processor doesn't foresee it.
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

/// What the outputs of one transaction have in common.
#[derive(Clone, Copy)]
struct SegmentTx<'a> {
    height: Height,
    /// Where it stands in its block: at 0 is the coinbase.
    place: u32,
    txid: &'a [u8; 32],
}

/// Keeps the outputs that survive and adds up the others as created. `index` counts the block's
/// spendable outputs.
fn outputs(
    made: SegmentTx<'_>,
    tx: &TxView<'_>,
    index: &mut u32,
    surviving: &mut Surviving<'_>,
    partial: &mut Partial,
    kept: &mut SurvivorsSoFar,
    adding: &mut Adding,
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

    /// The outputs of a coinbase that history overwrote are numbered all the same, and no spend takes them.
    fn leave_overwritten(&mut self, height: Height, txid: Txid, tx: &TxView<'_>) {
        let Some(hashes) = &mut self.hashes else { return };
        for (outpoint, coin) in coins_of(height, txid, tx, true) {
            hashes.output(0, &outpoint, coin, true);
        }
    }
}

/// What is known of a block from elsewhere.
pub(super) struct BlockFacts<'a> {
    /// Whether it is one whose coinbase BIP-30's history took away.
    pub(super) unspendable: bool,
    /// Whether its coinbase must be looked at for BIP-30.
    pub(super) unique: bool,
    /// What is spent by blocks above those of the run that the hints know of.
    pub(super) spent_later: Option<&'a SpentLater>,
}

/// The survivors still to come in one block.
struct Surviving<'a> {
    hinted: BlockHints<'a>,
    spent_later: Option<&'a SpentLater>,
}

impl Surviving<'_> {
    /// Whether the output survives; asked in ascending order.
    #[inline]
    fn next_is(&mut self, index: u32, vout: u32, outpoint: impl Fn() -> OutPoint) -> bool {
        self.hinted.next_is(index, vout)
            || self.spent_later.is_some_and(|spent| spent.contains(&outpoint().to_bytes()))
    }
}

/// Those that the hints name.
enum BlockHints<'a> {
    /// Indices of the block that were not met yet.
    Indices(&'a [u32]),
    /// A snapshot's coins of the block.
    Coins {
        coins: &'a [OutPoint],
        /// Where those of each of the block's transactions are.
        places: Vec<Range<u32>>,
        /// Where those of the present one are that were not met yet.
        rest: Range<u32>,
        /// How many of all were met.
        found: usize,
    },
}

impl<'a> BlockHints<'a> {
    /// Those of a block whose transactions these are.
    fn of(hints: &'a SegmentHints, height: Height, txs: &TxTable) -> Self {
        match hints {
            SegmentHints::Indices(hints) => Self::Indices(hints.block(height).unwrap_or_default()),
            SegmentHints::Coins(hints) => {
                let coins = hints.block(height).unwrap_or_default();
                Self::Coins { coins, places: places_of(coins, txs), rest: 0..0, found: 0 }
            }
        }
    }

    /// Goes on to a transaction.
    fn transaction(&mut self, place: u32) {
        if let Self::Coins { places, rest, .. } = self {
            *rest = places[place as usize].clone();
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
            Self::Coins { coins, rest, found, .. } => {
                let is_next = rest.start < rest.end && coins[rest.start as usize].vout == vout;
                rest.start += u32::from(is_next);
                *found += usize::from(is_next);
                is_next
            }
        }
    }

    /// How many of a snapshot's coins the block turned out to have so far.
    fn found(&self) -> usize {
        if let Self::Coins { found, .. } = self { *found } else { 0 }
    }
}

/// Where in ascending coins those of each transaction are. Coins of a transaction that is not among `txs`
/// are nowhere. Of two with one id, which BIP-30 does not allow, the last one has them.
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
