//! Amounts: one satoshi too much, more than all money, negative.

use super::draft::{raw_of, sat, script};
use super::{Mutation, Mutator, mutation};
use crate::chain::builder::ChainBuilder;
use bitcoin::TxOut;

/// Maximum for any amount and any sum (Core `consensus/amount.h`).
const MAX_MONEY: u64 = 2_100_000_000_000_000;

pub(super) const MUTATIONS: &[Mutation] = &[
    mutation("coinbase one satoshi more", |this| this.reward(1)),
    mutation("coinbase one satoshi less", |this| this.reward(-1)),
    mutation("coinbase of the greatest amount", |this| this.coinbase_pays(&[MAX_MONEY])),
    mutation("coinbase above all money", |this| this.coinbase_pays(&[MAX_MONEY + 1])),
    mutation("coinbase negative", |this| this.coinbase_pays(&[u64::MAX])),
    mutation("coinbase total above all money", |this| this.coinbase_pays(&[MAX_MONEY, 1])),
    mutation("coinbase without the fees", |this| {
        let subsidy = ChainBuilder::subsidy(this.height());
        this.coinbase_pays(&[subsidy])
    }),
    mutation("outputs one satoshi more than inputs", |this| this.outputs_off(1)),
    mutation("outputs as much as inputs", |this| this.outputs_off(0)),
    mutation("output of the greatest amount", |this| this.output_pays(&[MAX_MONEY])),
    mutation("output above all money", |this| this.output_pays(&[MAX_MONEY + 1])),
    mutation("output negative", |this| this.output_pays(&[u64::MAX])),
    mutation("output most negative", |this| this.output_pays(&[1 << 63])),
    mutation("outputs total above all money", |this| this.output_pays(&[MAX_MONEY, 1])),
    mutation("outputs of nothing", |this| this.output_pays(&[0, 0])),
];

fn outputs(satoshi: &[u64]) -> Vec<TxOut> {
    let output = |satoshi: &u64| TxOut { value: sat(*satoshi), script_pubkey: script([0x51]) };
    satoshi.iter().map(output).collect()
}

impl Mutator {
    fn reward(&mut self, more: i64) -> Option<Vec<u8>> {
        let mut draft = self.draft();
        draft.reward_more = more;
        Some(raw_of(&self.finish(draft)))
    }

    fn coinbase_pays(&mut self, satoshi: &[u64]) -> Option<Vec<u8>> {
        let draft = self.draft();
        Some(raw_of(&self.finish_with(draft, outputs(satoshi))))
    }

    fn outputs_off(&mut self, more: u64) -> Option<Vec<u8>> {
        let mut draft = self.draft();
        let coin = self.coin(&draft, 1_000)?;
        let tx = self.chain.spend(&[coin.0], outputs(&[coin.1.value.to_sat() + more]));
        draft.transactions.push(tx);
        Some(raw_of(&self.finish(draft)))
    }

    fn output_pays(&mut self, satoshi: &[u64]) -> Option<Vec<u8>> {
        let mut draft = self.draft();
        let coin = self.coin(&draft, 1_000)?;
        let reward = self.reward_outputs(&draft);
        let tx = self.chain.spend(&[coin.0], outputs(satoshi));
        draft.transactions.push(tx);
        Some(raw_of(&self.finish_with(draft, reward)))
    }
}
