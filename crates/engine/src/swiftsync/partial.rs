//! [`Partial`]: what is left of a part of the chain once its blocks are forgotten.
//!
//! Partial results add up, in any order and any grouping; the one of all heights decides. They are
//! what a checkpoint keeps and what another machine would send, so they have a byte form
//! (`docs/formats/workdir.md`). The surviving coins themselves are not in here, only their count,
//! their amounts and their MuHash; they lie in runs.

use super::aggregate::{KindMismatch, Sums};
use apus_chain::{Height, HeightRange, MuHash, ReadError, Reader, Txid, write_compact_size};

/// How much was processed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks.
    pub blocks: u64,
    /// Bytes of blocks.
    pub bytes: u64,
    /// Transactions, coinbases included.
    pub transactions: u64,
    /// Inputs that spend a coin.
    pub inputs: u64,
    /// Outputs, unspendable ones included.
    pub outputs: u64,
}

/// Sums over the coins that survive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CoinTotals {
    /// Coins.
    pub coins: u64,
    /// Transactions with at least one surviving coin.
    pub transactions: u64,
    /// Their amounts in satoshis. Wide, since nothing bounds the amounts of a chain whose inputs
    /// are not looked at.
    pub amount: u128,
    /// Core's "bogosize": a size in bytes that depends on no database.
    pub bogosize: u64,
}

/// A coinbase that BIP-30 has to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CoinbaseId {
    /// Its transaction id.
    pub txid: Txid,
    /// The block's height.
    pub height: Height,
}

/// The result of some part of the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partial {
    /// The heights covered, ascending, neighbours joined.
    pub(super) ranges: Vec<HeightRange>,
    /// How much was processed.
    pub counts: Counts,
    /// The coins that survive.
    pub survivors: CoinTotals,
    /// Amounts of unspendable outputs, in satoshis.
    pub unspendable_amount: u128,
    /// The two sums.
    pub sums: Sums,
    /// How many outpoints are in the sum of the created.
    pub created: u64,
    /// MuHash of the surviving coins, as `gettxoutsetinfo muhash` builds it.
    pub muhash: MuHash,
    /// Coinbases that must be unique (BIP-30).
    pub coinbases: Vec<CoinbaseId>,
}

/// Two partial results do not fit together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// Some heights are in both.
    #[error("both parts cover height {0}")]
    Overlap(Height),
    /// Their aggregates are of different kinds.
    #[error(transparent)]
    Kind(#[from] KindMismatch),
}

impl Partial {
    /// The result of `range` before its first block.
    pub(super) fn new(range: HeightRange, sums: Sums) -> Self {
        Self {
            ranges: if range.is_empty() { vec![] } else { vec![range] },
            counts: Counts::default(),
            survivors: CoinTotals::default(),
            unspendable_amount: 0,
            sums,
            created: 0,
            muhash: MuHash::new(),
            coinbases: Vec::new(),
        }
    }

    /// The heights covered, ascending, neighbours joined.
    pub fn ranges(&self) -> &[HeightRange] {
        &self.ranges
    }

    /// Adds another part. Associative and commutative: order and grouping do not matter.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        let ranges = join(&self.ranges, &other.ranges).map_err(MergeError::Overlap)?;
        self.sums.merge(&other.sums)?;
        self.ranges = ranges;
        self.counts.blocks += other.counts.blocks;
        self.counts.bytes += other.counts.bytes;
        self.counts.transactions += other.counts.transactions;
        self.counts.inputs += other.counts.inputs;
        self.counts.outputs += other.counts.outputs;
        self.survivors.coins += other.survivors.coins;
        self.survivors.transactions += other.survivors.transactions;
        self.survivors.amount += other.survivors.amount;
        self.survivors.bogosize += other.survivors.bogosize;
        self.unspendable_amount += other.unspendable_amount;
        self.created += other.created;
        self.muhash.combine(&other.muhash);
        self.coinbases.extend_from_slice(&other.coinbases);
        self.coinbases.sort_unstable();
        Ok(())
    }

    /// Appends the byte form.
    pub fn write(&self, out: &mut Vec<u8>) {
        write_compact_size(out, self.ranges.len() as u64);
        for range in &self.ranges {
            out.extend_from_slice(&range.start.to_le_bytes());
            out.extend_from_slice(&range.end.to_le_bytes());
        }
        let Counts { blocks, bytes, transactions, inputs, outputs } = self.counts;
        let CoinTotals { coins, transactions: coin_transactions, amount, bogosize } =
            self.survivors;
        for number in [
            blocks,
            bytes,
            transactions,
            inputs,
            outputs,
            coins,
            coin_transactions,
            bogosize,
            self.created,
        ] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&amount.to_le_bytes());
        out.extend_from_slice(&self.unspendable_amount.to_le_bytes());
        self.sums.write(out);
        out.extend_from_slice(&self.muhash.to_bytes());
        write_compact_size(out, self.coinbases.len() as u64);
        for coinbase in &self.coinbases {
            out.extend_from_slice(&coinbase.txid.0);
            out.extend_from_slice(&coinbase.height.to_le_bytes());
        }
    }

    /// Reads what [`write`](Self::write) wrote; `None` where the bytes are not that.
    pub fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let ranges = read_ranges(reader)?;
        let mut numbers = [0u64; 9];
        for number in &mut numbers {
            *number = reader.u64().ok()?;
        }
        let [
            blocks,
            bytes,
            transactions,
            inputs,
            outputs,
            coins,
            coin_transactions,
            bogosize,
            created,
        ] = numbers;
        let amount = u128::from_le_bytes(*reader.array().ok()?);
        let unspendable_amount = u128::from_le_bytes(*reader.array().ok()?);
        let sums = Sums::read(reader)?;
        let muhash = MuHash::from_bytes(reader.array().ok()?).ok()?;
        let coinbases = read_coinbases(reader).ok()?;
        Some(Self {
            ranges,
            counts: Counts { blocks, bytes, transactions, inputs, outputs },
            survivors: CoinTotals { coins, transactions: coin_transactions, amount, bogosize },
            unspendable_amount,
            sums,
            created,
            muhash,
            coinbases,
        })
    }
}

/// Two sorted lists of ranges as one, neighbours joined; the first height in both if there is one.
fn join(left: &[HeightRange], right: &[HeightRange]) -> Result<Vec<HeightRange>, Height> {
    let mut all = [left, right].concat();
    all.sort_unstable();
    let mut joined: Vec<HeightRange> = Vec::with_capacity(all.len());
    for range in all {
        match joined.last_mut() {
            Some(last) if range.start < last.end => return Err(range.start),
            Some(last) if range.start == last.end => last.end = range.end,
            _ => joined.push(range),
        }
    }
    Ok(joined)
}

fn read_ranges(reader: &mut Reader<'_>) -> Option<Vec<HeightRange>> {
    let count = reader.compact_size().ok()?;
    let mut ranges: Vec<HeightRange> = Vec::new();
    for _ in 0..count {
        let (start, end) = (reader.u32().ok()?, reader.u32().ok()?);
        let ascending = ranges.last().is_none_or(|last| last.end < start);
        if start >= end || !ascending {
            return None;
        }
        ranges.push(HeightRange::new(start, end));
    }
    Some(ranges)
}

fn read_coinbases(reader: &mut Reader<'_>) -> Result<Vec<CoinbaseId>, ReadError> {
    let count = reader.compact_size()?;
    let mut coinbases = Vec::new();
    for _ in 0..count {
        let txid = Txid(*reader.array()?);
        coinbases.push(CoinbaseId { txid, height: reader.u32()? });
    }
    Ok(coinbases)
}
