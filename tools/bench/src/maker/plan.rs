//! [`Planner`]: decides what each block spends and pays, before anything is signed or hashed.
//!
//! A plan names a transaction by a *slot* rather than its id, so that plans can be made ahead of
//! the blocks. A slot is free again after the block that spends the last coin in it. Plans never
//! depend on signatures: sizes are taken at their greatest.

use super::coins::{Coin, Coins};
use super::cost::{self, Room};
use super::keys::{Keyring, Script};
use super::law::{self, Wanted};
use super::shape::{MATURITY, Shape};
use super::tally::Tally;
use apus_chain::{Height, Network, Params, block_subsidy};
use apus_testkit::rng::Rng;

/// A payment has at least so many satoshis, as long as there are some.
const PAYMENT_MIN: u64 = 1_000;
/// What is forgotten is worth no more than this, so that it does not drain the chain.
const FORGOTTEN_MAX: u64 = 20_000;
/// From so many payments on, a transaction is made from the most valuable coin in sight.
const BATCH: usize = 8;
/// How many coins are in sight.
const SIGHT: usize = 64;

/// Of 1,000 transactions, those that are locked to the block they are in, as wallets do.
const LOCKED_PER_MILLE: u64 = 300;

/// An output to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Output {
    /// Pays to a script.
    Pay { value: u64, script: Script },
    /// So many bytes of data, drawn from a seed.
    Data { len: u8, seed: u64 },
}

/// A coin to spend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spend {
    pub(super) slot: u32,
    pub(super) vout: u32,
    pub(super) value: u64,
    pub(super) script: Script,
}

/// A transaction to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TxPlan {
    /// Where its id goes.
    pub(super) slot: u32,
    /// How many transactions of its block must be made one after the other before it.
    pub(super) layer: u32,
    pub(super) lock_time: u32,
    pub(super) spends: Vec<Spend>,
    pub(super) outputs: Vec<Output>,
}

/// A block to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlockPlan {
    pub(super) height: Height,
    /// Where the coinbase's id goes.
    pub(super) coinbase_slot: u32,
    pub(super) coinbase: Vec<Output>,
    pub(super) txs: Vec<TxPlan>,
    /// Slots that have ever been used.
    pub(super) slots: usize,
}

/// Makes one plan after the other.
pub(super) struct Planner<'a> {
    keys: &'a Keyring,
    shape: Shape,
    seed: u64,
    block_weight: u32,
    funding_dues: Vec<Vec<Height>>,
    next: Height,
    coins: Coins,
    tally: Tally,
}

impl<'a> Planner<'a> {
    pub(super) fn new(keys: &'a Keyring, shape: Shape, seed: u64, block_weight: u32) -> Self {
        let mut rng = Rng::at(seed, 0);
        let mut funding_dues = shape.funding_dues(block_weight, &mut rng);
        funding_dues.reverse();
        Self {
            keys,
            shape,
            seed,
            block_weight,
            funding_dues,
            next: 1,
            coins: Coins::new(shape.busy),
            tally: Tally::default(),
        }
    }

    /// What is known when all plans are made.
    pub(super) fn into_tally(self) -> Tally {
        self.tally
    }

    fn block(&mut self, height: Height) -> BlockPlan {
        let mut rng = Rng::at(self.seed, height.into());
        self.coins.start_block(height, &mut rng);
        self.tally.start_block();
        let coinbase_slot = self.coins.new_slot(0);
        // Its coins come first in the order of the block, its worth is known last.
        let dues = self.coinbase_dues(height, &mut rng);
        let scripts: Vec<Script> = dues.iter().map(|_| self.new_script(&mut rng)).collect();
        self.tally.coinbase(scripts.iter().map(|script| script.kind));
        let (mut txs, mut fees) = (Vec::new(), 0);
        if self.shape.busy.contains(height) {
            let mut room = Room::new(self.block_weight);
            while let Some((tx, fee)) = self.transaction(&mut room, &mut rng) {
                txs.push(tx);
                fees += fee;
            }
            if !txs.is_empty() {
                // The commitment to their witnesses.
                self.tally.data();
            }
        }
        let coinbase = self.coinbase(coinbase_slot, &scripts, &dues, fees, &mut rng);
        let slots = self.coins.end_block();
        BlockPlan { height, coinbase_slot, coinbase, txs, slots }
    }

    /// The outputs of a coinbase, which claim all that they may.
    fn coinbase(
        &mut self,
        slot: u32,
        scripts: &[Script],
        dues: &[Height],
        fees: u64,
        rng: &mut Rng,
    ) -> Vec<Output> {
        let height = self.next;
        let interval = Params::of(Network::Regtest).subsidy_halving_interval;
        let values = shares(block_subsidy(height, interval) + fees, scripts.len(), rng);
        let mut outputs = Vec::with_capacity(scripts.len());
        for (vout, ((&script, &due), value)) in (0..).zip(scripts.iter().zip(dues).zip(values)) {
            outputs.push(Output::Pay { value, script });
            self.tally.worth(value);
            let coin = Coin { slot, vout, value, height, index: vout, script, coinbase: true };
            self.coins.add(coin, Some(due), rng);
        }
        self.coins.end_slot(slot);
        outputs
    }

    /// When the outputs of a coinbase are to be spent.
    fn coinbase_dues(&mut self, height: Height, rng: &mut Rng) -> Vec<Height> {
        if self.shape.funding.contains(height)
            && let Some(dues) = self.funding_dues.pop()
        {
            return dues;
        }
        let mature = (height + MATURITY).max(self.shape.busy.start);
        vec![mature + law::lifetime(self.shape.profile, rng).unwrap_or(0)]
    }

    fn new_script(&self, rng: &mut Rng) -> Script {
        self.keys.script(law::kind(rng), rng)
    }

    /// The next transaction and its fee; none if the block is full.
    fn transaction(&mut self, room: &mut Room, rng: &mut Rng) -> Option<(TxPlan, u64)> {
        let wanted = Wanted::draw(self.shape.profile, rng);
        let mut left = *room;
        left.take(cost::of_transaction(&wanted))?;
        // A third of the room is kept for what is spent.
        let mut scripts = self.payees(wanted.payments, room.weight / 3, &mut left, rng)?;
        let spent = self.spend(&wanted, &mut left)?;
        let worth: u64 = spent.iter().map(|coin| coin.value).sum();
        let fee_max = worth / 8;
        let affordable = ((worth - fee_max) / PAYMENT_MIN).max(1) as usize;
        for script in scripts.drain(affordable.min(scripts.len())..) {
            left.give_back(cost::of_payment(self.keys, script));
        }
        let weight = room.weight - left.weight;
        let fee = (law::fee_rate(rng) * weight.div_ceil(4)).min(fee_max);
        *room = left;
        let layer = spent.iter().map(|coin| self.coins.layer_above(coin)).max().unwrap_or(0);
        let height = self.next;
        spent.iter().for_each(|coin| self.tally.spent(coin, height));
        let mut tx = TxPlan {
            slot: self.coins.new_slot(layer),
            layer,
            lock_time: if rng.per_mille(LOCKED_PER_MILLE) { height - 1 } else { 0 },
            spends: spent.iter().map(Coin::spend).collect(),
            outputs: Vec::with_capacity(scripts.len() + 1),
        };
        self.pay(&mut tx, &scripts, worth - fee, rng);
        if let Some(len) = wanted.data {
            tx.outputs.push(Output::Data { len, seed: rng.next_u64() });
            self.tally.data();
        }
        self.coins.end_slot(tx.slot);
        self.tally.transaction();
        Some((tx, fee))
    }

    /// The scripts to pay to: at least one, and of more only what leaves `keep` weight units.
    fn payees(
        &self,
        count: usize,
        keep: u64,
        left: &mut Room,
        rng: &mut Rng,
    ) -> Option<Vec<Script>> {
        let mut scripts = Vec::with_capacity(count);
        for _ in 0..count {
            let script = self.new_script(rng);
            if left.weight < keep && !scripts.is_empty() {
                break;
            }
            left.take(cost::of_payment(self.keys, script))?;
            scripts.push(script);
        }
        Some(scripts)
    }

    /// Takes coins as long as there is room for them.
    fn spend(&mut self, wanted: &Wanted, left: &mut Room) -> Option<Vec<Coin>> {
        if wanted.payments >= BATCH {
            self.coins.bring_forward_the_richest(SIGHT);
        }
        let mut spent = Vec::with_capacity(wanted.inputs);
        while spent.len() < wanted.inputs
            && let Some(coin) = self.coins.take()
        {
            if left.take(cost::of_spend(self.keys, coin.script)).is_none() {
                self.coins.give_back(coin);
                break;
            }
            spent.push(coin);
        }
        (!spent.is_empty()).then_some(spent)
    }

    /// Adds the payments to a transaction, and what can be spent of them to the coins.
    fn pay(&mut self, tx: &mut TxPlan, scripts: &[Script], worth: u64, rng: &mut Rng) {
        let height = self.next;
        let mut values = shares(worth, scripts.len(), rng);
        let profile = self.shape.profile;
        let lives: Vec<Option<u32>> = scripts.iter().map(|_| law::lifetime(profile, rng)).collect();
        // What is not left to the forgotten goes to one that is remembered.
        let mut over = 0;
        for (value, _) in values.iter_mut().zip(&lives).filter(|(_, life)| life.is_none()) {
            let less = (*value).min(rng.between(PAYMENT_MIN / 2, FORGOTTEN_MAX));
            over += *value - less;
            *value = less;
        }
        let keeper = lives.iter().position(Option::is_some).unwrap_or(0);
        values[keeper] += over;
        for (vout, ((script, value), life)) in (0..).zip(scripts.iter().zip(values).zip(lives)) {
            let script = *script;
            tx.outputs.push(Output::Pay { value, script });
            let index = self.tally.made(script.kind, value);
            let coin = Coin { slot: tx.slot, vout, value, height, index, script, coinbase: false };
            self.coins.add(coin, life.map(|blocks| height + blocks), rng);
        }
    }
}

impl Iterator for Planner<'_> {
    type Item = BlockPlan;

    fn next(&mut self) -> Option<BlockPlan> {
        let height = self.next;
        (height <= self.shape.tip).then(|| {
            let plan = self.block(height);
            self.next += 1;
            plan
        })
    }
}

/// Divides a sum at random into parts, which are as many as asked for.
fn shares(sum: u64, count: usize, rng: &mut Rng) -> Vec<u64> {
    let parts: Vec<u64> = (0..count).map(|_| rng.between(50, 1_000)).collect();
    let all: u64 = parts.iter().sum();
    let mut left = sum;
    let mut values: Vec<u64> = parts
        .iter()
        .map(|&part| {
            let value = (u128::from(sum) * u128::from(part) / u128::from(all)) as u64;
            left -= value;
            value
        })
        .collect();
    if let Some(last) = values.last_mut() {
        *last += left;
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maker::law::Profile;
    use apus_testkit::rng::Rng;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_are_all_of_the_sum(sum in 0u64..1 << 53, count in 1usize..2_000, seed: u64) {
            let values = shares(sum, count, &mut Rng::at(seed, 0));
            prop_assert_eq!(values.len(), count);
            prop_assert_eq!(values.iter().sum::<u64>(), sum);
        }
    }

    /// Or ids would be named that are not known yet.
    #[test]
    fn no_transaction_spends_what_its_own_layer_or_a_later_one_makes() {
        let keys = Keyring::new(1, false);
        let shape = Shape::new(Profile::MainnetLike, 20, 400_000, 0);
        let mut made_in_block = 0;
        for plan in Planner::new(&keys, shape, 1, 400_000) {
            let layer_of = |slot| plan.txs.iter().find(|tx| tx.slot == slot).map(|tx| tx.layer);
            for (place, tx) in plan.txs.iter().enumerate() {
                for spend in &tx.spends {
                    if let Some(layer) = layer_of(spend.slot) {
                        assert!(layer < tx.layer, "height {}", plan.height);
                        let earlier = plan.txs[..place].iter().any(|tx| tx.slot == spend.slot);
                        assert!(earlier, "parents stand before their children");
                        made_in_block += 1;
                    }
                }
            }
        }
        assert!(made_in_block > 100, "{made_in_block}");
    }
}
