//! [`Tally`]: what a chain turns out to be, counted while it is planned.
//!
//! Knows of every output that can be spent whether it was, one bit each: the hints.

use super::coins::Coin;
use super::law::Kind;
use apus_chain::Height;

/// For the outputs of one block that can be spent, whether they are unspent.
#[derive(Debug, Clone, Default)]
struct Unspent {
    count: u32,
    words: Vec<u64>,
}

impl Unspent {
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
    /// Outputs that carry data. Commitments to witnesses are counted where they are made.
    pub(super) data: u64,
    /// Worth of all coins made, less those spent.
    pub(super) worth: u64,
    pub(super) kinds: [u64; Kind::ALL.len()],
    /// Coins spent, by their age in blocks.
    ages: Vec<u64>,
    unspent: Vec<Unspent>,
}

impl Tally {
    pub(super) fn start_block(&mut self) {
        self.unspent.push(Unspent::default());
        self.transactions += 1;
    }

    pub(super) fn transaction(&mut self) {
        self.transactions += 1;
    }

    /// Counts the outputs of a coinbase, whose worth is told later.
    pub(super) fn coinbase(&mut self, kinds: impl Iterator<Item = Kind>) {
        for kind in kinds {
            self.made(kind, 0);
        }
    }

    pub(super) fn worth(&mut self, value: u64) {
        self.worth += value;
    }

    /// Counts an output that can be spent; tells its index among those of its block.
    pub(super) fn made(&mut self, kind: Kind, value: u64) -> u32 {
        self.outputs += 1;
        self.kinds[kind as usize] += 1;
        self.worth += value;
        self.unspent.last_mut().map_or(0, Unspent::push)
    }

    pub(super) fn data(&mut self) {
        self.outputs += 1;
        self.data += 1;
    }

    pub(super) fn spent(&mut self, coin: &Coin, height: Height) {
        self.inputs += 1;
        self.worth -= coin.value;
        let age = (height - coin.height) as usize;
        if self.ages.len() <= age {
            self.ages.resize(age + 1, 0);
        }
        self.ages[age] += 1;
        self.unspent[coin.height as usize - 1].clear(coin.index);
    }

    /// Coins spent within so many blocks of their making.
    pub(super) fn spent_within(&self, blocks: u32) -> u64 {
        self.ages.iter().take(blocks as usize + 1).sum()
    }

    /// For each block, the indices of its outputs that are unspent.
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
    use crate::maker::keys::Script;

    fn coin(height: Height, index: u32, value: u64) -> Coin {
        let script = Script { kind: Kind::Pk, key: 0 };
        Coin { slot: 0, vout: 0, value, height, index, script, coinbase: false }
    }

    #[test]
    fn hints_are_what_was_not_spent() {
        let mut tally = Tally::default();
        tally.start_block();
        let indices: Vec<u32> = (0..130).map(|value| tally.made(Kind::Pk, value)).collect();
        assert_eq!(indices, (0..130).collect::<Vec<_>>());
        tally.start_block();
        tally.made(Kind::Tr, 1_000);
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
