//! Undo data: the coins that a block spent, in Core's form, which are needed to disconnect the block.
//!
//! For each transaction except the coinbase it holds the coins of its inputs, in input order (Core
//! `undo.h`, `CBlockUndo`). A [`BlockUndo`] was read completely and is in the one form that
//! [`BlockUndoWriter`] writes. Stores handle the records and files around it.

use crate::amount::compress_amount;
use crate::coin::{Coin, CoinRef, coin_code, read_after_code};
use crate::compress::CoinError;
use crate::compress::write_script;
use crate::hashes::BlockHash;
use crate::read::{ReadError, Reader, write_compact_size, write_varint};
use apus_hash::{Message, sha256d_each};

/// Why bytes are not undo data. Offsets count from the start of the slice being read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UndoError {
    /// A count could not be read, or bytes are left over.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A coin is not in the form that Core writes.
    #[error(transparent)]
    Coin(#[from] CoinError),
    /// Everything can be read, but a coin has the form that Core wrote before version 0.15: with the version of the
    /// transaction that created it, or, unless it was that transaction's last coin, without its height. Core still
    /// reads this form (`undo.h`, `TxInUndoFormatter`; `validation.cpp`, `ApplyTxInUndo`).
    #[error("the coin at byte {offset} is in the form of Bitcoin Core before 0.15")]
    Old {
        /// Offset of the first such coin.
        offset: usize,
    },
}

/// Writes the undo data of one block, transaction by transaction.
#[derive(Debug)]
pub struct BlockUndoWriter<'a> {
    out: &'a mut Vec<u8>,
    txs_left: usize,
}

impl<'a> BlockUndoWriter<'a> {
    /// Starts the undo data of a block with `txs` transactions, including the coinbase.
    pub fn new(out: &'a mut Vec<u8>, txs: usize) -> Self {
        let txs_left = txs.saturating_sub(1);
        write_compact_size(out, txs_left as u64);
        Self { out, txs_left }
    }

    /// Appends the coins of the next transaction after the coinbase, in input order.
    ///
    /// # Panics
    ///
    /// Panics if no transaction is left, which is a bug in the caller.
    pub fn push_tx<'c>(&mut self, coins: impl ExactSizeIterator<Item = CoinRef<'c>>) {
        self.begin_tx(coins.len());
        for coin in coins {
            write_code(self.out, coin_code(&coin));
            write_varint(self.out, compress_amount(coin.amount));
            write_script(self.out, coin.script);
        }
    }

    /// Like [`push_tx`](Self::push_tx), for coins in their [stored form](crate::write_coin), without decoding
    /// them.
    ///
    /// # Errors
    ///
    /// Fails if a coin is not in that form; then the written data is unusable.
    ///
    /// # Panics
    ///
    /// Panics if no transaction is left, which is a bug in the caller.
    pub fn push_stored_tx<'c>(
        &mut self,
        coins: impl ExactSizeIterator<Item = &'c [u8]>,
    ) -> Result<(), CoinError> {
        self.push_stored_tx_without(coins, |_, _| false)
    }

    /// Like [`push_stored_tx`](Self::push_stored_tx), but omits amount and script of a coin if `leave`
    /// returns true. `leave` receives their position in the output, and their bytes.
    ///
    /// # Errors
    ///
    /// The same as for [`push_stored_tx`](Self::push_stored_tx).
    ///
    /// # Panics
    ///
    /// The same as for [`push_stored_tx`](Self::push_stored_tx).
    pub fn push_stored_tx_without<'c>(
        &mut self,
        coins: impl ExactSizeIterator<Item = &'c [u8]>,
        mut leave: impl FnMut(usize, &'c [u8]) -> bool,
    ) -> Result<(), CoinError> {
        self.begin_tx(coins.len());
        for coin in coins {
            let mut reader = Reader::new(coin);
            write_code(self.out, reader.varint_u32()?);
            let rest = &coin[reader.position()..];
            if !leave(self.out.len(), rest) {
                self.out.extend_from_slice(rest);
            }
        }
        Ok(())
    }

    fn begin_tx(&mut self, inputs: usize) {
        assert!(self.txs_left > 0, "more transactions than announced");
        self.txs_left -= 1;
        write_compact_size(self.out, inputs as u64);
    }

    /// Finishes the block.
    ///
    /// # Panics
    ///
    /// Panics if transactions are missing, which is a bug in the caller.
    pub fn finish(self) {
        assert!(self.txs_left == 0, "fewer transactions than announced");
    }
}

/// Writes height and coinbase flag, and the zero in place of the former version (Core `undo.h`,
/// `TxInUndoFormatter`).
fn write_code(out: &mut Vec<u8>, code: u32) {
    write_varint(out, u64::from(code));
    if code >> 1 > 0 {
        out.push(0);
    }
}

/// A coin read from undo data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UndoCoin<'a> {
    code: u32,
    /// Amount and script.
    rest: &'a [u8],
}

impl<'a> UndoCoin<'a> {
    /// Reads a coin, and returns whether it is in the one form that the writer produces.
    fn read(reader: &mut Reader<'a>, bytes: &'a [u8]) -> Result<(Self, bool), UndoError> {
        let code = reader.varint_u32()?;
        // No coin was created at height 0.
        let is_new = code >> 1 > 0 && reader.varint_u32()? == 0;
        let start = reader.position();
        read_after_code(reader, code, true)?;
        Ok((Self { code, rest: &bytes[start..reader.position()] }, is_new))
    }

    /// Returns the coin.
    pub fn coin(&self) -> Coin<'a> {
        read_after_code(&mut Reader::new(self.rest), self.code, true)
            .expect("the bytes of an undo coin were checked when it was read")
    }

    /// Returns the height of the block that created it, as stated in the data.
    pub const fn height(&self) -> u32 {
        self.code >> 1
    }

    /// Appends the [stored form](crate::write_coin) of the coin.
    pub fn write_stored(&self, out: &mut Vec<u8>) {
        write_varint(out, u64::from(self.code));
        out.extend_from_slice(self.rest);
    }
}

/// The undo data of one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockUndo<'a> {
    coins: Vec<UndoCoin<'a>>,
    /// The number of coins up to the end of each transaction.
    tx_ends: Vec<usize>,
}

impl<'a> BlockUndo<'a> {
    /// Reads undo data to the end, and accepts only data in the form of [`BlockUndoWriter`]. Memory is
    /// bounded by a small multiple of `bytes`, even if it claims huge counts.
    pub fn read(bytes: &'a [u8]) -> Result<Self, UndoError> {
        let mut reader = Reader::new(bytes);
        let (mut coins, mut tx_ends, mut old) = (Vec::new(), Vec::new(), None);
        for _ in 0..reader.compact_size()? {
            for _ in 0..reader.compact_size()? {
                let offset = reader.position();
                let (coin, is_new) = UndoCoin::read(&mut reader, bytes)?;
                old = old.or((!is_new).then_some(offset));
                coins.push(coin);
            }
            tx_ends.push(coins.len());
        }
        reader.finish()?;
        old.map_or(Ok(Self { coins, tx_ends }), |offset| Err(UndoError::Old { offset }))
    }

    /// Returns the number of transactions in the block, including the coinbase.
    pub fn tx_count(&self) -> usize {
        self.tx_ends.len() + 1
    }

    /// Returns the coins that the transaction at this index spent, in input order: empty for the coinbase,
    /// `None` if the block has no such transaction.
    pub fn spent_by(&self, tx: usize) -> Option<&[UndoCoin<'a>]> {
        let end =
            |after: usize| if after == 0 { Some(0) } else { self.tx_ends.get(after - 1).copied() };
        let start = end(tx.saturating_sub(1))?;
        self.coins.get(start..end(tx)?)
    }

    /// Returns all coins, in the order in which the block spent them.
    pub fn coins(&self) -> &[UndoCoin<'a>] {
        &self.coins
    }
}

/// Returns the checksum that Core stores after the undo data of a block (Core
/// `node/blockstorage.cpp`, `WriteBlockUndo`): over the hash of the previous block, then the data.
pub fn undo_checksum(prev: &BlockHash, undo: &[u8]) -> [u8; 32] {
    let mut sum = [[0; 32]];
    sha256d_each(|_| Message([&prev.0, undo, &[]]), &mut sum);
    let [sum] = sum;
    sum
}

#[cfg(test)]
mod tests;
