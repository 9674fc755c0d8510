//! [`CoinSum`]: a number that stands for a set of coins, kept up to date as coins come and go.
//!
//! Each coin is hashed with its name under a secret key, and the hashes are added modulo 2^64: what is
//! added and taken away leaves no trace, and the order does not matter. So the sum that is kept
//! while the set changes equals the one computed from the whole set later. They differ if a coin
//! was lost, came back, or became another one, save by a chance of 1 in 2^64.
//!
//! The hash is SipHash-1-3 (Aumasson and Bernstein, *SipHash: a fast short-input PRF*, 2012, with one
//! round for each word and three at the end), as hash tables use it against chosen keys. What is to
//! be found are the mistakes of a disk, a memory or a program, which don't know the key: any fixed
//! error changes the sum by what is as good as a random number. An attacker who reads the key can
//! forge it, unlike a MuHash, which costs ten times as much.

use crate::hashes::{OutPoint, Txid};
use core::fmt;
use core::hash::Hasher;
use siphasher::sip::SipHasher13;

/// The secret under which coins are hashed: 16 random bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CoinSumKey([u64; 2]);

impl CoinSumKey {
    /// Length of its stored form.
    pub const SIZE: usize = 16;

    /// A key of these bytes, which the caller keeps secret.
    pub const fn new(bytes: [u8; Self::SIZE]) -> Self {
        let number = u128::from_le_bytes(bytes);
        Self([number as u64, (number >> 64) as u64])
    }

    /// Its stored form.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let [low, high] = self.0.map(u128::from);
        (high << 64 | low).to_le_bytes()
    }

    /// Begins with the coins of a transaction.
    #[inline]
    pub fn tx(&self, txid: &Txid) -> TxCoins {
        let mut hasher = SipHasher13::new_with_keys(self.0[0], self.0[1]);
        hasher.write(&txid.0);
        TxCoins(hasher)
    }

    /// The sum of one coin, given in its stored form.
    #[inline]
    pub fn coin(&self, outpoint: &OutPoint, coin: &[u8]) -> CoinSum {
        self.tx(&outpoint.txid).coin(outpoint.vout, coin)
    }
}

impl fmt::Debug for CoinSumKey {
    /// Never shows the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CoinSumKey(…)")
    }
}

/// The hash of a coin's name begun: what all coins of a transaction have in common.
#[derive(Clone, Copy)]
pub struct TxCoins(SipHasher13);

impl TxCoins {
    /// The sum of one coin of the transaction, given in its stored form.
    ///
    /// What is hashed: the txid, the number of the output and the length of the coin, each in four
    /// bytes, and the coin.
    #[inline]
    pub fn coin(self, vout: u32, coin: &[u8]) -> CoinSum {
        let mut hasher = self.0;
        // A coin has some 10,000 bytes at most.
        hasher.write(&vout.to_le_bytes());
        hasher.write(&(coin.len() as u32).to_le_bytes());
        hasher.write(coin);
        CoinSum(hasher.finish())
    }
}

/// Adds up coins one by one; those of a transaction cost less where they follow each other.
#[derive(Clone)]
pub struct CoinAdder {
    key: CoinSumKey,
    txid: Txid,
    tx: TxCoins,
    sum: CoinSum,
}

impl CoinAdder {
    /// No coin yet.
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

    /// The sum of what was added.
    pub fn sum(&self) -> CoinSum {
        self.sum
    }
}

/// A sum with the key that it was made under, so that a reader of the coins can check it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyedCoinSum {
    /// The key.
    pub key: CoinSumKey,
    /// The sum.
    pub sum: CoinSum,
}

impl KeyedCoinSum {
    /// Length of its stored form.
    pub const SIZE: usize = CoinSumKey::SIZE + CoinSum::SIZE;

    /// The sum of no coins, under a key that is no secret.
    pub const NONE: Self = Self { key: CoinSumKey::new([0; CoinSumKey::SIZE]), sum: CoinSum(0) };

    /// Its stored form: the key, then the sum.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        let (key, sum) = out.split_at_mut(CoinSumKey::SIZE);
        key.copy_from_slice(&self.key.to_bytes());
        sum.copy_from_slice(&self.sum.to_bytes());
        out
    }

    /// Reads the stored form.
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        let [key @ .., a, b, c, d, e, f, g, h] = bytes;
        let sum = CoinSum::from_bytes([a, b, c, d, e, f, g, h]);
        Self { key: CoinSumKey::new(key), sum }
    }
}

/// The sum of some coins: of none by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CoinSum(u64);

impl CoinSum {
    /// Length of its stored form.
    pub const SIZE: usize = 8;

    /// Adds coins.
    #[inline]
    pub fn add(&mut self, coins: Self) {
        self.0 = self.0.wrapping_add(coins.0);
    }

    /// Takes coins away.
    #[inline]
    pub fn sub(&mut self, coins: Self) {
        self.0 = self.0.wrapping_sub(coins.0);
    }

    /// These coins and those.
    #[must_use]
    pub fn plus(mut self, coins: Self) -> Self {
        self.add(coins);
        self
    }

    /// These coins without those.
    #[must_use]
    pub fn minus(mut self, coins: Self) -> Self {
        self.sub(coins);
        self
    }

    /// Its stored form.
    pub const fn to_bytes(self) -> [u8; Self::SIZE] {
        self.0.to_le_bytes()
    }

    /// The reverse of [`to_bytes`](Self::to_bytes).
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
        // Some of the same transaction.
        let txid = prop_oneof![Just([0; 32]), Just([1; 32]), any::<[u8; 32]>()];
        let coin = (txid, any::<u32>(), vec(any::<u8>(), 0..90));
        let coin = coin.prop_map(|(txid, vout, coin)| (OutPoint { txid: Txid(txid), vout }, coin));
        vec(coin, 0..20)
    }

    fn sum_of(key: CoinSumKey, coins: &[Coin]) -> CoinSum {
        coins.iter().fold(CoinSum::default(), |sum, (name, coin)| sum.plus(key.coin(name, coin)))
    }

    /// What is hashed, laid out.
    fn laid_out((outpoint, coin): &Coin) -> Vec<u8> {
        [&outpoint.to_bytes()[..], &(coin.len() as u32).to_le_bytes(), coin].concat()
    }

    #[test]
    fn coins_that_are_added_count() {
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
        /// The standard library's hash is the same one under a key of zeros.
        #[test]
        fn it_is_siphash_1_3(coins in coins()) {
            for coin in &coins {
                let mut hasher = DefaultHasher::new();
                hasher.write(&laid_out(coin));
                let sum = CoinSumKey::new([0; 16]).coin(&coin.0, &coin.1);
                prop_assert_eq!(sum, CoinSum(hasher.finish()));
            }
        }

        #[test]
        fn order_does_not_matter_and_what_goes_leaves_nothing(
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

        /// Every field and every bit counts, and the key.
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
            // Another length is another test.
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

    /// Stores keep sums, so the hash under a key stays what it was.
    #[test]
    fn the_sum_of_a_coin_never_changes() {
        let key = CoinSumKey::new(core::array::from_fn(|at| at as u8));
        let name = OutPoint { txid: Txid([7; 32]), vout: 1 };
        assert_eq!(key.coin(&name, b"a coin"), CoinSum(0xd2ce_3d8b_7688_8355));
    }

    #[test]
    fn a_key_is_not_shown() {
        let shown = format!("{:?}", CoinSumKey::new([0x5a; 16]));
        assert!(!shown.contains("5a") && !shown.contains("90"), "{shown}");
    }
}
