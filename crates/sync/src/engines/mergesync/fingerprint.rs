//! [`Fingerprint`]: by what the second walk over the blocks knows that their bytes are those of the first.
//!
//! It is no proof against a writer who knows the key: block files are the user's own, and what is to be
//! noticed is that they changed meanwhile, or that a disk gave other bytes. The key is random and leaves
//! the process in the plan of the run alone.

use apus_chain::BlockView;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// The key of a run's fingerprints.
#[derive(Clone, Copy)]
pub struct FingerprintKey(u64);

impl FingerprintKey {
    /// A key of these bytes, which the caller chooses at random.
    pub const fn new(bytes: [u8; 8]) -> Self {
        Self(u64::from_le_bytes(bytes))
    }

    /// The fingerprint of a block's bytes.
    pub fn of(&self, block: &BlockView<'_>) -> Fingerprint {
        Fingerprint(xxh3_128_with_seed(block.raw(), self.0).to_be_bytes())
    }
}

/// XXH3 with 128 bits of a block's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; Self::SIZE]);

impl Fingerprint {
    /// Length in bytes.
    pub const SIZE: usize = 16;

    /// Of a block that is not expected to be read again.
    pub const NONE: Self = Self([0; Self::SIZE]);
}
