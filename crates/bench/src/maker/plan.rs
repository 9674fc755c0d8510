//! [`Planner`]: decides what each block spends and pays, before anything is signed or hashed.
//!
//! A plan names a transaction by a *slot* rather than its id, so that plans can be made ahead of
//! the blocks. A slot is free again after the block that spends the last coin in it. Plans never
//! depend on signatures: sizes are taken at their greatest.

use super::coins::{Coin, Coins};
use super::keys::{Keyring, Script};
use super::law::{self, Kind};
use super::rng::Rng;
use super::shape::{MATURITY, Shape};
use super::tally::Tally;
use apus_chain::{Height, Network, Params, block_subsidy};

/// Weight of what is no transaction of a plan: header, counts and the coinbase.
const BLOCK_OVERHEAD: u64 = 2_000;
/// Weight of a transaction without inputs and outputs, both less than 253.
const TX_OVERHEAD: u64 = 4 * (4 + 1 + 1 + 4) + 2;
/// Weight of a longer count.
const LONG_COUNT: u64 = 4 * 2;
/// What a block may cost in signature operations (Core `consensus/consensus.h`,
/// `MAX_BLOCK_SIGOPS_COST`), less what a coinbase may.
const SIGOPS_COST_MAX: u64 = 80_000 - 400;
/// A payment has at least so many satoshis, as long as there are some.
const PAYMENT_MIN: u64 = 1_000;
/// What is forgotten is worth no more than this, so that it does not drain the chain.
const FORGOTTEN_MAX: u64 = 20_000;
/// From so many payments on, a transaction is made from the most valuable coin in sight.
const BATCH: usize = 8;
/// How many coins are in sight.
const SIGHT: usize = 64;

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

/// Room that is left in a block.
struct Room {
    weight: u64,
    sigops: u64,
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
        let mut rng = Rng::new(seed, 0);
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
        let mut rng = Rng::new(self.seed, height.into());
        self.coins.start_block(height, &mut rng);
        self.tally.start_block();
        let coinbase_slot = self.coins.new_slot(0);
        let busy = self.shape.busy.contains(height);
        // Its coins come first in the order of the block, its worth is known last.
        let dues = self.coinbase_dues(height, &mut rng);
        let scripts: Vec<Script> = dues.iter().map(|_| self.new_script(&mut rng)).collect();
        self.tally.coinbase(scripts.iter().map(|script| script.kind));
        let (mut txs, mut fees) = (Vec::new(), 0);
        if busy {
            let weight = u64::from(self.block_weight).saturating_sub(BLOCK_OVERHEAD);
            let mut room = Room { weight, sigops: SIGOPS_COST_MAX };
            while let Some((tx, fee)) = self.transaction(&mut room, &mut rng) {
                txs.push(tx);
                fees += fee;
            }
            if !txs.is_empty() {
                // The commitment to their witnesses.
                self.tally.data();
            }
        }
        let interval = Params::of(Network::Regtest).subsidy_halving_interval;
        let values = shares(block_subsidy(height, interval) + fees, dues.len(), &mut rng);
        let mut coinbase = Vec::with_capacity(dues.len());
        for (vout, ((script, due), value)) in (0..).zip(scripts.into_iter().zip(dues).zip(values)) {
            coinbase.push(Output::Pay { value, script });
            self.tally.worth(value);
            let slot = coinbase_slot;
            let coin = Coin { slot, vout, value, height, index: vout, script, coinbase: true };
            self.coins.add(coin, due, &mut rng);
        }
        self.coins.end_slot(coinbase_slot);
        let slots = self.coins.end_block();
        BlockPlan { height, coinbase_slot, coinbase, txs, slots }
    }

    /// When the outputs of a coinbase are to be spent.
    fn coinbase_dues(&mut self, height: Height, rng: &mut Rng) -> Vec<Option<Height>> {
        let funding =
            if self.shape.funding.contains(height) { self.funding_dues.pop() } else { None };
        funding.map_or_else(
            || {
                let mature = (height + MATURITY).max(self.shape.busy.start);
                vec![Some(mature + law::lifetime(rng).unwrap_or(0))]
            },
            |dues| dues.into_iter().map(Some).collect(),
        )
    }

    fn new_script(&self, rng: &mut Rng) -> Script {
        self.keys.script(law::kind(rng), rng)
    }

    /// The next transaction and its fee; none if the block is full.
    fn transaction(&mut self, room: &mut Room, rng: &mut Rng) -> Option<(TxPlan, u64)> {
        let inputs_max = law::inputs(rng);
        let mut payments = law::payments(rng);
        if inputs_max >= 50 {
            payments = payments.min(2);
        }
        let data = law::data(rng);
        let mut left = Room { weight: room.weight.checked_sub(TX_OVERHEAD)?, sigops: room.sigops };
        let long_counts = u64::from(inputs_max >= 253) + u64::from(payments + 1 >= 253);
        left.take(long_counts * LONG_COUNT, 0)?;
        if let Some(len) = data {
            left.take(4 * (8 + 1 + 2 + u64::from(len)), 0)?;
        }
        let mut scripts = Vec::with_capacity(payments);
        for _ in 0..payments {
            let script = self.new_script(rng);
            // A third of the room is kept for what is spent.
            if left.weight < room.weight / 3 && !scripts.is_empty() {
                break;
            }
            left.take(output_weight(self.keys, script), output_sigops(script.kind))?;
            scripts.push(script);
        }
        let spent = self.spend(inputs_max, payments >= BATCH, &mut left)?;
        let worth: u64 = spent.iter().map(|coin| coin.value).sum();
        let fee_max = worth / 8;
        let affordable = ((worth - fee_max) / PAYMENT_MIN).max(1) as usize;
        for script in scripts.drain(affordable.min(scripts.len())..) {
            left.weight += output_weight(self.keys, script);
            left.sigops += output_sigops(script.kind);
        }
        let weight = room.weight - left.weight;
        let fee = (law::fee_rate(rng) * weight.div_ceil(4)).min(fee_max);
        *room = left;
        let layer = spent.iter().map(|coin| self.coins.layer_above(coin)).max().unwrap_or(0);
        let height = self.next;
        let mut tx = TxPlan {
            slot: self.coins.new_slot(layer),
            layer,
            lock_time: if rng.per_mille(300) { height - 1 } else { 0 },
            spends: spent.iter().map(Coin::spend).collect(),
            outputs: Vec::with_capacity(scripts.len() + 1),
        };
        spent.iter().for_each(|coin| self.tally.spent(coin, height));
        self.pay(&mut tx, &scripts, worth - fee, rng);
        if let Some(len) = data {
            tx.outputs.push(Output::Data { len, seed: rng.next() });
            self.tally.data();
        }
        self.coins.end_slot(tx.slot);
        self.tally.transaction();
        Some((tx, fee))
    }

    /// Takes coins as long as there is room for them.
    fn spend(&mut self, count: usize, batch: bool, left: &mut Room) -> Option<Vec<Coin>> {
        let mut spent = Vec::with_capacity(count);
        if batch {
            self.coins.bring_forward_the_richest(SIGHT);
        }
        while spent.len() < count {
            let Some(coin) = self.coins.take() else { break };
            if left
                .take(spend_weight(self.keys, coin.script), spend_sigops(coin.script.kind))
                .is_none()
            {
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
        let lives: Vec<Option<u32>> = scripts.iter().map(|_| law::lifetime(rng)).collect();
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

impl Room {
    fn take(&mut self, weight: u64, sigops: u64) -> Option<()> {
        let (weight, sigops) = (self.weight.checked_sub(weight)?, self.sigops.checked_sub(sigops)?);
        *self = Self { weight, sigops };
        Some(())
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

fn output_weight(keys: &Keyring, script: Script) -> u64 {
    4 * (8 + 1 + keys.lock(script).script_pubkey.len() as u64)
}

/// Core counts what scripts of outputs would cost without looking at what they say of their keys
/// (`consensus/tx_verify.cpp`, `GetLegacySigOpCount`), four times over.
const fn output_sigops(kind: Kind) -> u64 {
    match kind {
        Kind::Pkh | Kind::Pk => 4,
        Kind::Multisig => 4 * 20,
        _ => 0,
    }
}

/// The most that an input weighs, its part of the witness included.
fn spend_weight(keys: &Keyring, script: Script) -> u64 {
    let rest: u64 = keys.lock(script).rest.iter().map(|bytes| bytes.len() as u64 + 1).sum();
    let (script_sig, witness) = match script.kind {
        Kind::Wpkh => (0, 1 + 73 + rest),
        Kind::ShWpkh => (23, 1 + 73 + 34),
        Kind::Tr => (0, 1 + 65),
        // The leaf can be long enough for a length of three bytes.
        Kind::TrScript => (0, 1 + 65 + rest + 2),
        Kind::Wsh => (0, 1 + 1 + 2 * 73 + rest),
        Kind::Pkh => (73 + 34, 1),
        Kind::Multisig => (1 + 73, 1),
        Kind::Pk => (73, 1),
    };
    4 * (36 + 1 + script_sig + 4) + witness
}

/// Core `script/interpreter.cpp`, `WitnessSigOps`.
const fn spend_sigops(kind: Kind) -> u64 {
    match kind {
        Kind::Wpkh | Kind::ShWpkh => 1,
        Kind::Wsh => 3,
        _ => 0,
    }
}
