//! Coins: which are spent, when, and how often; and transactions in the wrong place or number.

use super::draft::{BlockDraft, raw_of, recommit};
use super::{Mutation, Mutator, mutation};
use crate::chain::model::is_unspendable;
use bitcoin::hashes::Hash;
use bitcoin::{OutPoint, Transaction, TxOut, Txid};

pub(super) const MUTATIONS: &[Mutation] = &[
    mutation("input of an unknown transaction", |this| {
        let txid = Txid::from_byte_array(this.rng.bytes(32).try_into().ok()?);
        this.input_is(OutPoint { txid, vout: 0 })
    }),
    mutation("input of an output that is not there", |this| {
        let coin = this.coin(&BlockDraft::default(), 0)?;
        this.input_is(OutPoint { txid: coin.0.txid, vout: 100 + coin.0.vout })
    }),
    mutation("input that was spent before", |this| {
        let spent = this.gone(|output| !is_unspendable(&output.script_pubkey))?;
        this.input_is(spent)
    }),
    mutation("input of an output that is no coin", |this| {
        let lost = this.gone(|output| is_unspendable(&output.script_pubkey))?;
        this.input_is(lost)
    }),
    mutation("null input", |this| this.input_is(OutPoint::null())),
    mutation("input twice in a block", |this| {
        let mut draft = this.draft();
        let coin = this.coin(&draft, 2_000)?;
        for _ in 0..2 {
            let mut tx = this.spend(&coin);
            tx.output[0].value -= bitcoin::Amount::from_sat(this.rng.below(100));
            this.chain.sign(&mut tx, std::slice::from_ref(&coin));
            draft.transactions.push(tx);
        }
        this.done(draft)
    }),
    mutation("input twice in a transaction", |this| {
        let mut draft = this.draft();
        let coin = this.coin(&draft, 0)?;
        let output = TxOut { value: coin.1.value, script_pubkey: vec![0x51].into() };
        let tx = this.chain.spend(&[coin.0, coin.0], vec![output]);
        draft.transactions.push(tx);
        this.done(draft)
    }),
    mutation("spend before the output", |this| {
        let mut draft = this.chained()?;
        let last = draft.transactions.len() - 1;
        draft.transactions.swap(last, last - 1);
        this.done(draft)
    }),
    mutation("spend in the same block", |this| {
        let draft = this.chained()?;
        this.done(draft)
    }),
    mutation("coinbase spent in its own block", |this| {
        let draft = this.draft();
        let mut block = this.finish(draft);
        let coins = crate::chain::coins_of(&block.txdata[0]);
        let coin = coins.into_iter().find(|(_, output)| !is_unspendable(&output.script_pubkey))?;
        let tx = this.spend(&coin);
        block.txdata.push(tx);
        // The spend contains the coinbase's id, so the coinbase must not change any more.
        crate::chain::seal(&mut block);
        Some(raw_of(&block))
    }),
    mutation("coinbase after 99 blocks", |this| this.coinbase_after(99)),
    mutation("coinbase after 100 blocks", |this| this.coinbase_after(100)),
    mutation("no output", |this| this.edited(|tx| tx.output.clear())),
    mutation("no input", |this| this.edited(|tx| tx.input.clear())),
    mutation("transaction of an earlier block", |this| {
        let repeated = this.earlier_transaction()?;
        let mut draft = this.draft();
        draft.transactions.insert(0, repeated);
        let draft_only = BlockDraft::default();
        let reward = this.reward_outputs(&draft_only);
        Some(raw_of(&this.finish_with(draft, reward)))
    }),
    mutation("last transaction doubled in the tree", |this| {
        let mut draft = this.draft();
        if draft.transactions.len() % 2 == 1 || draft.transactions.is_empty() {
            this.leaf(&mut draft)?;
        }
        if draft.transactions.len() % 2 == 1 {
            this.leaf(&mut draft)?;
        }
        let mut block = this.finish(draft);
        let last = block.txdata.last()?.clone();
        block.txdata.push(last);
        Some(raw_of(&block))
    }),
    mutation("two coinbases", |this| {
        let draft = this.draft();
        let mut block = this.finish(draft);
        let second = this.chain.coinbase(this.height(), Vec::new());
        block.txdata.push(Transaction { output: block.txdata[0].output.clone(), ..second });
        recommit(&mut block);
        Some(raw_of(&block))
    }),
    mutation("no coinbase", |this| {
        let mut draft = this.draft();
        this.leaf(&mut draft)?;
        let mut block = this.finish(draft);
        block.txdata.remove(0);
        crate::chain::seal(&mut block);
        Some(raw_of(&block))
    }),
    mutation("coinbase last", |this| {
        let mut draft = this.draft();
        this.leaf(&mut draft)?;
        let mut block = this.finish(draft);
        block.txdata.rotate_left(1);
        crate::chain::seal(&mut block);
        Some(raw_of(&block))
    }),
    mutation("no transactions", |this| {
        let mut block = this.finish(BlockDraft::default());
        block.txdata.clear();
        block.header.merkle_root = bitcoin::TxMerkleNode::all_zeros();
        crate::chain::mine(&mut block);
        Some(raw_of(&block))
    }),
    mutation("coinbase alone", |this| this.done(BlockDraft::default())),
    mutation("any transaction version", |this| {
        let version = this.rng.next_u64() as i32;
        let mut draft = this.draft();
        let index = this.leaf(&mut draft)?;
        draft.transactions[index].version = bitcoin::transaction::Version(version);
        this.resign(&mut draft, index);
        this.done(draft)
    }),
];

impl Mutator {
    /// Assembles the block and returns its bytes.
    pub(super) fn done(&mut self, draft: BlockDraft) -> Option<Vec<u8>> {
        Some(raw_of(&self.finish(draft)))
    }

    /// Makes a block with this outpoint as an additional transaction input.
    fn input_is(&mut self, outpoint: OutPoint) -> Option<Vec<u8>> {
        let mut draft = self.draft();
        let coin = self.coin(&draft, 1_000)?;
        let more = TxOut { value: bitcoin::Amount::ZERO, script_pubkey: vec![0x51].into() };
        let mut tx = self.spend(&coin);
        tx.input.push(bitcoin::TxIn { previous_output: outpoint, ..Default::default() });
        self.chain.sign(&mut tx, &[coin, (outpoint, more)]);
        draft.transactions.push(tx);
        self.done(draft)
    }

    /// Finds a spent output of the chain.
    fn gone(&mut self, wanted: impl Fn(&TxOut) -> bool) -> Option<OutPoint> {
        let blocks = self.chain.blocks();
        let coins = self.chain.utxo();
        let made = blocks[1..].iter().flat_map(|block| &block.txdata);
        let mut gone: Vec<OutPoint> = made
            .flat_map(crate::chain::coins_of)
            .filter(|(outpoint, output)| !coins.contains_key(outpoint) && wanted(output))
            .map(|(outpoint, _)| outpoint)
            .collect();
        let index = (!gone.is_empty()).then(|| self.rng.index(gone.len()))?;
        Some(gone.swap_remove(index))
    }

    /// Makes a draft whose last transaction spends the previous one.
    fn chained(&mut self) -> Option<BlockDraft> {
        let mut draft = self.draft();
        let coin = self.fund(&mut draft, vec![0x51].into())?;
        let tx = self.spend(&coin);
        draft.transactions.push(tx);
        Some(draft)
    }

    /// Spends an output of a coinbase from this many blocks before.
    fn coinbase_after(&mut self, blocks: u32) -> Option<Vec<u8>> {
        let mut draft = self.draft();
        let made = self.height() - blocks;
        let used = |outpoint: &OutPoint| {
            let inputs = draft.transactions.iter().flat_map(|tx| &tx.input);
            inputs.map(|input| input.previous_output).any(|spent| spent == *outpoint)
        };
        let coins = self.chain.utxo().iter();
        let (outpoint, coin) = coins
            .filter(|(_, coin)| coin.coinbase && coin.height == made)
            .filter(|(_, coin)| self.chain.wallet.can_spend(&coin.output.script_pubkey))
            .find(|(outpoint, _)| !used(outpoint))?;
        let coin = (*outpoint, coin.output.clone());
        let tx = self.spend(&coin);
        draft.transactions.push(tx);
        self.done(draft)
    }

    /// Adds one transaction, edited without being signed again.
    pub(super) fn edited(&mut self, edit: impl FnOnce(&mut Transaction)) -> Option<Vec<u8>> {
        let mut draft = self.draft();
        let index = self.leaf(&mut draft)?;
        let reward = self.reward_outputs(&draft);
        edit(&mut draft.transactions[index]);
        Some(raw_of(&self.finish_with(draft, reward)))
    }

    fn earlier_transaction(&mut self) -> Option<Transaction> {
        let mut blocks = self.chain.blocks();
        blocks.retain(|block| block.txdata.len() > 1);
        let index = (!blocks.is_empty()).then(|| self.rng.index(blocks.len()))?;
        let transactions = &blocks[index].txdata[1..];
        Some(transactions[self.rng.index(transactions.len())].clone())
    }
}
