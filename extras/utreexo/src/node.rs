//! [`NodeHash`]: the hash of a node of the forest.

use apus_hash::sha512_256;
use std::fmt;

/// The hash of a node or leaf. All zeros is the empty hash, which takes the place of a deleted node (BIP-181,
/// draft).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct NodeHash(pub [u8; 32]);

impl NodeHash {
    /// The hash of a deleted node.
    pub const EMPTY: Self = Self([0; 32]);

    /// Whether everything below it is deleted.
    pub fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }

    /// Computes the parent of two nodes: SHA-512/256 of both. A node whose sibling is empty takes its
    /// parent's place (BIP-181, draft).
    pub fn parent(left: &Self, right: &Self) -> Self {
        if left.is_empty() {
            return *right;
        }
        if right.is_empty() {
            return *left;
        }
        Self(sha512_256::pair(&left.0, &right.0))
    }

    /// Computes the parents of many pairs of adjacent nodes, none of them empty.
    pub(crate) fn parents(pairs: &[[u8; 32]]) -> Vec<Self> {
        let mut parents = vec![[0; 32]; pairs.len() / 2];
        sha512_256::pairs(pairs, &mut parents);
        parents.into_iter().map(Self).collect()
    }
}

impl fmt::Display for NodeHash {
    /// Hex, in byte order.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for NodeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
