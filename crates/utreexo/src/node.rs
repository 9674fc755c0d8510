//! [`NodeHash`]: a node of the forest.

use ring::digest::{Context, Digest, SHA512_256};
use std::fmt;

/// The hash of a node; a leaf is one, too. All zeros is the empty one, which is in the place of what was
/// deleted (BIP-181, draft).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct NodeHash(pub [u8; 32]);

impl NodeHash {
    /// Of what was deleted.
    pub const EMPTY: Self = Self([0; 32]);

    /// Whether all below it is deleted.
    pub fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }

    /// The parent of two nodes: SHA-512/256 of both. What is next to nothing takes its parent's place
    /// (BIP-181, draft).
    pub fn parent(left: &Self, right: &Self) -> Self {
        if left.is_empty() {
            return *right;
        }
        if right.is_empty() {
            return *left;
        }
        let mut hash = Context::new(&SHA512_256);
        hash.update(&left.0);
        hash.update(&right.0);
        Self::of(&hash.finish())
    }

    /// The parents of many pairs of nodes, none of which is empty.
    pub(crate) fn parents(pairs: &[[Self; 2]]) -> Vec<Self> {
        pairs.iter().map(|[left, right]| Self::parent(left, right)).collect()
    }

    /// A digest of SHA-512/256.
    pub(crate) fn of(digest: &Digest) -> Self {
        let mut hash = Self::EMPTY;
        hash.0.copy_from_slice(digest.as_ref());
        hash
    }
}

impl fmt::Display for NodeHash {
    /// In hex, in the order of the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for NodeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
