//! [`CoinSums`]: sums over whole coins, for syncs that know from undo data which coins are spent.
//!
//! An element is an outpoint with everything that a spend depends on: height, coinbase mark, amount and script,
//! as in the coin's stored form ([`write_coin`](apus_chain::write_coin)). So the sums differ if undo data gives
//! a spent coin any other content than it was created with. Elements are hashed under a key and added for the
//! same reasons as outpoints.

use super::add_256;
use apus_chain::OutPoint;
use apus_hash::{Message, Sha256, sha256_many};

/// Separates these sums from sums of outpoints.
const DOMAIN: &[u8; 32] = b"apus swiftsync coin sum v1\0\0\0\0\0\0";

/// Size of a batch: enough to fill all lanes of a kernel many times, and small enough for the L2 cache.
const COINS_AT_ONCE: usize = 256;

/// Coins waiting to be added to two sums.
pub(super) struct CoinSums {
    pub(super) created: SignedCoinAdder,
    pub(super) spent: SignedCoinAdder,
}

impl CoinSums {
    /// Empty sums, under the key of a sync.
    pub(super) fn new(key: &[u8; 32]) -> Self {
        let mut hash = Sha256::new();
        hash.update(key);
        hash.update(DOMAIN);
        let key = hash.finalize();
        let adder = || SignedCoinAdder { key, bytes: Vec::new(), ends: Vec::new(), sum: [0; 4] };
        Self { created: adder(), spent: adder() }
    }
}

/// One running sum and the elements waiting to be added.
pub(super) struct SignedCoinAdder {
    key: [u8; 32],
    /// The waiting elements, concatenated, and the end of each.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    sum: [u64; 4],
}

impl SignedCoinAdder {
    /// Adds a coin; `write` appends its stored form.
    #[inline]
    pub(super) fn add(
        &mut self,
        outpoint: &[u8; OutPoint::SIZE],
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        self.bytes.extend_from_slice(outpoint);
        write(&mut self.bytes);
        self.ends.push(self.bytes.len());
        if self.ends.len() == COINS_AT_ONCE {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let (mut start, mut digests) = (0, [[0; 32]; COINS_AT_ONCE]);
        let mut messages = [Message::default(); COINS_AT_ONCE];
        for (message, end) in messages.iter_mut().zip(&self.ends) {
            *message = Message([&self.key, &self.bytes[start..*end], &[]]);
            start = *end;
        }
        let count = self.ends.len();
        sha256_many(&messages[..count], &mut digests[..count]);
        for digest in &digests[..count] {
            let (words, _) = digest.as_chunks::<8>();
            let [a, b, c, d] = [0, 1, 2, 3].map(|at| u64::from_le_bytes(words[at]));
            add_256(&mut self.sum, &[a, b, c, d]);
        }
        self.bytes.clear();
        self.ends.clear();
    }

    /// Returns the sum of everything added.
    pub(super) fn finish(mut self) -> [u64; 4] {
        self.flush();
        self.sum
    }
}
