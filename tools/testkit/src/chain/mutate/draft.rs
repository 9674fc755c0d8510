//! A block draft, and helpers for all changes: coins to spend, scripts to pay to.

use super::{Mutator, NamedCoin};
use crate::chain::builder::{BlockPlan, ChainBuilder, Commitment, coins_of, commit_witness, seal};
use crate::chain::random::Shape;
use crate::chain::wallet::ScriptKind;
use bitcoin::absolute::LockTime;
use bitcoin::consensus::encode::serialize;
use bitcoin::{Amount, Block, OutPoint, ScriptBuf, Transaction, TxIn, TxOut, Witness, transaction};
use std::collections::{HashMap, HashSet};

/// Small blocks, since there are thousands.
const SHAPE: Shape = Shape { transactions_max: 4, inputs_max: 3, outputs_max: 4 };

/// A block's parts before they are assembled.
#[derive(Debug, Default)]
pub(super) struct BlockDraft {
    /// All transactions except the coinbase.
    pub(super) transactions: Vec<Transaction>,
    /// How much the coinbase pays above the subsidy and the fees.
    pub(super) reward_more: i64,
    /// The header's time; `None` for the usual time.
    pub(super) time: Option<u32>,
    /// The header's version; `None` for the usual version.
    pub(super) version: Option<i32>,
    /// When to commit to witnesses.
    pub(super) commitment: Commitment,
}

/// Returns a block's bytes.
pub fn raw_of(block: &Block) -> Vec<u8> {
    serialize(block)
}

/// Updates the witness commitment if the block has one, and mines.
pub(super) fn recommit(block: &mut Block) {
    let is_commitment = |out: &TxOut| out.script_pubkey.as_bytes().starts_with(&COMMITMENT);
    let before = block.txdata[0].output.len();
    block.txdata[0].output.retain(|output| !is_commitment(output));
    let had = block.txdata[0].output.len() < before;
    let witness = |tx: &Transaction| tx.input.iter().any(|input| !input.witness.is_empty());
    if had || block.txdata[1..].iter().any(witness) {
        block.txdata[0].input[0].witness = Witness::new();
        commit_witness(block);
    }
    seal(block);
}

/// First bytes of a witness commitment's script (BIP-141).
pub(super) const COMMITMENT: [u8; 6] = [0x6a, 0x24, 0xaa, 0x21, 0xa9, 0xed];

/// Converts satoshis into an output's amount.
pub(super) fn sat(satoshi: u64) -> Amount {
    Amount::from_sat(satoshi)
}

/// Makes a script of these bytes.
pub(super) fn script(bytes: impl Into<Vec<u8>>) -> ScriptBuf {
    ScriptBuf::from_bytes(bytes.into())
}

impl Mutator {
    /// Returns the height of the next block.
    pub(super) fn height(&self) -> u32 {
        self.chain.height() + 1
    }

    /// Makes valid transactions for the next block.
    pub(super) fn draft(&mut self) -> BlockDraft {
        let (transactions, _) = self.chain.random_transactions(SHAPE);
        let commitment = match self.rng.one_in(3) {
            true => Commitment::Always,
            false => Commitment::WhenNeeded,
        };
        BlockDraft { transactions, commitment, ..BlockDraft::default() }
    }

    /// Assembles the block: its coinbase claims the maximum.
    pub(super) fn finish(&mut self, draft: BlockDraft) -> Block {
        let outputs = self.reward_outputs(&draft);
        self.finish_with(draft, outputs)
    }

    /// Returns the coinbase's outputs, one or more.
    pub(super) fn reward_outputs(&mut self, draft: &BlockDraft) -> Vec<TxOut> {
        let reward = ChainBuilder::subsidy(self.height()) + self.fees(draft);
        let reward = reward.checked_add_signed(draft.reward_more).unwrap_or_default();
        self.chain.random_outputs(reward, 3)
    }

    /// Assembles the block with these coinbase outputs.
    pub(super) fn finish_with(&mut self, draft: BlockDraft, outputs: Vec<TxOut>) -> Block {
        let parent = self.chain.block(self.chain.tip()).header.time;
        let time =
            draft.time.unwrap_or_else(|| parent.saturating_add(self.rng.between(1, 900) as u32));
        self.chain.propose(BlockPlan {
            transactions: draft.transactions,
            coinbase_outputs: Some(outputs),
            commitment: draft.commitment,
            time: Some(time),
            version: draft.version,
            ..BlockPlan::default()
        })
    }

    /// Returns the fees of the draft's transactions.
    fn fees(&self, draft: &BlockDraft) -> u64 {
        let mut made = HashMap::new();
        let mut fees = 0_i128;
        for tx in &draft.transactions {
            for input in &tx.input {
                let outpoint = &input.previous_output;
                let spent = made.get(outpoint).or_else(|| self.chain.outputs.get(outpoint));
                fees += spent.map_or(0, |output| i128::from(output.value.to_sat()));
            }
            for output in &tx.output {
                fees -= i128::from(output.value.to_sat());
            }
            made.extend(coins_of(tx));
        }
        u64::try_from(fees).unwrap_or_default()
    }

    /// Returns the outputs that a transaction of the draft spends.
    pub(super) fn spent_by(&self, draft: &BlockDraft, index: usize) -> Vec<NamedCoin> {
        let made: HashMap<OutPoint, TxOut> =
            draft.transactions[..index].iter().flat_map(coins_of).collect();
        let inputs = draft.transactions[index].input.iter().map(|input| input.previous_output);
        inputs
            .map(|outpoint| {
                let output = made.get(&outpoint).or_else(|| self.chain.outputs.get(&outpoint));
                (outpoint, output.cloned().unwrap_or(TxOut::NULL))
            })
            .collect()
    }

    /// Signs a transaction of the draft again.
    pub(super) fn resign(&self, draft: &mut BlockDraft, index: usize) {
        let spent = self.spent_by(draft, index);
        self.chain.sign(&mut draft.transactions[index], &spent);
    }

    /// Adds a plain transaction that nothing in the draft spends.
    pub(super) fn leaf(&mut self, draft: &mut BlockDraft) -> Option<usize> {
        let coin = self.coin(draft, 10_000)?;
        let tx = self.spend(&coin);
        draft.transactions.push(tx);
        Some(draft.transactions.len() - 1)
    }

    /// Finds a spendable coin at the tip with at least this amount that the draft does not spend.
    pub(super) fn coin(&mut self, draft: &BlockDraft, satoshi_min: u64) -> Option<NamedCoin> {
        self.coin_where(draft, |_, output| output.value.to_sat() >= satoshi_min)
    }

    /// Finds a coin like [`coin`](Self::coin) that also satisfies `wanted`.
    pub(super) fn coin_where(
        &mut self,
        draft: &BlockDraft,
        wanted: impl Fn(&Self, &TxOut) -> bool,
    ) -> Option<NamedCoin> {
        let used: HashSet<OutPoint> = draft
            .transactions
            .iter()
            .flat_map(|tx| tx.input.iter().map(|input| input.previous_output))
            .collect();
        let mut coins = self.chain.spendable(self.height());
        coins.retain(|(outpoint, output, _)| !used.contains(outpoint) && wanted(self, output));
        let (outpoint, output, _) = (!coins.is_empty()).then(|| {
            let index = self.rng.index(coins.len());
            coins.swap_remove(index)
        })?;
        Some((outpoint, output))
    }

    /// Spends a coin to an anyone-can-spend output, less a fee.
    pub(super) fn spend(&mut self, coin: &NamedCoin) -> Transaction {
        let value = coin.1.value.to_sat();
        let fee = self.rng.below(value.min(1_000) + 1);
        let output = TxOut { value: sat(value - fee), script_pubkey: script([0x51]) };
        self.chain.spend_coins(std::slice::from_ref(coin), vec![output])
    }

    /// Makes a transaction that spends a coin without the wallet's signature.
    pub(super) fn bare_spend(&mut self, coin: &NamedCoin) -> Transaction {
        let value = coin.1.value.to_sat();
        Transaction {
            version: transaction::Version::TWO,
            lock_time: LockTime::ZERO,
            input: vec![TxIn { previous_output: coin.0, ..TxIn::default() }],
            output: vec![TxOut {
                value: sat(value - self.rng.below(value.min(1_000) + 1)),
                script_pubkey: script([0x51]),
            }],
        }
    }

    /// Creates a coin with this script in the draft.
    pub(super) fn fund(
        &mut self,
        draft: &mut BlockDraft,
        script_pubkey: ScriptBuf,
    ) -> Option<NamedCoin> {
        let coin = self.coin(draft, 100_000)?;
        let value = coin.1.value.to_sat();
        let part = self.rng.between(10_000, value - 10_000);
        let outputs = vec![
            TxOut { value: sat(value - part - 1_000), script_pubkey: script([0x51]) },
            TxOut { value: sat(part), script_pubkey },
        ];
        let tx = self.chain.spend_coins(&[coin], outputs);
        let made = coins_of(&tx).swap_remove(1);
        draft.transactions.push(tx);
        Some(made)
    }

    /// Finds a coin of a kind: sometimes of an earlier block if there is one, otherwise created in the draft.
    pub(super) fn coin_of(
        &mut self,
        draft: &mut BlockDraft,
        kind: ScriptKind,
    ) -> Option<NamedCoin> {
        if self.rng.one_in(2) {
            let is_kind = |this: &Self, output: &TxOut| {
                this.chain.wallet.kind(&output.script_pubkey) == Some(kind)
            };
            if let Some(coin) = self.coin_where(draft, is_kind) {
                return Some(coin);
            }
        }
        let script_pubkey = self.chain.script(kind);
        self.fund(draft, script_pubkey)
    }
}
