//! [`KeyedHasher`]: SHA-256 of a secret block and an outpoint, and sums of such digests.
//!
//! Invariant: the digest is plain SHA-256 of the 100 bytes key, then message, so that it can be
//! checked with any other implementation. The key comes first so that its block is hashed once.

use crate::digest::{add_columns_to, bytes_of, keyed_block};
use crate::groups::Many;
use crate::kernel::Engine;
use crate::rounds::INITIAL;
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
        Self { midstate: Engine::current().single.after(INITIAL, key) }
    }

    /// The digest of the key followed by `message`.
    pub fn hash(&self, message: &[u8; 36]) -> [u8; 32] {
        bytes_of(&Engine::current().single.after(self.midstate, &keyed_block(message)))
    }

    /// The digest of each message.
    ///
    /// # Panics
    /// If `messages` and `out` differ in length.
    pub fn hash_many(&self, messages: &[[u8; 36]], out: &mut [[u8; 32]]) {
        assert_eq!(messages.len(), out.len(), "one digest for each message");
        Engine::current().many.keyed(&self.midstate, messages, out);
    }

    /// Adds all digests, each read as a little-endian 256-bit integer, to `sum` modulo 2^256. The
    /// limbs of `sum` are in order of significance, the least first.
    pub fn sum_many(&self, messages: &[[u8; 36]], sum: &mut [u64; 4]) {
        self.sum_with(&*Engine::current().many, messages, sum);
    }

    pub(crate) fn sum_with(&self, many: &dyn Many, messages: &[[u8; 36]], sum: &mut [u64; 4]) {
        // So many that columns cannot overflow, so few that carries cost nothing.
        for messages in messages.chunks(1 << 20) {
            let mut columns = [0; 8];
            many.keyed_sum(&self.midstate, messages, &mut columns);
            add_columns_to(sum, &columns);
        }
    }

    #[cfg(test)]
    pub(crate) fn midstate(&self) -> &[u32; 8] {
        &self.midstate
    }
}
