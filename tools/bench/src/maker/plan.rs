//! [`Planner`]: decides what each block spends and pays, before anything is signed or hashed.
//!
//! A plan names a transaction of its own block by its place, and earlier ones by their ids. So after each
//! block the planner has to be given the new ids. What is planned never depends on signatures: plans assume
//! maximum sizes.

use super::coins::{BlockIds, COINBASE, CoinSupply, Parent, Spend, SpendableCoin};
use super::cost::{BlockRoom, of_payment, of_spend, of_transaction};
use super::history::History;
use super::keys::{KeyScript, Keyring};
use super::law::{self, DATA_PER_MILLE, WantedTx};
use super::shape::{ChainShape, MATURITY};
use super::tally::Tally;
use apus_chain::{Height, Network, Params, block_subsidy};
use apus_testkit::rng::Rng;

/// Minimum payment in satoshis, as long as there is enough.
const PAYMENT_MIN: u64 = 1_000;
/// The same in a history, whose coins have to be worth a fortieth of the main chain's: regtest's subsidy is
/// halved every 150 blocks.
const HISTORIC_PAYMENT_MIN: u64 = 300;
/// Value from which a coin of a history is meant for transactions with many payments.
const HISTORIC_RICH_FROM: u64 = 100_000;
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
    pub(super) coinbase: Vec<PlannedOutput>,
    pub(super) txs: Vec<TxPlan>,
    /// Whether the coinbase commits to witnesses.
    pub(super) commits: bool,
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
    history: Option<History>,
    /// The current block's coins that are never spent.
    left: Vec<SpendableCoin>,
    draft: Draft,
}

/// The parts of a transaction in the making. There are thousands of transactions in a block, so their memory
/// is used again.
#[derive(Default)]
struct Draft {
    /// The coins that it spends.
    spent: Vec<SpendableCoin>,
    /// Of each payment the script, the value and the height at which it is due.
    scripts: Vec<KeyScript>,
    values: Vec<u64>,
    dues: Vec<Option<Height>>,
}

impl<'a> Planner<'a> {
    /// A chain with a history follows the main chain; any other is full of recent transactions.
    pub(super) fn new(
        keys: &'a Keyring,
        shape: ChainShape,
        seed: u64,
        block_weight: u32,
        history: Option<History>,
    ) -> Self {
        let mut rng = Rng::at(seed, 0);
        let mut funding_dues = shape.funding_dues(block_weight, &mut rng);
        funding_dues.reverse();
        let rich_from = if history.is_some() { HISTORIC_RICH_FROM } else { u64::MAX };
        Self {
            keys,
            shape,
            seed,
            block_weight,
            funding_dues,
            next: 1,
            coins: CoinSupply::new(shape.busy, rich_from),
            tally: Tally::default(),
            history,
            left: Vec::new(),
            draft: Draft::default(),
        }
    }

    /// The coins that will be spent, or would be in a longer chain.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &SpendableCoin> {
        self.coins.waiting()
    }

    /// Counts of the blocks so far.
    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The final counts.
    pub(super) fn into_tally(mut self) -> Tally {
        self.coins.waiting().for_each(|coin| self.tally.left(coin));
        self.tally
    }

    /// Plans the next block; `None` after the last. [`end_block`](Self::end_block) must follow.
    pub(super) fn plan(&mut self) -> Option<PlannedBlock> {
        (self.next <= self.shape.tip).then(|| self.block(self.next))
    }

    /// Ends the block just planned, which has these ids and this size. Returns its coins that no block will
    /// spend.
    pub(super) fn end_block(&mut self, ids: &BlockIds<'_>, bytes: u64) -> Vec<SpendableCoin> {
        self.coins.end_block(ids);
        for coin in &mut self.left {
            coin.name(ids);
            self.tally.left(coin);
        }
        if let Some(history) = &mut self.history {
            history.end_block(bytes);
        }
        self.next += 1;
        std::mem::take(&mut self.left)
    }

    fn block(&mut self, height: Height) -> PlannedBlock {
        let mut rng = Rng::at(self.seed, height.into());
        self.coins.start_block(height, &mut rng);
        self.tally.start_block();
        if let Some(history) = &mut self.history {
            history.start_block(height, &mut rng);
        }
        // The coinbase's coins are the first of the block, but their value is known last.
        let dues = self.coinbase_dues(height, &mut rng);
        let scripts: Vec<KeyScript> = dues.iter().map(|_| self.new_script(&mut rng)).collect();
        self.tally.coinbase(scripts.iter().map(|script| script.kind));
        let (mut txs, mut fees) = (Vec::new(), 0);
        if self.shape.busy.contains(height) {
            let mut room = BlockRoom::new(self.block_weight);
            while let Some((tx, fee)) = self.transaction(&txs, &mut room, &mut rng) {
                txs.push(tx);
                fees += fee;
            }
        }
        let commits = self.commits(&txs);
        if commits {
            self.tally.data();
        }
        let coinbase = self.coinbase(&scripts, &dues, fees, &mut rng);
        PlannedBlock { height, coinbase, txs, commits }
    }

    /// Whether a block with these transactions commits to their witnesses. In a history, only if they have
    /// any, as before SegWit.
    fn commits(&self, txs: &[TxPlan]) -> bool {
        let has_witness = |tx: &TxPlan| tx.spends.iter().any(|it| it.script.kind.has_witness());
        match self.history {
            Some(_) => txs.iter().any(has_witness),
            None => !txs.is_empty(),
        }
    }

    /// The outputs of a coinbase, which claim the full subsidy and fees.
    fn coinbase(
        &mut self,
        scripts: &[KeyScript],
        dues: &[Height],
        fees: u64,
        rng: &mut Rng,
    ) -> Vec<PlannedOutput> {
        let height = self.next;
        let interval = Params::of(Network::Regtest).subsidy_halving_interval;
        let mut values = Vec::new();
        let worth = block_subsidy(height, interval) + fees;
        shares(worth, scripts.len(), rng, &mut values);
        let mut outputs = Vec::with_capacity(scripts.len());
        for (vout, ((&script, &due), value)) in (0..).zip(scripts.iter().zip(dues).zip(values)) {
            outputs.push(PlannedOutput::Pay { value, script });
            self.tally.worth(value);
            let txid = SpendableCoin::id_to_come(COINBASE);
            let coin =
                SpendableCoin { txid, vout, value, height, index: vout, script, coinbase: true };
            self.add(coin, Some(due), rng);
        }
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
        vec![match &self.history {
            Some(history) => mature + history.lifetime(rng),
            None => mature + law::lifetime(self.shape.profile, rng).unwrap_or(0),
        }]
    }

    /// Adds a coin to the supply, or to the coins that are left.
    fn add(&mut self, coin: SpendableCoin, due: Option<Height>, rng: &mut Rng) {
        if !self.coins.add(coin, due, rng) {
            self.left.push(coin);
            if let Some(history) = &mut self.history {
                history.kept_one();
            }
        }
    }

    fn new_script(&self, rng: &mut Rng) -> KeyScript {
        match &self.history {
            Some(history) => history.script(self.keys, rng),
            None => self.keys.script(law::kind(rng), rng),
        }
    }

    fn wanted(&mut self, room: &BlockRoom, rng: &mut Rng) -> Option<WantedTx> {
        match &mut self.history {
            Some(history) => history.wanted(room.bytes, self.tally.coins(), rng),
            None => Some(WantedTx::draw(self.shape.profile, DATA_PER_MILLE, rng)),
        }
    }

    /// The next transaction and its fee; `None` if the block is full.
    fn transaction(
        &mut self,
        earlier: &[TxPlan],
        room: &mut BlockRoom,
        rng: &mut Rng,
    ) -> Option<(TxPlan, u64)> {
        let mut draft = std::mem::take(&mut self.draft);
        let planned = self.planned(&mut draft, earlier, room, rng);
        self.draft = draft;
        planned
    }

    fn planned(
        &mut self,
        draft: &mut Draft,
        earlier: &[TxPlan],
        room: &mut BlockRoom,
        rng: &mut Rng,
    ) -> Option<(TxPlan, u64)> {
        let wanted = self.wanted(room, rng)?;
        let mut left = *room;
        left.take(of_transaction(&wanted))?;
        // Keep a third of the room for inputs.
        self.payees(wanted.payments, room.weight / 3, draft, &mut left, rng)?;
        self.spend(&wanted, draft, &mut left)?;
        let worth: u64 = draft.spent.iter().map(|coin| coin.value).sum();
        let fee_max = worth / 8;
        let least = if self.history.is_some() { HISTORIC_PAYMENT_MIN } else { PAYMENT_MIN };
        let affordable = ((worth - fee_max) / least).max(1) as usize;
        for script in draft.scripts.drain(affordable.min(draft.scripts.len())..) {
            left.give_back(of_payment(self.keys, script));
        }
        let weight = room.weight - left.weight;
        let fee = (law::fee_rate(rng) * weight.div_ceil(4)).min(fee_max);
        *room = left;
        let height = self.next;
        draft.spent.iter().for_each(|coin| self.tally.spent(coin, height));
        let spends: Vec<Spend> = draft.spent.iter().map(|coin| coin.spend(height)).collect();
        let mut tx = TxPlan {
            layer: spends.iter().map(|spend| layer_above(spend, earlier)).max().unwrap_or(0),
            lock_time: if rng.per_mille(LOCKED_PER_MILLE) { height - 1 } else { 0 },
            spends,
            outputs: Vec::with_capacity(draft.scripts.len() + 1),
        };
        self.pay(&mut tx, earlier.len() as u32, draft, worth - fee, rng);
        if let Some(len) = wanted.data {
            tx.outputs.push(PlannedOutput::Data { len, seed: rng.next_u64() });
            self.tally.data();
        }
        self.tally.transaction();
        Some((tx, fee))
    }

    /// Chooses the scripts to pay to: at least one; more only while `keep` weight units remain.
    fn payees(
        &self,
        count: usize,
        keep: u64,
        draft: &mut Draft,
        left: &mut BlockRoom,
        rng: &mut Rng,
    ) -> Option<()> {
        draft.scripts.clear();
        for _ in 0..count {
            let script = self.new_script(rng);
            if left.weight < keep && !draft.scripts.is_empty() {
                break;
            }
            left.take(of_payment(self.keys, script))?;
            draft.scripts.push(script);
        }
        Some(())
    }

    /// Takes coins as long as there is room for them.
    fn spend(&mut self, wanted: &WantedTx, draft: &mut Draft, left: &mut BlockRoom) -> Option<()> {
        if wanted.payments >= BATCH {
            self.coins.bring_forward_the_richest(SIGHT);
        }
        draft.spent.clear();
        while draft.spent.len() < wanted.inputs
            && let Some(coin) = self.coins.take()
        {
            if left.take(of_spend(self.keys, coin.script)).is_none() {
                self.coins.give_back(coin);
                break;
            }
            draft.spent.push(coin);
        }
        (!draft.spent.is_empty()).then_some(())
    }

    /// Draws the heights at which the payments are due; `None` for coins that are never spent.
    fn draw_dues(&mut self, draft: &mut Draft, rng: &mut Rng) {
        let (height, profile) = (self.next, self.shape.profile);
        let Draft { scripts, dues, .. } = draft;
        dues.clear();
        match &mut self.history {
            Some(history) => history.draw_dues(scripts.len(), dues, rng),
            None => {
                let due = |blocks| height + blocks;
                dues.extend(scripts.iter().map(|_| law::lifetime(profile, rng).map(due)));
            }
        }
    }

    /// Adds the payments to a transaction, and their spendable outputs to the coins.
    fn pay(&mut self, tx: &mut TxPlan, place: u32, draft: &mut Draft, worth: u64, rng: &mut Rng) {
        let height = self.next;
        shares(worth, draft.scripts.len(), rng, &mut draft.values);
        self.draw_dues(draft, rng);
        let Draft { scripts, values, dues, .. } = draft;
        let history = self.history.as_ref();
        let keeper = match history {
            Some(history) => history.keeper(dues, rng),
            None => dues.iter().position(Option::is_some).unwrap_or(0),
        };
        // The excess value goes to a coin that will be spent.
        let mut over = 0;
        for (place, (value, due)) in values.iter_mut().zip(&*dues).enumerate() {
            let most = match (history, due) {
                (Some(history), _) if place != keeper => Some(history.value_max(*due, worth, rng)),
                (None, None) => Some(rng.between(PAYMENT_MIN / 2, FORGOTTEN_MAX)),
                _ => None,
            };
            let less = most.map_or(*value, |most| most.min(*value));
            over += *value - less;
            *value = less;
        }
        values[keeper] += over;
        let txid = SpendableCoin::id_to_come(place);
        let payments = scripts.iter().zip(&*values).zip(&*dues);
        for (vout, ((&script, &value), &due)) in (0..).zip(payments) {
            tx.outputs.push(PlannedOutput::Pay { value, script });
            let index = self.tally.made(script.kind, value);
            let coin = SpendableCoin { txid, vout, value, height, index, script, coinbase: false };
            self.add(coin, due, rng);
        }
    }
}

/// The layer of a transaction that spends this: above that of a parent in the same block.
fn layer_above(spend: &Spend, earlier: &[TxPlan]) -> u32 {
    match spend.parent {
        Parent::SameBlock(place) => earlier[place as usize].layer + 1,
        Parent::Earlier(_) => 0,
    }
}

/// Divides a sum into `count` random parts.
fn shares(sum: u64, count: usize, rng: &mut Rng, values: &mut Vec<u64>) {
    values.clear();
    values.extend((0..count).map(|_| rng.between(50, 1_000)));
    let all: u64 = values.iter().sum();
    let mut left = sum;
    for value in &mut *values {
        *value = match sum.checked_mul(*value) {
            Some(product) => product / all,
            None => (u128::from(sum) * u128::from(*value) / u128::from(all)) as u64,
        };
        left -= *value;
    }
    if let Some(last) = values.last_mut() {
        *last += left;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maker::law::ChainProfile;
    use apus_testkit::rng::Rng;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_add_up_to_the_sum(sum in 0u64..1 << 60, count in 1usize..2_000, seed: u64) {
            let mut values = vec![7];
            shares(sum, count, &mut Rng::at(seed, 0), &mut values);
            prop_assert_eq!(values.len(), count);
            prop_assert_eq!(values.iter().sum::<u64>(), sum);
        }
    }

    /// Otherwise plans would refer to ids that are not known yet.
    #[test]
    fn transactions_spend_only_from_earlier_layers() {
        let keys = Keyring::new(1, false, false);
        let shape = ChainShape::new(ChainProfile::MainnetLike, 20, 400_000, 0);
        let mut made_in_block = 0;
        let mut planner = Planner::new(&keys, shape, 1, 400_000, None);
        while let Some(plan) = planner.plan() {
            for (place, tx) in plan.txs.iter().enumerate() {
                for spend in &tx.spends {
                    if let Parent::SameBlock(parent) = spend.parent {
                        assert!((parent as usize) < place, "parents come before their children");
                        let layer = plan.txs[parent as usize].layer;
                        assert!(layer < tx.layer, "height {}", plan.height);
                        made_in_block += 1;
                    }
                }
            }
            let txs = vec![[plan.height as u8; 32]; plan.txs.len()];
            planner.end_block(&BlockIds { coinbase: [0; 32], txs: &txs }, 0);
        }
        assert!(made_in_block > 100, "{made_in_block}");
    }
}
