//! [`Join`]: each coin with the spend that takes it.
//!
//! All records of one outpoint come together. They are gone through in the order of the chain, as the
//! set of coins would have been: a spend takes the coin that is there, or none; a coin that is made
//! while one of its name is there is noted, since BIP-30 may be against it. Within a block the
//! spends come first: what a block makes and spends itself is not among them, and an output of a
//! later transaction is not there yet.

use super::record::{MadeRecord, SpentRecord};
use apus_chain::{Height, OutPoint};
use core::ops::Range;

/// Takes what comes of a join, in no order that means anything.
pub trait JoinSink {
    /// Why it takes no more.
    type Error;

    /// The coin that a block wants at one of its places. Places without an answer have no coin.
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

    /// A block makes an output that exists when the block begins (BIP-30).
    fn exists(&mut self, height: Height, outpoint: &OutPoint) -> Result<(), Self::Error>;
}

/// A coin that was made.
#[derive(Debug, Clone)]
struct Made {
    height: Height,
    index: u32,
    /// Where it lies among the bytes; empty where its own block spends it.
    coin: Range<usize>,
}

/// See the module.
pub struct Join<'s, S> {
    sink: &'s mut S,
    outpoint: Option<OutPoint>,
    made: Vec<Made>,
    spent: Vec<(Height, u32)>,
    coins: Vec<u8>,
}

impl<'s, S: JoinSink> Join<'s, S> {
    /// Gives everything to `sink`.
    pub fn new(sink: &'s mut S) -> Self {
        Self { sink, outpoint: None, made: Vec::new(), spent: Vec::new(), coins: Vec::new() }
    }

    /// Takes a coin. Records of both kinds come by ascending outpoint, those of one in any order.
    ///
    /// # Panics
    /// When they don't, which is a mistake of the caller.
    pub fn made(&mut self, record: &MadeRecord<'_>) -> Result<(), S::Error> {
        self.go_to(record.outpoint)?;
        let start = self.coins.len();
        self.coins.extend_from_slice(record.coin);
        let (height, index) = (record.height, record.index);
        self.made.push(Made { height, index, coin: start..self.coins.len() });
        Ok(())
    }

    /// Takes a spend.
    ///
    /// # Panics
    /// As [`made`](Self::made).
    pub fn spent(&mut self, record: &SpentRecord) -> Result<(), S::Error> {
        self.go_to(record.outpoint)?;
        self.spent.push((record.height, record.place));
        Ok(())
    }

    /// No more records come.
    pub fn finish(mut self) -> Result<(), S::Error> {
        self.settle()
    }

    fn go_to(&mut self, outpoint: OutPoint) -> Result<(), S::Error> {
        if self.outpoint == Some(outpoint) {
            return Ok(());
        }
        assert!(self.outpoint.is_none_or(|before| before < outpoint), "outpoints ascend");
        self.settle()?;
        self.outpoint = Some(outpoint);
        Ok(())
    }

    /// Goes through all that is known of the outpoint.
    fn settle(&mut self) -> Result<(), S::Error> {
        let Some(outpoint) = self.outpoint else { return Ok(()) };
        self.made.sort_unstable_by_key(|made| (made.height, made.index));
        self.spent.sort_unstable();
        let mut made = self.made.drain(..).peekable();
        let mut spent = self.spent.drain(..).peekable();
        let mut there: Option<Made> = None;
        loop {
            let next =
                (made.peek().map(|made| made.height), spent.peek().map(|(height, _)| *height));
            let height = match next {
                (Some(made), Some(spent)) => made.min(spent),
                (Some(height), None) | (None, Some(height)) => height,
                (None, None) => break,
            };
            let existed = there.is_some();
            while let Some((_, place)) = spent.next_if(|(at, _)| *at == height) {
                if let Some(coin) = there.take() {
                    self.sink.answer(height, place, &self.coins[coin.coin])?;
                }
            }
            while let Some(new) = made.next_if(|made| made.height == height) {
                if existed {
                    self.sink.exists(height, &outpoint)?;
                }
                if !new.coin.is_empty() {
                    there = Some(new);
                }
            }
        }
        if let Some(Made { height, index, coin }) = there {
            self.sink.survives(&outpoint, height, index, &self.coins[coin])?;
        }
        self.coins.clear();
        Ok(())
    }
}
