//! [`CoinSums`]: sums over whole coins, for runs that are told which coins are spent.
//!
//! An element is an outpoint and all that a spend depends on: height, coinbase mark, amount and script, as the
//! coin's stored form has them ([`write_coin`](apus_chain::write_coin)). So a coin that was said to be spent
//! with anything else than what it was created with leaves the sums apart. Elements are hashed under a key, and
//! added, for the reasons that outpoints are.

use super::add_256;
use apus_chain::OutPoint;
use apus_hash::{Message, Sha256, sha256_many};

/// Sets these sums apart from those of outpoints.
const DOMAIN: &[u8; 32] = b"apus swiftsync coin sum v1\0\0\0\0\0\0";

/// Enough for many times all lanes of a kernel, and little enough to stay in the second-level cache.
const COINS_AT_ONCE: usize = 256;

/// Coins on their way into two sums.
pub(super) struct CoinSums {
    pub(super) created: SignedCoinAdder,
    pub(super) spent: SignedCoinAdder,
}

impl CoinSums {
    /// Sums of nothing, under the key of a run.
    pub(super) fn new(key: &[u8; 32]) -> Self {
        let mut hash = Sha256::new();
        hash.update(key);
        hash.update(DOMAIN);
        let key = hash.finalize();
        let adder = || SignedCoinAdder { key, bytes: Vec::new(), ends: Vec::new(), sum: [0; 4] };
        Self { created: adder(), spent: adder() }
    }
}

/// One running sum and what is to be added to it.
pub(super) struct SignedCoinAdder {
    key: [u8; 32],
    /// The elements that wait, one after the other, and where each ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    sum: [u64; 4],
}

impl SignedCoinAdder {
    /// Adds a coin, whose stored form `write` appends.
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

    /// The sum of all that was added.
    pub(super) fn finish(mut self) -> [u64; 4] {
        self.flush();
        self.sum
    }
}
