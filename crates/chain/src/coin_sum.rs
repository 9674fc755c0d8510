//! [`CoinSum`]: a checksum of a set of coins, updated as coins are added and removed.
//!
//! Each coin is hashed with its outpoint under a secret key, and the hashes are added modulo 2^64. Removing a
//! coin undoes adding it, and the order does not matter. So a sum that was updated along with the set equals
//! the sum computed from the whole set later. If a coin was lost, duplicated or changed, they differ except
//! with a chance of 1 in 2^64.
//!
//! The hash is SipHash-1-3 (Aumasson and Bernstein, *SipHash: a fast short-input PRF*, 2012, with one round
//! for each word and three at the end), as used in hash tables against chosen keys. It must detect errors of
//! a disk, memory or program, which do not know the key: any fixed error changes the sum by an effectively
//! random number. An attacker who reads the key can forge a sum, unlike a MuHash, which costs ten times as
//! much.

use crate::hashes::{OutPoint, Txid};
use core::fmt;
use core::hash::Hasher;
use siphasher::sip::SipHasher13;

/// The secret under which coins are hashed: 16 random bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CoinSumKey([u64; 2]);

impl CoinSumKey {
    /// Length of the stored form.
    pub const SIZE: usize = 16;

    /// Creates a key from these bytes, which the caller must keep secret.
    pub const fn new(bytes: [u8; Self::SIZE]) -> Self {
        let number = u128::from_le_bytes(bytes);
        Self([number as u64, (number >> 64) as u64])
    }

    /// Returns the stored form.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let [low, high] = self.0.map(u128::from);
        (high << 64 | low).to_le_bytes()
    }

    /// Starts hashing the coins of a transaction.
    #[inline]
    pub fn tx(&self, txid: &Txid) -> TxCoins {
        let mut hasher = SipHasher13::new_with_keys(self.0[0], self.0[1]);
        hasher.write(&txid.0);
        TxCoins(hasher)
    }

    /// Returns the sum of one coin, given in its stored form.
    #[inline]
    pub fn coin(&self, outpoint: &OutPoint, coin: &[u8]) -> CoinSum {
        self.tx(&outpoint.txid).coin(outpoint.vout, coin)
    }
}

impl fmt::Debug for CoinSumKey {
    /// Never shows the key bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CoinSumKey(…)")
    }
}

/// The hash state after the txid, which all coins of a transaction share.
#[derive(Clone, Copy)]
pub struct TxCoins(SipHasher13);

impl TxCoins {
    /// Returns the sum of one coin of the transaction, given in its stored form.
    /// The hash covers the txid, the vout (4 bytes), the length of the coin (4 bytes), and the coin.
    #[inline]
    pub fn coin(self, vout: u32, coin: &[u8]) -> CoinSum {
        let mut hasher = self.0;
        // A coin has at most about 10,000 bytes.
        hasher.write(&vout.to_le_bytes());
        hasher.write(&(coin.len() as u32).to_le_bytes());
        hasher.write(coin);
        CoinSum(hasher.finish())
    }
}

/// Adds up coins one by one; consecutive coins of the same transaction cost less.
#[derive(Clone)]
pub struct CoinAdder {
    key: CoinSumKey,
    txid: Txid,
    tx: TxCoins,
    sum: CoinSum,
}

impl CoinAdder {
    /// Creates an empty sum.
    pub fn new(key: CoinSumKey) -> Self {
        Self { key, txid: Txid::ZERO, tx: key.tx(&Txid::ZERO), sum: CoinSum::default() }
    }

    /// Adds a coin, given in its stored form.
    #[inline]
    pub fn add(&mut self, outpoint: &OutPoint, coin: &[u8]) {
        if self.txid != outpoint.txid {
            self.txid = outpoint.txid;
            self.tx = self.key.tx(&outpoint.txid);
        }
        self.sum.add(self.tx.coin(outpoint.vout, coin));
    }

    /// Returns the sum of the coins added.
    pub fn sum(&self) -> CoinSum {
        self.sum
    }
}

/// A sum with its key, which a reader of the coins needs to check the sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyedCoinSum {
    /// The key.
    pub key: CoinSumKey,
    /// The sum.
    pub sum: CoinSum,
}

impl KeyedCoinSum {
    /// Length of the stored form.
    pub const SIZE: usize = CoinSumKey::SIZE + CoinSum::SIZE;

    /// The sum of no coins, under a key that is not secret.
    pub const NONE: Self = Self { key: CoinSumKey::new([0; CoinSumKey::SIZE]), sum: CoinSum(0) };

    /// Returns the stored form: the key, then the sum.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        let (key, sum) = out.split_at_mut(CoinSumKey::SIZE);
        key.copy_from_slice(&self.key.to_bytes());
        sum.copy_from_slice(&self.sum.to_bytes());
        out
    }

    /// Parses the stored form.
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        let [key @ .., a, b, c, d, e, f, g, h] = bytes;
        let sum = CoinSum::from_bytes([a, b, c, d, e, f, g, h]);
        Self { key: CoinSumKey::new(key), sum }
    }
}

/// The sum of some coins; by default, of none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CoinSum(u64);

impl CoinSum {
    /// Length of the stored form.
    pub const SIZE: usize = 8;

    /// Adds coins.
    #[inline]
    pub fn add(&mut self, coins: Self) {
        self.0 = self.0.wrapping_add(coins.0);
    }

    /// Removes coins.
    #[inline]
    pub fn sub(&mut self, coins: Self) {
        self.0 = self.0.wrapping_sub(coins.0);
    }

    /// Returns the sum of both sets.
    #[must_use]
    pub fn plus(mut self, coins: Self) -> Self {
        self.add(coins);
        self
    }

    /// Returns the sum with `coins` removed.
    #[must_use]
    pub fn minus(mut self, coins: Self) -> Self {
        self.sub(coins);
        self
    }

    /// Returns the stored form.
    pub const fn to_bytes(self) -> [u8; Self::SIZE] {
        self.0.to_le_bytes()
    }

    /// Parses the form that [`to_bytes`](Self::to_bytes) returns.
    pub const fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        Self(u64::from_le_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::hash::DefaultHasher;

    type Coin = (OutPoint, Vec<u8>);

    fn coins() -> impl Strategy<Value = Vec<Coin>> {
        // Some coins share a transaction.
        let txid = prop_oneof![Just([0; 32]), Just([1; 32]), any::<[u8; 32]>()];
        let coin = (txid, any::<u32>(), vec(any::<u8>(), 0..90));
        let coin = coin.prop_map(|(txid, vout, coin)| (OutPoint { txid: Txid(txid), vout }, coin));
        vec(coin, 0..20)
    }

    fn sum_of(key: CoinSumKey, coins: &[Coin]) -> CoinSum {
        coins.iter().fold(CoinSum::default(), |sum, (name, coin)| sum.plus(key.coin(name, coin)))
    }

    /// The hash input, serialized.
    fn laid_out((outpoint, coin): &Coin) -> Vec<u8> {
        [&outpoint.to_bytes()[..], &(coin.len() as u32).to_le_bytes(), coin].concat()
    }

    #[test]
    fn every_added_coin_changes_the_sum() {
        let key = CoinSumKey::new([3; CoinSumKey::SIZE]);
        let [one, other] = [1, 2].map(|vout| OutPoint { txid: Txid([7; 32]), vout });
        let mut adder = CoinAdder::new(key);
        adder.add(&one, b"a coin");
        assert_eq!(adder.sum(), key.coin(&one, b"a coin"));
        assert_ne!(adder.sum(), CoinSum::default());
        adder.add(&other, b"a coin");
        assert_ne!(adder.sum(), key.coin(&one, b"a coin"));
    }

    #[test]
    fn a_sum_is_stored_with_its_key() {
        let bytes = core::array::from_fn(|index| index as u8 + 1);
        let keyed = KeyedCoinSum::from_bytes(bytes);
        assert_eq!(keyed.key.to_bytes()[..], bytes[..CoinSumKey::SIZE]);
        assert_eq!(keyed.sum.to_bytes()[..], bytes[CoinSumKey::SIZE..]);
        assert_eq!(keyed.to_bytes(), bytes);
        assert_eq!(KeyedCoinSum::NONE.to_bytes(), [0; KeyedCoinSum::SIZE]);
    }

    proptest! {
        /// The standard library has the same hash, with a zero key.
        #[test]
        fn sums_match_siphash_1_3(coins in coins()) {
            for coin in &coins {
                let mut hasher = DefaultHasher::new();
                hasher.write(&laid_out(coin));
                let sum = CoinSumKey::new([0; 16]).coin(&coin.0, &coin.1);
                prop_assert_eq!(sum, CoinSum(hasher.finish()));
            }
        }

        #[test]
        fn order_does_not_matter_and_removal_leaves_nothing(
            key: [u8; 16],
            coins in coins(),
            at in any::<proptest::sample::Index>(),
        ) {
            let key = CoinSumKey::new(key);
            let whole = sum_of(key, &coins);
            let reversed: Vec<Coin> = coins.iter().rev().cloned().collect();
            prop_assert_eq!(sum_of(key, &reversed), whole);
            let (left, right) = coins.split_at(at.index(coins.len() + 1));
            let (left, right) = (sum_of(key, left), sum_of(key, right));
            let mut adder = CoinAdder::new(key);
            coins.iter().for_each(|(name, coin)| adder.add(name, coin));
            prop_assert_eq!(adder.sum(), whole);
            prop_assert_eq!(left.plus(right), whole);
            prop_assert_eq!(right.plus(left), whole);
            prop_assert_eq!(whole.minus(left), right);
            prop_assert_eq!(whole.minus(whole), CoinSum::default());
            prop_assert_eq!(left.minus(whole).plus(right), CoinSum::default());
        }

        /// Every field and every bit changes the sum, and so does the key.
        #[test]
        fn another_coin_is_another_sum(
            key: [u8; 16],
            other_key: [u8; 16],
            txid: [u8; 32],
            vout: u32,
            coin in vec(any::<u8>(), 1..70),
            at in any::<proptest::sample::Index>(),
            bit in 0u8..8,
        ) {
            prop_assume!(key != other_key);
            let (key, other_key) = (CoinSumKey::new(key), CoinSumKey::new(other_key));
            let name = OutPoint { txid: Txid(txid), vout };
            let sum = key.coin(&name, &coin);
            prop_assert_ne!(other_key.coin(&name, &coin), sum);
            let mut whole = laid_out(&(name, coin.clone()));
            // Another test covers a different length.
            let at = at.index(whole.len() - 4);
            let at = if at < OutPoint::SIZE { at } else { at + 4 };
            whole[at] ^= 1 << bit;
            let (name, rest) = whole.split_first_chunk().unwrap();
            prop_assert_ne!(key.coin(&OutPoint::from_bytes(name), &rest[4..]), sum);
            let name = OutPoint { txid: Txid(txid), vout };
            prop_assert_ne!(key.coin(&name, &coin[..coin.len() - 1]), sum);
            prop_assert_ne!(key.coin(&name, &[&coin[..], &[0]].concat()), sum);
        }

        #[test]
        fn stored_forms_come_back(key: [u8; 16], sum: [u8; 8]) {
            prop_assert_eq!(CoinSumKey::new(key).to_bytes(), key);
            prop_assert_eq!(CoinSum::from_bytes(sum).to_bytes(), sum);
        }
    }

    /// Stores keep sums on disk, so the hash under a key must never change.
    #[test]
    fn the_sum_of_a_coin_never_changes() {
        let key = CoinSumKey::new(core::array::from_fn(|at| at as u8));
        let name = OutPoint { txid: Txid([7; 32]), vout: 1 };
        assert_eq!(key.coin(&name, b"a coin"), CoinSum(0xd2ce_3d8b_7688_8355));
    }

    #[test]
    fn debug_output_hides_the_key() {
        let shown = format!("{:?}", CoinSumKey::new([0x5a; 16]));
        assert!(!shown.contains("5a") && !shown.contains("90"), "{shown}");
    }
}
