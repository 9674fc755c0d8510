//! [`MadeUpSet`]: a set of coins shaped like that of the main chain, transaction by transaction in
//! the order of their txids, as a merge of runs gives it.
//!
//! Txids ascend as they are made, so nothing is sorted and no memory grows with the set. Shares
//! are about those of the main chain's coins in 2025; nothing here is spent or validated.

use apus_chain::{CoinRef, OutPoint, Txid, write_coin, write_compact_size};
use apus_testkit::rng::Rng;

/// One coin in so many parts of 1,000 has a script of this kind; what is left is bare multisig.
const P2TR: u64 = 310;
const P2WPKH: u64 = 300;
const P2PKH: u64 = 270;
const P2SH: u64 = 90;
const P2WSH: u64 = 20;

/// Above the heights of the main chain of today, so that they take as many bytes.
const HEIGHT_MAX: u64 = 900_000;

/// A set from a number of coins; it is the same each time.
pub(super) struct MadeUpSet {
    rng: Rng,
    coins_left: u64,
    /// First eight bytes of the last txid, in the order of txids.
    prefix: u64,
    /// How far apart these are on average.
    stride: u64,
    script: Vec<u8>,
}

impl MadeUpSet {
    /// A set of `coins` coins.
    pub(super) fn new(coins: u64) -> Self {
        // There are at most as many transactions as coins.
        let stride = u64::MAX / coins.saturating_add(1);
        Self { rng: Rng::at(1, 0), coins_left: coins, prefix: 0, stride, script: Vec::new() }
    }

    /// Puts the next transaction's coins into `group`, as a snapshot has them without the txid.
    /// `each` is given every coin. None where all coins were made.
    pub(super) fn next(
        &mut self,
        group: &mut Vec<u8>,
        mut each: impl FnMut(&OutPoint, CoinRef<'_>),
    ) -> Option<Txid> {
        if self.coins_left == 0 {
            return None;
        }
        let txid = self.txid();
        let count = match self.rng.below(10) {
            0..7 => 1,
            7 | 8 => 2,
            _ => 3,
        };
        let count = count.min(self.coins_left);
        self.coins_left -= count;
        group.clear();
        write_compact_size(group, count);
        let mut vout = 0;
        for number in 0..count {
            vout += self.rng.below(2) as u32 + u32::from(number > 0);
            write_compact_size(group, u64::from(vout));
            let (height, amount) = (self.rng.between(1, HEIGHT_MAX) as u32, self.amount());
            self.choose_script();
            let coin = CoinRef { height, coinbase: false, amount, script: &self.script };
            write_coin(group, coin);
            each(&OutPoint { txid, vout }, coin);
        }
        Some(txid)
    }

    /// Above the last one. Fewer transactions than coins are made, so the steps never add up to
    /// more than there is.
    fn txid(&mut self) -> Txid {
        self.prefix += self.rng.between(1, self.stride);
        let mut txid = [0; 32];
        let (prefix, rest) = txid.split_at_mut(8);
        prefix.copy_from_slice(&self.prefix.to_be_bytes());
        self.rng.fill(rest);
        Txid(txid)
    }

    /// Dust, round amounts, others.
    fn amount(&mut self) -> u64 {
        match self.rng.below(10) {
            0..3 => 546,
            3 => self.rng.between(1, 1_000) * 100_000,
            _ => self.rng.between(1_000, 100_000_000),
        }
    }

    fn choose_script(&mut self) {
        let (kind, rng) = (self.rng.below(1_000), &mut self.rng);
        let script = &mut self.script;
        script.clear();
        let mut around = |before: &[u8], hash: usize, after: &[u8]| {
            script.extend_from_slice(before);
            rng.append(script, hash);
            script.extend_from_slice(after);
        };
        let mut end = P2TR;
        let mut below = |share: u64| {
            end += share;
            kind < end
        };
        if kind < P2TR {
            around(&[0x51, 32], 32, &[]);
        } else if below(P2WPKH) {
            around(&[0, 20], 20, &[]);
        } else if below(P2PKH) {
            around(&[0x76, 0xa9, 20], 20, &[0x88, 0xac]);
        } else if below(P2SH) {
            around(&[0xa9, 20], 20, &[0x87]);
        } else if below(P2WSH) {
            around(&[0, 32], 32, &[]);
        } else {
            around(&[0x51, 33, 2], 32, &[]);
            around(&[33, 3], 32, &[]);
            around(&[33, 2], 32, &[0x53, 0xae]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::{Reader, read_coin};

    #[test]
    fn as_many_coins_as_asked_for_in_order() {
        for count in [1, 2, 3, 5_000] {
            let (mut set, mut group) = (MadeUpSet::new(count), Vec::new());
            let (mut told, mut last) = (Vec::new(), None);
            let mut found = 0;
            while let Some(txid) = set.next(&mut group, |outpoint, coin| {
                told.push((*outpoint, coin.script.len()));
            }) {
                assert!(last.is_none_or(|last| last < txid));
                last = Some(txid);
                let mut reader = Reader::new(&group);
                for _ in 0..reader.compact_size().unwrap() {
                    let vout = reader.compact_size().unwrap() as u32;
                    let coin = read_coin(&mut reader).unwrap();
                    assert_eq!(told[found], (OutPoint { txid, vout }, coin.script.len()));
                    found += 1;
                }
                reader.finish().unwrap();
            }
            assert_eq!((found as u64, told.len() as u64), (count, count));
        }
    }

    #[test]
    fn all_kinds_of_scripts_in_their_shares() {
        let (mut set, mut group) = (MadeUpSet::new(20_000), Vec::new());
        let mut lengths = std::collections::BTreeMap::new();
        while set
            .next(&mut group, |_, coin| *lengths.entry(coin.script.len()).or_insert(0) += 1)
            .is_some()
        {}
        // P2TR and P2WSH have the same length.
        for (length, share) in [(34, 330), (22, 300), (25, 270), (23, 90), (105, 10)] {
            let found = lengths.remove(&length).unwrap_or(0);
            assert!((found - share * 20_i64).abs() < 20 * share.min(30), "{length}: {found}");
        }
        assert!(lengths.is_empty(), "{lengths:?}");
    }
}
