//! [`SpentInBlock`]: which outputs of a block the same block spends.
//!
//! Such a coin is in no set, and multiplying a MuHash by it and dividing again would take a fifth of the time.
//! So no MuHash proves it: it is compared with its output instead. Undo data say which coins they are by their
//! height; finding the outputs takes a look-up for each.

use crate::block::IndexBlock;
use crate::making::MakeError;
use apus_chain::{BlockUndo, OutPoint, OutputView};

/// The outputs of a block that the same block spends. Reused from block to block.
#[derive(Debug, Default)]
pub(super) struct SpentInBlock {
    /// For each output of the block the number of the undo data's coin that spends it; empty if none does.
    spent: Vec<Option<u32>>,
    /// The number of each transaction's first output.
    firsts: Vec<usize>,
    /// The first bytes of each transaction's id, and its number; sorted.
    by_txid: Vec<(u64, u32)>,
}

impl SpentInBlock {
    /// Returns whether the block spends its output of this number, counted over all its transactions.
    ///
    /// # Errors
    ///
    /// Fails if the coin in the undo data is not this output.
    #[inline]
    pub(in crate::coin_stats) fn has(
        &self,
        number: usize,
        (output, coinbase): (&OutputView<'_>, bool),
        (block, undo): (&IndexBlock<'_>, &BlockUndo<'_>),
    ) -> Result<bool, MakeError> {
        let Some(&Some(coin)) = self.spent.get(number) else { return Ok(false) };
        // Their heights are the same: otherwise the output would not be here.
        let coin = undo.coins()[coin as usize].coin();
        let same = u64::try_from(output.value()) == Ok(coin.amount)
            && *output.script() == *coin.script
            && coinbase == coin.coinbase;
        match same {
            true => Ok(true),
            false => Err(MakeError::of_block(
                block,
                "its undo data have another amount or script for a coin that the block makes and spends",
            )),
        }
    }

    /// Finds the outputs that the block spends.
    ///
    /// # Errors
    ///
    /// Fails if the undo data say that an input spends a coin of this block, and it has no such coin.
    pub(in crate::coin_stats) fn find(
        &mut self,
        block: &IndexBlock<'_>,
        undo: &BlockUndo<'_>,
        txids: &[[u8; 32]],
    ) -> Result<(), MakeError> {
        self.spent.clear();
        if undo.coins().iter().all(|coin| coin.height() != block.height) {
            return Ok(());
        }
        self.prepare(block, txids);
        // The first input is the coinbase's.
        for (number, (input, coin)) in (0..).zip(block.view.inputs().skip(1).zip(undo.coins())) {
            if coin.height() == block.height {
                let place = self.place(&OutPoint::from_bytes(input.outpoint()), txids);
                let spent = place.and_then(|place| self.spent.get_mut(place));
                let Some(spent @ None) = spent else {
                    let what = "its undo data have a coin of this block that it has not";
                    return Err(MakeError::of_block(block, what));
                };
                *spent = Some(number);
            }
        }
        Ok(())
    }

    fn prepare(&mut self, block: &IndexBlock<'_>, txids: &[[u8; 32]]) {
        self.spent.resize(block.view.output_count(), None);
        self.firsts.clear();
        let mut first = 0;
        for tx in block.view.txs() {
            self.firsts.push(first);
            first += tx.outputs().len();
        }
        self.firsts.push(first);
        self.by_txid.clear();
        self.by_txid.extend((0..).zip(txids).map(|(at, txid)| (start(txid), at)));
        self.by_txid.sort_unstable();
    }

    /// The number of an output among all of the block.
    fn place(&self, outpoint: &OutPoint, txids: &[[u8; 32]]) -> Option<usize> {
        let key = start(&outpoint.txid.0);
        let from = self.by_txid.partition_point(|&(other, _)| other < key);
        let same = self.by_txid[from..].iter().take_while(|&&(other, _)| other == key);
        let mut same = same.map(|&(_, at)| at as usize);
        let tx = same.find(|&at| txids[at] == outpoint.txid.0)?;
        let place = self.firsts[tx].checked_add(outpoint.vout as usize)?;
        (place < self.firsts[tx + 1]).then_some(place)
    }
}

fn start(txid: &[u8; 32]) -> u64 {
    u64::from_le_bytes(*txid.first_chunk().expect("an id has 32 bytes"))
}
