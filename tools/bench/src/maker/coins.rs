//! [`CoinSupply`]: the coins waiting to be spent, by the height at which they are due.
//!
//! It gives coins that are due after the last block that spends back to its caller: no block ever asks for
//! them. So memory is bounded by the coins still to be spent, 56 bytes each.

use super::keys::KeyScript;
use super::shape::MATURITY;
use apus_chain::{Height, HeightRange};
use apus_testkit::rng::Rng;

/// The transaction that made a coin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parent {
    /// One of an earlier block, by its id.
    Earlier([u8; 32]),
    /// One of the same block, by its place after the coinbase.
    SameBlock(u32),
}

/// A coin to spend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spend {
    pub(super) parent: Parent,
    pub(super) vout: u32,
    pub(super) value: u64,
    pub(super) script: KeyScript,
}

/// A coin that may be spent, or is left at the end.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpendableCoin {
    /// The id of its transaction. While its block is being planned, the transaction's place instead, in the
    /// first four bytes.
    pub(super) txid: [u8; 32],
    pub(super) vout: u32,
    pub(super) value: u64,
    /// Height of the block that made it.
    pub(super) height: Height,
    /// Its index among that block's spendable outputs.
    pub(super) index: u32,
    pub(super) script: KeyScript,
    pub(super) coinbase: bool,
}

/// The place of a coinbase.
pub(super) const COINBASE: u32 = u32::MAX;

impl SpendableCoin {
    /// The id of a transaction that is not made yet.
    pub(super) fn id_to_come(place: u32) -> [u8; 32] {
        let mut id = [0; 32];
        id[..4].copy_from_slice(&place.to_le_bytes());
        id
    }

    fn place(&self) -> u32 {
        let [a, b, c, d, ..] = self.txid;
        u32::from_le_bytes([a, b, c, d])
    }

    /// Puts the id in the place of the transaction's place.
    pub(super) fn name(&mut self, ids: &BlockIds<'_>) {
        self.txid = match self.place() {
            COINBASE => ids.coinbase,
            place => ids.txs[place as usize],
        };
    }

    /// How a transaction at this height spends it.
    pub(super) fn spend(&self, height: Height) -> Spend {
        let parent = match self.height == height {
            true => Parent::SameBlock(self.place()),
            false => Parent::Earlier(self.txid),
        };
        Spend { parent, vout: self.vout, value: self.value, script: self.script }
    }

    fn is_mature(&self, height: Height) -> bool {
        !self.coinbase || height - self.height >= MATURITY
    }
}

/// The ids of a block's transactions.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockIds<'a> {
    pub(super) coinbase: [u8; 32],
    /// By their places after the coinbase.
    pub(super) txs: &'a [[u8; 32]],
}

/// All waiting coins.
pub(super) struct CoinSupply {
    busy: HeightRange,
    height: Height,
    /// By height from the first busy block on.
    later: Vec<Vec<SpendableCoin>>,
    /// Where this block put coins.
    touched: Vec<u32>,
    /// Coins due in the current block, in random order.
    due: Vec<SpendableCoin>,
    /// Coins that had no room in earlier blocks.
    over: Vec<SpendableCoin>,
    /// The same of great value. Below thousands of others no transaction with many payments would find them.
    rich: Vec<SpendableCoin>,
    /// The least value of these.
    rich_from: u64,
    /// Immature coinbases that were drawn, with their former positions.
    immature: Vec<(usize, SpendableCoin)>,
    /// No earlier place has a coin that this block may take early.
    next_early: usize,
}

impl CoinSupply {
    /// An empty supply, which keeps overdue coins apart from this value on.
    pub(super) fn new(busy: HeightRange, rich_from: u64) -> Self {
        Self {
            busy,
            height: 0,
            later: vec![Vec::new(); busy.count() as usize],
            touched: Vec::new(),
            due: Vec::new(),
            over: Vec::new(),
            rich: Vec::new(),
            rich_from,
            immature: Vec::new(),
            next_early: 0,
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
            self.next_early = place + 1;
        }
    }

    /// Ends the block, and names the transactions that made its coins.
    pub(super) fn end_block(&mut self, ids: &BlockIds<'_>) {
        let height = self.height;
        self.due.iter_mut().filter(|coin| coin.height == height).for_each(|coin| coin.name(ids));
        self.touched.sort_unstable();
        self.touched.dedup();
        for place in self.touched.drain(..) {
            // The newest coins are the last.
            let coins = self.later[place as usize].iter_mut().rev();
            coins.take_while(|coin| coin.height == height).for_each(|coin| coin.name(ids));
        }
        for (place, coin) in self.immature.drain(..) {
            self.later[place].push(coin);
        }
        for coin in self.due.drain(..) {
            let place = if coin.value < self.rich_from { &mut self.over } else { &mut self.rich };
            place.push(coin);
        }
    }

    /// Adds a coin, to be spent at `due`. Returns false, without it, if no block spends at that height.
    pub(super) fn add(&mut self, coin: SpendableCoin, due: Option<Height>, rng: &mut Rng) -> bool {
        let Some(place) = due.and_then(|due| self.place(due)) else { return false };
        if due == Some(self.height) {
            self.due.push(coin);
            let (last, other) = (self.due.len() - 1, rng.index(self.due.len()));
            self.due.swap(last, other);
        } else {
            let coins = &mut self.later[place];
            if coins.len() == coins.capacity() {
                // A quarter more, not twice as much: there are as many of these as blocks.
                coins.reserve_exact((coins.len() / 4).max(4));
            }
            coins.push(coin);
            self.touched.push(place as u32);
            self.next_early = self.next_early.min(place);
        }
        true
    }

    /// Takes a coin: preferably one that is due, else an overdue one, else the next one due.
    pub(super) fn take(&mut self) -> Option<SpendableCoin> {
        let due = self.due.pop().or_else(|| self.over.pop());
        due.or_else(|| self.rich.pop()).or_else(|| self.take_early())
    }

    fn take_early(&mut self) -> Option<SpendableCoin> {
        self.place(self.height)?;
        while self.next_early < self.later.len() {
            while let Some(coin) = self.later[self.next_early].pop() {
                if coin.is_mature(self.height) {
                    return Some(coin);
                }
                self.immature.push((self.next_early, coin));
            }
            self.next_early += 1;
        }
        None
    }

    /// Undoes the last [`take`](Self::take).
    pub(super) fn give_back(&mut self, coin: SpendableCoin) {
        self.due.push(coin);
    }

    /// Moves the most valuable of the next `sight` coins to the front: of the overdue ones of great value, or
    /// of the due ones if there are none.
    pub(super) fn bring_forward_the_richest(&mut self, sight: usize) {
        let coins = if self.rich.is_empty() { &mut self.due } else { &mut self.rich };
        let Some(last) = coins.len().checked_sub(1) else { return };
        let first = (last + 1).saturating_sub(sight);
        let richest = (first..=last).max_by_key(|&place| (coins[place].value, place));
        coins.swap(last, richest.unwrap_or(last));
        self.due.extend(self.rich.pop());
    }

    /// All coins between two blocks.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &SpendableCoin> {
        self.later.iter().flatten().chain(&self.over).chain(&self.rich)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maker::law::PaymentKind;

    const BUSY: HeightRange = HeightRange::new(201, 211);

    fn coin(place: u32, height: Height, coinbase: bool, value: u64) -> SpendableCoin {
        let script = KeyScript { kind: PaymentKind::Tr, key: 0 };
        let txid = SpendableCoin::id_to_come(place);
        SpendableCoin { txid, vout: 0, value, height, index: 0, script, coinbase }
    }

    /// Ids of the transactions of a block, made of a number for the block and their place.
    fn end_block(coins: &mut CoinSupply, block: u8) {
        let txs: Vec<[u8; 32]> = (0..100).map(|place| [block ^ place; 32]).collect();
        coins.end_block(&BlockIds { coinbase: [block ^ 0xff; 32], txs: &txs });
    }

    /// Coins made at height 201, one due at each of these heights with this value.
    fn coins(dues: &[(Option<Height>, u64)]) -> (CoinSupply, Rng) {
        let (mut coins, mut rng) = (CoinSupply::new(BUSY, u64::MAX), Rng::at(1, 1));
        coins.start_block(150, &mut rng);
        for (place, (due, value)) in (0..).zip(dues) {
            let kept = coins.add(coin(place, 150, false, *value), *due, &mut rng);
            assert_eq!(kept, due.is_some_and(|due| BUSY.contains(due)));
        }
        end_block(&mut coins, 150);
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
        end_block(&mut coins, 201);
        coins.start_block(202, &mut rng);
        assert_eq!(take_all(&mut coins), [2, 1, 4, 3]);
    }

    #[test]
    fn immature_coinbases_are_never_taken() {
        let (mut coins, mut rng) = coins(&[(Some(210), 1)]);
        end_block(&mut coins, 201);
        coins.start_block(108, &mut rng);
        assert!(coins.add(coin(COINBASE, 108, true, 2), Some(208), &mut rng));
        end_block(&mut coins, 108);
        coins.start_block(207, &mut rng);
        assert_eq!(take_all(&mut coins), [1]);
        end_block(&mut coins, 207);
        coins.start_block(208, &mut rng);
        assert_eq!(take_all(&mut coins), [2]);
    }

    /// Coins learn the ids of their transactions at the end of their block, wherever they wait.
    #[test]
    fn coins_have_the_ids_of_their_transactions() {
        let (mut coins, mut rng) = coins(&[(Some(205), 1), (Some(201), 2)]);
        let one = coins.take().unwrap();
        assert_eq!(one.spend(201).parent, Parent::Earlier([150 ^ 1; 32]));
        coins.add(coin(3, 201, false, 3), Some(201), &mut rng);
        coins.add(coin(4, 201, false, 4), Some(205), &mut rng);
        coins.add(coin(6, 201, false, 6), Some(206), &mut rng);
        coins.add(coin(7, 201, false, 7), Some(206), &mut rng);
        assert_eq!(coins.take().map(|coin| coin.spend(201).parent), Some(Parent::SameBlock(3)));
        // One of the same block, early.
        let early = coins.take().unwrap();
        assert_eq!(early.spend(201).parent, Parent::SameBlock(4));
        coins.give_back(early);
        coins.add(coin(COINBASE, 201, true, 5), Some(205), &mut rng);
        end_block(&mut coins, 201);
        let mut waiting: Vec<(u64, u8)> =
            coins.waiting().map(|coin| (coin.value, coin.txid[31])).collect();
        waiting.sort_unstable();
        assert_eq!(waiting, [(1, 150), (4, 201 ^ 4), (5, !201), (6, 201 ^ 6), (7, 201 ^ 7)]);
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

    #[test]
    fn overdue_coins_of_great_value_stay_in_sight() {
        let dues: Vec<_> = (1..=50).map(|value| (Some(201), 3 * value)).collect();
        let (mut coins, mut rng) = coins(&dues);
        coins.rich_from = 100;
        end_block(&mut coins, 201);
        coins.start_block(202, &mut rng);
        coins.bring_forward_the_richest(1_000);
        assert_eq!(coins.take().map(|coin| coin.value), Some(150));
        let all = take_all(&mut coins);
        assert_eq!(all.len(), 49);
        assert!(all[..33].iter().all(|value| *value < 100), "the others go first");
    }
}
