//! The salted hash of outpoints.
//!
//! An attacker can grind for outpoints, so the hash is keyed: two 64-bit halves of the txid, each
//! xored with a secret word, are multiplied to 128 bits and folded, twice, and the two results with
//! the output's number once more. No output of the program depends on the secrets. Without them,
//! two outpoints are as likely to collide as two random words. Most of an outpoint is itself a
//! hash, so an attacker can only grind for its bits, not choose them. The hash is internal: it is
//! never stored and differs in each process.

use apus_chain::OutPoint;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

/// Secret words, drawn once per process.
#[derive(Clone, Copy)]
pub(super) struct Salt([u64; 4]);

impl Salt {
    /// Returns the salt of this process.
    pub(super) fn of_process() -> Self {
        static SALT: OnceLock<Salt> = OnceLock::new();
        *SALT.get_or_init(|| {
            // The standard library's keyed hash, with keys from the system: four outputs of a
            // pseudorandom function.
            let state = RandomState::new();
            Self([0u64, 1, 2, 3].map(|word| state.hash_one(word)))
        })
    }

    /// Returns the hash of an outpoint.
    #[inline]
    pub(super) fn hash(&self, outpoint: &OutPoint) -> u64 {
        let (words, _) = outpoint.txid.0.as_chunks::<8>();
        let word = |at: usize| u64::from_le_bytes(words[at]);
        let head = fold(word(0) ^ self.0[0], word(1) ^ self.0[1]);
        let tail = fold(word(2) ^ self.0[2], word(3) ^ self.0[3]);
        // An odd factor: different numbers stay different, and affect the upper bits.
        let vout = u64::from(outpoint.vout).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        fold(head ^ vout ^ self.0[2], tail ^ self.0[0])
    }
}

/// Returns both halves of the product, xored.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::Txid;
    use std::collections::HashSet;

    /// Worst-case inputs: a single bit set, and one transaction with many outputs.
    #[test]
    fn near_outpoints_spread_over_every_bit() {
        let salt = Salt::of_process();
        let mut hashes = Vec::new();
        for bit in 0..256 {
            let mut txid = [0; 32];
            txid[bit / 8] = 1 << (bit % 8);
            hashes.extend((0..64).map(|vout| salt.hash(&OutPoint { txid: Txid(txid), vout })));
        }
        let distinct: HashSet<u64> = hashes.iter().copied().collect();
        assert_eq!(distinct.len(), hashes.len());
        for bit in 0..64 {
            let ones = hashes.iter().filter(|hash| *hash >> bit & 1 == 1).count();
            // 8,192 are expected, with a standard deviation of 64; allow sixteen deviations.
            assert!(ones.abs_diff(hashes.len() / 2) < 1024, "bit {bit} is set {ones} times");
        }
    }

    const A: u64 = 0x0123_4567_89ab_cdef;
    const B: u64 = 0xfedc_ba98_7654_3210;
    const C: u64 = 0x0f1e_2d3c_4b5a_6978;

    /// The whole number and both halves of the txid affect the hash, under any salt.
    #[test]
    fn near_outpoints_differ_under_the_plainest_salts() {
        for word in [0, u64::MAX] {
            let salt = Salt([word; 4]);
            let mut hashes = HashSet::new();
            let mut count = 0;
            // The words after salting; the first two produce all bits of their half.
            for words in [[u64::MAX, 1, A, B], [2, 3, A, B], [2, 5, A, B], [2, 3, A, C]] {
                let mut txid = [0; 32];
                for (bytes, salted) in txid.chunks_exact_mut(8).zip(words) {
                    bytes.copy_from_slice(&(salted ^ word).to_le_bytes());
                }
                for vout in 0..100 {
                    hashes.insert(salt.hash(&OutPoint { txid: Txid(txid), vout }));
                    count += 1;
                }
            }
            assert_eq!(hashes.len(), count, "under a salt of {word:#x}");
        }
    }

    #[test]
    fn the_salt_determines_the_hash() {
        let (one, other) = (Salt([1, 2, 3, 4]), Salt([5, 6, 7, 8]));
        assert_ne!(one.hash(&OutPoint::default()), other.hash(&OutPoint::default()));
        assert_eq!(one.hash(&OutPoint::default()), one.hash(&OutPoint::default()));
    }
}
