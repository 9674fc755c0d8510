//! [`KeyedHasher`]: SHA-256 of a secret block and an outpoint, and sums of such digests.
//!
//! Invariant: the digest is plain SHA-256 of the 100 bytes key, then message, so that it can be
//! checked with any other implementation. The key comes first so that its block is hashed once.

use crate::digest::bytes_of;
use crate::kernel::Single;
use crate::rounds::{self, INITIAL};
use core::fmt;

/// SHA-256 keyed by a 64-byte first block whose state is computed once; each 36-byte outpoint
/// then costs one compression.
#[derive(Clone)]
pub struct KeyedHasher {
    midstate: [u32; 8],
}

impl fmt::Debug for KeyedHasher {
    /// Without the midstate, which is as good as the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedHasher").finish_non_exhaustive()
    }
}

impl KeyedHasher {
    /// Hashes the key.
    pub fn new(key: &[u8; 64]) -> Self {
        let mut midstate = INITIAL;
        Single::current().compress(&mut midstate, core::slice::from_ref(key));
        Self { midstate }
    }

    fn state(&self, message: &[u8; 36]) -> [u32; 8] {
        let (words, _) = message.as_chunks::<4>();
        let words = core::array::from_fn(|i| u32::from_be_bytes(words[i]));
        rounds::compress_keyed(self.midstate, words)
    }

    /// The digest of the key followed by `message`.
    pub fn hash(&self, message: &[u8; 36]) -> [u8; 32] {
        bytes_of(&self.state(message))
    }

    /// The digest of each message.
    ///
    /// # Panics
    /// If `messages` and `out` differ in length.
    pub fn hash_many(&self, messages: &[[u8; 36]], out: &mut [[u8; 32]]) {
        assert_eq!(messages.len(), out.len(), "one digest for each message");
        for (message, out) in messages.iter().zip(out) {
            *out = self.hash(message);
        }
    }

    /// Adds all digests, each read as a little-endian 256-bit integer, to `sum` modulo 2^256. The
    /// limbs of `sum` are in order of significance, the least first.
    pub fn sum_many(&self, messages: &[[u8; 36]], sum: &mut [u64; 4]) {
        for message in messages {
            let digest = self.hash(message);
            let mut carry = false;
            for (limb, bytes) in sum.iter_mut().zip(digest.as_chunks::<8>().0) {
                let (low, over) = limb.overflowing_add(u64::from_le_bytes(*bytes));
                let (low, again) = low.overflowing_add(u64::from(carry));
                *limb = low;
                carry = over || again;
            }
        }
    }
}
