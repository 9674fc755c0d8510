//! Lock times, absolute and relative, of transactions and in scripts, met and missed by one.

use super::draft::{BlockDraft, raw_of, sat, script};
use super::scripts::{Wrap, unlock};
use super::{Mutation, Mutator, NamedCoin, mutation};
use bitcoin::absolute::LockTime;
use bitcoin::opcodes::all as op;
use bitcoin::script::Builder;
use bitcoin::{OutPoint, ScriptBuf, Sequence, TxOut, transaction};

pub(super) const MUTATIONS: &[Mutation] = &[
    mutation("lock time of the height below", |this| this.locked_until(-1, false, true)),
    mutation("lock time of the height", |this| this.locked_until(0, false, true)),
    mutation("lock time of the height, inputs final", |this| this.locked_until(0, false, false)),
    mutation("lock time below the median", |this| this.locked_until(-1, true, true)),
    mutation("lock time of the median", |this| this.locked_until(0, true, true)),
    mutation("lock time of the median, inputs final", |this| this.locked_until(0, true, false)),
    mutation("greatest lock time as a height", |this| {
        let more = 499_999_999 - i64::from(this.height());
        this.locked_until(more, false, true)
    }),
    mutation("age in blocks met", |this| this.aged(false, 0, 2, 0)),
    mutation("age in blocks missed by one", |this| this.aged(false, 1, 2, 0)),
    mutation("age in blocks missed, version 1", |this| this.aged(false, 1, 1, 0)),
    mutation("age in blocks missed, version 3", |this| this.aged(false, 1, 3, 0)),
    mutation("age in blocks missed, version negative", |this| this.aged(false, 1, -1, 0)),
    mutation("age in blocks missed, switched off", |this| this.aged(false, 1, 2, 1 << 31)),
    mutation("age in blocks met, other bits set", |this| this.aged(false, 0, 2, 0x7fbf_0000)),
    mutation("age in time met", |this| this.aged(true, 0, 2, 0)),
    mutation("age in time missed by one", |this| this.aged(true, 1, 2, 0)),
    mutation("age in time missed, version 1", |this| this.aged(true, 1, 1, 0)),
    mutation("age of a coin of the same block", |this| {
        let blocks = this.rng.below(2) as u32;
        let mut draft = this.draft();
        let coin = this.fund(&mut draft, script([0x51]))?;
        let mut tx = this.bare_spend(&coin);
        tx.input[0].sequence = Sequence(blocks);
        draft.transactions.push(tx);
        this.done(draft)
    }),
    mutation("CLTV met", |this| this.cltv(0, false)),
    mutation("CLTV missed by one", |this| this.cltv(1, false)),
    mutation("CLTV with final input", |this| this.cltv(0, true)),
    mutation("CLTV of a time", |this| this.cltv(500_000_000, false)),
    mutation("CLTV negative", |this| {
        let below = -2 * i64::from(this.height());
        this.cltv(below, false)
    }),
    mutation("CSV met", |this| this.csv(0, 2)),
    mutation("CSV missed by one", |this| this.csv(-1, 2)),
    mutation("CSV with more than asked", |this| this.csv(1, 2)),
    mutation("CSV in version 1", |this| this.csv(0, 1)),
    mutation("CSV of the other unit", |this| this.csv(1 << 22, 2)),
    mutation("CSV with the lock switched off", |this| this.csv(1 << 31, 2)),
];

/// An output that requires an age.
#[derive(Debug, Clone)]
pub(super) struct PlantedOutput {
    how: Wrap,
    inner: ScriptBuf,
    blocks: u32,
    coin: NamedCoin,
}

impl Mutator {
    fn locked_until(&mut self, more: i64, by_time: bool, locked: bool) -> Option<Vec<u8>> {
        let height = self.height();
        let median = self.chain.median_time_past(self.chain.tip());
        let base = if by_time { median } else { height };
        let lock = u32::try_from(i64::from(base) + more).ok()?;
        let mut draft = self.draft();
        let index = self.leaf(&mut draft)?;
        let tx = &mut draft.transactions[index];
        tx.lock_time = LockTime::from_consensus(lock);
        if locked {
            tx.input[0].sequence = Sequence::ENABLE_LOCKTIME_NO_RBF;
        }
        self.resign(&mut draft, index);
        self.done(draft)
    }

    /// Spends a coin with a required age that exceeds its real age by this much, with these further bits.
    fn aged(&mut self, by_time: bool, more: u32, version: i32, bits: u32) -> Option<Vec<u8>> {
        let mut draft = self.draft();
        let height = self.height();
        let coin = self.coin(&draft, 1_000)?;
        let made = self.chain.utxo().get(&coin.0)?.height;
        let age = if by_time {
            let tip = self.chain.tip();
            let mut below = tip;
            // The block before the one that created the coin (BIP-68).
            for _ in made..height {
                below = self.chain.block(below).header.prev_blockhash;
            }
            let since = self.chain.median_time_past(below);
            let passed = self.chain.median_time_past(tip).checked_sub(since)?;
            (passed / 512 + more) | 1 << 22
        } else {
            height - made + more
        };
        let mut tx = self.spend(&coin);
        tx.version = transaction::Version(version);
        tx.input[0].sequence = Sequence(age | bits);
        self.chain.sign(&mut tx, std::slice::from_ref(&coin));
        draft.transactions.push(tx);
        self.done(draft)
    }

    /// Requires a lock time that is `more` above the transaction's.
    fn cltv(&mut self, more: i64, final_input: bool) -> Option<Vec<u8>> {
        let lock = self.height() - 1 - self.rng.below(20) as u32;
        let inner = Builder::new()
            .push_int(i64::from(lock) + more)
            .push_opcode(op::OP_CLTV)
            .push_opcode(op::OP_DROP)
            .push_int(1)
            .into_script();
        let how = self.any_form();
        let mut draft = self.draft();
        let coin = self.fund(&mut draft, self.locked(how, &inner))?;
        let mut tx = self.bare_spend(&coin);
        tx.lock_time = LockTime::from_consensus(lock);
        tx.input[0].sequence = if final_input { Sequence::MAX } else { Sequence(0xffff_fffe) };
        (tx.input[0].script_sig, tx.input[0].witness) = unlock(how, &inner, &[]);
        draft.transactions.push(tx);
        self.done(draft)
    }

    /// Adds a valid block with outputs that require an age, for later blocks to spend.
    pub(super) fn plant(&mut self) {
        let mut draft = self.draft();
        let Some(coin) = self.coin(&draft, 1_000_000) else { return };
        let mut made = Vec::new();
        let mut outputs = Vec::new();
        for _ in 0..40 {
            let blocks = self.rng.below(8) as u32;
            let how = self.any_form();
            let inner = Builder::new()
                .push_int(i64::from(blocks))
                .push_opcode(op::OP_CSV)
                .push_opcode(op::OP_DROP)
                .push_int(1)
                .into_script();
            let output = TxOut { value: sat(20_000), script_pubkey: self.locked(how, &inner) };
            outputs.push(output.clone());
            made.push((how, inner, blocks, output));
        }
        let left = coin.1.value.to_sat() - 20_000 * 40;
        outputs.push(TxOut { value: sat(left), script_pubkey: script([0x51]) });
        let tx = self.chain.spend_coins(&[coin], outputs);
        let txid = tx.compute_txid();
        draft.transactions.push(tx);
        let block = self.finish(draft);
        self.accept(&raw_of(&block));
        let planted = (0..).zip(made).map(|(vout, (how, inner, blocks, output))| PlantedOutput {
            how,
            inner,
            blocks,
            coin: (OutPoint { txid, vout }, output),
        });
        self.planted.extend(planted);
    }

    /// Spends an output that requires an age, with a sequence that is off by `more`.
    fn csv(&mut self, more: i64, version: i32) -> Option<Vec<u8>> {
        let coins = self.chain.utxo();
        let there = |planted: &&PlantedOutput| coins.contains_key(&planted.coin.0);
        let all: Vec<PlantedOutput> = self.planted.iter().filter(there).cloned().collect();
        let index = (!all.is_empty()).then(|| self.rng.index(all.len()))?;
        let PlantedOutput { how, inner, blocks, coin } = &all[index];
        let said = u32::try_from(i64::from(*blocks) + more).ok()?;
        let mut draft: BlockDraft = self.draft();
        let mut tx = self.bare_spend(coin);
        tx.version = transaction::Version(version);
        tx.input[0].sequence = Sequence(said);
        (tx.input[0].script_sig, tx.input[0].witness) = unlock(*how, inner, &[]);
        draft.transactions.push(tx);
        self.done(draft)
    }
}
