//! [`Join`]: pairs each coin with the spend that takes it.
//!
//! All records of one transaction arrive together. The join replays each output's records in the order of the
//! chain, as the set of coins would have been: a spend takes the existing coin, or none; a coin created while
//! one with its outpoint exists is reported, because BIP-30 may forbid it. Within a block the spends come
//! first: coins that a block creates and spends itself are not among the records, and outputs of later
//! transactions do not exist yet.

use super::record::{OutputCoin, OutputRecord, SpendRecord};
use apus_chain::{Height, OutPoint, Reader, Txid};
use core::ops::Range;

/// Receives the results of a join, in no particular order.
pub trait JoinSink {
    /// The sink's error.
    type Error;

    /// Takes the coin for an input of a block, by the input's place. Places without an answer have no coin.
    fn answer(&mut self, height: Height, place: u32, coin: &[u8]) -> Result<(), Self::Error>;

    /// Takes a coin that no spend took; `index` is its position among the block's spendable outputs. Coins are
    /// passed by ascending outpoint, in the order of their records.
    fn survives(
        &mut self,
        outpoint: &OutPoint,
        height: Height,
        index: u32,
        coin: &[u8],
    ) -> Result<(), Self::Error>;

    /// Takes a coin that was created again while it existed, and so was lost: no spend takes it, and it does
    /// not survive. `height` is the height of the block that created the lost coin.
    fn overwritten(
        &mut self,
        outpoint: &OutPoint,
        height: Height,
        coin: &[u8],
    ) -> Result<(), Self::Error>;

    /// Reports an output that existed when the block that creates it began (BIP-30).
    fn exists(&mut self, height: Height, outpoint: &OutPoint) -> Result<(), Self::Error>;

    /// Takes a record whose transaction has no other record and whose coins all survive.
    fn record_survives(&mut self, record: &OutputRecord<'_>) -> Result<(), Self::Error> {
        each_coin_survives(self, record)
    }
}

/// Passes all coins of a record to the sink, one by one.
pub(super) fn each_coin_survives<S: JoinSink + ?Sized>(
    sink: &mut S,
    record: &OutputRecord<'_>,
) -> Result<(), S::Error> {
    let (txid, height) = (record.txid, record.height);
    record.coins().try_for_each(|OutputCoin { vout, index, coin }| {
        sink.survives(&OutPoint { txid, vout }, height, index, coin)
    })
}

/// How many coins a join read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JoinInput {
    /// Coins of all records, without coins that their own block spends.
    pub all: u64,
    /// Of these, the coins that blocks up to the base's height created.
    pub of_base: u64,
}

/// A created coin.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct OutputGroup {
    vout: u32,
    height: Height,
    index: u32,
    /// Its range among the bytes; empty if its own block spends it.
    coin: (usize, usize),
}

impl OutputGroup {
    fn range(&self) -> Range<usize> {
        self.coin.0..self.coin.1
    }
}

/// Output, height of the spending block and place of the input.
type Spend = (u32, Height, u32);

/// Pairs each coin with the spend that takes it.
pub struct Join<'s, S> {
    sink: &'s mut S,
    txid: Option<Txid>,
    /// The last block whose coins are counted as the base's.
    base: Height,
    taken: JoinInput,
    /// The current transaction's records of coins: height and range among the bytes.
    records: Vec<(Height, Range<usize>)>,
    coins: Vec<u8>,
    made: Vec<OutputGroup>,
    spent: Vec<Spend>,
}

impl<'s, S: JoinSink> Join<'s, S> {
    /// Creates a join that passes everything to `sink`.
    pub fn new(sink: &'s mut S) -> Self {
        Self {
            sink,
            txid: None,
            base: 0,
            taken: JoinInput::default(),
            records: Vec::new(),
            coins: Vec::new(),
            made: Vec::new(),
            spent: Vec::new(),
        }
    }

    /// Counts the coins that blocks up to this height created as the base's.
    #[must_use]
    pub fn above(self, base: Height) -> Self {
        Self { base, ..self }
    }

    /// Takes a transaction's coins. Records of both kinds must arrive by ascending txid, in any order within
    /// one txid.
    ///
    /// # Panics
    /// If the txids do not ascend, which is a mistake of the caller.
    pub fn made(&mut self, record: &OutputRecord<'_>) -> Result<(), S::Error> {
        self.go_to(record.txid)?;
        let start = self.coins.len();
        self.coins.extend_from_slice(record.coin_bytes());
        self.records.push((record.height, start..self.coins.len()));
        Ok(())
    }

    /// Takes a spend.
    ///
    /// # Panics
    /// If the txids do not ascend, which is a mistake of the caller.
    pub fn spent(&mut self, record: &SpendRecord) -> Result<(), S::Error> {
        self.go_to(record.outpoint.txid)?;
        self.spent.push((record.outpoint.vout, record.height, record.place));
        Ok(())
    }

    /// Finishes the join after the last record.
    pub fn finish(mut self) -> Result<JoinInput, S::Error> {
        self.settle()?;
        Ok(self.taken)
    }

    fn go_to(&mut self, txid: Txid) -> Result<(), S::Error> {
        if self.txid == Some(txid) {
            return Ok(());
        }
        assert!(self.txid.is_none_or(|before| before < txid), "txids ascend");
        self.settle()?;
        self.txid = Some(txid);
        Ok(())
    }

    /// Processes all records of the current transaction.
    fn settle(&mut self) -> Result<(), S::Error> {
        let Some(txid) = self.txid else { return Ok(()) };
        self.read_coins();
        let Self { sink, records, coins, made, spent, .. } = self;
        let is_spent = |made: &OutputGroup| made.range().is_empty();
        if let [(height, bytes)] = &records[..]
            && spent.is_empty()
            && !made.iter().any(is_spent)
        {
            sink.record_survives(&OutputRecord::of(txid, *height, &coins[bytes.clone()]))?;
            made.clear();
        }
        if made.is_empty() {
            // There is nothing to spend.
            spent.clear();
        }
        made.sort_unstable();
        spent.sort_unstable();
        let mut spends = &spent[..];
        for made in made.chunk_by(|a, b| a.vout == b.vout) {
            let outpoint = OutPoint { txid, vout: made[0].vout };
            let begins = spends.iter().position(|(vout, ..)| *vout >= outpoint.vout);
            spends = &spends[begins.unwrap_or(spends.len())..];
            let ends = spends.iter().position(|(vout, ..)| *vout > outpoint.vout);
            let (own, after) = spends.split_at(ends.unwrap_or(spends.len()));
            spends = after;
            one_output(*sink, &outpoint, made, own, coins)?;
        }
        records.clear();
        coins.clear();
        made.clear();
        spent.clear();
        Ok(())
    }

    /// Reads the coins of the current transaction's records, and counts them.
    fn read_coins(&mut self) {
        let Self { base, taken, records, coins, made, .. } = self;
        for (height, bytes) in records {
            let mut reader = Reader::new(&coins[bytes.clone()]);
            while let Some(OutputCoin { vout, index, coin }) = OutputCoin::read(&mut reader) {
                let end = bytes.end - reader.remaining();
                let coin = (end - coin.len(), end);
                let count = u64::from(coin.0 < coin.1);
                taken.all += count;
                taken.of_base += if *height <= *base { count } else { 0 };
                made.push(OutputGroup { vout, height: *height, index, coin });
            }
        }
    }
}

/// Processes all records of one output, by ascending height.
fn one_output<S: JoinSink>(
    sink: &mut S,
    outpoint: &OutPoint,
    made: &[OutputGroup],
    spent: &[Spend],
    coins: &[u8],
) -> Result<(), S::Error> {
    let mut made = made.iter().peekable();
    let mut spent = spent.iter().map(|(_, height, place)| (*height, *place)).peekable();
    let mut there: Option<&OutputGroup> = None;
    loop {
        let next = (made.peek().map(|made| made.height), spent.peek().map(|(height, _)| *height));
        let height = match next {
            (Some(made), Some(spent)) => made.min(spent),
            (Some(height), None) | (None, Some(height)) => height,
            (None, None) => break,
        };
        let existed = there.is_some();
        while let Some((_, place)) = spent.next_if(|(at, _)| *at == height) {
            if let Some(coin) = there.take() {
                sink.answer(height, place, &coins[coin.range()])?;
            }
        }
        while let Some(new) = made.next_if(|made| made.height == height) {
            if existed {
                sink.exists(height, outpoint)?;
            }
            if new.range().is_empty() {
                continue;
            }
            if let Some(lost) = there.replace(new) {
                sink.overwritten(outpoint, lost.height, &coins[lost.range()])?;
            }
        }
    }
    match there {
        Some(coin) => sink.survives(outpoint, coin.height, coin.index, &coins[coin.range()]),
        None => Ok(()),
    }
}
