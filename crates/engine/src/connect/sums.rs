//! The sum of the coins that a chain state is at, moved from block to block.
//!
//! What a block creates and leaves is added, what it takes from the set is taken away, as it was
//! fetched: a store that gives another coin than the one that was put in makes a sum that no set has.
//! Coins that are created and spent within a block are in no set, and in no sum.

use super::delta::{CoinChange, CoinsDelta};
use super::prepared::{PreparedBlock, coins_of};
use crate::coin::CoinBytes;
use apus_chain::{CheckedBlock, CoinAdder, CoinSum, CoinSumKey, OutPoint};

/// What of a block's sums depends on the block alone.
#[derive(Debug, Clone, Copy)]
pub struct BlockSums {
    /// The coins that it creates and leaves.
    pub created: CoinSum,
    /// Those that it creates and spends.
    pub own: CoinSum,
}

/// What a block comes to once its coins are there.
#[derive(Debug, Clone, Copy, Default)]
pub struct BlockChange {
    /// What it adds to the sum of the set.
    pub set: CoinSum,
    /// The coins that it takes from the set: those that come back where the block is undone.
    pub taken: CoinSum,
    /// All coins that it spends, its own among them: those of its undo data.
    pub spent: CoinSum,
}

/// The sum of a set on its way along a chain.
#[derive(Debug, Clone, Copy)]
pub struct RunningSum {
    /// The key of the sum.
    pub key: CoinSumKey,
    /// The sum of all coins of the set.
    pub sum: CoinSum,
}

impl RunningSum {
    /// Begins to add up what a block takes from the set, coin by coin.
    pub fn taken(&self) -> CoinAdder {
        CoinAdder::new(self.key)
    }

    /// What a block comes to that takes coins from the set which come to `taken`.
    pub fn change(&self, block: &PreparedBlock, taken: CoinSum) -> BlockChange {
        let BlockSums { created, own } = block.sums(&self.key);
        BlockChange { set: created.minus(taken), taken, spent: own.plus(taken) }
    }

    /// What it adds to go back from a block, whose undo data come to `undo` and bring back coins that come to
    /// `taken`; those of the coins to go that were `lost` before went then.
    pub fn back(
        &self,
        block: &CheckedBlock,
        undo: &CoinsDelta,
        taken: CoinSum,
        lost: &[OutPoint],
    ) -> CoinSum {
        let mut change = taken;
        for (index, (txid, tx)) in block.bytes().txs().enumerate() {
            for (outpoint, coin) in coins_of(block.height(), txid, &tx, index == 0) {
                if undo.get(&outpoint) == Some(None) && !lost.contains(&outpoint) {
                    change.sub(self.key.coin(&outpoint, CoinBytes::new(coin).as_bytes()));
                }
            }
        }
        change
    }
}

/// The sum of the coins that are there after a change and were not before it.
pub fn created(key: &CoinSumKey, delta: &CoinsDelta) -> CoinSum {
    let mut adder = CoinAdder::new(*key);
    for (outpoint, change) in delta.iter() {
        if let CoinChange::Created { coin, .. } = change {
            adder.add(outpoint, coin.as_bytes());
        }
    }
    adder.sum()
}
