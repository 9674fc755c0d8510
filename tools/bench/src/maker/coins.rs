//! [`CoinSupply`]: the coins waiting to be spent, by the height at which they are due.
//!
//! It drops coins that are due after the last block that spends, so memory is bounded by the coins still to
//! be spent.

use super::keys::KeyScript;
use super::law::{MATURITY, PaymentKind};
use apus_chain::{Height, HeightRange};
use apus_testkit::rng::Rng;

/// A coin to spend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spend {
    pub(super) slot: u32,
    pub(super) vout: u32,
    pub(super) value: u64,
    pub(super) script: KeyScript,
}

/// A coin that may be spent.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpendableCoin {
    /// The slot of its transaction's id.
    pub(super) slot: u32,
    pub(super) vout: u32,
    pub(super) value: u64,
    /// Height of the block that made it.
    pub(super) height: Height,
    /// Its index among that block's spendable outputs.
    pub(super) index: u32,
    pub(super) script: KeyScript,
    pub(super) coinbase: bool,
}

impl SpendableCoin {
    pub(super) fn spend(&self) -> Spend {
        Spend { slot: self.slot, vout: self.vout, value: self.value, script: self.script }
    }

    fn is_mature(&self, height: Height) -> bool {
        !self.coinbase || height - self.height >= MATURITY
    }
}

/// A transaction that has coins, or had some until this block.
#[derive(Debug, Clone, Copy, Default)]
struct CoinSlot {
    coins: u32,
    layer: u32,
}

/// All waiting coins.
pub(super) struct CoinSupply {
    busy: HeightRange,
    height: Height,
    /// By height from the first busy block on.
    later: Vec<Vec<SpendableCoin>>,
    /// Coins due in the current block, in random order.
    due: Vec<SpendableCoin>,
    /// Coins that had no room in earlier blocks.
    over: Vec<SpendableCoin>,
    /// Immature coinbases that were drawn, with their former positions.
    immature: Vec<(usize, SpendableCoin)>,
    slots: Vec<CoinSlot>,
    free: Vec<u32>,
    free_after_block: Vec<u32>,
}

impl CoinSupply {
    pub(super) fn new(busy: HeightRange) -> Self {
        Self {
            busy,
            height: 0,
            later: vec![Vec::new(); busy.count() as usize],
            due: Vec::new(),
            over: Vec::new(),
            immature: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            free_after_block: Vec::new(),
        }
    }

    fn place(&self, height: Height) -> Option<usize> {
        self.busy.contains(height).then(|| (height - self.busy.start) as usize)
    }

    pub(super) fn start_block(&mut self, height: Height, rng: &mut Rng) {
        self.height = height;
        if let Some(place) = self.place(height) {
            self.due = std::mem::take(&mut self.later[place]);
            rng.shuffle(&mut self.due);
        }
    }

    /// Ends the block; returns the number of slots.
    pub(super) fn end_block(&mut self) -> usize {
        for (place, coin) in self.immature.drain(..) {
            self.later[place].push(coin);
        }
        self.over.append(&mut self.due);
        self.free.append(&mut self.free_after_block);
        self.slots.len()
    }

    /// A slot for a new transaction. A slot emptied by the current block is not reused before the block's
    /// end, because its other transactions still read it.
    pub(super) fn new_slot(&mut self, layer: u32) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(CoinSlot::default());
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize] = CoinSlot { coins: 0, layer };
        slot
    }

    /// Marks all coins of a transaction as added.
    pub(super) fn end_slot(&mut self, slot: u32) {
        if self.slots[slot as usize].coins == 0 {
            self.free_after_block.push(slot);
        }
    }

    /// The layer of a transaction that spends a coin.
    pub(super) fn layer_above(&self, coin: &SpendableCoin) -> u32 {
        if coin.height == self.height { self.slots[coin.slot as usize].layer + 1 } else { 0 }
    }

    /// Adds a coin, to be spent at `due` if at all.
    pub(super) fn add(&mut self, coin: SpendableCoin, due: Option<Height>, rng: &mut Rng) {
        let Some(place) = due.and_then(|due| self.place(due)) else { return };
        self.slots[coin.slot as usize].coins += 1;
        if due == Some(self.height) {
            self.due.push(coin);
            let (last, other) = (self.due.len() - 1, rng.index(self.due.len()));
            self.due.swap(last, other);
        } else {
            self.later[place].push(coin);
        }
    }

    /// Takes a coin: preferably one that is due, else an overdue one, else the next one due.
    pub(super) fn take(&mut self) -> Option<SpendableCoin> {
        let coin = self.due.pop().or_else(|| self.over.pop()).or_else(|| self.take_early())?;
        let slot = &mut self.slots[coin.slot as usize];
        slot.coins -= 1;
        if slot.coins == 0 {
            self.free_after_block.push(coin.slot);
        }
        Some(coin)
    }

    fn take_early(&mut self) -> Option<SpendableCoin> {
        for place in self.place(self.height)? + 1..self.later.len() {
            while let Some(coin) = self.later[place].pop() {
                if coin.is_mature(self.height) {
                    return Some(coin);
                }
                self.immature.push((place, coin));
            }
        }
        None
    }

    /// Undoes the last [`take`](Self::take).
    pub(super) fn give_back(&mut self, coin: SpendableCoin) {
        let slot = &mut self.slots[coin.slot as usize];
        if slot.coins == 0 {
            self.free_after_block.pop();
        }
        slot.coins += 1;
        self.due.push(coin);
    }

    /// Moves the most valuable of the next `sight` due coins to the front.
    pub(super) fn bring_forward_the_richest(&mut self, sight: usize) {
        let Some(last) = self.due.len().checked_sub(1) else { return };
        let first = (last + 1).saturating_sub(sight);
        let richest = (first..=last).max_by_key(|&place| (self.due[place].value, place));
        self.due.swap(last, richest.unwrap_or(last));
    }
}

// ---- statistics of the resulting chain ----
//
// Records for every spendable output whether it was spent, in one bit each: the hints.

/// Whether the spendable outputs of one block are unspent.
#[derive(Debug, Clone, Default)]
struct UnspentFlags {
    count: u32,
    words: Vec<u64>,
}

impl UnspentFlags {
    fn push(&mut self) -> u32 {
        let index = self.count;
        let (word, bit) = (index as usize / 64, index % 64);
        if word == self.words.len() {
            self.words.push(0);
        }
        self.words[word] |= 1 << bit;
        self.count += 1;
        index
    }

    fn clear(&mut self, index: u32) {
        self.words[index as usize / 64] &= !(1 << (index % 64));
    }
}

/// Counts over all blocks from height 1 on.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) transactions: u64,
    pub(super) inputs: u64,
    pub(super) outputs: u64,
    /// Outputs that carry data. The builder counts commitments to witnesses.
    pub(super) data: u64,
    /// Value of all coins made, minus the spent ones.
    pub(super) worth: u64,
    pub(super) kinds: [u64; PaymentKind::ALL.len()],
    /// Coins spent, by their age in blocks.
    ages: Vec<u64>,
    unspent: Vec<UnspentFlags>,
}

impl Tally {
    pub(super) fn start_block(&mut self) {
        self.unspent.push(UnspentFlags::default());
        self.transactions += 1;
    }

    pub(super) fn transaction(&mut self) {
        self.transactions += 1;
    }

    /// Counts the outputs of a coinbase; [`Self::worth`] adds their value later.
    pub(super) fn coinbase(&mut self, kinds: impl Iterator<Item = PaymentKind>) {
        for kind in kinds {
            self.made(kind, 0);
        }
    }

    pub(super) fn worth(&mut self, value: u64) {
        self.worth += value;
    }

    /// Counts a spendable output; returns its index among the spendable outputs of its block.
    pub(super) fn made(&mut self, kind: PaymentKind, value: u64) -> u32 {
        self.outputs += 1;
        self.kinds[kind as usize] += 1;
        self.worth += value;
        self.unspent.last_mut().map_or(0, UnspentFlags::push)
    }

    pub(super) fn data(&mut self) {
        self.outputs += 1;
        self.data += 1;
    }

    pub(super) fn spent(&mut self, coin: &SpendableCoin, height: Height) {
        self.inputs += 1;
        self.worth -= coin.value;
        let age = (height - coin.height) as usize;
        if self.ages.len() <= age {
            self.ages.resize(age + 1, 0);
        }
        self.ages[age] += 1;
        self.unspent[coin.height as usize - 1].clear(coin.index);
    }

    /// Coins spent at most this many blocks after they were made.
    pub(super) fn spent_within(&self, blocks: u32) -> u64 {
        self.ages.iter().take(blocks as usize + 1).sum()
    }

    /// For each block, the indices of its unspent outputs.
    pub(super) fn hints(&self) -> impl Iterator<Item = Vec<u32>> + '_ {
        self.unspent.iter().map(|block| {
            let is_set = |index: &u32| block.words[*index as usize / 64] >> (index % 64) & 1 == 1;
            (0..block.count).filter(is_set).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maker::law::PaymentKind;

    const BUSY: HeightRange = HeightRange::new(201, 211);

    fn coin(slot: u32, height: Height, coinbase: bool, value: u64) -> SpendableCoin {
        let script = KeyScript { kind: PaymentKind::Tr, key: 0 };
        SpendableCoin { slot, vout: 0, value, height, index: 0, script, coinbase }
    }

    /// Coins made at height 201, one due at each of these heights with this value.
    fn coins(dues: &[(Option<Height>, u64)]) -> (CoinSupply, Rng) {
        let (mut coins, mut rng) = (CoinSupply::new(BUSY), Rng::at(1, 1));
        coins.start_block(150, &mut rng);
        for (due, value) in dues {
            let slot = coins.new_slot(0);
            coins.add(coin(slot, 150, false, *value), *due, &mut rng);
            coins.end_slot(slot);
        }
        coins.end_block();
        coins.start_block(201, &mut rng);
        (coins, rng)
    }

    fn take_all(coins: &mut CoinSupply) -> Vec<u64> {
        std::iter::from_fn(|| coins.take()).map(|coin| coin.value).collect()
    }

    #[test]
    fn due_coins_go_first_then_overdue_then_future_ones() {
        let (mut coins, mut rng) = coins(&[
            (Some(203), 4),
            (Some(201), 1),
            (Some(202), 2),
            (Some(204), 3),
            (None, 9),
            (Some(211), 9),
        ]);
        coins.end_block();
        coins.start_block(202, &mut rng);
        assert_eq!(take_all(&mut coins), [2, 1, 4, 3]);
    }

    #[test]
    fn immature_coinbases_are_never_taken() {
        let (mut coins, mut rng) = coins(&[(Some(210), 1)]);
        coins.end_block();
        coins.start_block(108, &mut rng);
        let slot = coins.new_slot(0);
        coins.add(coin(slot, 108, true, 2), Some(208), &mut rng);
        coins.end_block();
        coins.start_block(207, &mut rng);
        assert_eq!(take_all(&mut coins), [1]);
        coins.end_block();
        coins.start_block(208, &mut rng);
        assert_eq!(take_all(&mut coins), [2]);
    }

    #[test]
    fn a_slot_is_reused_after_the_block_that_empties_it() {
        let (mut coins, mut rng) = coins(&[(Some(201), 1), (Some(205), 2)]);
        let emptied = coins.take().unwrap().slot;
        assert_eq!(coins.new_slot(0), 2, "others of this block may still read it");
        coins.end_block();
        coins.start_block(202, &mut rng);
        assert_eq!(coins.new_slot(0), emptied);
    }

    #[test]
    fn coins_given_back_keep_their_slot() {
        let (mut coins, mut rng) = coins(&[(Some(201), 7)]);
        let coin = coins.take().unwrap();
        coins.give_back(coin);
        coins.end_block();
        coins.start_block(202, &mut rng);
        assert_ne!(coins.new_slot(0), coin.slot);
        assert_eq!(coins.take().map(|coin| coin.value), Some(7));
    }

    #[test]
    fn a_layer_counts_the_ancestors_in_the_same_block() {
        let (mut coins, mut rng) = coins(&[(Some(201), 1)]);
        let old = coins.take().unwrap();
        assert_eq!(coins.layer_above(&old), 0);
        let slot = coins.new_slot(4);
        coins.add(coin(slot, 201, false, 2), Some(201), &mut rng);
        let new = coins.take().unwrap();
        assert_eq!(coins.layer_above(&new), 5);
    }

    #[test]
    fn the_richest_in_sight_comes_first() {
        let dues: Vec<_> = (1..=100).map(|value| (Some(201), value)).collect();
        let (mut coins, _) = coins(&dues);
        let sight: Vec<u64> = coins.due[90..].iter().map(|coin| coin.value).collect();
        coins.bring_forward_the_richest(10);
        assert_eq!(coins.take().map(|coin| coin.value), sight.into_iter().max());
        coins.bring_forward_the_richest(1_000);
        assert_eq!(take_all(&mut coins).len(), 99);
    }
}

#[cfg(test)]
mod tally_tests {
    use super::*;
    use crate::maker::keys::KeyScript;

    fn coin(height: Height, index: u32, value: u64) -> SpendableCoin {
        let script = KeyScript { kind: PaymentKind::Pk, key: 0 };
        SpendableCoin { slot: 0, vout: 0, value, height, index, script, coinbase: false }
    }

    #[test]
    fn hints_are_the_unspent_outputs() {
        let mut tally = Tally::default();
        tally.start_block();
        let indices: Vec<u32> = (0..130).map(|value| tally.made(PaymentKind::Pk, value)).collect();
        assert_eq!(indices, (0..130).collect::<Vec<_>>());
        tally.start_block();
        tally.made(PaymentKind::Tr, 1_000);
        tally.data();
        let kept = [0, 63, 64, 129];
        for index in (0..130).filter(|index| !kept.contains(index)) {
            tally.spent(&coin(1, index, index.into()), 2);
        }
        assert_eq!(tally.hints().collect::<Vec<_>>(), [kept.to_vec(), vec![0]]);
        assert_eq!(tally.worth, 63 + 64 + 129 + 1_000);
        assert_eq!((tally.outputs, tally.data, tally.inputs), (132, 1, 126));
        assert_eq!((tally.spent_within(0), tally.spent_within(1)), (0, 126));
        assert_eq!(tally.spent_within(u32::MAX), 126);
    }
}
