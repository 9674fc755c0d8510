//! [`Tally`]: counts over all blocks of a chain, and which outputs are left at its end: the hints.

use super::coins::SpendableCoin;
use super::law::PaymentKind;
use apus_chain::Height;

/// Which spendable outputs of one block are left at the end.
#[derive(Debug, Clone, Default)]
struct LeftFlags {
    count: u32,
    words: Vec<u64>,
}

impl LeftFlags {
    fn set(&mut self, index: u32) {
        let (word, bit) = (index as usize / 64, index % 64);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << bit;
    }

    fn is_set(&self, index: u32) -> bool {
        self.words.get(index as usize / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
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
    left: Vec<LeftFlags>,
}

impl Tally {
    pub(super) fn start_block(&mut self) {
        self.left.push(LeftFlags::default());
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
        let Some(block) = self.left.last_mut() else { return 0 };
        block.count += 1;
        block.count - 1
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
    }

    /// Counts a coin that is left at the end.
    pub(super) fn left(&mut self, coin: &SpendableCoin) {
        self.left[coin.height as usize - 1].set(coin.index);
    }

    /// The coins of the set, now.
    pub(super) const fn coins(&self) -> u64 {
        self.outputs - self.data - self.inputs
    }

    /// Coins spent at most this many blocks after they were made.
    pub(super) fn spent_within(&self, blocks: u32) -> u64 {
        self.ages.iter().take(blocks as usize + 1).sum()
    }

    /// For each block, the indices of its outputs that are left.
    pub(super) fn hints(&self) -> impl Iterator<Item = Vec<u32>> + '_ {
        self.left
            .iter()
            .map(|block| (0..block.count).filter(|index| block.is_set(*index)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maker::keys::KeyScript;

    fn coin(height: Height, index: u32, value: u64) -> SpendableCoin {
        let script = KeyScript { kind: PaymentKind::Pk, key: 0 };
        SpendableCoin { txid: [0; 32], vout: 0, value, height, index, script, coinbase: false }
    }

    #[test]
    fn hints_are_the_outputs_left() {
        let mut tally = Tally::default();
        tally.start_block();
        let indices: Vec<u32> = (0..130).map(|value| tally.made(PaymentKind::Pk, value)).collect();
        assert_eq!(indices, (0..130).collect::<Vec<_>>());
        tally.start_block();
        assert_eq!(tally.made(PaymentKind::Tr, 1_000), 0);
        tally.data();
        let kept = [0, 63, 64, 129];
        for index in (0..130).filter(|index| !kept.contains(index)) {
            tally.spent(&coin(1, index, index.into()), 2);
        }
        tally.left(&coin(2, 0, 1_000));
        for index in [129, 0, 64, 63] {
            tally.left(&coin(1, index, index.into()));
        }
        assert_eq!(tally.hints().collect::<Vec<_>>(), [kept.to_vec(), vec![0]]);
        assert_eq!(tally.worth, 63 + 64 + 129 + 1_000);
        assert_eq!((tally.outputs, tally.data, tally.inputs), (132, 1, 126));
        assert_eq!((tally.spent_within(0), tally.spent_within(1)), (0, 126));
        assert_eq!((tally.spent_within(u32::MAX), tally.coins()), (126, 5));
    }
}
