//! [`Join`]: each coin with the spend that takes it.
//!
//! All records of one transaction come together. Those of each of its outputs are gone through in the order
//! of the chain, as the set of coins would have been: a spend takes the coin that is there, or none; a
//! coin that is made while one of its name is there is noted, since BIP-30 may be against it. Within a block
//! the spends come first: what a block makes and spends itself is not among them, and an output of a later
//! transaction is not there yet.

use super::record::{MadeCoin, MadeRecord, SpentRecord};
use apus_chain::{Height, OutPoint, Txid};
use core::ops::Range;

/// Takes what comes of a join, in no order that means anything.
pub trait JoinSink {
    /// Why it takes no more.
    type Error;

    /// The coin that an input of a block takes, by its place. Places without an answer have no coin.
    fn answer(&mut self, height: Height, place: u32, coin: &[u8]) -> Result<(), Self::Error>;

    /// No spend took a coin, which is the output `index` of those of its block that can be spent.
    /// Coins come by ascending outpoint, as their records did.
    fn survives(
        &mut self,
        outpoint: &OutPoint,
        height: Height,
        index: u32,
        coin: &[u8],
    ) -> Result<(), Self::Error>;

    /// A coin that is there is made once more, and lost: no spend takes it, and it does not survive. `height` is
    /// that of the block that made the lost one.
    fn overwritten(
        &mut self,
        outpoint: &OutPoint,
        height: Height,
        coin: &[u8],
    ) -> Result<(), Self::Error>;

    /// A block makes an output that exists when the block begins (BIP-30).
    fn exists(&mut self, height: Height, outpoint: &OutPoint) -> Result<(), Self::Error>;
}

/// A coin that was made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct MadeGroup {
    vout: u32,
    height: Height,
    index: u32,
    /// Where it lies among the bytes; empty where its own block spends it.
    coin: (usize, usize),
}

impl MadeGroup {
    fn range(&self) -> Range<usize> {
        self.coin.0..self.coin.1
    }
}

/// Output, height and place of the one who wants it.
type Spend = (u32, Height, u32);

/// See the module.
pub struct Join<'s, S> {
    sink: &'s mut S,
    txid: Option<Txid>,
    made: Vec<MadeGroup>,
    spent: Vec<Spend>,
    coins: Vec<u8>,
}

impl<'s, S: JoinSink> Join<'s, S> {
    /// Gives everything to `sink`.
    pub fn new(sink: &'s mut S) -> Self {
        Self { sink, txid: None, made: Vec::new(), spent: Vec::new(), coins: Vec::new() }
    }

    /// Takes coins. Records of both kinds come by ascending txid, those of one in any order.
    ///
    /// # Panics
    /// When they don't, which is a mistake of the caller.
    pub fn made(&mut self, record: &MadeRecord<'_>) -> Result<(), S::Error> {
        self.go_to(record.txid)?;
        let height = record.height;
        for MadeCoin { vout, index, coin } in record.coins() {
            let start = self.coins.len();
            self.coins.extend_from_slice(coin);
            self.made.push(MadeGroup { vout, height, index, coin: (start, self.coins.len()) });
        }
        Ok(())
    }

    /// Takes a spend.
    ///
    /// # Panics
    /// As [`made`](Self::made).
    pub fn spent(&mut self, record: &SpentRecord) -> Result<(), S::Error> {
        self.go_to(record.outpoint.txid)?;
        self.spent.push((record.outpoint.vout, record.height, record.place));
        Ok(())
    }

    /// No more records come.
    pub fn finish(mut self) -> Result<(), S::Error> {
        self.settle()
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

    /// Goes through all that is known of the transaction.
    fn settle(&mut self) -> Result<(), S::Error> {
        let Self { sink, made, spent, coins, .. } = self;
        let Some(txid) = self.txid else { return Ok(()) };
        if made.is_empty() {
            // There is nothing to spend.
            spent.clear();
            return Ok(());
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
        made.clear();
        spent.clear();
        coins.clear();
        Ok(())
    }
}

/// Goes through all that is known of one output, by ascending height.
fn one_output<S: JoinSink>(
    sink: &mut S,
    outpoint: &OutPoint,
    made: &[MadeGroup],
    spent: &[Spend],
    coins: &[u8],
) -> Result<(), S::Error> {
    let mut made = made.iter().peekable();
    let mut spent = spent.iter().map(|(_, height, place)| (*height, *place)).peekable();
    let mut there: Option<&MadeGroup> = None;
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
