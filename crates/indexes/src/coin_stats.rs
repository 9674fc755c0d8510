//! [`CoinStatsSegment`]: what each block does to the set of coins, in numbers and as a MuHash.
//!
//! The statistics of a block cover the whole set after it, so a segment of the chain only finds what its
//! blocks add to the statistics before them; [`write_coin_stats_index`](crate::write_coin_stats_index) puts
//! the segments together.
//!
//! For numbers that is a sum. For the MuHash it is a product divided by another: of the coins that blocks
//! created, and of those they spent. Each block needs its own quotient, and a division takes as long as many
//! products. So a group of blocks has one: from the inverse of the group's whole divisor follow those of
//! shorter ones, block by block backwards, with a product each.

mod in_block;

use crate::block::IndexBlock;
use crate::making::{ChainSpan, MakeError, expect_undo};
use crate::scratch::{ScratchFile, ScratchReader, ScratchRecords};
use apus_chain::{
    BlockHash, BlockUndo, CoinRef, MuHashBatch, OutPoint, Params, Txid, bogosize, is_unspendable,
    money_range, write_utxo_element,
};
use apus_hash::muhash::Num3072;
use apus_storage::Storage;
use in_block::SpentInBlock;

/// The number of blocks that share a division. Their products take 48 KB.
const GROUP: usize = 64;

/// What a block adds to the sums over a chain. Amounts are in satoshi; there can be more of them than all
/// money, because a block can move the same coins many times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BlockSums {
    /// Number of coins created, and spent.
    pub coins: [u128; 2],
    /// Core's measure of their size, created and spent.
    pub bogosize: [u128; 2],
    /// Amount of the coins spent.
    pub spent: u128,
    /// Amount of the coins created, without the coinbase's.
    pub created: u128,
    /// Amount of the coinbase's coins.
    pub coinbase: u128,
    /// Amount of outputs with a script that no input can spend.
    pub scripts: u128,
}

impl BlockSums {
    /// Length of the stored form.
    const SIZE: usize = 8 * 16;

    fn to_bytes(self) -> [u8; Self::SIZE] {
        let Self { coins: [a, b], bogosize: [c, d], spent, created, coinbase, scripts } = self;
        let numbers = [a, b, c, d, spent, created, coinbase, scripts];
        let mut bytes = [0; Self::SIZE];
        for (bytes, number) in bytes.as_chunks_mut().0.iter_mut().zip(numbers) {
            *bytes = number.to_le_bytes();
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let number = |at: usize| {
            u128::from_le_bytes(*bytes[16 * at..].first_chunk().expect("the form has eight"))
        };
        Self {
            coins: [number(0), number(1)],
            bogosize: [number(2), number(3)],
            spent: number(4),
            created: number(5),
            coinbase: number(6),
            scripts: number(7),
        }
    }
}

/// A block of a segment, when the whole segment is known.
pub(crate) struct SegmentBlock {
    pub hash: BlockHash,
    pub sums: BlockSums,
    /// The MuHash of the set after the block, divided by that before the segment.
    pub muhash: Num3072,
}

/// Collects the statistics of consecutive blocks. Uses some megabytes of memory.
pub struct CoinStatsSegment<'s> {
    params: &'s Params,
    scratch: &'s dyn Storage,
    span: Option<ChainSpan>,
    records: Option<ScratchFile<'s>>,
    group: Vec<GroupBlock>,
    /// The MuHash after the last whole group, divided by that before the segment.
    muhash: Num3072,
    spent_in_block: SpentInBlock,
}

/// A block of a group that is not complete.
struct GroupBlock {
    hash: BlockHash,
    sums: BlockSums,
    /// The product of all coins created in the segment up to this block, divided by those spent before the
    /// group.
    created: Num3072,
    /// The product of the coins that this block spends.
    spent: Num3072,
}

/// The statistics of consecutive blocks.
pub struct CoinStatsPart<'s> {
    pub(crate) span: ChainSpan,
    pub(crate) params: &'s Params,
    /// The MuHash after the last block, divided by that before the first one.
    pub(crate) muhash: Num3072,
    records: ScratchRecords<'s>,
}

impl<'s> CoinStatsSegment<'s> {
    /// Begins a segment. A temporary file of 544 bytes a block goes to `scratch`.
    pub fn new(params: &'s Params, scratch: &'s dyn Storage) -> Self {
        Self {
            params,
            scratch,
            span: None,
            records: None,
            group: Vec::with_capacity(GROUP),
            muhash: Num3072::ONE,
            spent_in_block: SpentInBlock::default(),
        }
    }

    /// Adds the next block: the child of the last one. `txids` are those of its transactions, in order.
    ///
    /// # Errors
    ///
    /// Fails if it is another block, without undo data, if amounts exceed the supply, and if a file cannot be
    /// written. The segment is then unusable.
    pub fn block(&mut self, block: &IndexBlock<'_>, txids: &[[u8; 32]]) -> Result<(), MakeError> {
        ChainSpan::push(&mut self.span, block)?;
        if self.records.is_none() {
            let name = format!("coinstats-{}.part", block.height);
            self.records = Some(ScratchFile::create(self.scratch, name)?);
        }
        let (sums, batch) = self.sum(block, txids)?;
        let muhash = batch.finish();
        let [created, spent] = muhash.fraction();
        let mut all_created = self.group.last().map_or(&self.muhash, |it| &it.created).clone();
        all_created.multiply(created);
        let (hash, spent) = (block.hash, spent.clone());
        self.group.push(GroupBlock { hash, sums, created: all_created, spent });
        if self.group.len() == GROUP { self.end_group() } else { Ok(()) }
    }

    /// Sums over the block's coins (Core `index/coinstatsindex.cpp`, `CustomAppend`).
    fn sum(
        &mut self,
        block: &IndexBlock<'_>,
        txids: &[[u8; 32]],
    ) -> Result<(BlockSums, MuHashBatch), MakeError> {
        let (mut sums, mut batch) = (BlockSums::default(), MuHashBatch::new());
        // No coin of genesis is in the set.
        let Some(undo) = expect_undo(block)? else { return Ok((sums, batch)) };
        if txids.len() != block.view.tx_count() {
            return Err(MakeError::of_block(block, "the ids of its transactions are incomplete"));
        }
        self.spent_in_block.find(block, undo, txids)?;
        let left_out = self.params.is_bip30_unspendable(block.height, &block.hash);
        self.create((block, undo), txids, left_out, &mut sums, &mut batch)?;
        spend(block, undo, &mut sums, &mut batch);
        Ok((sums, batch))
    }

    /// Adds the outputs, unless they never are coins; those of the coinbase are left out if a later coinbase
    /// takes their place (BIP-30).
    fn create(
        &self,
        (block, undo): (&IndexBlock<'_>, &BlockUndo<'_>),
        txids: &[[u8; 32]],
        without_coinbase: bool,
        sums: &mut BlockSums,
        batch: &mut MuHashBatch,
    ) -> Result<(), MakeError> {
        let mut output_number = 0;
        for (at, (tx, &txid)) in block.view.txs().zip(txids).enumerate() {
            let coinbase = at == 0;
            for (vout, output) in (0..).zip(tx.outputs()) {
                let number = output_number;
                output_number += 1;
                let spent = self.spent_in_block.has(number, (&output, coinbase), (block, undo))?;
                if coinbase && without_coinbase {
                    continue;
                }
                let (script, value) = (output.script(), output.value());
                let amount = u64::try_from(value).ok().filter(|&amount| money_range(amount));
                let Some(amount) = amount else {
                    return Err(MakeError::of_block(block, "an amount is out of range"));
                };
                if is_unspendable(script) {
                    sums.scripts += u128::from(amount);
                    continue;
                }
                let of_kind = if coinbase { &mut sums.coinbase } else { &mut sums.created };
                *of_kind += u128::from(amount);
                sums.coins[0] += 1;
                sums.bogosize[0] += u128::from(bogosize(script.len()));
                if !spent {
                    let coin = CoinRef { height: block.height, coinbase, amount, script };
                    let outpoint = OutPoint { txid: Txid(txid), vout };
                    batch.insert_written(|out| write_utxo_element(out, &outpoint, coin));
                }
            }
        }
        Ok(())
    }

    /// Turns the products of the group's blocks into quotients, and writes its records.
    fn end_group(&mut self) -> Result<(), MakeError> {
        let mut spent = Num3072::ONE;
        self.group.iter().for_each(|block| spent.multiply(&block.spent));
        let mut inverse = spent.inverse();
        for block in self.group.iter_mut().rev() {
            block.created.multiply(&inverse);
            inverse.multiply(&block.spent);
        }
        if let Some(last) = self.group.last() {
            self.muhash = last.created.clone();
        }
        let Some(records) = &mut self.records else { return Ok(()) };
        for GroupBlock { hash, sums, created, .. } in self.group.drain(..) {
            records.write(&hash.0)?;
            records.write(&sums.to_bytes())?;
            records.write(&created.to_bytes())?;
        }
        Ok(())
    }

    /// Ends the segment. `None` without a block.
    pub fn finish(mut self) -> Result<Option<CoinStatsPart<'s>>, MakeError> {
        self.end_group()?;
        let Self { params, span, records, muhash, .. } = self;
        let (Some(span), Some(records)) = (span, records) else { return Ok(None) };
        Ok(Some(CoinStatsPart { span, params, muhash, records: records.finish()? }))
    }
}

/// Removes the coins that a block spends.
fn spend(
    block: &IndexBlock<'_>,
    undo: &BlockUndo<'_>,
    sums: &mut BlockSums,
    batch: &mut MuHashBatch,
) {
    // The first input is the coinbase's.
    for (input, spent) in block.view.inputs().skip(1).zip(undo.coins()) {
        let coin = spent.coin();
        sums.coins[1] += 1;
        sums.bogosize[1] += u128::from(bogosize(coin.script.len()));
        sums.spent += u128::from(coin.amount);
        if coin.height != block.height {
            let outpoint = OutPoint::from_bytes(input.outpoint());
            batch.remove_written(|out| write_utxo_element(out, &outpoint, coin.as_ref()));
        }
    }
}

impl<'s> CoinStatsPart<'s> {
    /// Reads the blocks of the part, in order.
    pub(crate) fn read(self) -> Result<SegmentBlocks<'s>, MakeError> {
        Ok(SegmentBlocks(self.records.read()?))
    }
}

/// The blocks of a segment.
pub(crate) struct SegmentBlocks<'s>(ScratchReader<'s>);

impl SegmentBlocks<'_> {
    /// Reads the next block.
    pub(crate) fn next(&mut self) -> Result<SegmentBlock, MakeError> {
        let mut hash = [0; 32];
        self.0.next(&mut hash)?;
        let mut sums = [0; BlockSums::SIZE];
        self.0.next(&mut sums)?;
        let mut muhash = [0; Num3072::SIZE];
        self.0.next(&mut muhash)?;
        Ok(SegmentBlock {
            hash: BlockHash(hash),
            sums: BlockSums::from_bytes(&sums),
            muhash: Num3072::from_bytes(&muhash),
        })
    }
}
