//! One block of a range: what is told of it is proved, and it is judged by that.
//!
//! Proofs come first. What is said of a block that breaks a rule is then said of coins that are in the forest
//! with which its range began.

use super::coins::{BlockCoins, EntryReading};
use super::{ProofReader, ProvenError, Segment, Utreexo, known};
use apus_chain::{BlockBytes, CoinRef, KnownBlock, TxView};
use apus_engine::coin::CoinBytes;
use apus_engine::connect::rules::check_with_coins;
use apus_engine::connect::{ConnectContext, ConnectError};
use apus_engine::script::{NoInterpreter, RawTx, ScriptBatch};
use apus_engine::tx_table::TxTable;
use apus_sync::engines::bip30::CoinbaseId;
use apus_utreexo::{NodeHash, leaf_hashes};
use core::ops::Range;
use std::sync::Arc;

/// What is used anew for each block.
pub(super) struct BlockScratch {
    entry: Vec<u8>,
    hashes: Vec<NodeHash>,
    table: TxTable,
}

impl Default for BlockScratch {
    fn default() -> Self {
        Self { entry: Vec::new(), hashes: Vec::new(), table: TxTable::new(0) }
    }
}

impl Utreexo<'_> {
    /// Proves, judges and applies the next block of a range.
    pub(super) fn judge(
        &self,
        segment: &mut Segment<'_>,
        block: &BlockBytes<'_>,
    ) -> Result<(), ProvenError> {
        let id = known(block);
        let Segment { range, roots, partial, scratch, .. } = segment;
        let BlockScratch { entry, hashes, table } = scratch;
        let not_there = |what| ProvenError::NotThere { block: id, what };
        range.reader.read(&id, entry).map_err(not_there)?;
        let reader = &range.reader;
        let of_no_use = |error| ProvenError::Entry {
            block: id,
            origin: reader.origin(),
            error: Box::new(error),
        };
        let reading = EntryReading { params: self.params, chain: self.chain, block, table };
        let (proof, coins) = BlockCoins::read(entry, reading).map_err(of_no_use)?;
        let (leaves, deleted) = coins.leaves(self.chain);
        hashes.clear();
        leaf_hashes(&leaves, hashes);
        let (spent, added) = hashes.split_at(deleted);
        roots.update(&proof, spent, added).map_err(|error| of_no_use(error.into()))?;
        self.by_coins(block, id, &coins.spent(), &**reader)?;
        partial.counts.add_block(&block.view());
        let overwritten = self.params.is_bip30_unspendable(id.height, &id.hash);
        let kept = |coin: &CoinRef<'_>| !(overwritten && coin.coinbase);
        leaves[..deleted].iter().for_each(|leaf| partial.spent.add_coin(leaf.coin));
        let made = leaves[deleted..].iter().map(|leaf| leaf.coin).filter(kept);
        made.for_each(|coin| partial.made.add_coin(coin));
        if self.bip30.looks_at(id.height)
            && !overwritten
            && let Some((txid, _)) = block.txs().next()
        {
            partial.push_coinbase(CoinbaseId { txid, height: id.height });
        }
        Ok(())
    }

    /// Judges a block that spends these coins, up to the first input that has none.
    fn by_coins(
        &self,
        block: &BlockBytes<'_>,
        id: KnownBlock,
        coins: &[CoinRef<'_>],
        reader: &dyn ProofReader,
    ) -> Result<(), ProvenError> {
        let refused = |error| ProvenError::Refused {
            block: id,
            origin: reader.origin(),
            error: Box::new(error),
        };
        let check_scripts = id.height > self.assumed;
        let context = ConnectContext { ancestry: self.chain, check_scripts };
        let mut batch = match (&self.scripts, check_scripts) {
            (_, false) => None,
            (Some(pool), true) => {
                Some(pool.begin(self.params.block_script_flags(id.height, &id.hash)))
            }
            (None, true) => return Err(NoInterpreter.into()),
        };
        let raw = batch.is_some().then(|| Arc::new(block.view().raw().to_vec()));
        let passed = |index: usize, tx: &TxView<'_>, spends: Range<usize>| {
            if let (Some(batch), Some(raw)) = (&mut batch, &raw) {
                let raw =
                    RawTx::new(Arc::clone(raw) as _, tx.offset()..tx.offset() + tx.raw().len());
                batch.add(index, raw, coins[spends].iter().map(|it| CoinBytes::new(*it)).collect());
            }
        };
        check_with_coins(self.params, id, block.txs(), &context, coins, passed).map_err(refused)?;
        let Some(Err(failure)) = batch.map(|batch| ScriptBatch::finish(batch).wait()) else {
            return Ok(());
        };
        Err(match ConnectError::of_script(block.view(), &failure) {
            Some(error) => refused(error),
            None => ProvenError::Script { block: id, what: failure.reason() },
        })
    }
}
