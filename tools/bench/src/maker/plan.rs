//! [`Planner`]: decides what each block spends and pays, before anything is signed or hashed.
//!
//! A plan refers to a transaction by a *slot* rather than its id, so that plans can run ahead of the blocks.
//! A slot is free again after the block that spends its last coin. Plans never depend on signatures: they
//! assume maximum sizes.

use super::coins::{CoinSupply, Spend, SpendableCoin, Tally};
use super::keys::{KeyScript, Keyring};
use super::law::{self, ChainShape, MATURITY, PaymentKind, WantedTx};
use apus_chain::{Height, Network, Params, block_subsidy};
use apus_testkit::rng::Rng;

/// Minimum payment in satoshis, as long as there is enough.
const PAYMENT_MIN: u64 = 1_000;
/// Maximum value of a coin that is never spent, so that such coins do not drain the chain.
const FORGOTTEN_MAX: u64 = 20_000;
/// From this number of payments on, a transaction spends the most valuable coin in sight.
const BATCH: usize = 8;
/// Number of coins in sight.
const SIGHT: usize = 64;

/// Of 1,000 transactions, the number with a lock time at their own block, as wallets set it.
const LOCKED_PER_MILLE: u64 = 300;

/// An output to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlannedOutput {
    /// Pays to a script.
    Pay { value: u64, script: KeyScript },
    /// `len` bytes of data, drawn from a seed.
    Data { len: u8, seed: u64 },
}

/// A transaction to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TxPlan {
    /// The slot for its id.
    pub(super) slot: u32,
    /// Length of the longest chain of its ancestors in the same block.
    pub(super) layer: u32,
    pub(super) lock_time: u32,
    pub(super) spends: Vec<Spend>,
    pub(super) outputs: Vec<PlannedOutput>,
}

/// A block to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlannedBlock {
    pub(super) height: Height,
    /// The slot for the coinbase's id.
    pub(super) coinbase_slot: u32,
    pub(super) coinbase: Vec<PlannedOutput>,
    pub(super) txs: Vec<TxPlan>,
    /// Slots that have ever been used.
    pub(super) slots: usize,
}

/// Plans the blocks of a chain in order.
pub(super) struct Planner<'a> {
    keys: &'a Keyring,
    shape: ChainShape,
    seed: u64,
    block_weight: u32,
    funding_dues: Vec<Vec<Height>>,
    next: Height,
    coins: CoinSupply,
    tally: Tally,
}

impl<'a> Planner<'a> {
    pub(super) fn new(keys: &'a Keyring, shape: ChainShape, seed: u64, block_weight: u32) -> Self {
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
            coins: CoinSupply::new(shape.busy),
            tally: Tally::default(),
        }
    }

    /// The statistics, once all plans are made.
    pub(super) fn into_tally(self) -> Tally {
        self.tally
    }

    fn block(&mut self, height: Height) -> PlannedBlock {
        let mut rng = Rng::at(self.seed, height.into());
        self.coins.start_block(height, &mut rng);
        self.tally.start_block();
        let coinbase_slot = self.coins.new_slot(0);
        // The coinbase's coins are the first of the block, but their value is known last.
        let dues = self.coinbase_dues(height, &mut rng);
        let scripts: Vec<KeyScript> = dues.iter().map(|_| self.new_script(&mut rng)).collect();
        self.tally.coinbase(scripts.iter().map(|script| script.kind));
        let (mut txs, mut fees) = (Vec::new(), 0);
        if self.shape.busy.contains(height) {
            let mut room = BlockRoom::new(self.block_weight);
            while let Some((tx, fee)) = self.transaction(&mut room, &mut rng) {
                txs.push(tx);
                fees += fee;
            }
            if !txs.is_empty() {
                // The witness commitment.
                self.tally.data();
            }
        }
        let coinbase = self.coinbase(coinbase_slot, &scripts, &dues, fees, &mut rng);
        let slots = self.coins.end_block();
        PlannedBlock { height, coinbase_slot, coinbase, txs, slots }
    }

    /// The outputs of a coinbase, which claim the full subsidy and fees.
    fn coinbase(
        &mut self,
        slot: u32,
        scripts: &[KeyScript],
        dues: &[Height],
        fees: u64,
        rng: &mut Rng,
    ) -> Vec<PlannedOutput> {
        let height = self.next;
        let interval = Params::of(Network::Regtest).subsidy_halving_interval;
        let values = shares(block_subsidy(height, interval) + fees, scripts.len(), rng);
        let mut outputs = Vec::with_capacity(scripts.len());
        for (vout, ((&script, &due), value)) in (0..).zip(scripts.iter().zip(dues).zip(values)) {
            outputs.push(PlannedOutput::Pay { value, script });
            self.tally.worth(value);
            let coin =
                SpendableCoin { slot, vout, value, height, index: vout, script, coinbase: true };
            self.coins.add(coin, Some(due), rng);
        }
        self.coins.end_slot(slot);
        outputs
    }

    /// The heights at which the outputs of a coinbase are due.
    fn coinbase_dues(&mut self, height: Height, rng: &mut Rng) -> Vec<Height> {
        if self.shape.funding.contains(height)
            && let Some(dues) = self.funding_dues.pop()
        {
            return dues;
        }
        let mature = (height + MATURITY).max(self.shape.busy.start);
        vec![mature + law::lifetime(self.shape.profile, rng).unwrap_or(0)]
    }

    fn new_script(&self, rng: &mut Rng) -> KeyScript {
        self.keys.script(law::kind(rng), rng)
    }

    /// The next transaction and its fee; `None` if the block is full.
    fn transaction(&mut self, room: &mut BlockRoom, rng: &mut Rng) -> Option<(TxPlan, u64)> {
        let wanted = WantedTx::draw(self.shape.profile, rng);
        let mut left = *room;
        left.take(of_transaction(&wanted))?;
        // Keep a third of the room for inputs.
        let mut scripts = self.payees(wanted.payments, room.weight / 3, &mut left, rng)?;
        let spent = self.spend(&wanted, &mut left)?;
        let worth: u64 = spent.iter().map(|coin| coin.value).sum();
        let fee_max = worth / 8;
        let affordable = ((worth - fee_max) / PAYMENT_MIN).max(1) as usize;
        for script in scripts.drain(affordable.min(scripts.len())..) {
            left.give_back(of_payment(self.keys, script));
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
            spends: spent.iter().map(SpendableCoin::spend).collect(),
            outputs: Vec::with_capacity(scripts.len() + 1),
        };
        self.pay(&mut tx, &scripts, worth - fee, rng);
        if let Some(len) = wanted.data {
            tx.outputs.push(PlannedOutput::Data { len, seed: rng.next_u64() });
            self.tally.data();
        }
        self.coins.end_slot(tx.slot);
        self.tally.transaction();
        Some((tx, fee))
    }

    /// The scripts to pay to: at least one; more only while `keep` weight units remain.
    fn payees(
        &self,
        count: usize,
        keep: u64,
        left: &mut BlockRoom,
        rng: &mut Rng,
    ) -> Option<Vec<KeyScript>> {
        let mut scripts = Vec::with_capacity(count);
        for _ in 0..count {
            let script = self.new_script(rng);
            if left.weight < keep && !scripts.is_empty() {
                break;
            }
            left.take(of_payment(self.keys, script))?;
            scripts.push(script);
        }
        Some(scripts)
    }

    /// Takes coins as long as there is room for them.
    fn spend(&mut self, wanted: &WantedTx, left: &mut BlockRoom) -> Option<Vec<SpendableCoin>> {
        if wanted.payments >= BATCH {
            self.coins.bring_forward_the_richest(SIGHT);
        }
        let mut spent = Vec::with_capacity(wanted.inputs);
        while spent.len() < wanted.inputs
            && let Some(coin) = self.coins.take()
        {
            if left.take(of_spend(self.keys, coin.script)).is_none() {
                self.coins.give_back(coin);
                break;
            }
            spent.push(coin);
        }
        (!spent.is_empty()).then_some(spent)
    }

    /// Adds the payments to a transaction, and their spendable outputs to the coins.
    fn pay(&mut self, tx: &mut TxPlan, scripts: &[KeyScript], worth: u64, rng: &mut Rng) {
        let height = self.next;
        let mut values = shares(worth, scripts.len(), rng);
        let profile = self.shape.profile;
        let lives: Vec<Option<u32>> = scripts.iter().map(|_| law::lifetime(profile, rng)).collect();
        // The excess value of never-spent coins goes to one that will be spent.
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
            tx.outputs.push(PlannedOutput::Pay { value, script });
            let index = self.tally.made(script.kind, value);
            let coin = SpendableCoin {
                slot: tx.slot,
                vout,
                value,
                height,
                index,
                script,
                coinbase: false,
            };
            self.coins.add(coin, life.map(|blocks| height + blocks), rng);
        }
    }
}

impl Iterator for Planner<'_> {
    type Item = PlannedBlock;

    fn next(&mut self) -> Option<PlannedBlock> {
        let height = self.next;
        (height <= self.shape.tip).then(|| {
            let plan = self.block(height);
            self.next += 1;
            plan
        })
    }
}

/// Divides a sum into `count` random parts.
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

// ---- the room in a block ----
//
// Assumes maximum sizes, so that everything fits with any signatures. Reserves room for the coinbase.

/// Weight outside planned transactions: header, counts and a coinbase with one payment.
const BLOCK_OVERHEAD: u64 = 2_000;
/// Maximum signature operation cost of a block (Core `consensus/consensus.h`, `MAX_BLOCK_SIGOPS_COST`), minus
/// that of a coinbase.
const SIGOPS_COST_MAX: u64 = 80_000 - 400;
/// Weight of a transaction without inputs and outputs, with fewer than 253 of each, plus the marker and the
/// flag of its witness.
const TX_OVERHEAD: u64 = 4 * (4 + 1 + 1 + 4) + 2;
/// Additional weight of a count of 253 or more.
const LONG_COUNT: u64 = 4 * 2;

/// The room left in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockRoom {
    /// Weight units.
    pub(super) weight: u64,
    sigops: u64,
}

/// The cost of something in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockCost {
    weight: u64,
    sigops: u64,
}

impl BlockRoom {
    /// A whole block's room.
    pub(super) fn new(block_weight: u32) -> Self {
        let weight = u64::from(block_weight).saturating_sub(BLOCK_OVERHEAD);
        Self { weight, sigops: SIGOPS_COST_MAX }
    }

    /// Takes the cost; takes nothing and returns `None` if there is not enough room.
    pub(super) fn take(&mut self, cost: BlockCost) -> Option<()> {
        let weight = self.weight.checked_sub(cost.weight)?;
        let sigops = self.sigops.checked_sub(cost.sigops)?;
        *self = Self { weight, sigops };
        Some(())
    }

    /// Undoes a [`take`](Self::take).
    pub(super) fn give_back(&mut self, cost: BlockCost) {
        self.weight += cost.weight;
        self.sigops += cost.sigops;
    }
}

#[cfg(test)]
impl BlockRoom {
    /// Signature operations taken so far.
    pub(super) fn sigops_taken(&self) -> u64 {
        SIGOPS_COST_MAX - self.sigops
    }
}

/// A transaction without its inputs and payments.
pub(super) fn of_transaction(wanted: &WantedTx) -> BlockCost {
    let long = u64::from(wanted.inputs >= 253) + u64::from(wanted.payments + 1 >= 253);
    let data = wanted.data.map_or(0, |len| 4 * (8 + 1 + 2 + u64::from(len)));
    BlockCost { weight: TX_OVERHEAD + long * LONG_COUNT + data, sigops: 0 }
}

/// An output that pays to a script.
///
/// Core counts the cost of an output's script without evaluating its key counts (`consensus/tx_verify.cpp`,
/// `GetLegacySigOpCount`), times four.
pub(super) fn of_payment(keys: &Keyring, script: KeyScript) -> BlockCost {
    let sigops = match script.kind {
        PaymentKind::Pkh | PaymentKind::Pk => 4,
        PaymentKind::Multisig => 4 * 20,
        _ => 0,
    };
    BlockCost { weight: 4 * (8 + 1 + keys.lock(script).script_pubkey.len() as u64), sigops }
}

/// An input that spends a script, including its part of the witness; the operations by Core
/// `script/interpreter.cpp`, `WitnessSigOps`.
pub(super) fn of_spend(keys: &Keyring, script: KeyScript) -> BlockCost {
    let rest: u64 = keys.lock(script).rest.iter().map(|bytes| bytes.len() as u64 + 1).sum();
    let (script_sig, witness, sigops) = match script.kind {
        PaymentKind::Wpkh => (0, 1 + 73 + rest, 1),
        PaymentKind::ShWpkh => (23, 1 + 73 + 34, 1),
        PaymentKind::Tr => (0, 1 + 65, 0),
        // The leaf can be long enough for a length of three bytes.
        PaymentKind::TrScript => (0, 1 + 65 + rest + 2, 0),
        PaymentKind::Wsh => (0, 1 + 1 + 2 * 73 + rest, 3),
        PaymentKind::Pkh => (73 + 34, 1, 0),
        PaymentKind::Multisig => (1 + 73, 1, 0),
        PaymentKind::Pk => (73, 1, 0),
    };
    BlockCost { weight: 4 * (36 + 1 + script_sig + 4) + witness, sigops }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maker::law::ChainProfile;
    use apus_testkit::rng::Rng;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_add_up_to_the_sum(sum in 0u64..1 << 53, count in 1usize..2_000, seed: u64) {
            let values = shares(sum, count, &mut Rng::at(seed, 0));
            prop_assert_eq!(values.len(), count);
            prop_assert_eq!(values.iter().sum::<u64>(), sum);
        }
    }

    /// Otherwise plans would refer to ids that are not known yet.
    #[test]
    fn transactions_spend_only_from_earlier_layers() {
        let keys = Keyring::new(1, false);
        let shape = ChainShape::new(ChainProfile::MainnetLike, 20, 400_000, 0);
        let mut made_in_block = 0;
        for plan in Planner::new(&keys, shape, 1, 400_000) {
            let layer_of = |slot| plan.txs.iter().find(|tx| tx.slot == slot).map(|tx| tx.layer);
            for (place, tx) in plan.txs.iter().enumerate() {
                for spend in &tx.spends {
                    if let Some(layer) = layer_of(spend.slot) {
                        assert!(layer < tx.layer, "height {}", plan.height);
                        let earlier = plan.txs[..place].iter().any(|tx| tx.slot == spend.slot);
                        assert!(earlier, "parents come before their children");
                        made_in_block += 1;
                    }
                }
            }
        }
        assert!(made_in_block > 100, "{made_in_block}");
    }
}

#[cfg(test)]
mod cost_tests {
    use super::*;

    #[test]
    fn room_is_never_overdrawn() {
        let mut room = BlockRoom::new(4_000_000);
        let all = room;
        let cost = BlockCost { weight: 1_000_000, sigops: 30_000 };
        assert_eq!(room.take(cost), Some(()));
        assert_eq!(room.take(cost), Some(()));
        let before = room;
        assert_eq!(room.take(cost), None, "weight is left, but no signature operations");
        assert_eq!(room.take(BlockCost { weight: 2_000_000, sigops: 0 }), None);
        assert_eq!(room, before);
        room.give_back(cost);
        room.give_back(cost);
        assert_eq!(room, all);
    }
}
