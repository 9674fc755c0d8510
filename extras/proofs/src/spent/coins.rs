//! [`Spends`]: what a block spends, and the undo data that follow from it and from leaf data.
//!
//! Leaf data have the coins of other blocks, in the order of the inputs. A coin that the block itself creates is in the
//! block.

use apus_chain::{BlockBytes, BlockUndoWriter, CoinRef, OutPoint, Reader, Txid};
use apus_engine::tx_table::TxTable;
use apus_utreexo::{CompactLeaf, Spender};

/// What a block spends.
pub(super) struct Spends<'b> {
    block: BlockBytes<'b>,
    /// For each input after the coinbase's, the transaction of the block that creates its coin, if one does.
    own: Vec<Option<u32>>,
    /// The outpoints of the others.
    others: Vec<OutPoint>,
}

impl<'b> Spends<'b> {
    pub(super) fn of(block: &BlockBytes<'b>) -> Self {
        let view = block.view();
        let mut table = TxTable::new(view.tx_count());
        for &txid in block.txids() {
            table.add(Txid(txid));
        }
        let mut spends = Self { block: *block, own: Vec::new(), others: Vec::new() };
        for input in view.txs().skip(1).flat_map(|tx| tx.inputs()) {
            let own = table.find_spent(input.outpoint());
            spends.own.push(own);
            if own.is_none() {
                spends.others.push(OutPoint::from_bytes(input.outpoint()));
            }
        }
        spends
    }

    /// The number of coins of other blocks.
    pub(super) const fn leaves(&self) -> usize {
        self.others.len()
    }

    /// The outpoint of one of them.
    pub(super) fn outpoint(&self, leaf: usize) -> OutPoint {
        self.others[leaf]
    }

    /// Reads the leaf data of these coins.
    pub(super) fn read<'l>(&self, bytes: &'l [u8]) -> Result<Vec<CompactLeaf<'l>>, String> {
        let mut reader = Reader::new(bytes);
        let mut leaves = Vec::with_capacity(self.leaves());
        let mut own = self.own.iter();
        for tx in self.block.view().txs().skip(1) {
            for (input, witness) in tx.inputs().zip(tx.witnesses()) {
                if own.next().is_some_and(Option::is_some) {
                    continue;
                }
                let leaf = CompactLeaf::read(&mut reader, &Spender::new(&input, &witness));
                let outpoint = OutPoint::from_bytes(input.outpoint());
                leaves.push(leaf.map_err(|error| format!("{outpoint}: {error}"))?);
            }
        }
        match reader.remaining() {
            0 => Ok(leaves),
            count => Err(format!("{count} bytes are left over")),
        }
    }

    /// The block's undo data, as Core writes them.
    pub(super) fn undo(&self, leaves: &[CompactLeaf<'_>]) -> Result<Vec<u8>, String> {
        let view = self.block.view();
        let (mut out, mut own, mut leaves) = (Vec::new(), self.own.iter(), leaves.iter());
        let mut undo = BlockUndoWriter::new(&mut out, view.tx_count());
        for tx in view.txs().skip(1) {
            let mut coins: Vec<CoinRef<'_>> = Vec::with_capacity(tx.inputs().len());
            for input in tx.inputs() {
                let coin = match own.next().copied().flatten() {
                    Some(creator) => self.own_coin(creator, input.outpoint()),
                    None => leaves.next().map(CompactLeaf::coin),
                };
                coins.push(coin.ok_or_else(|| {
                    format!("nothing creates {}", OutPoint::from_bytes(input.outpoint()))
                })?);
            }
            undo.push_tx(coins.into_iter());
        }
        undo.finish();
        Ok(out)
    }

    /// An output of the block itself.
    fn own_coin(&self, creator: u32, outpoint: &[u8; OutPoint::SIZE]) -> Option<CoinRef<'b>> {
        let vout = OutPoint::from_bytes(outpoint).vout as usize;
        let output = self.block.view().tx(creator as usize)?.outputs().nth(vout)?;
        Some(CoinRef {
            height: self.block.height(),
            coinbase: creator == 0,
            amount: output.value().unsigned_abs(),
            script: output.script(),
        })
    }
}
