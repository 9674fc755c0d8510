//! Random blocks that a node accepts.
//!
//! They spend coins of the same block, of the previous one and of long ago, and mix every kind of script, zero
//! amounts, lock times and relative lock times that are met. They stay far below every limit on size and
//! signature operations.

use super::builder::{BlockPlan, COINBASE_MATURITY, ChainBuilder, Commitment, coins_of};
use super::wallet::ScriptKind;
use bitcoin::absolute::LockTime;
use bitcoin::{Amount, Block, OutPoint, Sequence, Transaction, TxOut, transaction};

/// The size of random blocks.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Maximum number of transactions, without the coinbase.
    pub transactions_max: usize,
    /// Maximum number of inputs of a transaction.
    pub inputs_max: usize,
    /// Maximum number of outputs of a transaction.
    pub outputs_max: usize,
}

impl Default for Shape {
    fn default() -> Self {
        Self { transactions_max: 8, inputs_max: 4, outputs_max: 6 }
    }
}

/// A spendable coin, and its height.
pub(super) type Spendable = (OutPoint, TxOut, u32);

impl ChainBuilder {
    /// Adds a random valid block on the tip, which must itself be valid. Coinbase outputs can be spent only
    /// after 100 blocks, so the first blocks of a chain contain only coinbases.
    pub fn random_block(&mut self, shape: Shape) -> Block {
        let height = self.height() + 1;
        let (transactions, fees) = self.random_transactions(shape);
        // Some miners claim less than they may.
        let left = if self.rng.one_in(8) { self.rng.below(1_000) } else { 0 };
        let reward = (Self::subsidy(height) + fees).saturating_sub(left);
        let coinbase_outputs = Some(self.random_outputs(reward, 4));
        let commitment =
            if self.rng.one_in(3) { Commitment::Always } else { Commitment::WhenNeeded };
        self.add_plan(BlockPlan {
            transactions,
            coinbase_outputs,
            commitment,
            ..BlockPlan::default()
        })
    }

    /// Makes valid transactions for the next block, and returns their fees.
    pub(super) fn random_transactions(&mut self, shape: Shape) -> (Vec<Transaction>, u64) {
        let height = self.height() + 1;
        let mut pool = self.spendable(height);
        let mut fresh = Vec::new();
        let mut transactions = Vec::new();
        let mut fees = 0;
        for _ in 0..self.rng.below(shape.transactions_max as u64 + 1) {
            let coins = self.pick(&mut pool, &mut fresh, height, shape.inputs_max);
            if coins.is_empty() {
                break;
            }
            let (tx, fee) = self.random_transaction(&coins, height, shape.outputs_max);
            let made = coins_of(&tx).into_iter().map(|(outpoint, out)| (outpoint, out, height));
            fresh.extend(made.filter(|(_, out, _)| self.wallet.can_spend(&out.script_pubkey)));
            fees += fee;
            transactions.push(tx);
        }
        (transactions, fees)
    }

    /// Adds random valid blocks on the tip.
    pub fn random_blocks(&mut self, count: usize, shape: Shape) -> Vec<Block> {
        (0..count).map(|_| self.random_block(shape)).collect()
    }

    /// Returns the coins at the tip that a block at `height` may spend and this builder can.
    pub(super) fn spendable(&self, height: u32) -> Vec<Spendable> {
        self.utxo()
            .iter()
            .filter(|(_, coin)| !coin.coinbase || height - coin.height >= COINBASE_MATURITY)
            .filter(|(_, coin)| self.wallet.can_spend(&coin.output.script_pubkey))
            // An invalid block can create more money than exists.
            .filter(|(_, coin)| coin.output.value <= Amount::MAX_MONEY)
            .map(|(outpoint, coin)| (*outpoint, coin.output.clone(), coin.height))
            .collect()
    }

    /// Picks some coins: alternately from this block, from the previous one, and from any.
    fn pick(
        &mut self,
        pool: &mut Vec<Spendable>,
        fresh: &mut Vec<Spendable>,
        height: u32,
        inputs_max: usize,
    ) -> Vec<Spendable> {
        let mut picked = Vec::new();
        for _ in 0..self.rng.between(1, inputs_max as u64) {
            if !fresh.is_empty() && (pool.is_empty() || self.rng.one_in(3)) {
                picked.push(fresh.swap_remove(self.rng.index(fresh.len())));
                continue;
            }
            if pool.is_empty() {
                break;
            }
            let next = self.rng.one_in(4);
            let last_block = pool.iter().position(|coin| next && coin.2 + 1 == height);
            let index = last_block.unwrap_or_else(|| self.rng.index(pool.len()));
            picked.push(pool.swap_remove(index));
        }
        picked
    }

    /// Makes a transaction that spends `coins`, and returns its fee.
    fn random_transaction(
        &mut self,
        coins: &[Spendable],
        height: u32,
        outputs_max: usize,
    ) -> (Transaction, u64) {
        let total: u64 = coins.iter().map(|(_, output, _)| output.value.to_sat()).sum();
        let fee = self.rng.below(total.min(10_000) + 1);
        let outputs = self.random_outputs(total - fee, outputs_max);
        let named: Vec<_> = coins.iter().map(|(point, out, _)| (*point, out.clone())).collect();
        let mut tx = self.spend_coins(&named, outputs);
        if self.rng.one_in(4) {
            // A lock time in the past (it must be below the block's height: Core `IsFinalTx`).
            let passed = self.rng.below(u64::from(height)) as u32;
            tx.lock_time = LockTime::from_height(passed).expect("a small height");
            tx.input[0].sequence = Sequence::ENABLE_LOCKTIME_NO_RBF;
        }
        if self.rng.one_in(4) {
            tx.version = transaction::Version::ONE;
        } else if self.rng.one_in(2) {
            // Relative lock times in blocks that are met (BIP-68).
            for (input, (_, _, made)) in tx.input.iter_mut().zip(coins) {
                let age = (height - made).min(0xffff);
                input.sequence = Sequence(self.rng.below(u64::from(age) + 1) as u32);
            }
        }
        self.sign(&mut tx, &named);
        (tx, fee)
    }

    /// Makes one to `count_max` outputs of any kind that add up to `total`.
    pub(super) fn random_outputs(&mut self, total: u64, count_max: usize) -> Vec<TxOut> {
        let count = self.rng.between(1, count_max as u64);
        let mut left = total;
        let mut outputs = Vec::new();
        for place in 0..count {
            let share = match (place + 1 == count, self.rng.below(8)) {
                (true, _) => left,
                (_, 0) => 0,
                // Round amounts are compressed differently.
                (_, 1..=3) => self.rng.below(left / 100_000 + 1) * 100_000 / count,
                _ => self.rng.below(left / count + 1),
            };
            left -= share;
            let kind = self.random_kind(share);
            let script_pubkey = self.script(kind);
            outputs.push(TxOut { value: Amount::from_sat(share), script_pubkey });
        }
        outputs
    }

    /// Picks any kind, but keeps most of the money spendable, so that the chain does not run out of it.
    fn random_kind(&mut self, satoshi: u64) -> ScriptKind {
        let kind = ScriptKind::ALL[self.rng.index(ScriptKind::ALL.len())];
        let long = matches!(kind, ScriptKind::Longest | ScriptKind::TooLong);
        let lost = matches!(
            kind,
            ScriptKind::PkCompressedOffCurve
                | ScriptKind::PkUncompressedOffCurve
                | ScriptKind::Junk
                | ScriptKind::OpReturn
                | ScriptKind::OpReturnBare
                | ScriptKind::TooLong
        );
        let dear = satoshi > 100_000_000 && !self.rng.one_in(8);
        if (lost && dear) || (long && !self.rng.one_in(6)) { ScriptKind::OpTrue } else { kind }
    }
}
